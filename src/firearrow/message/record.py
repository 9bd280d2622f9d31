"""The commit log record: one stored message, byte for byte.

The broker writes it. Pull and POP answers, reads by id and transaction checks carry it unchanged to clients, one record
after another. All numbers are big-endian and signed, text is UTF-8.

==  ======  =======  ===========================  ==================================================
no  offset  size     field                        meaning
==  ======  =======  ===========================  ==================================================
1   0       4        totalSize                    of the record, this field included
2   4       4        magic                        0xDAA320A7 (V1) or 0xDAA320AB (V2)
3   8       4        bodyCRC                      CRC-32 of the stored body, highest bit cleared
4   12      4        queueId
5   16      4        flag                         chosen by the application
6   20      8        queueOffset                  number in the queue; 0 in prepared and rollback
                                                  records
7   28      8        physicalOffset               of this record in the log
8   36      4        sysFlag                      see `firearrow.message.sysflag`
9   40      8        bornTimestamp                ms, the sender's clock
10  48      8 or 20  bornHost                     address and port of the sender
11  56 *    8        storeTimestamp               ms, the broker's clock; falls only with it
12  64 *    8 or 20  storeHost                    address and port of the broker
13  72 *    4        reconsumeTimes
14  76 *    8        preparedTransactionOffset    physical offset of the message that this one was,
                                                  a half, or with us one that was delayed
15  84 *    4        bodyLength
16  88 *    n        body                         as sent, perhaps compressed
17          1 or 2   topicLength                  i8 in V1, i16 in V2
18          n        topic
19          2        propertiesLength
20          n        properties                   see `firearrow.message.properties`
==  ======  =======  ===========================  ==================================================

(*) 12 bytes later for each IPv6 host before it. sysFlag 0x10 and 0x20 say which hosts are IPv6. V2
exists for topics of more than 127 bytes, which only retry and dead-letter topics may have.

Where a record does not fit into the rest of a log file, eight bytes end the file: a **blank**, which is the remaining
size (i32) and the magic 0xCBD43194. The writer always leaves room for one.

With ``enabledAppendPropCRC`` the properties end in a pair of 20 bytes, ``__CRC32#`` 0x01, ten
digits, 0x02: the CRC-32 (31 bits) of all bytes of the record before these 20, in decimal, least
significant digit first, padded with ``0``. 123456789 is written ``9876543210``.

Worked example, a V1 record of 120 (0x78) bytes: topic ``%RETRY%xxxxxxxxxx``, queue 1, flag 2, born
at 111 on 127.0.0.1:5, stored at 222 on 127.0.0.2:6, reconsumed 3 times, prepared offset 9, body
``hello``, property ``TAGS`` = ``A``::

    00000078 daa320a7 3610a686 00000001 00000002     size, magic, CRC, queue, flag
    0000000000000000 0000000000000000 00000000       queue offset, physical offset, system flag
    000000000000006f 7f000001 00000005               born
    00000000000000de 7f000002 00000006               stored
    00000003 0000000000000009                        reconsume times, prepared offset
    00000005 68656c6c6f                              body
    11 2552455452592578787878787878787878            topic
    0007 54414753014102                              properties

Sources: CommitLog, MessageExtEncoder, MessageDecoder.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, TypeAlias

import msgspec

from firearrow.errors import MessageError
from firearrow.message import properties as properties_codec
from firearrow.message.hosts import unpack_host
from firearrow.message.model import MessageView
from firearrow.message.names import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from firearrow.message.properties import PROPERTIES_BYTES_MAX
from firearrow.message.sysflag import BORN_HOST_V6, HOSTS_V6_MASK, STORE_HOST_V6

# For 700 bytes, zlib-ng takes a quarter of zlib's time (0.13 µs instead of 0.53 µs), for 128 bytes half of it. The sums
# are the same. It is a dependency where wheels exist; elsewhere zlib is as good. isal is as fast, but has wheels for
# fewer machines.
try:
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

KiB = 1 << 10
MiB = 1 << 20

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194
_MAGICS = (MAGIC_V1, MAGIC_V2)

MESSAGE_BODY_BYTES_MAX = 4 * MiB  # RocketMQ's maxMessageSize; brokers may allow less or more
RECORD_OVERHEAD_BYTES_MAX = 64 * KiB  # RocketMQ's allowance for everything except the body
RECORD_BYTES_MAX = MESSAGE_BODY_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX
BLANK_BYTES = 8
CRC_PROPERTY_BYTES = 20

_HEAD_FIELDS = Struct(">ii4xi4xq8xi32xi8xi")  # of a head without IPv6 hosts, the fields that clients need
_HEADS = {
    0: Struct(">iiiiiqqiq8sq8siqi"),
    BORN_HOST_V6: Struct(">iiiiiqqiq20sq8siqi"),
    STORE_HOST_V6: Struct(">iiiiiqqiq8sq20siqi"),
    HOSTS_V6_MASK: Struct(">iiiiiqqiq20sq20siqi"),
}
HEADS_BY_HOSTS = {
    (8, 8): (_HEADS[0], 0),
    (20, 8): (_HEADS[BORN_HOST_V6], BORN_HOST_V6),
    (8, 20): (_HEADS[STORE_HOST_V6], STORE_HOST_V6),
    (20, 20): (_HEADS[HOSTS_V6_MASK], HOSTS_V6_MASK),
}
_SIZE_AND_MAGIC = Struct(">ii")
_SIZE = Struct(">i")
_I8 = Struct(">b")
_I16 = Struct(">h")
SYS_FLAG_AT = 36
_LENGTHS = Struct(">ii28xi44xi")  # size, magic, sysFlag and bodyLength, with IPv4 hosts
_CRC_NAME = f"{properties_codec.CRC32}{properties_codec.NAME_END}".encode()
_PAIR_END = properties_codec.PAIR_END.encode()

RECORD_BYTES_MIN = _HEADS[0].size + 1 + 2  # IPv4 hosts, no body, topic or properties


def body_crc(body: bytes) -> int:
    """Return the CRC-32 of a body as records hold it: without the sign bit."""
    return crc32(body) & 0x7FFF_FFFF


@lru_cache(maxsize=4096)  # topics are few compared to messages
def topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic that a topic needs, and its length and text as stored.

    Raises MessageError for a topic that no record can hold.
    """
    try:
        text = topic.encode()
    except UnicodeEncodeError as error:
        raise MessageError("a lone surrogate cannot be stored", "topic") from error
    if len(text) > RETRY_TOPIC_LENGTH_MAX:
        raise MessageError(f"{len(text)} bytes exceed {RETRY_TOPIC_LENGTH_MAX}", "topic")
    if len(text) > TOPIC_LENGTH_MAX:
        return MAGIC_V2, _I16.pack(len(text)) + text
    return MAGIC_V1, bytes((len(text),)) + text


