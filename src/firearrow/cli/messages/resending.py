"""Resending: copies of messages, previewed or sent.

A copy has the body, tag, keys and properties of the producer, without the properties that brokers added. The property
``FIREARROW_RESENT`` names the dead letter that was copied, as for `firearrow pipeline deadletters`, so that a consumer
can detect it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from firearrow.cli.cluster.masters import PREVIEW
from firearrow.cli.cluster.options import Target
from firearrow.cli.output.reports import Cell, Table, as_moment, cut, shown
from firearrow.client.producer.producer import Producer
from firearrow.errors import SendFailed
from firearrow.message import properties as keys_of
from firearrow.message.model import Message, MessageView

GROUP: Final = "firearrow-resend"
RESENT: Final = ("messageId", "topic", "toTopic", "tag", "keys", "body", "newMessageId", "state")
BODY_CHARACTERS: Final = 40


class Resend(NamedTuple):
    """A message to send again; ``mark`` names its dead letter."""

    message: MessageView
    mark: str | None
    to: str

    def copy(self) -> Message:
        """Give the copy to send."""
        copy = self.message.copy(self.to)
        if self.mark is not None:
            copy.properties[keys_of.RESENT_ID] = self.mark
        return copy


async def resend_all(target: Target, chosen: Sequence[Resend], *, apply: bool) -> Table:
    """Preview the copies, or send them; a copy that could not be sent is shown as failed."""
    if not apply:
        return Table("Messages", RESENT, [_row(it, None, "would be sent") for it in chosen], PREVIEW)
    rows: list[list[Cell]] = []
    notes: list[str] = []
    async with Producer(
        target.name_servers, group=GROUP, credentials=target.credentials, tls=target.tls or False
    ) as producer:
        for it in chosen:
            try:
                receipt = await producer.send(it.to, it.copy())
                rows.append(_row(it, receipt.message_id, "sent"))
            except SendFailed as error:
                rows.append(_row(it, None, "failed"))
                notes.append(str(error))
    return Table("Messages", RESENT, rows, "; ".join(dict.fromkeys(notes)))


def _row(it: Resend, new_id: str | None, state: str) -> list[Cell]:
    body = it.message.body_decompressed()
    text, is_base64 = as_text(body)
    return [
        it.message.unique_key or it.message.offset_message_id,
        it.message.topic,
        it.to,
        it.message.tags,
        " ".join(it.message.keys) or None,
        f"({len(body)} bytes)" if is_base64 else cut(text, BODY_CHARACTERS),
        new_id,
        state,
    ]


# --- Messages as rows of a table, as lines, and as fields ---


COLUMNS: Final = (
    "storedAt", "topic", "broker", "queueId", "queueOffset", "messageId", "offsetMessageId",
    "tag", "keys", "bornAt", "bornHost", "reconsumeTimes", "bodyBytes", "body", "bodyIsBase64",
    "properties",
)  # fmt: skip
LINE_CHARACTERS: Final = 80  # of a body


def row_of(message: MessageView, broker: str | None) -> list[Cell]:
    """Give the values of a message for `COLUMNS`; a binary body as base64, the properties as JSON text."""
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
    properties = json.loads(str(named.pop("properties")))
    is_base64 = named.pop("bodyIsBase64")
    body = named.pop("body")
    rows: list[list[Cell]] = [[name, shown(name, value)] for name, value in named.items()]
    rows += [[f"property {name}", value] for name, value in sorted(properties.items())]
    return [*rows, ["body in base64" if is_base64 else "body", body]]
