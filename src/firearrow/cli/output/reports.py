"""Reports of commands: tables with a unit for each column, and their charts.

One report is printed on a terminal (`firearrow.cli.output.screen`), written as a page
(`firearrow.cli.output.page`) or as JSON. Cells may hold text of any producer: `visible`
spells out characters that would move a cursor or turn text around.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from firearrow.cli.records import Record

Cell = str | int | float | datetime | Mapping[str, str] | None  # a bool is an int

_CAMEL: Final = r"(?<=[a-z0-9])(?=[A-Z])"
_MILLIS: Final = r"(p\d+|max|.*Ms|(wait|took)(P\d+|Max))"
UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that would move a cursor or turn text around."""
_RATES: Final = {"messagesPerSecond", "arriving", "consuming"}


class Bars(Record):
    """Bars, one per row: ``labels`` are the columns that name it, ``value`` the column of its length."""

    labels: Sequence[str]
    value: str


class Lines(Record):
    """Lines, one for each value of ``series`` (or a single one): ``value`` over the times in ``time``."""

    time: str
    value: str
    series: str | None = None


class Table(Record):
    """Rows under a title. ``more`` means that rows were left out; ``drawn`` has other rows for the chart.

    ``is_exact`` tells that a user has named the columns: they imply no unit, and no value is rounded.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    chart: Bars | Lines | None = None
    more: bool = False
    drawn: Sequence[Sequence[Cell]] = ()
    is_exact: bool = False

    def heading(self, column: str) -> str:
        """Give the head of a column."""
        return visible(column) if self.is_exact else heading(column)

    def shown(self, column: str, cell: Cell) -> str:
        """Give a value of a column as text."""
        return exact(cell) if self.is_exact else shown(column, cell)

    def at_most(self, count: int) -> Table:
        """Give the table with at most ``count`` rows."""
        if len(self.rows) <= count:
            return self
        return self.changed(rows=self.rows[:count], more=True)

    def objects(self) -> list[dict[str, Any]]:
        """Rows as JSON objects, by the names of the columns; times are in ISO 8601."""
        return [{name: plain(cell) for name, cell in zip(self.columns, row, strict=True)} for row in self.rows]

    def values(self, column: str) -> list[Cell]:
        """Values of one column."""
        return self._of(self.rows, column)

    def points(self, column: str) -> list[Cell]:
        """Values of one column in the chart."""
        return self._of(self.drawn or self.rows, column)

    def _of(self, rows: Sequence[Sequence[Cell]], column: str) -> list[Cell]:
        at = list(self.columns).index(column)
        return [row[at] for row in rows]


class Report(Record):
    """Report of a job. ``facts`` are short: its source and its time."""

    title: str
    facts: Mapping[str, str]
    tables: Sequence[Table] = ()

    @staticmethod
    def of(what: str, source: str, now_ms: int, tables: Sequence[Table]) -> Report:
        """Give the report of a run, with its source and its time."""
        moment = datetime.fromtimestamp(now_ms // 1000, UTC)
        facts = {"source": source, "time": f"{moment:%Y-%m-%d %H:%M:%S}Z"}
        return Report(f"Firearrow {what}", facts, tables)

    def as_json(self) -> dict[str, Any]:
        """Give the report as a JSON object; times are in ISO 8601."""
        return {
            "report": self.title,
            **self.facts,
            "tables": [{"title": table.title, "more": table.more, "rows": table.objects()} for table in self.tables],
        }


def as_json(cell: Mapping[str, str]) -> str:
    """Give a mapping as JSON in one line."""
    import json  # few tables have one

    return json.dumps(cell, ensure_ascii=False)


def plain(cell: Cell) -> Any:
    """Give a cell as a JSON value."""
    return cell.isoformat() if isinstance(cell, datetime) else cell


def as_moment(ms: int) -> datetime | None:
    """Give a time in ms since 1970 as a cell; None for 0, negative numbers, and times that no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC) if ms > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def heading(column: str) -> str:
    """Give the name of a column as words, without the unit that its values carry."""
    if column == "lagSeconds":  # beside `lag`, in messages
        return "lag time"
    words = re.sub(_CAMEL, " ", column).lower()
    return re.sub(r" (seconds|ms|hours|timestamp)$", "", words)


def is_number(table: Table, column: str) -> bool:
    """Tell whether a column is aligned to the right."""
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in table.values(column))


def shown(column: str, cell: Cell) -> str:
    """Give a value as text, with the unit that the name of the column implies."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, datetime):
        return f"{cell.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(cell, Mapping):
        cell = as_json(cell)
    if isinstance(cell, str):
        return visible(cell)
    return _number(column, cell)


def exact(cell: Cell) -> str:
    """Give a value as text, without a unit and with all its digits."""
    if isinstance(cell, datetime):
        return cell.isoformat(" ").replace("+00:00", "Z")
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return str(cell)
    return shown("", cell)


def _number(column: str, value: float) -> str:
    if column == "offset" or column.endswith(("Offset", "queueId", "QueueId")):
        return f"{value:.0f}"
    if column == "share" or column.endswith("Share"):
        return f"{100 * value:.1f} %"
    if column in ("ratio", "ofUsual"):
        return f"{value:.2f} x"
    if column == "bytesPerSecond":
        return f"{in_bytes(value)}/s"
    if column == "bytesPerHour":
        return f"{in_bytes(value)}/h"
    if column in _RATES:
        return f"{value:,.0f}/s" if value >= 100 else f"{value:.2g}/s"
    if column.lower().startswith("bytes") or column.endswith("Bytes") or column == "grown":
        return in_bytes(value)
    if column.endswith("Seconds"):
        return in_time(value)
    if column.endswith("Hours"):
        return in_time(3600 * value)
    if column.startswith("latency"):
        return f"{value:,.2f} ms"
    if re.fullmatch(_MILLIS, column):
        return f"{value:,.0f} ms"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def in_bytes(count: float) -> str:
    """Number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def in_time(seconds: float) -> str:
    """Duration in its two largest units."""
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    sign, rest = ("-" if seconds < 0 else ""), round(abs(seconds))
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}")
    return sign + " ".join(part for part in parts[:2] if not part.startswith("0 "))


def visible(text: str) -> str:
    """Give text with each unprintable character as an escape (``\\x1b``)."""
    if text.isascii() and text.isprintable():
        return text
    from unicodedata import category  # a library of 1 MB

    return "".join(_spelt(it) if category(it) in UNPRINTABLE else it for it in text)


def _spelt(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def cut(text: str, length: int) -> str:
    """Give a text or its beginning, with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"
