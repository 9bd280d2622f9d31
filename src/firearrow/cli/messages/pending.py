"""Pending messages: those that brokers keep until their time, by a timer or by a delay level.

A broker tells how many messages wait for each topic. The messages themselves are in its topics ``rmq_sys_wheel_timer``
and ``SCHEDULE_TOPIC_XXXX``. The newest of these are read, and the messages whose time has not come yet are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.messages.bodyviews import beginning, body_of
from firearrow.cli.messages.reading import NEWEST_MAX, Place, newest, read
from firearrow.cli.output.reports import Cell, Table, as_moment, in_time
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.diagnosis.findings import counted
from firearrow.client.queues import Queue
from firearrow.errors import ConfigError, FirearrowError
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.message.recall import RecallHandle
from firearrow.store import DelayLevels

COLUMNS: Final = (
    "dueAt", "topic", "messageId", "offsetMessageId", "tag", "keys", "storedAt", "broker", "bodyBytes", "body",
    "recallHandle",
)  # fmt: skip
TOPICS: Final = ("topic", "broker", "kind", "waiting")
BODY_CHARACTERS: Final = 80
LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_DIGITS_MAX: Final = 15


class Waiting(NamedTuple):
    """A message that waits until a time."""

    due_ms: int
    topic: str
    row: Sequence[Cell]


class _Kept(NamedTuple):
    """Waiting messages of a broker, and notes on messages that could not be read."""

    found: list[Waiting]
    notes: list[str]


async def waiting(admin: Admin, topic: str | None, now_ms: int) -> tuple[list[Waiting], str]:
    """Give the messages that wait, the soonest first, and a note on those that were not read."""

    async def one(server: RegisteredBroker) -> _Kept:
        kept = _Kept([], [])
        for examine in (_of_timer, _of_levels):
            try:
                await examine(admin, server, now_ms, kept)
            except (OSError, FirearrowError) as error:
                kept.notes.append(f"Broker {server.broker} does not tell all: {error}.")
        return kept

    parts = await concurrently(masters_in(await admin.cluster()), one)
    found = [it for part in parts for it in part.found if topic in (None, it.topic)]
    return sorted(found, key=lambda it: (it.due_ms, str(it.row[3]))), " ".join(
        it for part in parts for it in part.notes
    )


async def _of_timer(admin: Admin, server: RegisteredBroker, now_ms: int, kept: _Kept) -> None:
    latest: dict[tuple[str, str], Waiting] = {}  # a message that rolls is there twice
    async for message in newest(admin, server, names.TIMER_TOPIC, kept.notes):
        found, topic = message.properties, message.properties.get(keys_of.REAL_TOPIC, "")
        recalled = found.get(keys_of.TIMER_DELETE_UNIQUE_KEY)
        if recalled is not None:
            latest.pop((topic, recalled.removeprefix(f"{topic}+")), None)
            continue
        key = (topic, message.unique_key or message.offset_message_id)
        due = _whole(found.get(keys_of.TIMER_OUT_MS, ""))
        if due > now_ms:
            handle = None
            if message.unique_key and not names.is_retry(topic):
                handle = RecallHandle(topic, server.broker, due + 1, message.unique_key).encode()
            latest[key] = Waiting(due, topic, _row(message, due, topic, server.broker, handle))
    kept.found.extend(latest.values())


async def _of_levels(admin: Admin, server: RegisteredBroker, now_ms: int, kept: _Kept) -> None:
    levels = await _levels(admin, server)
    spans = await _spans(admin, server)
    rest = NEWEST_MAX
    for level, (start, end) in spans.items():
        if end - start > rest:
            kept.notes.append(
                f"Of delay level {level} of {server.broker}, {rest:,} of {end - start:,} messages were read."
            )
        place = Place(Queue(names.SCHEDULE_TOPIC, server.broker, level - 1), server.address)
        async for it in read(admin, place, start, min(end, start + rest)):
            message = it.message
            topic = message.properties.get(keys_of.REAL_TOPIC, "")
            due = levels.due_ms(level, message.store_timestamp_ms)
            if due > now_ms:
                kept.found.append(Waiting(due, topic, _row(message, due, topic, server.broker, None)))
        rest -= min(end - start, rest)


async def _levels(admin: Admin, server: RegisteredBroker) -> DelayLevels:
    try:
        return DelayLevels((await admin.brokers.config(server.address)).get("messageDelayLevel", LEVELS))
    except (OSError, FirearrowError, ConfigError):
        return DelayLevels(LEVELS)


async def _spans(admin: Admin, server: RegisteredBroker) -> dict[int, tuple[int, int]]:
    """Give the offsets of each delay level that are not delivered, from the first on; the end is excluded."""
    delivered = await admin.brokers.delay_offsets(server.address)
    ends = (await admin.topics.stats(server.address, names.SCHEDULE_TOPIC)).offset_table
    spans = {
        queue.queue_id + 1: (max(delivered.get(queue.queue_id + 1, 0), end.min_offset), end.max_offset)
        for queue, end in ends.items()
    }
    return {level: span for level, span in sorted(spans.items()) if span[0] < span[1]}


def _row(message: MessageView, due_ms: int, topic: str, broker: str, handle: str | None) -> list[Cell]:
    body, _ = body_of(message)
    return [
        as_moment(due_ms),
        topic,
        message.unique_key or message.offset_message_id,
        message.offset_message_id,
        message.tags,
        " ".join(message.keys) or None,
        as_moment(message.store_timestamp_ms),
        broker,
        len(body),
        beginning(body, BODY_CHARACTERS),
        handle,
    ]


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else 0


# --- Tables ---


async def by_topic(admin: Admin) -> Table:
    """Give the count of waiting messages by topic, as brokers tell it, and by delay level."""
    notes: list[str] = []

    async def one(server: RegisteredBroker) -> list[Sequence[Cell]]:
        rows: list[Sequence[Cell]] = []
        for waiting in (_by_timer, _by_level):
            try:
                rows += await waiting(admin, server)
            except (OSError, FirearrowError) as error:
                notes.append(f"Broker {server.broker} does not tell all: {error}.")
        return rows

    parts = await concurrently(masters_in(await admin.cluster()), one)
    return Table("Waiting", TOPICS, [row for part in parts for row in part], " ".join(notes))


async def _by_timer(admin: Admin, server: RegisteredBroker) -> list[Sequence[Cell]]:
    counts = await admin.brokers.timer_counts(server.address)
    return [[topic, server.broker, "timer", count] for topic, count in sorted(counts.items()) if count]


async def _by_level(admin: Admin, server: RegisteredBroker) -> list[Sequence[Cell]]:
    levels = await _levels(admin, server)
    return [
        [None, server.broker, f"delay level {level} ({in_time(levels.delay_ms(level) / 1000)})", end - start]
        for level, (start, end) in (await _spans(admin, server)).items()
    ]


def by_time(found: Iterable[Waiting], now_ms: int, seconds: int, count: int, note: str) -> Table:
    """Count the messages that are due in each of the next stretches of time."""
    stretches = Counter((it.due_ms - now_ms) // (1000 * seconds) for it in found)
    rows: list[list[Cell]] = [
        [as_moment(now_ms + 1000 * seconds * number), seconds * number, stretches[number]] for number in range(count)
    ]
    later = sum(several for number, several in stretches.items() if number >= count)
    said = f"{counted(later, 'message is', 'messages are')} due later." if later else ""
    return Table("Due", ("from", "aheadSeconds", "due"), rows, f"{said} {note}".strip())
