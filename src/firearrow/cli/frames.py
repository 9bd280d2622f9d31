"""What `firearrow top` shows at a moment: a frame as tall and as wide as the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from firearrow.cli.reports import Report, Table, cut
from firearrow.cli.screen import as_text
from firearrow.client.diagnosis.traffic import Traffic

BROKERS: Final = ("broker", "address", "arriving", "consuming", "share", "bytesBehind", "note")
TOPICS: Final = ("topic", "arriving", "messages")
GROUPS: Final = ("group", "topic", "lag", "arriving", "consuming", "untilDoneSeconds")
ROWS_MIN: Final = 3  # of each table, however low the window is


def report_of(traffic: Traffic, time: str, notes: Sequence[str] = ()) -> Report:
    """Give all of it as tables."""
    known = [row.arriving for row in traffic.brokers if row.arriving is not None]
    out = [row.consuming for row in traffic.brokers if row.consuming is not None]
    facts = {
        "time": time,
        "arriving": f"{sum(known):,.0f}/s" if known else "-",
        "consuming": f"{sum(out):,.0f}/s" if out else "-",
        "lag": f"{sum(row.lag for row in traffic.groups):,}",
    }
    if notes:
        facts["note"] = "; ".join(notes)
    groups = [(*row, row.seconds_left) for row in traffic.groups]
    return Report(
        "Firearrow top",
        facts,
        [_brokers(traffic), Table("Groups", GROUPS, groups), Table("Topics", TOPICS, traffic.topics)],
    )


def _brokers(traffic: Traffic) -> Table:
    table = Table("Brokers (share: how full the disk is)", BROKERS, traffic.brokers)
    if any(row.note for row in traffic.brokers):
        return table
    return replace(table, columns=BROKERS[:-1], rows=[row[:-1] for row in traffic.brokers])


def frame(report: Report, lines: int, columns: int) -> str:
    """Give a report as just so many lines, of which none is wider: tables are cut, long ones and
    the last ones first."""
    rows = [min(len(table.rows), lines) for table in report.tables]
    text = _lines(report, rows, columns)
    excess = len(text) - lines
    while excess > 0 and max(rows) > ROWS_MIN:
        rows[max(range(len(rows)), key=lambda at: (rows[at], at))] -= 1
        excess -= 1
    text = _lines(report, rows, columns)
    text = [cut(line, columns) for line in text[:lines]]
    return "\n".join(text + [""] * (lines - len(text)))


def _lines(report: Report, rows: Sequence[int], columns: int) -> list[str]:
    tables = [_cut(table, count) for table, count in zip(report.tables, rows, strict=True)]
    text = as_text(replace(report, tables=tables), columns)
    return [line for line in text.splitlines() if not line.startswith("  (and in --json")]


def _cut(table: Table, count: int) -> Table:
    if len(table.rows) <= count:
        return table
    title = f"{table.title}: {count} of {len(table.rows)}"
    return replace(table, title=title, rows=table.rows[:count])
