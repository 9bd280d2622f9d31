"""The commit log record: vectors of the original encoder, round trips, damage."""

import mmap
import runpy
import sys
import zlib
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message import properties as properties_codec
from firearrow.message import record as record_codec
from firearrow.message.hosts import Host, pack_host
from firearrow.message.model import MessageView
from firearrow.message.record import (
    Content,
    RecordHead,
    append_crc_property,
    contents_in,
    crc_property,
    decode_content,
    decode_record,
    encode_blank,
    encode_record,
    iter_records,
    locate,
    record_heads,
    record_size,
    verify_crc_property,
)
from firearrow.message.sysflag import HOSTS_V6_MASK
from tests.message.strategies import hosts, i32, i64, is_v6, property_maps, records, topics
from tests.message.writing import encode_view

VECTOR = bytes.fromhex(
    "00000078 daa320a7 3610a686 00000001 00000002 0000000000000000 0000000000000000 00000000"
    "000000000000006f 7f00000100000005 00000000000000de 7f00000200000006 00000003"
    "0000000000000009 00000005 68656c6c6f 11 2552455452592578787878787878787878 0007"
    "54414753014102"
)
HOST = pack_host(("127.0.0.1", 10911))


def simple(topic: str = "T", body: bytes = b"hello", properties: bytes = b"", host: bytes = HOST) -> bytes:
    return encode_record(topic, body, properties, 1, 2, 3, 4, 0, 5, host, 6, host)


# --- the worked example -----------------------------------------------------------------------


def test_the_vector_is_encoded() -> None:
    encoded = encode_record(
        topic="%RETRY%xxxxxxxxxx",
        body=b"hello",
        properties=b"TAGS\x01A\x02",
        queue_id=1,
        queue_offset=0,
        physical_offset=0,
        flag=2,
        sys_flag=0,
        born_timestamp_ms=111,
        born_host=pack_host(("127.0.0.1", 5)),
        store_timestamp_ms=222,
        store_host=pack_host(("127.0.0.2", 6)),
        reconsume_times=3,
        prepared_transaction_offset=9,
    )
    assert encoded == VECTOR


def test_the_vector_is_decoded() -> None:
    assert decode_record(VECTOR, check_body_crc=True) == MessageView(
        topic="%RETRY%xxxxxxxxxx",
        queue_id=1,
        queue_offset=0,
        physical_offset=0,
        store_size=120,
        body_crc=0x3610A686,
        flag=2,
        sys_flag=0,
        born_timestamp_ms=111,
        born_host=Host("127.0.0.1", 5),
        store_timestamp_ms=222,
        store_host=Host("127.0.0.2", 6),
        reconsume_times=3,
        prepared_transaction_offset=9,
        body=b"hello",
        properties={"TAGS": "A"},
    )


def test_the_example_in_the_documentation_is_the_vector() -> None:
    example = (record_codec.__doc__ or "").split("::\n\n", 1)[1].split("\n\n", 1)[0]
    digits = "".join(line[:52].strip() for line in example.splitlines())
    assert bytes.fromhex(digits) == VECTOR


# --- round trips ------------------------------------------------------------------------------


@given(
    topics, st.binary(max_size=300), property_maps, hosts, hosts, st.tuples(i32, i64, i64, i32, i32, i64, i64, i32, i64)
)
def test_a_record_reads_as_it_was_written(
    topic: str, body: bytes, pairs: dict[str, str], born: Host, store: Host, numbers: tuple[int, ...]
) -> None:
    queue_id, queue_offset, physical_offset, flag, sys_flag, *rest = numbers
    born_ms, store_ms, reconsume_times, prepared = rest
    properties = properties_codec.encode(pairs)
    encoded = encode_record(
        topic,
        body,
        properties,
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_ms,
        pack_host(born),
        store_ms,
        pack_host(store),
        reconsume_times,
        prepared,
    )
    seen = decode_record(encoded, check_body_crc=True)
    assert seen == MessageView(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        len(encoded),
        crc32(body) & 0x7FFF_FFFF,
        flag,
        sys_flag & ~HOSTS_V6_MASK | 0x10 * is_v6(born) | 0x20 * is_v6(store),
        born_ms,
        born,
        store_ms,
        store,
        reconsume_times,
        prepared,
        body,
        pairs,
    )
    hosts_bytes = len(pack_host(born)) + len(pack_host(store))
    assert len(encoded) == record_size(topic, len(body), len(properties), hosts_bytes)
    assert encode_view(seen) == encoded


