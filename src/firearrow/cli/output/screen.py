"""Reports on a terminal, and the progress bar of a job."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from firearrow.cli.output.reports import Bars, Cell, Report, Table, cut, is_number
from firearrow.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CELL_COLUMNS_MAX: Final = 48
BAR_COLUMNS: Final = 12
NO_LIMIT: Final = 1 << 30
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LOOK_SECONDS: Final = 0.2
_PROGRESS_COLUMNS: Final = 25


def as_text(report: Report, columns_max: int | None = None) -> str:
    """Give a report as lines for a terminal, none wider than ``columns_max``."""
    limit = columns_max or NO_LIMIT
    facts = "  ".join(f"{name}: {value}" for name, value in report.facts.items())
    parts = [report.title, _wrapped(facts, limit, "")]
    parts += [_table(table, limit) for table in report.tables]
    return "\n".join(parts) + "\n"


def _table(table: Table, columns_max: int) -> str:
    title = f"\n{table.title}"
    if not table.rows:
        why = f"\n{_wrapped(f'({table.note})', columns_max)}" if table.note else ""
        return f"{title}: none{why}"
    columns, left_out = _fitting(table, columns_max, CELL_COLUMNS_MAX)
    if isinstance(table.chart, Bars):
        bars = _bars(table, table.chart.value)
        columns += [bars] if _total([*columns, bars]) <= columns_max else []
    lines = ["  " + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    end = [f"(first {len(table.rows)} rows: --top shows more)"] if table.more else []
    end += [f"(and in --json and --report: {', '.join(left_out)})"] if left_out else []
    note = [_wrapped(table.note, columns_max)] if table.note else []
    return "\n".join([title, *note, *lines, *(_wrapped(line, columns_max) for line in end)])


def as_list(table: Table, columns_max: int | None = None, *, colored: bool = False) -> str:
    """Give a table without a title as lines for a terminal; no cell is cut."""
    limit = columns_max or NO_LIMIT
    columns, left_out = _fitting(table, limit, NO_LIMIT)
    head, *rows = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    paint = painted if colored else _unpainted
    lines = [paint(head, BOLD)]
    lines += [paint(row, _mark(cells)) for row, cells in zip(rows, table.rows, strict=True)]
    lines += [] if rows else ["(none)"]
    lines += [paint(_wrapped(table.note, limit, ""), FAINT)] if table.note else []
    if left_out:
        said = f"(in --json and in a wider window: {', '.join(left_out)})"
        lines.append(paint(_wrapped(said, limit, ""), FAINT))
    return "\n".join(lines) + "\n"


BOLD, FAINT, RED, GREEN, YELLOW, BLUE, CYAN = "1", "2", "31", "32", "33", "34", "36"
MARKS: Final = {"critical": RED, "failed": RED, "lost": RED, "warning": YELLOW, "unknown": YELLOW}
"""Words that colour their row when they fill a cell."""
SEVERITIES: Final = {**MARKS, "ok": GREEN}
"""Colours of the words themselves, in a sentence."""


def _mark(cells: Sequence[Cell]) -> str:
    return next((MARKS[cell] for cell in cells if isinstance(cell, str) and cell in MARKS), "")


def painted(text: str, color: str) -> str:
    """Give a text in a colour of terminals; the empty one changes nothing."""
    return f"\x1b[{color}m{text}\x1b[0m" if color else text


_JSON_TOKEN: Final = r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\b\d[\d.eE+-]*'


def colored_json(text: str) -> str:
    """Give JSON in colours: keys, texts, and other values."""

    def colored(found: re.Match[str]) -> str:
        if found[1]:
            return painted(found[1], BLUE if found[2] else GREEN) + (found[2] or "")
        return painted(found[0], CYAN)

    return re.sub(_JSON_TOKEN, colored, text)


def _unpainted(text: str, color: str) -> str:
    return text


def _fitting(table: Table, columns_max: int, cell_max: int) -> tuple[list[list[str]], list[str]]:
    """Columns that fit, and the headings of the last columns, which do not."""
    columns = [_column(table, name, cell_max) for name in table.columns]
    left_out: list[str] = []
    while len(columns) > 1 and _total(columns) > columns_max + 2:
        columns.pop()
        left_out.insert(0, table.heading(table.columns[len(columns)]))
    return columns, left_out


def _wrapped(text: str, columns_max: int, indent: str = "  ") -> str:
    return textwrap.fill(text, columns_max, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _total(columns: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(map(_width, column)) for column in columns)


def _column(table: Table, name: str, cell_max: int) -> list[str]:
    cells = [table.heading(name), *(cut(table.shown(name, cell), cell_max) for cell in table.values(name))]
    width = max(map(_width, cells))
    right = is_number(table, name)
    return [_padded(cell, width, right=right) for cell in cells]


def _padded(cell: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _width(text: str) -> int:
    """Width of a text in columns of a terminal."""
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


class TaskCounts:
    """Count of finished tasks of Spark's jobs, and of all known tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._ended: dict[int, int] = dict.fromkeys(self._tracker.getJobIdsForGroup(), 0)

    def look(self) -> tuple[int, int]:
        """Give both counts. Skipped tasks of a finished job do not count."""
        done = total = 0
        for job in self._tracker.getJobIdsForGroup():
            if job in self._ended:
                continue
            info = self._tracker.getJobInfo(job)
            if info is None:
                continue
            stages = [self._tracker.getStageInfo(stage) for stage in info.stageIds]
            completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if info.status != "RUNNING":
                self._ended[job] = completed
                continue
            done += completed
            total += sum(stage.numTasks for stage in stages if stage is not None)
        ended = sum(self._ended.values())
        return ended + done, ended + total


