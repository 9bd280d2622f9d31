"""Tables fit the terminal, and say what they leave out."""

from __future__ import annotations

from firearrow.cli.reports import Bars, Report, Table
from firearrow.cli.screen import as_text

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
    assert as_text(Report("R", {}, [Table("Lost", ["a"], [], "Why.")])).splitlines()[3:] == [
        "Lost: none",
        "  (Why.)",
    ]


def test_a_cell_can_not_move_the_cursor() -> None:
    table = Table("T", ["body"], [["\x1b[2J\r\nfake: none"]])
    text = as_text(Report("R", {}, [table]))
    assert "\\x1b[2J\\r\\nfake" in text
    assert "\x1b" not in text
