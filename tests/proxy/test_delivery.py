"""Messages for consumers: RocketMQ's translation of a record, but with bodies that every client can read."""

import gzip
import zlib
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message import properties as keys_of
from firearrow.message.batch import encode_batch
from firearrow.message.compress import Compression, compress
from firearrow.message.hosts import pack_host
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_SHIFT, INNER_BATCH, NEED_UNWRAP
from firearrow.proxy.delivery import keys_in, message_of, records_in, resource_of
from firearrow.proxy.messages import Encoding, MessageType
from tests.proxy.golden import receives

HOST = pack_host(("10.1.2.3", 5))


def record(body: bytes = b"hello", sys_flag: int = 0, properties: dict[str, str] | None = None, **kept: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "queue_offset": 17,
        "physical_offset": 4711,
        "flag": 0,
        "born_timestamp_ms": 1_700_000_000_123,
        "born_host": HOST,
        "store_timestamp_ms": 1_700_000_000_456,
        "store_host": HOST,
    }
    text = keys_of.encode(properties or {})
    return encode_record(body=body, sys_flag=sys_flag, properties=text, **fields | kept)


def view(*arguments: Any, **kept: Any) -> MessageView:
    return decode_record(record(*arguments, **kept))


def test_messages_are_those_of_rocketmqs_proxy() -> None:
    cases = receives()
    assert len(cases) > 200
    assert [case for case in cases if message_of(decode_record(case.record)) != case.message] == []


def test_the_asked_topic_and_the_attempts_may_be_given() -> None:
    message = message_of(view(topic="%RETRY%g_orders"), "ns%orders", attempts=4)
    assert (message.topic.resource_namespace, message.topic.name) == ("ns", "orders")
    assert message.system_properties.delivery_attempt == 5


def test_a_body_goes_out_with_its_digest() -> None:
    message = message_of(view())
    assert message.body == b"hello"
    assert message.system_properties.body_encoding == Encoding.IDENTITY
    assert message.system_properties.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"


def digest(body: bytes) -> str:
    return md5(body, usedforsecurity=False).hexdigest().upper()


@pytest.mark.parametrize("kind", list(Compression))
def test_a_body_that_a_remoting_producer_compressed_goes_out_plain(kind: Compression) -> None:
    plain = b"order " * 1000
    message = message_of(view(compress(plain, kind), COMPRESSED | kind << COMPRESSION_SHIFT))
    system = message.system_properties
    assert (message.body, system.body_encoding) == (plain, Encoding.IDENTITY)
    assert system.body_digest.checksum == digest(plain)


def test_a_body_of_an_old_client_goes_out_plain() -> None:
    assert message_of(view(zlib.compress(b"old"), COMPRESSED)).body == b"old"


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (gzip.compress(b"of a RocketMQ 5 client", mtime=0), COMPRESSED),
        (b"no zlib", COMPRESSED),
        (zlib.compress(b"cut" * 100)[:-3], COMPRESSED),
        (b"\x04\x22\x4d\x18 cut", COMPRESSED | 1 << COMPRESSION_SHIFT),
        (b"of a kind without a name", COMPRESSED | 7 << COMPRESSION_SHIFT),
        (zlib.compress(b"\0" * 5000), COMPRESSED),  # larger than the limit below
        (b"", COMPRESSED),
    ],
    ids=["gzip", "none", "cut zlib", "cut LZ4", "unknown", "too large", "empty"],
)
def test_a_body_in_gzip_or_without_a_reader_goes_out_as_it_is(body: bytes, sys_flag: int) -> None:
    message = message_of(view(body, sys_flag), body_bytes_max=4999)
    system = message.system_properties
    assert (message.body, system.body_encoding) == (body, Encoding.GZIP)
    assert system.body_digest.checksum == digest(body)


def test_a_delay_counts_from_the_senders_clock() -> None:
    delayed = message_of(view(properties={keys_of.TIMER_DELAY_SEC: "5"})).system_properties
    assert delayed.delivery_timestamp.ToMilliseconds() == 1_700_000_005_123
    assert delayed.message_type == MessageType.DELAY


