"""Show the scenes of `make demo` in three lanes: producers, broker and consumers.

Producers are on the left, the broker in the middle, consumers on the right. A row is one event between two of
them, with the seconds since the scene began.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from typing import Final, TextIO

from firearrow.clock import Clock

COLUMNS_MIN: Final = 80
COLUMNS_MAX: Final = 120
COLUMNS_OF_A_FILE: Final = 120
_LANES: Final = (18, 24, 19)  # columns at least
_TIME: Final = 7
_INDENT: Final = "  "
_ARROWS: Final = {"to": " ─▶ ", "from": " ◀─ ", "none": "    "}
_BOLD, _DIM, _GREEN, _RED, _CYAN = "1", "2", "32", "31", "36"


def columns_of(out: TextIO) -> int:
    """Return the number of columns for a line."""
    if not out.isatty():
        return COLUMNS_OF_A_FILE
    return min(max(shutil.get_terminal_size().columns, COLUMNS_MIN), COLUMNS_MAX)


class Stage:
    """Printer of scenes, in colours on a terminal unless NO_COLOR is set."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._has_colours = out.isatty() and "NO_COLOR" not in os.environ
        self.columns = columns_of(out)
        used = len(_INDENT) + _TIME + 2 + 2 * len(_ARROWS["to"])
        more = (self.columns - used - sum(_LANES)) // len(_LANES)
        self._lanes = [columns + more for columns in _LANES]
        self._number = 0
        self._began = 0.0

    def say(self, text: str) -> None:
        """Print a paragraph, and a blank line."""
        self._print(textwrap.fill(text, self.columns, break_on_hyphens=False) + "\n")

    def now(self) -> float:
        """Return the seconds since the scene began."""
        return self._clock.monotonic() - self._began

    def scene(self, title: str, text: str) -> None:
        """Begin a scene: its number and title, its subject, and the names of the lanes."""
        self._number += 1
        head = f"── {self._number}. {title} "
        self._print(self._styled(head + "─" * (self.columns - len(head)), _BOLD))
        self._print(f"{self._indented(text)}\n")
        names = self._row("", ("producer", "none", "broker", "none", "consumer"))
        self._print(self._styled(names, _DIM))
        self._began = self._clock.monotonic()

    def sends(self, at: float, what: str, where: str) -> None:
        """Show that a producer sent something at the time ``at``, and where the broker keeps it."""
        self._event((what, "to", where, "none", ""), at=at)

    def asks(self, what: str, why: str) -> None:
        """Show that the broker asks a producer."""
        self._event((what, "from", why, "none", ""), _CYAN)

    def delivers(self, where: str, what: str) -> None:
        """Show that a consumer gets a message."""
        self._event(("", "none", where, "to", what), _GREEN)

    def fails(self, where: str, what: str) -> None:
        """Show that a consumer sends a message back."""
        self._event(("", "none", where, "from", what), _RED)

    def sums_up(self, text: str) -> None:
        """Print the result of a scene."""
        self._print(f"\n{self._indented(text)}\n")

    def command(self, words: list[str]) -> None:
        """Show a command line, on as many lines as it needs."""
        lines = [f"$ {words[0]}"]
        for word in (f'"{word}"' if " " in word else word for word in words[1:]):
            if len(lines[-1]) + len(word) + 3 > self.columns:
                lines[-1] += " \\"
                lines.append(f"    {word}")
            else:
                lines[-1] += f" {word}"
        self._print(self._styled("\n".join(lines), _BOLD) + "\n")

    def _indented(self, text: str) -> str:
        return textwrap.fill(
            text, self.columns, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
        )

    def _event(self, cells: tuple[str, str, str, str, str], style: str = "", at: float | None = None) -> None:
        seconds = self.now() if at is None else at
        self._print(self._styled(self._row(f"{seconds:5.2f} s", cells), style))

    def _row(self, time: str, cells: tuple[str, str, str, str, str]) -> str:
        producer, first, broker, second, consumer = cells
        lanes = zip((producer, broker, consumer), self._lanes, strict=True)
        left, middle, right = (text.ljust(columns) for text, columns in lanes)
        row = f"{_INDENT}{time:>{_TIME}}  {left}{_ARROWS[first]}{middle}{_ARROWS[second]}{right}"
        return row.rstrip()

    def _styled(self, text: str, style: str) -> str:
        if not self._has_colours or not style:
            return text
        return "\n".join(f"\x1b[{style}m{line}\x1b[0m" for line in text.split("\n"))

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)
