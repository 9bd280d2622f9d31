"""Reading of queues without a consumer group: present messages, and new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.cli.failures import NothingFound
from firearrow.cli.output.reports import in_bytes
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.admin.messages import PullStatus
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.message.model import MessageView
from firearrow.wire.bodies import PERM_READ
from firearrow.wire.client_bodies import MessageQueue

BATCH: Final = 32
WAIT_MS: Final = 5_000
ALL: Final = "*"
NEWEST_MAX: Final = 20_000
"""Messages that are read of each queue of a system topic."""
BYTES_MAX: Final = 64 << 20
"""Bytes of them."""


class Place(NamedTuple):
    """A queue, and the address of the broker to read it from."""

    queue: Queue
    address: str

    @property
    def at_broker(self) -> MessageQueue:
        """Queue as brokers name it."""
        return MessageQueue(*self.queue)


class FoundMessage(NamedTuple):
    """A message, and its broker."""

    message: MessageView
    broker: str


async def places(admin: Admin, topic: str, broker: str | None = None, queue_id: int | None = None) -> list[Place]:
    """Give the readable queues of a topic; NothingFound without any."""
    route = await admin.topics.route(topic)
    addresses = {it.broker_name: it.address for it in route.broker_datas if it.broker_addrs}
    found = [
        Place(Queue(topic, data.broker_name, number), addresses[data.broker_name])
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_READ and data.broker_name in addresses
        for number in range(data.read_queue_nums)
        if broker in (None, data.broker_name) and queue_id in (None, number)
    ]
    if not found:
        raise NothingFound(f"topic {topic!r} has no such queue")
    return found


async def span(admin: Admin, place: Place, since_ms: int | None = None, until_ms: int | None = None) -> tuple[int, int]:
    """Give the range of offsets of a queue that were stored in a time span, the end excluded."""
    offsets, queue = admin.offsets, place.at_broker
    start = await offsets.earliest(place.address, queue)
    end = await offsets.latest(place.address, queue)
    if since_ms is not None:
        start = max(start, await offsets.at_time(place.address, queue, since_ms))
    if until_ms is not None:
        end = min(end, await offsets.at_time(place.address, queue, until_ms + 1))
    return start, end


async def read(
    admin: Admin, place: Place, start: int, end: int, tags: str = ALL, sql: str = ""
) -> AsyncGenerator[FoundMessage, None]:
    """Give the messages of a queue from one offset to another, the end excluded.

    Only messages that one of the tags or an SQL92 expression selects are given.
    """
    while start < end:
        pulled = await admin.messages.pull(
            place.address, place.queue, start, min(BATCH, end - start), tags=tags, sql=sql
        )
        for message in chosen(pulled.messages, tags):
            if message.queue_offset < end:
                yield FoundMessage(message, place.queue.broker)
        if pulled.status is PullStatus.NO_NEW_MSG or pulled.next_offset <= start:
            return
        start = pulled.next_offset


async def newest(
    admin: Admin,
    server: RegisteredBroker,
    topic: str,
    notes: list[str],
    *,
    behind: Mapping[MessageQueue, int] | None = None,
    count: int = NEWEST_MAX,
    tags: str = ALL,
) -> AsyncGenerator[MessageView, None]:
    """Give the newest messages of a broker's queues of a topic; ``notes`` get a sentence on those that are not read.

    Messages before the offset that ``behind`` has for a queue are left out. A missing topic has no messages.
    """
    try:
        ends = (await admin.topics.stats(server.address, topic)).offset_table
    except TopicNotFound:
        return
    for queue, end in sorted(ends.items(), key=lambda item: item[0].queue_id):
        first = max(end.min_offset, (behind or {}).get(queue, 0))
        start = max(first, end.max_offset - count)
        name = (
            f"queue {queue.queue_id} of {topic} of {server.broker}" if len(ends) > 1 else f"{topic} of {server.broker}"
        )
        if start > first:
            notes.append(f"Of {name}, the newest {count:,} of {end.max_offset - first:,} were read.")
        size, place = 0, Place(Queue(topic, server.broker, queue.queue_id), server.address)
        async for it in read(admin, place, start, end.max_offset, tags):
            if (size := size + it.message.store_size) > BYTES_MAX:
                notes.append(f"Of {name}, only {in_bytes(BYTES_MAX)} were read.")
                break
            yield it.message


async def follow(
    admin: Admin, found: Sequence[Place], last: int, tags: str = ALL, sql: str = ""
) -> AsyncGenerator[FoundMessage, None]:
    """Give the ``last`` messages of each queue, then new messages, without an end."""
    ready: asyncio.Queue[FoundMessage | Exception] = asyncio.Queue(BATCH)

    async def one(place: Place) -> None:
        try:
            earliest, latest = await span(admin, place)
            await _follow(admin, place, max(earliest, latest - last), tags, sql, ready)
        except (OSError, FirearrowError) as error:  # the answer to a pull that waits for messages
            await ready.put(error)

    tasks = [asyncio.ensure_future(one(place)) for place in found]
    try:
        while True:
            got = await ready.get()
            if isinstance(got, Exception):
                raise got
            yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(
    admin: Admin, place: Place, at: int, tags: str, sql: str, ready: asyncio.Queue[FoundMessage | Exception]
) -> None:
    while True:
        pulled = await admin.messages.pull(place.address, place.queue, at, BATCH, tags=tags, sql=sql, wait_ms=WAIT_MS)
        for message in chosen(pulled.messages, tags):
            await ready.put(FoundMessage(message, place.queue.broker))
        at = pulled.next_offset


def chosen(messages: Sequence[MessageView], tags: str) -> Sequence[MessageView]:
    """Give the messages with one of the tags: a broker only compares hashes of tags."""
    if tags == ALL:
        return messages
    wanted = {tag.strip() for tag in tags.split("||")}
    return [message for message in messages if message.tags in wanted]
