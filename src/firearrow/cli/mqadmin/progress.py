"""The commands that show how far groups are."""

from __future__ import annotations

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import fixed, front, hash_order, second, text_order
from firearrow.cli.mqadmin.topics import in_order
from firearrow.client.admin import Admin
from firearrow.client.diagnosis.clusterfacts import behind
from firearrow.errors import FirearrowError
from firearrow.message.names import group_of, is_retry, java_hash
from firearrow.wire.client_bodies import CONSUME_ACTIVELY, ConsumerConnection, ConsumeStats, MessageQueue
from firearrow.wire.codes import version_name

BROKER_MS = 50_000


async def of_group(run: Invocation) -> None:
    """Show how far a group is in each queue, or how far all groups are."""
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
    diff_total = inflight_total = 0
    for queue in in_order(stats.offset_table):
        offsets = stats.offset_table[queue]
        diff = offsets.broker_offset - offsets.consumer_offset
        inflight = offsets.pull_offset - offsets.consumer_offset
        diff_total += diff
        inflight_total += inflight
        last = second(offsets.last_timestamp) if offsets.last_timestamp else "N/A"
        client = "" if clients is None else f"{clients.get(queue, 'N/A'):<20} "
        run.line(
            f"{front(queue.topic, 64):<64}  {front(queue.broker_name, 32):<32}  "
            f"{queue.queue_id:<4}  {offsets.broker_offset:<20}  {offsets.consumer_offset:<20}  "
            f"{client}{diff:<20} {inflight:<20} {last}"
        )
    run.line()
    run.line(f"Consume TPS: {fixed(stats.consume_tps, 2)}")
    run.line(f"Consume Diff Total: {diff_total}")
    run.line(f"Consume Inflight Total: {inflight_total}")


async def _clients_by_queue(run: Invocation, group: str) -> dict[MessageQueue, str]:
    """Which client has which queue, as far as they say so."""
    found: dict[MessageQueue, str] = {}
    try:
        for client in (await run.admin.consumers(group)).connection_set:
            info = await run.admin.running_info(group, client.client_id)
            found |= dict.fromkeys(info.mq_table, client.client_id.partition("@")[0])
    except (OSError, FirearrowError) as error:
        run.note(error)
    return found


async def _of_all(run: Invocation) -> None:
    run.line(f"{'#Group':<64}  {'#Count':<6}  {'#Version':<24} {'#Type':<5}  {'#Model':<14}  {'#TPS':<7}  #Diff Total")
    for topic in text_order(await run.admin.topics.names()):
        group = group_of(topic) if is_retry(topic) else None
        if group is None:
            continue
        stats = await _progress_or_none(run.admin, group)
        consumers = await _consumers_or_none(run.admin, group)
        run.line(_row(group, stats, consumers))


async def _progress_or_none(admin: Admin, group: str) -> ConsumeStats | None:
    try:
        return await admin.progress(group)
    except (OSError, FirearrowError):  # as upstream: the group is listed without
        return None


async def _consumers_or_none(admin: Admin, group: str) -> ConsumerConnection | None:
    try:
        return await admin.consumers(group)
    except (OSError, FirearrowError):  # it is offline
        return None


def _row(group: str, stats: ConsumeStats | None, consumers: ConsumerConnection | None) -> str:
    count, version, kind, model = 0, "OFFLINE", "", ""
    if consumers is not None:
        count = len(consumers.connection_set)
        version = version_name(min(client.version for client in consumers.connection_set))
        kind = "PULL" if consumers.consume_type == CONSUME_ACTIVELY else "PUSH"
        model = consumers.message_model or "" if kind == "PUSH" else ""
    rate = int(stats.consume_tps) if stats else 0
    return (
        f"{front(group, 64):<64}  {count:<6}  {version:<24} {kind:<5}  {model:<14}  {rate:<7}  "
        f"{behind(stats) if stats else 0}"
    )


async def of_broker(run: Invocation) -> None:
    """Show how far all groups of a broker are; queues without a consumed message are left out."""
    level = run.number("l", 0)
    found = await run.admin.offsets.all_progress(
        run.text("b"), ordered=run.flag("o", False), seconds=run.number("t", BROKER_MS) / 1000
    )
    run.line(
        f"{'#Topic':<64}  {'#Group':<64}  {'#Broker Name':<32}  {'#QID':<4}  "
        f"{'#Broker Offset':<20}  {'#Consumer Offset':<20}  {'#Diff':<20}  #LastTime"
    )
    for groups in found.consume_stats_list:
        for group in hash_order(groups, java_hash):
            for stats in groups[group]:
                _print_part(run, group, stats, level)
    run.line(f"\nDiff Total: {found.total_diff}")


def _print_part(run: Invocation, group: str, stats: ConsumeStats, level: int) -> None:
    for queue in in_order(stats.offset_table):
        offsets = stats.offset_table[queue]
        diff = offsets.broker_offset - offsets.consumer_offset
        if diff >= level and offsets.last_timestamp > 0:
            run.line(
                f"{front(queue.topic, 64):<64}  {group:<64}  "
                f"{front(queue.broker_name, 32):<32}  {queue.queue_id:<4}  "
                f"{offsets.broker_offset:<20}  {offsets.consumer_offset:<20}  {diff:<20}  "
                f"{second(offsets.last_timestamp)}"
            )