def record_size(topic: str, body_bytes: int, properties_bytes: int, hosts_bytes: int = 16) -> int:
    """Return the size of a record before it is written.

    ``hosts_bytes`` is the size of both packed hosts; ``properties_bytes`` counts the CRC property
    if there is one.
    """
    fixed = _HEADS[0].size - 16 + 2
    return fixed + hosts_bytes + body_bytes + len(topic_field(topic)[1]) + properties_bytes


def encode_record(
    topic: str,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return the bytes of a record.

    Args:
        topic: name, at most 255 bytes; more than 127 make a V2 record.
        body: as sent. Its limit is the broker's setting, which is not checked here.
        properties: the encoded properties string, at most 32,767 bytes.
        sys_flag: the sizes of the hosts set its two address bits.
        born_host, store_host: 8 or 20 bytes, see `firearrow.message.hosts.pack_host`.

    Raises MessageError for a topic, properties or numbers that no record can hold.
    """
    magic, topic_bytes = topic_field(topic)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise MessageError(f"{len(properties)} bytes exceed {PROPERTIES_BYTES_MAX}", "properties")
    head, v6_flags = HEADS_BY_HOSTS[len(born_host), len(store_host)]
    total = head.size + len(body) + len(topic_bytes) + 2 + len(properties)
    try:
        fixed = head.pack(
            total,
            magic,
            body_crc(body),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag & ~HOSTS_V6_MASK | v6_flags,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise MessageError(f"a number is out of its range: {error}", "record") from error
    record = b"".join((fixed, body, topic_bytes, _I16.pack(len(properties)), properties))
    assert len(record) == total
    return record


def encode_blank(remaining_bytes: int) -> bytes:
    """Return the eight bytes that end a log file with ``remaining_bytes`` left, these included."""
    assert remaining_bytes >= BLANK_BYTES
    return _SIZE_AND_MAGIC.pack(remaining_bytes, MAGIC_BLANK)


class Frame(NamedTuple):
    """The fields of a record that lead to the next record, and name its queue."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    body: bytes
    body_crc: int
    topic: str


def read_frame(record: bytes) -> Frame:
    """Read the fields of a record that clients must read to reach the next one.

    Raises MessageError like `decode_record`, and for invalid ports: clients stop at them.
    """
    head, body_at, topic_at, topic_start, properties_at = _locate(record, 0, None)
    for field, host in (("bornHost", head[9]), ("storeHost", head[11])):
        if host[-4] or host[-3]:
            raise MessageError("its port is none", field)
    return Frame(
        head[0],
        head[3],
        head[5],
        head[6],
        head[7],
        record[body_at:topic_at],
        head[2],
        _read_topic(record, topic_start, properties_at),
    )


def decode_record(buffer: Buffer, at: int = 0, end: int | None = None, *, check_body_crc: bool = False) -> MessageView:
    """Read the record at a position.

    ``end`` is the end of the readable bytes, by default the end of the buffer. ``check_body_crc`` compares the body
    with its CRC, as recovery does. For anything that is not exactly one whole record, raises MessageError with the
    field and its position in the buffer.
    """
    head, body_at, topic_at, topic_start, properties_at = _locate(buffer, at, end)
    total, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag = head[:8]
    born_ms, born_host, store_ms, store_host, reconsume_times, prepared, _ = head[8:]
    body = bytes(buffer[body_at:topic_at])
    if check_body_crc and crc32(body) & 0x7FFF_FFFF != crc:
        raise MessageError("is not the CRC-32 of the body", "bodyCRC", at + 8)
    return MessageView(
        _read_topic(buffer, topic_start, properties_at),
        queue_id,
        queue_offset,
        physical_offset,
        total,
        crc,
        flag,
        sys_flag,
        born_ms,
        unpack_host(born_host),
        store_ms,
        unpack_host(store_host),
        reconsume_times,
        prepared,
        body,
        properties_codec.parse(bytes(buffer[properties_at + 2 : at + total])),
    )


RecordHead: TypeAlias = tuple[int, int, str, int, int, int, int, bytes]
"""The fields of a record that a client needs at once: begin and end, topic, queue id, queue offset, system flag,
reconsume times and body."""


def record_heads(buffer: bytes) -> Iterator[RecordHead]:
    """Read the heads of records that follow one another, in a sixth of the time of `iter_records`.

    Raises MessageError like `iter_records`; `decode_record` can read the records that it returns.
    """
    unpack, usual = _HEAD_FIELDS.unpack_from, _HEAD_FIELDS.size
    size, at = len(buffer), 0
    known, topic, known_bytes = b"\xff\xff", "", 2  # of the topic's field, including its length
    while at < size:
        if size - at >= RECORD_BYTES_MIN:
            total, magic, queue_id, queue_offset, sys_flag, reconsume_times, body_bytes = unpack(buffer, at)
            end, body_at = at + total, at + usual
            topic_at = body_at + body_bytes
            is_usual = magic == MAGIC_V1 and not sys_flag & HOSTS_V6_MASK and body_bytes >= 0
            if is_usual and topic_at + 3 <= end <= size:
                if not buffer.startswith(known, topic_at):
                    known_bytes = 1 + buffer[topic_at]
                    known = buffer[topic_at : topic_at + known_bytes]
                    topic = ""
                text_at = topic_at + known_bytes + 2
                if (
                    text_at <= end
                    and text_at + (buffer[text_at - 2] << 8 | buffer[text_at - 1]) == end
                    and known_bytes <= TOPIC_LENGTH_MAX + 1
                    and end - text_at <= PROPERTIES_BYTES_MAX
                ):
                    topic = topic or _read_topic(buffer, topic_at + 1, text_at - 2)
                    body = buffer[body_at:topic_at]
                    yield at, end, topic, queue_id, queue_offset, sys_flag, reconsume_times, body
                    at = end
                    continue
        if _is_file_end(buffer, at, size):
            return
        view = decode_record(buffer, at, size)
        yield (
            at, at + view.store_size, view.topic, view.queue_id, view.queue_offset, view.sys_flag,
            view.reconsume_times, view.body,
        )  # fmt: skip
        at += view.store_size


class Content(msgspec.Struct, frozen=True, gc=False):
    """The fields of a record that other records are made from; hosts and properties are as stored.

    A named tuple with this number of fields would take ten times as long, as much as the rest of `contents_in`.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    properties: bytes


def contents_in(buffer: bytes | mmap.mmap, base: int, physical_offsets: Iterable[int], limit: int) -> list[Content]:
    """Read the `Content` of some records of a log, in a third of the time of `decode_record`.

    ``buffer`` is a part of the log that begins at ``base``. Reading ends before the first record that is not in the
    buffer up to ``limit``, is damaged, or has a long topic or an IPv6 host: then `decode_content` names its fault.
    """
    found: list[Content] = []
    unpack_from = _HEADS[0].unpack_from
    topic, topic_field = "", b""  # of the previous record
    for stated in physical_offsets:
        at = stated - base
        if at < 0 or limit - at < RECORD_BYTES_MIN:
            break
        (
            size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
            born_host, store_ms, store_host, times, _, body_bytes,
        ) = unpack_from(buffer, at)  # fmt: skip
        end, body_at = at + size, at + 88
        topic_at = body_at + body_bytes
        if physical_offset != stated or magic != MAGIC_V1 or sys_flag & HOSTS_V6_MASK:
            break
        if end > limit or not body_at <= topic_at < end - 2:
            break
        body, tail = buffer[body_at:topic_at], buffer[topic_at:end]
        if not topic or not tail.startswith(topic_field):
            topic_field = tail[: tail[0] + 1]
            if tail[0] > 127:
                break
            try:
                topic = str(topic_field[1:], "utf-8")
            except UnicodeDecodeError:
                break
        start = len(topic_field) + 2
        if start > len(tail) or tail[start - 2] << 8 | tail[start - 1] != len(tail) - start:
            break
        if crc32(body) & 0x7FFF_FFFF != body_crc:
            break
        found.append(
            Content(
                topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host,
                store_ms, store_host, times, body, tail[start:],
            )
        )  # fmt: skip
    return found


def decode_content(record: bytes) -> Content:
    """Read the `Content` of one whole record of any kind.

    Raises MessageError like `decode_record`, and for a damaged body.
    """
    head, body_at, topic_at, topic_start, properties_at = _locate(record, 0, None)
    if head[0] != len(record):
        raise MessageError(f"{head[0]}, but there are {len(record)} bytes", "totalSize", 0)
    body = record[body_at:topic_at]
    if crc32(body) & 0x7FFF_FFFF != head[2]:
        raise MessageError("is not the CRC-32 of the body", "bodyCRC", 8)
    topic = _read_topic(record, topic_start, properties_at)
    return Content(
        topic, head[3], head[5], head[6], head[4], head[7], head[8], head[9], head[10], head[11],
        head[12], body, record[properties_at + 2 :],
    )  # fmt: skip


class Located(msgspec.Struct, frozen=True, gc=False):
    """The fields of a usual record that queues and index need; ``topic`` and ``properties`` are as stored."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: bytes
    properties: bytes


def locate(buffer: mmap.mmap, at: int, end: int) -> Located | None:
    """Read from the record from ``at`` to ``end`` the fields that queues and index need.

    None if there is no such record, or if it has a long topic or an IPv6 host: this function does not read these.
    """
    if end - at < RECORD_BYTES_MIN:
        return None
    head = _HEADS[0].unpack_from(buffer, at)
    size, magic, sys_flag, topic_at = head[0], head[1], head[7], at + 88 + head[14]
    if size != end - at or magic != MAGIC_V1 or sys_flag & HOSTS_V6_MASK:
        return None
    if not at + 88 <= topic_at < end - 2:
        return None
    tail = buffer[topic_at:end]
    start = tail[0] + 3
    if start > len(tail) or tail[start - 2] << 8 | tail[start - 1] != len(tail) - start:
        return None
    return Located(size, head[3], head[5], head[6], sys_flag, head[10], tail[1 : start - 2], tail[start:])


def properties_in(buffer: bytes | mmap.mmap, at: int, end: int) -> bytes | None:
    """Return the properties string, as stored, of the record from ``at`` to ``end``.

    None if there is no such record. The range must have at least `RECORD_BYTES_MIN` bytes. The body is not read.
    """
    size, magic, sys_flag, body_bytes = _LENGTHS.unpack_from(buffer, at)
    topic_at = at + 88 + body_bytes
    usual = magic == MAGIC_V1 and not sys_flag & HOSTS_V6_MASK and size == end - at
    if usual and at < topic_at < end - 2:
        tail = buffer[topic_at:end]
        start = tail[0] + 3
        if start <= len(tail) and tail[start - 2] << 8 | tail[start - 1] == len(tail) - start:
            return tail[start:]
    try:
        properties_at = _locate(buffer, at, end)[-1]
    except MessageError:
        return None
    return buffer[properties_at + 2 : end]


def behind_body(record: bytes) -> tuple[int, bytes, bytes]:
    """Return the position of a record's topic field, and its topic and properties as stored.

    Raises MessageError for anything that is not exactly one whole record.
    """
    _, _, topic_at, topic_start, properties_at = _locate(record, 0, None)
    return topic_at, record[topic_start:properties_at], record[properties_at + 2 :]


def last_physical_offset(records: bytes) -> int:
    """Return the physical offset that the last of some consecutive records states."""
    at = last = 0
    while at < len(records):
        last = at
        at += int.from_bytes(records[at : at + 4], "big")
    return int.from_bytes(records[last + 28 : last + 36], "big")


def iter_records(
    buffer: Buffer, start: int = 0, end: int | None = None, *, check_body_crc: bool = False
) -> Iterator[MessageView]:
    """Read records that follow one another, as pull answers and log files hold them.

    Ends at ``end``, or where a log file ends: at a blank, or at a size of 0, as bytes that were never written are 0.
    Raises MessageError like `decode_record`.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    at = start
    while at < end and not _is_file_end(buffer, at, end):
        view = decode_record(buffer, at, end, check_body_crc=check_body_crc)
        yield view
        at += view.store_size


def append_crc_property(record: bytes) -> bytes:
    """Return a record with the CRC property at the end of its properties.

    The last pair is closed first if its 0x02 is missing. Raises MessageError when the record is
    malformed, when the properties grow too long, or when they end in a CRC property already.
    """
    length_at, properties = _find_properties(record)
    if has_crc_property(properties):
        raise MessageError("there is a CRC property already", "properties", length_at + 2)
    if properties and not properties.endswith(_PAIR_END):
        properties += _PAIR_END
    length = len(properties) + CRC_PROPERTY_BYTES
    if length > PROPERTIES_BYTES_MAX:
        raise MessageError(f"{length} bytes exceed {PROPERTIES_BYTES_MAX}", "properties")
    total = _SIZE.pack(length_at + 2 + length)
    covered = b"".join((total, record[4:length_at], _I16.pack(length), properties))
    return covered + crc_property(crc32(covered) & 0x7FFF_FFFF)


def crc_property(crc: int) -> bytes:
    """Return the 20 bytes of the CRC property for a CRC of 31 bits."""
    assert 0 <= crc <= 0x7FFF_FFFF
    return _CRC_NAME + f"{crc:010d}"[::-1].encode() + _PAIR_END


def verify_crc_property(record: bytes) -> bool | None:
    """Tell whether a record agrees with its CRC property; None if it has none.

    Raises MessageError when the record is malformed.
    """
    _, properties = _find_properties(record)
    if not has_crc_property(properties):
        return None
    covered = memoryview(record)[: len(record) - CRC_PROPERTY_BYTES]
    return crc_property(crc32(covered) & 0x7FFF_FFFF) == properties[-CRC_PROPERTY_BYTES:]


def readdress(record: bytes, topic: str, name: str, value: str) -> bytes:
    """Return a record as one of another topic, with an added property if it lacks that and has room for it.

    For a client, which expects messages of the topic that it requested.
    """
    _, _, topic_at, _, properties_at = _locate(record, 0, None)
    magic, topic_bytes = topic_field(topic)
    stored = record[properties_at + 2 :]
    added = f"{name}{properties_codec.NAME_END}{value}{properties_codec.PAIR_END}".encode()
    has = properties_codec.finder(name)(stored) is not None
    if not has and len(added) + len(stored) <= PROPERTIES_BYTES_MAX:
        stored = added + stored
    body = record[8:topic_at]
    size = 8 + len(body) + len(topic_bytes) + 2 + len(stored)
    return b"".join((_SIZE_AND_MAGIC.pack(size, magic), body, topic_bytes, _I16.pack(len(stored)), stored))


def has_crc_property(properties: bytes) -> bool:
    """Tell whether a properties string, as stored, ends in the CRC of its record."""
    return properties[-CRC_PROPERTY_BYTES:].startswith(_CRC_NAME)


def _find_properties(record: bytes) -> tuple[int, bytes]:
    """Return the position of the properties' length, and the properties."""
    head, *_, properties_at = _locate(record, 0, None)
    if head[0] != len(record):
        raise MessageError(f"{head[0]}, but there are {len(record)} bytes", "totalSize", 0)
    return properties_at, record[properties_at + 2 :]


def _is_file_end(buffer: Buffer, at: int, end: int) -> bool:
    if at + BLANK_BYTES > end:
        return False  # a log file keeps room for a blank, so this is a record cut short
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    return bool(size == 0 or magic == MAGIC_BLANK)


def _locate(buffer: Buffer, at: int, end: int | None) -> tuple[tuple[Any, ...], int, int, int, int]:
    """Check the frame of a record: that its lengths add up to its size.

    Returns its unpacked head, and the positions of its body, topic length, topic and properties length.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    if at < 0 or at + RECORD_BYTES_MIN > end:
        raise MessageError(f"{max(end - at, 0)} bytes are too few for a record", "totalSize", at)
    head_struct = _HEADS[0]
    head = head_struct.unpack_from(buffer, at)  # nearly always right: the fields before the hosts have fixed places
    total, magic, hosts = head[0], head[1], head[7] & HOSTS_V6_MASK
    if magic not in _MAGICS or not RECORD_BYTES_MIN <= total <= end - at:
        raise _bad_start(total, magic, at, end)
    record_end = at + total
    if hosts:
        head_struct = _HEADS[hosts]
        # At least a topic length and a properties length must follow the head.
        if at + head_struct.size + 3 > record_end:
            raise MessageError(f"{total} is too small for IPv6 hosts", "totalSize", at)
        head = head_struct.unpack_from(buffer, at)
    body_at = at + head_struct.size
    topic_at = body_at + head[-1]
    if not body_at <= topic_at <= record_end - 3:
        raise _misfit(head[-1], "bodyLength", body_at - 4)
    if magic == MAGIC_V1:
        (topic_length,) = _I8.unpack_from(buffer, topic_at)
        topic_start = topic_at + 1
    else:
        (topic_length,) = _I16.unpack_from(buffer, topic_at)
        topic_start = topic_at + 2
    properties_at = topic_start + topic_length
    if not topic_start <= properties_at <= record_end - 2:
        raise _misfit(topic_length, "topicLength", topic_at)
    (properties_length,) = _I16.unpack_from(buffer, properties_at)
    if properties_length < 0 or properties_at + 2 + properties_length != record_end:
        reason = f"{properties_length} does not lead to the end of the record at {record_end}"
        raise MessageError(reason, "propertiesLength", properties_at)
    return head, body_at, topic_at, topic_start, properties_at


def _bad_start(total: int, magic: int, at: int, end: int) -> MessageError:
    if magic not in _MAGICS:
        what = "the blank that ends a file" if magic == MAGIC_BLANK else "no record"
        return MessageError(f"{magic & 0xFFFF_FFFF:#010x} is {what}", "magic", at + 4)
    reason = f"{total} is not between {RECORD_BYTES_MIN} and the {end - at} bytes there are"
    return MessageError(reason, "totalSize", at)


def _misfit(length: int, field: str, length_at: int) -> MessageError:
    return MessageError(f"{length} does not fit into the record", field, length_at)


def _read_topic(buffer: Buffer, start: int, end: int) -> str:
    try:
        return str(buffer[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MessageError("is not UTF-8", "topic", start) from error
