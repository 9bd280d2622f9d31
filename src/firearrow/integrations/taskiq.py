"""Broker for Taskiq: tasks are messages of one topic, workers are members of one group.

::

    broker = RocketMQBroker("127.0.0.1:9876", topic="tasks", group="workers")

    @broker.task
    async def resize(image: str) -> None: ...

    await broker.startup()
    await resize.kiq("a.png")
    await resize.kicker().with_labels(delay=60).kiq("b.png")

Tasks are popped (POP), as by a `SimpleConsumer`, and not pushed. So there may be more workers than queues. Each task is
acknowledged separately, so a slow task blocks no other. A worker gets only as many tasks as it has room for. A task
stays with its worker while the worker lives and works on it. An unacknowledged task is redelivered: ``invisible`` after
its worker has died, and at most ``invisible`` after it has ended without an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Unpack

from taskiq import (
    AckableMessage,
    AsyncBroker,
    BrokerMessage,
    ScheduledTask,
    ScheduleSource,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.kicker import AsyncKicker

from firearrow.client.pop.renewal import LeasedMessage, LeaseHolder, give_back
from firearrow.client.pop.simpleconsumer import SimpleConsumer
from firearrow.client.producer.producer import Producer
from firearrow.client.session.session import Session, SessionOptions
from firearrow.errors import ClientError, ConfigError, FirearrowError, MessageError
from firearrow.integrations.topics import declare_topic
from firearrow.logs import Log
from firearrow.message import properties as keys_of

log: Final = Log(__name__)

BATCH: Final = 8  # tasks of one answer: larger is faster, smaller spreads tasks better over workers
QUEUES: Final = 4
INVISIBLE: Final = timedelta(seconds=60)
_RESERVED: Final = frozenset(
    value for name, value in vars(keys_of).items() if name.isupper() and isinstance(value, str)
)
_SEPARATORS: Final = frozenset(keys_of.NAME_END + keys_of.PAIR_END)


class RocketMQBroker(AsyncBroker):
    """Sends tasks to ``topic``, for the workers of ``group``.

    ``cluster`` is the address of the name servers; further arguments go to the `Session`. A missing topic is created,
    with ``queues`` on each broker, or with one queue for each of the ``priorities``. A worker gets up to ``batch``
    tasks at a time. Each label is a property of the message, the name of the task its tag, and the task's id its key.
    RocketMQ obeys three labels. ``delay`` is in seconds. ``deliver_at`` is a time by ISO 8601. ``priority`` begins at
    0; a higher one comes first, if the topic has priorities.
    """

    def __init__(
        self,
        cluster: str | Sequence[str] | None = None,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        invisible: timedelta = INVISIBLE,
        batch: int = BATCH,
        queues: int = QUEUES,
        priorities: int = 0,
        **session: Unpack[SessionOptions],
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self._cluster = cluster
        self._options = session
        self._invisible = invisible
        self._batch = batch
        self._queues = priorities or queues
        self._message_type = "PRIORITY" if priorities else None
        self._open: _OpenConnection | None = None
        self._at_work = _TasksAtWork()
        self.add_middlewares(self._at_work)

    async def startup(self) -> None:
        """Connect, and create the topic unless it exists."""
        await super().startup()
        if self._open is None:
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(Session(self._cluster, **self._options))
                await declare_topic(session, self.topic, self._queues, self._message_type)
                producer = Producer(session, group=self.group)
                await stack.enter_async_context(producer)
                self._open = _OpenConnection(session, producer, stack.pop_all())

    async def shutdown(self) -> None:
        """Close all connections; a running task is redelivered to another worker."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.stack.aclose()
            self._at_work.clear()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; when this returns, a broker has it. Raises SendFailed if no broker took it, and MessageError for
        invalid labels."""
        opened, labels = self._opened(), message.labels
        delay, moment = _times(labels, opened.now)
        await opened.producer.send(
            self.topic,
            message.message,
            key=message.task_id,
            tag=message.task_name,
            properties=_properties(labels),
            delay=delay,
            deliver_at=moment,
            priority=int(_number(labels, "priority")) if "priority" in labels else None,
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they arrive. When this is closed, tasks received ahead are given back. Yielded tasks can be
        acknowledged until ``shutdown``."""
        consumer, holder = await self._opened().receiving(self.group, self.topic, self._invisible)
        ahead: list[LeasedMessage] = []
        try:
            while True:
                await holder.ask(consumer, self._batch)
                await holder.answered()
                ahead = holder.take()[::-1]
                while ahead:
                    yield self._at_work.begin(ahead.pop())
        finally:
            await give_back(ahead)
            await holder.rest()

    def _opened(self) -> _OpenConnection:
        if self._open is None:
            raise ClientError(f"the broker of topic {self.topic!r} is not started")
        return self._open


