"""Values are shown with their units, and no text can do harm where it is shown."""

from __future__ import annotations

import json
import sys
import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.cli.output.reports import Bars, Cell, Report, Table, as_moment, cut, heading, in_time, shown, visible

MOMENT = datetime(2026, 11, 21, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("messages", 1234567, "1,234,567"),
        ("queueOffset", 1234567, "1234567"),
        ("share", 0.125, "12.5 %"),
        ("bytes", 1536, "1.5 KiB"),
        ("freeBytes", 3 << 40, "3.0 TiB"),
        ("bytesPerSecond", 10.4, "10 B/s"),
        ("arriving", 0.0667, "0.067/s"),
        ("consuming", 1234.5, "1,234/s"),
        ("behindSeconds", 3661.0, "1 h 1 min"),
        ("leftSeconds", -90.0, "-1 min 30 s"),
        ("fullInHours", 24.0, "1 d"),
        ("p99", 12, "12 ms"),
        ("waitP999", 1200, "1,200 ms"),
        ("ratio", 1.5, "1.50 x"),
        ("oldest", MOMENT, "2026-11-21 06:30:00Z"),
        ("success", False, "no"),
        ("lag", None, "-"),
    ],
)
def test_a_columns_name_says_its_unit(column: str, value: Cell, text: str) -> None:
    assert shown(column, value) == text


def test_headings_are_words() -> None:
    assert [heading(name) for name in ("consumerGroup", "behindSeconds", "lagSeconds", "p99", "fullInHours")] == [
        "consumer group",
        "behind",
        "lag time",
        "p99",
        "full in",
    ]


@given(st.text(st.characters(max_codepoint=sys.maxunicode)))
def test_shown_text_holds_nothing_that_is_not_seen(text: str) -> None:
    kinds = {unicodedata.category(character) for character in shown("body", text)}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    if text.isprintable():
        assert visible(text) == text


def test_what_turns_text_around_is_spelt_out() -> None:
    assert visible("\x1b[31mred \u202eturned é") == "\\x1b[31mred \\u202eturned é"


@given(st.floats(0, 1e9))
def test_times_have_two_units_at_most(seconds: float) -> None:
    assert len(in_time(seconds).split()) in (2, 4)


def test_a_report_is_json() -> None:
    table = Table("T", ["lag", "oldest"], [[1, MOMENT]], more=True)
    report = Report("R", {"source": "store"}, [table]).as_json()
    assert json.loads(json.dumps(report)) == {
        "report": "R",
        "source": "store",
        "tables": [{"title": "T", "more": True, "rows": [{"lag": 1, "oldest": "2026-11-21T06:30:00+00:00"}]}],
    }


def test_a_table_may_be_cut() -> None:
    table = Table("T", ["lag"], [[1], [2], [3]], chart=Bars(["lag"], "lag"))
    assert table.at_most(3) is table
    cut_off = table.at_most(2)
    assert (cut_off.rows, cut_off.more, cut_off.chart) == ([[1], [2]], True, table.chart)


def test_a_long_text_ends_in_an_ellipsis() -> None:
    assert [cut("abcdef", length) for length in (6, 5)] == ["abcdef", "abcd…"]


@pytest.mark.parametrize("ms", [0, -1, 10**18, 10**30])
def test_a_time_that_no_calendar_has_is_none(ms: int) -> None:
    assert as_moment(ms) is None
