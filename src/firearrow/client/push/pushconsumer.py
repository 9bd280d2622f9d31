"""Consume messages by functions of the application, as messages arrive.

::

    consumer = PushConsumer("127.0.0.1:9876", group="billing")

    @consumer.on("orders", tags="paid || refunded", concurrency=64)
    async def bill(message: Message) -> None: ...  # raise: retried; return: done

    await consumer.run()

The members of a group share the queues of its topics, so each message goes to one of them. With ``broadcasting`` each
client gets all messages. Some messages are delivered twice when a queue moves to another client, or when a client ends
before it commits: see `firearrow.client.idempotence`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from firearrow.client.arguments import Duration, seconds_of, texts_of
from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.handlers import CONCURRENCY, Handler, HandlerRegistration
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
from firearrow.client.consumer.stopsignals import stopped_by_signals
from firearrow.client.consumer.subscribing import Subscribing
from firearrow.client.consumer.subscription import StartFrom, subscription_to, to_start
from firearrow.client.push.assignment import Assignment
from firearrow.client.session.session import Session, SessionOptions
from firearrow.client.tracing.tracer import ConsumeTrace, Tracer
from firearrow.clock import HOUR_MS
from firearrow.errors import BrokerError, ClientError, ConfigError, NotPermitted, TopicNotFound
from firearrow.logs import Log
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

log: Final = Log(__name__)

INSTANCE: Final = "DEFAULT"  # of broadcasting clients, which find their file again by it
INVISIBLE_SECONDS: Final = (5.0, 300.0)

Mode = Literal["pull", "pop", "broker"]
"""Way of receiving: pull, pop, or the broker's setting by an administrator."""


