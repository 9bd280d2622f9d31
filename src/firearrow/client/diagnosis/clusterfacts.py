"""Facts about a cluster, collected once: its servers, groups and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, NamedTuple

from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.clock import HOUR_MS
from firearrow.errors import FirearrowError, NotPermitted
from firearrow.message import names
from firearrow.wire.bodies import MASTER_ID, ClusterInfo

SUBJECTS_MAX: Final = 2000  # per broker, of topics and of groups with a lag
PROGRESS_SECONDS: Final = 30.0  # for all groups of a broker


class BrokerFacts(NamedTuple):
    """Registered broker; ``error`` says why its numbers are missing."""

    cluster: str
    name: str
    broker_id: int
    address: str
    counted: Mapping[str, str] = {}
    error: str = ""
    is_refused: bool = False
    """The user who asks has no permission to see them."""

    def number(self, name: str) -> float | None:
        """Number that the broker reports; None without it, or for one that is not finite."""
        try:
            value = float(self.counted[name].split()[0])
        except (KeyError, IndexError, ValueError):
            return None
        return value if isfinite(value) else None

    @property
    def disk_ratio(self) -> float | None:
        """Used share of the fullest of its disks."""
        found = [self.number(name) for name in self.counted if "DiskRatio" in name]
        return max((ratio for ratio in found if ratio is not None), default=None)


class Lag(NamedTuple):
    """Lag of a group in a topic on a broker; ``oldest_ms`` is the age of the first message that it has not consumed,
    None if that was not requested."""

    group: str
    topic: str
    broker: str
    messages: int
    oldest_ms: int | None = None
    offline: bool = False


class Stock(NamedTuple):
    """Messages of a topic on a broker, and the count of the last hour."""

    topic: str
    broker: str
    messages: int
    recent: int = 0


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about a cluster. ``silent`` are the name servers without an answer, each with the error. ``untold`` are the
    requests that failed."""

    now_ms: int
    name_servers: Sequence[str] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    brokers: Sequence[BrokerFacts] = ()
    lags: Sequence[Lag] = ()
    dead: Sequence[Stock] = ()
    unconsumed: Sequence[Stock] = ()
    halves: Mapping[str, int] = field(default_factory=dict)
    groups: int = 0
    topics: int = 0
    untold: Sequence[str] = ()

    @property
    def is_dark(self) -> bool:
        """Tell whether no name server answers, so that the brokers are unknown."""
        return len(self.silent) == len(self.name_servers)


async def collect(admin: Admin, now_ms: int, cluster: str | None = None) -> ClusterFacts:
    """Ask all servers of a cluster, or of all clusters that the name servers know."""
    silent = await _silent(admin)
    servers = admin.name_servers.addresses
    known = ClusterFacts(now_ms, servers, silent)
    if known.is_dark:
        return known
    brokers = await brokers_of(admin, await admin.cluster(), cluster)
    masters = [one for one in brokers if one.broker_id == MASTER_ID and not one.error]
    parts = await asyncio.gather(*(_BrokerCollector(admin, one, now_ms).collect() for one in masters))
    return ClusterFacts(
        now_ms,
        servers,
        silent,
        brokers,
        [lag for part in parts for lag in part.lags],
        [stock for part in parts for stock in part.dead],
        [stock for part in parts for stock in part.unconsumed],
        {part.broker.name: part.halves for part in parts if part.halves is not None},
        len({group for part in parts for group in part.groups}),
        len({topic for part in parts for topic in part.topics}),
        [text for part in parts for text in part.untold],
    )


async def _silent(admin: Admin) -> dict[str, str]:
    """Name servers without an answer."""
    found: dict[str, str] = {}
    for address in admin.name_servers.addresses:
        try:
            await admin.name_servers.config(address)
        except (OSError, FirearrowError) as error:
            found[address] = str(error)
    return found


async def brokers_of(admin: Admin, info: ClusterInfo, cluster: str | None) -> list[BrokerFacts]:
    """Registered brokers, of one cluster or of all, with the numbers that each reports."""
    servers = servers_in(info, None if cluster is None else [cluster])
    return await concurrently(servers, lambda server: broker_of(admin, server))


async def broker_of(admin: Admin, server: RegisteredBroker) -> BrokerFacts:
    """A registered broker with the numbers that it reports."""
    broker = BrokerFacts(*server)
    try:
        return broker._replace(counted=await admin.brokers.runtime(broker.address))
    except (OSError, FirearrowError) as error:
        return broker._replace(error=str(error), is_refused=isinstance(error, NotPermitted))


