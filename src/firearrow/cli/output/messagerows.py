"""Messages as rows of a table, as lines, and as fields: the same names in every command that prints whole messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final

from firearrow.cli.output.listing import IS_BASE64
from firearrow.cli.output.reports import Cell, as_moment, cut, shown
from firearrow.message.model import MessageView

COLUMNS: Final = (
    "storedAt", "topic", "broker", "queueId", "queueOffset", "messageId", "offsetMessageId",
    "tag", "keys", "bornAt", "bornHost", "reconsumeTimes", "bodyBytes", "body", IS_BASE64,
    "properties",
)  # fmt: skip
LINE_CHARACTERS: Final = 80  # of a body


def row_of(message: MessageView, broker: str | None, body: bytes | None = None) -> list[Cell]:
    """Give the values of a message for `COLUMNS`; a binary body as base64. ``body`` is the decompressed one."""
    body = message.body_decompressed() if body is None else body
    text, is_base64 = as_text(body)
    return [
        as_moment(message.store_timestamp_ms),
        message.topic,
        broker,
        message.queue_id,
        message.queue_offset,
        message.unique_key,
        message.offset_message_id,
        message.tags,
        " ".join(message.keys) or None,
        as_moment(message.born_timestamp_ms),
        str(message.born_host),
        message.reconsume_times,
        len(body),
        text,
        is_base64,
        dict(sorted(message.properties.items())),
    ]


def as_text(body: bytes) -> tuple[str, bool]:
    """Give a body as text, and a flag; a binary body is base64 and sets the flag."""
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return b64encode(body).decode(), True


def line_of(message: MessageView, broker: str | None) -> str:
    """Give a message in one line: time, place, tag and keys, and the beginning of its body."""
    body = message.body_decompressed()
    text, is_base64 = as_text(body)
    said = f"({len(body)} bytes)" if is_base64 else cut(shown("body", text), LINE_CHARACTERS)
    place = f"{broker or message.store_host}/{message.queue_id}/{message.queue_offset}"
    names = [message.tags or "", *message.keys]
    parts = [shown("", as_moment(message.store_timestamp_ms)), place, *(shown("", name) for name in names if name)]
    return f"{'  '.join(parts)}  {said}"


def fields_of(row: Sequence[Cell]) -> list[list[Cell]]:
    """Give the fields of a message, each with its name, one property per row."""
    named = dict(zip(COLUMNS, row, strict=True))
    properties = named.pop("properties")
    assert isinstance(properties, Mapping), "a message has them"
    is_base64 = named.pop(IS_BASE64)
    body = named.pop("body")
    rows: list[list[Cell]] = [[name, shown(name, value)] for name, value in named.items()]
    rows += [[f"property {name}", value] for name, value in sorted(properties.items())]
    return [*rows, ["body in base64" if is_base64 else "body", body]]
