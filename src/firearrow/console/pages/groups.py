"""Groups: the list with lags in messages and seconds, and the page of one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from firearrow.cli.output.reports import Cell, Table
from firearrow.client.diagnosis import groupfacts, grouprules
from firearrow.client.diagnosis.findings import by_gravity
from firearrow.client.diagnosis.traffic import GroupRow
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.topics import sparks
from firearrow.console.sampler import Key, Seen

LIST: Final = ("group", "topics", "lag", "lagSeconds", "arriving", "consuming", "untilDoneSeconds")
TOPICS: Final = ("topic", "lag", "lagSeconds", "arriving", "consuming", "untilDoneSeconds")


async def groups(view: View) -> Page:
    """List groups with their lag."""
    seen = view.cluster.sampler.seen
    by_group: defaultdict[str, list[GroupRow]] = defaultdict(list)
    for key, row in seen.groups.items():
        by_group[key.group].append(row)
    rows = [[name, len(several), *_sums(seen, name, several)] for name, several in by_group.items()]
    rows.sort(key=lambda row: (-int(str(row[2])), str(row[0])))
    table = view.table(Table("Groups", LIST, rows))
    context = {"table": table, "sparks": sparks(view, table, "group"), "seen": seen}
    return Page("groups.html", "Groups", context, is_live=True)


def _sums(seen: Seen, group: str, rows: Iterable[GroupRow]) -> list[Cell]:
    """Lag, age and rates of a group over all its topics."""
    several = list(rows)
    lag = sum(row.lag for row in several)
    ages = [age for row in several if row.lag and (age := seen.ages.get(Key(group, row.topic))) is not None]
    arriving, consuming = (
        [rate for row in several if (rate := getattr(row, name)) is not None] for name in ("arriving", "consuming")
    )
    total = GroupRow(group, "", lag, sum(arriving) if arriving else None, sum(consuming) if consuming else None)
    age = max(ages, default=None) if lag else 0.0
    return [lag, age, total.arriving, total.consuming, total.seconds_left]


async def group(view: View) -> Page:
    """Show a group: why it does not consume, its members, queues and settings."""
    name = view.part("group")
    cluster = view.cluster
    facts = await groupfacts.collect(cluster.admin, name, cluster.clock.now_ms())
    seen = cluster.sampler.seen
    mine = list(seen.of_group(name))
    lag, age, *_ = _sums(seen, name, mine)
    topics = [[row.topic, *_sums(seen, name, [row])] for row in mine]
    queues = (await view.run("lag", group=name, by="queue")).table if facts.places else Table("Queues", (), [])
    clients = (await view.run("group-clients", name=name)).table if facts.clients else Table("Clients", (), [])
    return Page(
        "group.html",
        name,
        {
            "name": name,
            "facts": facts,
            "lag": lag,
            "age": age,
            "findings": by_gravity(grouprules.findings(facts)),
            "topics": view.table(Table("Topics", TOPICS, topics), "topics-"),
            "queues": view.table(queues, "queues-", without=["group"]),
            "clients": view.table(clients, "clients-", without=["group"]),
            "columns": cluster.sampler.history.columns((f"group {name}",)),
        },
        trail=[("Groups", view.href("groups"))],
        is_live=True,
    )


PAGES: Final = (Declared("/groups", groups), Declared("/groups/{group}", group))
