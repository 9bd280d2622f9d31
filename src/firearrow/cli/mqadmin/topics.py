"""The commands about topics: make, change, delete, list and describe them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import front, hash_order, moment, queue_hash, shown, text_order
from firearrow.client.admin.cluster import cluster_with
from firearrow.client.admin.servers import ORDER_NAMESPACE
from firearrow.client.routing.queues import MASTER, address_of
from firearrow.errors import ConfigError, FirearrowError
from firearrow.message.names import is_dlq, is_retry
from firearrow.wire import fastjson
from firearrow.wire.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, Route, TopicConfig
from firearrow.wire.client_bodies import MessageQueue, TopicOffset, TopicStats

UNIT: Final = 1  # bits of a topic's system flag
UNIT_SUB: Final = 2
_TABLE: Final = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"


def config_text(topic: TopicConfig) -> str:
    """A topic in upstream's words."""
    perm = topic.perm
    letters = "".join(
        letter if perm & bit else "-" for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )
    attributes = {name: topic.attributes[name] for name in text_order(topic.attributes)}
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={letters}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={shown(topic.order)}, attributes={shown(attributes)}]"
    )


def attribute_changes(text: str) -> dict[str, str]:
    """Read changes of attributes, ``+name=value,-name``; ConfigError says which is none."""
    changes: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if ("+" if equals else "-") not in name:
            raise ConfigError(f"{part!r} is neither +name=value nor -name")
        if name in changes:
            raise ConfigError(f"{name!r} comes twice")
        changes[name] = value
    return changes


async def update_topic(run: Invocation) -> None:
    """Make a topic or change it, on a broker or on all masters of a cluster."""
    flag = UNIT * run.flag("u", False) | UNIT_SUB * run.flag("s", False)
    topic = TopicConfig(
        run.text("t"),
        run.number("r", 8),
        run.number("w", 8),
        run.number("p", PERM_READ | PERM_WRITE),
        topic_sys_flag=flag,
        order=run.flag("o", False),
        attributes=attribute_changes(run.text("a")) if run.get("a") else {},
    )
    if address := run.get("b"):
        await run.admin.topics.create(address, topic)
        if topic.order:
            await _order_on(run, topic, address)
        run.line(f"create topic to {address} success.")
    else:
        await _update_in_cluster(run, topic, run.text("c"))
    run.line(config_text(topic))


async def _order_on(run: Invocation, topic: TopicConfig, address: str) -> None:
    info = await run.admin.cluster()
    names = [name for name, broker in info.broker_addr_table.items() if address in broker.broker_addrs.values()]
    if not names:
        raise ConfigError(f"no broker has registered the address {address}")
    order = f"{names[0]}:{topic.write_queue_nums}"
    await run.admin.put_order(topic.topic_name or "", order, whole=False)
    run.line(f"set broker orderConf. isOrder=true, orderConf=[{order}]")


async def _update_in_cluster(run: Invocation, topic: TopicConfig, cluster: str) -> None:
    for address in text_order(await run.masters(cluster)):
        await run.admin.topics.create(address, topic)
        run.line(f"create topic to {address} success.")
    if topic.order:
        info = await run.admin.cluster()
        names = text_order(info.cluster_addr_table.get(cluster, []))
        if not names:
            raise ConfigError(f"there is no cluster {cluster!r}")
        order = ";".join(f"{name}:{topic.write_queue_nums}" for name in names)
        await run.admin.put_order(topic.topic_name or "", order, whole=True)
        run.line(f"set cluster orderConf. isOrder=true, orderConf=[{order}]")


async def update_topics(run: Invocation) -> None:
    """Make or change the topics of a file."""
    data = run.file_in("f")
    topics = fastjson.decode(data, list[TopicConfig]) if data is not None else []
    if not topics:
        return
    address = run.get("b")
    addresses = [address] if address else text_order(await run.masters(run.text("c")))
    for place in addresses:
        await run.admin.topics.create_all(place, topics)
        run.line(f"submit batch of topic config to {place} success, please check the result later.")
    if not address:
        run.usage()


async def delete_topic(run: Invocation) -> None:
    """Delete a topic."""
    topic, cluster = run.text("t"), run.text("c")
    for address in text_order(await run.masters(cluster)):
        await run.admin.topics.delete_from_broker(address, topic)
    run.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    for address in run.admin.name_servers.addresses:
        await run.admin.topics.delete_from_name_server(address, topic, cluster)
    run.line(f"delete topic [{topic}] from NameServer success.")


async def update_perm(run: Invocation) -> None:
    """Change whether a topic can be read and written; its queues stay as they are."""
    topic, perm = run.text("t"), run.number("p")
    route = await run.admin.topics.route(topic)
    first = route.queue_datas[0]
    config = TopicConfig(
        topic, first.read_queue_nums, first.write_queue_nums, perm, topic_sys_flag=first.topic_sys_flag
    )
    if address := run.get("b"):
        await _update_perm_on(run, route, config, address)
    elif cluster := run.get("c"):
        for master in text_order(await run.masters(cluster)):
            await run.admin.topics.create(master, config)
            run.line(f"update topic perm from {first.perm} to {perm} in {master} success.")
    else:
        run.usage()


