"""Messages as rows of a table, as a line, and as their fields one below the other."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from firearrow.cli.reports import Cell, as_moment, cut, shown
from firearrow.message.model import MessageView

COLUMNS: Final = (
    "storedAt", "topic", "broker", "queueId", "queueOffset", "messageId", "offsetMessageId",
    "tag", "keys", "bornAt", "bornHost", "reconsumeTimes", "bodyBytes", "body", "bodyIsBase64",
    "properties",
)  # fmt: skip
LINE_CHARACTERS: Final = 80  # of a body


def row_of(message: MessageView, broker: str | None) -> list[Cell]:
    """Give a message's values for `COLUMNS`; a body that is no text as base64, the properties as
    the text of a JSON object."""
    body = message.body_decompressed()
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
        json.dumps(message.properties, ensure_ascii=False, sort_keys=True),
    ]


def as_text(body: bytes) -> tuple[str, bool]:
    """Give a body as text, and whether it is base64, which it is if it is no text."""
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return b64encode(body).decode(), True


def line_of(message: MessageView, broker: str | None) -> str:
    """Give a message in one line: when, where, what it is found by, and its body's beginning."""
    body = message.body_decompressed()
    text, is_base64 = as_text(body)
    said = f"({len(body)} bytes)" if is_base64 else cut(shown("body", text), LINE_CHARACTERS)
    place = f"{broker or message.store_host}/{message.queue_id}/{message.queue_offset}"
    names = [message.tags or "", *message.keys]
    parts = [shown("", as_moment(message.store_timestamp_ms)), place, *(shown("", name) for name in names if name)]
    return f"{'  '.join(parts)}  {said}"


def fields_of(row: Sequence[Cell]) -> list[list[Cell]]:
    """Give the fields of a message, each with its name, for people: properties one by one."""
    named = dict(zip(COLUMNS, row, strict=True))
    properties = json.loads(str(named.pop("properties")))
    is_base64 = named.pop("bodyIsBase64")
    body = named.pop("body")
    rows: list[list[Cell]] = [[name, shown(name, value)] for name, value in named.items()]
    rows += [[f"property {name}", value] for name, value in sorted(properties.items())]
    return [*rows, ["body in base64" if is_base64 else "body", body]]