@pytest.mark.parametrize(("length", "magic"), [(127, 0xDAA320A7), (128, 0xDAA320AB)])
def test_long_topics_make_a_second_version(length: int, magic: int) -> None:
    encoded = simple("%RETRY%".ljust(length, "x"))
    assert encoded[4:8] == magic.to_bytes(4, "big")
    assert len(decode_record(encoded).topic) == length


def test_the_crc_of_a_body_has_no_sign_bit() -> None:
    assert record_codec.body_crc(b"hello") == 0x3610A686
    assert record_codec.body_crc(b"a") == crc32(b"a") & 0x7FFFFFFF != crc32(b"a")


def heads_of(buffer: bytes) -> list[RecordHead] | None:
    """What the heads ought to be, by whole records; None if there is an error."""
    heads: list[RecordHead] = []
    at = 0
    try:
        for it in iter_records(buffer):
            place = at, at + it.store_size, it.topic, it.queue_id, it.queue_offset
            heads.append((*place, it.sys_flag, it.reconsume_times, it.body))
            at += it.store_size
    except MessageError:
        return None
    return heads


@given(st.lists(records, max_size=4), st.integers(0, 2000), st.integers(0, 255), st.booleans())
def test_heads_are_what_whole_records_say(several: list[bytes], at: int, changed: int, damages: bool) -> None:
    buffer = bytearray(b"".join(several))
    if damages and buffer:
        buffer[at % len(buffer)] = changed
    expected = heads_of(bytes(buffer))
    if expected is None:
        with pytest.raises(MessageError):
            list(record_heads(bytes(buffer)))
    else:
        assert list(record_heads(bytes(buffer))) == expected


def test_heads_of_usual_records_and_a_blank() -> None:
    buffer = VECTOR + simple(topic="U") + encode_blank(100)
    assert list(record_heads(buffer)) == heads_of(buffer)
    assert len(list(record_heads(buffer))) == 2


def test_a_replaced_topic_changes_the_size() -> None:
    seen = msgspec.structs.replace(decode_record(simple("T")), topic="Topic")
    assert decode_record(encode_view(seen)) == msgspec.structs.replace(seen, store_size=seen.store_size + 4)


@given(records, st.integers(0, 300), st.integers(0, 255), st.binary(max_size=9))
def test_content_within_a_log_is_that_of_the_record(record: bytes, at: int, changed: int, around: bytes) -> None:
    for data in (record, record[:at] + bytes([changed]) + record[at + 1 :], record[:at]):
        start, end = len(around), len(around) + len(data)
        place = int.from_bytes(data[28:36], "big", signed=True)
        contents = contents_in(around + data + around, place - start, [place], end)
        stated = int.from_bytes(data[:4], "big")
        if contents:
            assert contents == [decode_content(data[:stated])]
        elif stated == len(data) and content_or_refusal(data) is not None:
            view = decode_record(data)
            is_long = len(view.topic.encode()) > 127
            assert is_long or view.sys_flag & HOSTS_V6_MASK


def content_or_refusal(record: bytes) -> object:
    try:
        return decode_content(record)
    except MessageError:
        return None


