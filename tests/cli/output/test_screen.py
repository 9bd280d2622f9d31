"""Tables fit the terminal, and say what they leave out."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from firearrow.cli.output.reports import Bars, Report, Table
from firearrow.cli.output.screen import OperationCounts, as_text, progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = Table(
    "Backlog",
    ["topic", "lag", "behindSeconds"],
    [["订单", 200, 61.0], ["short", 50, None]],
    "A note.",
    Bars(["topic"], "lag"),
    more=True,
)


def test_columns_stand_under_each_other() -> None:
    assert as_text(Report("R", {"source": "s", "time": "t"}, [TABLE])).splitlines() == [
        "R",
        "source: s  time: t",
        "",
        "Backlog",
        "  A note.",
        "  topic  lag     behind",
        "  订单   200  1 min 1 s  ████████████",
        "  short   50          -  ███",
        "  (first 2 rows: --top shows more)",
    ]


def test_what_does_not_fit_is_named() -> None:
    lines = as_text(Report("R", {}, [TABLE]), 20).splitlines()
    assert lines[5:] == [
        "  topic  lag",
        "  订单   200",
        "  short   50",
        "  (first 2 rows:",
        "  --top shows more)",
        "  (and in --json and",
        "  --report: behind)",
    ]


def test_nothing_but_a_word_is_wider_than_the_terminal() -> None:
    note = "Known of clients that trace, and of those that are asked for it in time."
    tables = [Table("T", ["a"], [[1]], note), Table("E", ["a"], [], note)]
    text = as_text(Report("R", {"source": "s" * 10, "time": "2026-11-18"}, tables), 30)
    assert max(map(len, text.splitlines())) <= 30
    assert " ".join(text.split()).count("trace, and of those that are asked for it in time.") == 2


def test_an_empty_table_is_one_line() -> None:
    assert as_text(Report("R", {}, [Table("Lost", ["a"], [], "Why.")])).splitlines()[3:] == ["Lost: none", "  (Why.)"]


def test_a_cell_can_not_move_the_cursor() -> None:
    table = Table("T", ["body"], [["\x1b[2J\r\nfake: none"]])
    text = as_text(Report("R", {}, [table]))
    assert "\\x1b[2J\\r\\nfake" in text
    assert "\x1b" not in text


class Tracker:
    """Spark's, as far as the bar asks it: jobs of two stages, of which one may be skipped."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[str, list[int]]] = {}

    def getJobIdsForGroup(self) -> list[int]:
        return list(self.jobs)

    def getJobInfo(self, job: int) -> SimpleNamespace:
        return SimpleNamespace(status=self.jobs[job][0], stageIds=[job, -1])

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:
        if stage == -1:
            return None  # forgotten
        done, total = self.jobs[stage][1]
        return SimpleNamespace(numTasks=total, numCompletedTasks=done)


def test_operations_of_a_server_are_counted_once_they_end() -> None:
    handlers: list[OperationCounts] = []
    counts = OperationCounts(cast("SparkSession", SimpleNamespace(registerProgressHandler=handlers.append)))
    (handler,) = handlers

    def report(operation: str, *stages: tuple[int, int], done: bool = False) -> tuple[int, int]:
        found = [SimpleNamespace(num_completed_tasks=ended, num_tasks=total) for ended, total in stages]
        handler(stages=found, inflight_tasks=1, operation_id=operation, done=done)
        return counts.look()

    assert report("a", (1, 4)) == (1, 4)
    assert report("a", (4, 4), (1, 2)) == (5, 6)
    assert report("b", (0, 3)) == (5, 9)
    assert report("a", (4, 4), (1, 2), done=True) == (5, 8)  # the rest was skipped
    assert report("b", (3, 3), done=True) == (8, 8)


def test_the_bar_moves_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    tracker = Tracker()
    tracker.jobs[0] = "SUCCEEDED", [9, 9]  # of an earlier report
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 1 << 16).decode()

    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        title = "backlog of very many topics with long names"
        with progress(cast("SparkSession", spark), title, wanted=None):
            until(f"{title}, 0 s")
            tracker.jobs[1] = "RUNNING", [1, 4]
            until("] 1 of 4")
            tracker.jobs[1] = "RUNNING", [3, 4]
            until("] 3 of 4")
            tracker.jobs |= {1: ("SUCCEEDED", [3, 4]), 2: ("RUNNING", [0, 2])}  # one was skipped
            until("] 3 of 5")
        until("…\x1b[K\r\x1b[K")
    os.close(ours)
    lines = seen.replace("\x1b[K", "").split("\r")
    assert max(map(len, lines)) == 79
    assert lines[-1] == ""
