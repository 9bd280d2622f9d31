"""Commands about topics and lite topics: create, change, delete, list and describe them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import front, hash_order, moment, queue_hash, shown, text_order
from firearrow.client.admin.cluster import cluster_with
from firearrow.errors import ConfigError, FirearrowError
from firearrow.message.names import ORDER_NAMESPACE, is_dlq, is_retry, lite_queue
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import LiteBrokerInfo, LiteGroupInfo, LiteLag
from firearrow.wire.bodies import MASTER_ID, PERM_INHERIT, PERM_READ, PERM_WRITE, Route, TopicConfig
from firearrow.wire.client_bodies import MessageQueue, TopicOffset, TopicStats

T = TypeVar("T")

UNIT: Final = 1  # bits of a topic's system flag
UNIT_SUB: Final = 2
TOP: Final = 20
_ENDS: Final = "{:<32}  {:<4}  {:<20}  {:<20}    {}"
_TABLE: Final = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
_BROKER: Final = "{:<30} {:<17} {:<10} {:<14} {:<20} {:<17} {:<15} {:<18} {:<15}"
_PARENT: Final = "{:<50} {:<8} {:<14} {:<14} {:<100} "
_TOPIC: Final = "{:<50} {:<14} {:<14} {:<30} {:<12} {:<18} "
_CLIENT: Final = "{:<30} {:<20} {:<30} {:<30} "
_OFFSETS: Final = "{:<50} {:<16} {:<16} {:<16} {:<30}"
_LAG: Final = "{:<6} {:<40} {:<12} {:<30}"


def config_text(topic: TopicConfig) -> str:
    """Write a topic in RocketMQ's form."""
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
    """Read changes of attributes, ``+name=value,-name``; ConfigError names a part that is malformed."""
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
    """Create a topic or change it, on a broker or on all masters of a cluster."""
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
    for address in await run.masters(cluster):
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
    """Create or change the topics of a file."""
    data = run.file_in("f")
    topics = fastjson.decode(data, list[TopicConfig]) if data is not None else []
    if not topics:
        return
    address = run.get("b")
    for place in [address] if address else await run.masters(run.text("c")):
        await run.admin.topics.create_all(place, topics)
        run.line(f"submit batch of topic config to {place} success, please check the result later.")
    if not address:
        run.usage()


async def delete_topic(run: Invocation) -> None:
    """Delete a topic."""
    topic, cluster = run.text("t"), run.text("c")
    for address in await run.masters(cluster):
        await run.admin.topics.delete_from_broker(address, topic)
    run.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    for address in run.admin.name_servers.addresses:
        await run.admin.topics.delete_from_name_server(address, topic, cluster)
    run.line(f"delete topic [{topic}] from NameServer success.")


async def update_perm(run: Invocation) -> None:
    """Change the permission to read and write a topic; its queues stay."""
    topic, perm = run.text("t"), run.number("p")
    route = await run.admin.topics.route(topic)
    first = route.queue_datas[0]
    config = TopicConfig(
        topic, first.read_queue_nums, first.write_queue_nums, perm, topic_sys_flag=first.topic_sys_flag
    )
    if address := run.get("b"):
        await _update_perm_on(run, route, config, address)
    elif cluster := run.get("c"):
        for master in await run.masters(cluster):
            await run.admin.topics.create(master, config)
            run.line(f"update topic perm from {first.perm} to {perm} in {master} success.")
    else:
        run.usage()


async def _update_perm_on(run: Invocation, route: Route, config: TopicConfig, address: str) -> None:
    brokers = [broker.broker_name for broker in route.broker_datas if broker.broker_addrs.get(MASTER_ID) == address]
    if not brokers:
        run.fail("updateTopicPerm error broker not exit or broker is not master!.\n")
        return
    before = next((data.perm for data in route.queue_datas if data.broker_name == brokers[0]), 0)
    if before == config.perm:
        run.line("new perm equals to the old one!")
        return
    await run.admin.topics.create(address, config)
    run.line(f"update topic perm from {before} to {config.perm} in {address} success.")
    run.line(f"{config_text(config)}.")