class OperationCounts:
    """Counts of `TaskCounts` for a Spark Connect session, whose server reports them while an operation runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._ended = 0
        self._running: dict[str | None, tuple[int, int]] = {}
        spark.registerProgressHandler(self)  # type: ignore[arg-type] # only called

    def __call__(self, stages: Iterable[Any], inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Take the present stages of an operation; PySpark calls this in the thread that waits for it."""
        known = list(stages)
        completed = sum(stage.num_completed_tasks for stage in known)
        if done:
            self._running.pop(operation_id, None)
            self._ended += completed
        else:
            self._running[operation_id] = completed, sum(stage.num_tasks for stage in known)

    def look(self) -> tuple[int, int]:
        """Give the counts of finished and of known tasks."""
        running = list(self._running.values())
        return self._ended + sum(done for done, _ in running), self._ended + sum(total for _, total in running)


def _counts(spark: SparkSession) -> TaskCounts | OperationCounts:
    from firearrow.spark.session import is_remote

    return OperationCounts(spark) if is_remote(spark) else TaskCounts(spark)


@contextmanager
def progress(spark: SparkSession | None, title: str, *, wanted: bool | None) -> Iterator[None]:
    """Show the run time of a block and the finished tasks of Spark on standard error."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield
        return
    end = Event()
    own = os.dup(sys.stderr.fileno())  # standard error is a file while the JVM starts
    counted = _counts(spark) if spark is not None else None
    thread = Thread(target=_watch, args=(own, counted, title, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        os.write(own, b"\r\x1b[K")
        os.close(own)


def _watch(stderr: int, counted: TaskCounts | OperationCounts | None, title: str, end: Event) -> None:
    begin_ms = SystemClock().now_ms()
    while not end.wait(_LOOK_SECONDS):
        text = title
        if counted is not None:
            text += _tasks(*counted.look())
        text += f", {(SystemClock().now_ms() - begin_ms) // 1000} s"
        line = cut(text, _columns(stderr) - 1)
        os.write(stderr, f"\r{line}\x1b[K".encode())


def _tasks(done: int, total: int) -> str:
    if not total:
        return ""
    filled = _PROGRESS_COLUMNS * done // total
    return f" [{'#' * filled:{_PROGRESS_COLUMNS}}] {done} of {total} tasks"


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:  # not a terminal
        return 80
