"""Reasons why sends are slow or refused: facts of the brokers and of a topic, and rules on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from firearrow.client.admin import Admin
from firearrow.client.diagnosis.clusterfacts import BrokerFacts, brokers_of
from firearrow.client.diagnosis.findings import Finding, Level, counted
from firearrow.clock import Clock
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.message import names
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.bodies import MASTER_ID, PERM_WRITE, Route

ROUND_TRIPS: Final = 5
FAR_MS: Final = 20.0  # for an answer without work
WAIT_MS: Final = 50.0  # in the queue of a thread pool
HELD_MS: Final = 200.0  # for a put, by the page cache
LATE_BYTES: Final = 16 * 1024 * 1024  # behind, for a slave or dispatch
FULL: Final = 0.85  # share of a disk that makes brokers delete old files at once
FEW_BUFFERS: Final = 1
THRESHOLDS: Final = (
    f"Thresholds: {FAR_MS:.0f} ms for an answer without work, {WAIT_MS:.0f} ms in a broker's queue, {HELD_MS:.0f} ms "
    f"in the page cache, {LATE_BYTES >> 20} MiB behind for a slave or for dispatch, {FULL:.0%} of a disk."
)


@dataclass(frozen=True, slots=True)
class SendFacts:
    """Facts about sends. Keys of brokers are their names. ``round_trips_ms`` are of small requests."""

    brokers: Sequence[BrokerFacts] = ()
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    round_trips_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    replicas: Mapping[str, HaStatus] = field(default_factory=dict)
    topic: str | None = None
    route: Route | None = None
    untold: Sequence[str] = ()


async def collect(admin: Admin, clock: Clock, topic: str | None = None) -> SendFacts:
    """Ask all brokers, or a topic's."""
    route = await _route(admin, topic) if topic else None
    brokers = await brokers_of(admin, await admin.cluster(), None)
    if route is not None:
        there = {data.broker_name for data in route.queue_datas}
        brokers = [one for one in brokers if one.name in there]
    masters = [one for one in brokers if one.broker_id == MASTER_ID]
    asking = _SendCollector(admin, clock)
    await asyncio.gather(*(asking.ask(one) for one in masters if not one.error))
    return SendFacts(masters, asking.configs, asking.times, asking.replicas, topic, route, asking.untold)


async def _route(admin: Admin, topic: str) -> Route | None:
    try:
        return await admin.topics.route(topic)
    except TopicNotFound:
        return None


class _SendCollector:
    """Facts during their collection."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self.configs: dict[str, Mapping[str, str]] = {}
        self.times: dict[str, list[float]] = {}
        self.replicas: dict[str, HaStatus] = {}
        self.untold: list[str] = []

    async def ask(self, broker: BrokerFacts) -> None:
        try:
            self.configs[broker.name] = await self._admin.brokers.config(broker.address)
            self.times[broker.name] = [await self._round_trip(broker) for _ in range(ROUND_TRIPS)]
            if self.configs[broker.name].get("brokerRole") == "SYNC_MASTER":
                self.replicas[broker.name] = await self._admin.brokers.ha_status(broker.address)
        except (OSError, FirearrowError) as error:
            self.untold.append(f"{broker.name}: {error}")

    async def _round_trip(self, broker: BrokerFacts) -> float:
        """Duration of the smallest request, in ms."""
        began = self._clock.monotonic()
        await self._admin.topics.system_names(broker.address)
        return 1000 * (self._clock.monotonic() - began)


Rule = Callable[[SendFacts], Iterator[Finding]]


def unreachable(facts: SendFacts) -> Iterator[Finding]:
    """A broker that producers send to does not answer."""
    for broker in facts.brokers:
        if broker.error:
            evidence = f"{broker.address} does not answer: {broker.error}"
            cure = "Each time, producers lose a timeout on it: start it, or use wipeWritePerm."
            yield Finding("unreachable", Level.CRITICAL, broker.name, evidence, cure)


def no_route(facts: SendFacts) -> Iterator[Finding]:
    """Producers can't send to the topic, or only to some brokers."""
    if facts.topic is None:
        return
    if facts.route is None:
        cure = "Create it, or check its name and the namespace."
        yield Finding("no-route", Level.CRITICAL, facts.topic, "no broker has registered it", cure)
        return
    if not names.is_sendable(facts.topic):
        cure = "Send to another topic."
        yield Finding("no-route", Level.CRITICAL, facts.topic, "it is a system topic", cure)
    for data in facts.route.queue_datas:
        if not data.perm & PERM_WRITE:
            evidence = f"perm={data.perm} on {data.broker_name} makes the topic unwritable"
            cure = "Allow it (updateTopicPerm, brokerPermission, addWritePerm)."
            yield Finding("no-route", Level.CRITICAL, facts.topic, evidence, cure)


def refused(facts: SendFacts) -> Iterator[Finding]:
    """A broker takes no messages, or will soon take none."""
    for broker in facts.brokers:
        if why := broker.counted.get("writesRefused"):
            yield Finding("refused", Level.CRITICAL, broker.name, why, "Make room on its disk.")
        elif (ratio := broker.disk_ratio) is not None and ratio >= FULL:
            evidence = f"{100 * ratio:.0f} % of the disk are used: old files are deleted at once"
            cure = "Make room, or keep messages for less time; at 90 % sends are refused."
            yield Finding("refused", Level.WARNING, broker.name, evidence, cure)