async def topic_route(run: Invocation) -> None:
    """Show the route of a topic."""
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
    """Show the first and last offsets of a topic's queues."""
    topic = run.text("t")
    if cluster := run.get("c"):
        ends: dict[MessageQueue, TopicOffset] = {}
        for broker in (await run.admin.topics.route(cluster)).broker_datas:
            ends |= (await run.admin.topics.stats(broker.address, topic)).offset_table
        stats = TopicStats(ends)
    else:
        stats = await run.admin.topic_stats(topic)
    run.line(_ENDS.format("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for queue in in_order(stats.offset_table):
        end = stats.offset_table[queue]
        last = moment(end.last_update_timestamp) if end.last_update_timestamp > 0 else ""
        run.line(_ENDS.format(front(queue.broker_name, 32), queue.queue_id, end.min_offset, end.max_offset, last))
    run.line()
    run.line(f"Topic Put TPS: {shown(stats.topic_put_tps)}")


def in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort queues by topic, broker and number."""
    return sorted(queues, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


async def topic_clusters(run: Invocation) -> None:
    """List the clusters of a topic's first broker."""
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
        except (OSError, FirearrowError):  # as in RocketMQ, the topic is listed without them
            pass
        for group in text_order(groups) or [""]:
            run.line(f"{front(cluster, 20):<20}  {front(topic, 64):<64}  {front(group, 64):<64}")


async def update_order(run: Invocation) -> None:
    """Show or change the number of queues of an ordered topic on each broker."""
    topic, method = run.text("t"), run.text("m")
    servers = run.admin.name_servers
    if method == "get":
        order = await servers.value(ORDER_NAMESPACE, topic)
        run.write(f"get orderConf success. topic=[{topic}], orderConf=[{order}] ")
    elif method == "put":
        order = run.get("v") or ""
        if not order:
            raise ConfigError("option -v is missing or blank")
        await run.admin.put_order(topic, order, whole=True)
        run.write(f"update orderConf success. topic=[{topic}], orderConf=[{order}]")
    elif method == "delete":
        await servers.delete(ORDER_NAMESPACE, topic)
        run.write(f"delete orderConf success. topic=[{topic}]")
    else:
        run.usage()


async def allocate(run: Invocation) -> None:
    """Show the queues that each client would get from RocketMQ's average strategy."""
    topic = run.text("t")
    clients = run.text("i").split(",")
    route = await run.admin.topics.route(topic)
    queues = readable_queues(topic, route)
    shares = {client: _share(queues, clients.index(client), len(clients)) for client in clients}
    shares = {client: shares[client] for client in text_order(shares)}
    run.line(fastjson.dumps({"result": shares}).decode())


def readable_queues(topic: str, route: Route) -> list[MessageQueue]:
    """List the readable queues of a topic in the order of RocketMQ's clients."""
    queues = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
    return hash_order(queues, queue_hash)


def _share(queues: list[MessageQueue], index: int, count: int) -> list[MessageQueue]:
    """Give the share of a client: adjacent queues, and one more for each of the first clients."""
    each, more = divmod(len(queues), count)
    start = index * each + min(index, more)
    return queues[start : start + each + (index < more)]


# --- lite topics ---


def _when(ms: int, otherwise: str) -> str:
    return moment(ms) if ms > 0 else otherwise


async def _brokers(run: Invocation, parent: str) -> list[tuple[str, str]]:
    """List the name and an address of each broker of a topic."""
    route = await run.admin.topics.route(parent)
    return [(broker.broker_name, broker.address) for broker in route.broker_datas]


async def _answers(
    run: Invocation, brokers: Iterable[tuple[str, str]], ask: Callable[[str], Awaitable[T]]
) -> AsyncIterator[tuple[str, T]]:
    """Yield the names of brokers with their answers; for an error print a line and note it."""
    for name, address in brokers:
        try:
            answer = await ask(address)
        except (OSError, FirearrowError) as error:
            run.line(f"[{name}] error.")
            run.note(error)
            continue
        yield name, answer


async def lite_broker(run: Invocation) -> None:
    """Show the totals of lite topics on a broker, or on each master of a cluster."""
    heads = ("#Broker", "#Store Type", "#Max LMQ", "#Current LMQ", "#SubscriptionCount", "#OrderInfoCount")
    run.line(_BROKER.format(*heads, "#CQTableSize", "#OffsetTableSize", "#eventMapSize"))
    if address := run.get("b"):
        _print_broker(run, address, await run.admin.lite.broker(address))
        return
    masters = [(master, master) for master in await run.masters(run.text("c"))]
    async for master, info in _answers(run, masters, run.admin.lite.broker):
        _print_broker(run, master, info)


def _print_broker(run: Invocation, address: str, info: LiteBrokerInfo) -> None:
    counts = info.lite_subscription_count, info.order_info_count, info.cq_table_size, info.offset_table_size
    queues = info.store_type, info.max_lmq_num, info.current_lmq_num
    run.line(_BROKER.format(address, *queues, *counts, info.event_map_size))
    if run.has("d"):
        topics = {name: info.topic_meta[name] for name in text_order(info.topic_meta)}
        groups = {name: text_order(info.group_meta[name]) for name in text_order(info.group_meta)}
        run.line(f"Topic Meta: {fastjson.dumps(topics).decode()}")
        run.line(f"Group Meta: {fastjson.dumps(groups).decode()}\n")


async def lite_parent(run: Invocation) -> None:
    """Show the totals of a parent topic on each broker."""
    parent = run.text("p")
    brokers = await _brokers(run, parent)
    run.line(f"Parent Topic Info: [{parent}]")
    run.line(_PARENT.format("#Broker Name", "#TTL", "#Lite Count", "#LMQ NUM", "#GROUPS"))
    async for name, info in _answers(run, brokers, lambda address: run.admin.lite.parent(address, parent)):
        numbers = info.ttl, info.lite_topic_count, info.lmq_num
        run.line(_PARENT.format(front(name, 40), *numbers, shown(text_order(info.groups))))


async def lite_topic(run: Invocation) -> None:
    """Show the offsets and the subscribers of a lite topic on each broker."""
    parent, topic = run.text("p"), run.text("l")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Topic Info: [{parent}] [{topic}] [{lite_queue(parent, topic)}]")
    heads = "#Broker Name", "#MinOffset", "#MaxOffset", "#LastUpdate", "#Sharding", "#SubClientCount"
    run.line(_TOPIC.format(*heads))
    async for name, info in _answers(run, brokers, lambda address: run.admin.lite.topic(address, parent, topic)):
        end = info.topic_offset
        last = _when(end.last_update_timestamp, "-")
        sharding, clients = shown(info.sharding_to_broker), len(info.subscriber)
        run.line(_TOPIC.format(front(name, 40), end.min_offset, end.max_offset, last, sharding, clients))
        if run.has("s"):
            run.line(shown([f"{client.client_id}@{client.group}" for client in info.subscriber]))


async def lite_client(run: Invocation) -> None:
    """Show the subscriptions of a client on each broker."""
    parent, group, client_id = run.text("p"), run.text("g"), run.text("c")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Client Info: [{parent}] [{group}] [{client_id}]")
    run.line(_CLIENT.format("#Broker", "#LiteTopicCount", "#LastAccessTime", "#LastConsumeTime"))
    lite = run.admin.lite
    async for name, info in _answers(run, brokers, lambda address: lite.client(address, parent, group, client_id)):
        count = info.lite_topic_count if info.lite_topic_count > 0 else "N/A"
        times = (_when(ms, "N/A") for ms in (info.last_access_time, info.last_consume_time))
        run.line(_CLIENT.format(name, count, *times))
        if run.has("s") and info.lite_topic_set is not None:
            run.line(f"Lite Topics: {shown(text_order(info.lite_topic_set))}\n")


async def lite_group(run: Invocation) -> None:
    """Show the lag of a group: in one lite topic, or in the worst ones."""
    parent, group, topic = run.text("p"), run.text("g"), run.get("l")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Group Info: [{group}] [{parent}]")
    if topic:
        run.line(_OFFSETS.format("#Broker Name", "#BrokerOffset", "#ConsumeOffset", "#LagCount", "#LastUpdate"))
    now = run.clock.now_ms()
    infos: list[LiteGroupInfo] = []
    lite = run.admin.lite
    async for name, info in _answers(run, brokers, lambda one: lite.group(one, group, topic, run.number("k", TOP))):
        infos.append(info)
        if topic:
            _print_offsets(run, name, info)
    earliest = min([now, *(one for info in infos if (one := info.earliest_unconsumed_timestamp) > 0)])
    run.line(f"Total Lag Count: {sum(max(0, info.total_lag_count) for info in infos)}")
    seconds = (run.clock.now_ms() - earliest) // 1000
    run.line(f"Min Unconsumed Timestamp: {earliest} ({seconds} s ago)\n")
    if not topic:
        _print_worst(run, infos)


def _print_offsets(run: Invocation, broker: str, info: LiteGroupInfo) -> None:
    offsets = info.lite_topic_offset_wrapper
    if offsets is None:
        run.line(_OFFSETS.format(broker, "-", "-", "-", "-"))
        return
    places = offsets.broker_offset, offsets.consumer_offset, offsets.diff
    run.line(_OFFSETS.format(broker, *places, _when(offsets.last_timestamp, "-")))


def _print_worst(run: Invocation, infos: Sequence[LiteGroupInfo]) -> None:
    by_count = [lag for info in infos for lag in info.lag_count_top_k or []]
    by_time = [lag for info in infos for lag in info.lag_timestamp_top_k or []]
    run.line("------TopK by lag count-----")
    _print_lags(run, sorted(by_count, key=lambda lag: -lag.lag_count))
    run.line("\n------TopK by lag time------")
    _print_lags(run, sorted(by_time, key=lambda lag: lag.earliest_unconsumed_timestamp))


def _print_lags(run: Invocation, lags: Sequence[LiteLag]) -> None:
    run.line(_LAG.format("NO", "Lite Topic", "Lag Count", "UnconsumedTimestamp"))
    for number, lag in enumerate(lags, 1):
        since = _when(lag.earliest_unconsumed_timestamp, "-")
        run.line(_LAG.format(number, lag.lite_topic, lag.lag_count, since))


async def lite_dispatch(run: Invocation) -> None:
    """Dispatch all lite topics that are ready to a group, on all brokers or one."""
    parent, group, only = run.text("p"), run.text("g"), run.get("b")
    brokers = await _brokers(run, parent)
    run.line(f"Group And Topic Info: [{group}] [{parent}]\n")
    for name, address in brokers:
        if only is not None and name != only:
            continue
        state = "error"
        with run.noting():
            await run.admin.lite.dispatch(address, group, run.get("c"))
            state = "dispatched"
        run.line(f"{name:<30} {state:<12}")
