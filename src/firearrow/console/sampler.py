"""Sampler of a cluster: positions of all queues and groups every few seconds, once for all browsers.

Each broker is asked on its own: one that hangs delays no other's figures, its row says since when it has been silent,
and no page asks it until it answers the sampler. A sample costs a broker one request for its counters, one for the
positions of all groups, and one for each topic that no group consumes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.client.diagnosis.clusterfacts import BrokerFacts, broker_of
from firearrow.client.diagnosis.traffic import BrokerRow, GroupRow, Sample, Samples, TopicRow, Traffic, add_broker
from firearrow.clock import Clock, processor_seconds
from firearrow.console.history import History
from firearrow.console.views import SILENT
from firearrow.errors import FirearrowError
from firearrow.wire.bodies import MASTER_ID

PACE_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 2.0
"""Longest wait of a sample for a broker; its figures come with a later one."""
REGISTERED_SECONDS: Final = 15.0
"""Pace of the list of brokers, and of the ages of lags."""
AGES_MAX: Final = 64
"""Lags whose age is examined, the largest ones: each costs a request to each broker."""
COST_MAX: Final = 0.02
"""Share of its time in which a sampler may compose samples, a third of their work; larger clusters have fewer."""


class Key(NamedTuple):
    """A group in a topic."""

    group: str
    topic: str


@dataclass(slots=True)
class _Broker:
    """Last samples of a broker, and the request that is running."""

    server: RegisteredBroker
    samples: Samples = field(default_factory=Samples)
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    unheard: float | None = None
    """Time of the first request for counters since the last answer; None while it answers."""


class Seen(NamedTuple):
    """Figures of a cluster at a time; ``notes`` are sentences on missing figures.

    ``ages`` are the seconds since the first message of a lag was stored.
    """

    at_ms: int
    brokers: Sequence[BrokerRow] = ()
    facts: Sequence[BrokerFacts] = ()
    topics: Mapping[str, TopicRow] = {}
    groups: Mapping[Key, GroupRow] = {}
    ages: Mapping[Key, float] = {}
    notes: Sequence[str] = ()

    @property
    def arriving(self) -> float | None:
        """Messages per second that the masters store."""
        return _sum(row.arriving for row in self.brokers)

    @property
    def consuming(self) -> float | None:
        """Messages per second that the masters deliver."""
        return _sum(row.consuming for row in self.brokers)

    @property
    def lag(self) -> int:
        """Messages that groups have not consumed."""
        return sum(row.lag for row in self.groups.values())

    def of_group(self, group: str) -> Iterator[GroupRow]:
        """Give the rows of a group's topics."""
        return (row for key, row in self.groups.items() if key.group == group)


