"""`firearrow offset`: show the offsets of consumer groups, and reset them.

A command that resets offsets shows a preview. `--apply` carries it out and writes an undo file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from firearrow.cli.cluster.masters import PREVIEW, Apply, addresses_by_broker, addresses_of
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group, Topic
from firearrow.cli.cluster.progress import committed, of_group
from firearrow.cli.cluster.undo import FromFile, Undo, UndoFile, circumstances, read_undo, refusable, write_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import TIMES, Parameter, count, moment, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.config.kinds import proposal
from firearrow.errors import BrokerError, FirearrowError, NotFound
from firearrow.wire.client_bodies import MessageQueue, TopicOffset
from firearrow.wire.codes import ResponseCode

GET: Final = ("group", "topic", "broker", "queueId", "offset", "endOffset", "lag", "consumedAt")
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NO_OFFSET: Final = -1
"""Offset that a broker takes as none."""

InTopic = Annotated[str | None, valued("NAME", "in this topic (default: all)", names_of="topics")]
OnBroker = Annotated[str | None, valued("NAME", "on this broker (default: all)")]
InQueue = Annotated[int | None, valued("ID", "in this queue (default: all)")]


def place(text: str) -> str | int:
    """Read the target of a reset: an end of the queue, or a time, which is given in ms."""
    return text if text in (EARLIEST, LATEST) else moment(text)


app: Final = CommandGroup()


@app.command("get")
async def get_offsets(
    group: Group, /, *, topic: InTopic = None, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """Show the offset of a group in each queue."""
    async with cluster.admin() as admin:
        found = await of_group(admin, group, topic)
    rows: list[list[Cell]] = [
        [
            group,
            it.queue.topic,
            it.queue.broker_name,
            it.queue.queue_id,
            it.at.consumer_offset,
            it.at.broker_offset,
            it.at.lag,
            as_moment(it.at.last_timestamp),
        ]
        for it in found
    ]
    output.show(Table("Offsets", GET, rows))


@app.command("seek")
async def seek(
    group: Group,
    topic: Topic,
    offset: Annotated[int, valued(None, "new offset in each queue", count)],
    /,
    *,
    broker: OnBroker = None,
    queue: InQueue = None,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Reset a group to an offset."""
    async with cluster.admin() as admin:
        ends = await _ends(admin, topic, broker, queue)
        after = {it: min(max(offset, end.min_offset), end.max_offset) for it, end in ends.items()}
        return await _show_moved(admin, group, after, apply, undo_file, output)


