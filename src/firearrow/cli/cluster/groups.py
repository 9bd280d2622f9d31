"""`firearrow group`: show consumer groups and their clients, create and delete groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from firearrow.cli.cluster.masters import (
    PREVIEW,
    Apply,
    OfCluster,
    Pattern,
    Preview,
    addresses_of,
    ask_masters,
    masters_in,
    matches,
)
from firearrow.cli.cluster.offsets import Move, move_all, state_of
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.cluster.progress import committed, found_of
from firearrow.cli.cluster.undo import (
    HAS_CLIENTS,
    HAS_MESSAGES,
    HAS_OFFSETS,
    FromFile,
    Had,
    OfCreated,
    Undo,
    UndoFile,
    altered,
    before_change,
    changed,
    circumstances,
    code_of,
    given_back,
    given_of,
    is_as_before,
    preview_state,
    read_undo,
    refusable,
    write_undo,
)
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import NothingFound
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import either, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import BrokerError, NotFound
from firearrow.message import names
from firearrow.wire.client_bodies import CONSUME_ACTIVELY, ConsumerConnection, MessageQueue, SubscriptionGroupConfig
from firearrow.wire.codes import ResponseCode, version_name

LIST: Final = ("group", "brokers", "clients", "type", "model", "isEnabled", "retries")
SHOW: Final = (
    "group", "broker", "isEnabled", "mayBroadcast", "isOrdered", "retries", "retryQueues",
    "consumeTimeoutMinutes", "attributes",
)  # fmt: skip
CLIENTS: Final = ("group", "clientId", "address", "language", "version", "subscriptions")

app: Final = CommandGroup()


@app.command("list")
async def list_groups(
    pattern: Pattern = None,
    /,
    *,
    all_groups: Annotated[bool, switch("also the brokers' own groups", name="--all")] = False,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List consumer groups."""
    found: dict[str, list[tuple[RegisteredBroker, SubscriptionGroupConfig]]] = defaultdict(list)
    async with cluster.admin() as admin:
        for master in masters_in(await admin.cluster(), of_cluster):
            table = (await admin.groups.configs(master.address)).subscription_group_table
            for name, config in table.items():
                if matches(name, pattern) and (all_groups or not names.is_system_group(name)):
                    found[name].append((master, config))

        async def row(name: str) -> list[Cell]:
            return _listed(name, found[name], await _clients(admin, name, found[name][0][0].address))

        rows = await concurrently(sorted(found), row)
    output.show(Table("Groups", LIST, rows))


async def _clients(admin: Admin, name: str, address: str) -> ConsumerConnection | None:
    """Clients of a group; None without an online client."""
    try:
        return await admin.consumers(name, address)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


def _listed(
    name: str, configs: list[tuple[RegisteredBroker, SubscriptionGroupConfig]], clients: ConsumerConnection | None
) -> list[Cell]:
    kind: Cell = None
    if clients is not None:
        kind = "pull" if clients.consume_type == CONSUME_ACTIVELY else "push"
    return [
        name,
        len(configs),
        0 if clients is None else len(clients.connection_set),
        kind,
        None if clients is None else (clients.message_model or "").lower(),
        all(config.consume_enable for _, config in configs),
        configs[0][1].retry_max_times,
    ]


@app.command("show")
async def show_group(name: Group, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show how a group is configured on each broker."""
    async with cluster.admin() as admin:
        output.show(await _configured(admin, name))


async def _configured(admin: Admin, name: str) -> Table:
    async def ask(master: RegisteredBroker) -> list[Cell] | None:
        # not `config`: a broker that creates groups automatically would create this one
        table = await admin.groups.configs(master.address)
        config = table.subscription_group_table.get(name)
        return None if config is None else _shown(name, master.broker, config)

    rows = await ask_masters(admin, f"group {name!r}", ask)
    return Table("Group", SHOW, rows)


def _shown(name: str, broker: str, config: SubscriptionGroupConfig) -> list[Cell]:
    return [
        name,
        broker,
        config.consume_enable,
        config.consume_broadcast_enable,
        config.consume_message_orderly,
        config.retry_max_times,
        config.retry_queue_nums,
        config.consume_timeout_minute,
        ", ".join(f"{key}={value}" for key, value in sorted(config.attributes.items())),
    ]


@app.command("create")
async def create_group(
    name: Group,
    /,
    *,
    retries: Annotated[int | None, valued("N", "tries before a message is a dead letter (new: 16)")] = None,
    ordered: Annotated[bool | None, either("consume in order: brokers lock each queue for one client")] = None,
    disabled: Annotated[bool | None, either("deliver no messages for the time being", off="--enabled")] = None,
    broadcast: Annotated[bool | None, either("allow broadcasting: each client gets all messages (new: yes)")] = None,
    preview: Preview = False,
    undo_file: OfCreated = None,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Create a consumer group on each broker, or change the given settings."""
    given = given_of(
        consume_enable=None if disabled is None else not disabled,
        consume_broadcast_enable=broadcast,
        consume_message_orderly=ordered,
        retry_max_times=retries,
    )
    note, path = "", None
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster(), of_cluster)
        was = await group_now(admin, name, masters, with_offsets=False)
        had = {it.broker: it.config for it in was.configs}
        new = SubscriptionGroupConfig(name)
        if preview:
            rows = [
                [
                    *_shown(name, it.broker, altered(had[it.broker] or new, given, {})),
                    preview_state(had[it.broker], given, {}),
                ]
                for it in masters
            ]
            output.show(Table("Group", (*SHOW, "state"), rows))
            return
        before = before_change(was.configs, new, given, {})
        if any(undo_file or it.config for it in before):
            path = write_undo(undo_file, name, replace(was, configs=before))
            note = f"`firearrow group undo {path}` sets what was before."
        async with refusable(path, lambda: _is_as_before(admin, was)):
            for master in masters:
                await admin.groups.create(master.address, changed(had[master.broker] or new, given, {}))
        output.show((await _configured(admin, name)).changed(note=note))