def _sum(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(slots=True)
class Sampler:
    """Samples of a cluster, its history, and a signal for each new sample."""

    admin: Admin
    clock: Clock
    history: History = field(default_factory=History)
    seen: Seen = field(default_factory=lambda: Seen(0))
    number: int = 0
    """Count of samples."""
    _brokers: dict[str, _Broker] = field(default_factory=dict)
    _ages: dict[Key, float] = field(default_factory=dict)
    _aging: asyncio.Task[None] | None = None
    _listing: asyncio.Task[None] | None = None
    _listed_at: float = float("-inf")
    _trouble: str = ""
    _composing_seconds: float = 0.0
    """Processor time that the last sample took to compose: a machine that stalls makes samples no rarer."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Take samples until cancelled."""
        try:
            while True:
                began = self.clock.monotonic()
                await self.look()
                took = self.clock.monotonic() - began
                await asyncio.sleep(max(PACE_SECONDS - took, self._composing_seconds / COST_MAX))
        finally:
            tasks = [it.task for it in self._brokers.values() if it.task is not None]
            tasks += [it for it in (self._aging, self._listing) if it is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Take one sample."""
        now = self.clock.monotonic()
        if self._listing is None and now - self._listed_at >= REGISTERED_SECONDS:
            self._listing = asyncio.create_task(self._list())
        if self._listing is not None:
            await asyncio.wait([self._listing], timeout=PATIENCE_SECONDS)
        for it in self._brokers.values():
            if it.task is None:
                it.began = now
                it.unheard = now if it.unheard is None else it.unheard
                it.task = asyncio.create_task(self._ask(it))
        if running := [it.task for it in self._brokers.values() if it.task is not None]:
            await asyncio.wait(running, timeout=PATIENCE_SECONDS)
        began = processor_seconds()
        self.seen = self._composed()
        self._remember()
        self._composing_seconds = processor_seconds() - began
        self.number += 1
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, number: int) -> int:
        """Wait for a sample after that with a number, and give its number."""
        while self.number == number:
            await self._news.wait()
        return self.number

    def silent(self, address: str) -> float | None:
        """Give the seconds that a broker has been silent; None if it answers in time."""
        it = self._brokers.get(address)
        return self._seconds_since(it.unheard) if it is not None and it.unheard is not None else None

    def _seconds_since(self, began: float) -> float | None:
        """Give the seconds since the beginning of a request; None if that is not long ago."""
        seconds = self.clock.monotonic() - began
        return seconds if seconds >= PATIENCE_SECONDS else None

    async def _list(self) -> None:
        """List the brokers; without an answer of a name server, the last list stays."""
        try:
            servers = servers_in(await self.admin.cluster())
        except (OSError, FirearrowError) as error:
            self._trouble = f"no name server answers, brokers are those of before: {error}"
            return
        finally:
            self._listing = None
        self._trouble = ""
        known = {server.address: server for server in servers}
        for address in [address for address in self._brokers if address not in known]:
            if task := self._brokers.pop(address).task:
                task.cancel()
        for address, server in known.items():
            was = self._brokers.setdefault(address, _Broker(server))
            was.server = server
        self._listed_at = self.clock.monotonic()
        if self._aging is None or self._aging.done():
            self._aging = asyncio.create_task(self._age())

    async def _ask(self, it: _Broker) -> None:
        """Sample a broker."""
        facts = await broker_of(self.admin, it.server)
        if facts.error and self._seconds_since(it.began) is not None:
            it.task = None  # silent, so the figures of before stay
            return
        it.unheard = None
        taken = Sample(self.clock.monotonic(), [facts])
        await add_broker(taken, self.admin, facts)
        it.samples.add(taken)
        it.task = None

    async def _age(self) -> None:
        """Examine the age of the largest lags."""
        masters = [
            it.server
            for it in self._brokers.values()
            if it.server.number == MASTER_ID and it.task is None and it.unheard is None
        ]
        late = sorted((row for row in self.seen.groups.values() if row.lag), key=lambda row: -row.lag)[:AGES_MAX]
        found: dict[Key, float] = {}

        async def ask(place: tuple[Key, str]) -> None:
            key, address = place
            with suppress(OSError, FirearrowError):  # of another broker, or gone meanwhile
                for span in await self.admin.offsets.time_spans(address, *key):
                    found[key] = max(found.get(key, 0.0), span.age_ms / 1000)

        await concurrently([(Key(row.group, row.topic), it.address) for row in late for it in masters], ask)
        self._ages = found

    def _composed(self) -> Seen:
        parts = {address: it.samples.traffic() for address, it in self._brokers.items()}
        rows = [self._row(it, parts[address]) for address, it in self._brokers.items()]
        notes = [text for it in self._brokers.values() for text in it.samples.last.untold]
        notes += [f"{row.broker} {row.note}: its figures are those of before" for row in rows if SILENT in row.note]
        facts = [fact for it in self._brokers.values() for fact in it.samples.last.brokers]
        topics: defaultdict[str, list[TopicRow]] = defaultdict(list)
        groups: defaultdict[Key, list[GroupRow]] = defaultdict(list)
        for part in parts.values():
            for topic in part.topics:
                topics[topic.topic].append(topic)
            for group in part.groups:
                groups[Key(group.group, group.topic)].append(group)
        return Seen(
            self.clock.now_ms(),
            rows,
            facts,
            {
                name: TopicRow(name, _sum(it.arriving for it in several), sum(it.messages for it in several))
                for name, several in topics.items()
            },
            {
                key: GroupRow(
                    *key,
                    sum(it.lag for it in several),
                    _sum(it.arriving for it in several),
                    _sum(it.consuming for it in several),
                )
                for key, several in groups.items()
            },
            self._ages,
            [*([self._trouble] if self._trouble else []), *notes],
        )

    def _row(self, it: _Broker, part: Traffic) -> BrokerRow:
        running = it.began if it.task is not None and not it.task.done() else None
        began = it.unheard if it.unheard is not None else running
        silent = self._seconds_since(began) if began is not None else None
        name = it.server.broker if it.server.number == MASTER_ID else f"{it.server.broker} (slave)"
        row = part.brokers[0] if part.brokers else BrokerRow(name, it.server.address, None, None, None, None)
        if silent is not None:
            return row._replace(arriving=None, consuming=None, note=f"{SILENT} {silent:.0f} s")
        return row

    def _remember(self) -> None:
        seen = self.seen
        totals = {"lag": float(seen.lag), "arriving": seen.arriving, "consuming": seen.consuming}
        values = {name: total for name, total in totals.items() if total is not None}
        values |= {f"topic {row.topic}": row.arriving for row in seen.topics.values() if row.arriving is not None}
        lags: defaultdict[str, float] = defaultdict(float)
        for key, row in seen.groups.items():
            lags[f"group {key.group}"] += row.lag
        for broker in seen.brokers:
            if broker.arriving is not None:
                values[f"broker {broker.address}"] = broker.arriving
        for fact in seen.facts:
            first, last = fact.number("commitLogMinOffset"), fact.number("commitLogMaxOffset")
            if first is not None and last is not None:
                values[f"log {fact.address}"] = last - first
            if fact.disk_ratio is not None:
                values[f"disk {fact.address}"] = 100 * fact.disk_ratio
        self.history.add(seen.at_ms / 1000, values | lags)
