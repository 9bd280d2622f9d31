"""Tables as pages show them: searched, sorted and divided into pages by the server, with links to what cells name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from firearrow.cli.output.reports import Cell, Table, is_number, visible
from firearrow.cli.parameters import WrongOptions

ROWS: Final = 50
"""Rows of one page of a table."""
CELL_CHARACTERS_MAX: Final = 400
SEARCH_CHARACTERS_MAX: Final = 400
SILENT: Final = "has not answered for"

Row = Mapping[str, Cell]
Query = Mapping[str, str]


def path_to(*parts: str | int) -> str:
    """Give the address of a page below a cluster's, each part escaped."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def _named(kind: str) -> Callable[[Row, str], str]:
    return lambda row, text: path_to(kind, text)


def _message(row: Row, text: str) -> str:
    topic = row.get("topic") or row.get("originTopic")
    return path_to("topics", str(topic), "messages", text) if topic else path_to("messages", text)


def _client(row: Row, text: str) -> str | None:
    return path_to("groups", str(row["group"]), "clients", text) if row.get("group") else None


def _undo(row: Row, text: str) -> str | None:
    return path_to("undo", str(row["change"])) if row.get("change") else None


LINKS: Final[Mapping[str, Callable[[Row, str], str | None]]] = {
    "topic": _named("topics"),
    "toTopic": _named("topics"),
    "originTopic": _named("topics"),
    "group": _named("groups"),
    "broker": _named("brokers"),
    "messageId": _message,
    "newMessageId": _message,
    "clientId": _client,
    "undo": _undo,
}
"""Pages of what cells name, by column."""

STATES: Final[Mapping[str, str]] = {
    "ok": "good", "online": "good", "sent": "good", "moved": "good", "changed": "good", "made": "good",
    "elected": "good", "removed": "good",
    "warning": "warn", "unknown": "warn", "different": "warn", "parked": "warn",
    "has messages": "warn", "has clients": "warn", "has offsets": "warn", "was changed since": "warn",
    "not in sync": "warn", "not alive": "warn",
    "critical": "bad", "failed": "bad", "offline": "bad", "deleted": "bad",
}  # fmt: skip
STATE_COLUMNS: Final = frozenset({"level", "state"})


AMOUNTS: Final = frozenset({"arriving", "consuming", "lag", "messages"})


class CellView(NamedTuple):
    """A cell as text; ``href`` is a page below the cluster's, ``badge`` the kind of a state."""

    text: str
    href: str | None = None
    is_number: bool = False
    badge: str | None = None
    is_long: bool = False

    @property
    def is_silent(self) -> bool:
        """Tell whether it says that a server does not answer, so that its row is grey."""
        return SILENT in self.text


class ColumnView(NamedTuple):
    """Head of a column; ``href`` sorts by it, ``order`` is the present order: ``ascending``, ``descending`` or none."""

    name: str
    title: str
    is_number: bool
    href: str
    order: str | None


class TableView(NamedTuple):
    """A page of a table. ``found`` is the number of rows that the search found, ``total`` that of all."""

    title: str
    note: str
    columns: Sequence[ColumnView]
    rows: Sequence[Sequence[CellView]]
    found: int
    total: int
    page: int
    pages: int
    previous: str | None
    next: str | None
    search: str
    is_cut: bool


def view(table: Table, query: Query, key: str = "", cluster: str = "", without: Sequence[str] = ()) -> TableView:
    """Give the part of a table that a query selects: ``q`` searches, ``sort`` sorts (``-`` before a name: descending).

    ``key`` is put before these names where a page has several tables. ``cluster`` begins the links. ``without`` names
    columns that are not shown.
    """
    search, sort = query.get(f"{key}q", "").strip(), query.get(f"{key}sort", "")
    rows = _searched(table, search)
    rows = _sorted(table, rows, sort)
    pages = max(1, -(-len(rows) // ROWS))
    page = min(max(1, _whole(query.get(f"{key}page", "1"))), pages)
    kinds = {name: is_number(table, name) or _is_amount(name) for name in table.columns if name not in without}
    return TableView(
        table.title,
        table.note,
        [
            ColumnView(
                name,
                table.heading(name),
                number,
                _link(query, {f"{key}sort": _next(sort, name, number), f"{key}page": ""}),
                _order(sort, name),
            )
            for name, number in kinds.items()
        ],
        [_cells(table, row, kinds, cluster) for row in rows[(page - 1) * ROWS : page * ROWS]],
        len(rows),
        len(table.rows),
        page,
        pages,
        _link(query, {f"{key}page": str(page - 1)}) if page > 1 else None,
        _link(query, {f"{key}page": str(page + 1)}) if page < pages else None,
        search,
        table.more,
    )


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _searched(table: Table, search: str) -> Sequence[Sequence[Cell]]:
    if len(search) > SEARCH_CHARACTERS_MAX:
        raise WrongOptions(f"a search has at most {SEARCH_CHARACTERS_MAX} characters")
    words = search.casefold().split()
    if not words:
        return table.rows
    return [
        row
        for row in table.rows
        if all(any(word in str(cell).casefold() for cell in row if cell is not None) for word in words)
    ]


def _sorted(table: Table, rows: Sequence[Sequence[Cell]], sort: str) -> Sequence[Sequence[Cell]]:
    name = sort.removeprefix("-")
    if name not in table.columns:
        return rows
    at = list(table.columns).index(name)
    known = sorted((row for row in rows if row[at] is not None), key=lambda row: _rank(row[at]), reverse=sort[0] == "-")
    return [*known, *(row for row in rows if row[at] is None)]


def _rank(cell: Cell) -> tuple[int, Any]:
    """Order of cells of one column, which may have numbers and texts."""
    if isinstance(cell, datetime):
        return 0, cell.timestamp()
    return (0, cell) if isinstance(cell, int | float) else (1, str(cell).casefold())


def _next(sort: str, name: str, number: bool) -> str:
    """Order after a click: numbers begin with the largest, texts with A."""
    first, second = (f"-{name}", name) if number else (name, f"-{name}")
    return second if sort == first else first


def _order(sort: str, name: str) -> str | None:
    if sort.removeprefix("-") != name:
        return None
    return "descending" if sort.startswith("-") else "ascending"


def _link(query: Query, changes: Query) -> str:
    merged = {name: text for name, text in {**query, **changes}.items() if text}
    return f"?{urlencode(merged)}"


def _cells(table: Table, row: Sequence[Cell], kinds: Mapping[str, bool], cluster: str) -> list[CellView]:
    named = dict(zip(table.columns, row, strict=True))
    return [_cell(table, name, named, number, cluster) for name, number in kinds.items()]


def _is_amount(column: str) -> bool:
    """Tell whether a column has numbers, even where all of them are unknown."""
    return column.endswith(("Seconds", "Bytes")) or column in AMOUNTS


def _cell(table: Table, name: str, row: Row, number: bool, cluster: str) -> CellView:
    cell = row[name]
    text = table.shown(name, cell)
    link = LINKS.get(name) if isinstance(cell, str) and cell else None
    path = link(row, str(cell)) if link is not None else None
    href = None if path is None else cluster + path
    badge = STATES.get(str(cell), "plain") if name in STATE_COLUMNS and cell else None
    if len(text) > CELL_CHARACTERS_MAX:
        text = f"{text[:CELL_CHARACTERS_MAX]}… ({len(text):,} characters)"
    return CellView(text, href, number, badge, len(text) > 48)


def escaped(text: str) -> str:
    """Give text of any producer with each character that is not printable as an escape."""
    return visible(text)
