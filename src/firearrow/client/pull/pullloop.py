"""Pull the messages of one queue while it is assigned to this consumer.

The next pull begins as soon as the answer to the last one is read, while its messages are consumed, until the cache is
full. The broker suspends a pull without messages.

Source: RocketMQ's ``DefaultMQPushConsumerImpl#pullMessage``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from firearrow.client.consumer.groupcalls import PullResult
from firearrow.client.consumer.member import AssignedQueue, Member
from firearrow.client.consumer.subscription import NONE_STORED, subscription_to, wanted_of
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.errors import BrokerError, FirearrowError
from firearrow.logs import Log
from firearrow.wire.bodies import MASTER_ID
from firearrow.wire.client_bodies import SubscriptionData
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

FAILED_SECONDS: Final = 1.0  # after a failed pull
FULL_SECONDS: Final = 0.05  # between looks at a full cache, unless it gets room before
FLOW_CONTROL_SECONDS: Final = 0.02
PAUSED_SECONDS: Final = 1.0

Submit = Callable[[AssignedQueue, list[Message]], None]


class PushPuller:
    """Pull loop of one queue for a push consumer; ``submit`` consumes the messages."""

    def __init__(self, member: Member, assigned: AssignedQueue, submit: Submit) -> None:
        self._member = member
        self._assigned = assigned
        self._submit = submit
        self._offset = 0
        self._broker_id = MASTER_ID

    async def run(self) -> None:
        """Pull until the queue is dropped."""
        await self._begin()
        assigned = self._assigned
        while not assigned.is_dropped:
            assigned.last_pull = asyncio.get_running_loop().time()
            if await self._is_held_up():
                continue
            try:
                pulled = await self._pull()
            except BrokerError as error:
                await self._failed(error)
            except (OSError, FirearrowError) as error:
                self._broker_id = MASTER_ID
                await self._failed(error)
            else:
                await self._take(pulled)

    async def _begin(self) -> None:
        while not self._assigned.is_dropped:
            try:
                self._offset = await self._member.start_offset(self._assigned.queue)
            except (OSError, FirearrowError) as error:
                await self._failed(error)
            else:
                return

    async def _failed(self, error: Exception) -> None:
        busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
        if not busy:
            _not_pulled(self._member, self._assigned.queue, error)
        await asyncio.sleep(FLOW_CONTROL_SECONDS if busy else FAILED_SECONDS)

    async def _is_held_up(self) -> bool:
        """Wait for a moment if the consumer must not pull now."""
        member, assigned = self._member, self._assigned
        if member.is_paused:
            await asyncio.sleep(PAUSED_SECONDS)
            return True
        limits = member.limits_of(assigned.queue.topic)
        if assigned.cache.excess(limits, in_order=member.is_ordered) is not None:
            await assigned.room(FULL_SECONDS)
            return True
        if member.is_ordered and member.is_clustering and not assigned.is_locked:
            await asyncio.sleep(FAILED_SECONDS)
            return True
        return False

    async def _pull(self) -> PullResult:
        member, queue = self._member, self._assigned.queue
        subscription = member.subscriptions.get(queue.topic)
        if subscription is None:
            raise ConnectionError(f"topic {queue.topic!r} is not subscribed to any more")
        committed = 0
        if member.is_clustering:
            member.note_progress(self._assigned)
            # While messages of the queue are consumed, this offset would soon be outdated. RocketMQ handles pulls and
            # commits in several threads, so it could overtake the final commit.
            if not len(self._assigned.cache):
                committed = member.offsets.get(queue)
        return await member.calls.pull(
            queue,
            self._offset,
            subscription,
            committed=committed,
            count=member.settings.pull_messages,
            broker_id=self._broker_id,
        )

    async def _take(self, pulled: PullResult) -> None:
        assigned, member = self._assigned, self._member
        if assigned.is_dropped:
            return
        self._broker_id = pulled.suggested_id
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._give_up(pulled)
            return
        self._offset = pulled.next_offset
        if pulled.messages:
            if member.rates is not None:
                now, count = asyncio.get_running_loop().time(), len(pulled.messages)
                member.rates.pulled(assigned.queue.topic, count, assigned.last_pull, now)
            subscription = member.subscriptions.get(assigned.queue.topic)
            messages = pulled.messages
            if subscription is not None:
                messages = wanted_of(messages, subscription)
            if messages:
                self._submit(assigned, messages)
        if not len(assigned.cache):
            member.note_progress(assigned)
            member.offsets.advance(assigned.queue, pulled.next_offset)

    async def _give_up(self, pulled: PullResult) -> None:
        """Restart at the broker's offset, since the queue does not hold this one."""
        member, queue = self._member, self._assigned.queue
        _moved(queue, self._offset, pulled.next_offset)
        self._assigned.is_dropped = True
        member.offsets.freeze(queue, pulled.next_offset)
        await member.store.write({queue: pulled.next_offset})
        member.rebalance_soon()


