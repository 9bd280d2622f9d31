"""Answers to pulls, taken apart."""

from __future__ import annotations

import pytest

from firearrow.client.message import Message
from firearrow.client.received import messages_in
from firearrow.errors import MessageError
from firearrow.message import properties
from firearrow.message.batch import encode_batch
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import INNER_BATCH, NEED_UNWRAP

HOST = bytes(8)


def record(body: bytes, queue_offset: int, sys_flag: int = 0, **found: str) -> bytes:
    text = properties.encode(found)
    return encode_record("ns%T", body, text, 3, queue_offset, 0, 0, sys_flag, 0, HOST, 0, HOST, 0, 0)


def test_records_become_messages_in_their_order() -> None:
    body = record(b"a", 5, TAGS="A") + record(b"b", 6)
    first, second = messages_in(body, "broker-a", "ns")
    assert (first.body, first.queue_offset, first.tag, first.topic) == (b"a", 5, "A", "T")
    assert (second.body, second.queue_offset, second.queue) == (b"b", 6, ("ns%T", "broker-a", 3))


def test_a_message_that_is_not_read_yet_is_what_one_that_is_says() -> None:
    body = record(b"a", 5, TAGS="A", UNIQ_KEY="U1")
    [unread] = messages_in(body, "broker-a", "ns")
    whole = Message.received(decode_record(body), "broker-a", "ns")
    assert (unread.queue, unread.topic, unread.body) == (whole.queue, whole.topic, whole.body)
    assert (unread.queue_offset, unread.reconsume_times) == (5, 0)
    assert repr(unread) == repr(whole)
    assert unread == whole
    assert unread.view == whole.view


def test_what_was_retried_has_the_topic_that_it_was_sent_to() -> None:
    text = properties.encode({"RETRY_TOPIC": "ns%T"})
    again = encode_record("%RETRY%ns%g", b"a", text, 0, 5, 0, 0, 0, 0, HOST, 0, HOST, 2, 0)
    [message] = messages_in(again, "b", "ns")
    assert (message.topic, message.queue.topic, message.reconsume_times) == ("T", "%RETRY%ns%g", 2)


def test_an_inner_batch_is_taken_apart() -> None:
    members = [(7, b"a", properties.encode({"TAGS": "A"})), (0, b"b", b"")]
    batch = record(encode_batch(members), 40, INNER_BATCH | NEED_UNWRAP, INNER_NUM="2")
    messages = messages_in(record(b"x", 39) + batch, "b")
    assert [(one.body, one.queue_offset, one.tag) for one in messages] == [
        (b"x", 39, None),
        (b"a", 40, "A"),
        (b"b", 41, None),
    ]
    assert [one.view.flag for one in messages] == [0, 7, 0]
    assert {one.view.sys_flag for one in messages} == {0}


def test_what_is_damaged_is_an_error() -> None:
    with pytest.raises(MessageError, match="totalSize"):
        messages_in(record(b"a", 5)[:-1], "b")
