"""`firearrow topic`: show, create and delete topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Final, Literal

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
    perm_text,
)
from firearrow.cli.cluster.options import ANY, ClusterOptions, Topic
from firearrow.cli.cluster.undo import (
    FromFile,
    Had,
    Undo,
    UndoFile,
    altered,
    alters,
    changed,
    circumstances,
    given_back,
    given_of,
    preview_state,
    read_undo,
    refusable,
    write_undo,
)
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, either, pair, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.admin.servers import ORDER_NAMESPACE
from firearrow.client.diagnosis import routes
from firearrow.client.diagnosis.findings import Level, by_gravity, worst
from firearrow.errors import NotFound, TopicNotFound
from firearrow.message import names
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, TopicConfig

TYPE: Final = "message.type"
NEW_QUEUES: Final = 8  # of a new topic, on each broker
PERMS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
LIST: Final = ("topic", "type", "brokers", "readQueues", "writeQueues", "perm")
SHOW: Final = ("topic", "broker", "readQueues", "writeQueues", "perm", "isOrdered", "attributes")
HEALTH: Final = ("level", "rule", "subject", "evidence", "cure")
STATS: Final = ("topic", "broker", "queueId", "minOffset", "maxOffset", "messages", "lastStoredAt")
ROUTES: Final = ("topic", "cluster", "broker", "brokerNumber", "address", "readQueues", "writeQueues", "perm")

app: Final = CommandGroup()


@app.command("list")
async def list_topics(
    pattern: Pattern = None,
    /,
    *,
    all_topics: Annotated[
        bool, switch("also the brokers' own topics, and topics of retries and dead letters", name="--all")
    ] = False,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List topics."""
    async with cluster.admin() as admin:
        info = await admin.cluster()
        masters = masters_in(info, of_cluster)
        tables = await concurrently(masters, lambda master: admin.topics.configs(master.address))
    servers = {*info.cluster_addr_table, *info.broker_addr_table}  # servers have topics of their names
    found: dict[str, list[TopicConfig]] = defaultdict(list)
    for table in tables:
        for topic, config in table.topic_config_table.items():
            if matches(topic, pattern) and (all_topics or (_is_of_users(topic) and topic not in servers)):
                found[topic].append(config)
    rows = [_listed(topic, configs) for topic, configs in sorted(found.items())]
    output.show(Table("Topics", LIST, rows))


def _is_of_users(topic: str) -> bool:
    return names.is_of_users(topic) and not topic.endswith("_REPLY_TOPIC")


def _listed(topic: str, configs: list[TopicConfig]) -> list[Cell]:
    perms = {perm_text(config.perm) for config in configs}
    return [
        topic,
        configs[0].attributes.get(TYPE, "NORMAL"),
        len(configs),
        sum(config.read_queue_nums for config in configs),
        sum(config.write_queue_nums for config in configs),
        ", ".join(sorted(perms)),
    ]


