"""Poll messages: the application chooses the time, the queues and the offset.

::

    async with PullConsumer("127.0.0.1:9876", group="reports") as consumer:
        await consumer.subscribe("orders")
        while messages := await consumer.poll():
            ...
            await consumer.commit()

With ``subscribe`` the members of the group share the queues. With ``assign`` a consumer reads the given queues, even if
others read them, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

from firearrow.client.arguments import Duration, seconds_of
from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.lifecycle import ConsumerLife
from firearrow.client.consumer.member import AssignedQueue, ConsumerSettings, Member
from firearrow.client.consumer.offsets import PERSIST_FIRST_SECONDS, PERSIST_SECONDS, BrokerOffsets
from firearrow.client.consumer.processqueue import Limits
from firearrow.client.consumer.rebalance import Rebalancer
from firearrow.client.consumer.requests import running_info
from firearrow.client.consumer.subscription import StartFrom, subscription_to, to_start
from firearrow.client.message import Message
from firearrow.client.pull.pullloop import PollPuller
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import subscribe_queues
from firearrow.client.session.session import Session, SessionOptions
from firearrow.clock import HOUR_MS
from firearrow.errors import ClientError, ConfigError
from firearrow.net.client import ServerRequest
from firearrow.net.tasks import Tasks
from firearrow.wire.allocation import AVG, Strategy
from firearrow.wire.client_bodies import CLUSTERING, CONSUME_ACTIVELY, PAUSED, SUBSCRIBE_ALL, ConsumerData
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response

POLL_SECONDS: Final = 5.0
AUTO_COMMIT_SECONDS: Final = 5.0
CACHED_MESSAGES_MAX: Final = 10_000  # of all queues


class PullConsumer(ConsumerLife):
    """Consumer that polls.

    ``cluster`` is the address of the name servers, or a `Session` to share. Without a session, the consumer creates one
    from the further arguments. ``start`` is the first offset of a group without offsets: by default the first message,
    otherwise another `StartFrom` or a time. With ``auto_commit``, a poll commits the messages of earlier polls, every
    5 s. Otherwise only ``commit`` does.
    """

    def __init__(
        self,
        cluster: Session | str | Sequence[str] | None = None,
        *,
        group: str,
        start: StartFrom | datetime = StartFrom.FIRST,
        strategy: Strategy = AVG,
        limits: Limits | None = None,
        auto_commit: bool = True,
        **session: Unpack[SessionOptions],
    ) -> None:
        super().__init__(Session.of(cluster, **session))
        calls = GroupCalls(self.session, self.session.group(group))
        start_from, start_at_ms = to_start(start)
        if start_at_ms is None:
            start_at_ms = self.session.clock.now_ms() - HOUR_MS // 2
        settings = ConsumerSettings(start_from=start_from, start_at_ms=start_at_ms, limits=limits or Limits())
        self.member: Member = Member(calls, settings, BrokerOffsets(calls))
        self._tasks = Tasks()
        self._rebalancing = Rebalancer(self.member, strategy, self._update)
        self._divides = self._assigns = False
        self._auto_commit = auto_commit
        self._committed_at = 0.0
        self._pulls: dict[Queue, PollPuller] = {}
        self._ready: deque[tuple[PollPuller, list[Message]]] = deque()
        self._cached = 0
        self._arrived = asyncio.Event()
        self._started_ms = 0

    @property
    def group(self) -> str:
        """Group as brokers call it."""
        return self.member.group

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""
        subscriptions = list(self.member.subscriptions.values())
        start = self.member.settings.start_from.value
        return ConsumerData(self.group, CONSUME_ACTIVELY, CLUSTERING, start, subscriptions)

    def _running_info(self, asked: ServerRequest) -> Response:
        """Settings, subscriptions and queues of the consumer (307)."""
        pulls = self._pulls.values()
        is_paused = bool(pulls) and all(one.is_paused for one in pulls)
        settings = {"autoCommit": str(self._auto_commit).lower(), PAUSED: str(is_paused).lower()}
        queues = [one.assigned for one in pulls]
        return running_info(self.member, CONSUME_ACTIVELY, self._started_ms, settings, queues, asked)

    # --- life ---

    async def _begin(self) -> None:
        self._committed_at = asyncio.get_running_loop().time()
        self.session.add_consumer(self)
        self._started_ms = self.session.clock.now_ms()
        self.session.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, lambda _: self._rebalancing.soon(), self.group)
        self.session.on(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info, self.group)
        self._tasks.every(
            PERSIST_SECONDS, self._persist_changed, f"offsets of {self.group}", first_seconds=PERSIST_FIRST_SECONDS
        )

    async def _end(self) -> None:
        self._arrived.set()
        try:
            await self._persist()
        finally:
            await self._tasks.close()

    async def _persist(self) -> None:
        await self.member.store.write(self.member.offsets.known(self._pulls))

    async def _persist_changed(self) -> None:
        await self.member.store.write_changed(self.member.offsets.known(self._pulls))

    # --- subscriptions ---

    async def subscribe(self, topic: str, *, tags: str | Iterable[str] = SUBSCRIBE_ALL, sql: str = "") -> None:
        """Subscribe to a topic; the members of the group share its queues."""
        self._check_running()
        if self._pulls and not self._divides:
            raise ConfigError(f"group {self.group!r} has assigned queues: it can't subscribe")
        name = self.session.topic(topic)
        now_ms = self.session.clock.now_ms()
        self.member.subscriptions[name] = subscription_to(name, now_ms, tags=tags, sql=sql)
        await self.session.route(name)
        await self.session.heartbeat(must_be_permitted=True)
        if self._divides:
            self._rebalancing.soon()
        else:
            self._divides = True
            self._tasks.start(self._rebalancing.run(), f"queues of {self.group}")

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        name = self.session.topic(topic)
        if self.member.subscriptions.pop(name, None) is not None:
            await self._update(name, set(), set())

    def assign(self, queues: Iterable[Queue]) -> None:
        """Poll these queues and no others."""
        self._check_running()
        if self._divides:
            raise ConfigError(f"group {self.group!r} has subscribed: it can't assign queues")
        self._assigns = True
        wanted = set(queues)
        for queue in self._pulls.keys() - wanted:
            self._drop(queue)
        for queue in sorted(wanted - self._pulls.keys()):
            self._add(queue)

    async def queues(self, topic: str) -> list[Queue]:
        """Readable queues of a topic. Raises TopicNotFound if no broker has the topic."""
        name = self.session.topic(topic)
        return subscribe_queues(name, await self.session.refresh(name))

    @property
    def assigned(self) -> list[Queue]:
        """Queues that are polled now."""
        return sorted(self._pulls)

    def pause(self, queues: Iterable[Queue]) -> None:
        """Stop receiving from some queues."""
        for queue in queues:
            self._pulls_of(queue).is_paused = True

    def resume(self, queues: Iterable[Queue]) -> None:
        """Receive from some queues again."""
        for queue in queues:
            self._pulls_of(queue).is_paused = False

    # --- messages ---

    async def poll(self, wait: Duration = POLL_SECONDS) -> list[Message]:
        """Next messages, of one queue; empty if none arrives within ``wait`` seconds. Raises ClientError before the
        first `subscribe` or `assign`."""
        self._check_running()
        if not (self._divides or self._assigns):
            raise ClientError(f"group {self.group!r} polls nothing: subscribe to a topic or assign queues first")
        wait_seconds = seconds_of(wait, "wait")
        if self._auto_commit:
            self._commit_now_and_then()
        try:
            async with asyncio.timeout(wait_seconds):
                while not self._ready:
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._check_running()
        except TimeoutError:
            return []
        pulls, messages = self._ready.popleft()
        for message in messages:
            pulls.assigned.cache.finish(message)
        self._cached -= len(messages)
        pulls.position = messages[-1].queue_offset + 1
        pulls.assigned.made_room()
        return messages

    async def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Commit the polled messages, or some offsets; returns when the brokers have them.

        Raises OSError or BrokerError.
        """
        self._check_running()
        wanted = self._polled() if offsets is None else offsets
        for queue, queue_offset in wanted.items():
            self.member.offsets.set(queue, queue_offset)
            await self.member.calls.commit_and_wait(queue, queue_offset)

    def _commit_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._committed_at >= AUTO_COMMIT_SECONDS:
            self._committed_at = now
            for queue, queue_offset in self._polled().items():
                self.member.offsets.advance(queue, queue_offset)

    def _polled(self) -> dict[Queue, int]:
        return {queue: one.position for queue, one in self._pulls.items() if one.position >= 0}

    # --- positions ---

    def position(self, queue: Queue) -> int:
        """Next offset to poll in a queue; -1 if not yet known."""
        return self._pulls_of(queue).position

    async def committed(self, queue: Queue) -> int:
        """Group's committed offset in a queue; -1 without one."""
        return await self.member.calls.committed(queue)

    async def seek(self, queue: Queue, queue_offset: int) -> None:
        """Poll a queue from an offset on. Raises ClientError if the queue does not hold the offset."""
        self._pulls_of(queue)
        first = await self.member.calls.first_offset(queue)
        end = await self.member.calls.end_offset(queue)
        if not first <= queue_offset <= end:
            raise ClientError(
                f"topic {queue.topic!r} on broker {queue.broker!r}: queue {queue.queue_id} has "
                f"offsets {first} to {end}, not {queue_offset}"
            )
        self._go_on(queue, queue_offset)

    async def seek_to_begin(self, *queues: Queue) -> None:
        """Poll queues from their first message on; without arguments, all queues."""
        for queue in queues or self.assigned:
            self._go_on(queue, await self.member.calls.first_offset(queue))

    async def seek_to_end(self, *queues: Queue) -> None:
        """Poll only later messages of queues; without arguments, of all queues."""
        for queue in queues or self.assigned:
            self._go_on(queue, await self.member.calls.end_offset(queue))

    async def seek_to_time(self, at: datetime, *queues: Queue) -> None:
        """Poll messages of queues that were stored at a time or later; without arguments, of all queues."""
        for queue in queues or self.assigned:
            self._go_on(queue, await self.offset_at(queue, at))

    async def offset_at(self, queue: Queue, at: datetime) -> int:
        """Offset of the first message of a queue that was stored at a time or later."""
        return await self.member.calls.offset_at(queue, int(at.timestamp() * 1000))

    def _go_on(self, queue: Queue, queue_offset: int) -> None:
        self._pulls_of(queue)
        self._drop(queue)
        self._add(queue, queue_offset)

    # --- queues ---

    async def _update(self, topic: str, pulled: set[Queue], _: set[Queue]) -> bool:
        """Set the queues of a topic."""
        before = {queue for queue in self._pulls if queue.topic == topic}
        going = before - pulled
        await self.member.store.write(self.member.offsets.known(going))
        for queue in going:
            self._drop(queue)
        for queue in sorted(pulled - before):
            self._add(queue)
        if going or pulled - before:
            await self.session.heartbeat()
        return True

    def _add(self, queue: Queue, position: int = -1) -> None:
        assigned = AssignedQueue(queue)
        pulls = PollPuller(self.member, assigned, self._take, self._has_room, self._go_on, position)
        name = f"pulls of {queue.topic} {queue.broker}/{queue.queue_id}"
        assigned.tasks.append(self._tasks.start(pulls.run(), name))
        self._pulls[queue] = pulls

    def _drop(self, queue: Queue) -> None:
        pulls = self._pulls.pop(queue)
        pulls.assigned.is_dropped = True
        pulls.assigned.tasks[0].cancel()
        self._cached -= len(pulls.assigned.cache)
        self._ready = deque(item for item in self._ready if item[0] is not pulls)
        self.member.offsets.forget(queue)

    def _pulls_of(self, queue: Queue) -> PollPuller:
        self._check_running()
        found = self._pulls.get(queue)
        if found is None:
            raise ClientError(
                f"topic {queue.topic!r} on broker {queue.broker!r}: queue {queue.queue_id} is not "
                f"assigned to this consumer of {self.group!r}"
            )
        return found

    def _take(self, pulls: PollPuller, messages: list[Message]) -> None:
        self._ready.append((pulls, messages))
        self._cached += len(messages)
        self._arrived.set()

    def _has_room(self) -> bool:
        return self._cached <= CACHED_MESSAGES_MAX
