"""The two identifiers of a message, both upper-case hexadecimal.

The **offset message id** is the place of a record: the broker's address and port, then the physical offset in its
CommitLog. Any client can turn it into a direct read.

======  ======  ==========================================
offset  size    field
======  ======  ==========================================
0       4, 16   address of the broker
4, 16   4       port, i32
8, 20   8       physical offset, i64
======  ======  ==========================================

127.0.0.1:10911 at 1234567 is ``7F000001 00002A9F 000000000012D687``.

The client creates the **unique id** (property ``UNIQ_KEY``, the message id that applications see). It is unique
without a broker:

======  ======  ==========================================================================
offset  size    field
======  ======  ==========================================================================
0       4, 16   address of the client
4, 16   2       process id, low 16 bits
6, 18   4       a number that tells apart several clients of one process
10, 22  4       milliseconds since the first of the month, 00:00 local time
14, 26  2       counter, low 16 bits
======  ======  ==========================================================================

Sources: MessageDecoder#createMessageId, MessageClientIDSetter.
"""

from __future__ import annotations

from datetime import datetime
from struct import Struct
from typing import NamedTuple

from firearrow.errors import MessageError
from firearrow.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES, Host, pack_address, pack_host, unpack_host

OFFSET_ID_LENGTHS = (2 * (HOST_V4_BYTES + 8), 2 * (HOST_V6_BYTES + 8))

_OFFSET = Struct(">q")
_CLIENT = Struct(">Hi")


class OffsetId(NamedTuple):
    """Place of a record: the broker that stored it, and the byte in that broker's CommitLog."""

    store_host: Host
    physical_offset: int


def encode_offset_id(store_host: Host | tuple[str, int], physical_offset: int) -> str:
    """Return the offset message id: 32 characters for IPv4, 56 for IPv6."""
    return (pack_host(store_host) + _OFFSET.pack(physical_offset)).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Read an offset message id; raises MessageError when the text is none."""
    if len(text) in OFFSET_ID_LENGTHS:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) * 2 == len(text):  # fromhex skips white space
            return OffsetId(unpack_host(raw[:-8]), _OFFSET.unpack_from(raw, len(raw) - 8)[0])
    short, long = OFFSET_ID_LENGTHS
    raise MessageError(f"{text!r} does not have {short} or {long} hex digits", "offset message id")


def unique_id_prefix(ip: str, pid: int, loader_hash: int) -> str:
    """Return the part of unique ids that stays the same for the life of a client.

    ``pid`` is cut to 16 bits. ``loader_hash`` is any number that tells the clients of a process apart, cut to 32.
    """
    number = (loader_hash + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000
    return (pack_address(ip) + _CLIENT.pack(pid & 0xFFFF, number)).hex().upper()


def create_unique_id(prefix: str, since_month_ms: int, counter: int) -> str:
    """Return a unique id from a `unique_id_prefix`, a moment and a counter (both may wrap)."""
    return f"{prefix}{since_month_ms & 0xFFFF_FFFF:08X}{counter & 0xFFFF:04X}"


def month_start_ms(now_ms: int) -> int:
    """Return 00:00 local time of the first of the month of a moment, both in ms since 1970."""
    moment = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - the format wants local time
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
    return int(start.timestamp()) * 1000
