"""`firearrow pop`: pops of a group, from the reports of its brokers and members.

Brokers report the pops that wait for messages, and how far they are with giving messages back. The invisible messages
follow from the records of pops (``wire.poprecords``). These wait in the timer's topic until their messages are due, and
then they stand in the revive topic until the broker has given the messages back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import sentence
from firearrow.cli.messages.reading import newest
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import count as count_of
from firearrow.cli.parameters import valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.diagnosis import groupfacts
from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError, MessageError, NotFound
from firearrow.message import names
from firearrow.message.model import MessageView
from firearrow.message.names import REVIVE_GROUP
from firearrow.message.properties import REAL_TOPIC
from firearrow.wire.poprecords import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    Acknowledgement,
    PopCheckpoint,
    acknowledgement_of,
    checkpoint_of,
)

SHOW: Final = ("group", "topic", "broker", "popsWaiting", "notAcknowledged", "lastPopAt")
REVIVE: Final = ("broker", "topic", "lag", "queues", "state", "reason")
INVISIBLE: Final = ("broker", "topic", "queueId", "queueOffset", "poppedAt", "invisibleUntil", "recordedBy")
NOT_TOLD: Final = (
    "Members by gRPC do not report messages that they have not acknowledged. `firearrow pop invisible` shows the "
    "messages themselves, by the records of brokers."
)
NOT_RECORDED: Final = (
    "Not shown: pops in order and of lite topics, of which brokers write no such records. No record names the client."
)
RECORDS_MAX: Final = 10_000
"""Records of pops that are examined in each queue."""
DELIVERED_MS: Final = 2000
"""Time after which the timer has delivered all records of messages that are due."""

app: Final = CommandGroup()


@app.command("show")
async def show_pops(group: Group, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the waiting pops of a group, and the messages that its members have not acknowledged."""
    async with cluster.admin() as admin:
        facts = await groupfacts.collect(admin, group, SystemClock().now_ms())
        places = [(topic, master) for topic in facts.topics for master in masters_in(await admin.cluster())]
        waiting = await concurrently(places, lambda place: _waiting(admin, group, *place))
    held: Counter[tuple[str, str]] = Counter()
    popped: dict[tuple[str, str], int] = {}
    for client in facts.clients:
        for queue, it in client.info.mq_pop_table.items() if client.info is not None else ():
            place = queue.topic, queue.broker_name
            held[place] += it.wait_ack_count
            popped[place] = max(popped.get(place, 0), it.last_pop_timestamp)
    rows: list[list[Cell]] = []
    for (topic, master), count in zip(places, waiting, strict=True):
        place = topic, master.broker
        not_acknowledged = held[place] if place in popped else None
        rows.append([group, *place, count, not_acknowledged, as_moment(popped.get(place, 0))])
    output.show(Table("Pops", SHOW, rows, NOT_TOLD))


async def _waiting(admin: Admin, group: str, topic: str, master: RegisteredBroker) -> int | None:
    """Count of waiting pops; None if the broker does not report it."""
    try:
        return await admin.groups.pops_waiting(master.address, group, topic)
    except (OSError, FirearrowError):
        return None


