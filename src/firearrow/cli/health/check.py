"""`firearrow check`: health of a cluster for monitoring, in the format of Nagios plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.output.listing import PLAIN, Output, marked
from firearrow.cli.output.reports import Table, visible
from firearrow.cli.parameters import Options, Parameter, WrongValue, count, valued
from firearrow.client.diagnosis import clusterfacts
from firearrow.client.diagnosis.checks import CHECKS, Thresholds, findings, fine, total, worst_disk, worst_lag
from firearrow.client.diagnosis.clusterfacts import ClusterFacts
from firearrow.client.diagnosis.findings import Finding, Level, Threshold, by_gravity, counted, worst
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError, FirearrowError

COLUMNS: Final = ("level", "check", "subject", "evidence", "cure")
_USUAL: Final = Thresholds()


def limit(text: str) -> Threshold:
    """Read ``WARNING:CRITICAL``."""
    try:
        return Threshold.parse(text)
    except ConfigError as error:
        raise WrongValue(str(error)) from None


def check_name(text: str) -> str:
    """Read the name of a check."""
    if text not in CHECKS:
        raise WrongValue(f"there is no check {text!r}, choose from {', '.join(CHECKS)}")
    return text


def _limit(name: str, text: str, default: Threshold) -> Parameter:
    what = f"{text} (default: {default})"
    return valued("WARNING:CRITICAL", what, limit, name=name)


class LimitOptions(Options):
    """Thresholds of warnings and of critical findings."""

    disk_percent: Annotated[Threshold, _limit("--disk", "used percent of a disk", _USUAL.disk_percent)] = (
        _USUAL.disk_percent
    )
    lag_messages: Annotated[
        Threshold, _limit("--lag", "messages of a topic that a group has not consumed", _USUAL.lag_messages)
    ] = _USUAL.lag_messages
    lag_seconds: Annotated[
        Threshold, _limit("--lag-seconds", "age of the oldest of them, in seconds", _USUAL.lag_seconds)
    ] = _USUAL.lag_seconds
    dead_letters: Annotated[Threshold, _limit("--dead", "dead letters of a group", _USUAL.dead_letters)] = (
        _USUAL.dead_letters
    )
    new_dead_letters: Annotated[
        Threshold, _limit("--new-dead", "dead letters of the last hour", _USUAL.new_dead_letters)
    ] = _USUAL.new_dead_letters
    unconsumed: Annotated[
        Threshold, _limit("--unconsumed", "messages of a topic without consumers", _USUAL.unconsumed)
    ] = _USUAL.unconsumed
    dispatch_bytes: Annotated[
        Threshold, _limit("--dispatch-bytes", "bytes that queues lag behind the log", _USUAL.dispatch_bytes)
    ] = _USUAL.dispatch_bytes
    page_cache_ms: Annotated[
        Threshold, _limit("--page-cache-ms", "ms that a put waits for the page cache", _USUAL.page_cache_ms)
    ] = _USUAL.page_cache_ms
    send_wait_ms: Annotated[
        Threshold, _limit("--send-wait-ms", "ms that a send waits in its queue", _USUAL.send_wait_ms)
    ] = _USUAL.send_wait_ms
    timer_seconds: Annotated[
        Threshold, _limit("--timer-seconds", "lateness of timed messages, in seconds", _USUAL.timer_seconds)
    ] = _USUAL.timer_seconds
    halves: Annotated[Threshold, _limit("--halves", "undecided transactions", _USUAL.halves)] = _USUAL.halves
    brokers: Annotated[
        int, valued("N", "number of brokers that must be registered (default: 1)", count, name="--brokers")
    ] = _USUAL.brokers

    def limits(self) -> Thresholds:
        """Give the thresholds."""
        return Thresholds(**vars(self))


USUAL_OPTIONS: Final = LimitOptions()


async def check(
    *,
    only: Annotated[tuple[str, ...], valued("CHECK", "only this check; may be repeated", check_name)] = (),
    of_cluster: Annotated[str | None, valued("NAME", "only brokers of the cluster with this name")] = None,
    limits: LimitOptions = USUAL_OPTIONS,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Say whether a cluster is healthy: exit code 0 ok, 1 warning, 2 critical, 3 unknown."""
    try:
        async with cluster.admin() as admin:
            facts = await clusterfacts.collect(admin, SystemClock().now_ms(), of_cluster)
    except (OSError, FirearrowError) as error:
        unknown = Finding("asked", Level.UNKNOWN, "cluster", str(error))
        return _tell(ClusterFacts(0), [unknown], output)
    names = only or tuple(CHECKS)
    found = findings(facts, limits.limits(), names)
    return _tell(facts, by_gravity([*found, *fine(facts, limits.limits(), names, found)]), output)


def _tell(facts: ClusterFacts, found: Sequence[Finding], output: Output) -> int:
    if output.form:
        output.show(rows_of(found))
    else:
        print(status_line(facts, found))
        for it in found:
            subject = "" if it.level is Level.OK else f" {it.subject}"
            print(marked(it.level.name) + visible(f" {it.rule}{subject}: {it.evidence}"))
    return worst(found)


def rows_of(found: Sequence[Finding]) -> Table:
    """Give findings as a table."""
    return Table("", COLUMNS, [[it.level.name.lower(), it.rule, *it[2:]] for it in found])


def status_line(facts: ClusterFacts, found: Sequence[Finding]) -> str:
    """First line, with the performance data of Nagios behind the bar."""
    counts = [
        f"{sum(one.level is level for one in found)} {level.name.lower()}"
        for level in (Level.CRITICAL, Level.WARNING, Level.UNKNOWN)
        if any(one.level is level for one in found)
    ]
    sizes = ", ".join(
        counted(n, noun)
        for n, noun in ((len(facts.brokers), "broker"), (facts.topics, "topic"), (facts.groups, "group"))
    )
    messages, seconds = worst_lag(facts.lags)
    drawn = (
        f"disk={worst_disk(facts.brokers):.0f}% lag={messages} lag_seconds={seconds:.0f}s "
        f"dead_letters={total(facts.dead)}"
    )
    return f"{marked(worst(found).name)} - {', '.join([*counts, sizes])} | {drawn}"