@app.command("show")
async def show_topic(topic: Topic, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the configuration of a topic on each broker."""
    async with cluster.admin() as admin:
        output.show(await _configured(admin, topic))


async def _configured(admin: Admin, topic: str) -> Table:
    async def ask(master: RegisteredBroker) -> list[Cell] | None:
        config = await config_or_none(admin, master.address, topic)
        return None if config is None else _shown(topic, master.broker, config)

    rows = await ask_masters(admin, f"topic {topic!r}", ask)
    return Table("Topic", SHOW, rows)


def _shown(topic: str, broker: str, config: TopicConfig) -> list[Cell]:
    return [
        topic,
        broker,
        config.read_queue_nums,
        config.write_queue_nums,
        perm_text(config.perm),
        config.order,
        ", ".join(f"{name}={value}" for name, value in sorted(config.attributes.items())),
    ]


@app.command("create")
async def create_topic(
    topic: Topic,
    /,
    *,
    queues: Annotated[int | None, valued("N", "queues on each broker (new: 8)")] = None,
    perm: Annotated[Literal["rw", "r", "w"] | None, Parameter("permission to read, write or both (new: rw)")] = None,
    message_type: Annotated[
        Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE"] | None,
        Parameter("message type of the topic", names=("--type",)),
    ] = None,
    ordered: Annotated[bool | None, either("keep the order of queues: senders do not change queues")] = None,
    attribute: Annotated[
        tuple[tuple[str, str], ...], valued("KEY=VALUE", "sets an attribute of the topic; may be repeated", pair)
    ] = (),
    preview: Preview = False,
    undo_file: UndoFile = None,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Create a topic on each broker, or change the given settings."""
    attributes = dict(attribute) | ({TYPE: message_type} if message_type else {})
    given = given_of(read_queue_nums=queues, write_queue_nums=queues, perm=perm and PERMS[perm], order=ordered)
    note, path = "", None
    async with cluster.admin() as admin:
        was = await topic_now(admin, topic)
        had = {it.broker: it.config for it in was.configs}
        masters = masters_in(await admin.cluster(), of_cluster)
        new = TopicConfig(topic, NEW_QUEUES, NEW_QUEUES)
        if preview:
            rows = [
                [
                    *_shown(topic, it.broker, altered(had.get(it.broker, new), given, attributes)),
                    preview_state(had.get(it.broker), given, attributes),
                ]
                for it in masters
            ]
            output.show(Table("Topic", (*SHOW, "state"), rows))
            return
        if any(alters(had[it.broker], given, attributes) for it in masters if it.broker in had):
            path = write_undo(undo_file, topic, was)
            note = f"`firearrow topic undo {path}` sets what was before."
        async with refusable(path, lambda: _is_as_before(admin, was)):
            for master in masters:
                await admin.topics.create(master.address, changed(had.get(master.broker, new), given, attributes))
        output.show((await _configured(admin, topic))._replace(note=note))


async def _is_as_before(admin: Admin, was: TopicUndo) -> bool:
    return (await topic_now(admin, was.topic)).configs == was.configs


@app.command("delete")
async def delete_topic(
    topic: Topic,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Delete a topic with its messages."""
    note = f"{PREVIEW} Messages can't be brought back. `firearrow topic undo` makes the topic again."
    async with cluster.admin() as admin:
        stats = await admin.topic_stats(topic)
        info = await admin.cluster()
        counts: dict[str, int] = defaultdict(int)
        for queue, ends in stats.offset_table.items():
            counts[queue.broker_name] += ends.max_offset - ends.min_offset
        if apply:
            was = await topic_now(admin, topic)
            path = write_undo(undo_file, topic, was)
            note = f"`firearrow topic undo {path}` makes it again, without its messages."
            async with refusable(path, lambda: _is_as_before(admin, was)):
                for name in sorted({master.cluster for master in masters_in(info)}):
                    await admin.delete_topic(topic, name)
    state = "deleted" if apply else "would be deleted"
    rows: list[list[Cell]] = [[topic, broker, count, state] for broker, count in sorted(counts.items())]
    output.show(Table("Topic", ("topic", "broker", "messages", "state"), rows, note=note))


@app.command("undo")
async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restore a deleted topic without its messages, or the settings before a change."""
    undone = read_undo(file, TopicUndo)
    async with cluster.admin() as admin:
        states = await made_again(admin, undone, apply=apply)
    rows = [[*_shown(undone.topic, had.broker, had.config), states[had.broker]] for had in undone.configs]
    output.show(Table("Topic", (*SHOW, "state"), rows, note="" if apply else PREVIEW))
    return FAILED if "failed" in states.values() else 0


@app.command("stats")
async def show_stats(topic: Topic, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the messages of each queue of a topic."""
    async with cluster.admin() as admin:
        stats = await admin.topic_stats(topic)
    rows: list[list[Cell]] = [
        [
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            ends.min_offset,
            ends.max_offset,
            ends.max_offset - ends.min_offset,
            as_moment(ends.last_update_timestamp),
        ]
        for queue, ends in stats.offset_table.items()
    ]
    rows.sort(key=lambda row: (row[1], row[2]))
    output.show(Table("Queues", STATS, rows))


@app.command("health")
async def show_health(topic: Topic, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """Say what is wrong with the route of a topic: exit code 1 if something is."""
    async with cluster.admin() as admin:
        found = by_gravity(routes.findings(await routes.collect(admin, topic)))
    rows: list[list[Cell]] = [[it.level.name.lower(), it.rule, it.subject, it.evidence, it.cure] for it in found]
    output.show(Table("Health", HEALTH, rows))
    return FAILED if worst(found) is not Level.OK else 0


@app.command("routes")
async def show_routes(topic: Topic, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the route of a topic, as name servers give it to clients."""
    async with cluster.admin() as admin:
        route = await admin.topics.route(topic)
    queues = {data.broker_name: data for data in route.queue_datas}
    rows: list[list[Cell]] = []
    for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name):
        data = queues.get(broker.broker_name)
        own: list[Cell] = [None] * 3
        if data is not None:
            own = [data.read_queue_nums, data.write_queue_nums, perm_text(data.perm)]
        rows += [
            [topic, broker.cluster, broker.broker_name, number, address, *own]
            for number, address in sorted(broker.broker_addrs.items())
        ]
    output.show(Table("Routes", ROUTES, rows))


# --- Undo: the configuration of a topic, without its messages ---


class TopicUndo(Undo, frozen=True, kw_only=True, tag="topic"):
    """The file; ``order`` is the entry of an ordered topic in the name servers."""

    topic: str
    configs: list[Had[TopicConfig]]
    order: str | None


async def config_or_none(admin: Admin, address: str, topic: str) -> TopicConfig | None:
    """Give the configuration of a topic on a broker; None without any."""
    try:
        return await admin.topics.config(address, topic)
    except TopicNotFound:
        return None


async def topic_now(admin: Admin, topic: str) -> TopicUndo:
    """Give the present configuration of a topic, enough to restore it."""
    masters = masters_in(await admin.cluster())
    found = await concurrently(masters, lambda it: config_or_none(admin, it.address, topic))
    configs = [Had(master.broker, config) for master, config in zip(masters, found, strict=True) if config is not None]
    try:
        order = await admin.name_servers.value(ORDER_NAMESPACE, topic)
    except NotFound:
        order = None
    return TopicUndo(topic=topic, configs=configs, order=order, **circumstances(admin))


async def made_again(admin: Admin, undo: TopicUndo, *, apply: bool) -> Mapping[str, str]:
    """Restore a topic, or preview the changes; give a state by broker."""
    brokers = [had.broker for had in undo.configs]
    addresses = await addresses_of(admin, brokers)
    states = await given_back(
        undo.configs,
        lambda broker: config_or_none(admin, addresses[broker], undo.topic),
        lambda broker, config: admin.topics.create(addresses[broker], config),
        apply=apply,
    )
    if apply and undo.order is not None:
        await admin.name_servers.put(ORDER_NAMESPACE, undo.topic, undo.order)
    return dict(zip(brokers, states, strict=True))
