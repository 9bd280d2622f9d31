"""Queues that a push consumer has now, with the tasks that start and end with each.

A new queue gets a task that pulls it (`pullloop`) or pops it (`poploop`), and in order a task that consumes it
(`inorder`). In any order, the workers of a topic consume the messages of all its queues. A queue that goes is dropped
at once, and the results of its running handlers are ignored. In order, its handlers end before another client may have
it.

Source: RocketMQ's ``RebalancePushImpl``, ``RebalanceImpl#updateProcessQueueTableInRebalance``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from firearrow.client.consumer.handlers import Source
from firearrow.client.consumer.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.pop.popcalls import PopCalls
from firearrow.client.pop.poploop import PopQueue
from firearrow.client.pull.pullloop import PushPuller
from firearrow.client.push.anyorder import QueueSource, Workers
from firearrow.client.push.inorder import LOCK_EVERY_SECONDS, LOCK_FIRST_SECONDS, InOrder
from firearrow.client.queues import Queue
from firearrow.logs import Log
from firearrow.message.names import is_retry
from firearrow.net.tasks import RunningTask, Tasks

log: Final = Log(__name__)

SILENT_SECONDS_MAX: Final = 120.0  # after which a queue without pulls starts again
CONSUMING_SECONDS_MAX: Final = 0.5  # for a handler in order, before this client keeps its queue for now
RESET_SECONDS_MAX: Final = 10.0  # for handlers of a reset queue
LOOK_SECONDS: Final = 60.0  # between looks for handlers that do not end; Java: 15 minutes


class Assignment:
    """Queues of a member."""

    def __init__(self, member: Member, tasks: Tasks) -> None:
        self._member = member
        self._tasks = tasks
        self._in_order = InOrder(member) if member.is_ordered else None
        self._workers = {
            topic: Workers(registration, tasks)
            for topic, registration in member.registrations.items()
            if not member.is_ordered
        }
        self._sources: dict[Queue, QueueSource] = {}
        self._pop_calls = PopCalls(member.calls)
        self._pops: dict[Queue, tuple[PopQueue, RunningTask]] = {}

    def start(self) -> None:
        """Start the periodic tasks."""
        if self._in_order is None:
            self._tasks.every(LOOK_SECONDS, self._end_long_runners, "handlers that do not end")
        elif self._member.is_clustering:
            self._tasks.every(LOCK_EVERY_SECONDS, self._in_order.lock_all, "locks", first_seconds=LOCK_FIRST_SECONDS)

    async def end(self) -> None:
        """Stop consuming, wait for handlers, commit, and give all queues back."""
        member, seconds = self._member, self._member.settings.drain
        for assigned in member.queues.values():
            assigned.tasks[0].cancel()
        for _, task in self._pops.values():
            task.cancel()
        drained = [workers.drain(seconds) for workers in self._workers.values()]
        held = [self._stopped(assigned, seconds) for assigned in member.queues.values()]
        await asyncio.gather(*drained, *held)
        for popped, _ in self._pops.values():
            await popped.acked(seconds)
        await member.persist()
        for assigned in member.queues.values():
            assigned.is_dropped = True
        for popped, _ in self._pops.values():
            popped.is_dropped = True
        if self._in_order is not None and member.is_clustering:
            await self._in_order.unlock(member.queues)
        for workers in self._workers.values():
            await workers.close()
        member.queues.clear()

    async def _stopped(self, assigned: AssignedQueue, seconds: float) -> None:
        """In order: stop the consumption of a queue after its handler has ended."""
        if self._in_order is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await assigned.consuming.acquire()
        except TimeoutError:
            log.warning("handler is cancelled", extra=assigned.queue.fields)
        for task in assigned.tasks:
            await task.stop()

    # --- queues come and go ---

    async def update(self, topic: str, pulled: set[Queue], popped: set[Queue]) -> bool:
        """Set the queues of a topic; returns whether all could be added and dropped."""
        before = self._of(topic)
        all_done = True
        for queue in sorted(before - pulled | self._ended(before)):
            all_done = await self._drop(self._member.queues[queue]) and all_done
        for queue in sorted(pulled - self._of(topic)):
            all_done = await self._add(queue) and all_done
        popped_before = {queue for queue in self._pops if queue.topic == topic}
        for queue in popped_before - popped:
            self._drop_pop(queue)
        for queue in sorted(popped - popped_before):
            self._add_pop(queue)
        if self._of(topic) != before or popped != popped_before:
            await self._tell_brokers(topic)
        return all_done

    def _of(self, topic: str) -> set[Queue]:
        return {queue for queue in self._member.queues if queue.topic == topic}

    def _ended(self, queues: Iterable[Queue]) -> set[Queue]:
        """Queues whose pull task hangs."""
        all_of, since = self._member.queues, asyncio.get_running_loop().time() - SILENT_SECONDS_MAX
        silent = {queue for queue in queues if all_of[queue].last_pull < since}
        for queue in silent:
            log.error("queue was not pulled for too long", extra=queue.fields)
        return silent | {queue for queue in queues if all_of[queue].is_dropped}

    async def _tell_brokers(self, topic: str) -> None:
        """Send a heartbeat with the time of the new assignment as the version of the subscription."""
        member = self._member
        session = member.calls.session
        subscription = member.subscriptions[topic]
        member.subscriptions[topic] = replace(subscription, sub_version=session.clock.now_ms())
        await session.heartbeat()

    async def _add(self, queue: Queue) -> bool:
        member = self._member
        assigned = AssignedQueue(queue)
        if self._in_order is not None and member.is_clustering and not await self._in_order.lock(assigned):
            return False
        member.queues[queue] = assigned
        submit = self._submit if self._in_order is None else self._in_order.submit
        pulling = PushPuller(member, assigned, submit)
        name = f"{queue.topic} {queue.broker}/{queue.queue_id}"
        assigned.tasks.append(self._tasks.start(pulling.run(), f"pulls of {name}"))
        if self._in_order is not None:
            consuming = self._in_order.consume(assigned)
            assigned.tasks.append(self._tasks.start(consuming, f"consumption of {name}"))
        else:
            self._sources[queue] = QueueSource(member, assigned, self._tasks, self._hand_over)
        return True

    async def _drop(self, assigned: AssignedQueue) -> bool:
        """Drop a queue; returns False if a handler in order still runs."""
        if self._in_order is not None:
            try:
                async with asyncio.timeout(CONSUMING_SECONDS_MAX):
                    await assigned.consuming.acquire()
            except TimeoutError:
                return False
        self._member.note_progress(assigned)
        await self._forget(assigned)
        return True

    async def _forget(self, assigned: AssignedQueue) -> None:
        member, queue = self._member, assigned.queue
        assigned.is_dropped = True
        for task in assigned.tasks:
            task.cancel()
        del member.queues[queue]
        self._sources.pop(queue, None)
        await member.store.write(member.offsets.known([queue]))
        member.offsets.forget(queue)
        if self._in_order is not None and member.is_clustering:
            await self._in_order.unlock([queue])

    async def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Continue a queue at an offset after its handlers have ended, or after a timeout."""
        if self._in_order is None:
            assigned.is_dropped = True
        assigned.tasks[0].cancel()
        try:
            async with asyncio.timeout(RESET_SECONDS_MAX):
                if self._in_order is not None:
                    await assigned.consuming.acquire()
                else:
                    await self._idle(assigned)
        except TimeoutError:
            log.warning("handlers go on while a queue is reset", extra=assigned.queue.fields)
        if self._member.queues.get(assigned.queue) is assigned:
            self._member.offsets.set(assigned.queue, queue_offset)
            await self._forget(assigned)

    async def _idle(self, assigned: AssignedQueue) -> None:
        source = self._sources[assigned.queue]
        for workers in self._workers.values():
            await workers.idle(source)

    def _add_pop(self, queue: Queue) -> None:
        member, calls, tasks = self._member, self._pop_calls, self._tasks
        popped = PopQueue(member, calls, queue, tasks, self._hand_over)
        name = f"pops of {queue.topic} {queue.broker}/{queue.queue_id}"
        self._pops[queue] = popped, self._tasks.start(popped.run(), name)

    def _drop_pop(self, queue: Queue) -> None:
        popped, task = self._pops.pop(queue)
        popped.is_dropped = True
        task.cancel()

    # --- messages ---

    def _submit(self, assigned: AssignedQueue, messages: list[Message]) -> None:
        fresh = assigned.cache.put(messages)
        self._hand_over(self._sources[assigned.queue], fresh)

    def _hand_over(self, source: Source, messages: list[Message]) -> None:
        """Pass messages to the workers of their topics."""
        if not messages:
            return
        topic = messages[0].queue.topic  # the broker's name of it
        workers = self._workers.get(topic)
        if workers is not None and not is_retry(topic):
            workers.submit(source, messages)
            return
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            by_topic[self._member.calls.session.topic(message.topic)].append(message)
        for name, some in by_topic.items():
            workers = self._workers.get(name)
            if workers is not None:
                workers.submit(source, some)
            else:
                log.warning("messages have no handler", extra={"topic": name, "messages": len(some)})
                source.done(some)

    async def _end_long_runners(self) -> None:
        """Redeliver messages whose handlers do not end: they block their queues' offsets."""
        now = asyncio.get_running_loop().time()
        for workers in self._workers.values():
            for source, messages, since in workers.running:
                is_late = now - since > self._member.settings.consume_timeout
                if is_late and isinstance(source, QueueSource) and not source.is_dropped:
                    for message in messages:
                        await source.time_out(message)
