"""`firearrow topic`: show, create and delete topics."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Final

from firearrow.cli.cluster.masters import OfCluster, Pattern, ask_masters, masters_in, matches, perm_text
from firearrow.cli.cluster.options import ANY, ClusterOptions, Topic
from firearrow.cli.commands import CommandGroup, Listed
from firearrow.cli.failures import FAILED
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import switch
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import TopicNotFound
from firearrow.message import names
from firearrow.wire.bodies import TopicConfig

TYPE: Final = "message.type"
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
        output.show(await configured(admin, topic))


async def configured(admin: Admin, topic: str) -> Table:
    """Give the configuration of a topic on each broker; NotFound if no broker has it."""

    async def ask(master: RegisteredBroker) -> list[Cell] | None:
        config = await config_or_none(admin, master.address, topic)
        return None if config is None else shown(topic, master.broker, config)

    rows = await ask_masters(admin, f"topic {topic!r}", ask)
    return Table("Topic", SHOW, rows)


def shown(topic: str, broker: str, config: TopicConfig) -> list[Cell]:
    """Give a row of `SHOW`."""
    return [
        topic,
        broker,
        config.read_queue_nums,
        config.write_queue_nums,
        perm_text(config.perm),
        config.order,
        ", ".join(f"{name}={value}" for name, value in sorted(config.attributes.items())),
    ]


CHANGES: Final = "cluster.topicchanges"  # needs more modules than the commands here
app.add(
    Listed("create", "create a topic on each broker, or change the given settings", f"{CHANGES}:create"),
    Listed("delete", "delete a topic with its messages", f"{CHANGES}:delete"),
    Listed(
        "undo", "restore a topic as it was before a creation, change or deletion, without messages", f"{CHANGES}:undo"
    ),
)


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
    """Look for faults in the route of a topic: exit code 1 if there are any."""
    from firearrow.client.diagnosis import routes
    from firearrow.client.diagnosis.findings import Level, by_gravity, worst

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


async def config_or_none(admin: Admin, address: str, topic: str) -> TopicConfig | None:
    """Give the configuration of a topic on a broker; None without any."""
    try:
        return await admin.topics.config(address, topic)
    except TopicNotFound:
        return None