def far_away(facts: SendFacts) -> Iterator[Finding]:
    """The network, or the whole broker, is slow."""
    for broker, times in facts.round_trips_ms.items():
        typical = sorted(times)[len(times) // 2]
        if typical >= FAR_MS:
            evidence = f"a small request takes {typical:.0f} ms (the fastest {min(times):.0f} ms)"
            cure = (
                "If the fastest is as slow, it is the network: send from near by, or keep more "
                "sends in flight. Otherwise the broker is busy."
            )
            yield Finding("far-away", Level.WARNING, broker, evidence, cure)


def send_queue(facts: SendFacts) -> Iterator[Finding]:
    """Sends wait for threads."""
    for broker in facts.brokers:
        waits = broker.number("sendThreadPoolQueueHeadWaitTimeMills") or 0
        size = broker.number("sendThreadPoolQueueSize") or 0
        if waits >= WAIT_MS:
            evidence = f"{counted(round(size), 'send waits', 'sends wait')}, the first for {waits:,.0f} ms"
            cure = "Send batches, add brokers, or raise sendMessageThreadPoolNums."
            yield Finding("send-queue", Level.WARNING, broker.name, evidence, cure)


def page_cache(facts: SendFacts) -> Iterator[Finding]:
    """A put waits for the disk in the kernel."""
    for broker in facts.brokers:
        held = broker.number("pageCacheLockTimeMills") or 0
        if held >= HELD_MS:
            evidence = f"a put has been in the page cache for {held:,.0f} ms"
            cure = "The disk is too slow for this rate of writes, or memory is short."
            yield Finding("page-cache", Level.CRITICAL, broker.name, evidence, cure)
        buffers = broker.number("remainTransientStoreBufferNumbs")
        config = facts.configs.get(broker.name, {})
        if buffers is not None and buffers < FEW_BUFFERS and is_on(config, "transientStorePool"):
            evidence = "no buffer of transientStorePool is free"
            cure = "Raise transientStorePoolSize, or use a faster disk."
            yield Finding("page-cache", Level.CRITICAL, broker.name, evidence, cure)


def is_on(config: Mapping[str, str], name: str) -> bool:
    """Tell whether ``nameEnable`` is true."""
    return config.get(f"{name}Enable", "").lower() == "true"


def each_on_disk(facts: SendFacts) -> Iterator[Finding]:
    """Each send waits for the disk, by configuration."""
    for broker, config in facts.configs.items():
        if config.get("flushDiskType") == "SYNC_FLUSH":
            evidence = "flushDiskType=SYNC_FLUSH: each send waits for the disk"
            cure = "This is the price of losing nothing: keep many sends in flight, or send batches."
            yield Finding("each-on-disk", Level.OK, broker, evidence, cure)


def replication(facts: SendFacts) -> Iterator[Finding]:
    """Each send waits for a slave, and the slave is late or missing."""
    for broker, status in facts.replicas.items():
        if facts.configs[broker].get("brokerRole") != "SYNC_MASTER":
            continue
        if not status.ha_connection_info:
            evidence = "brokerRole=SYNC_MASTER, and no slave is connected"
            cure = "Start the slave, or use ASYNC_MASTER."
            yield Finding("replication", Level.CRITICAL, broker, evidence, cure)
        for slave in status.ha_connection_info:
            if slave.diff >= LATE_BYTES:
                evidence = f"slave {slave.addr} is {slave.diff:,} bytes behind"
                cure = "Look at its disk and the network to it."
                yield Finding("replication", Level.WARNING, broker, evidence, cure)


def dispatch(facts: SendFacts) -> Iterator[Finding]:
    """Dispatch to the queues is slow."""
    for broker in facts.brokers:
        late = broker.number("dispatchBehindBytes") or 0
        if late >= LATE_BYTES:
            evidence = f"queues are {late:,.0f} bytes behind the log"
            cure = "This passes after a start. If it lasts, the broker is overloaded."
            yield Finding("dispatch", Level.WARNING, broker.name, evidence, cure)


def failed_puts(facts: SendFacts) -> Iterator[Finding]:
    """Puts have failed since the start."""
    for broker in facts.brokers:
        count = broker.number("putMessageFailedTimes") or 0
        if count:
            evidence = f"{counted(round(count), 'message')} could not be stored since the start"
            cure = "The log of the broker says why."
            yield Finding("failed-puts", Level.WARNING, broker.name, evidence, cure)


def untold(facts: SendFacts) -> Iterator[Finding]:
    """Requests that no server answered."""
    for text in facts.untold:
        yield Finding("asked", Level.UNKNOWN, "sends", text)


RULES: Final[Sequence[Rule]] = (
    unreachable,
    no_route,
    refused,
    far_away,
    send_queue,
    page_cache,
    each_on_disk,
    replication,
    dispatch,
    failed_puts,
    untold,
)


def findings(facts: SendFacts) -> list[Finding]:
    """Findings of all rules."""
    return [one for rule in RULES for one in rule(facts)]
