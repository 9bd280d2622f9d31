"""Requests of a consumer group's members to brokers, one method each.

Source: RocketMQ's ``MQClientAPIImpl``, ``PullAPIWrapper``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.message import Message, messages_in
from firearrow.client.producer.drafts import Draft
from firearrow.client.producer.sender import Rules, Sender
from firearrow.client.queues import Queue
from firearrow.client.session.answers import read_body, read_number
from firearrow.client.session.session import Session
from firearrow.errors import BrokerError
from firearrow.message import properties as keys_of
from firearrow.message import sysflag
from firearrow.message.names import retry_topic
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID
from firearrow.wire.client_bodies import (
    CLUSTERING,
    AssignmentQuery,
    Assignments,
    CheckClient,
    ConsumerIdList,
    LockRequest,
    LockResult,
    MessageQueue,
    QueueAssignment,
    SubscriptionData,
)
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

KiB: Final = 1024

PULL_MESSAGES: Final = 32  # the limit of an unchanged broker
PULL_BYTES: Final = 256 * KiB
SUSPEND_MS: Final = 15_000  # that a broker suspends a pull without messages
PULL_SECONDS_MAX: Final = 30.0
SEND_BACK_SECONDS_MAX: Final = 5.0
NOT_STORED: Final = -1

RETRY_COPY_LEVEL: Final = 3  # of the first retry
RETRY_COPY_GROUP: Final = "CLIENT_INNER_PRODUCER"  # the producer group of RocketMQ's clients for this
_COPIED_FLAGS: Final = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK

_COMMITS, _SUSPENDS, _SUBSCRIBES, _LITE = 1, 2, 4, 16


class OffsetRange(NamedTuple):
    """Offset range of a queue: offsets from ``first`` up to, and without, ``end``."""

    first: int
    end: int


class PullResult(NamedTuple):
    """Answer to a pull; the messages are those that the broker's filter passed."""

    code: int
    remark: str
    messages: list[Message]
    next_offset: int
    ends: OffsetRange
    suggested_id: int
    """Id of the broker to pull from next time."""


