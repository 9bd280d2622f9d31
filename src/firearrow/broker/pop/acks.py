"""Acknowledgements of popped messages (200051, 200151), changes of their invisible time (200053), and the handles that
these have made (19003).

Source: RocketMQ ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.lite.popping import LiteAcks
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.orderinfo import IGNORED, UNKNOWN, ConsumerOrderInfo
from firearrow.broker.pop.revivelog import PopBatch
from firearrow.broker.pop.successors import Place, Successors
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.message import names
from firearrow.net.server import Answer, Finished, Peer, PeerRequest, Steps
from firearrow.wire.client_bodies import BatchAck, BatchAckBody, body_of
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand, bare_frame
from firearrow.wire.headers import AckMessage, ChangeInvisibleTime
from firearrow.wire.pop import ORDER_REVIVE_QUEUE, Handle, origin_topic, parse_handle
from firearrow.wire.poprecords import PopCheckpoint

STEP_ACKS: Final = 64  # acknowledgements of a batch in one step; a millisecond
BITS_CHARS_MAX: Final = 4096  # a pop looks at 800 entries of a queue, by default
AHEAD_MS_MAX: Final = 1000  # of pop times before the clock, for many pops of a message in one millisecond
OFFSETS_MAX: Final = 256  # in one acknowledgement; a pop gives 32 messages


class AckProcessor:
    """Handlers of acknowledgements and of changes of invisible times."""

    def __init__(
        self,
        context: BrokerContext,
        in_flight: InFlight,
        orders: ConsumerOrderInfo,
        unblocking: Unblocking,
        books: Books,
        lite: LiteAcks,
    ) -> None:
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._orders = orders
        self._unblocking = unblocking
        self._in_flight = in_flight
        self._clock = context.clock
        self._broker_name = context.settings.broker.broker_name
        self._books = books
        self._revive_log = books.revive_log
        self._lite = lite
        self._successors = Successors()

    # --- acknowledgements ---

    def ack(self, peer: Peer, request: AnyCommand) -> Finished:
        """200051: note that a message was consumed."""
        header = fields_of(request, AckMessage)
        self._check_queue(peer, header)
        if header.lite_topic:
            return self._lite.ack(header, self._batch(header).handle)
        least, after = self._range(header.topic, header.queue_id, header.offset)
        if not least <= header.offset <= after:
            raise BrokerError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, "
                f"commit:{header.offset}, store:{least}~{after}",
            )
        batch = self._batch(header)
        if batch.handle.is_ordered:
            place = header.topic, header.consumer_group, header.queue_id
            fault = self._ack_in_order(peer, *place, header.offset, batch.handle.pop_ms, after)
            if fault is not None:
                return Response(ResponseCode.MESSAGE_ILLEGAL, fault)
        elif self._is_group(header.consumer_group):
            self._books.acknowledge(batch, header.offset, self._clock.now_ms())
            self._successors.done(batch, (header.offset,))
            self._in_flight.done(header.topic, header.consumer_group, header.queue_id, 1)
        return bare_frame(request.opaque, request.binary)

    def ack_several(self, requests: Sequence[PeerRequest]) -> list[bytes] | None:
        """200051, several in one turn: answer like ``ack`` to each.

        One record notes all acknowledgements of a batch, instead of one record each. This halves the cost for a
        consumer that pops 32 messages and acknowledges each alone. The answers come after the record, so the log has
        every answered acknowledgement, as otherwise.

        Return None unless all are plain. ``ack`` then serves each of them, and may repeat an acknowledgement to
        the same effect.
        """
        together = self._together(requests)
        if together is None:
            return None
        try:
            if not all(self._note_all(*of_batch) for of_batch in together.items()):
                return None
        except (BrokerError, MessageError, StoreError):
            return None
        for batch, offsets in together.items():
            self._in_flight.done(batch.topic, batch.group, batch.queue_id, len(offsets))
        return [bare_frame(request.opaque, request.binary) for _, request in requests]

    def _together(self, requests: Sequence[PeerRequest]) -> dict[PopBatch, list[int]] | None:
        """Return the acknowledged queue offsets by batch; None unless all are plain."""
        together: dict[PopBatch, list[int]] = {}
        batch_of = self._revive_log.batch
        known, least, after = None, 0, 0
        for _, request in requests:
            header = request.ext
            if type(header) is not AckMessage or header.lite_topic:
                return None
            topic, group, queue_id = place = header.topic, header.consumer_group, header.queue_id
            if place != known:
                if group not in self._groups.table:
                    return None
                known, (least, after) = place, self._dispatched(topic, queue_id)
            queue_offset = header.offset
            if not least <= queue_offset < after:
                return None
            try:
                batch = batch_of(header.extra_info, group, topic, queue_id)
            except MessageError:
                return None
            if batch in together:
                together[batch].append(queue_offset)
            else:
                together[batch] = [queue_offset]
        return together

    def _dispatched(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first offset of a queue and the one behind its last, as dispatched until now; 0 and 0 if the queue
        can't be read."""
        config = self._topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            return 0, 0
        queue = self._store.find_queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _note_all(self, batch: PopBatch, queue_offsets: list[int]) -> bool:
        """Note that messages of a batch were consumed; return False if that is left to ``ack``."""
        if batch.handle.is_ordered:
            return self._ack_all_in_order(batch, queue_offsets)
        now_ms = self._clock.now_ms()
        if len(queue_offsets) == 1:
            self._books.acknowledge(batch, queue_offsets[0], now_ms)
        else:
            self._books.acknowledge_all(batch, queue_offsets, now_ms)
        self._successors.done(batch, queue_offsets)
        return True

    def ack_batch(self, peer: Peer, request: AnyCommand) -> Answer:
        """200151: note that messages of several pops were consumed."""
        body = body_of(request, BatchAckBody) if request.body else None
        if body is None or not body.acks:
            return Response(ResponseCode.NO_MESSAGE)
        return self._ack_each(peer, body)

    def _ack_each(self, peer: Peer, body: BatchAckBody) -> Steps:
        broker_name = body.broker_name or self._broker_name
        fault = None
        for number, ack in enumerate(body.acks, 1):
            fault = self._ack_of_batch(peer, ack, broker_name) or fault
            if number % STEP_ACKS == 0:
                yield
        return Response() if fault is None else Response(ResponseCode.MESSAGE_ILLEGAL, fault)

    def _ack_of_batch(self, peer: Peer, ack: BatchAck, broker_name: str) -> str | None:
        """Note one item of a batch; return the fault of one of its messages, if there is one."""
        if ack.origin not in ("0", "1", "2") or ack.queue_id < 0:
            return None
        topic = origin_topic(ack.topic, ack.group, int(ack.origin))
        if self._topics.get(topic) is None or not self._is_group(ack.group):
            return None
        offsets = [ack.start_offset + bit for bit in _bits_of(ack.bits or "")]
        least, after = self._range(topic, ack.queue_id, max(offsets, default=0))
        offsets = [offset for offset in offsets if least <= offset <= after]
        if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
            place = topic, ack.group, ack.queue_id
            faults = [self._ack_in_order(peer, *place, offset, ack.pop_ms, after) for offset in offsets]
            return next(filter(None, faults), None)
        if not offsets:
            return None
        handle = Handle(
            ack.start_offset,
            ack.pop_ms,
            ack.invisible_ms,
            ack.revive_queue_id,
            int(ack.origin),
            broker_name,
            ack.queue_id,
            -1,
        )
        batch = self._revive_log.batch_of(handle, ack.group, topic, ack.queue_id)
        self._books.acknowledge_all(batch, offsets, self._clock.now_ms())
        self._successors.done(batch, offsets)
        self._in_flight.done(topic, ack.group, ack.queue_id, len(offsets))
        return None

    def _ack_in_order(
        self, peer: Peer, topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int, end: int
    ) -> str | None:
        """Note that a message which was popped in order was consumed, which may unblock its queue.

        ``end`` is the end of the queue. Return the fault of the message, if there is one.
        """
        offsets = self._offsets
        committed = offsets.query(group, topic, queue_id)
        if queue_offset < committed:
            return None
        following = self._orders.acknowledge(
            topic, group, queue_id, queue_offset, pop_ms=pop_ms, committed=committed, end=end
        )
        if following == UNKNOWN:
            return (
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, "
                f"commit:{queue_offset}, next:{following}, {peer.address}"
            )
        if following != IGNORED:
            if not offsets.is_reset(group, topic, queue_id):
                offsets.commit(group, topic, queue_id, following)
            self._unblocking.changed(topic, group, queue_id)
            self._in_flight.done(topic, group, queue_id, 1)
        return None

    def _ack_all_in_order(self, batch: PopBatch, queue_offsets: list[int]) -> bool:
        """Note the same of several messages; return False, with nothing noted, unless all are plain."""
        topic, group, queue_id = batch.topic, batch.group, batch.queue_id
        offsets = self._offsets
        if min(queue_offsets) < offsets.query(group, topic, queue_id):
            return False
        following = self._orders.acknowledge_all(topic, group, queue_id, queue_offsets, pop_ms=batch.handle.pop_ms)
        if following is None:
            return False
        if not offsets.is_reset(group, topic, queue_id):
            offsets.commit(group, topic, queue_id, following)
        self._unblocking.changed(topic, group, queue_id)
        return True

    # --- invisible times ---

    def change_invisible_time(self, peer: Peer, request: AnyCommand) -> Finished:
        """200053: change when a message becomes visible again; its consumer gets another handle."""
        header = fields_of(request, ChangeInvisibleTime)
        self._check_queue(peer, header)
        if header.lite_topic:
            return self._lite.change(header, self._batch(header).handle, self._clock.now_ms())
        least, after = self._range(header.topic, header.queue_id, header.offset)
        if not least <= header.offset < after:
            raise BrokerError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, "
                f"offset:{header.offset}, store:{least}~{after}",
            )
        batch = self._batch(header)
        handle = batch.handle
        now_ms = self._clock.now_ms()
        if handle.is_ordered:
            return self._change_in_order(header, handle, now_ms)
        if self._successors.is_done(_place_of(header), handle):
            raise BrokerError(ResponseCode.NO_MESSAGE, "the message was acknowledged by a newer handle")
        pop_ms = _next_pop_ms(handle, header.offset, now_ms)
        invisible_ms = max(header.invisible_time + now_ms - pop_ms, 0)
        if self._is_group(header.consumer_group):
            self._pop_again(header, batch, pop_ms, invisible_ms, now_ms)
        fields: dict[str, FieldValue] = {
            "popTime": pop_ms,
            "invisibleTime": invisible_ms,
            "reviveQid": handle.revive_queue_id,
        }
        return Response(fields=fields)

    def _change_in_order(self, header: ChangeInvisibleTime, handle: Handle, now_ms: int) -> Response:
        """Change how long a message that was popped in order blocks its queue."""
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if header.offset < self._offsets.query(group, topic, queue_id):
            return Response(fields={"popTime": 0, "invisibleTime": 0, "reviveQid": 0})
        visible_ms = now_ms + header.invisible_time
        self._orders.change_visible(topic, group, queue_id, header.offset, pop_ms=handle.pop_ms, visible_ms=visible_ms)
        self._unblocking.changed(topic, group, queue_id)
        fields: dict[str, FieldValue] = {
            "popTime": handle.pop_ms,
            "invisibleTime": visible_ms - handle.pop_ms,
            "reviveQid": handle.revive_queue_id,
        }
        return Response(fields=fields)

    def _pop_again(
        self, header: ChangeInvisibleTime, batch: PopBatch, pop_ms: int, invisible_ms: int, now_ms: int
    ) -> None:
        """Note that a message is popped again, and that its earlier pop is over."""
        handle = batch.handle
        checkpoint = PopCheckpoint(
            broker_name=handle.broker_name,
            group=header.consumer_group,
            deltas=[0],
            invisible_ms=invisible_ms,
            count=1,
            pop_ms=pop_ms,
            queue_id=header.queue_id,
            visible_ms=pop_ms + invisible_ms,
            start_offset=header.offset,
            is_suspended=bool(header.suspend),
            topic=header.topic,
        )
        self._books.note_pop_again(batch, checkpoint, now_ms)
        new = handle._replace(start_offset=header.offset, pop_ms=pop_ms, invisible_ms=invisible_ms)
        self._successors.note(_place_of(header), handle, new, now_ms)

    def newest(self, peer: Peer, request: AnyCommand) -> Finished:
        """19003: return the handle that a message has now, if it is still invisible to others."""
        header = fields_of(request, AckMessage)
        self._check_queue(peer, header)
        try:
            handle = parse_handle(header.extra_info)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        newest = self._newest(header, handle, self._clock.now_ms())
        if newest is None:
            return Response(ResponseCode.NO_MESSAGE, "the message was acknowledged, or may be popped again")
        fields: dict[str, FieldValue] = {
            "popTime": newest.pop_ms,
            "invisibleTime": newest.invisible_ms,
            "reviveQid": newest.revive_queue_id,
        }
        return Response(fields=fields)

    def _newest(self, header: AckMessage, handle: Handle, now_ms: int) -> Handle | None:
        if header.lite_topic:
            visible_ms = self._lite.visible_ms(header, handle)
        elif handle.is_ordered:
            topic, group, queue_id, queue_offset = _place_of(header)
            visible_ms = self._orders.visible_ms(topic, group, queue_id, queue_offset, pop_ms=handle.pop_ms)
        else:
            return self._successors.find(_place_of(header), handle, now_ms)
        return handle._replace(invisible_ms=visible_ms - handle.pop_ms) if visible_ms > now_ms else None

    # --- checks ---

    def _batch(self, header: AckMessage | ChangeInvisibleTime) -> PopBatch:
        """Return the batch that a message was popped in."""
        group, topic = header.consumer_group, header.topic
        try:
            return self._revive_log.batch(header.extra_info, group, topic, header.queue_id)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def _check_queue(self, peer: Peer, header: AckMessage | ChangeInvisibleTime) -> None:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )

    def _range(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """Return the first offset of a queue and the one behind its last.

        Messages that were just sent are dispatched first only if ``queue_offset`` may be one of them.
        """
        queue = self._store.find_queue(topic, queue_id)
        if queue is not None and queue_offset < queue.max_offset:
            return queue.min_offset, queue.max_offset
        store = self._store
        return store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)

    def _is_group(self, name: str) -> bool:
        """Return whether a group exists: without it nothing is redelivered anyway.

        Java: AckMessageProcessor#appendAck notes any group that a client names.
        """
        known = name in self._groups.table
        return known or (self._groups.has(name) and names.validate_group(name) is None)


