"""Messages of a topic: a part of them in the order of time, filtered, with links to the next and the previous part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from firearrow.cli.failures import NothingFound
from firearrow.cli.messages.reading import places
from firearrow.cli.output.reports import Cell, Table
from firearrow.client.admin.messages import PullStatus
from firearrow.console.page import Declared, Page, View

FILTERS: Final = ("tags", "sql", "key", "having", "containing", "broker", "queue", "since", "until", "offset", "limit")
"""Values of the form, which are the fields of the operation."""
LIMITS: Final = ("20", "50", "200", "500")


async def messages(view: View) -> Page:
    """List a part of a topic's messages."""
    topic, query = view.part("topic"), view.query
    given: dict[str, str] = {name: text for name in FILTERS if (text := query.get(name, "").strip())}
    oldest = query.get("order") == "oldest"
    values: dict[str, str] = {**given, "oldest": "yes"} if oldest else dict(given)
    values |= {name: query[name] for name in ("above", "below") if query.get(name)}
    tables = (await view.run("message-list", topic=topic, show_places="yes", **values)).tables
    found, at = tables[0], tables[1] if len(tables) > 1 else None
    beginning, end = ("Oldest", "Newest") if oldest else ("Newest", "Oldest")
    return Page(
        "messages.html",
        "Messages",
        {
            "topic": topic,
            "given": {name: given.get(name, "") for name in FILTERS},
            "is_filtered": bool(given.keys() - {"limit"}),
            "oldest": oldest,
            "limits": LIMITS,
            "brokers": sorted({str(name) for name in at.values("broker")}) if at else [],
            "table": view.table(placed(found).changed(more=False), "", ["topic", "offsetMessageId"]),
            "note": found.note,
            "links": [*_links(view, at, beginning, oldest=oldest)],
            "first": view.href("topics", topic, "messages") + _query(query, {"above": "", "below": ""}),
            "last": view.href("topics", topic, "messages")
            + _query(query, {"order": "" if oldest else "oldest", "above": "", "below": ""}),
            "end": end,
            "beginning": beginning,
            "tail": view.href("topics", topic, "tail")
            + _query({name: given[name] for name in ("tags", "sql", "having", "containing") if name in given}, {}),
        },
        trail=[("Topics", view.href("topics")), (topic, view.href("topics", topic))],
    )


def placed(table: Table) -> Table:
    """Give messages with their place in one column."""
    columns = list(table.columns)
    at = {name: columns.index(name) for name in ("broker", "queueId", "queueOffset")}
    kept = [number for number, name in enumerate(columns) if name not in at]
    rows: list[Sequence[Cell]] = [
        [
            row[kept[0]],
            f"{row[at['broker']]}/{row[at['queueId']]}/{row[at['queueOffset']]}",
            *(row[it] for it in kept[1:]),
        ]
        for row in table.rows
    ]
    return table.changed(columns=[columns[kept[0]], "place", *(columns[it] for it in kept[1:])], rows=rows)


def _links(view: View, at: Table | None, beginning: str, *, oldest: bool) -> list[tuple[str, str]]:
    """Give titles and addresses of the previous and the next part, where there is one."""
    if at is None:
        return []
    lower = [("below", _positions(at, "fromOffset"))] if _differ(at, "earliestOffset", "fromOffset") else []
    higher = [("above", _positions(at, "toOffset"))] if _differ(at, "toOffset", "endOffset") else []
    before, behind = (lower, higher) if oldest else (higher, lower)
    here = view.href("topics", view.part("topic"), "messages")
    return [
        (title, here + _query(view.query, {"above": "", "below": "", name: text}))
        for title, several in (("Previous", before), ("Next", behind))
        for name, text in several
    ]


def _differ(at: Table, low: str, high: str) -> bool:
    return any(int(str(a)) < int(str(b)) for a, b in zip(at.values(low), at.values(high), strict=True))


def _positions(at: Table, column: str) -> str:
    rows = zip(at.values("broker"), at.values("queueId"), at.values(column), strict=True)
    return ",".join(f"{broker}:{queue}:{offset}" for broker, queue, offset in rows)


def _query(query: Mapping[str, str], changes: Mapping[str, str]) -> str:
    merged = {name: text for name, text in {**query, **changes}.items() if text}
    return f"?{urlencode(merged)}" if merged else ""


async def at_place(view: View) -> Response:
    """Lead to the message at an offset of a queue, or to the first one behind it."""
    topic, broker = view.part("topic"), view.part("broker")
    [place] = await places(view.cluster.admin, topic, broker, int(view.part("queue")))
    offset = int(view.part("offset"))
    pulled = await view.cluster.admin.messages.pull(place.address, place.queue, offset, 1)
    if pulled.status is not PullStatus.FOUND:
        why = f"Queue {place.queue.queue_id} of topic {topic!r} on {broker} has offsets {pulled.earliest} to"
        raise NothingFound(f"{why} {pulled.latest - 1}: there is no message at {offset}.")
    return RedirectResponse(view.href("topics", topic, "messages", pulled.messages[0].offset_message_id))


PAGES: Final = (
    Declared("/topics/{topic}/messages", messages),
    Declared("/topics/{topic}/queues/{broker}/{queue:int}/{offset:int}", at_place),
)