class GroupCalls:
    """Asks brokers on behalf of a group, given by its name at the brokers."""

    def __init__(self, session: Session, group: str) -> None:
        self.session = session
        self.group = group

    # --- pulls ---

    async def pull(
        self,
        queue: Queue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        committed: int = 0,
        count: int = PULL_MESSAGES,
        broker_id: int = MASTER_ID,
        suspend_ms: int = SUSPEND_MS,
        with_subscription: bool = False,
        lite: bool = False,
    ) -> PullResult:
        """Pull from a queue; the broker waits for messages if there are none.

        The broker also stores a ``committed`` offset. Raises OSError, or BrokerError for a refusal.
        """
        session = self.session
        broker = await self._broker_of(queue)
        address = session.address_of(broker, broker_id, any_will_do=True)
        at_master = session.routes.brokers[broker].get(MASTER_ID) == address
        flag = _SUSPENDS if suspend_ms else 0
        flag |= _COMMITS if committed > 0 and at_master else 0
        flag |= _SUBSCRIBES if with_subscription else 0
        fields: dict[str, FieldValue] = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": queue_offset,
            "maxMsgNums": count,
            "sysFlag": flag | _LITE if lite else flag,
            "commitOffset": max(committed, 0),
            "suspendTimeoutMillis": suspend_ms,
            "subVersion": subscription.sub_version,
            "expressionType": subscription.expression_type,
            "maxMsgBytes": PULL_BYTES,
            "bname": queue.broker,
        }
        if with_subscription:
            fields["subscription"] = subscription.sub_string
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        answer = await session.client.answer(address, code, fields, timeout_seconds=PULL_SECONDS_MAX)
        return self._pulled(answer, queue, address)

    def _pulled(self, answer: AnyCommand, queue: Queue, address: str) -> PullResult:
        code = answer.code
        if code not in _PULL_ANSWERS:
            raise BrokerError.of(code, answer.remark, address)
        found = code == ResponseCode.SUCCESS
        first, end = (read_number(answer, name, address) for name in ("minOffset", "maxOffset"))
        return PullResult(
            code,
            answer.remark or "",
            messages_in(answer.body, queue.broker, self.session.namespace) if found else [],
            read_number(answer, "nextBeginOffset", address),
            OffsetRange(first, end),
            read_number(answer, "suggestWhichBrokerId", address),
        )

    async def send_back(self, message: Message, level: int, times_max: int) -> None:
        """Return a failed message to the broker, which redelivers it (36). ``level`` 0 leaves the delay to the broker,
        -1 makes it a dead letter. Raises OSError or BrokerError."""
        queue = message.queue
        fields: dict[str, FieldValue] = {
            "group": self.group,
            "originTopic": message.view.topic,
            "offset": message.view.physical_offset,
            "delayLevel": level,
            "originMsgId": message.message_id,
            "maxReconsumeTimes": times_max,
            "bname": queue.broker,
        }
        await self.session.call(
            queue.broker, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_seconds=SEND_BACK_SECONDS_MAX
        )

    async def send_retry_copy(self, message: Message, times_max: int) -> None:
        """Send a copy of a failed message to the retry topic, if its broker can't redeliver it. Raises SendFailed.

        Source: RocketMQ's ``DefaultMQPushConsumerImpl#sendMessageBackAsNormalMessage``.
        """
        view = message.view
        properties = {
            **view.properties,
            keys_of.RETRY_TOPIC: self.session.topic(message.topic),
            keys_of.DELAY_LEVEL: str(RETRY_COPY_LEVEL + message.reconsume_times),
            keys_of.RECONSUME_TIME: str(message.reconsume_times + 1),
            keys_of.MAX_RECONSUME_TIMES: str(times_max),
        }
        properties.setdefault(keys_of.ORIGIN_MESSAGE_ID, message.message_id)
        properties.pop(keys_of.TRANSACTION_PREPARED, None)
        sender = Sender(self.session, RETRY_COPY_GROUP, Rules())
        try:
            draft = Draft(retry_topic(self.group), view.body, properties, view.flag)
            await sender.post(draft, sys_flag=view.sys_flag & _COPIED_FLAGS)
        finally:
            sender.close()

    # --- offsets ---

    async def committed(self, queue: Queue) -> int:
        """Committed offset of the group in a queue (14); `NOT_STORED` without one."""
        try:
            answer = await self._of_queue(queue, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=self.group)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return NOT_STORED
            raise
        return answer

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        """Commit an offset, one-way (15)."""
        fields = self._fields(queue, consumerGroup=self.group, commitOffset=queue_offset)
        broker = await self._broker_of(queue)
        await self.session.tell(broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, any_will_do=True)

    async def commit_and_wait(self, queue: Queue, queue_offset: int) -> None:
        """Commit an offset and wait for the broker's answer (15)."""
        fields = self._fields(queue, consumerGroup=self.group, commitOffset=queue_offset)
        broker = await self._broker_of(queue)
        await self.session.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, any_will_do=True)

    async def first_offset(self, queue: Queue) -> int:
        """Offset of the first message in a queue (31)."""
        return await self._of_queue(queue, RequestCode.GET_MIN_OFFSET)

    async def end_offset(self, queue: Queue) -> int:
        """Offset that the next message of a queue will get (30)."""
        return await self._of_queue(queue, RequestCode.GET_MAX_OFFSET)

    async def offset_at(self, queue: Queue, timestamp_ms: int) -> int:
        """Offset of the first message of a queue that was stored at a time or later (29)."""
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._of_queue(queue, code, timestamp=timestamp_ms)

    async def _of_queue(self, queue: Queue, code: int, **more: FieldValue) -> int:
        broker = await self._broker_of(queue)
        fields = self._fields(queue, **more)
        answer = await self.session.call(broker, code, fields, any_will_do=True)
        return read_number(answer, "offset", broker)

    async def _broker_of(self, queue: Queue) -> str:
        """Broker of a queue, whose route may not be in use yet."""
        if self.session.routes.known(queue.topic) is None:
            await self.session.route(queue.topic)
        return self.session.broker_of(queue)

    @staticmethod
    def _fields(queue: Queue, **more: FieldValue) -> dict[str, FieldValue]:
        return {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker, **more}

    # --- the group ---

    async def members(self, topic: str) -> list[str]:
        """Clients of the group, sorted, as some broker of a topic knows them (38)."""
        route = await self.session.route(topic)
        answer = await self.session.client.call(
            self.session.any_address(route), RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
        )
        return sorted(read_body(answer, ConsumerIdList, "members of a group").consumer_id_list)

    async def assignments(self, topic: str, strategy: str) -> list[QueueAssignment] | None:
        """Queues of a topic that a broker assigns to this client (400); None if they have not changed."""
        route = await self.session.route(topic)
        body = AssignmentQuery(topic, self.group, self.session.client_id, CLUSTERING, strategy)
        answer = await self.session.client.call(
            self.session.any_address(route), RequestCode.QUERY_ASSIGNMENT, body=fastjson.dumps(body)
        )
        return read_body(answer, Assignments, "assignment").message_queue_assignments

    async def check(self, subscription: SubscriptionData) -> None:
        """Check a filter expression at a broker (46). Raises BrokerError with the fault."""
        route = await self.session.route(subscription.topic)
        body = CheckClient(self.session.client_id, self.group, self.session.namespace or None, subscription)
        await self.session.client.call(
            self.session.any_address(route), RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body)
        )

    async def lock(self, queues: Iterable[Queue]) -> set[Queue]:
        """Lock queues of one broker for this client; returns the queues that it holds now (41)."""
        queues = list(queues)
        answer = await self.session.call(
            self.session.broker_of(queues[0]), RequestCode.LOCK_BATCH_MQ, body=self._lock_body(queues)
        )
        held = read_body(answer, LockResult, "locked queues").lock_ok_mq_set
        return {Queue(one.topic, one.broker_name, one.queue_id) for one in held}

    async def unlock(self, queues: Sequence[Queue]) -> None:
        """Unlock queues of one broker, one-way (42)."""
        broker = self.session.broker_of(queues[0])
        body = self._lock_body(queues)
        await self.session.tell(broker, RequestCode.UNLOCK_BATCH_MQ, body=body)

    def _lock_body(self, queues: Collection[Queue]) -> bytes:
        own = [MessageQueue(*queue) for queue in queues]
        return fastjson.dumps(LockRequest(self.group, self.session.client_id, own))


_PULL_ANSWERS: Final[Mapping[int, str]] = {
    ResponseCode.SUCCESS: "found",
    ResponseCode.PULL_NOT_FOUND: "nothing new",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "nothing that is wanted",
    ResponseCode.PULL_OFFSET_MOVED: "not an offset of the queue",
}
