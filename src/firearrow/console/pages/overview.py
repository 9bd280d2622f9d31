"""Overview: how the cluster is, in words and in figures."""

from __future__ import annotations

from typing import Final

from firearrow.cli.output.reports import Cell, Table
from firearrow.client.diagnosis.findings import Level
from firearrow.console.page import Declared, Page, View

BROKERS: Final = ("broker", "address", "arriving", "consuming", "diskShare", "bytesBehind", "note")
GROUPS: Final = ("group", "topic", "lag", "lagSeconds", "arriving", "consuming")
FINDINGS_MAX: Final = 12
GROUPS_MAX: Final = 10


async def overview(view: View) -> Page:
    """Show health, brokers, traffic and the largest lags."""
    seen, health = view.cluster.sampler.seen, view.cluster.health
    late = sorted(seen.groups.items(), key=lambda item: -item[1].lag)[:GROUPS_MAX]
    lags: list[list[Cell]] = [
        [*key, row.lag, seen.ages.get(key) if row.lag else 0.0, row.arriving, row.consuming]
        for key, row in late
        if row.lag
    ]
    grave = [it for it in health.findings if it.level is not Level.OK]
    names = {fact.name for fact in seen.facts}
    return Page(
        "overview.html",
        "Overview",
        {
            "seen": seen,
            "health": health,
            "level": health.level.name.lower(),
            "findings": grave[:FINDINGS_MAX],
            "left_out": max(0, len(grave) - FINDINGS_MAX),
            "brokers": view.table(Table("Brokers", BROKERS, brokers(view)), "brokers-"),
            "broker_count": len(names),
            "lags": view.table(Table("Largest lags", GROUPS, lags), "lags-"),
            "rates": await view.curve("arriving", "consuming"),
            "lag": await view.curve("lag"),
        },
        is_live=True,
    )


def brokers(view: View) -> list[list[Cell]]:
    """Rows of all brokers, with the name alone in the first column: it is a link."""
    rows: list[list[Cell]] = []
    for row in view.cluster.sampler.seen.brokers:
        name, _, role = row.broker.partition(" ")
        note = ", ".join(filter(None, [role.strip("()"), row.note]))
        rows.append([name, row.address, row.arriving, row.consuming, row.disk, row.behind_bytes, note])
    return rows


PAGES: Final = (Declared("/", overview),)
