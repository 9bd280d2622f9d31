"""Commands about the offsets of groups: show progress, rates and lag, and change offsets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from firearrow.cli.mqadmin.groups import queue_troubles, same_subscriptions
from firearrow.cli.mqadmin.invocation import Invocation, or_none
from firearrow.cli.mqadmin.javatext import (
    copied_order,
    fixed,
    front,
    hash_order,
    moment_of,
    queue_hash,
    second,
    shown,
    text_order,
)
from firearrow.cli.mqadmin.topics import in_order
from firearrow.client.admin.cluster import Reset
from firearrow.client.admin.messages import PullStatus
from firearrow.client.queues import Queue
from firearrow.errors import ConfigError, FirearrowError, NotFound
from firearrow.message.names import group_of, is_dlq, is_retry, java_hash
from firearrow.wire.bodies import MASTER_ID, Route
from firearrow.wire.client_bodies import (
    CONSUME_ACTIVELY,
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
)
from firearrow.wire.codes import ResponseCode, version_name

END: Final = -1  # as a time: behind the last message
PUT: Final = "TOPIC_PUT_NUMS"
GET: Final = "GROUP_GET_NUMS"
BROKER_MS: Final = 50_000
FIRST_SECONDS: Final = 20.0
ROUND_SECONDS: Final = 60.0
_RULE: Final = "=" * 41
_PLACE: Final = "{:<40}  {:<40}  {:<40}"
_RESET: Final = "{:<20}  {:<20}  {:<20}  {:<20}  {:<20}  {:<20}"
_GROUP: Final = "{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}"
_PART: Final = "{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}"
_STATS: Final = "{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}"


async def reset(run: Invocation) -> None:
    """Reset the offsets of a group to a time; in one queue of a broker to a time or an offset."""
    group, topic, said = run.text("g"), run.text("t"), run.text("s")
    timestamp = run.clock.now_ms() if said == "now" else moment_of(said)
    force = run.flag("f", True)
    address, queue_id = run.get("b"), run.number("q", -1)
    if address is not None and queue_id >= 0:
        await _reset_queue(run, address, queue_id, timestamp)
        return
    try:
        places = await run.admin.reset(group, topic, timestamp, force=force, route_topic=run.get("c"))
    except NotFound as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        resets = await run.admin.reset_offline(group, topic, timestamp, force=force, route_topic=run.get("c"))
        run.line(
            f"reset consumer offset by specified consumerGroup[{group}], topic[{topic}], "
            f"force[{shown(force)}], timestamp(string)[{said}], timestamp(long)[{timestamp}]"
        )
        _print_resets(run, resets, "#resetOffset")
        return
    run.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"force[{shown(force)}], timestamp(string)[{said}], timestamp(long)[{timestamp}]"
    )
    _print_places(run, places)


async def _reset_queue(run: Invocation, address: str, queue_id: int, timestamp: int) -> None:
    group, topic = run.text("g"), run.text("t")
    run.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"queueId[{queue_id}], broker[{address}], timestamp(string)[{run.text('s')}], "
        f"timestamp(long)[{timestamp}]"
    )
    queue = MessageQueue(topic, address, queue_id)
    offset = run.number("o") if run.has("o") else await run.admin.offsets.at_time(address, queue, timestamp)
    run.line(f"reset consumer offset to {offset}")
    if offset > 0:  # as in RocketMQ, 0 is not committed
        await run.admin.offsets.commit(address, group, queue, offset)
        await run.admin.offsets.reset_queue(address, group, topic, queue_id, offset)


async def skip(run: Invocation) -> None:
    """Reset the offsets of a group to the end of each queue."""
    group, topic, force = run.text("g"), run.text("t"), run.flag("f", True)
    try:
        places = await run.admin.reset(group, topic, END, force=force, route_topic=run.get("c"))
    except NotFound as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        resets = await run.admin.reset_offline(group, topic, END, force=force)
        _print_resets(run, resets, "#rollbackOffset")
        return
    _print_places(run, places)


def _print_places(run: Invocation, places: Mapping[MessageQueue, int]) -> None:
    run.line(_PLACE.format("#brokerName", "#queueId", "#offset"))
    for queue in copied_order(hash_order(places, queue_hash), queue_hash):
        run.line(_PLACE.format(front(queue.broker_name, 32), queue.queue_id, places[queue]))


def _print_resets(run: Invocation, resets: Sequence[Reset], last: str) -> None:
    heads = "#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset"
    run.line(_RESET.format(*heads, last))
    for broker, *numbers in map(astuple, resets):
        run.line(_RESET.format(front(broker, 32), *numbers))


async def clone(run: Invocation) -> None:
    """Copy a group's offsets to another group.

    As in RocketMQ, the command copies the offsets in all topics; the named topic only gives the route to the brokers.
    """
    source, target, topic = run.text("s"), run.text("d"), run.text("t")
    progress = await run.admin.progress(source)
    route = await run.admin.topics.route(topic)
    addresses = {broker.broker_name: broker.address for broker in route.broker_datas}
    for queue, offsets in progress.offset_table.items():
        if offsets.consumer_offset >= 0:
            if queue.broker_name not in addresses:
                raise ConfigError(f"topic {topic!r} is not on broker {queue.broker_name!r}")
            await run.admin.offsets.commit(addresses[queue.broker_name], target, queue, offsets.consumer_offset)
    run.write(f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]")


# --- progress ---


async def group_progress(run: Invocation) -> None:
    """Show the progress of a group in each queue, or the totals of all groups."""
    group = run.get("g")
    if not group:
        await _of_all(run)
        return
    topic = run.get("t")
    stats = await run.admin.progress(group, topic, run.get("c") if topic else None)
    clients: dict[MessageQueue, str] | None = None
    if (run.get("s") or "").lower() == "true":
        clients = await _clients_by_queue(run, group)
    _print_queues(run, stats, clients)


def _print_queues(run: Invocation, stats: ConsumeStats, clients: dict[MessageQueue, str] | None) -> None:
    client_head = "" if clients is None else f"{'#Client IP':<20} "
    run.line(
        f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Broker Offset':<20}  "
        f"{'#Consumer Offset':<20}  {client_head}{'#Diff':<20} {'#Inflight':<20}#LastTime"
    )
    for queue in in_order(stats.offset_table):
        offsets = stats.offset_table[queue]
        last = second(offsets.last_timestamp) if offsets.last_timestamp else "N/A"
        client = "" if clients is None else f"{clients.get(queue, 'N/A'):<20} "
        run.line(
            f"{front(queue.topic, 64):<64}  {front(queue.broker_name, 32):<32}  "
            f"{queue.queue_id:<4}  {offsets.broker_offset:<20}  {offsets.consumer_offset:<20}  "
            f"{client}{offsets.diff:<20} {offsets.in_flight:<20} {last}"
        )
    run.line()
    run.line(f"Consume TPS: {fixed(stats.consume_tps, 2)}")
    run.line(f"Consume Diff Total: {stats.diff}")
    run.line(f"Consume Inflight Total: {stats.in_flight}")


async def _clients_by_queue(run: Invocation, group: str) -> dict[MessageQueue, str]:
    """Give the client of each queue, as the clients report it."""
    found: dict[MessageQueue, str] = {}
    with run.noting():
        for client in (await run.admin.consumers(group)).connection_set:
            info = await run.admin.running_info(group, client.client_id)
            found |= dict.fromkeys(info.mq_table, client.client_id.partition("@")[0])
    return found


async def _of_all(run: Invocation) -> None:
    run.line(_GROUP.format("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    for topic in text_order(await run.admin.topics.names()):
        group = group_of(topic) if is_retry(topic) else None
        if group is None:
            continue
        # As in RocketMQ, a group without progress is listed, and a group without consumers is offline.
        stats = await or_none(run.admin.progress(group))
        run.line(_row(group, stats, await or_none(run.admin.consumers(group))))


def _row(group: str, stats: ConsumeStats | None, consumers: ConsumerConnection | None) -> str:
    count, version, kind, model = 0, "OFFLINE", "", ""
    if consumers is not None:
        count = len(consumers.connection_set)
        version = version_name(min(client.version for client in consumers.connection_set))
        kind = "PULL" if consumers.consume_type == CONSUME_ACTIVELY else "PUSH"
        model = consumers.message_model or "" if kind == "PUSH" else ""
    rate, lag = (int(stats.consume_tps), stats.diff) if stats else (0, 0)
    return _GROUP.format(front(group, 64), count, version, kind, model, rate, lag)


async def broker_progress(run: Invocation) -> None:
    """Show the progress of all groups of a broker, without the queues that have no consumed message."""
    level = run.number("l", 0)
    found = await run.admin.offsets.all_progress(
        run.text("b"), ordered=run.flag("o", False), seconds=run.number("t", BROKER_MS) / 1000
    )
    heads = "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"
    run.line(_PART.format("#Topic", "#Group", *heads))
    for groups in found.consume_stats_list:
        for group in hash_order(groups, java_hash):
            for stats in groups[group]:
                _print_part(run, group, stats, level)
    run.line(f"\nDiff Total: {found.total_diff}")


def _print_part(run: Invocation, group: str, stats: ConsumeStats, level: int) -> None:
    for queue in in_order(stats.offset_table):
        offsets = stats.offset_table[queue]
        if offsets.diff >= level and offsets.last_timestamp > 0:
            place = front(queue.topic, 64), group, front(queue.broker_name, 32), queue.queue_id
            numbers = offsets.broker_offset, offsets.consumer_offset, offsets.diff
            run.line(_PART.format(*place, *numbers, second(offsets.last_timestamp)))


# --- rates ---


class RateAndSum(NamedTuple):
    """Rate of the last minute and sum of the last day."""

    rate: float
    day: int


def day_sum(counter: BrokerStatsData) -> int:
    """Give the sum of the last day; before there is one, of the last hour or minute."""
    return counter.stats_day.sum or counter.stats_hour.sum or counter.stats_minute.sum


async def stats_of_all(run: Invocation) -> None:
    """Show the rates and counts of one topic, or of all except retry and dead-letter topics."""
    heads = "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    run.line(_STATS.format("#Topic", "#Consumer Group", *heads))
    only = run.get("t")
    for topic in text_order(await run.admin.topics.names()):
        if is_retry(topic) or is_dlq(topic) or (only and topic != only):
            continue
        with run.noting():
            await _print_topic(run, topic)


async def _print_topic(run: Invocation, topic: str) -> None:
    route = await run.admin.topics.route(topic)
    groups = await run.admin.topic_groups(topic)
    put = await _counted(run, route, PUT, topic)
    only_active = run.has("a")
    for group in text_order(groups):
        got = await _counted(run, route, GET, f"{topic}@{group}")
        if not only_active or put.day or got.day:
            progress = await or_none(run.admin.progress(group, topic))
            rates = fixed(put.rate, 2), fixed(got.rate, 2)
            lag = max(0, progress.diff) if progress else 0
            run.line(_STATS.format(front(topic, 64), front(group, 64), lag, *rates, put.day, got.day))
    if not groups and (not only_active or put.day):
        run.line(_STATS.format(front(topic, 64), "", 0, fixed(put.rate, 2), "", put.day, "NO_CONSUMER"))


async def _counted(run: Invocation, route: Route, name: str, key: str) -> RateAndSum:
    rate, day = 0.0, 0
    for broker in route.broker_datas:
        master = broker.broker_addrs.get(MASTER_ID)
        if master is None:
            continue
        counter = await or_none(run.admin.brokers.counter(master, name, key))
        if counter is not None:  # the broker has counted something
            rate += counter.stats_minute.tps
            day += day_sum(counter)
    return RateAndSum(rate, day)


# --- monitoring ---


async def monitor(run: Invocation) -> None:
    """Check all groups once a minute and log the groups that are behind, until stopped.

    As in RocketMQ, the command prints nothing on standard output; the log is standard error.
    """
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await one_round(run)
        await asyncio.sleep(ROUND_SECONDS)


async def one_round(run: Invocation) -> None:
    """Check all groups once."""
    _log(f"{_RULE}beginRound")
    for topic in text_order(await run.admin.topics.names()):
        group = group_of(topic) if is_retry(topic) else None
        if group is None:
            continue
        try:
            await _report_lag(run, group)
            await _report_consumers(run, group)
        except (OSError, FirearrowError):  # as in RocketMQ, a group that is offline has no report
            continue
    _log(f"{_RULE}endRound")


def _log(text: str) -> None:
    print(f"[MONITOR] {text}", file=sys.stderr)


async def _report_lag(run: Invocation, group: str) -> None:
    stats = await run.admin.progress(group)
    await run.admin.consumers(group)
    for topic in text_order(queue.topic for queue in stats.offset_table):
        places = {queue: offsets for queue, offsets in stats.offset_table.items() if queue.topic == topic}
        undone = [max(0, offsets.diff) for offsets in places.values()]
        delays = [await _delay(run, queue, offsets) for queue, offsets in places.items() if offsets.last_timestamp > 0]
        _log(
            f"reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic}, "
            f"undoneMsgsTotal={sum(undone)}, "
            f"undoneMsgsSingleMQ={max(undone)}, undoneMsgsDelayTimeMills={max([0, *delays])}]"
        )


async def _delay(run: Invocation, queue: MessageQueue, offsets: OffsetWrapper) -> int:
    """Give the time in ms from the store time of a queue's last consumed message to that of its last message."""
    route = await run.admin.topics.route(queue.topic)
    addresses = [broker.address for broker in route.broker_datas if broker.broker_name == queue.broker_name]
    if not addresses or offsets.broker_offset == 0:
        return 0
    place = Queue(queue.topic, queue.broker_name, queue.queue_id)
    last = offsets.broker_offset - 1
    pulled = await run.admin.messages.pull(addresses[0], place, last, 1)
    if pulled.status is not PullStatus.FOUND:
        return 0
    return pulled.messages[0].store_timestamp_ms - offsets.last_timestamp


async def _report_consumers(run: Invocation, group: str) -> None:
    consumers = await run.admin.consumers(group)
    infos = {
        client.client_id: await run.admin.running_info(group, client.client_id) for client in consumers.connection_set
    }
    now = run.clock.now_ms()
    ordered = dict(sorted(infos.items()))
    about = f" [NOTIFY] reportConsumerRunningInfo: ConsumerGroup: {group}"
    if not same_subscriptions(list(ordered.values()), now):
        _log(f"{about}, Subscription different")
    for client_id, info in ordered.items():
        troubles = queue_troubles(client_id, info, now)
        if troubles:
            _log(f"{about}, ClientId: {client_id}, {troubles}")
