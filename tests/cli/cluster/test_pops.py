"""`firearrow pop`: waiting pops, invisible messages, and the work of giving messages back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from firearrow.cli.cluster import pops
from firearrow.client import Message
from firearrow.client.blocking import SimpleConsumer
from firearrow.message.names import is_retry
from tests.cli.shell import Shell, shop
from tests.interop.waiting import wait_until

WITHIN_S = 60
INVISIBLE = timedelta(minutes=5)
COMMAND = ("pop", "invisible", "billing")


@contextmanager
def popping(shell: Shell) -> Iterator[SimpleConsumer]:
    """A consumer of group ``billing`` that pops ``orders``."""
    with SimpleConsumer(shell.cluster.name_server, group="billing", topics=["orders"]) as consumer:
        yield consumer


def receive(consumer: SimpleConsumer, count: int, invisible: timedelta = INVISIBLE) -> list[Message]:
    """Pop a count of messages, in the order of the pops."""
    popped: list[Message] = []

    def are_all() -> bool:
        popped.extend(consumer.receive(count - len(popped), invisible, wait=1))
        return len(popped) == count

    wait_until(are_all, WITHIN_S, f"{count} messages")
    return popped


def places(messages: list[Message]) -> list[tuple[int, int]]:
    """Queue and offset of messages, in order."""
    return sorted((message.queue.queue_id, message.queue_offset) for message in messages)


def shown(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Queue and offset of rows, in order."""
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def wait_for(shell: Shell, messages: list[Message]) -> list[dict[str, Any]]:
    """Wait until these messages are invisible, and give their rows."""
    return wait_until(
        lambda: found if shown(found := shell.rows(*COMMAND)) == places(messages) else None, WITHIN_S, "their records"
    )


def test_pops_are_shown_as_far_as_they_are_known(shell: Shell) -> None:
    [before] = shell.rows("pop", "revive")
    assert (before["lag"], before["reason"]) == (0, "nothing was popped yet")
    with popping(shell) as consumer:
        assert consumer.receive()
        [row] = shell.rows("pop", "show", "billing")
        assert (row["topic"], row["broker"], row["popsWaiting"]) == ("orders", "broker-a", 0)
        assert row["notAcknowledged"] is None, "nobody reports it, so it is not 0"
        assert "firearrow pop invisible" in shell.text("pop", "show", "billing")


def test_messages_are_invisible_from_a_pop_to_the_acknowledgement(shell: Shell) -> None:
    assert "No record says that billing has an invisible message." in shell.text(*COMMAND)
    with popping(shell) as consumer:
        first, *others = popped = receive(consumer, 6)
        rows = wait_for(shell, popped)
        for row in rows:
            assert (row["broker"], row["topic"], row["recordedBy"]) == ("broker-a", "orders", "broker-a")
            since, until = (datetime.fromisoformat(row[name]) for name in ("poppedAt", "invisibleUntil"))
            assert until - since == INVISIBLE
        assert [row["poppedAt"] for row in rows] == sorted(row["poppedAt"] for row in rows)
        assert shell.rows("pop", "invisible", "others") == []
        assert shell.rows(*COMMAND, "--limit", "2") == rows[:2]
        assert "6 messages are invisible." in shell.text(*COMMAND, "--limit", "2")
        consumer.ack(first)
        wait_for(shell, others)
        consumer.ack_all(others)
        wait_until(lambda: shell.rows(*COMMAND) == [], WITHIN_S, "acknowledgements")


def test_a_message_whose_time_is_changed_is_there_once(shell: Shell) -> None:
    with popping(shell) as consumer:
        [message] = receive(consumer, 1)
        consumer.change_invisible(message, timedelta(hours=2))
        [row] = wait_until(
            lambda: [row for row in shell.rows(*COMMAND) if row["invisibleUntil"] > row["poppedAt"]], WITHIN_S, "a row"
        )
        until, since = datetime.fromisoformat(row["invisibleUntil"]), datetime.fromisoformat(row["poppedAt"])
        assert until - since == timedelta(hours=2)


def test_a_message_that_comes_again_is_in_its_retry_topic(shell: Shell) -> None:
    with popping(shell) as consumer:
        receive(consumer, 6, timedelta(seconds=1))
        again = receive(consumer, 6)
        assert {message.reconsume_times for message in again} == {1}
        rows = wait_for(shell, again)
        assert all(is_retry(row["topic"]) for row in rows)


def test_it_says_where_it_stopped(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with popping(shell) as consumer:
        wait_for(shell, receive(consumer, 6))
        monkeypatch.setattr(pops, "RECORDS_MAX", 1)
        assert "Of rmq_sys_wheel_timer of broker-a, the newest 1 of " in shell.text(*COMMAND)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"popConsumerKVServiceInit": True, "popConsumerKVServiceEnable": True},
            "Broker broker-a records pops in RocksDB",
        ),
        ({"enablePopBufferMerge": True}, "Broker broker-a keeps pops in memory for up to 10000 ms"),
    ],
    ids=["rocksdb", "memory"],
)
def test_it_says_that_a_broker_records_pops_elsewhere(
    config: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with shop(monkeypatch, config=config) as cluster:
        shell = Shell(cluster, capsys)
        with popping(shell) as consumer:
            receive(consumer, 6)
            assert shell.rows(*COMMAND) == []
            assert said in " ".join(shell.text(*COMMAND).split())