class _BrokerCollector:
    """One broker's report of its topics and groups."""

    def __init__(self, admin: Admin, broker: BrokerFacts, now_ms: int) -> None:
        self._admin = admin
        self.broker = broker
        self._hour_ago_ms = now_ms - HOUR_MS
        self.lags: list[Lag] = []
        self.dead: list[Stock] = []
        self.unconsumed: list[Stock] = []
        self.halves: int | None = None
        self.groups: list[str] = []
        self.topics: list[str] = []
        self.untold: list[str] = []

    async def collect(self) -> _BrokerCollector:
        """Collect everything; failed requests go into ``untold``."""
        try:
            await self._collect_topics(await self._collect_lags())
        except (OSError, FirearrowError) as error:
            self.untold.append(f"{self.broker.name}: {error}")
        self.halves = await self._halves()
        return self

    async def _collect_lags(self) -> set[str]:
        """Collect the groups and their progress; returns the topics that they consume."""
        address = self.broker.address
        found = await self._admin.offsets.positions(address, PROGRESS_SECONDS)
        table = await self._admin.groups.configs(address)
        self.groups = [name for name in table.subscription_group_table if not names.is_system_group(name)]
        behind: Counter[tuple[str, str]] = Counter()
        for group, queue, at in found:
            behind[group, queue.topic] += at.lag
        lags = [
            Lag(group, topic, self.broker.name, count)
            for (group, topic), count in behind.items()
            if count and not names.is_system_group(group)
        ]
        lags.sort(key=lambda lag: -lag.messages)
        self._note_left_out(len(lags), "groups with a lag")
        self.lags = await concurrently(lags[:SUBJECTS_MAX], self._with_time)
        return {topic for _, topic in behind}

    async def _with_time(self, lag: Lag) -> Lag:
        try:
            spans = await self._admin.offsets.time_spans(self.broker.address, lag.group, lag.topic)
            oldest = max((span.age_ms for span in spans), default=0)
            return lag._replace(oldest_ms=oldest, offline=await self._offline(lag.group))
        except (OSError, FirearrowError) as error:
            self.untold.append(f"{self.broker.name}, {lag.group}, {lag.topic}: {error}")
            return lag

    async def _offline(self, group: str) -> bool:
        try:
            found = await self._admin.groups.consumers(self.broker.address, group)
        except FirearrowError:  # 206: no consumer is connected
            return True
        return not found.connection_set

    async def _collect_topics(self, consumed: set[str]) -> None:
        configs = (await self._admin.topics.configs(self.broker.address)).topic_config_table
        own = {*await self._admin.topics.system_names(self.broker.address), self.broker.name}
        own |= {self.broker.cluster, names.reply_topic(self.broker.cluster)}
        mine = [name for name in configs if not names.is_system_topic(name, own)]
        self.topics = [name for name in mine if not (names.is_retry(name) or names.is_dlq(name))]
        self.dead = await self._stocks([name for name in mine if names.is_dlq(name)])
        suspects = [name for name in self.topics if name not in consumed]
        alone = await concurrently(suspects[:SUBJECTS_MAX], self._is_alone)
        pairs = zip(suspects, alone, strict=False)
        self.unconsumed = await self._stocks([name for name, is_alone in pairs if is_alone])
        self._note_left_out(len(suspects), "topics without consumers")

    async def _is_alone(self, topic: str) -> bool:
        return not await self._admin.topics.groups(self.broker.address, topic)

    async def _stocks(self, topics: Sequence[str]) -> list[Stock]:
        found = await concurrently(topics, self._stock)
        return [stock for stock in found if stock.messages]

    async def _stock(self, topic: str) -> Stock:
        address = self.broker.address
        stock = Stock(topic, self.broker.name, 0)
        for queue, end in (await self._admin.topics.stats(address, topic)).offset_table.items():
            recent = 0
            if end.last_update_timestamp > self._hour_ago_ms:
                at = await self._admin.offsets.at_time(address, queue, self._hour_ago_ms)
                recent = max(0, end.max_offset - at)
            stock = stock._replace(
                messages=stock.messages + end.max_offset - end.min_offset, recent=stock.recent + recent
            )
        return stock

    async def _halves(self) -> int | None:
        """Count of open half messages and similar entries that the broker will check again."""
        try:
            address, group, topic = self.broker.address, names.TRANS_GROUP, names.TRANS_HALF_TOPIC
            return (await self._admin.offsets.progress(address, group, topic)).diff
        except (OSError, FirearrowError):  # there was no transaction yet
            return None

    def _note_left_out(self, count: int, what: str) -> None:
        if count > SUBJECTS_MAX:
            self.untold.append(f"{self.broker.name}: of {count} {what}, only {SUBJECTS_MAX} were examined")
