"""Parts of a topic: messages of all its queues in the order of time, from a place on, forward or back.

A part has its limits: rows, messages that are examined, bytes that are read, seconds. Its positions, a queue offset
for each queue, are where the next or the previous part begins, so parts of any filter follow each other without holes.
A queue is read in windows; tags and SQL92 are evaluated by the broker, other filters here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from firearrow.cli.cluster.masters import addresses_by_broker
from firearrow.cli.messages.bodyviews import beginning, body_of
from firearrow.cli.messages.reading import ALL, Place, chosen
from firearrow.cli.output.reports import Cell, Table, as_moment, in_bytes
from firearrow.cli.parameters import WrongOptions
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.messages import PullStatus
from firearrow.client.diagnosis.findings import counted
from firearrow.clock import Clock
from firearrow.errors import NotFound
from firearrow.message.compress import compression_of
from firearrow.message.model import MessageView
from firearrow.wire.client_bodies import MessageQueue

COLUMNS: Final = (
    "storedAt", "topic", "broker", "queueId", "queueOffset", "messageId", "offsetMessageId", "tag", "keys", "bodyBytes",
    "body",
)  # fmt: skip
PLACES: Final = ("broker", "queueId", "earliestOffset", "fromOffset", "toOffset", "endOffset")
BODY_CHARACTERS: Final = 160

PULL_MAX: Final = 32
WINDOW_MAX: Final = 128
FILTERED_WINDOW_MAX: Final = 800
"""Offsets that a broker examines at once for a filter."""
EXAMINED_MAX: Final = 20_000
FILTERED_MAX: Final = 400_000
"""Messages that brokers examine for a part."""
BYTES_MAX: Final = 32 << 20
SECONDS_MAX: Final = 8.0
QUEUES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters of messages: tags and SQL92 for the broker; a property, perhaps with its value, and a text of the body.

    ``value`` None stands for any value.
    """

    tags: str = ALL
    sql: str = ""
    name: str = ""
    value: str | None = None
    text: str = ""

    @property
    def is_of_broker(self) -> bool:
        """Tell whether the broker selects."""
        return bool(self.sql) or self.tags != ALL

    def matches(self, message: MessageView) -> bool:
        """Tell whether a message passes the filters that brokers do not have."""
        if self.name:
            found = message.properties.get(self.name)
            if found is None or self.value not in (None, found):
                return False
        return not self.text or self.text.encode("utf-8", "replace") in body_of(message)[0]


class Edges(NamedTuple):
    """Range of a queue that is wanted: offsets from ``start`` to ``end``, the end excluded."""

    place: Place
    start: int
    end: int


class MessageRow(NamedTuple):
    """A message of a part, without its body."""

    order: tuple[int, str, int, int]
    cells: Sequence[Cell]
    unpacked: int
    """Bytes that its body has more than the stored one."""


class Part(NamedTuple):
    """Rows in the order of time, the oldest first, and the positions at both ends by queue.

    ``cut`` says which limit ended it; nothing if its rows, or the end of the queues, did.
    """

    rows: Sequence[MessageRow]
    low: Mapping[Place, int]
    high: Mapping[Place, int]
    examined: int
    has_lower: bool
    has_higher: bool
    cut: str = ""


async def edges_of(
    admin: Admin, topic: str, found: Sequence[Place], since_ms: int | None = None, until_ms: int | None = None
) -> list[Edges]:
    """Give the ranges of queues that were stored in a time span."""
    ends = (await admin.topic_stats(topic)).offset_table

    async def one(place: Place) -> Edges:
        queue = place.at_broker
        end = ends.get(MessageQueue(*place.queue))
        if end is None:
            raise NotFound(0, f"{place.queue.broker} has no queue {place.queue.queue_id} of topic {topic!r}")
        start, last = end.min_offset, end.max_offset
        if since_ms is not None:
            start = max(start, await admin.offsets.at_time(place.address, queue, since_ms))
        if until_ms is not None:
            last = min(last, await admin.offsets.at_time(place.address, queue, until_ms + 1))
        return Edges(place, start, max(start, last))

    return await concurrently(found, one)