@given(records, st.integers(0, 300), st.integers(0, 255))
def test_content_is_what_the_whole_record_says(record: bytes, at: int, changed: int) -> None:
    """Also of damaged ones, but for what stands behind a record."""
    for data in (record, record[:at] + bytes([changed]) + record[at + 1 :], record[:at]):
        content = content_or_refusal(data)
        try:
            view = decode_record(data, check_body_crc=True)
        except MessageError:
            assert content is None
            continue
        if view.store_size != len(data):
            assert content is None
            continue
        head = record_codec._HEADS[view.sys_flag & HOSTS_V6_MASK].unpack_from(data)
        assert content == Content(
            view.topic,
            view.queue_id,
            view.queue_offset,
            view.physical_offset,
            view.flag,
            view.sys_flag,
            view.born_timestamp_ms,
            head[9],
            view.store_timestamp_ms,
            head[11],
            view.reconsume_times,
            view.body,
            record_codec.properties_in(data, 0, len(data)) or b"",
        )


@given(records, st.integers(0, 300), st.integers(0, 255), st.binary(max_size=3))
def test_a_usual_record_is_located_as_a_whole_reader_finds_it(
    record: bytes, at: int, changed: int, before: bytes
) -> None:
    """Damaged records included; `locate` leaves unusual ones to the general reader."""
    for data in (record, record[:at] + bytes([changed]) + record[at + 1 :], record[:at]):
        with mmap.mmap(-1, len(before + data) + 1) as mapped:
            mapped[: len(before + data)] = before + data
            located = locate(mapped, len(before), len(before + data))
        try:
            view = decode_record(data)
        except MessageError:
            assert located is None
            continue
        is_usual = view.store_size == len(data) and data[4:8] == bytes.fromhex("daa320a7")
        if not is_usual or view.sys_flag & HOSTS_V6_MASK:
            assert located is None
            continue
        assert located is not None
        assert (located.size, located.queue_id, located.queue_offset) == (len(data), view.queue_id, view.queue_offset)
        assert (located.physical_offset, located.sys_flag) == (view.physical_offset, view.sys_flag)
        assert (located.store_timestamp_ms, located.topic) == (view.store_timestamp_ms, view.topic.encode())
        assert located.properties == record_codec.behind_body(data)[2]


@given(st.lists(records, max_size=5))
def test_records_one_after_another(several: list[bytes]) -> None:
    seen = list(iter_records(b"".join(several)))
    assert seen == [decode_record(one) for one in several]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_reads_the_same(kind: type) -> None:
    seen = list(iter_records(kind(VECTOR * 2)))
    assert seen == [decode_record(VECTOR)] * 2
    assert type(seen[0].body) is bytes


def test_a_mapped_file_reads_the_same() -> None:
    with mmap.mmap(-1, 4096) as mapped:
        mapped[: len(VECTOR)] = VECTOR
        assert list(iter_records(mapped)) == [decode_record(VECTOR)]


def test_a_record_in_the_middle_of_a_buffer() -> None:
    buffer = b"\xff" * 5 + VECTOR + b"\xff" * 9
    assert decode_record(buffer, 5) == decode_record(VECTOR)
    assert list(iter_records(buffer, 5, 5 + len(VECTOR))) == [decode_record(VECTOR)]


# --- ends of files ----------------------------------------------------------------------------


def test_a_blank_is_eight_bytes() -> None:
    assert encode_blank(4096).hex() == "00001000cbd43194"


def test_a_blank_ends_the_records() -> None:
    buffer = VECTOR + encode_blank(100) + b"\xff" * 92
    assert len(list(iter_records(buffer))) == 1


@pytest.mark.parametrize("zeros", [8, 90, 91, 500])
def test_bytes_that_were_never_written_end_the_records(zeros: int) -> None:
    assert len(list(iter_records(VECTOR + bytes(zeros)))) == 1


def test_a_blank_is_no_record() -> None:
    with pytest.raises(MessageError, match="magic at byte 4: 0xcbd43194 is the blank"):
        decode_record(encode_blank(100) + bytes(92))


