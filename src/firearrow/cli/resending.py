"""Sending copies of messages: what would be sent, and sending it.

A copy has the body, tag, keys and properties that the sender gave; what brokers added is left out.
Of a dead letter ``FIREARROW_RESENT`` says which one it was, as `firearrow pipeline deadletters` has
it, so that a consumer can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from firearrow.cli.clusters import Target
from firearrow.cli.fleet import PREVIEW
from firearrow.cli.messagerows import as_text
from firearrow.cli.reports import Cell, Table, cut
from firearrow.client.producer.producer import Producer
from firearrow.errors import SendFailed
from firearrow.message import properties as keys_of
from firearrow.message.model import Message, MessageView

GROUP: Final = "firearrow-resend"
COLUMNS: Final = ("messageId", "topic", "toTopic", "tag", "keys", "body", "newMessageId", "state")
BODY_CHARACTERS: Final = 40


class Resend(NamedTuple):
    """A message that is to be sent again; ``mark`` says which dead letter it was."""

    message: MessageView
    mark: str | None
    to: str

    def copy(self) -> Message:
        """Give what is sent."""
        copy = self.message.copy(self.to)
        if self.mark is not None:
            copy.properties[keys_of.RESENT_ID] = self.mark
        return copy


async def resend_all(target: Target, chosen: Sequence[Resend], *, apply: bool) -> Table:
    """Show what would be sent, or send it; what could not be sent is shown as failed."""
    if not apply:
        return Table("Messages", COLUMNS, [_row(it, None, "would be sent") for it in chosen], PREVIEW)
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
    return Table("Messages", COLUMNS, rows, "; ".join(dict.fromkeys(notes)))


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
