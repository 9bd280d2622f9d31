"""Messages as values."""

import msgspec
import pytest

from firearrow.errors import MessageError
from firearrow.message.compress import Compression, compress
from firearrow.message.hosts import pack_host
from firearrow.message.model import MessageView, NewMessage
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import TRANSACTION_COMMIT
from tests.message.writing import with_compression


def view(body: bytes = b"", properties: bytes = b"", sys_flag: int = 0) -> MessageView:
    host = pack_host(("127.0.0.1", 10911))
    return decode_record(encode_record("T", body, properties, 0, 0, 1234567, 0, sys_flag, 0, host, 0, host))


def test_a_message_is_built_from_what_applications_use() -> None:
    message = NewMessage.of(
        "T",
        b"x",
        tags="A",
        keys=["k1", "k2"],
        delay_level=3,
        deliver_at_ms=1_700_000_000_000,
        properties={"mine": "1"},
        flag=7,
    )
    assert message == NewMessage(
        "T", b"x", {"mine": "1", "TAGS": "A", "KEYS": "k1 k2", "DELAY": "3", "TIMER_DELIVER_MS": "1700000000000"}, 7
    )
    assert (message.tags, message.keys, message.unique_key) == ("A", ["k1", "k2"], None)


def test_a_plain_message_has_no_properties() -> None:
    assert NewMessage.of("T", b"x") == NewMessage("T", b"x")
    assert NewMessage.of("T", b"x").keys == []


def test_messages_do_not_share_properties() -> None:
    assert NewMessage("T", b"").properties is not NewMessage("T", b"").properties


def test_one_key_may_be_a_string() -> None:
    assert NewMessage.of("T", b"", keys="k1").keys == ["k1"]


def test_values_do_not_change() -> None:
    with pytest.raises(AttributeError):
        NewMessage("T", b"").topic = "U"  # type: ignore[misc]


def test_a_view_reads_its_properties() -> None:
    seen = view(properties=b"TAGS\x01A\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02")
    assert (seen.tags, seen.keys, seen.unique_key) == ("A", ["k1", "k2"], "U")
    assert (view().tags, view().keys, view().unique_key) == (None, [], None)


def test_a_view_knows_its_offset_message_id() -> None:
    assert view().offset_message_id == "7F00000100002A9F000000000012D687"


def test_a_view_knows_its_transaction_type() -> None:
    assert view(sys_flag=0x301 | TRANSACTION_COMMIT).transaction_type == TRANSACTION_COMMIT


def test_a_view_decompresses_its_body() -> None:
    packed = compress(b"hello" * 100, Compression.ZSTD)
    seen = view(packed, sys_flag=with_compression(0, Compression.ZSTD))
    assert seen.body == packed
    assert seen.body_decompressed() == b"hello" * 100
    with pytest.raises(MessageError, match="beyond 499 bytes"):
        seen.body_decompressed(499)


def test_a_copy_with_another_topic() -> None:
    assert msgspec.structs.replace(view(b"x"), topic="U").topic == "U"
