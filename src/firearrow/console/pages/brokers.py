"""Brokers: the list of masters and slaves, and the page of one broker with the meaning of its counters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.cli.cluster.counters import UNKNOWN, in_words
from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.output.reports import Cell, Table
from firearrow.client.admin import Admin
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.topics import polyline
from firearrow.console.sampler import Seen
from firearrow.errors import FirearrowError
from firearrow.wire.bodies import MASTER_ID, PERM_WRITE

LIST: Final = (
    "broker", "role", "address", "state", "version", "arriving", "consuming", "diskShare", "behindBytes",
    "upSeconds", "note",
)  # fmt: skip
SUBJECTS: Final = ("broker", "messages", "latency", "log and disk", "dispatch", "page cache", "timed messages")
POOLS: Final = "thread pools"
POOL_COLUMNS: Final = ("pool", "waiting", "capacity", "firstWaitsMs")
_POOL: Final = re.compile(r"(\w+?)(?:ThreadPool)?Queue(Size|Capacity|HeadWaitTimeMills)")
_TOOK: Final = re.compile(r"\[([^\]]*)\]:(\d+)")


class Fact(NamedTuple):
    """A counter as the page shows it."""

    name: str
    value: str
    meaning: str


def role_of(broker_id: int) -> str:
    """Give the role of a broker by its number."""
    return "master" if broker_id == MASTER_ID else f"slave {broker_id}"


def up_seconds(fact: BrokerFacts, now_ms: int) -> float | None:
    """Give the time since the start of a broker; None if it does not report that."""
    boot = fact.number("bootTimestamp")
    return max(0.0, (now_ms - boot) / 1000) if boot else None


async def sampled(view: View) -> Seen:
    """Give the sample of the cluster; wait for the first one after the start."""
    sampler = view.cluster.sampler
    await sampler.news(0)
    return sampler.seen


async def brokers(view: View) -> Page:
    """List masters and slaves with their rates, disk and age."""
    seen = await sampled(view)
    table = view.table(Table("Brokers", LIST, _rows(view)))
    history = view.cluster.sampler.history
    at = LIST.index("address")
    sparks = [polyline(history.points(f"broker {row[at].text}")) for row in table.rows]
    return Page("brokers.html", "Brokers", {"table": table, "sparks": sparks, "seen": seen}, is_live=True)


def _rows(view: View) -> list[list[Cell]]:
    seen = view.cluster.sampler.seen
    facts = {fact.address: fact for fact in seen.facts}
    rows: list[list[Cell]] = []
    for row in seen.brokers:
        fact = facts.get(row.address)
        name, _, role = row.broker.partition(" ")
        note = row.note or (fact.error if fact is not None else "")
        rows.append(
            [
                name,
                role_of(fact.broker_id) if fact is not None else role.strip("()") or "master",
                row.address,
                "failed" if note else "ok",
                fact.counted.get("brokerVersionDesc") if fact is not None else None,
                row.arriving,
                row.consuming,
                row.disk,
                row.behind_bytes,
                up_seconds(fact, seen.at_ms) if fact is not None else None,
                note,
            ]
        )
    return rows


async def servers_of(view: View, name: str) -> tuple[list[tuple[str, str, bool]], BrokerFacts]:
    """Give master and slaves of a broker, each with role, address and a mark of the chosen one, and that one.

    ``server`` in the query chooses by address, by default it is the first.
    """
    facts = (await sampled(view)).facts
    found = [fact for fact in facts if name in (fact.name, fact.address)]
    if not found:
        known = ", ".join(sorted({fact.name for fact in facts})) or "none"
        raise NothingFound(f"There is no broker {name!r}. Registered are: {known}.")
    chosen = next((it for it in found if it.address == view.query.get("server")), found[0])
    return [(role_of(it.broker_id), it.address, it is chosen) for it in found], chosen


async def broker(view: View) -> Page:
    """Show a broker: its counters by subject, thread pools, and the time that messages took."""
    servers, chosen = await servers_of(view, view.part("broker"))
    return Page(
        "broker.html",
        chosen.name,
        {
            "name": chosen.name,
            "servers": servers,
            "it": chosen,
            "role": role_of(chosen.broker_id),
            "up": up_seconds(chosen, view.cluster.sampler.seen.at_ms),
            "columns": view.cluster.sampler.history.columns((f"broker {chosen.address}",)),
            "is_drained": await is_drained(view.cluster.admin, chosen.name),
            **(await _answer(view, chosen)),
        },
        trail=[("Brokers", view.href("brokers"))],
        is_live=True,
    )


async def is_drained(admin: Admin, broker: str) -> bool:
    """Tell whether the name servers have taken the write permission of a broker, by the topic that has its name."""
    try:
        queues = (await admin.topics.route(broker)).queue_datas
    except (OSError, FirearrowError):  # not every broker has that topic
        return False
    return any(data.broker_name == broker and not data.perm & PERM_WRITE for data in queues)


async def _answer(view: View, it: BrokerFacts) -> dict[str, object]:
    """Give the counters of a broker, or the reason why it does not answer."""
    try:
        return _counted(view, (await view.run("broker-show", broker=it.address)).table)
    except (OSError, FirearrowError) as error:
        return {**_counted(view, Table("", (), [])), "reason": sentence(error)}


def _counted(view: View, table: Table) -> dict[str, object]:
    facts: defaultdict[str, list[Fact]] = defaultdict(list)
    values: dict[str, str] = {}
    for row in table.objects():
        name, value = str(row["name"]), str(row["value"] or "")
        values[name] = value
        facts[str(row["subject"])].append(Fact(name, in_words(name, value), str(row["meaning"])))
    subjects = [*(it for it in SUBJECTS if it in facts), *sorted(facts.keys() - {*SUBJECTS, POOLS, UNKNOWN}), UNKNOWN]
    pools = Table("Thread pools", POOL_COLUMNS, list(_pools(values)))
    return {
        "reason": "",
        "subjects": [(it, facts[it]) for it in subjects if facts[it]],
        "pools": view.table(pools, "pools-"),
        "took": took(values.get("putMessageDistributeTime", "")),
    }


def _pools(values: Mapping[str, str]) -> Iterator[Sequence[Cell]]:
    """Give a row for each thread pool: requests that wait, that may wait, and the wait of the first."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, value in values.items():
        if (match := _POOL.fullmatch(name)) and value.isdecimal():
            found[match[1]][match[2]] = int(value)
    for pool, it in sorted(found.items()):
        yield [pool, it.get("Size"), it.get("Capacity"), it.get("HeadWaitTimeMills")]


def took(text: str) -> list[tuple[str, int, int]]:
    """Read how many messages took a time to be stored: the time, the count, and the percentage of all.

    ``[<=0ms]:90 [0~10ms]:10``.
    """
    found = [(span, int(count)) for span, count in _TOOK.findall(text)]
    total = sum(count for _, count in found) or 1
    return [(_span(span), count, round(100 * count / total)) for span, count in found]


def _span(text: str) -> str:
    first, tilde, last = text.partition("~")
    if tilde and not last:
        return f"{first} or more"
    return f"{first} to {last}" if tilde else text


PAGES: Final = (Declared("/brokers", brokers), Declared("/brokers/{broker}", broker))
