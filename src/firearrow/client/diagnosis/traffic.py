"""Throughput of a cluster: positions of all queues and groups at several moments, and the rates between them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.diagnosis.clusterfacts import PROGRESS_SECONDS, BrokerFacts, brokers_of
from firearrow.clock import Clock
from firearrow.errors import FirearrowError
from firearrow.message import names
from firearrow.wire.bodies import MASTER_ID

TOPICS_MAX: Final = 200  # per broker, without consumers: each costs a request
WINDOW_SECONDS: Final = 15.0
"""Duration that a rate covers: consumers commit their offsets every five seconds, all at once."""
SAMPLES_MAX: Final = 64
"""Samples at most, where they come so fast that the window would have more."""
COUNTS: Final = ("msgPutTotalTodayNow", "msgGetTotalTodayNow")
"""Counts of a broker: stored and delivered messages."""


@dataclass(slots=True)
class Sample:
    """Counts at a moment, in seconds; keys of ``groups`` are group and topic."""

    at: float
    brokers: Sequence[BrokerFacts] = ()
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    groups: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)


class BrokerRow(NamedTuple):
    """Rates of a broker: messages per second, used share of its disk, bytes that are not dispatched yet."""

    broker: str
    address: str
    arriving: float | None
    consuming: float | None
    disk: float | None
    behind_bytes: int | None
    note: str = ""


class TopicRow(NamedTuple):
    """Rates of a topic: total messages, and messages per second."""

    topic: str
    arriving: float | None
    messages: int


class GroupRow(NamedTuple):
    """Rates of a group in a topic: its lag, and the messages that it consumes per second."""

    group: str
    topic: str
    lag: int
    arriving: float | None
    consuming: float | None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the lag is consumed at this rate; None for never, and without a lag."""
        gains = (self.consuming or 0) - (self.arriving or 0)
        return self.lag / gains if self.lag and gains > 0 else None


class Traffic(NamedTuple):
    """Rates of a cluster, the busiest first; None until there are two samples."""

    brokers: list[BrokerRow]
    topics: list[TopicRow]
    groups: list[GroupRow]


async def sample(admin: Admin, clock: Clock) -> Sample:
    """Ask all brokers; failed requests go into ``untold``."""
    brokers = await brokers_of(admin, await admin.cluster(), None)
    taken = Sample(clock.monotonic(), brokers)
    await asyncio.gather(*(add_broker(taken, admin, one) for one in brokers))
    return taken


async def add_broker(taken: Sample, admin: Admin, broker: BrokerFacts) -> None:
    """Add the positions on a broker to a sample; slaves, and brokers that do not answer, have none."""
    if broker.broker_id != MASTER_ID or broker.error:
        return
    try:
        seen = await _add_groups(taken, admin, broker)
        await _add_topics(taken, admin, broker, seen)
    except (OSError, FirearrowError) as error:
        taken.untold.append(f"{broker.name}: {error}")


async def _add_groups(taken: Sample, admin: Admin, broker: BrokerFacts) -> set[str]:
    """Add all groups; returns their topics."""
    ends: dict[tuple[str, int], int] = {}
    for group, queue, at in await admin.offsets.positions(broker.address, PROGRESS_SECONDS):
        ends[queue.topic, queue.queue_id] = at.broker_offset
        if not names.is_system_group(group):
            end, consumed = taken.groups.get((group, queue.topic), (0, 0))
            taken.groups[group, queue.topic] = end + at.broker_offset, consumed + at.consumer_offset
    for (topic, _), end in ends.items():
        taken.ends[topic] += end
    return {topic for topic, _ in ends}


async def _add_topics(taken: Sample, admin: Admin, broker: BrokerFacts, seen: set[str]) -> None:
    """Add the topics that no group consumes; topics of retries and dead letters belong to groups."""
    table = (await admin.topics.configs(broker.address)).topic_config_table
    own = {broker.name, broker.cluster, names.reply_topic(broker.cluster)}
    own |= {name for name in table if names.is_retry(name) or names.is_dlq(name)}
    others = [name for name in table if name not in seen and not names.is_system_topic(name, own)]
    if len(others) > TOPICS_MAX:
        text = f"of {len(others)} topics without consumers {TOPICS_MAX} are shown"
        taken.untold.append(f"{broker.name}: {text}")
    asked = others[:TOPICS_MAX]
    stats = await concurrently(asked, lambda topic: admin.topics.stats(broker.address, topic))
    for topic, ends in zip(asked, stats, strict=True):
        taken.ends[topic] += sum(end.max_offset for end in ends.offset_table.values())


class Samples:
    """Samples of the last seconds, and the rates over them."""

    def __init__(self) -> None:
        self._taken: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, taken: Sample) -> None:
        """Add a sample, and forget those that are older than the oldest one that the window needs."""
        self._taken.append(taken)
        while len(self._taken) > 2 and taken.at - self._taken[1].at >= WINDOW_SECONDS:
            self._taken.popleft()

    @property
    def last(self) -> Sample:
        """Last sample; an empty one before the first."""
        return self._taken[-1] if self._taken else Sample(0.0)

    def traffic(self) -> Traffic:
        """Throughput over the window."""
        return traffic(self.last, *list(self._taken)[:-1])


def traffic(now: Sample, *before: Sample) -> Traffic:
    """Throughput up to a sample. Each rate begins at the first earlier sample with that count, unless it fell since."""

    def rate(end: float | None, starts: Iterable[float | None]) -> float | None:
        for then, start in zip(before, starts, strict=True):
            if end is not None and start is not None and start <= end and then.at < now.at:
                return (end - start) / (now.at - then.at)
        return None

    topics = [
        TopicRow(topic, rate(end, (it.ends.get(topic) for it in before)), end) for topic, end in now.ends.items() if end
    ]
    groups = []
    for (group, topic), (end, consumed) in now.groups.items():
        thens = [it.groups.get((group, topic), (None, None)) for it in before]
        rates = rate(end, (then[0] for then in thens)), rate(consumed, (then[1] for then in thens))
        groups.append(GroupRow(group, topic, max(0, end - consumed), *rates))
    topics.sort(key=lambda row: (-(row.arriving or 0), -row.messages, row.topic))
    groups.sort(key=lambda row: (-row.lag, -(row.consuming or 0), row.group, row.topic))
    known = [{it.address: it for it in then.brokers} for then in before]
    brokers = []
    for broker in now.brokers:
        olds = [it.get(broker.address, broker._replace(counted={})) for it in known]
        stored, delivered = (rate(broker.number(name), (it.number(name) for it in olds)) for name in COUNTS)
        brokers.append(_broker(broker, stored, delivered))
    return Traffic(brokers, topics, groups)


def _broker(broker: BrokerFacts, arriving: float | None, consuming: float | None) -> BrokerRow:
    behind = broker.number("dispatchBehindBytes")
    return BrokerRow(
        broker.name if broker.broker_id == MASTER_ID else f"{broker.name} (slave)",
        broker.address,
        arriving,
        consuming,
        broker.disk_ratio,
        None if behind is None else int(behind),
        f"does not answer: {broker.error}" if broker.error else "",
    )