@pytest.mark.parametrize("text", ["soon", "-1", "99999999999999999999", "9223372036854775807"])
@pytest.mark.parametrize("name", [keys_of.TIMER_DELAY_SEC, keys_of.TIMER_DELIVER_MS])
def test_an_unreadable_delivery_time_is_left_out(name: str, text: str) -> None:
    system = message_of(view(properties={name: text}, born_timestamp_ms=0)).system_properties
    assert not system.HasField("delivery_timestamp")


def test_times_are_present_even_at_zero() -> None:
    """Clients in C# need them."""
    system = message_of(view(born_timestamp_ms=0, store_timestamp_ms=0)).system_properties
    assert system.HasField("born_timestamp")
    assert system.HasField("store_timestamp")


def test_a_born_time_out_of_bounds_can_be_sent() -> None:
    born = message_of(view(born_timestamp_ms=(1 << 63) - 1)).system_properties.born_timestamp
    assert born.seconds == 253_402_300_799


def test_hosts_of_ip_6_are_readable() -> None:
    system = message_of(view(born_host=pack_host(("2001:db8::1", 7)), store_host=pack_host(("::1", 10911))))
    assert system.system_properties.born_host == "2001:db8::1"
    assert system.system_properties.store_host == "[::1]:10911"


@pytest.mark.parametrize(
    ("name", "namespace", "bare"),
    [
        ("orders", "", "orders"),
        ("ns%orders", "ns", "orders"),
        ("ns%a%b", "ns", "a%b"),
        ("%orders", "", "%orders"),
        ("%RETRY%ns%g", "ns", "%RETRY%g"),
        ("%DLQ%g", "", "%DLQ%g"),
        ("rmq_sys_a%b", "", "rmq_sys_a%b"),
        ("CID_RMQ_SYS_a%b", "", "CID_RMQ_SYS_a%b"),
        ("", "", ""),
    ],
)
def test_a_namespace_stands_apart(name: str, namespace: str, bare: str) -> None:
    found = resource_of(name)
    assert (found.resource_namespace, found.name) == (namespace, bare)


@pytest.mark.parametrize(
    ("text", "words"),
    [("a b", ["a", "b"]), (" a", ["", "a"]), ("a  b  ", ["a", "", "b"]), ("  ", []), ("a\tb", ["a\tb"])],
)
def test_keys_are_split_at_each_space(text: str, words: list[str]) -> None:
    assert keys_in(text) == words


def test_an_inner_batch_counts_as_its_messages() -> None:
    batch = encode_batch([(0, b"one", b"TAGS\x01A\x02"), (0, b"two", b"")])
    found = records_in(record() + record(batch, INNER_BATCH | NEED_UNWRAP, queue_offset=20))
    assert [(it.body, it.queue_offset) for it in found] == [(b"hello", 17), (b"one", 20), (b"two", 21)]
    assert [message_of(it).system_properties.tag for it in found] == ["", "A", ""]


@pytest.mark.parametrize("flag", [0, COMPRESSED])
def test_a_damaged_inner_batch_stays_one_record(flag: int) -> None:
    (found,) = records_in(record(b"no batch", flag | INNER_BATCH | NEED_UNWRAP))
    assert message_of(found).body == b"no batch"


@given(
    st.binary(max_size=50),
    st.integers(0, 0x7FF),
    st.dictionaries(
        st.sampled_from(sorted(keys_of.RESERVED)) | st.text(st.characters(exclude_characters="\1\2", codec="utf-8")),
        st.text(st.characters(exclude_characters="\1\2", codec="utf-8"), min_size=1),
        max_size=8,
    ).filter(lambda it: "" not in it),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_any_record_can_be_delivered(body: bytes, sys_flag: int, properties: dict[str, str], born_ms: int) -> None:
    message = message_of(view(body, sys_flag, properties, born_timestamp_ms=born_ms))
    system = message.system_properties
    assert system.body_digest.checksum == digest(message.body)
    assert message.FromString(message.SerializeToString()) == message
    assert dict(message.user_properties) == {k: v for k, v in properties.items() if k not in keys_of.RESERVED}
