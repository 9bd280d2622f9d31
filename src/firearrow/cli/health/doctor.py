"""`firearrow doctor`: reasons why a group does not consume, or why sends are slow."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.health.check import rows_of
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import visible
from firearrow.cli.parameters import valued
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import groupfacts, grouprules, sends
from firearrow.client.diagnosis.findings import Finding, Level, by_gravity
from firearrow.client.diagnosis.groupfacts import GroupFacts
from firearrow.client.diagnosis.sends import SendFacts
from firearrow.clock import SystemClock

SENDS: Final = "sends"
ILL: Final = 1
TEXT_COLUMNS_MAX: Final = 100


async def doctor(
    group: Annotated[str, valued("GROUP", f"the group that does not consume; or `{SENDS}`", names_of="groups")],
    topic: Annotated[
        str | None, valued("TOPIC", "only this topic (default: all that the group consumes)", names_of="topics")
    ] = None,
    /,
    *,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Say why a group does not consume, or why sends are slow: exit code 1 if there is a reason."""
    async with cluster.admin() as admin:
        found, summary = await (_of_sends(admin, topic) if group == SENDS else _of_group(admin, group, topic))
    found = by_gravity(found)
    if output.form:
        output.show(rows_of(found))
    else:
        print("\n\n".join([*map(_text, found), summary]))
    return ILL if any(one.level in (Level.WARNING, Level.CRITICAL) for one in found) else 0


async def _of_group(admin: Admin, group: str, topic: str | None) -> tuple[list[Finding], str]:
    facts = await groupfacts.collect(admin, group, SystemClock().now_ms(), topic)
    return grouprules.findings(facts), group_summary(facts)


async def _of_sends(admin: Admin, topic: str | None) -> tuple[list[Finding], str]:
    facts = await sends.collect(admin, SystemClock(), topic)
    return sends.findings(facts), sends_summary(facts)


def group_summary(facts: GroupFacts) -> str:
    """Summary of a group in one line."""
    lag = sum(place.offsets.lag for place in facts.places.values())
    return (
        f"group {facts.group}: {len(facts.clients)} clients, {len(facts.topics)} topics, "
        f"{len(facts.places)} queues, {lag:,} messages not consumed, {facts.rate:,.1f} consumed/s"
    )


def sends_summary(facts: SendFacts) -> str:
    """Summary of the brokers in one line."""
    rate = sum(broker.number("putTps") or 0 for broker in facts.brokers)
    times = [min(times) for times in facts.round_trips_ms.values()]
    fastest = f", a small request takes {min(times):.1f} ms" if times else ""
    return f"sends: {len(facts.brokers)} brokers, {rate:,.1f} messages/s{fastest}"


def _text(finding: Finding) -> str:
    width = min(TEXT_COLUMNS_MAX, shutil.get_terminal_size().columns)

    def wrapped(text: str, first: str) -> str:
        return textwrap.fill(visible(text), width, initial_indent=first, subsequent_indent="     ")

    lines = [visible(f"{finding.level.name} {finding.rule} {finding.subject}")]
    lines.append(wrapped(finding.evidence, "  "))
    lines += [wrapped(finding.cure, "  -> ")] if finding.cure else []
    return "\n".join(lines)
