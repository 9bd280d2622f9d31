"""Progress of consumer groups in queues: offsets, lag and age, for commands that show or change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from firearrow.cli.cluster.masters import addresses_by_broker, masters_in
from firearrow.cli.messages.reading import Place, read
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.queues import Queue
from firearrow.message.names import is_system_group
from firearrow.wire.client_bodies import MessageQueue, OffsetWrapper, SubscriptionData, is_by_tags

ALL_SECONDS: Final = 50.0  # for all groups of a broker, as long as RocketMQ's tools wait
ENTRIES: Final = 1000  # messages per request


class Progress(NamedTuple):
    """Progress of a group in a queue: its position, and the age of its next message."""

    group: str
    queue: MessageQueue
    at: OffsetWrapper
    behind_ms: int | None = None
    wanted: int | None = None
    """Number of messages behind the offset that the filter of the group selects; None if unknown."""


async def of_group(admin: Admin, group: str, topic: str | None = None) -> list[Progress]:
    """Give the progress of a group on all masters; BrokerError as `Admin.refuse_empty` without any."""
    found = await found_of(admin, group, topic)
    if not found:
        await admin.refuse_empty(group)
    return found


async def found_of(admin: Admin, group: str, topic: str | None = None) -> list[Progress]:
    """Give the progress of a group on all masters.

    RocketMQ's tools follow the route of its retry topic, which does not exist before a client of the group.
    """
    masters = masters_in(await admin.cluster())
    parts = await concurrently(masters, lambda master: admin.offsets.progress(master.address, group, topic))
    return _in_order(Progress(group, queue, at) for stats in parts for queue, at in stats.offset_table.items())


async def of_all(admin: Admin, wanted: Callable[[str], bool]) -> list[Progress]:
    """Give the progress of all groups with wanted names, without the system groups of brokers."""
    masters = masters_in(await admin.cluster())
    parts = await concurrently(masters, lambda master: admin.offsets.positions(master.address, ALL_SECONDS))
    found = (Progress(*row) for part in parts for row in part)
    return _in_order(it for it in found if wanted(it.group) and not is_system_group(it.group))


def _in_order(found: Iterable[Progress]) -> list[Progress]:
    return sorted(found, key=lambda it: (it.group, it.queue.topic, it.queue.broker_name, it.queue.queue_id))


def committed(found: Iterable[Progress]) -> dict[MessageQueue, int]:
    """Give the offsets that the group has committed, by queue."""
    return {it.queue: it.at.consumer_offset for it in found if it.at.consumer_offset >= 0}


async def with_times(admin: Admin, found: list[Progress]) -> list[Progress]:
    """Add the age of the next message for groups with a lag."""
    addresses = addresses_by_broker(await admin.cluster())
    places = sorted({(it.group, it.queue.topic, it.queue.broker_name) for it in found if it.at.lag})

    async def ask(place: tuple[str, str, str]) -> dict[tuple[str, MessageQueue], int]:
        group, topic, broker = place
        spans = await admin.offsets.time_spans(addresses[broker], group, topic)
        return {(group, span.message_queue): span.age_ms for span in spans}

    delays: dict[tuple[str, MessageQueue], int] = {}
    for part in await concurrently([it for it in places if it[2] in addresses], ask):
        delays |= part
    return [it._replace(behind_ms=delays.get((it.group, it.queue)) if it.at.lag else 0) for it in found]


async def with_wanted(admin: Admin, found: list[Progress]) -> list[Progress]:
    """Add the exact number of messages that the filter of a group selects, by a look at each message.

    For tags, a broker gives the entries of the queues. For an SQL92 expression it evaluates the messages, and the
    selected messages are read.
    """
    addresses = addresses_by_broker(await admin.cluster())

    async def ask(it: Progress) -> Progress:
        return it._replace(wanted=await _wanted(admin, addresses[it.queue.broker_name], it))

    return await concurrently(found, ask)


async def _wanted(admin: Admin, address: str, it: Progress) -> int | None:
    """Count selected messages; None for an offline group, whose filter is unknown."""
    at, end, count = max(it.at.consumer_offset, 0), it.at.broker_offset, 0
    while at < end:
        page = await admin.brokers.entries(
            address, it.queue.topic, it.queue.queue_id, at, min(ENTRIES, end - at), it.group
        )
        data = page.subscription_data
        if data is None:
            return None
        if not is_by_tags(data.expression_type):
            place = Place(_as_queue(it.queue), address)
            selected = read(admin, place, at, end, sql=data.sub_string)
            return sum([1 async for _ in selected])
        entries = page.queue_data or []
        if not entries:
            break  # retention has deleted the rest
        count += sum(_selects(data, entry.tags_code) for entry in entries)
        at += len(entries)
    return count


def _as_queue(queue: MessageQueue) -> Queue:
    return Queue(queue.topic, queue.broker_name, queue.queue_id)


def _selects(data: SubscriptionData, tags_code: int) -> bool:
    return not data.code_set or tags_code in data.code_set