async def _update_perm_on(run: Invocation, route: Route, config: TopicConfig, address: str) -> None:
    brokers = [broker.broker_name for broker in route.broker_datas if broker.broker_addrs.get(MASTER) == address]
    if not brokers:
        run.line("updateTopicPerm error broker not exit or broker is not master!.")
        return
    before = next((data.perm for data in route.queue_datas if data.broker_name == brokers[0]), 0)
    if before == config.perm:
        run.line("new perm equals to the old one!")
        return
    await run.admin.topics.create(address, config)
    run.line(f"update topic perm from {before} to {config.perm} in {address} success.")
    run.line(f"{config_text(config)}.")


async def topic_route(run: Invocation) -> None:
    """Show where a topic is."""
    route = await run.admin.topics.route(run.text("t"))
    if not run.has("l"):
        run.line(fastjson.dumps(route, pretty=True).decode())
        return
    queues = {data.broker_name: data for data in route.queue_datas}
    read = write = 0
    run.line(_TABLE.format("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"))
    for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name):
        own = queues[broker.broker_name]
        read += own.read_queue_nums
        write += own.write_queue_nums
        addresses = shown(dict(sorted(broker.broker_addrs.items())))
        numbers = own.read_queue_nums, own.write_queue_nums, own.perm
        run.line(_TABLE.format(shown(broker.cluster), broker.broker_name, addresses, *numbers))
    run.line("-" * 158)
    run.line(_TABLE.format("Total:", len(queues), "", read, write, ""))


async def topic_status(run: Invocation) -> None:
    """Show the ends of a topic's queues."""
    topic = run.text("t")
    if cluster := run.get("c"):
        ends: dict[MessageQueue, TopicOffset] = {}
        for broker in (await run.admin.topics.route(cluster)).broker_datas:
            ends |= (await run.admin.topics.stats(address_of(broker), topic)).offset_table
        stats = TopicStats(ends)
    else:
        stats = await run.admin.topic_stats(topic)
    run.line(f"{'#Broker Name':<32}  {'#QID':<4}  {'#Min Offset':<20}  {'#Max Offset':<20}    #Last Updated")
    for queue in in_order(stats.offset_table):
        end = stats.offset_table[queue]
        last = moment(end.last_update_timestamp) if end.last_update_timestamp > 0 else ""
        run.line(
            f"{front(queue.broker_name, 32):<32}  {queue.queue_id:<4}  {end.min_offset:<20}  "
            f"{end.max_offset:<20}    {last}"
        )
    run.line()
    run.line(f"Topic Put TPS: {shown(stats.topic_put_tps)}")


def in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Queues by topic, broker and number."""
    return sorted(queues, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


async def topic_clusters(run: Invocation) -> None:
    """List the clusters that a topic is in: of its first broker."""
    info = await run.admin.cluster()
    broker = (await run.admin.topics.route(run.text("t"))).broker_datas[0].broker_name
    for cluster in text_order(info.cluster_addr_table):
        if broker in info.cluster_addr_table[cluster]:
            run.line(cluster)


async def topic_list(run: Invocation) -> None:
    """List all topics."""
    if not run.has("c"):
        for topic in text_order(await run.admin.topics.names()):
            run.line(topic)
        return
    info = await run.admin.cluster()
    run.line(f"{'#Cluster Name':<20}  {'#Topic':<48}  {'#Consumer Group':<48}")
    for topic in text_order(await run.admin.topics.names()):
        if is_retry(topic) or is_dlq(topic):
            continue
        cluster: str | None = ""
        groups: list[str] = []
        try:
            route = await run.admin.topics.route(topic)
            cluster = cluster_with(route.broker_datas[0].broker_name, info)
            groups = await run.admin.topic_groups(topic)
        except (OSError, FirearrowError):  # as upstream: the topic is listed without
            pass
        for group in text_order(groups) or [""]:
            run.line(f"{front(cluster, 20):<20}  {front(topic, 64):<64}  {front(group, 64):<64}")


async def update_order(run: Invocation) -> None:
    """Show or change how many queues a topic with an order has on each broker."""
    topic, method = run.text("t"), run.text("m")
    servers = run.admin.name_servers
    if method == "get":
        order = await servers.value(ORDER_NAMESPACE, topic)
        run.write(f"get orderConf success. topic=[{topic}], orderConf=[{order}] ")
    elif method == "put":
        order = run.get("v") or ""
        if not order:
            raise ConfigError("option -v says nothing")
        await run.admin.put_order(topic, order, whole=True)
        run.write(f"update orderConf success. topic=[{topic}], orderConf=[{order}]")
    elif method == "delete":
        await servers.delete(ORDER_NAMESPACE, topic)
        run.write(f"delete orderConf success. topic=[{topic}]")
    else:
        run.usage()


async def allocate(run: Invocation) -> None:
    """Show which client would get which queue, averagely."""
    topic = run.text("t")
    clients = run.text("i").split(",")
    route = await run.admin.topics.route(topic)
    queues = readable_queues(topic, route)
    shares = {client: _share(queues, clients.index(client), len(clients)) for client in clients}
    shares = {client: shares[client] for client in text_order(shares)}
    run.line(fastjson.dumps({"result": shares}).decode())


def readable_queues(topic: str, route: Route) -> list[MessageQueue]:
    """The queues of a topic that can be read, in the order of upstream's clients."""
    queues = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
    return hash_order(queues, queue_hash)


def _share(queues: list[MessageQueue], index: int, count: int) -> list[MessageQueue]:
    """The share of a client: side by side, one more for those that come first."""
    each, more = divmod(len(queues), count)
    start = index * each + min(index, more)
    return queues[start : start + each + (index < more)]
