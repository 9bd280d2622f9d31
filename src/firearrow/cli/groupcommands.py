"""`firearrow group`: looks at consumer groups and their clients, makes and deletes groups."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Annotated, Final

from firearrow.cli.clusters import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.fleet import PREVIEW, Apply, OfCluster, Pattern, masters_in, matches, told_by_masters
from firearrow.cli.groupundo import GroupUndo, group_now, made_again
from firearrow.cli.listing import PLAIN, Output
from firearrow.cli.parameters import either, switch, valued
from firearrow.cli.reports import Cell, Table
from firearrow.cli.restoring import alters, changed, given_of
from firearrow.cli.undofiles import FromFile, UndoFile, read_undo, write_undo
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import Server
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.wire.client_bodies import CONSUME_ACTIVELY, ConsumerConnection, SubscriptionGroupConfig
from firearrow.wire.codes import ResponseCode, version_name

LIST: Final = ("group", "brokers", "clients", "type", "model", "isEnabled", "retries")
SHOW: Final = (
    "group", "broker", "isEnabled", "mayBroadcast", "isOrdered", "retries", "retryQueues",
    "consumeTimeoutMinutes", "attributes",
)  # fmt: skip
CLIENTS: Final = ("group", "clientId", "address", "language", "version", "subscriptions")

app = CommandGroup()


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
    found: dict[str, list[tuple[Server, SubscriptionGroupConfig]]] = defaultdict(list)
    async with cluster.admin() as admin:
        for master in masters_in(await admin.cluster(), of_cluster):
            table = (await admin.groups.configs(master.address)).subscription_group_table
            for name, config in table.items():
                if matches(name, pattern) and (all_groups or not names.is_system_group(name)):
                    found[name].append((master, config))

        async def row(name: str) -> list[Cell]:
            return _listed(name, found[name], await _clients(admin, name, found[name][0][0]))

        rows = await concurrently(sorted(found), row)
    output.show(Table("Groups", LIST, rows))


async def _clients(admin: Admin, name: str, master: Server) -> ConsumerConnection | None:
    """The clients of a group; None if it has none now."""
    try:
        return await admin.consumers(name, master.address)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


def _listed(
    name: str, configs: list[tuple[Server, SubscriptionGroupConfig]], clients: ConsumerConnection | None
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
    async def ask(master: Server) -> list[Cell] | None:
        # not `config` alone: a broker that makes groups by itself would make it to answer
        table = await admin.groups.configs(master.address)
        config = table.subscription_group_table.get(name)
        if config is None:
            return None
        return [
            name,
            master.broker,
            config.consume_enable,
            config.consume_broadcast_enable,
            config.consume_message_orderly,
            config.retry_max_times,
            config.retry_queue_nums,
            config.consume_timeout_minute,
            ", ".join(f"{key}={value}" for key, value in sorted(config.attributes.items())),
        ]

    rows = await told_by_masters(admin, f"group {name!r}", ask)
    return Table("Group", SHOW, rows)


@app.command("create")
async def create_group(
    name: Group,
    /,
    *,
    retries: Annotated[int | None, valued("N", "tries before a message is a dead letter (new: 16)")] = None,
    ordered: Annotated[bool | None, either("consumes in order: brokers lend queues to one client")] = None,
    disabled: Annotated[bool | None, either("gets no messages for the time being", off="--enabled")] = None,
    broadcast: Annotated[bool | None, either("clients may each get all (new: yes)")] = None,
    undo_file: UndoFile = None,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Make a consumer group on each broker, or change what is given of it."""
    given = given_of(
        consume_enable=None if disabled is None else not disabled,
        consume_broadcast_enable=broadcast,
        consume_message_orderly=ordered,
        retry_max_times=retries,
    )
    note = ""
    async with cluster.admin() as admin:
        was = await group_now(admin, name, with_offsets=False)
        had = {it.broker: it.config for it in was.configs}
        masters = masters_in(await admin.cluster(), of_cluster)
        if any(alters(had[it.broker], given, {}) for it in masters if it.broker in had):
            path = write_undo(undo_file, name, was)
            note = f"`firearrow group undo {path}` sets what was before."
        for master in masters:
            config = had.get(master.broker, SubscriptionGroupConfig(name))
            await admin.groups.create(master.address, changed(config, given, {}))
        output.show(replace(await _configured(admin, name), note=note))


@app.command("delete")
async def delete_group(
    name: Group,
    /,
    *,
    keep_offsets: Annotated[bool, switch("keep how far the group has got")] = False,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Delete a consumer group, and how far it has got."""
    note = PREVIEW
    async with cluster.admin() as admin:
        configured = await _configured(admin, name)
        masters = {it.broker: it for it in masters_in(await admin.cluster())}
        brokers = [str(broker) for broker in configured.values("broker")]
        clients = await _clients(admin, name, masters[brokers[0]])
        if apply:
            was = await group_now(admin, name, with_offsets=not keep_offsets)
            path = write_undo(undo_file, name, was)
            note = f"`firearrow group undo {path}` makes it again, where it was."
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
    """Make a consumer group again that was deleted, where it was, or set what a change set."""
    undone = read_undo(file, GroupUndo)
    async with cluster.admin() as admin:
        table = await made_again(admin, undone, apply=apply)
    output.show(table if apply else replace(table, note=PREVIEW))
    return FAILED if "failed" in table.values("state") else 0


@app.command("clients")
async def list_clients(name: Group, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List the clients of a group, and what it subscribes to."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster())
        found = await concurrently(masters, lambda master: _clients(admin, name, master))
    rows: dict[str, list[Cell]] = {}
    for connections in found:
        for client in connections.connection_set if connections else ():
            assert connections is not None, "it has clients"
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
