"""Dead letters: groups that have some, and the letters of a group by their origin, tag and error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

from firearrow.cli.failures import NothingFound
from firearrow.cli.output.reports import Cell, Table, shown
from firearrow.console.page import Declared, Page, View
from firearrow.console.views import TableView

LETTERS: Final = ("deadAt", "messageId", "originTopic", "tag", "keys", "retries", "error", "body", "place")
CAUSES: Final = ("originTopic", "tag", "error")
LIMIT: Final = 500


async def groups(view: View) -> Page:
    """List the groups with dead letters."""
    found = (await view.run("dlq-list")).table
    counts = [int(str(count)) for count in found.values("letters")]
    late = [int(str(count)) for count in found.values("lastHour")]
    return Page(
        "deadgroups.html",
        "Dead letters",
        {"table": _linked(view, view.table(found)), "letters": sum(counts), "late": sum(late), "groups": len(counts)},
        is_live=True,
    )


def _linked(view: View, table: TableView) -> TableView:
    """Give the table with links to the letters of each group."""
    rows = [[row[0]._replace(href=view.href("groups", row[0].text, "dead-letters")), *row[1:]] for row in table.rows]
    return table._replace(rows=rows)


async def letters(view: View) -> Page:
    """Show the dead letters of a group, to choose those that are sent again."""
    group, query = view.part("group"), view.query
    given = {name: query.get(name, "") for name in ("since", "resent", *CAUSES)}
    values = {"limit": str(LIMIT), "since": given["since"], "resent": given["resent"]}
    try:
        found = (await view.run("dlq-inspect", group=group, **values)).table
    except NothingFound:
        found = Table("Dead letters", LETTERS, [])
    columns = (*LETTERS, "resentAt") if "resentAt" in found.columns else LETTERS
    every = _chosen(found, columns)
    kept = [
        row for row in every.rows if all(not given[name] or _text(every, row, name) == given[name] for name in CAUSES)
    ]
    table = view.table(every.changed(rows=kept))
    names = [column.name for column in table.columns]
    id_at, place_at = names.index("messageId"), names.index("place")
    for row in table.rows:
        assert isinstance(row, list), "a page of a table has its own rows"
        row[id_at] = row[id_at]._replace(href=_place(view, row[place_at].text))
    return Page(
        "deadletters.html",
        f"Dead letters of {group}",
        {
            "group": group,
            "given": given,
            "causes": _causes(view, every),
            "table": table,
            "id_at": id_at,
            "total": len(every.rows),
            "is_cut": found.more,
            "limit": LIMIT,
            "note": found.note,
            "all": f"{view.href('do', 'dlq-resend')}?{urlencode({'group': group, 'all_letters': 'yes'})}",
            "search": f"{view.href('groups', group, 'dead-letters')}?{urlencode({'resent': 'yes'})}",
        },
        trail=[("Dead letters", view.href("dead-letters"))],
    )


def _chosen(table: Table, columns: Sequence[str]) -> Table:
    at = [list(table.columns).index(name) for name in columns] if table.rows else []
    return table.changed(columns=columns, rows=[[row[it] for it in at] for row in table.rows[::-1]], more=False)


def _text(table: Table, row: Sequence[Cell], column: str) -> str:
    return str(row[list(table.columns).index(column)] or "-")


def _causes(view: View, table: Table) -> list[tuple[int, list[str], str]]:
    """Count letters by origin, tag and error; with the address that shows them."""
    counts = Counter(tuple(_text(table, row, name) for name in CAUSES) for row in table.rows)
    here = view.href("groups", view.part("group"), "dead-letters")
    return [
        (count, [shown("", it) for it in cause], f"{here}?{urlencode(dict(zip(CAUSES, cause, strict=True)))}")
        for cause, count in counts.most_common(20)
    ]


def _place(view: View, place: str) -> str:
    broker, topic, queue, offset = place.split("/", 3)
    return view.href("topics", topic, "queues", broker, queue, offset)


PAGES: Final = (Declared("/dead-letters", groups), Declared("/groups/{group}/dead-letters", letters))
