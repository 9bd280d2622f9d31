"""The commands about lite topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import front, moment, shown, text_order
from firearrow.client.routing.queues import address_of
from firearrow.errors import FirearrowError
from firearrow.message.names import lite_queue
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import LiteBrokerInfo, LiteGroupInfo, LiteLag

_BROKER: Final = "{:<30} {:<17} {:<10} {:<14} {:<20} {:<17} {:<15} {:<18} {:<15}"
_PARENT: Final = "{:<50} {:<8} {:<14} {:<14} {:<100} "
_TOPIC: Final = "{:<50} {:<14} {:<14} {:<30} {:<12} {:<18} "
_CLIENT: Final = "{:<30} {:<20} {:<30} {:<30} "
_OFFSETS: Final = "{:<50} {:<16} {:<16} {:<16} {:<30}"
_LAG: Final = "{:<6} {:<40} {:<12} {:<30}"
TOP: Final = 20


def _when(ms: int, otherwise: str) -> str:
    return moment(ms) if ms > 0 else otherwise


async def _brokers(run: Invocation, parent: str) -> list[tuple[str, str]]:
    """The name and an address of each broker that has a topic."""
    route = await run.admin.topics.route(parent)
    return [(broker.broker_name, address_of(broker)) for broker in route.broker_datas]


async def broker_info(run: Invocation) -> None:
    """Show how much a broker has of them, or each master of a cluster."""
    run.line(
        _BROKER.format(
            "#Broker", "#Store Type", "#Max LMQ", "#Current LMQ", "#SubscriptionCount",
            "#OrderInfoCount", "#CQTableSize", "#OffsetTableSize", "#eventMapSize",
        )
    )  # fmt: skip
    if address := run.get("b"):
        _print_broker(run, address, await run.admin.lite.broker(address))
        return
    for master in text_order(await run.masters(run.text("c"))):
        try:
            _print_broker(run, master, await run.admin.lite.broker(master))
        except (OSError, FirearrowError) as error:
            run.line(f"[{master}] error.")
            run.note(error)


def _print_broker(run: Invocation, address: str, info: LiteBrokerInfo) -> None:
    run.line(
        _BROKER.format(
            address, info.store_type, info.max_lmq_num, info.current_lmq_num,
            info.lite_subscription_count, info.order_info_count, info.cq_table_size,
            info.offset_table_size, info.event_map_size,
        )
    )  # fmt: skip
    if run.has("d"):
        topics = {name: info.topic_meta[name] for name in text_order(info.topic_meta)}
        groups = {name: text_order(info.group_meta[name]) for name in text_order(info.group_meta)}
        run.line(f"Topic Meta: {fastjson.dumps(topics).decode()}")
        run.line(f"Group Meta: {fastjson.dumps(groups).decode()}\n")


async def parent_info(run: Invocation) -> None:
    """Show how many a topic has on each broker."""
    parent = run.text("p")
    brokers = await _brokers(run, parent)
    run.line(f"Parent Topic Info: [{parent}]")
    run.line(_PARENT.format("#Broker Name", "#TTL", "#Lite Count", "#LMQ NUM", "#GROUPS"))
    for name, address in brokers:
        try:
            info = await run.admin.lite.parent(address, parent)
        except (OSError, FirearrowError) as error:
            run.line(f"[{name}] error.")
            run.note(error)
            continue
        numbers = info.ttl, info.lite_topic_count, info.lmq_num
        run.line(_PARENT.format(front(name, 40), *numbers, shown(text_order(info.groups))))


async def topic_info(run: Invocation) -> None:
    """Show what one has on each broker, and who subscribes to it."""
    parent, lite_topic = run.text("p"), run.text("l")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Topic Info: [{parent}] [{lite_topic}] [{lite_queue(parent, lite_topic)}]")
    run.line(
        _TOPIC.format(
            "#Broker Name", "#MinOffset", "#MaxOffset", "#LastUpdate", "#Sharding",
            "#SubClientCount",
        )
    )  # fmt: skip
    for name, address in brokers:
        try:
            info = await run.admin.lite.topic(address, parent, lite_topic)
        except (OSError, FirearrowError) as error:
            run.line(f"[{name}] error.")
            run.note(error)
            continue
        end = info.topic_offset
        last = _when(end.last_update_timestamp, "-")
        sharding, clients = shown(info.sharding_to_broker), len(info.subscriber)
        run.line(_TOPIC.format(front(name, 40), end.min_offset, end.max_offset, last, sharding, clients))
        if run.has("s"):
            run.line(shown([f"{client.client_id}@{client.group}" for client in info.subscriber]))


async def client_info(run: Invocation) -> None:
    """Show what a client subscribes to on each broker."""
    parent, group, client_id = run.text("p"), run.text("g"), run.text("c")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Client Info: [{parent}] [{group}] [{client_id}]")
    run.line(_CLIENT.format("#Broker", "#LiteTopicCount", "#LastAccessTime", "#LastConsumeTime"))
    for name, address in brokers:
        try:
            info = await run.admin.lite.client(address, parent, group, client_id)
        except (OSError, FirearrowError) as error:
            run.line(f"[{name}] error.")
            run.note(error)
            continue
        count = info.lite_topic_count if info.lite_topic_count > 0 else "N/A"
        times = (_when(ms, "N/A") for ms in (info.last_access_time, info.last_consume_time))
        run.line(_CLIENT.format(name, count, *times))
        if run.has("s") and info.lite_topic_set is not None:
            run.line(f"Lite Topics: {shown(text_order(info.lite_topic_set))}\n")


async def group_info(run: Invocation) -> None:
    """Show how far a group is behind: in one of them, or in those that are worst."""
    parent, group, lite_topic = run.text("p"), run.text("g"), run.get("l")
    brokers = await _brokers(run, parent)
    run.line(f"Lite Group Info: [{group}] [{parent}]")
    if lite_topic:
        heads = "#Broker Name", "#BrokerOffset", "#ConsumeOffset", "#LagCount", "#LastUpdate"
        run.line(_OFFSETS.format(*heads))
    now = run.clock.now_ms()
    infos: list[LiteGroupInfo] = []
    for name, address in brokers:
        try:
            info = await run.admin.lite.group(address, group, lite_topic, run.number("k", TOP))
        except (OSError, FirearrowError) as error:
            run.line(f"[{name}] error.")
            run.note(error)
            continue
        infos.append(info)
        if lite_topic:
            _print_offsets(run, name, info)
    earliest = min([now, *(one for info in infos if (one := info.earliest_unconsumed_timestamp) > 0)])
    run.line(f"Total Lag Count: {sum(max(0, info.total_lag_count) for info in infos)}")
    seconds = (run.clock.now_ms() - earliest) // 1000
    run.line(f"Min Unconsumed Timestamp: {earliest} ({seconds} s ago)\n")
    if not lite_topic:
        _print_worst(run, infos)


def _print_offsets(run: Invocation, broker: str, info: LiteGroupInfo) -> None:
    offsets = info.lite_topic_offset_wrapper
    if offsets is None:
        run.line(_OFFSETS.format(broker, "-", "-", "-", "-"))
        return
    latest, at = offsets.broker_offset, offsets.consumer_offset
    last = _when(offsets.last_timestamp, "-")
    run.line(_OFFSETS.format(broker, latest, at, latest - at, last))


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


async def dispatch(run: Invocation) -> None:
    """Have a group see all that are ready, on all brokers or one."""
    parent, group, only = run.text("p"), run.text("g"), run.get("b")
    brokers = await _brokers(run, parent)
    run.line(f"Group And Topic Info: [{group}] [{parent}]\n")
    for name, address in brokers:
        if only is not None and name != only:
            continue
        state = "dispatched"
        try:
            await run.admin.lite.dispatch(address, group, run.get("c"))
        except (OSError, FirearrowError) as error:
            state = "error"
            run.note(error)
        run.line(f"{name:<30} {state:<12}")
