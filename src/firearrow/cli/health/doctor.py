"""`firearrow doctor`: reasons why groups do not consume, or why sends are slow."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from firearrow.auth.model import Action, Resource
from firearrow.cli.cluster.accesscontrol import SUPER, Told, masters_told
from firearrow.cli.cluster.acls import ANYWHERE, config_of, verdict_of
from firearrow.cli.cluster.masters import group_names
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.health.check import COLUMNS, rows_of
from firearrow.cli.output.listing import PLAIN, Output, marked
from firearrow.cli.output.reports import Table, visible
from firearrow.cli.parameters import valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.diagnosis import groupfacts, grouprules, sends
from firearrow.client.diagnosis.findings import Finding, Level, by_gravity, counted
from firearrow.client.diagnosis.groupfacts import GroupFacts
from firearrow.client.diagnosis.sends import SendFacts
from firearrow.clock import SystemClock

SENDS: Final = "sends"
UNKNOWN_GROUP: Final = "unknown-group"
ILL: Final = 1
TEXT_COLUMNS_MAX: Final = 100


Control = tuple[Told, Mapping[str, str]]
"""Users and rules of a broker, and its configuration."""


class Diagnosis(NamedTuple):
    """Findings about a group, or about sends, with a summary in one line."""

    group: str
    found: list[Finding]
    summary: str
    rests: bool = False
    """A group that is offline while no message waits: among all groups, that is no fault."""

    @property
    def is_ill(self) -> bool:
        """Tell whether there is a reason."""
        return any(one.level in (Level.WARNING, Level.CRITICAL) for one in self.found)


async def doctor(
    group: Annotated[
        str | None,
        valued("GROUP", f"the group that does not consume (default: all groups); or `{SENDS}`", names_of="groups"),
    ] = None,
    topic: Annotated[
        str | None, valued("TOPIC", "only this topic (default: all that the group consumes)", names_of="topics")
    ] = None,
    /,
    *,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Say why groups do not consume, or why sends are slow: exit code 1 if there is a reason."""
    async with cluster.admin() as admin:
        if group is None:
            return _tell_all(await _of_all(admin), output)
        told = await (_of_sends(admin, topic) if group == SENDS else _of_group(admin, group, topic))
    if output.form:
        output.show(rows_of(told.found))
    else:
        thresholds = sends.THRESHOLDS if group == SENDS else grouprules.THRESHOLDS
        print("\n\n".join([*map(_text, told.found), f"{told.summary}\n{_wrapped(thresholds)}"]))
    return ILL if told.is_ill else 0


async def _of_group(
    admin: Admin, group: str, topic: str | None = None, control: Sequence[Control] | None = None
) -> Diagnosis:
    facts = await groupfacts.collect(admin, group, SystemClock().now_ms(), topic)
    is_served = bool(facts.clients or facts.pops_waiting)
    access = [] if is_served else unallowed(group, await _controls(admin) if control is None else control)
    found = grouprules.findings(facts)
    if access:  # a refused consumer never makes its group known
        found = [it for it in found if it.rule != UNKNOWN_GROUP]
    found = by_gravity([*access, *found])
    rests = not facts.clients and not any(place.offsets.lag for place in facts.places.values())
    return Diagnosis(group, found, group_summary(facts), rests)


async def _of_sends(admin: Admin, topic: str | None) -> Diagnosis:
    facts = await sends.collect(admin, SystemClock(), topic)
    return Diagnosis(SENDS, by_gravity(sends.findings(facts)), sends_summary(facts))


async def _of_all(admin: Admin) -> list[Diagnosis]:
    control = await _controls(admin)
    return await concurrently(await group_names(admin), lambda name: _of_group(admin, name, control=control))


def _tell_all(told: Sequence[Diagnosis], output: Output) -> int:
    resting = [it for it in told if it.rests]
    ill = [it for it in told if it.is_ill and not it.rests]
    if output.form:
        rows = [[it.group, *row] for it in told if not it.rests for row in rows_of(it.found).rows]
        output.show(Table("", ("group", *COLUMNS), rows))
    else:
        parts = ["\n\n".join([it.summary, *map(_text, it.found)]) for it in ill]
        resting_too = f", {len(resting)} offline while no message waits" if resting else ""
        groups = counted(len(told), "group")
        parts.append(f"{groups}: {len(ill)} with a reason{resting_too}\n{_wrapped(grouprules.THRESHOLDS)}")
        print("\n\n".join(parts))
    return ILL if ill else 0


async def _controls(admin: Admin) -> list[Control]:
    """Give the brokers with users, each with its configuration."""
    told = [it for it in await masters_told(admin) if it.users]
    return list(zip(told, await concurrently(told, lambda it: config_of(admin, it)), strict=True))


def unallowed(name: str, control: Sequence[Control]) -> list[Finding]:
    """Give the finding that no user but super users may consume by a group."""
    group = Resource.of(f"Group:{name}")
    if not control or group is None:
        return []
    for it, config in control:
        for user in it.users:
            may, _ = verdict_of(it, config, user.username or "", Action.SUB, group, ANYWHERE)
            if may and user.user_type != SUPER:
                return []
    evidence = "brokers have access control, and only super users may consume by this group"
    cure = f"Allow the consumer's user: `firearrow acl allow USER Group:{name} --action sub`, and its topics."
    return [Finding("access", Level.WARNING, name, evidence, cure)]


def group_summary(facts: GroupFacts) -> str:
    """Summary of a group in one line."""
    lag = sum(place.offsets.lag for place in facts.places.values())
    members = counted(len(facts.clients), "client")
    if facts.pops_waiting and not facts.clients:
        members = "pops by a proxy" if facts.proxies else "pops without heartbeats"
    return (
        f"group {facts.group}: {members}, {counted(len(facts.topics), 'topic')}, "
        f"{counted(len(facts.places), 'queue')}, {counted(lag, 'message')} not consumed, {facts.rate:,.1f} consumed/s"
    )


def sends_summary(facts: SendFacts) -> str:
    """Summary of the brokers in one line."""
    rate = sum(broker.number("putTps") or 0 for broker in facts.brokers)
    times = [min(times) for times in facts.round_trips_ms.values()]
    fastest = f", a small request takes {min(times):.1f} ms" if times else ""
    return f"sends: {counted(len(facts.brokers), 'broker')}, {rate:,.1f} messages/s{fastest}"


def _text(finding: Finding) -> str:
    lines = [marked(finding.level.name) + visible(f" {finding.rule} {finding.subject}")]
    lines.append(_wrapped(finding.evidence, "  "))
    lines += [_wrapped(finding.cure, "  -> ")] if finding.cure else []
    return "\n".join(lines)


def _wrapped(text: str, first: str = "") -> str:
    width = min(TEXT_COLUMNS_MAX, shutil.get_terminal_size().columns)
    return textwrap.fill(visible(text), width, initial_indent=first, subsequent_indent="     " if first else "")