def _place_of(header: AckMessage | ChangeInvisibleTime) -> Place:
    return header.topic, header.consumer_group, header.queue_id, header.offset


def _next_pop_ms(handle: Handle, queue_offset: int, now_ms: int) -> int:
    """Return the time of the next pop of a message: one that no pop of it had in this millisecond.

    Java: ChangeInvisibleTimeProcessor repeats the time of the pop. Then an acknowledgement may mean either pop, and the
    message is redelivered though it was consumed.
    """
    ahead_ms = handle.pop_ms - now_ms
    if handle.start_offset == queue_offset and 0 <= ahead_ms < AHEAD_MS_MAX:
        return handle.pop_ms + 1
    return now_ms


def _bits_of(text: str) -> list[int]:
    """Return the set bits of a Java BitSet. Raise BrokerError for more bits than any pop gives.

    Java: AckMessageProcessor notes as many as a client names.
    """
    if len(text) > BITS_CHARS_MAX:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"bits of {len(text)} characters name messages farther apart than in any pop: "
            f"there are at most {BITS_CHARS_MAX}",
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"bits are not base64: {error}") from None
    found = [8 * number + bit for number, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1]
    if len(found) > OFFSETS_MAX:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(found)} messages of one pop are acknowledged, the limit is {OFFSETS_MAX}",
        )
    return found
