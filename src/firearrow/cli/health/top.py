"""`firearrow top`: live throughput of a cluster."""

from __future__ import annotations

import asyncio
import json as json_format
import shutil
import sys
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.health.laketables import laketables
from firearrow.cli.output.livescreen import Draw, live
from firearrow.cli.output.reports import Report, Table, cut
from firearrow.cli.output.screen import as_text
from firearrow.cli.parameters import WrongOptions, seconds, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.diagnosis.traffic import Samples, Traffic, sample
from firearrow.clock import Clock, SystemClock
from firearrow.errors import ClientError, FirearrowError
from firearrow.message import names

INTERVAL_SECONDS: Final = 2.0


async def top(
    *,
    interval: Annotated[
        float, valued("SECONDS", f"time between two samples (default: {INTERVAL_SECONDS:g})", seconds)
    ] = INTERVAL_SECONDS,
    once: Annotated[bool, switch("print one screen after two samples, and end")] = False,
    json: Annotated[bool, switch("print one report as a JSON object, and end")] = False,
    tables: Annotated[
        tuple[str, ...], valued("HOST:PORT", "health address of a `firearrow pipeline serve`; may be repeated")
    ] = (),
    cluster: ClusterOptions = ANY,
) -> None:
    """Show the live throughput of a cluster: brokers, groups with their lag, topics, typed tables with theirs."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (once or json or is_terminal):
        raise WrongOptions("there is no terminal to draw on: use --once or --json")
    try:
        async with cluster.admin() as admin:
            looking = Looking(admin, SystemClock(), tables)
            if once or json:
                print(await _one(looking, interval, as_json=json))
            else:
                await _live(looking, interval)
    except OSError as error:
        raise ClientError(str(error)) from error


async def _live(looking: Looking, interval: float) -> None:
    async def refresh() -> Draw:
        report = await looking.look()
        return lambda lines, columns: frame(report, lines, columns)

    await live(refresh, interval)


async def _one(looking: Looking, interval: float, *, as_json: bool) -> str:
    await looking.first()
    await asyncio.sleep(interval)
    report = await looking.look()
    if as_json:
        return json_format.dumps(report.as_json(), indent=2, ensure_ascii=False)
    size = shutil.get_terminal_size()
    columns = size.columns if sys.stdout.isatty() else ONCE_COLUMNS
    lines = size.lines if sys.stdout.isatty() else ONCE_LINES
    return frame(report, lines - 1, columns).rstrip("\n")


ONCE_COLUMNS: Final = 100
ONCE_LINES: Final = 50


class Looking:
    """Samples of a cluster; a server that does not answer becomes a note."""

    def __init__(self, admin: Admin, clock: Clock, tables: Sequence[str] = ()) -> None:
        self._admin = admin
        self._clock = clock
        self._tables = tables
        self._samples = Samples()
        self._trends: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=TREND_MAX))

    async def first(self) -> None:
        """Take the first sample; raises OSError or FirearrowError if no server answers."""
        self._samples.add(await sample(self._admin, self._clock))

    async def look(self) -> Report:
        """Take a sample, and give its report."""
        notes: list[str] = []
        try:
            self._samples.add(await sample(self._admin, self._clock))
            notes += self._samples.last.untold
        except (OSError, FirearrowError) as error:
            notes.append(str(error))
        of_lake: list[Table] = []
        if self._tables:
            table, silent = await laketables(self._tables)
            of_lake.append(table)
            notes += silent
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        report = report_of(self._samples.traffic(), f"{moment:%H:%M:%S}Z", notes, of_lake)
        return report.changed(tables=[self._with_trend(table) for table in report.tables])

    def _with_trend(self, table: Table) -> Table:
        """Give a table with the course of its rates, once there are two of them."""
        if TREND_OF not in table.columns:
            return table
        at = table.columns.index(TREND_OF)
        trends: list[str] = []
        for row in table.rows:
            rates = self._trends[table.title, row[0], row[1] if table.columns[1] == "topic" else ""]
            if isinstance(rate := row[at], int | float):
                rates.append(rate)
            trends.append(sparkline(rates) if len(rates) > 1 else "")
        if not any(trends):
            return table
        rows = [[*row, trend] for row, trend in zip(table.rows, trends, strict=True)]
        return table.changed(columns=[*table.columns, "trend"], rows=rows)


SPARKS: Final = "▁▂▃▄▅▆▇█"
TREND_MAX: Final = 20
"""Samples that a trend shows."""
TREND_OF: Final = "arriving"


def sparkline(values: Sequence[float]) -> str:
    """Give numbers as bars, the largest as high as the line."""
    most = max(values) or 1.0
    return "".join(SPARKS[min(int(len(SPARKS) * value / most), len(SPARKS) - 1)] for value in values)


# --- The frame: a report as tall and as wide as the window ---


BROKERS: Final = ("broker", "address", "arriving", "consuming", "share", "bytesBehind", "note")
TOPICS: Final = ("topic", "arriving", "messages")
GROUPS: Final = ("group", "topic", "lag", "arriving", "consuming", "untilDoneSeconds")
ROWS_MIN: Final = 3  # of each table, in a window of any height


def report_of(traffic: Traffic, time: str, notes: Sequence[str] = (), more: Sequence[Table] = ()) -> Report:
    """Give the traffic as tables, with some more tables behind them."""
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
    groups = [
        (*row, row.seconds_left)
        for row in traffic.groups
        if row.lag or row.consuming or not names.is_retry(row.topic)  # most groups have nothing to retry
    ]
    topics = [row for row in traffic.topics if names.is_of_users(row.topic)]
    return Report(
        "Firearrow top",
        facts,
        [_brokers(traffic), Table("Groups", GROUPS, groups), Table("Topics", TOPICS, topics), *more],
    )


def _brokers(traffic: Traffic) -> Table:
    table = Table("Brokers (share: how full the disk is)", BROKERS, traffic.brokers)
    if any(row.note for row in traffic.brokers):
        return table
    return table.changed(columns=BROKERS[:-1], rows=[row[:-1] for row in traffic.brokers])


def frame(report: Report, lines: int, columns: int) -> str:
    """Give a report as ``lines`` lines of ``columns`` columns at most: long tables are cut, the last ones first."""
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
    text = as_text(report.changed(tables=tables), columns)
    return [line for line in text.splitlines() if not line.startswith("  (and in --json")]


def _cut(table: Table, count: int) -> Table:
    if len(table.rows) <= count:
        return table
    title = f"{table.title}: {count} of {len(table.rows)}"
    return table.changed(title=title, rows=table.rows[:count])
