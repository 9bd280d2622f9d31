"""Moving a group to other offsets: what would be done, doing it, and the file that undoes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from firearrow.cli.failures import NothingFound
from firearrow.cli.fleet import PREVIEW, addresses_of
from firearrow.cli.queueprogress import of_group
from firearrow.cli.refusals import proposal
from firearrow.cli.reports import Cell, Table
from firearrow.cli.undofiles import Undo, circumstances, write_undo
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.errors import BrokerError, NotFound
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.codes import ResponseCode

COLUMNS: Final = ("group", "topic", "broker", "queueId", "beforeOffset", "afterOffset", "messages", "state")


class Move(msgspec.Struct, frozen=True, rename="camel"):
    """A queue, and where a group is in it before and after."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    after: int

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class OffsetUndo(Undo, frozen=True, kw_only=True, tag="offset"):
    """The file; ``before`` is null where the group had no offset."""

    group: str
    offsets: list[Move]


async def offsets_now(admin: Admin, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
    """Give where a group is, in the queues that it has begun with; none if it has in none."""
    try:
        found = await of_group(admin, group, topic)
    except NotFound:
        return {}
    return {it.queue: it.offset for it in found if it.offset >= 0}


async def carry_out(admin: Admin, group: str, moves: Sequence[Move], *, apply: bool, undo_file: Path | None) -> Table:
    """Show what would be moved, or move it; raises NothingFound where there is nothing to move, and
    for a group that brokers do not know, as they refuse its offsets."""
    if not moves:
        raise NothingFound(f"there is no queue in which to move group {group!r}")
    addresses = await addresses_of(admin, {move.broker for move in moves})
    await _require_known(admin, group, addresses)
    if not apply:
        return _table(group, moves, ["would be moved"] * len(moves), PREVIEW)
    undo = OffsetUndo(group=group, offsets=list(moves), **circumstances(admin))
    path = write_undo(undo_file, group, undo)
    await move_all(admin, group, moves, addresses)
    now = await offsets_now(admin, group)
    states = [state_of(move, now.get(move.queue)) for move in moves]
    note = f"`firearrow offset undo {path}` goes back."
    return _table(group, moves, states, note)


def state_of(move: Move, now: int | None) -> str:
    """Say whether it was moved; consumers that are online may have gone on from there already."""
    return "failed" if now == move.before != move.after else "moved"


async def _require_known(admin: Admin, group: str, addresses: Mapping[str, str]) -> None:
    tables = await concurrently(addresses.values(), admin.groups.configs)
    known = [table.subscription_group_table.keys() for table in tables]
    without = [broker for broker, names in zip(addresses, known, strict=True) if group not in names]
    if without:
        where = ", ".join(without)
        like = proposal(group, sorted(set().union(*known)))
        made = f"`firearrow group create {group}` makes it"
        raise NothingFound(f"group {group!r} is unknown to {where}{like or f': {made}'}")


async def move_all(admin: Admin, group: str, moves: Sequence[Move], addresses: Mapping[str, str]) -> None:
    """Move a group, which brokers know; consumers that are online are told."""
    online = await _is_online(admin, group, sorted(set(addresses.values())))

    async def one(move: Move) -> None:
        address = addresses[move.broker]
        await admin.offsets.commit(address, group, move.queue, move.after)
        if online:  # they go on from where they are unless they are told
            await admin.offsets.reset_queue(address, group, move.topic, move.queue_id, move.after)

    await concurrently(moves, one)


async def _is_online(admin: Admin, group: str, addresses: Sequence[str]) -> bool:
    for address in addresses:
        try:
            if (await admin.groups.consumers(address, group)).connection_set:
                return True
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
    return False


def _table(group: str, moves: Sequence[Move], states: Sequence[str], note: str) -> Table:
    rows: list[list[Cell]] = [
        [group, move.topic, move.broker, move.queue_id, move.before, move.after, move.after - (move.before or 0), state]
        for move, state in zip(moves, states, strict=True)
    ]
    return Table("Offsets", COLUMNS, rows, note)
