"""What traces say of a message: of those that sent it and those that consumed it."""

from __future__ import annotations

from firearrow.cli.mqadmin.traces import Seen, seen_in
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView

HOST = Host("10.0.0.1", 1)
PUB = [
    "Pub",
    "5",
    "r",
    "producers",
    "T",
    "id",
    "tag",
    "key",
    "10.0.0.2:1",
    "3",
    "7",
    "0",
    "offset-id",
    "true",
    "10.0.0.1",
]
SUB = ["SubAfter", "request", "id", "4", "true", "key", "0", "9", "consumers"]


def trace(*records: list[str]) -> MessageView:
    body = "".join("\x01".join(fields) + "\x02" for fields in records).encode()
    return MessageView("T", 0, 0, 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, body, {})


def test_who_sent_and_consumed_a_message() -> None:
    assert seen_in(trace(PUB, SUB), "id") == [
        Seen("Pub", "producers", "10.0.0.1", 5, 7, True),
        Seen("Sub", "consumers", "10.0.0.1", 9, 4, True),
    ]


def test_other_messages_and_other_records_are_left_out() -> None:
    before = ["SubBefore", "1", "r", "g", "request", "id", "0", "key"]
    assert seen_in(trace(PUB, before, ["", ""]), "another") == []


def test_older_clients_leave_the_last_fields_out() -> None:
    assert seen_in(trace([*PUB[:12], "false"]), "id")[0].succeeded is False
    assert seen_in(trace(PUB[:12]), "id")[0].succeeded is True
    assert seen_in(trace(SUB[:7]), "id") == [Seen("Sub", None, "10.0.0.1", 0, 4, True)]
