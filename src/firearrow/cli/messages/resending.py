"""Resending: copies of messages, previewed or sent.

A copy has the body, tag, keys and properties of the producer, without the properties that brokers added. The property
``FIREARROW_RESENT`` names the dead letter that was copied, as for `firearrow pipeline deadletters`, so that a consumer
can detect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from firearrow.cli.cluster.masters import PREVIEW
from firearrow.cli.cluster.options import Target
from firearrow.cli.output.messagerows import as_text
from firearrow.cli.output.reports import Cell, Table, cut
from firearrow.client.producer.producer import Producer
from firearrow.errors import SendFailed
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView, NewMessage

GROUP: Final = "firearrow-resend"
RESENT: Final = ("messageId", "topic", "toTopic", "tag", "keys", "body", "newMessageId", "state")
BODY_CHARACTERS: Final = 40


class Resend(NamedTuple):
    """A message to send again; ``mark`` names its dead letter."""

    message: MessageView
    mark: str | None
    to: str

    def copy(self) -> NewMessage:
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
