"""Message as an application gets it, and its printed form."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client import Queue
from firearrow.client.message import Message, messages_in, shown
from firearrow.errors import MessageError
from firearrow.message import properties
from firearrow.message.batch import encode_batch
from firearrow.message.compress import Compression, compress
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import INNER_BATCH, NEED_UNWRAP

ID = "7F00000100002A9F00000000000004D2"


def view(body: bytes = b"body", topic: str = "orders", **changed: Any) -> MessageView:
    found: dict[str, Any] = {
        "queue_id": 3, "queue_offset": 17, "physical_offset": 1234, "store_size": 100,
        "body_crc": 0, "flag": 0, "sys_flag": 0, "born_timestamp_ms": 1_795_211_880_123,
        "born_host": Host("127.0.0.1", 5000), "store_timestamp_ms": 1_795_211_881_000,
        "store_host": Host("127.0.0.1", 10911), "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {"TAGS": "paid", "KEYS": "o-17 x", "UNIQ_KEY": "U1"},
    }  # fmt: skip
    return MessageView(topic=topic, body=body, **found | changed)


def test_what_it_says() -> None:
    message = Message.received(view(), "broker-a")
    assert (message.topic, message.queue) == ("orders", Queue("orders", "broker-a", 3))
    assert (message.tag, message.keys, message.sharding_key) == ("paid", ["o-17", "x"], None)
    assert (message.message_id, message.offset_message_id) == ("U1", ID)
    assert (message.queue_offset, message.reconsume_times) == (17, 0)
    assert message.born_at == datetime(2026, 11, 20, 21, 58, 0, 123_000, tzinfo=UTC)
    assert message.stored_at == datetime(2026, 11, 20, 21, 58, 1, tzinfo=UTC)
    assert message.born_host == Host("127.0.0.1", 5000)


def test_one_that_comes_again() -> None:
    found = {"RETRY_TOPIC": "ns%orders"}
    again = view(topic="%RETRY%ns%g", reconsume_times=2, properties=found)
    message = Message.received(again, "a", "ns")
    assert (message.topic, message.queue.topic) == ("orders", "%RETRY%ns%g")
    assert (message.reconsume_times, message.message_id) == (2, ID)
    assert repr(message).startswith("<Message orders a/3@17 from=%RETRY%ns%g again=2 id=")


def test_it_prints_readably() -> None:
    assert repr(Message.received(view("täxt".encode()), "broker-a")) == (
        "<Message orders broker-a/3@17 tag=paid keys=o-17,x id=U1 born=2026-11-20T21:58:00.123Z 5 B 'täxt'>"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"", "0 B ''"), (b"x" * 61, f"61 B '{'x' * 60}'…"), (b"\x00\x01", "2 B 0001"), (bytes(31), f"31 B {'00' * 30}…")],
)
def test_a_body_for_people(body: bytes, text: str) -> None:
    assert shown(body) == text


@given(st.binary())
def test_any_body_prints_in_a_line(body: bytes) -> None:
    assert repr(Message.received(view(body), "a")).isprintable()


@pytest.mark.parametrize("kind", Compression)
def test_a_compressed_body(kind: Compression) -> None:
    packed = compress(b"a" * 5000, kind)
    message = Message.received(view(packed, sys_flag=1 | kind << 8), "a")
    assert message.body == b"a" * 5000


@dataclass
class Order:
    number: int


def test_text_and_json() -> None:
    assert Message.received(view("ä".encode("latin-1")), "a").text("latin-1") == "ä"
    assert Message.received(view(b'{"number":1}'), "a").json(Order) == Order(1)
    assert Message.received(view(b"[1]"), "a").json() == [1]
    with pytest.raises(MessageError, match="message U1 of topic 'orders' is not utf-8 text"):
        Message.received(view(b"\xff"), "a").text()
    with pytest.raises(MessageError, match="message U1 of topic 'orders' is not JSON of Order"):
        Message.received(view(b'{"number":"x"}'), "a").json(Order)


def test_equal_is_what_is_the_same_record() -> None:
    one, same = Message.received(view(), "a"), Message.received(view(), "a")
    other = Message.received(view(queue_offset=18), "a")
    assert one == same
    assert len({one, same, other}) == 2
    assert one != "message"


# --- Answers to pulls, taken apart ---


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