@app.command("reset")
async def reset(
    group: Group,
    topic: Topic,
    /,
    *,
    to: Annotated[
        str | int,
        valued("earliest|latest|TIME", f"new position: the first message stored at TIME or later; {TIMES}", place),
    ],
    broker: OnBroker = None,
    queue: InQueue = None,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Reset a group to the beginning, to the end, or to a time."""
    async with cluster.admin() as admin:
        ends = await _ends(admin, topic, broker, queue)
        if isinstance(to, int):
            addresses = addresses_by_broker(await admin.cluster())

            async def at_time(it: MessageQueue) -> int:
                return await admin.offsets.at_time(addresses[it.broker_name], it, to)

            after = dict(zip(ends, await concurrently(ends, at_time), strict=True))
        elif to == EARLIEST:
            after = {it: end.min_offset for it, end in ends.items()}
        else:
            after = {it: end.max_offset for it, end in ends.items()}
        return await _show_moved(admin, group, after, apply, undo_file, output)


@app.command("clone")
async def clone(
    group: Annotated[str, Parameter("group to copy the offsets from", names_of="groups")],
    to: Annotated[str, Parameter("group to reset", names_of="groups")],
    /,
    *,
    topic: InTopic = None,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Reset a group to the offsets of another group."""
    async with cluster.admin() as admin:
        after = {
            queue: offset
            for queue, offset in (await offsets_now(admin, group, topic)).items()
            if not queue.topic.startswith("%")  # each group has its own retry topic
        }
        if not after:
            raise NothingFound(f"group {group!r} has no offsets")
        return await _show_moved(admin, to, after, apply, undo_file, output)


@app.command("undo")
async def undo(
    file: FromFile,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Reset a group to its offsets before a reset."""
    undone = read_undo(file, OffsetUndo)
    after = {it.queue: NO_OFFSET if it.before is None else it.before for it in undone.offsets}
    async with cluster.admin() as admin:
        return await _show_moved(admin, undone.group, after, apply, undo_file, output)


async def _ends(admin: Admin, topic: str, broker: str | None, queue: int | None) -> dict[MessageQueue, TopicOffset]:
    """Chosen queues with their smallest and largest offset; NothingFound without any."""
    stats = await admin.topic_stats(topic)
    found = {
        it: ends
        for it, ends in stats.offset_table.items()
        if broker in (None, it.broker_name) and queue in (None, it.queue_id)
    }
    if not found:
        raise NothingFound(f"topic {topic!r} has no such queue")
    return found


async def _show_moved(
    admin: Admin, group: str, after: dict[MessageQueue, int], apply: bool, undo_file: Path | None, output: Output
) -> int:
    before = await offsets_now(admin, group)
    moves = [Move(it.topic, it.broker_name, it.queue_id, before.get(it), offset) for it, offset in after.items()]
    moves.sort(key=lambda move: (move.topic, move.broker, move.queue_id))
    table = await carry_out(admin, group, moves, apply=apply, undo_file=undo_file)
    output.show(table)
    return FAILED if "failed" in table.values("state") else 0


# Reset of offsets: the preview, the reset itself, and the undo file.


COLUMNS: Final = ("group", "topic", "broker", "queueId", "beforeOffset", "afterOffset", "messages", "state")


class Move(msgspec.Struct, frozen=True, rename="camel"):
    """A queue, with the offset of a group before and after."""

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
    """Give the committed offsets of a group by queue; empty if it has committed none."""
    try:
        found = await of_group(admin, group, topic)
    except NotFound:
        return {}
    return committed(found)


async def carry_out(admin: Admin, group: str, moves: Sequence[Move], *, apply: bool, undo_file: Path | None) -> Table:
    """Preview a reset, or carry it out.

    Raises NothingFound without a queue, and for a group that brokers do not know: they refuse its offsets.
    """
    if not moves:
        raise NothingFound(f"there is no queue to move group {group!r} in")
    addresses = await addresses_of(admin, {move.broker for move in moves})
    await _require_known(admin, group, addresses)
    if not apply:
        return _table(group, moves, [f"would be {done_of(move)}" for move in moves], PREVIEW)
    undo = OffsetUndo(group=group, offsets=list(moves), **circumstances(admin))
    path = write_undo(undo_file, group, undo)

    async def is_as_before() -> bool:
        now = await offsets_now(admin, group)
        return all(now.get(move.queue) == move.before for move in moves)

    async with refusable(path, is_as_before):
        await move_all(admin, group, moves, addresses)
    now = await offsets_now(admin, group)
    states = [state_of(move, now.get(move.queue)) for move in moves]
    note = f"`firearrow offset undo {path}` goes back."
    return _table(group, moves, states, note)


def done_of(move: Move) -> str:
    """Give the state of a move that is made."""
    return "removed" if move.after == NO_OFFSET else "moved"


def state_of(move: Move, now: int | None) -> str:
    """Give the state of a move; online consumers may have gone on from there already.

    Brokers report an offset that is removed as 0, if the group has another offset of the topic.
    """
    failed = bool(now) if move.after == NO_OFFSET else now == move.before != move.after
    return "failed" if failed else done_of(move)


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
    """Commit the new offsets of a group, and notify its online consumers."""
    online = await _is_online(admin, group, sorted(set(addresses.values())))

    async def one(move: Move) -> Exception | None:
        address = addresses[move.broker]
        try:
            await admin.offsets.commit(address, group, move.queue, move.after)
            if online and move.after != NO_OFFSET:  # without a notice they go on from their own offset
                await admin.offsets.reset_queue(address, group, move.topic, move.queue_id, move.after)
        except (OSError, FirearrowError) as error:
            return error
        return None

    for error in await concurrently(moves, one):
        if error is not None:
            raise error  # no other move is on its way


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
    rows: list[list[Cell]] = []
    for move, state in zip(moves, states, strict=True):
        before, after = move.before, None if move.after == NO_OFFSET else move.after
        where = (group, move.topic, move.broker, move.queue_id)
        rows.append([*where, before, after, (after or 0) - (before or 0), state])
    return Table("Offsets", COLUMNS, rows, note)