@app.command("revive")
async def show_revive(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show how far each broker is with giving back messages that were not acknowledged in time."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster())
        parts = await concurrently(masters, lambda master: _revive(admin, master))
    output.show(Table("Messages to give back", REVIVE, [row for part in parts for row in part]))


async def _revive(admin: Admin, master: RegisteredBroker) -> list[list[Cell]]:
    try:
        stats = await admin.offsets.progress(master.address, REVIVE_GROUP)
    except NotFound:
        return [[master.broker, None, 0, 0, "ok", "nothing was popped yet"]]
    except (OSError, FirearrowError) as error:
        return [[master.broker, None, None, None, "failed", sentence(error)]]
    lags: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    for queue, at in stats.offset_table.items():
        lags[queue.topic] += at.lag
        queues[queue.topic] += 1
    if not queues:
        return [[master.broker, None, 0, 0, "ok", "nothing was popped yet"]]
    return [[master.broker, topic, lags[topic], queues[topic], "ok", ""] for topic in sorted(queues)]


# --- invisible messages ---


@app.command("invisible")
async def show_invisible(
    group: Group,
    /,
    *,
    limit: Annotated[int, valued("N", "largest number, the oldest; 0 for all (default: 100)", count_of)] = 100,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show messages that a group has popped and not acknowledged, the oldest first, and when they are visible again."""
    books, notes = _Books(group, SystemClock().now_ms()), list[str]()

    async def one(server: RegisteredBroker) -> None:
        try:
            await _read_records(admin, server, books, notes)
        except (OSError, FirearrowError) as error:
            notes.append(f"Broker {server.broker} does not tell all: {sentence(error)}.")

    async with cluster.admin() as admin:
        await concurrently(masters_in(await admin.cluster()), one)
    rows = books.rows()
    shown = rows[:limit] if limit else rows
    if not rows:
        notes.insert(0, f"No record says that {group} has an invisible message.")
    elif len(shown) < len(rows):
        notes.insert(0, f"{len(rows):,} messages are invisible.")
    note = " ".join([*notes, *books.notes(), NOT_RECORDED])
    output.show(Table("Invisible messages", INVISIBLE, shown, note, more=len(shown) < len(rows)))


async def _read_records(admin: Admin, server: RegisteredBroker, books: _Books, notes: list[str]) -> None:
    """Read a broker's records of pops: those that wait in the timer's topic, and those that it has delivered."""
    notes += _unwritten(server.broker, await admin.brokers.config(server.address))
    tags = "||".join((CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG))
    topic = names.revive_topic(server.cluster)
    try:
        done = (await admin.offsets.progress(server.address, REVIVE_GROUP)).offset_table
    except NotFound:  # nothing was given back yet
        done = {}
    behind = {queue: at.consumer_offset + 1 for queue, at in done.items()}
    async for record in newest(admin, server, topic, notes, behind=behind, count=RECORDS_MAX, tags=tags):
        books.take(record, server.broker, is_delivered=True)
    async for record in newest(admin, server, names.TIMER_TOPIC, notes, count=RECORDS_MAX, tags=tags):
        if record.properties.get(REAL_TOPIC) == topic:
            books.take(record, server.broker, is_delivered=False)


def _unwritten(broker: str, config: Mapping[str, str]) -> list[str]:
    """Say which pops a broker does not record in its log."""
    if config.get("popConsumerKVServiceEnable") == "true":
        return [f"Broker {broker} records pops in RocksDB (popConsumerKVServiceEnable), where only it can read them."]
    if config.get("enablePopBufferMerge") == "true":
        kept_ms = config.get("popCkStayBufferTime", "")
        return [
            f"Broker {broker} keeps pops in memory for up to {kept_ms} ms before it records them (popCkStayBufferTime)."
        ]
    return []


class _Message(NamedTuple):
    """Place of a message."""

    broker: str
    topic: str
    queue_id: int
    queue_offset: int


class _Pop(NamedTuple):
    """A pop of a message."""

    pop_ms: int
    visible_ms: int
    recorded_by: str


class _Books:
    """Pops of a group by their records, in any order. The newest pop of a message counts."""

    def __init__(self, group: str, now_ms: int) -> None:
        self._group = group
        self._now_ms = now_ms
        self._pops: dict[_Message, _Pop] = {}
        self._done: set[tuple[_Message, int]] = set()
        self._unreadable = 0

    def take(self, record: MessageView, server: str, *, is_delivered: bool) -> None:
        """Note a record of a server; the timer has delivered it, or it still waits."""
        try:
            if record.tags == CHECKPOINT_TAG:
                self._popped(checkpoint_of(record.body), server, is_delivered=is_delivered)
            else:
                self._acknowledged(acknowledgement_of(record.body), server)
        except MessageError:
            self._unreadable += 1

    def _popped(self, record: PopCheckpoint, server: str, *, is_delivered: bool) -> None:
        is_due = record.due_ms <= self._now_ms - DELIVERED_MS
        if record.group != self._group or is_delivered != is_due:  # acknowledgements would be in the other topic
            return
        pop = _Pop(record.pop_ms, record.due_ms, server)
        for queue_offset in record.left:
            message = _Message(record.broker_name or server, record.topic, record.queue_id, queue_offset)
            self._pops[message] = max(pop, self._pops.get(message, pop))

    def _acknowledged(self, record: Acknowledgement, server: str) -> None:
        if record.group == self._group:
            for queue_offset in record.acknowledged:
                message = _Message(record.broker_name or server, record.topic, record.queue_id, queue_offset)
                self._done.add((message, record.pop_ms))

    def rows(self) -> list[list[Cell]]:
        """Give the cells of `INVISIBLE`, the oldest pop first."""
        left = [(pop, message) for message, pop in self._pops.items() if (message, pop.pop_ms) not in self._done]
        return [
            [*message, as_moment(pop.pop_ms), as_moment(pop.visible_ms), pop.recorded_by]
            for pop, message in sorted(left)
        ]

    def notes(self) -> list[str]:
        """Say what could not be read."""
        return [f"{self._unreadable:,} records can't be read."] if self._unreadable else []