class RocketMQSchedule(ScheduleSource):
    """Source of tasks with a scheduled time, which wait at the RocketMQ broker. They run without a scheduler process,
    and no scheduler learns of them. For `cron` and `interval` use another source."""

    def __init__(self, broker: RocketMQBroker) -> None:
        self._broker = broker

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return none: added tasks are sent already."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Send a task for its time, in UTC unless the time has a zone. Raises ConfigError without a time."""
        moment = schedule.time
        if moment is None:
            raise ConfigError(f"task {schedule.task_name!r}: this source takes only tasks with a time")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        labels = {**schedule.labels, "deliver_at": moment.isoformat()}
        kicker: AsyncKicker[Any, Any] = AsyncKicker(schedule.task_name, self._broker, labels)
        kicker.with_labels(schedule_id=schedule.schedule_id).with_task_id(schedule.task_id)
        await kicker.kiq(*schedule.args, **schedule.kwargs)


class _OpenConnection:
    """Connection between ``startup`` and ``shutdown``."""

    def __init__(self, session: Session, producer: Producer, stack: AsyncExitStack) -> None:
        self._session = session
        self.producer = producer
        self.stack = stack
        self._receiving: tuple[SimpleConsumer, LeaseHolder] | None = None

    @property
    def now(self) -> datetime:
        """Time by the session's clock."""
        return datetime.fromtimestamp(self._session.clock.now_ms() / 1000, UTC)

    async def receiving(self, group: str, topic: str, invisible: timedelta) -> tuple[SimpleConsumer, LeaseHolder]:
        if self._receiving is None:
            consumer = SimpleConsumer(self._session, group=group, topics=[topic])
            await self.stack.enter_async_context(consumer)
            holder = LeaseHolder(invisible)
            self.stack.push_async_callback(holder.close)
            self._receiving = consumer, holder
        return self._receiving


class _TasksAtWork(TaskiqMiddleware):
    """Detects the end of tasks. The receiver reports no end of an unacknowledged task, so the end of its asyncio task
    counts."""

    def __init__(self) -> None:
        super().__init__()
        self._given: defaultdict[str, list[LeasedMessage]] = defaultdict(list)

    def begin(self, held: LeasedMessage) -> AckableMessage:
        """Message for the receiver."""
        message = held.message
        task_id = message.properties.get(keys_of.KEYS, "")
        self._given[task_id].append(held)

        async def ack() -> None:
            self._forget(task_id, held)
            try:
                await held.ack()
            except (OSError, FirearrowError) as error:  # Taskiq would ignore the error
                fields = {"task_id": task_id, "topic": message.topic, "error": error}
                log.warning("task is not acknowledged: it will be redelivered", extra=fields)

        return AckableMessage(data=message.body, ack=ack)

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Stop the renewal of the message at the end of its task."""
        given = self._given.get(message.task_id)
        running = asyncio.current_task()
        if given and running is not None:
            held = given[0]
            self._forget(message.task_id, held)
            running.add_done_callback(lambda _: held.let_go())
        return message

    def clear(self) -> None:
        """Forget the tasks that the receiver has not begun."""
        self._given.clear()

    def _forget(self, task_id: str, held: LeasedMessage) -> None:
        given = self._given.get(task_id, [])
        if held in given:
            given.remove(held)
            if not given:
                del self._given[task_id]


def _properties(labels: Mapping[str, Any]) -> dict[str, str]:
    """Labels that can be properties: RocketMQ must not know their names otherwise."""
    texts = {name: str(value) for name, value in labels.items() if name not in _RESERVED}
    return {name: text for name, text in texts.items() if _SEPARATORS.isdisjoint(name + text)}


def _times(labels: Mapping[str, Any], now: datetime) -> tuple[timedelta | None, datetime | None]:
    """Delay, or time, or neither. Of both, the later one, since a retry keeps the labels of the task."""
    seconds = _number(labels, "delay")
    delay = timedelta(seconds=seconds) if seconds else None
    moment = _moment(str(labels["deliver_at"])) if "deliver_at" in labels else None
    if delay is not None and moment is not None:
        return (None, moment) if moment > now + delay else (delay, None)
    return delay, moment


def _number(labels: Mapping[str, Any], name: str) -> float:
    try:
        return float(labels.get(name, 0))
    except (TypeError, ValueError):
        raise MessageError(f"label {name}={labels[name]!r} is not a number", name) from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise MessageError(f"label deliver_at={text!r} is not a time", "deliver_at") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
