"""Bodies as a reader sees them: JSON, MessagePack, Protobuf by field numbers, text, or bytes in hex.

`guess` chooses the view of a body; `shown` gives a body in a view, and raises Undecodable where it is something else.
Without a schema, a Protobuf message is only what its bytes say: numbers of fields, with texts and nested messages
where the bytes allow one. So no body is guessed to be Protobuf.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from firearrow.cli.output.reports import visible
from firearrow.errors import ConfigError, FirearrowError, MessageError
from firearrow.message.model import MessageView

JSON, MESSAGEPACK, PROTOBUF, TEXT, HEX = "json", "messagepack", "protobuf", "text", "hex"
HEX_COLUMNS: Final = 16
DEPTH_MAX: Final = 32
START_BYTES: Final = 400
"""Bytes of a body that its beginning in a list needs: four for each character."""
PROTOBUF_BYTES_MAX: Final = 1 << 20
"""Largest body whose fields are guessed: that takes two seconds for each MiB."""
DECOMPRESSED_BYTES_MAX: Final = 16 << 20
"""Largest body that a page decompresses: 4 MiB is the limit of a message as sent."""


class Undecodable(FirearrowError):
    """A body that a view can't show; the message is the reason."""


def guess(body: bytes) -> str:
    """Choose the view of a body."""
    if body[:1] in (b"{", b"[") and _is(_json, body):
        return JSON
    if _is_text(body):
        return TEXT
    # a small positive number or a text of MessagePack is most likely something else
    if body[:1] and (0x80 <= body[0] <= 0x9F or 0xDC <= body[0] <= 0xDF) and _is(_messagepack, body):
        return MESSAGEPACK
    return HEX


def shown(body: bytes, view: str) -> str:
    """Give a body in a view; raises Undecodable where it is something else."""
    return VIEWS[view](body)


def body_of(message: MessageView) -> tuple[bytes, str]:
    """Give a message's body as its sender saw it; as stored, with a reason, where it can't be decompressed."""
    try:
        return message.body_decompressed(DECOMPRESSED_BYTES_MAX), ""
    except (MessageError, ConfigError) as error:  # damaged or too large; a package is missing
        return message.body, f"The body is shown as stored: {error}."


def beginning(body: bytes, characters: int) -> str:
    """Give the beginning of a body in one line, for a list."""
    if body[:1] and body[0] & 0xE0 == 0x80 and len(body) <= START_BYTES and guess(body) == MESSAGEPACK:
        return _cut(json.dumps(_messagepack(body), ensure_ascii=False, default=_plain), characters)
    start = body[:START_BYTES]
    try:
        text = start.decode("utf-8", "strict" if len(body) <= START_BYTES else "ignore")
    except UnicodeDecodeError:
        text = ""
    if not _reads(text):
        bytes_shown = characters // 3
        return start[:bytes_shown].hex(" ") + ("…" if len(body) > bytes_shown else "")
    return _cut(visible(" ".join(text.split())), characters) + ("…" if len(body) > START_BYTES else "")


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters].rstrip("…") + "…"


def _is(read: Callable[[bytes], Any], body: bytes) -> bool:
    try:
        read(body)
    except Undecodable:
        return False
    return True


def _is_text(body: bytes) -> bool:
    try:
        return _reads(body.decode())
    except UnicodeDecodeError:
        return False


def _reads(text: str) -> bool:
    """Tell whether some text has no zero and few other control characters."""
    start = text[:4096]
    odd = sum(not (it.isprintable() or it in "\r\n\t") for it in start)
    return "\0" not in start and 4 * odd <= len(start)


# --- Views ---


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"The body is no JSON: {error}.") from None


def _json_text(body: bytes) -> str:
    return _pretty(_json(body))


def _pretty(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    except (ValueError, RecursionError, TypeError) as error:
        raise Undecodable(f"The body can't be written as JSON: {error}.") from None


def _plain(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return f"base64 {b64encode(value).decode()}"
    return str(value)


def _messagepack(body: bytes) -> Any:
    try:
        return _with_text_keys(msgspec.msgpack.decode(body), DEPTH_MAX)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise Undecodable(f"The body is no MessagePack: {error}.") from None


def _with_text_keys(value: Any, depth: int) -> Any:
    """Give a value with keys that JSON allows."""
    if not depth:
        raise Undecodable(f"The body is nested more than {DEPTH_MAX} deep.")
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else _plain(key): _with_text_keys(it, depth - 1) for key, it in value.items()
        }
    return [_with_text_keys(it, depth - 1) for it in value] if isinstance(value, list) else value


def _messagepack_text(body: bytes) -> str:
    return _pretty(_messagepack(body))


def _text(body: bytes) -> str:
    lines = body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    return "\n".join(visible(line.replace("\t", "    ")) for line in lines)


def _hex(body: bytes) -> str:
    rows = (body[at : at + HEX_COLUMNS] for at in range(0, len(body), HEX_COLUMNS))
    return "\n".join(
        f"{number * HEX_COLUMNS:08x}  {row.hex(' '):{3 * HEX_COLUMNS - 1}}  {_ascii(row)}"
        for number, row in enumerate(rows)
    )


def _ascii(row: bytes) -> str:
    return "".join(chr(it) if 0x20 <= it < 0x7F else "." for it in row)


# --- Protobuf without its schema ---


def _protobuf_text(body: bytes) -> str:
    if len(body) > PROTOBUF_BYTES_MAX:
        raise Undecodable(f"A body of more than {PROTOBUF_BYTES_MAX >> 20} MiB is not read as Protobuf.")
    found = _fields(body, DEPTH_MAX)
    if not found:
        raise Undecodable("The body is no Protobuf message.")
    return _pretty(found)


def _fields(data: bytes, depth: int) -> dict[str, Any] | None:
    """Give the fields of a message by their numbers, a list for a repeated one; None for other bytes."""
    found: dict[str, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: Any
        if not 0 < key >> 3 < 1 << 29:
            return None
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 in (1, 5):
            size = 8 if key & 7 == 1 else 4
            value, at = f"0x{data[at : at + size][::-1].hex()}", at + size
        elif key & 7 == 2:
            size, at = _varint(data, at)
            value, at = _value(data[at : at + size], depth), at + max(size, 0)
        else:
            return None
        if at < 0 or at > len(data):
            return None
        found.setdefault(str(key >> 3), []).append(value)
    return {name: several if len(several) > 1 else several[0] for name, several in found.items()}


def _value(data: bytes, depth: int) -> Any:
    """Give the bytes of a field as a text, a nested message, or hex."""
    if _is_text(data):
        return data.decode()
    return (_fields(data, depth - 1) if depth else None) or f"0x{data.hex()}"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Give a number and the place behind it; -1 for both where there is none."""
    number = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(data):
            return -1, len(data) + 1
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    return -1, len(data) + 1


VIEWS: Final[Mapping[str, Callable[[bytes], str]]] = {
    JSON: _json_text,
    MESSAGEPACK: _messagepack_text,
    PROTOBUF: _protobuf_text,
    TEXT: _text,
    HEX: _hex,
}
"""Views by name, in the order in which a page offers them."""
