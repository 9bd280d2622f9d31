"""A consumer as its parts know it: its group, what it wants, how it is set, how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from firearrow.client.consumer.groupcalls import PULL_MESSAGES, GroupCalls
from firearrow.client.consumer.handlers import Registration
from firearrow.client.consumer.offsets import OffsetStore, OffsetTable
from firearrow.client.consumer.processqueue import Limits, ProcessQueue
from firearrow.client.consumer.rates import ConsumeRates
from firearrow.client.consumer.subscription import OffsetQuery, StartFrom, start_offset
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.javanumbers import INT_MAX
from firearrow.message.names import retry_topic
from firearrow.net.tasks import Running
from firearrow.wire.client_bodies import SubscriptionData

RECONSUME_MAX: Final = 16  # Java: maxReconsumeTimes -1 of consumers in any order
RECONSUME_FOR_EVER: Final = INT_MAX  # the same of those in order
LIMITS: Final = Limits()
LOCK_SECONDS: Final = 30.0  # for how long a lock is taken to be held


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of a consumer; times in seconds. The defaults are RocketMQ's."""

    start_from: StartFrom = StartFrom.LAST
    start_at_ms: int = 0
    limits: Limits = LIMITS
    topic_limits: Limits | None = None
    """What the queues of a topic have together; of its span, nothing counts."""
    pull_messages: int = PULL_MESSAGES
    reconsume_times_max: int | None = None
    consume_timeout: float = 900.0
    suspend: float = 1.0
    """How long a queue in order waits after a failure."""
    invisible: float = 60.0
    """How long a popped message is not given to others."""
    unacked_max: int = 96
    """Popped messages of a queue that are not acknowledged, before no more are popped."""
    drain: float = 30.0
    """How long handlers may take at the end before they are cancelled."""
    delays: tuple[int, ...] | None = None
    """When popped messages come again, in place of RocketMQ's table."""


class AssignedQueue:
    """A queue that is this consumer's, with what was pulled of it.

    Times are the loop's. ``locked_until`` is for queues in order; ``consuming`` is held while a
    handler works on its messages.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.cache: ProcessQueue[Message] = ProcessQueue()
        self.is_dropped = False
        self.locked_until = 0.0
        self.consuming = asyncio.Lock()
        self.arrived = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        self.last_pull = self.last_lock = self.last_consumed = self._time()
        self.tasks: list[Running] = []
        self._room: asyncio.Future[None] | None = None

    @property
    def is_locked(self) -> bool:
        """Tell whether its lock is taken to be held."""
        return self.locked_until > self._time()

    def locked(self, *, ok: bool) -> None:
        """Take note of what the broker said of the lock."""
        self.last_lock = self._time()
        self.locked_until = self.last_lock + LOCK_SECONDS if ok else 0.0

    async def room(self, seconds: float) -> None:
        """Wait until something is consumed, or the time is over."""
        self._room = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._room], timeout=seconds)
        self._room = None

    def made_room(self) -> None:
        """Something was consumed."""
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
    registrations: dict[str, Registration] = field(default_factory=dict)
    """By the topic's name at the brokers."""
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    queues: dict[Queue, AssignedQueue] = field(default_factory=dict)
    rates: ConsumeRates | None = None
    """What is counted for tools, once it runs."""
    is_paused: bool = False
    rebalance_soon: Callable[[], None] = lambda: None

    @property
    def group(self) -> str:
        """The group's name at the brokers."""
        return self.calls.group

    @property
    def own_retry_topic(self) -> str:
        """The topic of what the group failed."""
        return retry_topic(self.group)

    @property
    def reconsume_times_max(self) -> int:
        """Limit of a message's failures."""
        asked = self.settings.reconsume_times_max
        if asked is not None and asked >= 0:
            return asked
        return RECONSUME_FOR_EVER if self.is_ordered else RECONSUME_MAX

    def limits_of(self, topic: str) -> Limits:
        """Give the limits of the cache for each queue of a topic."""
        limits, together = self.settings.limits, self.settings.topic_limits
        if together is None:
            return limits
        count = max(1, sum(queue.topic == topic for queue in self.queues))
        return limits._replace(
            messages=min(limits.messages, max(1, together.messages // count)),
            bytes=min(limits.bytes, max(1, together.bytes // count)),
        )

    def note_progress(self, assigned: AssignedQueue) -> None:
        """Note how far a queue is consumed; of one that is dropped, nothing."""
        at = assigned.cache.commit_offset
        if at >= 0 and not assigned.is_dropped:
            self.offsets.advance(assigned.queue, at)

    async def start_offset(self, queue: Queue) -> int:
        """Give the first offset to consume in a queue. Raises OSError or FirearrowError."""
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
        """Write how far all queues are."""
        await self.store.write(self._progress())

    async def persist_changed(self) -> None:
        """Write how far queues are, as far as that is not known already."""
        await self.store.write_changed(self._progress())

    def _progress(self) -> dict[Queue, int]:
        for assigned in self.queues.values():
            self.note_progress(assigned)
        return self.offsets.known(self.queues)
