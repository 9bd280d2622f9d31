"""`firearrow client` and `firearrow producer`: clients that are online, and one message for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue

import pytest

from firearrow.client import StartFrom
from firearrow.client.blocking import Producer, PushConsumer
from firearrow.client.message import Message
from tests.cli.shell import Shell, shop
from tests.proxy.rpcs import Rpcs, settings_of_consumer


@pytest.fixture
def consumed(shell: Shell) -> Iterator[Queue[bytes]]:
    """Bodies that a consumer of group ``billing`` gets, after the six of topic ``orders``."""
    got: Queue[bytes] = Queue()

    def handle(message: Message) -> None:
        got.put(message.body)

    consumer = PushConsumer(shell.cluster.name_server, group="billing", start=StartFrom.FIRST)
    consumer.subscribe("orders", handle)
    with consumer:
        for _ in range(6):
            got.get(timeout=30)
        yield got


def test_a_client_is_shown(shell: Shell, consumed: Queue[bytes]) -> None:
    assert consumed.empty()
    [listed] = shell.rows("group", "clients", "billing")
    client = listed["clientId"]
    facts = {row["name"]: row["value"] for row in shell.rows("client", "show", "billing", client)}
    assert (facts["language"], facts["access"]) == ("PYTHON", "remoting")
    assert "broker-a" in facts["addresses"]
    topics = {row["topic"]: row for row in shell.rows("client", "topics", "billing", client)}
    assert topics["orders"]["expression"] == "*"
    queues = [row for row in shell.rows("client", "queues", "billing", client) if row["topic"] == "orders"]
    assert [row["queueId"] for row in queues] == [0, 1]
    stacks = [row["line"] for row in shell.rows("client", "stacks", "billing", client)]
    assert any("MainThread" in line for line in stacks)
    code, said = shell.fails("client", "show", "billing", "gone")
    assert (code, said) == (3, "firearrow: group 'billing' has no client 'gone' that is online\n")


def test_a_client_consumes_a_message_again(shell: Shell, consumed: Queue[bytes]) -> None:
    [listed] = shell.rows("group", "clients", "billing")
    message = next(row for row in shell.lines("message", "cat", "orders") if row["body"] == "order 3")
    words = ["client", "consume", "billing", listed["clientId"], message["messageId"], "--topic", "orders"]
    assert [row["state"] for row in shell.rows(*words)] == ["would be consumed"]
    assert consumed.empty()
    [row] = shell.rows(*words, "--apply")
    assert (row["state"], row["result"]) == ("consumed", "CR_SUCCESS")
    assert consumed.get(timeout=30) == b"order 3"


def test_producers_are_listed_by_group(shell: Shell) -> None:
    with Producer(shell.cluster.name_server, group="shop") as producer:
        producer.send("orders", "one more")
        [row] = shell.rows("producer", "list", "--topic", "orders")
        assert (row["producerGroup"], row["language"], row["brokers"]) == ("shop", "PYTHON", "broker-a")
        assert [it["client"] for it in shell.rows("producer", "list", "sh*")] == [row["client"]]
        assert shell.rows("producer", "list", "other") == []


def test_a_client_by_grpc_is_a_member_like_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(monkeypatch, grpc=True) as cluster, Rpcs(cluster.brokers[0].grpc) as rpcs:
        cluster.create_group("billing")
        rpcs.begin(settings_of_consumer("billing", "orders"))
        shell = Shell(cluster, capsys)
        [listed] = shell.rows("group", "clients", "billing")
        assert listed["clientId"] == rpcs.client_id
        facts = {row["name"]: row["value"] for row in shell.rows("client", "show", "billing", rpcs.client_id)}
        assert facts["access"] == "gRPC"
        topics = [row["topic"] for row in shell.rows("client", "topics", "billing", rpcs.client_id)]
        assert "orders" in topics
