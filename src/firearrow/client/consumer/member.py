"""State that the parts of a consumer share: group, subscriptions, settings and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from firearrow.client.consumer.groupcalls import PULL_MESSAGES, GroupCalls
from firearrow.client.consumer.handlers import HandlerRegistration
from firearrow.client.consumer.offsets import OffsetStore, OffsetTable
from firearrow.client.consumer.processqueue import Limits, ProcessQueue
from firearrow.client.consumer.rates import ConsumeRates
from firearrow.client.consumer.subscription import OffsetQuery, StartFrom, start_offset
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.javanumbers import INT_MAX
from firearrow.message.names import retry_topic
from firearrow.net.tasks import RunningTask
from firearrow.wire.client_bodies import SubscriptionData

RECONSUME_MAX: Final = 16  # Java: maxReconsumeTimes -1 of consumers in any order
RECONSUME_FOR_EVER: Final = INT_MAX  # the same for consumers in order
LIMITS: Final = Limits()
LOCK_SECONDS: Final = 30.0  # that a lock is assumed to hold


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of a consumer; times in seconds. The defaults are RocketMQ's."""

    start_from: StartFrom = StartFrom.FIRST
    start_at_ms: int = 0
    limits: Limits = LIMITS
    topic_limits: Limits | None = None
    """Limits for all queues of a topic together; its ``span`` does not count."""
    pull_messages: int = PULL_MESSAGES
    reconsume_times_max: int | None = None
    consume_timeout: float = 900.0
    suspend: float = 1.0
    """Pause of a queue in order after a failure."""
    invisible: float = 60.0
    """Time for which the broker gives a popped message to no other consumer."""
    unacked_max: int = 96
    """Unacknowledged messages of a queue, above which the consumer stops popping."""
    drain: float = 30.0
    """Time for running handlers at the end, before they are cancelled."""
    delays: tuple[int, ...] | None = None
    """Delays of popped messages until their redelivery, in place of RocketMQ's table."""


class AssignedQueue:
    """Queue that is assigned to this consumer, with its pulled messages.

    Times are by the loop's clock. ``locked_until`` is for queues in order. A handler holds ``consuming`` while it works
    on the queue's messages.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.cache: ProcessQueue[Message] = ProcessQueue()
        self.is_dropped = False
        self.locked_until: float = 0.0
        self.consuming: asyncio.Lock = asyncio.Lock()
        self.arrived: asyncio.Event = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        self.last_pull: float = self._time()
        self.last_lock: float = self.last_pull
        self.last_consumed: float = self.last_pull
        self.tasks: list[RunningTask] = []
        self._room: asyncio.Future[None] | None = None

    @property
    def is_locked(self) -> bool:
        """Tell whether its lock is assumed to hold."""
        return self.locked_until > self._time()

    def locked(self, *, ok: bool) -> None:
        """Note the broker's answer about the lock."""
        self.last_lock = self._time()
        self.locked_until = self.last_lock + LOCK_SECONDS if ok else 0.0

    async def room(self, seconds: float) -> None:
        """Wait until a message is consumed, for a time at most."""
        self._room = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._room], timeout=seconds)
        self._room = None

    def made_room(self) -> None:
        """Wake `room`, since messages are consumed."""
        self.last_consumed = self._time()
        room = self._room
        if room is not None and not room.done():
            room.set_result(None)


@dataclass(slots=True)
class Member:
    """State that the parts of a consumer share."""

    calls: GroupCalls
    settings: ConsumerSettings
    store: OffsetStore
    is_clustering: bool = True
    is_ordered: bool = False
    offsets: OffsetTable = field(default_factory=OffsetTable)
    registrations: dict[str, HandlerRegistration] = field(default_factory=dict)
    """By the topic's name at the brokers."""
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    queues: dict[Queue, AssignedQueue] = field(default_factory=dict)
    rates: ConsumeRates | None = None
    """Counts for tools, while the consumer runs."""
    is_paused: bool = False
    rebalance_soon: Callable[[], None] = lambda: None

    @property
    def group(self) -> str:
        """Group's name at the brokers."""
        return self.calls.group

    @property
    def own_retry_topic(self) -> str:
        """Retry topic of the group."""
        return retry_topic(self.group)

    @property
    def reconsume_times_max(self) -> int:
        """Limit of a message's retries."""
        asked = self.settings.reconsume_times_max
        if asked is not None and asked >= 0:
            return asked
        return RECONSUME_FOR_EVER if self.is_ordered else RECONSUME_MAX

    def limits_of(self, topic: str) -> Limits:
        """Limits of the cache for each queue of a topic."""
        limits, together = self.settings.limits, self.settings.topic_limits
        if together is None:
            return limits
        count = max(1, sum(queue.topic == topic for queue in self.queues))
        return limits._replace(
            messages=min(limits.messages, max(1, together.messages // count)),
            bytes=min(limits.bytes, max(1, together.bytes // count)),
        )

    def note_progress(self, assigned: AssignedQueue) -> None:
        """Note the progress in a queue, unless the queue is dropped."""
        at = assigned.cache.commit_offset
        if at >= 0 and not assigned.is_dropped:
            self.offsets.advance(assigned.queue, at)

    async def start_offset(self, queue: Queue) -> int:
        """First offset to consume in a queue. Raises OSError or FirearrowError."""
        stored = await self.store.stored(queue)
        self.offsets.forget(queue)
        start = start_offset(queue.topic, stored, self.settings.start_from)
        if start is OffsetQuery.MAX_OFFSET:
            return await self.calls.end_offset(queue)
        if start is OffsetQuery.OFFSET_AT_TIME:
            return await self.calls.offset_at(queue, self.settings.start_at_ms)
        if stored >= 0:
            self.offsets.set(queue, stored)
        return start

    async def persist(self) -> None:
        """Write the progress in all queues."""
        await self.store.write(self._progress())

    async def persist_changed(self) -> None:
        """Write the progress in queues where it has changed."""
        await self.store.write_changed(self._progress())

    def _progress(self) -> dict[Queue, int]:
        for assigned in self.queues.values():
            self.note_progress(assigned)
        return self.offsets.known(self.queues)
