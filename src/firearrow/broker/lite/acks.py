"""Acknowledgements and changes of invisible time by consumers of lite topics (200051, 200053).

Source: upstream ``AckMessageProcessor#ackLite``, ``ChangeInvisibleTimeProcessor``.
"""

from __future__ import annotations

from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.lite import facts
from firearrow.broker.lite.popping import LitePopping
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.headers import AckMessage, ChangeInvisibleTime
from firearrow.wire.pop import Handle

_CONSUMED: Final[dict[str, FieldValue]] = {"popTime": 0, "invisibleTime": 0, "reviveQid": 0}
"""What is told of a message that was consumed already: clients read these fields."""


class LiteAcks:
    """Notes what became of messages of lite topics, which headers name besides the parent."""

    def __init__(self, context: BrokerContext, popping: LitePopping) -> None:
        self._groups = context.groups
        self._offsets = context.offsets
        self._popping = popping

    def ack(self, header: AckMessage, handle: Handle) -> Response:
        """200051: a message was consumed."""
        queue = self._checked_queue(header, handle)
        group, queue_offset = header.consumer_group, header.offset
        if not self._popping.acknowledge(group, queue, queue_offset, handle.pop_ms):
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL, f"offset is illegal, key:{queue}@{group}, commit:{queue_offset}"
            )
        return Response()

    def change(self, header: ChangeInvisibleTime, handle: Handle, now_ms: int) -> Response:
        """200053: a message is to become visible at another time; with ``suspend``, its batch."""
        queue = self._checked_queue(header, handle)
        group, visible_ms = header.consumer_group, now_ms + header.invisible_time
        if header.offset < self._offsets.query(group, queue, 0):
            return Response(fields=dict(_CONSUMED))
        if header.suspend:
            self._popping.suspend(group, queue, handle.pop_ms, visible_ms)
        else:
            self._popping.change_visible(group, queue, header.offset, handle.pop_ms, visible_ms)
        fields: dict[str, FieldValue] = {
            "popTime": handle.pop_ms,
            "invisibleTime": visible_ms - handle.pop_ms,
            "reviveQid": handle.revive_queue_id,
        }
        return Response(fields=fields)

    def _checked_queue(self, header: AckMessage | ChangeInvisibleTime, handle: Handle) -> str:
        name = header.consumer_group
        if facts.parent_of(self._groups.get(name)) != header.topic:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {name}")
        if header.queue_id or not handle.is_ordered:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"a lite topic has queue 0 and is popped in order, not queue {header.queue_id} and "
                f"revive queue {handle.revive_queue_id}",
            )
        queue = names.lite_queue(header.topic, header.lite_topic or "")
        end = self._popping.end(queue)
        if header.offset > end:
            raise BrokerError(
                ResponseCode.NO_MESSAGE, f"offset is illegal, key:{queue}@{name}, commit:{header.offset}, store:0~{end}"
            )
        return queue
