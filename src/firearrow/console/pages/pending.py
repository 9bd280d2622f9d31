"""Pending messages: when they are due, for each topic and each message, with the recall of one."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import urlencode

from firearrow.cli.messages.commands import STRETCHES
from firearrow.cli.messages.pending import Waiting, by_time
from firearrow.cli.output.reports import Table, in_time, shown
from firearrow.client.diagnosis.findings import counted
from firearrow.console.page import Declared, Page, View
from firearrow.console.views import TableView

SPANS: Final = {"1": "the next minute", "60": "the next hour", "1440": "the next day", "10080": "the next week"}
"""Spans of the bars by the seconds of one of them."""
BAR_WIDTH: Final = 10
BARS_HEIGHT: Final = 100


class Bar(NamedTuple):
    """A bar of the picture: its place, and its title."""

    x: int
    y: int
    height: int
    title: str


async def pending(view: View) -> Page:
    """Show messages that wait for their time."""
    topic = view.query.get("topic", "").strip()
    every = view.query.get("every", "60")
    every = every if every in SPANS else "60"
    found = (await view.run("message-pending", topic=topic, limit="0")).table
    counts = (await view.run("message-pending", topic=topic, by="topic")).table
    now_ms = view.cluster.clock.now_ms()
    due = [_ms(at) for at in found.values("dueAt")] if found.rows else []
    times = by_time([Waiting(at, "", ()) for at in due], now_ms, int(every), STRETCHES, "")
    return Page(
        "pending.html",
        "Pending messages",
        {
            "topic": topic,
            "every": every,
            "spans": SPANS,
            "bars": bars(times),
            "width": BAR_WIDTH * STRETCHES,
            "height": BARS_HEIGHT,
            "most": max((int(str(count)) for count in times.values("due")), default=0),
            "note": times.note,
            "waiting": max(sum(int(str(count)) for count in counts.values("waiting")), len(due)),
            "next": in_time(max(min(due) - now_ms, 0) / 1000) if due else "–",
            "last": in_time((max(due) - now_ms) / 1000) if due else "–",
            "late": in_time(max(late)) if (late := _late(view)) else "–",
            "notes": [*filter(None, dict.fromkeys([found.note, counts.note]))],
            "counts": view.table(counts, "counts-"),
            "table": _recallable(view, view.table(found, without=["storedAt", "broker"])),
        },
    )


def _late(view: View) -> list[float]:
    """Give the seconds that each broker's timer is late, without brokers that do not report it."""
    told = [fact.number("timerReadBehind") for fact in view.cluster.sampler.seen.facts]
    return [seconds for seconds in told if seconds is not None]


def _ms(at: object) -> int:
    assert isinstance(at, datetime), "a waiting message has its time"
    return int(at.timestamp() * 1000)


def bars(times: Table) -> list[Bar]:
    """Give the bars of a table of times."""
    counts = [int(str(count)) for count in times.values("due")]
    most = max([*counts, 1])
    heights = [round(BARS_HEIGHT * count / most) or (2 if count else 0) for count in counts]
    return [
        Bar(BAR_WIDTH * number, BARS_HEIGHT - height, height, f"{shown('', at)}: {counted(count, 'message')}")
        for number, (at, count, height) in enumerate(zip(times.values("from"), counts, heights, strict=True))
        if height
    ]


def _recallable(view: View, table: TableView) -> TableView:
    """Give the table with links that recall messages, and those that lead to them where they wait."""
    names = [column.name for column in table.columns]
    at = {name: names.index(name) for name in ("topic", "messageId", "offsetMessageId", "recallHandle")}
    rows = []
    for row in table.rows:
        topic, handle = row[at["topic"]].text, row[at["recallHandle"]].text
        cells = list(row)
        if handle == "-":
            cells[at["recallHandle"]] = cells[at["recallHandle"]]._replace(
                text="a retry: it can't be recalled", is_long=False
            )
        else:
            href = f"{view.href('do', 'message-recall')}?{urlencode({'topic': topic, 'handle': handle})}"
            cells[at["recallHandle"]] = cells[at["recallHandle"]]._replace(text="Recall", href=href, is_long=False)
        place = cells.pop(at["offsetMessageId"]).text
        cells[at["messageId"]] = cells[at["messageId"]]._replace(href=view.href("messages", place))
        rows.append(cells)
    columns = [it._replace(title="recall") if it.name == "recallHandle" else it for it in table.columns]
    del columns[at["offsetMessageId"]]
    return table._replace(rows=rows, columns=columns)


PAGES: Final = (Declared("/pending", pending),)
