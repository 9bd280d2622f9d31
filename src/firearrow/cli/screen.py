"""Reports on a terminal, and the bar that shows how far a job is."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from firearrow.cli.reports import Bars, Report, Table, cut, heading, is_number, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CELL_COLUMNS_MAX: Final = 48
BAR_COLUMNS: Final = 12
NO_LIMIT: Final = 1 << 30
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LOOK_SECONDS: Final = 0.2


def as_text(report: Report, columns_max: int | None = None) -> str:
    """Give a report as lines for a terminal, none wider than ``columns_max``."""
    parts = [report.title, "  ".join(f"{name}: {value}" for name, value in report.facts.items())]
    parts += [_table(table, columns_max or NO_LIMIT) for table in report.tables]
    return "\n".join(parts) + "\n"


def _table(table: Table, columns_max: int) -> str:
    title = f"\n{table.title}"
    if not table.rows:
        return f"{title}: none" + (f"\n  ({table.note})" if table.note else "")
    columns = [_column(table, name) for name in table.columns]
    left_out: list[str] = []
    while len(columns) > 1 and _total(columns) > columns_max:
        columns.pop()
        left_out.insert(0, heading(table.columns[len(columns)]))
    if isinstance(table.chart, Bars):
        bars = _bars(table, table.chart.value)
        columns += [bars] if _total([*columns, bars]) <= columns_max else []
    lines = ["  " + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    end = [f"  (first {len(table.rows)} rows: --top shows more)"] if table.more else []
    end += [f"  (and in --json and --report: {', '.join(left_out)})"] if left_out else []
    note = [f"  {table.note}"] if table.note else []
    return "\n".join([title, *note, *lines, *end])


def _total(columns: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(map(_width, column)) for column in columns)


def _column(table: Table, name: str) -> list[str]:
    cells = [
        heading(name),
        *(cut(shown(name, cell), CELL_COLUMNS_MAX) for cell in table.values(name)),
    ]
    width = max(map(_width, cells))
    right = is_number(table, name)
    return [_padded(cell, width, right=right) for cell in cells]


def _padded(cell: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def _bars(table: Table, column: str) -> list[str]:
    values = [value if isinstance(value, int | float) else 0 for value in table.values(column)]
    most = max([*values, 0]) or 1
    return ["", *(_bar(max(value, 0) / most) for value in values)]


def _bar(part: float) -> str:
    eighths = round(part * BAR_COLUMNS * 8)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


@contextmanager
def progress(spark: SparkSession, title: str, *, wanted: bool | None) -> Iterator[None]:
    """Show on standard error how many of Spark's tasks are done, while a block runs."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield
        return
    end = Event()
    thread = Thread(target=_watch, args=(spark, title, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _watch(spark: SparkSession, title: str, end: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not end.wait(_LOOK_SECONDS):
        done = total = 0
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                done, total = done + stage.numCompletedTasks, total + stage.numTasks
        print(f"\r{_line(title, done, total)}\x1b[K", end="", file=sys.stderr, flush=True)


def _line(title: str, done: int, total: int) -> str:
    filled = 25 * done // total if total else 0
    text = f"{title} [{'#' * filled:25}] {done} of {total} tasks"
    return cut(text, shutil.get_terminal_size().columns - 1)
