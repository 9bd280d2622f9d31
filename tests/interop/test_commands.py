"""The command line on the original broker and on Firearrow: what commands print is the same.

``docs/cluster.md`` says that its commands are for any cluster. ``commands.md`` goes through others,
behind those and on the same broker; the tests below are in this order, too.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.cli.main import main
from firearrow.client import Message, StartFrom
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer, PushConsumer
from tests.cli.shell import fill_orders
from tests.cli.test_tour import PAGE, with_outputs
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S
from tests.interop.popper import Popper
from tests.interop.servers import Kind, Server, serve
from tests.interop.waiting import wait_until

BOTH: list[Kind] = ["real", "firearrow"]
WALK = Path(__file__).with_name("commands.md")


@pytest.fixture(scope="module", params=BOTH)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp(f"commands-{request.param}")
    with serve(request.param, root / "store", root / "logs") as server:
        done = main(["topic", "create", "orders", "--queues", "2", "-n", server.namesrv])
        assert done == 0
        fill_orders(server.namesrv)
        yield server


@pytest.fixture(autouse=True)
def here(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands are for this cluster, and write into a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)


def settle(server: Server) -> None:
    """Wait for what was sent to be in its queues, which the original answers a send before."""

    async def behind() -> str:
        async with Admin.of([server.namesrv]) as admin:
            return (await admin.brokers.runtime(server.broker))["dispatchBehindBytes"]

    wait_until(lambda: asyncio.run(behind()) == "0", ARRIVAL_TIMEOUT_S, "messages in their queues")


def printed(server: Server, page: str) -> str:
    """A page with what its commands print on a server."""
    return with_outputs(page, lambda: settle(server))


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """What a command that succeeds prints."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_the_page_of_examples(served: Server) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert printed(served, page) == page


def test_the_other_commands(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    consumer = PushConsumer(served.namesrv, group="carriers", start=StartFrom.FIRST, max_reconsume_times=0)

    @consumer.on("orders", tags="open")
    def carry(message: Message) -> None:
        if message.keys == ["o-3"]:
            raise ValueError("no such address")

    with consumer:
        wait_until(lambda: rows(capsys, "dlq", "list"), ARRIVAL_TIMEOUT_S, "a dead letter")
    page = WALK.read_text(encoding="utf-8")
    assert printed(served, page) == page


def test_messages_by_their_ids(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for topic in ("traced", "traces", "again"):
        rows(capsys, "topic", "create", topic, "--queues", "1")
    consumer = PushConsumer(served.namesrv, group="viewers", start=StartFrom.FIRST, trace="traces")
    viewed = threading.Event()
    consumer.subscribe("traced", lambda _: viewed.set())
    with Producer(served.namesrv, group="shop", trace="traces") as producer, consumer:
        receipt = producer.send("traced", "x", tag="A", key="k")
        assert viewed.wait(ARRIVAL_TIMEOUT_S)
    settle(served)
    message_id = receipt.message_id
    traced = rows(capsys, "message", "trace", message_id, "--trace-topic", "traces")
    assert [(row["kind"], row["group"], row["isSuccess"]) for row in traced] == [
        ("sent", "shop", True),
        ("consumed", "viewers", True),
    ]
    [found] = rows(capsys, "message", "get", message_id, "--topic", "traced")
    assert [found] == rows(capsys, "message", "get", found["offsetMessageId"])
    assert (found["body"], found["tag"], found["keys"]) == ("x", "A", "k")
    resend = ("message", "resend", message_id, "--topic", "traced", "--to", "again")
    assert [row["state"] for row in rows(capsys, *resend)] == ["would be sent"]
    [sent] = rows(capsys, *resend, "--apply")
    settle(served)
    [copy] = rows(capsys, "message", "get", sent["newMessageId"], "--topic", "again")
    assert (copy["body"], copy["tag"], copy["keys"]) == ("x", "A", "k")


def test_what_brokers_say_of_themselves(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    [cluster] = rows(capsys, "cluster", "list")
    assert {key: cluster[key] for key in ("cluster", "brokers", "masters", "slaves")} == {
        "cluster": "DefaultCluster",
        "brokers": 1,
        "masters": 1,
        "slaves": 0,
    }
    [broker] = rows(capsys, "broker", "list")
    assert broker["address"] == served.broker
    by_address, by_name = (
        [(row["address"], row["name"]) for row in rows(capsys, "broker", "show", which)]
        for which in (served.broker, "broker-a")
    )
    assert by_address == by_name
    assert (served.broker, "commitLogDirCapacity") in by_name  # values change from one to the next
    [stats] = rows(capsys, "broker", "stats")
    assert stats["broker"] == "broker-a"
    port = served.namesrv.rpartition(":")[2]
    [found] = rows(capsys, "config", "get", "listenPort", "--name-servers")
    assert (found["key"], found["value"]) == ("listenPort", port)


def test_messages_that_are_popped(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Invisible until their time, and without it once they are acknowledged; those that come again as well."""

    def invisible(count: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]] | None:
            shown = rows(capsys, "pop", "invisible", "poppers")
            return [{}, *shown] if len(shown) == count else None

        return wait_until(found, ARRIVAL_TIMEOUT_S, f"{count} invisible messages")[1:]

    assert rows(capsys, "topic", "create", "popped", "--queues", "1")
    for number in range(3):
        assert rows(capsys, "message", "send", "popped", str(number))
    with Popper("popped", "poppers").opened(served.broker) as popper:
        first, *others = popper.pop_all(3, invisible_ms=300_000)
        found = invisible(3)
        assert [(row["topic"], row["queueId"], row["queueOffset"]) for row in found] == [
            ("popped", 0, number) for number in range(3)
        ]
        for row in found:
            until, since = datetime.fromisoformat(row["invisibleUntil"]), datetime.fromisoformat(row["poppedAt"])
            assert until - since == timedelta(minutes=5)
        assert popper.ack(first) == 0
        assert [row["queueOffset"] for row in invisible(2)] == [1, 2]
        popper.change(others[0].handle, 1000)
        [again] = popper.pop_all(1, invisible_ms=300_000)
        assert again.view.reconsume_times == 1
        assert {(row["topic"], row["queueOffset"]) for row in invisible(2)} == {
            ("popped", 2),
            ("%RETRY%poppers_popped", 0),
        }
        assert {popper.ack(message) for message in (others[1], again)} == {0}
        assert invisible(0) == []


def test_why_the_oldest_file_of_the_log_stays(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker does not report its files, but the message behind the oldest one has its age."""
    with Producer(served.namesrv, group="shop") as producer:
        for _ in range(3):  # of files with 8 MiB
            producer.send("orders", Random(1).randbytes(3 << 20))
    capsys.readouterr()
    main(["broker", "retention", "--json"])  # a full disk is the machine's affair
    [*_, kept] = json.loads(capsys.readouterr().out)
    assert "its last message is 0.0 h old, fileReservedTime keeps it" in kept["evidence"], kept