# --- damage -----------------------------------------------------------------------------------


def patched(at: int, value: int, size: int = 4) -> bytes:
    return VECTOR[:at] + value.to_bytes(size, "big", signed=True) + VECTOR[at + size :]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"", "totalSize at byte 0: 0 bytes are too few"),
        (VECTOR[:90], "totalSize at byte 0: 90 bytes are too few"),
        (VECTOR[:-1], "totalSize at byte 0: 120 is not between 91 and the 119"),
        (patched(0, -1), "totalSize at byte 0: -1"),
        (patched(0, 0), "totalSize at byte 0: 0"),
        (patched(0, 119), "propertiesLength at byte 111: 7"),
        (patched(4, 1), "magic at byte 4: 0x00000001 is no record"),
        (patched(84, -1), "bodyLength at byte 84: -1"),
        (patched(84, 30), "bodyLength at byte 84: 30"),
        (patched(84, 2**31 - 1), "bodyLength at byte 84: 2147483647"),
        (patched(93, -128, 1), "topicLength at byte 93: -128"),
        (patched(93, 127, 1), "topicLength at byte 93: 127"),
        (patched(94, -1, 1), "topic at byte 94: is not UTF-8"),
        (patched(111, -1, 2), "propertiesLength at byte 111: -1"),
        (patched(111, 6, 2), "propertiesLength at byte 111: 6"),
        (patched(111, 8, 2), "propertiesLength at byte 111: 8"),
    ],
)
def test_damage_is_named_with_its_place(damaged: bytes, message: str) -> None:
    with pytest.raises(MessageError) as caught:
        decode_record(damaged)
    assert message in str(caught.value)


def test_the_place_counts_from_the_start_of_the_buffer() -> None:
    with pytest.raises(MessageError, match="bodyLength at byte 204"):
        list(iter_records(VECTOR + patched(84, -1)))


def test_ipv6_flags_need_room_for_ipv6_hosts() -> None:
    smallest = bytearray(encode_record("", b"", b"", 0, 0, 0, 0, 0, 0, HOST, 0, HOST))
    assert len(smallest) == record_codec.RECORD_BYTES_MIN
    smallest[39] = 0x30
    with pytest.raises(MessageError, match="91 is too small for IPv6 hosts"):
        decode_record(smallest + bytes(50))


@pytest.mark.parametrize("at", [-1, 120, 10_000])
def test_positions_outside_the_buffer_hold_no_record(at: int) -> None:
    with pytest.raises(MessageError, match="too few"):
        decode_record(VECTOR, at)


def test_a_damaged_body_is_found_when_asked() -> None:
    damaged = patched(88, 0, 1)
    assert decode_record(damaged).body == b"\0ello"
    with pytest.raises(MessageError, match="bodyCRC at byte 8"):
        decode_record(damaged, check_body_crc=True)
    with pytest.raises(MessageError, match="bodyCRC at byte 128"):
        list(iter_records(VECTOR + damaged, check_body_crc=True))


def test_a_cut_record_at_the_end_is_an_error() -> None:
    for end in range(121, 240):
        with pytest.raises(MessageError, match="totalSize at byte 120"):
            list(iter_records(VECTOR * 2, 0, end))


@given(st.binary(max_size=400), st.integers(-10, 410))
def test_random_bytes_are_refused_with_a_message_error(buffer: bytes, at: int) -> None:
    with pytest.raises(MessageError):
        decode_record(buffer, at)


