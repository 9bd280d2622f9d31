"""Groups: the list with lags in messages and seconds, and the page of one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from firearrow.cli.cluster.clients import KnownClient
from firearrow.cli.output.reports import Cell, Table
from firearrow.client.diagnosis import groupfacts, grouprules
from firearrow.client.diagnosis.findings import by_gravity
from firearrow.client.diagnosis.traffic import GroupRow
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.topics import sparks
from firearrow.console.sampler import Key, Seen
from firearrow.message.names import is_retry
from firearrow.wire.client_bodies import MessageQueue, PopProcessQueueInfo
from firearrow.wire.codes import version_name

LIST: Final = ("group", "topics", "lag", "lagSeconds", "arriving", "consuming", "untilDoneSeconds")
MEMBERS: Final = (
    "group", "clientId", "access", "language", "version", "address", "queues", "cached", "waitForAck", "note",
)  # fmt: skip
SUBSCRIPTIONS: Final = ("topic", "expression", "kind", "members", "state", "wantedBy")
TOPICS: Final = ("topic", "lag", "lagSeconds", "arriving", "consuming", "untilDoneSeconds")


class Part(NamedTuple):
    """A part of a backlog: its messages, and the seconds since the first of them was stored."""

    name: str
    messages: int
    seconds: float | None
    meaning: str


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
    """Show a group: why it does not consume, what makes up its backlog, its members, subscriptions and queues.

    With ``filtered=yes`` the messages that its filters select are counted, each message of the backlog once.
    """
    name = view.part("group")
    cluster = view.cluster
    facts = await groupfacts.collect(cluster.admin, name, cluster.clock.now_ms())
    seen = cluster.sampler.seen
    mine = list(seen.of_group(name))
    lag, age, *_ = _sums(seen, name, mine)
    topics = [[row.topic, *_sums(seen, name, [row])] for row in mine]
    queues = (await view.run("lag", group=name, by="queue")).table if facts.places else Table("Queues", (), [])
    counts_filtered = view.query.get("filtered") == "yes"
    filtered = (await view.run("lag", group=name, by="topic", filtered="yes")).table if counts_filtered else None
    return Page(
        "group.html",
        name,
        {
            "name": name,
            "facts": facts,
            "lag": lag,
            "age": age,
            "findings": by_gravity(grouprules.findings(facts)),
            "backlog": backlog(facts, seen, mine),
            "filtered": None if filtered is None else view.table(filtered, "filtered-", without=["group"]),
            "topics": view.table(Table("Topics", TOPICS, topics), "topics-"),
            "queues": view.table(with_owners(queues, facts), "queues-", without=["group"]),
            "clients": view.table(members(facts), "clients-", without=["group"]),
            "subscriptions": view.table(subscriptions(facts), "subscriptions-"),
            "curve": await view.curve(f"group {name}"),
        },
        trail=[("Groups", view.href("groups"))],
        is_live=not counts_filtered,
    )


def backlog(facts: groupfacts.GroupFacts, seen: Seen, rows: Iterable[GroupRow]) -> list[Part]:
    """Give the parts of a group's backlog."""
    several = list(rows)
    retries = [row for row in several if is_retry(row.topic)]
    firsts = [row for row in several if not is_retry(row.topic)]
    flying = sum(max(0, place.offsets.in_flight) for place in facts.places.values())
    popped = sum(
        popped.wait_ack_count for it in facts.clients if it.info is not None for popped in it.info.mq_pop_table.values()
    )
    return [
        Part("not consumed", sum(row.lag for row in firsts), _oldest(seen, firsts), "in the topics of the group"),
        Part("to redeliver", sum(row.lag for row in retries), _oldest(seen, retries), "failed before, in retry topics"),
        Part("in flight", flying, None, "pulled by members, whose offset is not committed yet; a part of the lag"),
        Part("popped", popped, None, "not acknowledged, as members report; gRPC clients report none"),
        Part("dead letters", facts.dead, None, "given up after the last retry; no part of the lag"),
    ]


def _oldest(seen: Seen, rows: Iterable[GroupRow]) -> float | None:
    ages = [age for row in rows if row.lag and (age := seen.ages.get(Key(row.group, row.topic))) is not None]
    return max(ages, default=None)


def members(facts: groupfacts.GroupFacts) -> Table:
    """Give the members of a group, with the queues and messages that each holds."""
    rows: list[list[Cell]] = []
    for it in facts.clients:
        one = next(iter(it.connections.values()))[0]
        known = KnownClient(facts.group, it.client_id, {}, (), it.info, it.error)
        held = [queue for queue in it.info.mq_table.values() if not queue.droped] if it.info is not None else []
        popped = list(it.info.mq_pop_table.values()) if it.info is not None else []
        counts: list[Cell] = [None, None, None]
        if known.access == "remoting":
            counts = [len(held) + len(popped), sum(queue.cached_msg_count for queue in held), _waiting(popped)]
        rows.append(
            [
                facts.group,
                it.client_id,
                known.access,
                one.language,
                version_name(one.version),
                one.client_addr,
                *counts,
                it.error or ("paused" if it.info is not None and it.info.is_paused else ""),
            ]
        )
    return Table("Members", MEMBERS, rows)


def _waiting(popped: Iterable[PopProcessQueueInfo]) -> int:
    return sum(it.wait_ack_count for it in popped)


def subscriptions(facts: groupfacts.GroupFacts) -> Table:
    """Give the subscriptions of a group's members: which member wants which messages of a topic."""
    wishes: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for it in facts.clients:
        for wanted in it.info.subscription_set if it.info is not None else ():
            wishes[wanted.topic, wanted.sub_string, wanted.expression_type or "TAG"].append(it.client_id)
    told = sum(it.info is not None for it in facts.clients)
    rows: list[list[Cell]] = [
        [*wish, len(ids), "ok" if len(ids) == told else "different", "" if len(ids) == told else ", ".join(ids)]
        for wish, ids in sorted(wishes.items())
    ]
    return Table("Subscriptions", SUBSCRIPTIONS, rows)


def with_owners(queues: Table, facts: groupfacts.GroupFacts) -> Table:
    """Add to each queue the messages in flight and the members that have it."""
    if not queues.rows:
        return queues
    owners = facts.owners()
    rows: list[list[Cell]] = []
    for row in queues.rows:
        _, topic, broker, queue_id, *_ = row
        queue = MessageQueue(str(topic), str(broker), int(str(queue_id)))
        place = facts.places.get(queue)
        flying = max(0, place.offsets.in_flight) if place is not None else None
        rows.append([*row, flying, ", ".join(owners.get(queue, ())) or None])
    return queues.changed(columns=[*queues.columns, "inFlight", "owner"], rows=rows)


PAGES: Final = (Declared("/groups", groups), Declared("/groups/{group}", group))
