"""Identifiers: vectors of the original classes, round trips, refusals."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message import ids
from firearrow.message.hosts import Host
from tests.message.strategies import addresses, hosts, i32, i64
from tests.message.writing import decode_unique_id


@pytest.mark.parametrize(
    ("ip", "text"),
    [
        ("127.0.0.1", "7F00000100002A9F000000000012D687"),
        ("2001:db8::1", "20010DB800000000000000000000000100002A9F000000000012D687"),
    ],
)
def test_offset_id_vectors(ip: str, text: str) -> None:
    assert ids.encode_offset_id((ip, 10911), 1234567) == text
    assert ids.decode_offset_id(text) == ids.OffsetId(Host(ip, 10911), 1234567)


@given(hosts, i64)
def test_an_offset_id_reads_as_it_was_written(host: Host, physical_offset: int) -> None:
    text = ids.encode_offset_id(host, physical_offset)
    assert len(text) in ids.OFFSET_ID_LENGTHS
    assert ids.decode_offset_id(text) == (host, physical_offset)


def test_a_unique_id_of_the_java_client() -> None:
    """The first message of a golden store: its client had an IPv6 address."""
    text = "FD0000000000000000000000000000022D3F30946E096676544A030E"
    decoded = decode_unique_id(text)
    assert decoded == ("fd00::2", 0x2D3F, 0x30946E09, 0x6676544A, 0x030E)
    prefix = ids.unique_id_prefix(decoded.ip, decoded.pid, decoded.loader_hash)
    assert ids.create_unique_id(prefix, decoded.since_month_ms, decoded.counter) == text


@given(addresses, st.integers(0, 65_535), i32, i32, st.integers(0, 65_535))
def test_a_unique_id_reads_as_it_was_made(
    ip: str, pid: int, loader_hash: int, since_month_ms: int, counter: int
) -> None:
    prefix = ids.unique_id_prefix(ip, pid, loader_hash)
    text = ids.create_unique_id(prefix, since_month_ms, counter)
    assert len(text) in (32, 56)
    assert decode_unique_id(text) == (ip, pid, loader_hash, since_month_ms, counter)


def test_large_numbers_wrap() -> None:
    prefix = ids.unique_id_prefix("10.0.0.1", 4_000_001, 2**32 + 5)
    assert prefix == "0A000001" + f"{4_000_001 % 65_536:04X}" + "00000005"
    assert ids.create_unique_id(prefix, 1, 65_536) == prefix + "00000001" + "0000"


@pytest.mark.parametrize("text", ["", "7F", "G" * 32, "7F 0" * 8, "七" * 32, "0" * 33])
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(MessageError, match="hex digits"):
        ids.decode_offset_id(text)


def test_a_month_starts_at_midnight_of_local_time() -> None:
    moment = datetime(2026, 11, 20, 21, 30, 15, 250_000).astimezone()
    start = datetime(2026, 11, 1).astimezone()
    now_ms = int(moment.timestamp() * 1000)
    assert ids.month_start_ms(now_ms) == int(start.timestamp()) * 1000
    assert ids.month_start_ms(ids.month_start_ms(now_ms)) == ids.month_start_ms(now_ms)
