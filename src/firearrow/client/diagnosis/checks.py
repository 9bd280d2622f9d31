"""Checks for monitoring: each is a function of the cluster's facts and of thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.diagnosis.clusterfacts import BrokerFacts, ClusterFacts, Lag, Stock
from firearrow.client.diagnosis.findings import Finding, Level, Threshold, counted
from firearrow.message.names import DLQ_PREFIX


class Thresholds(NamedTuple):
    """Thresholds of warnings and critical findings.

    ``new_dead_letters`` are from the last hour.
    """

    disk_percent: Threshold = Threshold(75, 85)
    dispatch_bytes: Threshold = Threshold(16 * 1024 * 1024, 256 * 1024 * 1024)
    page_cache_ms: Threshold = Threshold(200, 1000)
    send_wait_ms: Threshold = Threshold(50, 200)
    lag_messages: Threshold = Threshold(10_000, 1_000_000)
    lag_seconds: Threshold = Threshold(300, 3600)
    dead_letters: Threshold = Threshold(1, None)
    new_dead_letters: Threshold = Threshold(1, 100)
    unconsumed: Threshold = Threshold(1000, None)
    timer_seconds: Threshold = Threshold(10, 60)
    halves: Threshold = Threshold(1000, 100_000)
    brokers: int = 1


Check = Callable[[ClusterFacts, Thresholds], Iterator[Finding]]


def _name_servers(facts: ClusterFacts, _: Thresholds) -> Iterator[Finding]:
    level = Level.UNKNOWN if facts.is_dark else Level.CRITICAL
    for address, error in facts.silent.items():
        cure = "Start it, or check the address: without one, new clients find no broker."
        yield Finding("name-servers", level, address, f"does not answer: {error}", cure)


def _brokers(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    if facts.is_dark:
        return
    for broker in facts.brokers:
        if broker.is_refused:
            cure = f"Allow this user to look: `firearrow acl allow USER Cluster:{broker.cluster} --action get`."
            yield Finding("brokers", Level.UNKNOWN, broker.name, f"no permission: {broker.error}", cure)
        elif broker.error:
            yield Finding(
                "brokers",
                Level.CRITICAL,
                broker.name,
                f"registered, but {broker.address} does not answer: {broker.error}",
                "Look at the process and its log.",
            )
    names = {broker.name for broker in facts.brokers}
    if len(names) < limits.brokers:
        yield Finding(
            "brokers",
            Level.CRITICAL,
            "cluster",
            f"of {counted(limits.brokers, 'broker')}, {counted(len(names), 'is', 'are')} registered",
            "Start the others, or check their `namesrvAddr`.",
        )


def _counted(rule: str, fact: str, limit: Callable[[Thresholds], Threshold], evidence: str, cure: str) -> Check:
    """Check of one number that each broker reports."""

    def check(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
        for broker in facts.brokers:
            value = broker.number(fact)
            if value is not None and (level := limit(limits).level(value)):
                yield Finding(rule, level, broker.name, evidence.format(value), cure)

    return check


def _disk(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    for broker in facts.brokers:
        refused = broker.counted.get("writesRefused")
        if refused:
            cure = "Make room: the broker answers each send with this reason."
            yield Finding("disk", Level.CRITICAL, broker.name, f"refuses writes: {refused}", cure)
        percent = 100 * (broker.disk_ratio or 0)
        if level := limits.disk_percent.level(percent):
            evidence = f"{percent:.0f} % of the disk are used"
            cure = "Add room, or keep messages for less time (`fileReservedTime`)."
            yield Finding("disk", level, broker.name, evidence, cure)


def _lag(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    for lag in facts.lags:
        seconds = (lag.oldest_ms or 0) / 1000
        level = max(limits.lag_messages.level(lag.messages), limits.lag_seconds.level(seconds))
        if level:
            online = ", no consumer is online" if lag.offline else ""
            yield Finding(
                "lag",
                level,
                lag.group,
                f"has not consumed {counted(lag.messages, 'message')} of topic {lag.topic} on {lag.broker}, "
                f"the first is {seconds:,.0f} s old{online}",
                f"`firearrow doctor {lag.group}` says why.",
            )


def _dead_letters(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    for stock in facts.dead:
        level = max(limits.dead_letters.level(stock.messages), limits.new_dead_letters.level(stock.recent))
        if level:
            letters = counted(stock.messages, "dead letter")
            yield Finding(
                "dead-letters",
                level,
                stock.topic.removeprefix(DLQ_PREFIX),
                f"{letters} on {stock.broker}, {stock.recent:,} of them in the last hour",
                "Look at them, fix the reason of the failures, and send them again.",
            )


def _unconsumed(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    for stock in facts.unconsumed:
        if level := limits.unconsumed.level(stock.messages):
            evidence = f"{counted(stock.messages, 'message')} on {stock.broker} that no group consumes"
            cure = "Start the consumer, or delete the topic if it is not needed."
            yield Finding("unconsumed", level, stock.topic, evidence, cure)


def _halves(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    for broker, count in facts.halves.items():
        if level := limits.halves.level(count):
            evidence = f"{counted(count, 'half message is', 'half messages are')} open"
            cure = "Check that producers decide their transactions, and answer the broker's checks."
            yield Finding("halves", level, broker, evidence, cure)


def _untold(facts: ClusterFacts, _: Thresholds) -> Iterator[Finding]:
    for text in facts.untold:
        yield Finding("asked", Level.UNKNOWN, "cluster", text, "")


CHECKS: Final[Mapping[str, Check]] = {
    "name-servers": _name_servers,
    "brokers": _brokers,
    "disk": _disk,
    "dispatch": _counted(
        "dispatch",
        "dispatchBehindBytes",
        lambda limits: limits.dispatch_bytes,
        "queues are {:,.0f} bytes behind the log",
        "This passes after a start. If it lasts, the broker is overloaded.",
    ),
    "page-cache": _counted(
        "page-cache",
        "pageCacheLockTimeMills",
        lambda limits: limits.page_cache_ms,
        "a put has been in the page cache for {:,.0f} ms",
        "Look at the disk and its other users; leave more memory to the page cache.",
    ),
    "send-pressure": _counted(
        "send-pressure",
        "sendThreadPoolQueueHeadWaitTimeMills",
        lambda limits: limits.send_wait_ms,
        "the first send in the queue has waited for {:,.0f} ms",
        "`firearrow doctor sends` says why.",
    ),
    "lag": _lag,
    "dead-letters": _dead_letters,
    "unconsumed": _unconsumed,
    "timer": _counted(
        "timer",
        "timerReadBehind",
        lambda limits: limits.timer_seconds,
        "messages with a delivery time are {:,.0f} s behind",
        "Look at the load of the broker, and at `timerStopEnqueue`.",
    ),
    "halves": _halves,
    "asked": _untold,
}

ALWAYS: Final = ("brokers", "asked")


def _most(facts: ClusterFacts, name: str) -> float:
    """Give the largest of a number that brokers report."""
    return max((broker.number(name) or 0 for broker in facts.brokers), default=0)


def _lag_words(facts: ClusterFacts, limits: Thresholds) -> str:
    messages, seconds = worst_lag(facts.lags)
    by_messages, by_age = limits.lag_messages.words(), limits.lag_seconds.words(" s")
    return f"at most {counted(messages, 'message')}{by_messages}, the oldest {seconds:,.0f} s old{by_age}"


Words = Callable[[ClusterFacts, Thresholds], str]
FINE: Final[Mapping[str, Words]] = {
    "name-servers": lambda facts, limits: f"{len(facts.name_servers)} of {len(facts.name_servers)} answer",
    "brokers": lambda facts, limits: f"{len(facts.brokers)} registered, all answer",
    "disk": lambda facts, limits: (
        f"the fullest is used to {worst_disk(facts.brokers):.0f} %{limits.disk_percent.words(' %')}"
    ),
    "dispatch": lambda facts, limits: (
        f"queues are {_most(facts, 'dispatchBehindBytes'):,.0f} bytes behind the log{limits.dispatch_bytes.words()}"
    ),
    "page-cache": lambda facts, limits: (
        f"a put takes {_most(facts, 'pageCacheLockTimeMills'):,.0f} ms{limits.page_cache_ms.words(' ms')}"
    ),
    "send-pressure": lambda facts, limits: (
        f"sends wait for {_most(facts, 'sendThreadPoolQueueHeadWaitTimeMills'):,.0f} ms"
        f"{limits.send_wait_ms.words(' ms')}"
    ),
    "lag": _lag_words,
    "dead-letters": lambda facts, limits: (
        f"{total(facts.dead):,}{limits.dead_letters.words()}, of the last hour{limits.new_dead_letters.words()}"
    ),
    "unconsumed": lambda facts, limits: (
        f"at most {max((it.messages for it in facts.unconsumed), default=0):,} in a topic that no group consumes"
        f"{limits.unconsumed.words()}"
    ),
    "timer": lambda facts, limits: (
        f"delayed messages are {_most(facts, 'timerReadBehind'):,.0f} s late{limits.timer_seconds.words(' s')}"
    ),
    "halves": lambda facts, limits: (
        f"at most {counted(max(facts.halves.values(), default=0), 'undecided transaction')} on a broker"
        f"{limits.halves.words()}"
    ),
    "asked": lambda facts, limits: "all requests were answered",
}
"""Words for a check without a finding."""


def fine(facts: ClusterFacts, limits: Thresholds, only: Sequence[str], found: Sequence[Finding]) -> list[Finding]:
    """Give a finding that all is well for each of the named checks without another one; none without a name server."""
    if facts.is_dark:
        return []
    wanted, ill = {*only, *ALWAYS}, {it.rule for it in found}
    well = [name for name in CHECKS if name in wanted and name not in ill]
    return [Finding(name, Level.OK, "cluster", FINE[name](facts, limits)) for name in well]


def findings(facts: ClusterFacts, limits: Thresholds, only: Sequence[str] = tuple(CHECKS)) -> list[Finding]:
    """Findings of the named checks. Silent name servers and brokers, and requests that failed, are always included."""
    wanted = {*only, *ALWAYS, *(("name-servers",) if facts.is_dark else ())}
    return [one for name, check in CHECKS.items() if name in wanted for one in check(facts, limits)]


def worst_disk(brokers: Sequence[BrokerFacts]) -> float:
    """Used percentage of the fullest disk of all brokers."""
    return max((100 * (broker.disk_ratio or 0) for broker in brokers), default=0.0)


def worst_lag(lags: Sequence[Lag]) -> tuple[int, float]:
    """Largest lag of a group in a topic on a broker, in messages and in seconds."""
    messages = max((lag.messages for lag in lags), default=0)
    return messages, max(((lag.oldest_ms or 0) / 1000 for lag in lags), default=0.0)


def total(stocks: Sequence[Stock]) -> int:
    """Sum of the messages."""
    return sum(stock.messages for stock in stocks)