@given(
    records,
    st.sampled_from([record_codec.MAGIC_V1, record_codec.MAGIC_V2]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.integers(0, 20),
)
def test_mutated_records_are_read_or_refused(valid: bytes, magic: int, edits: list[tuple[int, int]], cut: int) -> None:
    mutated = bytearray(valid)
    mutated[4:8] = magic.to_bytes(4, "big", signed=True)
    for at, byte in edits:
        mutated[at % len(mutated)] = byte
    del mutated[len(mutated) - cut :]
    try:
        seen = decode_record(mutated)
    except MessageError as error:
        refused = error
    else:
        assert 0 < seen.store_size <= len(mutated)
        assert len(seen.body) < seen.store_size
        return
    assert refused.field
    assert refused.position is not None
    assert 0 <= refused.position <= len(mutated)


# --- what cannot be written -------------------------------------------------------------------


def test_what_no_record_can_hold_is_refused() -> None:
    with pytest.raises(MessageError, match="topic: 256 bytes exceed 255"):
        simple("x" * 256)
    with pytest.raises(MessageError, match="topic: a lone surrogate"):
        simple("\ud800")
    with pytest.raises(MessageError, match="properties: 32768 bytes exceed 32767"):
        simple(properties=bytes(32_768))
    with pytest.raises(MessageError, match="record: a number is out of its range"):
        encode_record("T", b"", b"", 2**31, 0, 0, 0, 0, 0, HOST, 0, HOST)


# --- the CRC property -------------------------------------------------------------------------


def test_the_vector_of_the_crc_property() -> None:
    assert crc_property(123456789).hex() == "5f5f435243333223013938373635343332313002"
    assert crc_property(0) == b"__CRC32#\x010000000000\x02"
    assert len(crc_property(2**31 - 1)) == record_codec.CRC_PROPERTY_BYTES


@given(records)
def test_a_record_agrees_with_its_crc_until_a_byte_changes(plain: bytes) -> None:
    guarded = append_crc_property(plain)
    assert verify_crc_property(plain) is None
    assert verify_crc_property(guarded) is True
    assert len(guarded) - len(plain) in (20, 21)
    for at in (8, 40, len(guarded) - 5):
        damaged = bytearray(guarded)
        damaged[at] ^= 1
        assert verify_crc_property(bytes(damaged)) is False


def test_a_missing_end_of_the_last_pair_is_added() -> None:
    closed = append_crc_property(simple(properties=b"TAGS\x01A\x02"))
    assert append_crc_property(simple(properties=b"TAGS\x01A")) == closed
    seen = decode_record(closed)
    assert seen.tags == "A"
    assert seen.store_size == len(closed)
    assert len(seen.properties["__CRC32#"]) == 10


def test_the_crc_covers_all_bytes_before_it() -> None:
    guarded = append_crc_property(simple())
    assert guarded[-20:] == crc_property(crc32(guarded[:-20]) & 0x7FFF_FFFF)


def test_a_second_crc_property_is_refused() -> None:
    with pytest.raises(MessageError, match="there is a CRC property already"):
        append_crc_property(append_crc_property(simple()))


def test_a_crc_property_needs_room() -> None:
    assert verify_crc_property(append_crc_property(simple(properties=b"\x02" * 32_747)))
    with pytest.raises(MessageError, match="32768 bytes exceed 32767"):
        append_crc_property(simple(properties=b"\x02" * 32_748))


@pytest.mark.parametrize("malformed", [b"", VECTOR[:-1], VECTOR + b"\0", bytes(120)])
def test_only_whole_records_have_a_crc(malformed: bytes) -> None:
    with pytest.raises(MessageError):
        verify_crc_property(malformed)
    with pytest.raises(MessageError):
        append_crc_property(malformed)


# --- The CRC is zlib's, whichever library computes it ---


@given(st.binary(max_size=2000), st.integers(0, 50))
def test_it_is_the_same_as_zlibs(data: bytes, start: int) -> None:
    assert record_codec.crc32(data) == zlib.crc32(data)
    assert record_codec.crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


def test_zlib_does_where_zlib_ng_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    assert runpy.run_path(str(Path(record_codec.__file__)))["crc32"] is zlib.crc32
    assert record_codec.crc32 is not zlib.crc32
