"""Pop messages, acknowledge them and change their invisible times.

A popped message has a handle (`wire.pop`), kept in its property ``POP_CK`` as in RocketMQ's clients. During its
invisible time no other consumer of the group gets it. An acknowledgement ends that for good. A change of the invisible
time moves its end and returns a new handle.

Source: RocketMQ's ``MQClientAPIImpl#processPopResponse``, ``PullAPIWrapper#popAsync``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.message import Message, messages_in
from firearrow.client.queues import Queue
from firearrow.client.session.answers import read_number
from firearrow.errors import BrokerError, ConfigError, RemoteProtocolError
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import BatchAckBody, SubscriptionData
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import (
    Handle,
    batch_acks,
    origin_of,
    origin_topic,
    parse_handle,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)

POP_MESSAGES_MAX: Final = 32
POP_MORE_SECONDS: Final = 10.0  # for the answer, beyond the broker's own waiting time
ACK_SECONDS_MAX: Final = 3.0
INIT_MIN, INIT_MAX = 0, 1


class PopOptions(NamedTuple):
    """Options of a pop: count of messages, invisible time, and time to wait for them (ms)."""

    messages_max: int = POP_MESSAGES_MAX
    invisible_ms: int = 60_000
    wait_ms: int = 15_000
    from_first: bool = False
    attempt: str | None = None
    """Name of an attempt in order, for its repetition."""


class PopResult(NamedTuple):
    """Answer to a pop."""

    messages: list[Message]
    is_full: bool
    """The broker has too many waiting pops."""


def handle_of(message: Message) -> Handle:
    """Handle of a popped message. Raises ConfigError if the message was not popped."""
    text = message.view.properties.get(keys_of.POP_CHECKPOINT)
    if text is None:
        raise ConfigError(f"message {message.message_id} was not popped")
    return parse_handle(text)


class PopCalls:
    """Asks brokers on behalf of a group; topics are given by their names at the brokers."""

    def __init__(self, calls: GroupCalls) -> None:
        self._calls = calls
        self._session = calls.session
        self._group = calls.group

    async def pop(self, queue: Queue, subscription: SubscriptionData, popping: PopOptions) -> PopResult:
        """Pop from a queue, or with queue id -1 from all queues of the broker.

        Raises OSError, or BrokerError for a refusal.
        """
        session = self._session
        address = session.address_of(session.broker_of(queue), any_will_do=True)
        fields: dict[str, FieldValue] = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "maxMsgNums": popping.messages_max,
            "invisibleTime": popping.invisible_ms,
            "pollTime": popping.wait_ms,
            "bornTime": session.clock.now_ms(),
            "initMode": INIT_MIN if popping.from_first else INIT_MAX,
            "expType": subscription.expression_type,
            "exp": subscription.sub_string,
            "order": popping.attempt is not None,
            "bname": queue.broker,
        }
        if popping.attempt is not None:
            fields["attemptId"] = popping.attempt
        seconds = popping.wait_ms / 1000 + POP_MORE_SECONDS
        code = RequestCode.POP_MESSAGE
        answer = await session.client.answer(address, code, fields, timeout_seconds=seconds)
        if answer.code == ResponseCode.SUCCESS:
            return PopResult(self._messages(answer, queue, address, popping), is_full=False)
        if answer.code not in _NOTHING:
            raise BrokerError.of(answer.code, answer.remark, address)
        return PopResult([], is_full=answer.code == ResponseCode.POLLING_FULL)

    def _messages(self, answer: AnyCommand, queue: Queue, address: str, popping: PopOptions) -> list[Message]:
        session, ext = self._session, answer.ext
        pop_ms = read_number(answer, "popTime", address)
        handles = PoppedHandles(
            queue, pop_ms, read_number(answer, "invisibleTime", address), read_number(answer, "reviveQid", address), ext
        )
        counts = parse_order_counts(ext.get("orderCountInfo", "")) if popping.attempt else {}
        messages = messages_in(answer.body, queue.broker, session.namespace)
        for message in messages:
            properties = message.view.properties
            if keys_of.POP_CHECKPOINT not in properties:
                properties[keys_of.POP_CHECKPOINT] = handles.of(message.view)
                if counts:
                    message.reconsume_times = times_of(message.view, counts)
            properties.setdefault(keys_of.FIRST_POP_TIME, str(pop_ms))
            message.topic = session.bare(queue.topic)
        return messages

    # --- acknowledgements ---

    async def ack(self, topic: str, handle: Handle) -> bool:
        """Acknowledge a message (200051); returns False if its invisible time is over."""
        fields = self._fields(topic, handle)
        try:
            await self._session.call(
                handle.broker_name, RequestCode.ACK_MESSAGE, fields, any_will_do=True, timeout_seconds=ACK_SECONDS_MAX
            )
        except BrokerError as error:
            if error.code in GONE:
                return False
            raise
        return True

    async def ack_all(self, topic: str, handles: Iterable[Handle]) -> None:
        """Acknowledge messages, with one request for each broker (200151).

        Messages popped in order are acknowledged one by one. Raises OSError or BrokerError.
        """
        by_broker: dict[str, list[Handle]] = defaultdict(list)
        for handle in handles:
            if handle.is_ordered:
                await self.ack(topic, handle)
            else:
                by_broker[handle.broker_name].append(handle)
        for broker, some in by_broker.items():
            if len(some) == 1:
                await self.ack(topic, some[0])
            else:
                body = BatchAckBody(broker, batch_acks(self._group, topic, some))
                await self._session.call(
                    broker,
                    RequestCode.BATCH_ACK_MESSAGE,
                    body=fastjson.dumps(body),
                    any_will_do=True,
                    timeout_seconds=ACK_SECONDS_MAX,
                )

    async def change(self, topic: str, handle: Handle, invisible_ms: int) -> Handle:
        """Change the invisible time of a message, in ms from now (200053); returns its new handle.

        Raises OSError, or BrokerError, for example if its invisible time is over.
        """
        fields = self._fields(topic, handle) | {"invisibleTime": invisible_ms}
        broker = handle.broker_name
        answer = await self._session.call(
            broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, any_will_do=True, timeout_seconds=ACK_SECONDS_MAX
        )
        return handle._replace(
            pop_ms=read_number(answer, "popTime", broker),
            invisible_ms=read_number(answer, "invisibleTime", broker),
            revive_queue_id=read_number(answer, "reviveQid", broker),
            start_offset=handle.queue_offset,
        )

    def _fields(self, topic: str, handle: Handle) -> dict[str, FieldValue]:
        return {
            "consumerGroup": self._group,
            "topic": origin_topic(topic, self._group, handle.origin),
            "queueId": handle.queue_id,
            "extraInfo": str(handle),
            "offset": handle.queue_offset,
            "bname": handle.broker_name,
        }


class PoppedHandles:
    """Handles of one answer."""

    def __init__(
        self, queue: Queue, pop_ms: int, invisible_ms: int, revive_queue_id: int, ext: Mapping[str, str]
    ) -> None:
        self._queue = queue
        self._is_lmq = names.is_lmq(queue.topic)
        self._times = pop_ms, invisible_ms, revive_queue_id
        self._starts = parse_start_offsets(ext.get("startOffsetInfo", ""))
        self._offsets = parse_offsets(ext.get("msgOffsetInfo", ""))
        self._lmq_seen = 0
        self._heads: dict[tuple[int, int], str] = {}

    def of(self, view: MessageView) -> str:
        """Handle of a message."""
        if self._is_lmq and not view.reconsume_times:
            place, queue_offset = (0, 0), self._next_of_lmq()
        else:
            place, queue_offset = (origin_of(view.topic), view.queue_id), view.queue_offset
        head = self._heads.get(place)
        if head is None:
            head = self._heads[place] = self._head(place, queue_offset)
        return f"{head} {queue_offset}"

    def _next_of_lmq(self) -> int:
        """Offset in the LMQ; the record has the offset in its topic's queue."""
        offsets = self._offsets.get((0, 0), [])
        if self._lmq_seen >= len(offsets):
            raise RemoteProtocolError(f"{self._queue.broker} sent more messages of {self._queue.topic} than offsets")
        self._lmq_seen += 1
        return offsets[self._lmq_seen - 1]

    def _head(self, place: tuple[int, int], queue_offset: int) -> str:
        origin, queue_id = place
        start = self._starts.get(place, queue_offset)
        return Handle(start, *self._times, origin, self._queue.broker, queue_id, 0).head


def times_of(view: MessageView, counts: Mapping[tuple[int, str], int]) -> int:
    """Count of earlier pops of a message that was popped in order."""
    origin = origin_of(view.topic)
    found = counts.get((origin, f"qo{view.queue_id}%{view.queue_offset}"))
    if found is None:
        found = counts.get((origin, str(view.queue_id)))
    return found or view.reconsume_times


_NOTHING: Final[Sequence[int]] = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
GONE: Final[Sequence[int]] = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)
"""Codes of a message whose invisible time is over."""