class PushConsumer(Subscribing, ConsumerLife):
    """Member of a consumer group.

    ``cluster`` is the address of the name servers, or a `Session` to share. Without a session, the consumer creates one
    from the further arguments (``credentials``, ``tls`` and so on).

    ``ordered`` consumes each queue in order. ``start`` is the first offset of a group without offsets: by default the
    first message, otherwise another `StartFrom` or a time. ``max_reconsume_times`` is the number of retries before a
    message becomes a dead letter (16; in order, unlimited). ``limits`` bound the cache of each queue, ``topic_limits``
    that of all queues of a topic. ``drain`` is the time for running handlers at the end. All times are seconds, or a
    ``timedelta``.
    ``trace`` (True, or the name of a topic) writes RocketMQ's message trace.
    """

    def __init__(
        self,
        cluster: Session | str | Sequence[str] | None = None,
        *,
        group: str,
        ordered: bool = False,
        broadcasting: bool = False,
        mode: Mode = "pull",
        start: StartFrom | datetime = StartFrom.FIRST,
        strategy: Strategy = AVG,
        limits: Limits | None = None,
        topic_limits: Limits | None = None,
        max_reconsume_times: int | None = None,
        consume_timeout: Duration = 900.0,
        suspend: Duration = 1.0,
        invisible: Duration = 60.0,
        drain: Duration = 30.0,
        offsets_directory: Path | None = None,
        trace: bool | str = False,
        **session: Unpack[SessionOptions],
    ) -> None:
        if mode != "pull" and (ordered or broadcasting):
            raise ConfigError(f"group {group!r}: mode {mode!r} is neither ordered nor broadcasting")
        least, most = INVISIBLE_SECONDS
        invisible_seconds = seconds_of(invisible, "invisible")
        if not least <= invisible_seconds <= most:
            raise ConfigError(f"group {group!r}: invisible={invisible_seconds:g} s: allowed is {least:g} to {most:g} s")
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
            consume_timeout=seconds_of(consume_timeout, "consume_timeout"),
            suspend=seconds_of(suspend, "suspend"),
            invisible=invisible_seconds,
            drain=seconds_of(drain, "drain"),
        )
        calls = GroupCalls(self.session, self.session.group(group))
        store: OffsetStore = BrokerOffsets(calls)
        if broadcasting:
            directory = offsets_directory or default_directory()
            store = FileOffsets(LocalOffsets(directory, self.session.client_id, calls.group))
        self.member: Member = Member(calls, settings, store, not broadcasting, ordered)
        self.started_ms: int = 0
        self._mode = mode
        self._strategy = strategy
        self._trace_topic = trace if isinstance(trace, str) else TRACE_TOPIC if trace else None
        self._tracer: Tracer | None = None
        self._tasks = Tasks()
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._assignment: Assignment
        self._rebalancing: Rebalancer

    @property
    def group(self) -> str:
        """Group as brokers call it."""
        return self.member.group

    # --- subscriptions ---

    def _subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        kind: Any,
        batch: int,
        manual: bool,
        tags: str | Iterable[str] = SUBSCRIBE_ALL,
        sql: str = "",
        concurrency: int = CONCURRENCY,
    ) -> None:
        texts_of([topic], "topic")
        name = self.session.topic(topic)
        if self._state != "new":
            raise ClientError(f"group {self.group!r} is {self._state}: subscribe before the start")
        if name in self.member.registrations:
            raise ConfigError(f"group {self.group!r} has a handler for topic {topic!r} already")
        subscription = subscription_to(name, self.session.clock.now_ms(), tags=tags, sql=sql)
        self.member.registrations[name] = HandlerRegistration(
            subscription, handler, concurrency, batch, manual=manual, kind=kind
        )
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

    # --- life ---

    async def run(self, *, signals: bool = True) -> None:
        """Start unless started already, consume until ``stop`` is called, SIGTERM or SIGINT arrives, or the task is
        cancelled; then close.

        In the main thread it takes both signals from the program until it returns: the first one stops all consumers
        that run, a second one ends the process at once. In another thread, and with ``signals=False``, it takes none.
        """
        self._loop = asyncio.get_running_loop()
        with stopped_by_signals(self.stop, wanted=signals):
            try:
                if self._state != "running":
                    await self.start()
                await self._ending.wait()
            finally:
                self._loop = None
                await self.close()

    def stop(self) -> None:
        """Make ``run`` close the consumer and return; without ``run``, use ``close``.

        Any thread may call it, also a handler.
        """
        loop = self._loop
        if loop is None:
            self._ending.set()
        else:
            loop.call_soon_threadsafe(self._ending.set)

    async def start(self) -> None:
        """Start; when this returns, the brokers know the consumer.

        Raises NotPermitted if its user may not consume, ConfigError for an expression that a broker refuses.
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
        """Look up the route of a topic, if it has one now, and check the expression at a broker."""
        try:
            await self.session.refresh(topic)
        except TopicNotFound:
            log.warning(
                "topic has no route yet",
                sentence=(
                    f"group {self.group!r} consumes nothing of topic {topic!r} until a broker has it: no broker of "
                    f"name servers {', '.join(self.session.name_servers.addresses)} has it now"
                ),
                extra={"topic": topic, "group": self.group},
            )
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
        """Tell the brokers that the group pops (401)."""
        for topic in self.member.registrations:
            route = self.session.routes.known(topic)
            mode = RequestMode(self.group, POP, 0, topic)
            for broker in route.broker_datas if route is not None else ():
                await self.session.call(
                    broker.broker_name, RequestCode.SET_MESSAGE_REQUEST_MODE, body=fastjson.dumps(mode)
                )

    async def close(self) -> None:
        """Close: running handlers may go on for ``drain`` seconds; then commit and unregister. A second call only waits
        for the first."""
        await super().close()

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
        """Stop receiving; handlers still consume the cached messages."""
        self.member.is_paused = True

    def resume(self) -> None:
        """Receive again."""
        self.member.is_paused = False

    def divide_soon(self) -> None:
        """Rebalance soon."""
        self.member.rebalance_soon()

    async def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Continue a queue at an offset, which may be an earlier one."""
        await self._assignment.reset(assigned, queue_offset)

    @property
    def queues(self) -> dict[str, list[tuple[str, int]]]:
        """Queues of this consumer now: broker and queue id, by topic."""
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for queue in sorted(self.member.queues):
            found[self.session.bare(queue.topic)].append((queue.broker, queue.queue_id))
        return dict(found)
