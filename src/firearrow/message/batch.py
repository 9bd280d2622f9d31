"""The body of a batch send (request 320): several messages for one queue in one request.

The client writes it. The broker splits it and stores one record for each member. Members follow one another; topic,
queue and times come from the request.

======  ====  ================  ======================================
offset  size  field             meaning
======  ====  ================  ======================================
0       4     size              of the member, this field included
4       4     magic             0, not read
8       4     bodyCRC           0, not read
12      4     flag              chosen by the application
16      4     bodyLength
20      n     body              never compressed
20+n    2     propertiesLength
22+n    m     properties        see `firearrow.message.properties`
======  ====  ================  ======================================

Worked example, body ``hello`` with flag 1 and ``TAGS`` = ``A``, then body ``x``::

    00000022 00000000 00000000 00000001 00000005 68656c6c6f 0007 54414753014102
    00000017 00000000 00000000 00000000 00000001 78 0000

Source: MessageDecoder#encodeMessages, MessageDecoder#decodeMessages.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from firearrow.errors import MessageError
from firearrow.message.properties import PROPERTIES_BYTES_MAX

_HEAD = Struct(">iiiii")
_I16 = Struct(">h")
MEMBER_BYTES_MIN = _HEAD.size + _I16.size


class BatchMember(NamedTuple):
    """One message of a batch: the application's flag, the body and the encoded properties."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(members: Iterable[BatchMember | tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch send.

    Raises MessageError for no members, and for properties or flags that are out of range.
    """
    parts: list[bytes] = []
    for flag, body, properties in members:
        parts += _encode_member(flag, body, properties)
    if not parts:
        raise MessageError("there are no messages", "batch")
    return b"".join(parts)


def _encode_member(flag: int, body: bytes, properties: bytes) -> tuple[bytes, ...]:
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise MessageError(f"{len(properties)} bytes exceed {PROPERTIES_BYTES_MAX}", "properties")
    size = MEMBER_BYTES_MIN + len(body) + len(properties)
    try:
        head = _HEAD.pack(size, 0, 0, flag, len(body))
    except StructError as error:
        raise MessageError(f"{flag} does not fit into 32 bits", "flag") from error
    return head, body, _I16.pack(len(properties)), properties


def split_batch(body: bytes | memoryview) -> list[BatchMember]:
    """Return the members of a batch in their order.

    Raises MessageError when there are none, or when any size disagrees with the others.
    """
    members: list[BatchMember] = []
    at = 0
    while at < len(body):
        member, at = _decode_member(body, at)
        members.append(member)
    if not members:
        raise MessageError("there are no messages", "batch")
    return members


def _decode_member(buffer: bytes | memoryview, at: int) -> tuple[BatchMember, int]:
    left = len(buffer) - at
    if left < MEMBER_BYTES_MIN:
        raise MessageError(f"{left} bytes are too few for a message", "size", at)
    size, _, _, flag, body_length = _HEAD.unpack_from(buffer, at)
    if not MEMBER_BYTES_MIN <= size <= left:
        raise MessageError(f"{size} is not between {MEMBER_BYTES_MIN} and {left}", "size", at)
    if not 0 <= body_length <= size - MEMBER_BYTES_MIN:
        raise MessageError(f"{body_length} does not fit into {size}", "bodyLength", at + 16)
    body_at = at + _HEAD.size
    length_at = body_at + body_length
    end = at + size
    (properties_length,) = _I16.unpack_from(buffer, length_at)
    if properties_length != end - length_at - 2:
        reason = f"{properties_length} does not lead to the end of the message at {end}"
        raise MessageError(reason, "propertiesLength", length_at)
    properties = bytes(buffer[length_at + 2 : end])
    return BatchMember(flag, bytes(buffer[body_at:length_at]), properties), end
