"""Questions of a consumer group's members to brokers, one method each.

Source: upstream ``MQClientAPIImpl``, ``PullAPIWrapper``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.message import Message, messages_in
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import MASTER
from firearrow.client.session.answers import read_body, read_number
from firearrow.client.session.session import Session
from firearrow.errors import BrokerError
from firearrow.wire import fastjson
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

PULL_MESSAGES: Final = 32  # what an unchanged broker gives at most
PULL_BYTES: Final = 256 * KiB
SUSPEND_MS: Final = 15_000  # how long a broker keeps a pull that finds nothing
PULL_SECONDS_MAX: Final = 30.0
SEND_BACK_SECONDS_MAX: Final = 5.0
NOT_STORED: Final = -1

_COMMITS, _SUSPENDS, _SUBSCRIBES, _LITE = 1, 2, 4, 16


class QueueEnds(NamedTuple):
    """Offset range of a queue: offsets from ``first`` up to, and without, ``end``."""

    first: int
    end: int


class PullResult(NamedTuple):
    """An answer to a pull; the messages are those that the broker thinks are wanted."""

    code: int
    remark: str
    messages: list[Message]
    next_offset: int
    ends: QueueEnds
    suggested_id: int
    """The id of the broker that is to be asked next time."""


class GroupCalls:
    """Asks brokers on behalf of a group, named as it is at the brokers."""

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
        broker_id: int = MASTER,
        suspend_ms: int = SUSPEND_MS,
        with_subscription: bool = False,
        lite: bool = False,
    ) -> PullResult:
        """Pull from a queue; the broker waits for messages if there are none.

        A ``committed`` offset is stored by the way. Raises OSError, or BrokerError for an answer
        that is none to a pull.
        """
        session = self.session
        broker = await self._broker_of(queue)
        address = session.address_of(broker, broker_id, any_will_do=True)
        at_master = session.routes.brokers[broker].get(MASTER) == address
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
            QueueEnds(first, end),
            read_number(answer, "suggestWhichBrokerId", address),
        )

    async def send_back(self, message: Message, level: int, times_max: int) -> None:
        """36: have a message that failed come again; ``level`` 0 leaves it to the broker when, and
        -1 has it go to the dead letters. Raises OSError or BrokerError."""
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

    # --- offsets ---

    async def committed(self, queue: Queue) -> int:
        """14: how far the group is in a queue; `NOT_STORED` if nobody has committed."""
        try:
            answer = await self._of_queue(queue, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=self.group)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return NOT_STORED
            raise
        return answer

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        """15, one-way: how far the group is now."""
        fields = self._fields(queue, consumerGroup=self.group, commitOffset=queue_offset)
        broker = await self._broker_of(queue)
        await self.session.tell(broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, any_will_do=True)

    async def commit_and_wait(self, queue: Queue, queue_offset: int) -> None:
        """15: the same, and wait until the broker has it."""
        fields = self._fields(queue, consumerGroup=self.group, commitOffset=queue_offset)
        broker = await self._broker_of(queue)
        await self.session.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, any_will_do=True)

    async def first_offset(self, queue: Queue) -> int:
        """31: the first message that a queue holds."""
        return await self._of_queue(queue, RequestCode.GET_MIN_OFFSET)

    async def end_offset(self, queue: Queue) -> int:
        """30: what the next message of a queue gets."""
        return await self._of_queue(queue, RequestCode.GET_MAX_OFFSET)

    async def offset_at(self, queue: Queue, timestamp_ms: int) -> int:
        """29: the first message of a queue that was stored at a time, or since."""
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._of_queue(queue, code, timestamp=timestamp_ms)

    async def _of_queue(self, queue: Queue, code: int, **more: FieldValue) -> int:
        broker = await self._broker_of(queue)
        fields = self._fields(queue, **more)
        answer = await self.session.call(broker, code, fields, any_will_do=True)
        return read_number(answer, "offset", broker)

    async def _broker_of(self, queue: Queue) -> str:
        """The broker that a queue is on, whose route may not be in use yet."""
        if self.session.routes.known(queue.topic) is None:
            await self.session.route(queue.topic)
        return self.session.broker_of(queue)

    @staticmethod
    def _fields(queue: Queue, **more: FieldValue) -> dict[str, FieldValue]:
        return {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker, **more}

    # --- the group ---

    async def members(self, topic: str) -> list[str]:
        """38: the clients of the group, as some broker of a topic knows them, sorted."""
        route = await self.session.route(topic)
        answer = await self.session.client.call(
            self.session.any_address(route), RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
        )
        return sorted(read_body(answer, ConsumerIdList, "members of a group").consumer_id_list)

    async def assignments(self, topic: str, strategy: str) -> list[QueueAssignment] | None:
        """400: the queues of a topic that a broker gives this client; None: as it was."""
        route = await self.session.route(topic)
        body = AssignmentQuery(topic, self.group, self.session.client_id, CLUSTERING, strategy)
        answer = await self.session.client.call(
            self.session.any_address(route), RequestCode.QUERY_ASSIGNMENT, body=fastjson.dumps(body)
        )
        return read_body(answer, Assignments, "assignment").message_queue_assignments

    async def check(self, subscription: SubscriptionData) -> None:
        """46: have a broker read an expression; BrokerError says what is wrong with it."""
        route = await self.session.route(subscription.topic)
        body = CheckClient(self.session.client_id, self.group, self.session.namespace or None, subscription)
        await self.session.client.call(
            self.session.any_address(route), RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body)
        )

    async def lock(self, queues: Iterable[Queue]) -> set[Queue]:
        """41: lock queues of one broker for this client; gives those that it holds now."""
        queues = list(queues)
        answer = await self.session.call(
            self.session.broker_of(queues[0]), RequestCode.LOCK_BATCH_MQ, body=self._lock_body(queues)
        )
        held = read_body(answer, LockResult, "locked queues").lock_ok_mq_set
        return {Queue(one.topic, one.broker_name, one.queue_id) for one in held}

    async def unlock(self, queues: Sequence[Queue]) -> None:
        """42, one-way: give queues of one broker back."""
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
