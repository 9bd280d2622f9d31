"""A consumer that hands messages to functions of the application as they come.

::

    consumer = PushConsumer("127.0.0.1:9876", group="billing")

    @consumer.on("orders", tags="paid || refunded", concurrency=64)
    async def bill(message: Message) -> None: ...  # raise: retried; return: done

    await consumer.run()

The members of a group share the queues of its topics, and each message goes to one of them; with
``broadcasting`` each client gets all. A queue that changes hands, or a client that ends before its
offsets are committed, makes some messages come twice: see `firearrow.client.idempotence`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeVar, Unpack

from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.handlers import CONCURRENCY, Handler, Registration
from firearrow.client.consumer.lifecycle import ConsumerLife
from firearrow.client.consumer.member import AssignedQueue, ConsumerSettings, Member
from firearrow.client.consumer.offsets import (
    PERSIST_FIRST_SECONDS,
    PERSIST_SECONDS,
    BrokerOffsets,
    FileOffsets,
    LocalOffsets,
    OffsetStore,
    default_directory,
)
from firearrow.client.consumer.processqueue import Limits
from firearrow.client.consumer.rates import ConsumeRates
from firearrow.client.consumer.rebalance import Rebalancer
from firearrow.client.consumer.requests import ConsumerRequests
from firearrow.client.consumer.subscription import StartFrom, subscription_to, to_start
from firearrow.client.push.assignment import Assignment
from firearrow.client.session.session import Session, SessionOptions
from firearrow.client.tracing.tracer import ConsumeTrace, Tracer
from firearrow.clock import HOUR_MS
from firearrow.errors import BrokerError, ClientError, ConfigError, NotPermitted, TopicNotFound
from firearrow.message.names import TRACE_TOPIC
from firearrow.net.tasks import Tasks
from firearrow.wire import fastjson
from firearrow.wire.allocation import AVG, Strategy
from firearrow.wire.client_bodies import (
    BROADCASTING,
    CLUSTERING,
    POP,
    SUBSCRIBE_ALL,
    ConsumerData,
    RequestMode,
    is_by_tags,
)
from firearrow.wire.codes import RequestCode

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)

INSTANCE: Final = "DEFAULT"  # of broadcasting clients, whose file is found again by it
INVISIBLE_SECONDS: Final = (5.0, 300.0)

Mode = Literal["pull", "pop", "broker"]
"""How messages are got: pulled; popped; or as the broker was told by an administrator."""


class PushConsumer(ConsumerLife):
    """A member of a consumer group.

    ``cluster`` is where the name servers are, or a `Session` that others use as well; without one
    it has its own, which takes all further arguments (``credentials``, ``tls`` and so on).

    ``ordered`` consumes each queue in its order. ``start`` is where a group without offsets begins:
    behind what is there, unless it is a `StartFrom` or a time. ``max_reconsume_times`` is how often
    a message may fail until it goes to the dead letters (16; in order, for ever). ``limits`` are
    those of what is pulled ahead of a queue, ``topic_limits`` of all queues of a topic. ``drain``
    is for how long handlers may go on at the end, in seconds, as are all times here. ``trace``
    (True, or the name of a topic) writes RocketMQ's message trace.
    """

    def __init__(
        self,
        cluster: Session | str | Sequence[str] | None = None,
        *,
        group: str,
        ordered: bool = False,
        broadcasting: bool = False,
        mode: Mode = "pull",
        start: StartFrom | datetime | None = None,
        strategy: Strategy = AVG,
        limits: Limits | None = None,
        topic_limits: Limits | None = None,
        max_reconsume_times: int | None = None,
        consume_timeout: float = 900.0,
        suspend: float = 1.0,
        invisible: float = 60.0,
        drain: float = 30.0,
        offsets_directory: Path | None = None,
        trace: bool | str = False,
        **session: Unpack[SessionOptions],
    ) -> None:
        if mode != "pull" and (ordered or broadcasting):
            raise ConfigError(f"group {group!r}: mode {mode!r} is neither ordered nor broadcasting")
        if not INVISIBLE_SECONDS[0] <= invisible <= INVISIBLE_SECONDS[1]:
            raise ConfigError(f"group {group!r}: messages can't be invisible for {invisible:g} s")
        if broadcasting and not isinstance(cluster, Session):
            session.setdefault("instance", INSTANCE)
        super().__init__(Session.of(cluster, **session))
        start_from, start_at_ms = to_start(start)
        if start_at_ms is None:
            start_at_ms = self.session.clock.now_ms() - HOUR_MS // 2
        settings = ConsumerSettings(
            start_from=start_from,
            start_at_ms=start_at_ms,
            limits=limits or Limits(),
            topic_limits=topic_limits,
            reconsume_times_max=max_reconsume_times,
            consume_timeout=consume_timeout,
            suspend=suspend,
            invisible=invisible,
            drain=drain,
        )
        calls = GroupCalls(self.session, self.session.group(group))
        store: OffsetStore = BrokerOffsets(calls)
        if broadcasting:
            directory = offsets_directory or default_directory()
            store = FileOffsets(LocalOffsets(directory, self.session.client_id, calls.group))
        self.member = Member(calls, settings, store, not broadcasting, ordered)
        self.started_ms = 0
        self._mode = mode
        self._strategy = strategy
        self._trace_topic = trace if isinstance(trace, str) else TRACE_TOPIC if trace else None
        self._tracer: Tracer | None = None
        self._tasks = Tasks()
        self._ending = asyncio.Event()
        self._assignment: Assignment
        self._rebalancing: Rebalancer

    @property
    def group(self) -> str:
        """The group, as brokers call it."""
        return self.member.group

    # --- what is wanted ---

    def on(
        self,
        topic: str,
        *,
        tags: str | Iterable[str] = SUBSCRIBE_ALL,
        sql: str = "",
        concurrency: int = CONCURRENCY,
        batch: int = 0,
        manual: bool = False,
    ) -> Callable[[H], H]:
        """Have the decorated function get the messages of a topic; see ``subscribe``."""

        def decorate(handler: H) -> H:
            self.subscribe(topic, handler, tags=tags, sql=sql, concurrency=concurrency, batch=batch, manual=manual)
            return handler

        return decorate

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str | Iterable[str] = SUBSCRIBE_ALL,
        sql: str = "",
        concurrency: int = CONCURRENCY,
        batch: int = 0,
        manual: bool = False,
    ) -> None:
        """Have a function get the messages of a topic, before the consumer is started.

        A coroutine function runs on the loop, a plain one in threads; at most ``concurrency`` calls
        are under way. Returning means that the message is consumed, raising that it is to come
        again (`RetryLater` says when). With ``batch`` it gets lists of at most so many messages.
        With ``manual`` it gets a `Delivery`, whose ``ack`` ends it. ``tags`` is ``A || B``, ``sql``
        an expression by SQL92. Raises ConfigError.
        """
        name = self.session.topic(topic)
        if self._state != "new":
            raise ClientError(f"group {self.group!r} is {self._state}: topics come before that")
        if name in self.member.registrations:
            raise ConfigError(f"group {self.group!r} has a handler for topic {topic!r} already")
        now_ms = self.session.clock.now_ms()
        subscription = subscription_to(name, now_ms, tags=tags, sql=sql)
        self.member.registrations[name] = Registration(subscription, handler, concurrency, batch, manual=manual)
        self.member.subscriptions[name] = subscription

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""
        member = self.member
        return ConsumerData(
            member.group,
            "CONSUME_PASSIVELY",
            CLUSTERING if member.is_clustering else BROADCASTING,
            member.settings.start_from.value,
            list(member.subscriptions.values()),
        )

    # --- its life ---

    async def run(self) -> None:
        """Start unless that is done, and consume until the task is cancelled or ``stop`` called."""
        if self._state == "new":
            await self.start()
        try:
            await self._ending.wait()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Begin; returns once the brokers know of it, and raises if that can't be.

        Raises NotPermitted where its user may not consume, ConfigError for an expression that a
        broker refuses.
        """
        if self._state == "new" and not self.member.registrations:
            raise ConfigError(f"group {self.group!r} has no handler for any topic")
        await super().start()

    async def _begin(self) -> None:
        member = self.member
        self.started_ms = self.session.clock.now_ms()
        if member.is_clustering:
            retry = member.own_retry_topic
            member.subscriptions[retry] = subscription_to(retry, self.started_ms)
        self._assignment = Assignment(member, self._tasks)
        self._rebalancing = Rebalancer(member, self._strategy, self._assignment.update, by_broker=self._mode != "pull")
        member.rebalance_soon = self._rebalancing.soon
        self._begin_trace()
        self._begin_rates()
        self.session.add_consumer(self)
        ConsumerRequests(self).register()
        for topic in member.registrations:
            await self._look_up(topic)
        await self.session.heartbeat(must_be_permitted=True)
        if self._mode == "pop":
            await self._ask_for_pop()
        self.session.on_connected(lambda _: self.divide_soon())
        self._tasks.start(self._rebalancing.run(), f"queues of {self.group}")
        self._tasks.every(
            PERSIST_SECONDS, member.persist_changed, f"offsets of {self.group}", first_seconds=PERSIST_FIRST_SECONDS
        )
        self._assignment.start()

    def _begin_trace(self) -> None:
        if self._trace_topic is not None:
            self._tracer = Tracer(self.session, self.group, "CONSUME", self._trace_topic)
            trace = ConsumeTrace(self.session, self.group, self._tracer.add)
            for registration in self.member.registrations.values():
                registration.trace = trace

    def _begin_rates(self) -> None:
        self.member.rates = rates = ConsumeRates(asyncio.get_running_loop().time())
        for registration in self.member.registrations.values():
            registration.rates = rates

    async def _look_up(self, topic: str) -> None:
        """Get the route of a topic, if it has one by now, and have its expression checked."""
        try:
            await self.session.refresh(topic)
        except TopicNotFound:
            log.warning("topic has no route yet", extra={"topic": topic, "group": self.group})
            return
        subscription = self.member.subscriptions[topic]
        if is_by_tags(subscription.expression_type):
            return
        try:
            await self.member.calls.check(subscription)
        except NotPermitted:
            raise
        except BrokerError as error:
            raise ConfigError(f"topic {topic!r}: the broker refuses {subscription.sub_string!r}: {error}") from error

    async def _ask_for_pop(self) -> None:
        """401: have the brokers know that the group pops."""
        for topic in self.member.registrations:
            route = self.session.routes.known(topic)
            mode = RequestMode(self.group, POP, 0, topic)
            for broker in route.broker_datas if route is not None else ():
                await self.session.call(
                    broker.broker_name, RequestCode.SET_MESSAGE_REQUEST_MODE, body=fastjson.dumps(mode)
                )

    async def stop(self) -> None:
        """End: handlers that are at work may go on for ``drain`` seconds, then what is consumed is
        committed, and the brokers hear of the leave. Does no harm when it has ended."""
        await super().stop()

    async def _end(self) -> None:
        self._ending.set()
        if hasattr(self, "_assignment"):
            await self._assignment.end()
        await self._tasks.close()
        for registration in self.member.registrations.values():
            registration.close()
        if self._tracer is not None:
            await self._tracer.close()

    # --- while it runs ---

    def pause(self) -> None:
        """Get no more messages; those that are here are consumed."""
        self.member.is_paused = True

    def resume(self) -> None:
        """Get messages again."""
        self.member.is_paused = False

    def divide_soon(self) -> None:
        """Divide the queues anew."""
        self.member.rebalance_soon()

    async def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Have a queue go on at an offset, which may be before where it is."""
        await self._assignment.reset(assigned, queue_offset)

    @property
    def queues(self) -> dict[str, list[tuple[str, int]]]:
        """The queues that are its own now: broker and queue id, by topic."""
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for queue in sorted(self.member.queues):
            found[self.session.bare(queue.topic)].append((queue.broker, queue.queue_id))
        return dict(found)
