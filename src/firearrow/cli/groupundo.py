"""What a deleted group was, and making it again: its configuration, and how far it had got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from firearrow.cli.fleet import addresses_of, masters_in
from firearrow.cli.offsetmoves import Move, move_all, state_of
from firearrow.cli.queueprogress import found_of
from firearrow.cli.reports import Cell, Table
from firearrow.cli.restoring import Had, given_back
from firearrow.cli.undofiles import Undo, circumstances
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.errors import NotFound
from firearrow.wire.client_bodies import MessageQueue, SubscriptionGroupConfig

COLUMNS: Final = ("group", "broker", "topic", "queueId", "beforeOffset", "afterOffset", "state")
GONE: Final = "queue is gone"


class At(msgspec.Struct, frozen=True, rename="camel"):
    """Where a group was in a queue."""

    topic: str
    broker: str
    queue_id: int
    offset: int

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class GroupUndo(Undo, frozen=True, kw_only=True, tag="group"):
    """The file; ``forbidden`` are the topics that a group was not to read, by broker."""

    group: str
    configs: list[Had[SubscriptionGroupConfig]]
    forbidden: list[Had[list[str]]]
    offsets: list[At]


async def group_now(admin: Admin, group: str, *, with_offsets: bool) -> GroupUndo:
    """Give what is to be known to make a group again."""
    configs: list[Had[SubscriptionGroupConfig]] = []
    forbidden: list[Had[list[str]]] = []
    for master in masters_in(await admin.cluster()):
        table = await admin.groups.configs(master.address)
        if (config := table.subscription_group_table.get(group)) is not None:
            configs.append(Had(master.broker, config))
            if topics := sorted(table.forbidden_table.get(group, ())):
                forbidden.append(Had(master.broker, topics))
    offsets = [
        At(queue.topic, queue.broker_name, queue.queue_id, offset)
        for queue, offset in (await _offsets(admin, group) if with_offsets else {}).items()
    ]
    return GroupUndo(group=group, configs=configs, forbidden=forbidden, offsets=offsets, **circumstances(admin))


async def _offsets(admin: Admin, group: str) -> Mapping[MessageQueue, int]:
    return {it.queue: it.offset for it in await found_of(admin, group) if it.offset >= 0}


async def made_again(admin: Admin, undo: GroupUndo, *, apply: bool) -> Table:
    """Make a group again, or look what there is to do."""
    brokers = {it.broker for it in undo.configs} | {it.broker for it in undo.offsets}
    addresses = await addresses_of(admin, brokers)

    async def ask(broker: str) -> SubscriptionGroupConfig | None:
        table = await admin.groups.configs(addresses[broker])
        return table.subscription_group_table.get(undo.group)

    states = await given_back(
        undo.configs, ask, lambda broker, config: admin.groups.create(addresses[broker], config), apply=apply
    )
    rows: list[list[Cell]] = [
        [undo.group, had.broker, None, None, None, None, state] for had, state in zip(undo.configs, states, strict=True)
    ]
    if apply:
        for had in undo.forbidden:
            for topic in had.config:
                await admin.groups.readable(addresses[had.broker], undo.group, topic, False)
    rows += await _moved_back(admin, undo, addresses, apply=apply)
    return Table("Group", COLUMNS, rows)


async def _moved_back(admin: Admin, undo: GroupUndo, addresses: Mapping[str, str], *, apply: bool) -> list[list[Cell]]:
    """Move the group to where it was in each queue, as far as the queue is there."""
    ends = await _ends(admin, undo.offsets, addresses)
    before = await _offsets(admin, undo.group)
    moves: dict[At, Move] = {}
    for at in undo.offsets:
        if at.queue in ends:
            low, high = ends[at.queue]
            after = min(max(at.offset, low), high)
            moves[at] = Move(at.topic, at.broker, at.queue_id, before.get(at.queue), after)
    if apply:
        await move_all(admin, undo.group, list(moves.values()), addresses)
        now = await _offsets(admin, undo.group)
    rows: list[list[Cell]] = []
    for at in undo.offsets:
        move = moves.get(at)
        state = GONE
        if move is not None:
            state = state_of(move, now.get(at.queue)) if apply else "would be moved"
        was = (move.before, move.after) if move else (None, None)
        rows.append([undo.group, at.broker, at.topic, at.queue_id, *was, state])
    return rows


async def _ends(
    admin: Admin, offsets: Sequence[At], addresses: Mapping[str, str]
) -> dict[MessageQueue, tuple[int, int]]:
    """The ends of the queues that are there."""

    async def ask(place: tuple[str, str]) -> dict[MessageQueue, tuple[int, int]]:
        broker, topic = place
        try:
            stats = await admin.topics.stats(addresses[broker], topic)
        except NotFound:
            return {}
        return {it: (end.min_offset, end.max_offset) for it, end in stats.offset_table.items()}

    found: dict[MessageQueue, tuple[int, int]] = {}
    for part in await concurrently(sorted({(at.broker, at.topic) for at in offsets}), ask):
        found |= part
    return found