async def _is_as_before(admin: Admin, was: GroupUndo) -> bool:
    now = await group_now(admin, was.group, masters_in(await admin.cluster()), with_offsets=False)
    return is_as_before(was.configs, now.configs)


@app.command("delete")
async def delete_group(
    name: Group,
    /,
    *,
    keep_offsets: Annotated[bool, switch("keep the offsets of the group")] = False,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Delete a consumer group with its offsets."""
    note = PREVIEW
    async with cluster.admin() as admin:
        configured = await _configured(admin, name)
        masters = {it.broker: it for it in masters_in(await admin.cluster())}
        brokers = [str(broker) for broker in configured.values("broker")]
        clients = await _clients(admin, name, masters[brokers[0]].address)
        if apply:
            was = await group_now(admin, name, list(masters.values()), with_offsets=not keep_offsets)
            path = write_undo(undo_file, name, replace(was, configs=[it for it in was.configs if it.config]))
            note = f"`firearrow group undo {path}` makes it again, where it was."
            async with refusable(path, lambda: _is_as_before(admin, was)):
                for broker in brokers:
                    address = masters[broker].address
                    await admin.groups.delete(address, name, clean_offset=not keep_offsets)
    online = 0 if clients is None else len(clients.connection_set)
    state = "deleted" if apply else "would be deleted"
    rows: list[list[Cell]] = [[name, broker, online, state] for broker in brokers]
    columns = ("group", "broker", "clients", "state")
    output.show(Table("Group", columns, rows, note=note))


@app.command("undo")
async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restore a consumer group as it was before a creation, change or deletion, with its offsets."""
    undone = read_undo(file, GroupUndo)
    async with cluster.admin() as admin:
        table = await made_again(admin, undone, apply=apply)
    output.show(table if apply else table.changed(note=PREVIEW))
    return code_of(table.values("state"))


@app.command("clients")
async def list_clients(name: Group, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List the clients of a group, and its subscriptions."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster())
        found = await concurrently(masters, lambda master: _clients(admin, name, master.address))
    rows: dict[str, list[Cell]] = {}
    for connections in found:
        for client in connections.connection_set if connections else ():
            assert connections is not None, "a client has a connection"
            rows[client.client_id] = [
                name,
                client.client_id,
                client.client_addr,
                client.language,
                version_name(client.version),
                _subscriptions(name, connections),
            ]
    if not rows:
        raise NothingFound(f"group {name!r} has no client that is online")
    output.show(Table("Clients", CLIENTS, [row for _, row in sorted(rows.items())]))


def _subscriptions(name: str, connections: ConsumerConnection) -> str:
    return ", ".join(
        f"{topic} ({data.sub_string})"
        for topic, data in sorted(connections.subscription_table.items())
        if topic != names.retry_topic(name)
    )


# --- Undo: the configuration and the offsets of a group ---


COLUMNS: Final = ("group", "broker", "topic", "queueId", "beforeOffset", "afterOffset", "state")
GONE: Final = "queue is gone"


class At(msgspec.Struct, frozen=True, rename="camel"):
    """Offset of a group in a queue."""

    topic: str
    broker: str
    queue_id: int
    offset: int

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class GroupUndo(Undo, frozen=True, kw_only=True, tag="group"):
    """The file; ``forbidden``: the topics that a group must not read, by broker."""

    group: str
    configs: list[Had[SubscriptionGroupConfig]]
    forbidden: list[Had[list[str]]]
    offsets: list[At]


async def group_now(admin: Admin, group: str, masters: Sequence[RegisteredBroker], *, with_offsets: bool) -> GroupUndo:
    """Give the present configuration and offsets of a group, enough to restore it."""
    configs: list[Had[SubscriptionGroupConfig]] = []
    forbidden: list[Had[list[str]]] = []
    for master in masters:
        table = await admin.groups.configs(master.address)
        config = table.subscription_group_table.get(group)
        configs.append(Had(master.broker, config))
        if config and (topics := sorted(table.forbidden_table.get(group, ()))):
            forbidden.append(Had(master.broker, topics))
    offsets = [
        At(queue.topic, queue.broker_name, queue.queue_id, offset)
        for queue, offset in (committed(await found_of(admin, group)) if with_offsets else {}).items()
    ]
    return GroupUndo(group=group, configs=configs, forbidden=forbidden, offsets=offsets, **circumstances(admin))


class _GroupTarget:
    """The group, where its undo restores it."""

    def __init__(self, admin: Admin, group: str, addresses: Mapping[str, str]) -> None:
        self._admin: Final = admin
        self._group: Final = group
        self._addresses: Final = addresses

    async def ask(self, broker: str) -> SubscriptionGroupConfig | None:
        # not `config`: a broker that creates groups automatically would create this one
        return (await self._admin.groups.configs(self._addresses[broker])).subscription_group_table.get(self._group)

    async def make(self, broker: str, config: SubscriptionGroupConfig) -> None:
        await self._admin.groups.create(self._addresses[broker], config)

    async def usage(self, broker: str) -> str:
        address, group = self._addresses[broker], self._group
        if await _clients(self._admin, group, address):
            return HAS_CLIENTS
        if (await self._admin.offsets.progress(address, group)).offset_table:
            return HAS_OFFSETS
        topics = names.retry_topic(group), names.dlq_topic(group)
        ends = await _ends(self._admin, [(broker, topic) for topic in topics], self._addresses)
        return HAS_MESSAGES if any(high for _, high in ends.values()) else ""

    async def delete(self, broker: str) -> None:
        await self._admin.groups.delete(self._addresses[broker], self._group, clean_offset=True)


async def made_again(admin: Admin, undo: GroupUndo, *, apply: bool) -> Table:
    """Restore a group, or preview the changes."""
    brokers = {it.broker for it in undo.configs} | {it.broker for it in undo.offsets}
    addresses = await addresses_of(admin, brokers)
    states = await given_back(undo.configs, _GroupTarget(admin, undo.group, addresses), apply=apply)
    rows: list[list[Cell]] = [
        [undo.group, had.broker, None, None, None, None, state] for had, state in zip(undo.configs, states, strict=True)
    ]
    if apply:
        for had in undo.forbidden:
            for topic in had.known:
                await admin.groups.readable(addresses[had.broker], undo.group, topic, False)
    if undo.offsets:
        rows += await _moved_back(admin, undo, addresses, apply=apply)
    return Table("Group", COLUMNS, rows)


async def _moved_back(admin: Admin, undo: GroupUndo, addresses: Mapping[str, str], *, apply: bool) -> list[list[Cell]]:
    """Reset the group to its former offset in each queue that still exists."""
    ends = await _ends(admin, {(at.broker, at.topic) for at in undo.offsets}, addresses)
    before = committed(await found_of(admin, undo.group))
    moves: dict[At, Move] = {}
    for at in undo.offsets:
        if at.queue in ends:
            low, high = ends[at.queue]
            after = min(max(at.offset, low), high)
            moves[at] = Move(at.topic, at.broker, at.queue_id, before.get(at.queue), after)
    if apply:
        await move_all(admin, undo.group, list(moves.values()), addresses)
        now = committed(await found_of(admin, undo.group))
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
    admin: Admin, places: Iterable[tuple[str, str]], addresses: Mapping[str, str]
) -> dict[MessageQueue, tuple[int, int]]:
    """Smallest and largest offset of each existing queue of topics on brokers."""

    async def ask(place: tuple[str, str]) -> dict[MessageQueue, tuple[int, int]]:
        broker, topic = place
        try:
            stats = await admin.topics.stats(addresses[broker], topic)
        except NotFound:
            return {}
        return {it: (end.min_offset, end.max_offset) for it, end in stats.offset_table.items()}

    found: dict[MessageQueue, tuple[int, int]] = {}
    for part in await concurrently(sorted(places), ask):
        found |= part
    return found