# --- pull loop of a pull consumer; the application may seek at any time ---
#
# Source: RocketMQ's ``DefaultLitePullConsumerImpl``. As there, the answer to a pull (21) tells of an administrator's
# reset. The notice (220) is ignored: ``MQClientInstance#resetOffset`` is for push consumers. Messages that were pulled
# and not yet polled come once then; RocketMQ delivers them twice.


PULL_MESSAGES: Final = 10
SUSPEND_MS: Final = 20_000
NO_START_SECONDS: Final = 3.0


class PollPuller:
    """Pull loop of one queue for a pull consumer.

    ``position`` is the next offset to poll; later messages are in the cache. ``went_back`` is called when the broker
    continues at an offset before the pulled one.
    """

    def __init__(
        self,
        member: Member,
        assigned: AssignedQueue,
        arrived: Callable[[PollPuller, list[Message]], None],
        has_room: Callable[[], bool],
        went_back: Callable[[Queue, int], None],
        position: int = NONE_STORED,
    ) -> None:
        self.assigned = assigned
        self.position: int = position
        self.is_paused = False
        self._member = member
        self._arrived = arrived
        self._has_room = has_room
        self._went_back = went_back
        self._broker_id = MASTER_ID

    async def run(self) -> None:
        """Pull until the queue is dropped."""
        offset = await self._begin()
        assigned = self.assigned
        while not assigned.is_dropped:
            assigned.last_pull = asyncio.get_running_loop().time()
            if self.is_paused or self._member.is_paused:
                await asyncio.sleep(PAUSED_SECONDS)
            elif self._is_full():
                await assigned.room(FULL_SECONDS)
            else:
                offset = await self._pull(offset)

    async def _begin(self) -> int:
        while self.position < 0:
            try:
                self.position = await self._member.start_offset(self.assigned.queue)
            except (OSError, FirearrowError) as error:
                fields = {**self.assigned.queue.fields, "error": error}
                log.warning("first offset is not known", extra=fields)
                await asyncio.sleep(NO_START_SECONDS)
        return self.position

    def _is_full(self) -> bool:
        cache, limits = self.assigned.cache, self._member.settings.limits
        return cache.excess(limits) is not None or not self._has_room()

    async def _pull(self, offset: int) -> int:
        """Pull once; returns the next offset."""
        queue = self.assigned.queue
        subscription = self._subscription()
        try:
            pulled = await self._member.calls.pull(
                queue,
                offset,
                subscription,
                count=PULL_MESSAGES,
                broker_id=self._broker_id,
                suspend_ms=SUSPEND_MS,
                with_subscription=True,
                lite=True,
            )
        except (OSError, FirearrowError) as error:
            _not_pulled(self._member, queue, error)
            self._broker_id = MASTER_ID
            await asyncio.sleep(FAILED_SECONDS)
            return offset
        self._broker_id = pulled.suggested_id
        self._take(offset, pulled, subscription)
        return pulled.next_offset

    def _subscription(self) -> SubscriptionData:
        """Filter for the topic; without one, all messages."""
        topic = self.assigned.queue.topic
        return self._member.subscriptions.get(topic) or subscription_to(topic, 0)

    def _take(self, offset: int, pulled: PullResult, subscription: SubscriptionData) -> None:
        assigned = self.assigned
        if assigned.is_dropped:
            return
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            _moved(assigned.queue, offset, pulled.next_offset)
            if pulled.next_offset < offset:  # an administrator has reset it, or the queue has lost its end
                self._went_back(assigned.queue, pulled.next_offset)
                return
        fresh = assigned.cache.put(wanted_of(pulled.messages, subscription))
        if fresh:
            self._arrived(self, fresh)
        elif not len(assigned.cache):
            self.position = pulled.next_offset


# --- log lines ---


def _not_pulled(member: Member, queue: Queue, error: Exception) -> None:
    log.warning(
        "queue can't be pulled",
        sentence=f"group {member.group!r} can't pull {queue.words}: {error}",
        extra={**queue.fields, "error": error},
    )


def _moved(queue: Queue, offset: int, next_offset: int) -> None:
    log.warning(
        "queue continues at another offset",
        sentence=f"{queue.words} continues at offset {next_offset}, since it does not hold {offset}",
        extra={**queue.fields, "offset": offset, "next_offset": next_offset},
    )
