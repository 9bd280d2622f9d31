"""Consume the messages of each queue in order, one call of the handler after another.

A lock of the queue at its broker keeps other clients of the group away (41). The client renews it every 20 s, and does
not consume without it. A failed message blocks its queue until it is consumed or has used up its retries.

Source: RocketMQ's ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from firearrow.client.consumer.handlers import Delivery, Failure, HandlerRegistration, Rollback
from firearrow.client.consumer.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError
from firearrow.logs import Log

log: Final = Log(__name__)

LOCK_EVERY_SECONDS: Final = 20.0
LOCK_FIRST_SECONDS: Final = 1.0
LOCK_AGAIN_SECONDS: Final = 3.0
LOCK_SOON_SECONDS: Final = 0.1
SUSPEND_SECONDS_MIN: Final = 0.01
SUSPEND_SECONDS_MAX: Final = 30.0


class OrderedSource:
    """Messages of one handler call, which the application acknowledges itself."""

    keeps_order = True

    def __init__(self, assigned: AssignedQueue) -> None:
        self._assigned = assigned
        self.failure: Failure | None = None
        self.has_returned = False

    def may_begin(self, _: Message) -> bool:
        """Tell whether a message must still be consumed."""
        return not self._assigned.is_dropped

    def done(self, _: Sequence[Message]) -> None:
        """Commit all taken messages."""
        if not self._assigned.is_dropped:
            self._assigned.cache.commit()
            self._assigned.made_room()

    async def failed(self, _: Sequence[Message], failure: Failure) -> None:
        """Put the taken messages back for redelivery. If the call is late, later messages may be consumed, so all are
        redelivered."""
        if self._assigned.is_dropped:
            return
        self.failure = failure
        if self.has_returned:
            self._assigned.cache.roll_back()
            self._assigned.arrived.set()


class InOrder:
    """Consumption in order of a member's queues."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._free: dict[str, asyncio.Semaphore] = {
            topic: asyncio.Semaphore(registration.concurrency) for topic, registration in member.registrations.items()
        }

    @staticmethod
    def submit(assigned: AssignedQueue, messages: list[Message]) -> None:
        """Add messages to the end of a queue."""
        assigned.cache.put_in_order(messages)
        assigned.arrived.set()

    async def consume(self, assigned: AssignedQueue) -> None:
        """Consume a queue until it is dropped."""
        member = self._member
        while not assigned.is_dropped:
            if not assigned.cache.waiting:
                assigned.arrived.clear()
                await assigned.arrived.wait()
            elif member.is_clustering and not assigned.is_locked:
                await self._lock_again(assigned)
            else:
                await self._consume_next(assigned)

    async def _consume_next(self, assigned: AssignedQueue) -> None:
        suspended = None
        registration = self._next_registration(assigned)
        if registration is None:
            assigned.cache.commit()
            return
        async with self._free[registration.subscription.topic], assigned.consuming:
            if self._may_consume(assigned):
                messages = self._take(assigned, registration)
                failure = await self._handle(registration, assigned, messages)
                suspended = await self._settle(assigned, registration, messages, failure)
        if suspended is not None:
            await asyncio.sleep(min(max(suspended, SUSPEND_SECONDS_MIN), SUSPEND_SECONDS_MAX))

    def _may_consume(self, assigned: AssignedQueue) -> bool:
        """Tell whether the queue still belongs to this client; the wait before may have been long."""
        return not assigned.is_dropped and (not self._member.is_clustering or assigned.is_locked)

    async def _settle(
        self,
        assigned: AssignedQueue,
        registration: HandlerRegistration,
        messages: list[Message],
        failure: Failure | None,
    ) -> float | None:
        """Apply the result of a handler call; returns the seconds that the queue must wait, or None."""
        suspend = self._member.settings.suspend
        left = assigned.cache.taken_of(messages)  # not acknowledged by the handler
        if failure is not None and isinstance(failure.error, Rollback):
            assigned.cache.roll_back()
            return suspend if failure.seconds is None else failure.seconds
        if failure is not None and left and not await self._are_given_up(left):
            assigned.cache.put_back(assigned.cache.taken_of(left))
            return suspend if failure.seconds is None else failure.seconds
        if failure is not None or not registration.manual:
            assigned.cache.commit()
            assigned.made_room()
        return None

    def _next_registration(self, assigned: AssignedQueue) -> HandlerRegistration | None:
        """Registration of the next message; messages without a subscription are skipped."""
        first = assigned.cache.first_waiting
        registration = self._registration_of(first)
        if registration is None:
            assigned.cache.take(1)
            fields = {**first.queue.fields, "message_id": first.message_id}
            log.warning("message has no handler", extra=fields)
        return registration

    def _registration_of(self, message: Message) -> HandlerRegistration | None:
        session = self._member.calls.session
        return self._member.registrations.get(session.topic(message.topic))

    def _take(self, assigned: AssignedQueue, registration: HandlerRegistration) -> list[Message]:
        taken = assigned.cache.take(max(registration.batch, 1))
        topic = taken[0].topic
        same = next((at for at, it in enumerate(taken) if it.topic != topic), len(taken))
        assigned.cache.put_back(taken[same:])  # a retry topic has messages of all topics
        return taken[:same]

    async def _handle(
        self, registration: HandlerRegistration, assigned: AssignedQueue, messages: list[Message]
    ) -> Failure | None:
        if not registration.manual:
            return await registration.handle(messages)
        source = OrderedSource(assigned)
        failure = await registration.handle([Delivery.of(one, source) for one in messages])
        source.has_returned = True
        return failure or source.failure

    async def _are_given_up(self, messages: Sequence[Message]) -> bool:
        """Count a failure; returns whether all messages have used up their retries and are given up."""
        member = self._member
        gone = 0
        for message in messages:
            if message.reconsume_times >= member.reconsume_times_max:
                gone += await self._is_sent_away(message)
            else:
                message.reconsume_times += 1
        return gone == len(messages)

    async def _is_sent_away(self, message: Message) -> bool:
        member = self._member
        try:
            await member.calls.send_retry_copy(message, member.reconsume_times_max)
        except (OSError, FirearrowError) as error:
            fields = {**message.queue.fields, "message_id": message.message_id, "error": error}
            log.warning("message can't be given up", extra=fields)
            message.reconsume_times += 1
            return False
        return True

    # --- locks ---

    async def _lock_again(self, assigned: AssignedQueue) -> None:
        await asyncio.sleep(LOCK_SOON_SECONDS)
        if not assigned.is_dropped and not await self.lock(assigned):
            await asyncio.sleep(LOCK_AGAIN_SECONDS)

    async def lock(self, assigned: AssignedQueue) -> bool:
        """Lock a queue; returns whether this client holds the lock now."""
        await self._lock([assigned])
        return assigned.is_locked

    async def lock_all(self) -> None:
        """Lock all queues, and renew the held locks."""
        by_broker: dict[str, list[AssignedQueue]] = defaultdict(list)
        for assigned in self._member.queues.values():
            by_broker[assigned.queue.broker].append(assigned)
        for some in by_broker.values():
            await self._lock(some)

    async def _lock(self, some: list[AssignedQueue]) -> None:
        try:
            held = await self._member.calls.lock([assigned.queue for assigned in some])
        except (OSError, FirearrowError) as error:
            fields = {**some[0].queue.fields, "queues": len(some), "error": error}
            log.warning("queues can't be locked", extra=fields)
            return
        for assigned in some:
            assigned.locked(ok=assigned.queue in held)

    async def unlock(self, queues: Iterable[Queue]) -> None:
        """Unlock queues for other clients."""
        by_broker: dict[str, list[Queue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker].append(queue)
        for broker, some in by_broker.items():
            try:
                await self._member.calls.unlock(some)
            except (OSError, FirearrowError) as error:
                log.warning("queues stay locked", extra={"broker_name": broker, "error": error})