@dataclass(slots=True)
class _Reach:
    """A queue: the rows read and not given yet, and how far it is read."""

    edges: Edges
    at: int
    """Offset up to which (back: down to which) the queue was read."""
    window: int
    rows: list[MessageRow] = field(default_factory=list)
    given: int = 0
    """Offset of the last row that was given."""

    def rest(self, back: bool) -> int:
        """Count of offsets that are not read."""
        return self.at - self.edges.start if back else self.edges.end - self.at

    def position(self, back: bool) -> int:
        """Offset where the next part begins."""
        if not self.rows:
            return self.at
        offset = self.rows[0].order[3]
        return offset + 1 if back else offset


async def part(
    admin: Admin,
    clock: Clock,
    edges: Sequence[Edges],
    wanted: Wanted,
    limit: int,
    *,
    back: bool,
    positions: Mapping[Place, int] | None = None,
) -> Part:
    """Read a part of at most ``limit`` rows: from positions (or the ends) on, or back."""
    first = min(PULL_MAX, max(4, 2 * limit // max(len(edges), 1)))
    reaches = [_Reach(it, _begin(it, positions, back), first) for it in edges]
    begins = {it.edges.place: it.at for it in reaches}
    began, examined, size, cut = clock.monotonic(), 0, 0, ""
    most = FILTERED_MAX if wanted.is_of_broker else EXAMINED_MAX
    rows: list[MessageRow] = []
    pick: Callable[..., _Reach] = max if back else min
    while len(rows) < limit:
        empty = [it for it in reaches if not it.rows and it.rest(back) > 0]
        if empty:
            if cut := _limit(examined, most, size, clock.monotonic() - began):
                break
            for count, read in await concurrently(empty, lambda it: _fill(admin, it, wanted, back)):
                examined += count
                size += read
            continue
        ready = [it for it in reaches if it.rows]
        if not ready:
            break
        best = pick(ready, key=lambda it: it.rows[0].order)
        rows.append(best.rows.pop(0))
    ends = {it.edges.place: it.position(back) for it in reaches}
    low, high = (ends, begins) if back else (begins, ends)
    return Part(
        rows[::-1] if back else rows,
        low,
        high,
        examined,
        any(low[it.place] > it.start for it in edges),
        any(high[it.place] < it.end for it in edges),
        cut,
    )


def _begin(edges: Edges, positions: Mapping[Place, int] | None, back: bool) -> int:
    if positions is None:
        return edges.end if back else edges.start
    return min(max(positions.get(edges.place, edges.end if back else edges.start), edges.start), edges.end)


def _limit(examined: int, most: int, size: int, seconds: float) -> str:
    if examined >= most:
        return f"{most:,} messages"
    if size >= BYTES_MAX:
        return in_bytes(BYTES_MAX)
    return f"{SECONDS_MAX:.0f} s" if seconds >= SECONDS_MAX else ""


async def _fill(admin: Admin, it: _Reach, wanted: Wanted, back: bool) -> tuple[int, int]:
    """Read the next window of a queue; give the counts of messages and bytes."""
    low, high = (
        (max(it.edges.start, it.at - it.window), it.at) if back else (it.at, min(it.edges.end, it.at + it.window))
    )
    place, at, size = it.edges.place, low, 0
    rows: list[MessageRow] = []
    while at < high:
        pulled = await admin.messages.pull(
            place.address, place.queue, at, min(PULL_MAX, high - at), tags=wanted.tags, sql=wanted.sql
        )
        read = sum(message.store_size for message in pulled.messages)
        size += read
        count = len(pulled.messages)
        if back and at == low and count and read > BYTES_MAX // 64 and pulled.next_offset < high:
            it.window = max(1, min(count, it.window - 1))  # large messages: a smaller window, from its end
            return await _fill(admin, it, wanted, back)
        mine = [it for it in chosen(pulled.messages, wanted.tags) if low <= it.queue_offset < high]
        found = await rows_of([(it, place.queue.broker) for it in mine], wanted)
        rows += found
        size += sum(row.unpacked for row in found)
        if pulled.status is PullStatus.NO_NEW_MSG or pulled.next_offset <= at:
            break
        at = pulled.next_offset
        if not back and size > BYTES_MAX // 64:
            high = min(high, at)
    it.at = low if back else high
    it.rows = rows[::-1] if back else rows
    if not rows:
        it.window = min(2 * it.window, FILTERED_WINDOW_MAX if wanted.is_of_broker else WINDOW_MAX)
    return high - low, size


async def rows_of(messages: Sequence[tuple[MessageView, str]], wanted: Wanted) -> list[MessageRow]:
    """Give the rows of messages that pass, each with its broker.

    Some KiB may unpack to many MiB: that is done in a thread, so that nobody else waits for it.
    """

    def rows() -> list[MessageRow]:
        return [row_of(message, broker) for message, broker in messages if wanted.matches(message)]

    is_packed = any(compression_of(message.sys_flag) is not None for message, _ in messages)
    return await asyncio.to_thread(rows) if is_packed else rows()


def row_of(message: MessageView, broker: str) -> MessageRow:
    """Give the row of a message for `COLUMNS`."""
    body, _ = body_of(message)
    return MessageRow(
        (message.store_timestamp_ms, broker, message.physical_offset, message.queue_offset),
        [
            as_moment(message.store_timestamp_ms),
            message.topic,
            broker,
            message.queue_id,
            message.queue_offset,
            message.unique_key or message.offset_message_id,
            message.offset_message_id,
            message.tags,
            " ".join(message.keys) or None,
            len(body),
            beginning(body, BODY_CHARACTERS),
        ],
        max(0, len(body) - len(message.body)),
    )


# --- Positions as text, for a command line or an address ---


def positions_in(text: str, found: Sequence[Place]) -> dict[Place, int]:
    """Read ``broker:queue:offset,...``; WrongOptions for another text, a queue that is gone is left out."""
    known = {(it.queue.broker, it.queue.queue_id): it for it in found}
    positions: dict[Place, int] = {}
    for word in text.split(","):
        broker, _, rest = word.strip().rpartition(":")
        broker, _, queue = broker.rpartition(":")
        if not (broker and queue.isdecimal() and rest.isdecimal() and len(rest) < 19 and len(queue) < 10):
            raise WrongOptions(f"{word!r} is not BROKER:QUEUE:OFFSET")
        if (broker, int(queue)) in known:
            positions[known[broker, int(queue)]] = int(rest)
    return positions


def note_of(part: Part) -> str:
    """Give a sentence on the work for a part, and one on the next part if a limit ended the search."""
    cut = f" The search ended at its limit of {part.cut}: the next part goes on there." if part.cut else ""
    return f"{counted(part.examined, 'message')} examined, {len(part.rows):,} shown.{cut}"


def tables_of(part: Part, edges: Sequence[Edges], *, oldest: bool) -> list[Table]:
    """Give the messages of a part, and its places in the queues."""
    rows = [row.cells for row in (part.rows if oldest else part.rows[::-1])]
    places: list[Sequence[Cell]] = [
        [*it.place.queue[1:], it.start, part.low[it.place], part.high[it.place], it.end] for it in edges
    ]
    more = part.has_higher if oldest else part.has_lower
    return [Table("Messages", COLUMNS, rows, note_of(part), more=more), Table("Places", PLACES, places)]


async def with_key(admin: Admin, topic: str, key: str, wanted: Wanted, limit: int) -> Table:
    """Give the messages with a key, by the indexes of the brokers, the newest first."""
    if wanted.sql:
        raise WrongOptions("brokers do not evaluate SQL92 on messages of an index: give a key or an expression")
    brokers = addresses_by_broker(await admin.cluster())
    names = {address: name for name, address in brokers.items()}
    found = await admin.find(topic, key, count=limit)
    several = chosen(found, wanted.tags)
    rows = await rows_of([(it, names.get(str(it.store_host), str(it.store_host))) for it in several], wanted)
    note = f"The index names {counted(len(found), 'message')} with this key"
    note += f", the most that are looked up; {len(rows):,} shown." if len(found) >= limit else f", {len(rows):,} shown."
    return Table("Messages", COLUMNS, [row.cells for row in sorted(rows, reverse=True)], note)
