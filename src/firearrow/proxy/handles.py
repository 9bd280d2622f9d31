"""Receipt handles: the name of a received message, and the handle that replaced it.

A handle is that of a pop (`wire.pop`), with the message's offset in the log behind it, and then its lite topic if it
has one: not every client names that in its calls. A change of the invisible time replaces the handle. Clients keep the
one that they got, so the table remembers the newest one by the message's place: its group, topic, lite topic, broker,
queue and offset. An old handle is as good as the newest.

Source: RocketMQ's ``ReceiptHandle``, ``ReceiptHandleGroup``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from firearrow.errors import MessageError
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command, typed_request
from firearrow.wire.headers import AckMessage, ChangeInvisibleTime
from firearrow.wire.pop import HANDLE_CHARS_MAX, Handle, handle_in, origin_topic, parse_handle

FIELDS: Final = 9
RENEWED_MAX: Final = 100_000
"""Replaced handles that are remembered; about 400 bytes each. Without its entry a message is delivered again."""


class Receipt(msgspec.Struct, frozen=True):
    """A handle as a client has it."""

    handle: Handle
    log_offset: int | None
    """Offset of the record, None in a short handle."""
    lite_topic: str = ""

    def __str__(self) -> str:
        """Text of the handle."""
        if self.log_offset is None:
            return str(self.handle)
        text = f"{self.handle} {self.log_offset}"
        return f"{text} {self.lite_topic}" if self.lite_topic else text

    def header(self, group: str, topic: str) -> AckMessage:
        """Header of a request about the message, for a consumer that has received it from ``topic``.

        It is typed: a broker in this process then gathers acknowledgements of a turn, which saves records.
        """
        handle = self.handle
        return AckMessage(
            consumer_group=group,
            topic=origin_topic(topic, group, handle.origin),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
            lite_topic=self.lite_topic or None,
            bname=handle.broker_name,
        )

    def change(
        self, group: str, topic: str, invisible_ms: int, *, is_suspended: bool = False
    ) -> Command[ChangeInvisibleTime]:
        """Request that changes the invisible time of the message, from now."""
        handle = self.handle
        header = ChangeInvisibleTime(
            consumer_group=group,
            topic=origin_topic(topic, group, handle.origin),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            lite_topic=self.lite_topic or None,
            suspend=is_suspended or None,
            bname=handle.broker_name,
        )
        return typed_request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)

    def changed(self, ext: Mapping[str, str]) -> Receipt:
        """Handle after a change of the invisible time, from the fields of the broker's answer."""
        handle = self.handle._replace(
            start_offset=self.handle.queue_offset,
            pop_ms=int(ext["popTime"]),
            invisible_ms=int(ext["invisibleTime"]),
            revive_queue_id=int(ext["reviveQid"]),
        )
        return replace(self, handle=handle)


def parse_receipt(text: str, lite_topic: str = "") -> Receipt:
    """Read a handle; ProxyError if it is none. The lite topic beside it stands for that of a handle without one.

    Java: ReceiptHandle#decode ignores what stands behind the offset in the log, and its handles end there.
    """
    words = text.split(" ")
    try:
        if len(words) < FIELDS - 1:
            raise MessageError(f"not the handle of a received message: {text[:200]!r}")
        if len(text) > HANDLE_CHARS_MAX:  # of the first words alone there may be fewer
            parse_handle(" ".join(words[: FIELDS - 1]))
        handle = handle_in(words, text)
        last = words[FIELDS - 1] if len(words) >= FIELDS else ""
        if not last.isdecimal() or len(last) >= 20:
            return Receipt(handle, None, lite_topic)
        return Receipt(handle, int(last), lite_topic or " ".join(words[FIELDS : FIELDS + 1]))
    except MessageError as error:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, str(error)) from None


class Place(NamedTuple):
    """Place of a message for a group."""

    group: str
    topic: str
    origin: int
    broker: str
    queue_id: int
    queue_offset: int
    lite_topic: str


def place_of(group: str, topic: str, receipt: Receipt) -> Place:
    """Return the place of a message that a group has received. All lite topics of a topic have the queue 0."""
    handle = receipt.handle
    return Place(
        group, topic, handle.origin, handle.broker_name, handle.queue_id, handle.queue_offset, receipt.lite_topic
    )


class Renewed:
    """The newest handles of messages whose invisible time was changed."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Place, Receipt] = OrderedDict()

    def newest(self, group: str, topic: str, receipt: Receipt) -> Receipt:
        """Return the newest handle of a message: its own, if the message was popped again after the change."""
        known = self._newest.get(place_of(group, topic, receipt)) if self._newest else None
        return receipt if known is None or known.handle.pop_ms < receipt.handle.pop_ms else known

    def note(self, group: str, topic: str, receipt: Receipt) -> None:
        """Remember a new handle."""
        place = place_of(group, topic, receipt)
        self._newest[place] = receipt
        self._newest.move_to_end(place)
        if len(self._newest) > RENEWED_MAX:
            self._newest.popitem(last=False)

    def forget(self, group: str, topic: str, receipt: Receipt) -> None:
        """Forget a message that is done with."""
        if self._newest:
            self._newest.pop(place_of(group, topic, receipt), None)
