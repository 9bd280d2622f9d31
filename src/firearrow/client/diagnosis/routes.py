"""Health of a topic's route: masters, slaves, permissions, and queues that are unlike each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.client.diagnosis.findings import Finding, Level, counted
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.wire.bodies import MASTER_ID, PERM_READ, PERM_WRITE, ClusterInfo, QueueData, Route, TopicConfig
from firearrow.wire.client_bodies import MessageQueue, TopicOffset

SKEW_MESSAGES_MIN: Final = 1000
"""Messages of a topic below which unlike queues are no finding."""
SKEW: Final = 2.0
"""Multiple of the average that a queue may have."""


class RouteFacts(NamedTuple):
    """A topic as name servers and brokers have it; ``untold`` are the requests that failed."""

    topic: str
    info: ClusterInfo
    route: Route
    configs: Mapping[str, TopicConfig]
    ends: Mapping[MessageQueue, TopicOffset]
    untold: Sequence[str] = ()

    @property
    def masters(self) -> list[str]:
        """Names of all brokers of the cluster that have a master."""
        return [it.broker for it in servers_in(self.info) if it.number == MASTER_ID]

    @property
    def queues(self) -> dict[str, QueueData]:
        """Queues in the route by the names of brokers."""
        return {data.broker_name: data for data in self.route.queue_datas}


async def collect(admin: Admin, topic: str) -> RouteFacts:
    """Ask a name server and all masters about a topic; TopicNotFound without a route."""
    route = await admin.topics.route(topic)
    info = await admin.cluster()
    configs: dict[str, TopicConfig] = {}
    ends: dict[MessageQueue, TopicOffset] = {}
    untold: list[str] = []

    async def ask(master: RegisteredBroker) -> None:
        try:
            configs[master.broker] = await admin.topics.config(master.address, topic)
            ends.update((await admin.topics.stats(master.address, topic)).offset_table)
        except TopicNotFound:
            return
        except (OSError, FirearrowError) as error:
            untold.append(f"{master.broker}: {error}")

    await concurrently([it for it in servers_in(info) if it.number == MASTER_ID], ask)
    return RouteFacts(topic, info, route, configs, ends, untold)


def single_broker(facts: RouteFacts) -> Iterator[Finding]:
    """One broker has all queues."""
    if len(facts.queues) == 1:
        [name] = facts.queues
        others = len(set(facts.masters) - {name})
        having = counted(others, "other broker of the cluster has", "other brokers of the cluster have")
        where = f"{having} none" if others else "the cluster has no other broker"
        cure = f"`firearrow topic create {facts.topic}` creates it on all brokers." if others else ""
        level = Level.WARNING if others else Level.OK
        evidence = f"has all queues, {where}: while it is down, nobody can send or consume"
        yield Finding("single-broker", level, name, evidence, cure)


def no_master(facts: RouteFacts) -> Iterator[Finding]:
    """A broker of the route has no master."""
    for broker in facts.route.broker_datas:
        if broker.broker_addrs and MASTER_ID not in broker.broker_addrs:
            slaves = counted(len(broker.broker_addrs), "slave")
            evidence = f"has no master, only {slaves}: nobody can send to its queues"
            cure = "Start the master, or let the controllers elect one."
            yield Finding("no-master", Level.CRITICAL, broker.broker_name, evidence, cure)


def no_permission(facts: RouteFacts) -> Iterator[Finding]:
    """A broker's queues can't be written or read."""
    for bit, word, rule in ((PERM_WRITE, "sent", "no-write"), (PERM_READ, "consumed", "no-read")):
        refused = [name for name, data in facts.queues.items() if not data.perm & bit]
        for name in refused:
            config = facts.configs.get(name)
            level = Level.CRITICAL if len(refused) == len(facts.queues) else Level.WARNING
            is_drained = config is not None and bool(config.perm & bit)
            why = "the name servers took the permission from its route" if is_drained else "its settings forbid it"
            cure = (
                f"`firearrow cluster undrain {name}` gives it back."
                if is_drained
                else "Change the permission of the topic."
            )
            yield Finding(rule, level, name, f"nothing is {word} on its queues: {why}", cure)


def unlike_queues(facts: RouteFacts) -> Iterator[Finding]:
    """Brokers have different counts of queues, or more are written than read."""
    counts = {name: data.write_queue_nums for name, data in facts.queues.items()}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
        evidence = f"queues to write: {text}; brokers with more get more messages"
        cure = "Give the topic the same count everywhere, unless the brokers differ in size."
        yield Finding("unlike-queues", Level.WARNING, facts.topic, evidence, cure)
    for name, data in sorted(facts.queues.items()):
        written = counted(data.write_queue_nums, "queue is written", "queues are written")
        if data.read_queue_nums < data.write_queue_nums:
            evidence = f"{written}, and only {counted(data.read_queue_nums, 'is', 'are')} read"
            cure = "Raise the count of queues to read: no consumer gets the messages of the others."
            yield Finding("unread-queues", Level.CRITICAL, name, evidence, cure)
        elif data.read_queue_nums > data.write_queue_nums:
            evidence = f"{written}, and {counted(data.read_queue_nums, 'is', 'are')} read"
            cure = "This is right while queues are taken away. Lower the count to read once the others are empty."
            yield Finding("unread-queues", Level.OK, name, evidence, cure)


def missing_slaves(facts: RouteFacts) -> Iterator[Finding]:
    """Some brokers have slaves, and others have none or fewer."""
    counts = {it.broker_name: sum(number != MASTER_ID for number in it.broker_addrs) for it in facts.route.broker_datas}
    most = max(counts.values(), default=0)
    for name, count in sorted(counts.items()):
        if count < most:
            evidence = f"has {counted(count, 'slave')}, others have {most}"
            cure = "Start its slaves: until then, its messages have fewer copies."
            yield Finding("missing-slaves", Level.WARNING, name, evidence, cure)


def unlike_fill(facts: RouteFacts) -> Iterator[Finding]:
    """A queue, or a broker, has far more messages than the average."""
    by_broker: defaultdict[str, int] = defaultdict(int)
    by_queue: dict[str, int] = {}
    for queue, end in facts.ends.items():
        count = max(0, end.max_offset - end.min_offset)
        by_broker[queue.broker_name] += count
        by_queue[f"queue {queue.queue_id} of {queue.broker_name}"] = count
    for counts in (by_broker, by_queue):
        total = sum(counts.values())
        if total < SKEW_MESSAGES_MIN or len(counts) < 2:
            continue
        average = total / len(counts)
        name, most = max(counts.items(), key=lambda item: item[1])
        if most > SKEW * average:
            evidence = f"has {most:,} messages, {most / average:.1f} times the average of {average:,.0f}"
            cure = "Producers that choose queues by a key may have few keys; consumers then have unequal work."
            yield Finding("unlike-fill", Level.WARNING, name, evidence, cure)


def unregistered(facts: RouteFacts) -> Iterator[Finding]:
    """A broker has the topic, and the name servers do not know it."""
    for name in sorted(facts.configs.keys() - facts.queues.keys()):
        evidence = "has the topic, but its route does not name it"
        yield Finding(
            "unregistered", Level.WARNING, name, evidence, "This passes when it registers again, within 30 s."
        )


def untold(facts: RouteFacts) -> Iterator[Finding]:
    """Some requests failed."""
    for text in facts.untold:
        yield Finding("asked", Level.UNKNOWN, facts.topic, text)


Rule = Callable[[RouteFacts], Iterator[Finding]]
RULES: Final[Sequence[Rule]] = (
    single_broker, no_master, no_permission, unlike_queues, missing_slaves, unlike_fill, unregistered, untold,
)  # fmt: skip


def findings(facts: RouteFacts) -> list[Finding]:
    """Findings of all rules."""
    return [one for rule in RULES for one in rule(facts)]
