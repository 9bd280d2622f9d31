"""Topics: the list with rates and lags, and the page of one topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from firearrow.cli.output.reports import Cell, Table, heading
from firearrow.console.page import Declared, Page, View
from firearrow.console.views import TableView

LIST: Final = ("topic", "type", "queues", "perm", "arriving", "messages", "groups", "lag")
GROUPS: Final = ("group", "lag", "lagSeconds", "arriving", "consuming")


MEANINGS: Final = {
    "readQueues": "queues that consumers read; more than those to write while queues are taken away",
    "writeQueues": "queues that producers send to; each is consumed in its order by one member of a group",
    "perm": "r: consumers may read, w: producers may send",
    "isOrdered": "the name servers give out its queue counts, so that they stay the same while a broker is down",
    "message.type": "kind of its messages: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED",
    "queue.type": "BatchCQ: a queue has one entry for a batch of messages",
    "cleanup.policy": "DELETE: messages are deleted by age, with the files of the log",
    "table.format": "kind of the lake table that the pipeline makes of it: delta or iceberg",
    "table.mode": "whether messages are added to that table, or replace rows with their key",
    "lite.topic.expiration": "minutes after which an unused lite topic is deleted",
}


async def topics(view: View) -> Page:
    """List topics with their rate, their groups and the lag of these."""
    show_all = view.query.get("all") == "yes"
    known = (await view.run("topic-list", all_topics="yes" if show_all else "")).table
    seen = view.cluster.sampler.seen
    groups: Counter[str] = Counter()
    lags: defaultdict[str, int] = defaultdict(int)
    for key, row in seen.groups.items():
        groups[key.topic] += 1
        lags[key.topic] += row.lag
    rows: list[list[Cell]] = []
    for topic, kind, _, _, queues, perm in known.rows:
        traffic = seen.topics.get(str(topic))
        rate, count = (traffic.arriving, traffic.messages) if traffic else (None, None)
        rows.append([topic, kind, queues, perm, rate, count, groups[str(topic)], lags[str(topic)]])
    table = _with_messages(view, view.table(Table("Topics", LIST, rows)))
    return Page(
        "topics.html",
        "Topics",
        {"table": table, "sparks": sparks(view, table, "topic"), "show_all": show_all, "seen": seen},
        is_live=True,
    )


def _with_messages(view: View, table: TableView) -> TableView:
    """Give the table with a link from each count of messages to the messages."""
    at = LIST.index("messages")
    linked = [
        [*row[:at], row[at]._replace(href=view.href("topics", row[0].text, "messages")), *row[at + 1 :]]
        for row in table.rows
    ]
    return table._replace(rows=linked)


def sparks(view: View, table: TableView, kind: str) -> list[str]:
    """Give a sparkline for each row of a page, by the name in its first cell."""
    history = view.cluster.sampler.history
    return [polyline(history.points(f"{kind} {row[0].text}")) for row in table.rows]


def polyline(points: list[tuple[float, float]]) -> str:
    """Give the points of a sparkline in a box of 100 by 24; empty text for less than two points."""
    if len(points) < 2:
        return ""
    start, end = points[0][0], points[-1][0]
    most = max(value for _, value in points) or 1.0
    step = max(1, len(points) // 120)
    return " ".join(
        f"{100 * (at - start) / (end - start):.1f},{23 - 22 * value / most:.1f}" for at, value in points[::step]
    )


async def topic(view: View) -> Page:
    """Show a topic: its queues, routes, settings, groups and producers."""
    name = view.part("topic")
    seen = view.cluster.sampler.seen
    settings = (await view.run("topic-show", topic=name)).table
    queues = (await view.run("topic-stats", topic=name)).table
    routes = (await view.run("topic-routes", topic=name)).table
    health = (await view.run("topic-health", topic=name)).table
    producers = (await view.run("producer-list", topic=name)).table
    groups: list[list[Cell]] = [
        [row.group, row.lag, seen.ages.get(key) if row.lag else 0.0, row.arriving, row.consuming]
        for key, row in seen.groups.items()
        if key.topic == name
    ]
    traffic = seen.topics.get(name)
    return Page(
        "topic.html",
        name,
        {
            "name": name,
            "rate": traffic.arriving if traffic else None,
            "messages": sum(int(str(count)) for count in queues.values("messages")),
            "queue_count": len(queues.rows),
            "settings": view.table(settings, "settings-", without=["topic"]),
            "queues": view.table(queues, "queues-", without=["topic"]),
            "routes": view.table(routes, "routes-", without=["topic"]),
            "groups": view.table(Table("Groups", GROUPS, groups), "groups-"),
            "group_count": len(groups),
            "findings": health.objects(),
            "meanings": meanings(settings),
            "producers": view.table(producers, "producers-"),
            "producers_note": producers.note,
            "curve": await view.curve(f"topic {name}"),
        },
        trail=[("Topics", view.href("topics"))],
        is_live=True,
    )


def meanings(settings: Table) -> list[tuple[str, str]]:
    """Give the settings that a topic has, each with its meaning."""
    attributes = {pair.partition("=")[0] for text in settings.values("attributes") for pair in str(text).split(", ")}
    names = [*settings.columns, *sorted(attributes)]
    return [(heading(name), MEANINGS[name]) for name in names if name in MEANINGS]


PAGES: Final = (Declared("/topics", topics), Declared("/topics/{topic}", topic))
