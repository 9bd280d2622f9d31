"""Pulls one queue for who polls; the application may have it go on elsewhere at any time.

Source: upstream ``DefaultLitePullConsumerImpl``. As there, an administrator's reset is told by the
answer to a pull (21), and the notice of it (220) is not heeded: ``MQClientInstance#resetOffset`` is
for push consumers. What was pulled and not yet polled comes once then; upstream gives it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from firearrow.client.groupcalls import Pulled
from firearrow.client.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.pushpuller import FAILED_SECONDS, FULL_SECONDS, PAUSED_SECONDS
from firearrow.client.queues import Queue
from firearrow.client.routequeues import MASTER
from firearrow.client.startoffset import NONE_STORED
from firearrow.client.subscription import subscription_to, wanted_of
from firearrow.errors import FirearrowError
from firearrow.wire.client_bodies import SubscriptionData
from firearrow.wire.codes import ResponseCode

log = logging.getLogger(__name__)

PULL_MESSAGES: Final = 10
SUSPEND_MS: Final = 20_000
NO_START_SECONDS: Final = 3.0


class PollPuller:
    """The pulls of one queue.

    ``position`` is what is polled next; messages behind it are in the cache. ``went_back`` hears
    where the broker has the queue go on that is before what was pulled.
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
        self.position = position
        self.is_paused = False
        self._member = member
        self._arrived = arrived
        self._has_room = has_room
        self._went_back = went_back
        self._broker_id = MASTER

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
                log.warning("it is not known where to begin", extra=fields)
                await asyncio.sleep(NO_START_SECONDS)
        return self.position

    def _is_full(self) -> bool:
        cache, limits = self.assigned.cache, self._member.settings.limits
        return cache.excess(limits) is not None or not self._has_room()

    async def _pull(self, offset: int) -> int:
        """Pull once; gives where to go on."""
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
            log.warning("queue can't be pulled", extra={**queue.fields, "error": error})
            self._broker_id = MASTER
            await asyncio.sleep(FAILED_SECONDS)
            return offset
        self._broker_id = pulled.suggested_id
        self._take(offset, pulled, subscription)
        return pulled.next_offset

    def _subscription(self) -> SubscriptionData:
        """Give the filter for the topic; an application that assigns queues without a filter gets all messages."""
        topic = self.assigned.queue.topic
        return self._member.subscriptions.get(topic) or subscription_to(topic, 0)

    def _take(self, offset: int, pulled: Pulled, subscription: SubscriptionData) -> None:
        assigned = self.assigned
        if assigned.is_dropped:
            return
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            fields = {**assigned.queue.fields, "offset": offset, "next_offset": pulled.next_offset}
            log.warning("queue goes on elsewhere", extra=fields)
            if pulled.next_offset < offset:  # an administrator has reset it, or its end is lost
                self._went_back(assigned.queue, pulled.next_offset)
                return
        fresh = assigned.cache.put(wanted_of(pulled.messages, subscription))
        if fresh:
            self._arrived(self, fresh)
        elif not len(assigned.cache):
            self.position = pulled.next_offset
