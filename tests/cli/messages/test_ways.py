"""`firearrow message way`: stations of a message, and how far each group is with it."""

from __future__ import annotations

import pytest

from firearrow.client.blocking import Producer, PushConsumer
from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.message import Message
from tests.cli.shell import Shell


def way(shell: Shell, message_id: str, topic: str = "orders") -> list[tuple[str, str | None, str]]:
    rows = shell.rows("message", "way", message_id, "--topic", topic)
    return [(row["step"], row["group"], row["state"]) for row in rows]


def test_a_message_waits_and_is_consumed(shell: Shell) -> None:
    [message] = shell.rows("message", "get", "--topic", "orders", "--key", "o-0")
    shell.cluster.create_group("billing")
    shell.commit("billing", 0, 0)
    assert way(shell, message["messageId"]) == [
        ("sent", None, "plain"),
        ("stored", None, "good"),
        ("end", "billing", "warn"),
    ]
    shell.commit("billing", 1, 0)
    assert way(shell, message["messageId"])[-1] == ("end", "billing", "good")


def test_a_dead_letter_has_the_way_of_its_origin(shell: Shell) -> None:
    shell.cluster.create_topic("%DLQ%billing", queues=1)
    consumer = PushConsumer(shell.cluster.name_server, group="billing", start=StartFrom.FIRST, max_reconsume_times=0)

    @consumer.on("orders", tags="open")
    def bill(_: Message) -> None:
        raise ValueError("no such customer")

    with consumer:
        [letter, _] = shell.lines("message", "tail", "%DLQ%billing", "--last", "2", "--limit", "2")
    found = way(shell, letter["offsetMessageId"], "%DLQ%billing")
    assert found[:2] == [("sent", None, "plain"), ("stored", None, "good")]
    assert found[2:] == [("dead", "billing", "bad"), ("end", "billing", "bad")]
    assert way(shell, letter["messageId"]) == found


def test_traces_tell_who_sent_and_who_failed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.cluster.create_topic("traces", queues=1)
    monkeypatch.setattr("firearrow.message.names.TRACE_TOPIC", "traces")
    with Producer(shell.cluster.name_server, group="shop", trace="traces") as producer:
        sent = producer.send("orders", "traced").message_id
    rows = shell.rows("message", "way", sent, "--topic", "orders")
    assert (rows[0]["group"], rows[0]["text"].startswith("Sent, in ")) == ("shop", True)


def test_a_delayed_message_waits(shell: Shell) -> None:
    [sent] = shell.rows("message", "send", "orders", "later", "--delay", "3600")
    [waiting] = shell.rows("message", "list", "rmq_sys_wheel_timer", "--limit", "1")
    assert waiting["messageId"] == sent["messageId"]
    assert [step for step, *_ in way(shell, waiting["offsetMessageId"], "rmq_sys_wheel_timer")] == [
        "sent",
        "stored",
        "delayed",
    ]
