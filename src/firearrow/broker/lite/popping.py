"""Pops of lite topics: messages of the lite topics that are ready for a client, each in order.

A pop takes ready lite topics until it has enough messages. Its messages of one lite topic are a batch, which blocks
that topic for the group until each message is acknowledged or visible again, as pops in order do. But these batches are
in memory only: a restart redelivers all unacknowledged messages at once.

Source: RocketMQ ``PopLiteMessageProcessor``, ``AckMessageProcessor#ackLite``, ``ChangeInvisibleTimeProcessor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.lite import facts
from firearrow.broker.lite.events import LiteEvents
from firearrow.broker.lite.subscriptions import Subscriber
from firearrow.broker.pop.orderinfo import IGNORED, UNKNOWN, ConsumerOrderInfo
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.message.record import iter_records
from firearrow.store import Fetch, GetResult, GetStatus
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.headers import AckMessage, ChangeInvisibleTime, PopLiteMessage
from firearrow.wire.pop import Handle

LOOKS_MAX: Final = 256  # lite topics that a pop visits; a few ms
_QUEUE_ID: Final = 0  # the only queue of a lite topic
_WRONG: Final = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class LitePop:
    """Result of a pop: records, and the items of orderCountInfo, one for each message."""

    __slots__ = ("counts", "records", "size")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.counts: list[str] = []
        self.size: int = 0


class LitePopping:
    """Pop lite topics, and note acknowledgements."""

    def __init__(self, context: BrokerContext, orders: ConsumerOrderInfo, events: LiteEvents) -> None:
        self._store = context.store
        self._offsets = context.offsets
        self._stats = context.stats
        self._orders = orders
        self._events = events

    def pop(self, header: PopLiteMessage, client: Subscriber, now_ms: int, *, only_resident: bool) -> LitePop:
        """Pop for a client.

        Raise Fetch, with all ready lite topics noted as before, if the first message must be read from the disk.
        """
        found = LitePop()
        taken: list[str] = []
        for queue in self._candidates(header, client):
            client.ready.pop(queue, None)
            try:
                records, offsets = self._get(header, queue, len(found.counts), only_resident)
            except Fetch:
                client.ready[queue] = None
                if not taken:
                    raise
                continue
            if not offsets:
                continue
            taken.append(queue)
            found.records.append(records)
            found.size += len(records)
            found.counts += self._take(header, queue, offsets, now_ms)
            if len(found.counts) >= header.max_msg_num:
                break
        client.popped_ms = now_ms
        client.attempt_id, client.taken = header.attempt_id, tuple(taken)
        return found

    def _candidates(self, header: PopLiteMessage, client: Subscriber) -> list[str]:
        """Return lite topics that may have messages for a client, first those that the same attempt took."""
        repeated: tuple[str, ...] = ()
        if header.attempt_id and header.attempt_id == client.attempt_id:
            is_wanted = client.queues.__contains__
            repeated = tuple(one for one in client.taken if client.is_wildcard or is_wanted(one))
        return list(dict.fromkeys((*repeated, *islice(client.ready, LOOKS_MAX))))

    def _get(self, header: PopLiteMessage, queue: str, count: int, only_resident: bool) -> tuple[bytes, Sequence[int]]:
        """Return the next messages of a lite topic, and their offsets."""
        group = header.consumer_group
        attempt = header.attempt_id, header.invisible_time
        if self._orders.is_blocked(queue, group, _QUEUE_ID, *attempt):
            return b"", ()
        queue_offset = self._offset(group, queue)
        result = self._read(header, queue, queue_offset, count, only_resident)
        if result.status in _WRONG:
            queue_offset = result.next_offset
            self._offsets.commit(group, queue, _QUEUE_ID, queue_offset)
            result = self._read(header, queue, queue_offset, count, only_resident)
        if not result.count:
            return b"", ()
        self._stats.got(group, header.topic, result.count, len(result.records))
        if result.count == result.next_offset - queue_offset:
            return result.records, range(queue_offset, result.next_offset)
        return result.records, [view.offset_in(queue) for view in iter_records(result.records)]

    def _read(
        self, header: PopLiteMessage, queue: str, queue_offset: int, count: int, only_resident: bool
    ) -> GetResult:
        missing = header.max_msg_num - count
        return self._store.get(queue, _QUEUE_ID, queue_offset, missing, None, only_resident)

    def _offset(self, group: str, queue: str) -> int:
        """Return a group's next offset: the first message if the group has not begun.

        Java: PopLiteMessageProcessor#getPopOffset begins with the last one, if the first is not in memory any more.
        """
        moved = self._offsets.take_reset(group, queue, _QUEUE_ID) if self._offsets.resets else None
        if moved is not None:
            self._orders.forget(queue, group)
            self._offsets.commit(group, queue, _QUEUE_ID, moved)
            return moved
        committed = self._offsets.query(group, queue, _QUEUE_ID)
        if committed < 0:  # from now on administrators see its lag
            committed = 0
            self._offsets.commit(group, queue, _QUEUE_ID, committed)
        return committed

    def _take(self, header: PopLiteMessage, queue: str, offsets: Sequence[int], now_ms: int) -> list[str]:
        """Note a batch; return the count of earlier pops of each message."""
        group = header.consumer_group
        counts = self._orders.take(
            queue,
            group,
            _QUEUE_ID,
            offsets,
            pop_ms=now_ms,
            invisible_ms=header.invisible_time,
            attempt_id=header.attempt_id,
        )
        self._events.blocked(group, queue, now_ms + header.invisible_time)
        if not counts:
            return ["0"] * len(offsets)
        return [f"0 qo{_QUEUE_ID}%{offset} {counts[offset]}" if offset in counts else "0" for offset in offsets]

    # --- acknowledgements ---

    def end(self, queue: str) -> int:
        """Return the offset behind the last message of a lite topic."""
        return self._store.max_queue_offset(queue, _QUEUE_ID)

    def acknowledge(self, group: str, queue: str, queue_offset: int, pop_ms: int) -> bool:
        """Note that a message was consumed; return False if the batch does not have it."""
        offsets, orders = self._offsets, self._orders
        committed = max(offsets.query(group, queue, _QUEUE_ID), 0)
        if queue_offset < committed:
            return True
        following = orders.acknowledge(
            queue, group, _QUEUE_ID, queue_offset, pop_ms=pop_ms, committed=committed, end=self.end(queue)
        )
        if following == UNKNOWN:
            return False
        if following != IGNORED and not offsets.is_reset(group, queue, _QUEUE_ID):
            offsets.commit(group, queue, _QUEUE_ID, following)
        self._settle(group, queue)
        return True

    def _settle(self, group: str, queue: str) -> None:
        """Unblock a lite topic whose batch has changed, or note when it will be free."""
        batch = self._orders.batch(queue, group, _QUEUE_ID)
        if batch is not None and not batch.open_bits:
            self._orders.forget(queue, group)
        until_ms = self._orders.free_ms(queue, group, _QUEUE_ID)
        if until_ms is None:
            self._events.freed(group, queue)
        else:
            self._events.blocked(group, queue, until_ms)

    def visible_ms(self, group: str, queue: str, queue_offset: int, pop_ms: int) -> int:
        """Return the time when an open message of the batch becomes visible, 0 if the batch does not have it."""
        return self._orders.visible_ms(queue, group, _QUEUE_ID, queue_offset, pop_ms=pop_ms)

    def change_visible(self, group: str, queue: str, queue_offset: int, pop_ms: int, visible_ms: int) -> None:
        """Change when a message becomes visible."""
        if queue_offset >= self._offsets.query(group, queue, _QUEUE_ID):
            self._orders.change_visible(queue, group, _QUEUE_ID, queue_offset, pop_ms=pop_ms, visible_ms=visible_ms)
            self._settle(group, queue)

    def suspend(self, group: str, queue: str, pop_ms: int, visible_ms: int) -> None:
        """Change when the whole batch becomes visible; that does not count as another pop."""
        self._orders.suspend(queue, group, _QUEUE_ID, pop_ms=pop_ms, visible_ms=visible_ms)
        self._settle(group, queue)

    # --- offsets of groups ---

    def reset(self, group: str, queue: str, queue_offset: int) -> None:
        """Move a group to another offset."""
        if queue_offset != self._offsets.query(group, queue, _QUEUE_ID):
            self._offsets.reset(group, queue, _QUEUE_ID, queue_offset)
            self._orders.forget(queue, group)
            self._events.freed(group, queue)


_CONSUMED: Final[dict[str, FieldValue]] = {"popTime": 0, "invisibleTime": 0, "reviveQid": 0}
"""Fields of the answer for a message that was consumed already: clients read them."""


class LiteAcks:
    """Handlers of acknowledgements and changes of invisible times of lite topics, which headers name beside the
    parent."""

    def __init__(self, context: BrokerContext, popping: LitePopping) -> None:
        self._groups = context.groups
        self._offsets = context.offsets
        self._popping = popping

    def ack(self, header: AckMessage, handle: Handle) -> Response:
        """200051: note that a message was consumed."""
        queue = self._checked_queue(header, handle)
        group, queue_offset = header.consumer_group, header.offset
        if not self._popping.acknowledge(group, queue, queue_offset, handle.pop_ms):
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL, f"offset is illegal, key:{queue}@{group}, commit:{queue_offset}"
            )
        return Response()

    def change(self, header: ChangeInvisibleTime, handle: Handle, now_ms: int) -> Response:
        """200053: change when a message becomes visible again, or with ``suspend`` its batch."""
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

    def visible_ms(self, header: AckMessage, handle: Handle) -> int:
        """Return the time when an unacknowledged message becomes visible, 0 for any other."""
        queue = self._checked_queue(header, handle)
        return self._popping.visible_ms(header.consumer_group, queue, header.offset, handle.pop_ms)

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
