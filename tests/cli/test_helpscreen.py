"""The help of a command, as it is on a terminal."""

from __future__ import annotations

import pytest

from firearrow.cli.described import Described, Option
from firearrow.cli.helpscreen import help_screen

MOVE = Described(
    "firearrow move",
    "move something from one place to another, with many words about it",
    [
        Option((), "WHAT", "what to move", True, True),
        Option((), "WHERE", "where to", False, False),
        Option(("-f", "--from-where"), "A:B", "where from", True, False),
        Option(("--now",), "", "at once", False, False),
    ],
    [],
)


def test_it_fits_the_terminal() -> None:
    assert help_screen(MOVE, 50).splitlines() == [
        "usage: firearrow move [options] WHAT ... [WHERE] -f A:B",
        "",
        "Move something from one place to another, with",
        "many words about it.",
        "",
        "arguments:",
        "  WHAT                    what to move",
        "  WHERE                   where to",
        "",
        "options:",
        "  -f, --from-where A:B    where from",
        "  --now                   at once",
        "  -h, --help              show this help and exit",
    ]


@pytest.mark.parametrize("columns", [1, 40])
def test_a_window_of_no_use_is_taken_for_a_narrow_one(columns: int) -> None:
    assert help_screen(MOVE, columns).startswith("usage: firearrow move ")
