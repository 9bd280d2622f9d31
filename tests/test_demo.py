"""`make demo` keeps its promises, on a terminal of any width, and ends automatically."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.fakes import HandClock
from tools.stage import Stage

ROOT = Path(__file__).parent.parent
SECONDS_MAX = 280  # a minute where nothing else runs


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demonstration_runs_to_its_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ran = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--store", str(store)],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout
    assert said.startswith("A broker serves at 127.0.0.1:")
    assert said.endswith("The broker has ended. The analysis works without one, but for sending again.\n")
    happened = " ".join(said.split())
    for words in (
        "parcel-1, level 1 ─▶ SCHEDULE_TOPIC_XXXX",
        "2 of 3 parcels were delivered, parcel-3 was not.",
        "%RETRY%shipping ─▶ order-59, retry 2",
        "%DLQ%shipping ◀─ no price: fails",
        "%DLQ%shipping has 10 messages. Nothing was lost.",
        "paid-3? ◀─ undecided for a second",
        "2 of 3 payments were delivered, paid-2 was not.",
        "billing Orders 303",  # half of 607 messages, of four queues
        "shipping Orders 10",  # dead letters
        "sent",
        "Orders 607",  # archived: 600, six copies, one sent again
        "| new| 306|",
        "|paid| 301|",
        "Orders Orders 607 0",  # rows of the typed table
        "│ c0 │ 18 │ 12935 │",
    ):
        assert words in happened, said
    assert not (store / "abort").exists()  # the broker has ended cleanly


class Terminal(io.StringIO):
    """Terminal whose output a test can read."""

    def isatty(self) -> bool:
        return True


def played(out: io.StringIO) -> Stage:
    """Play a scene in which a message is sent, delivered late, and fails."""
    clock = HandClock()
    stage = Stage(out, clock)
    stage.scene("Later", "Words that are more than fit on a line of a narrow terminal. " * 2)
    stage.sends(0.0, "parcel-1, level 1", "SCHEDULE_TOPIC_XXXX")
    stage.delivers("Parcels", "parcel-1")
    stage.fails("RMQ_SYS_TRANS_HALF_TOPIC", "order-59, retry 2")
    stage.asks("paid-3?", "undecided for a second")
    stage.command(["firearrow", "pipeline", "backlog", "--path", "/tmp/" + "x" * 60])
    return stage


@pytest.mark.parametrize(("columns", "wide"), [(40, 80), (80, 80), (120, 120), (300, 120)])
def test_lines_fit_the_terminal(columns: int, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    assert played(out).columns == wide
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) == wide  # the heading's line
    arrows = [line.index("▶") for line in lines if "▶" in line]
    assert len(arrows) == 2
    assert [line.index("◀") for line in lines if "◀" in line] == [
        arrows[1] - 1, arrows[0] - 1
    ]  # fmt: skip


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    file, terminal = io.StringIO(), Terminal()
    played(file)
    assert "\x1b" not in file.getvalue()
    played(terminal)
    assert "\x1b[32m" in terminal.getvalue()
    for line in terminal.getvalue().splitlines():
        assert line.endswith("\x1b[0m") == line.startswith("\x1b[")
