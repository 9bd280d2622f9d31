"""The command that looks once a minute which groups are behind, and logs it, until it is stopped.

As upstream's, it prints nothing on standard output; here the log is standard error.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import text_order
from firearrow.cli.mqadmin.runninginfo import queue_troubles, same_subscriptions
from firearrow.client.admin.messages import PullStatus
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import address_of
from firearrow.errors import FirearrowError
from firearrow.message.names import group_of, is_retry
from firearrow.wire.client_bodies import ConsumeStats, MessageQueue, OffsetWrapper

FIRST_SECONDS: Final = 20.0
ROUND_SECONDS: Final = 60.0
_RULE: Final = "=" * 41


async def monitor(run: Invocation) -> None:
    """Look at all groups, round after round."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await one_round(run)
        await asyncio.sleep(ROUND_SECONDS)


async def one_round(run: Invocation) -> None:
    """Look at all groups once."""
    _log(f"{_RULE}beginRound")
    for topic in text_order(await run.admin.topics.names()):
        group = group_of(topic) if is_retry(topic) else None
        if group is None:
            continue
        try:
            await _report_waiting(run, group)
            await _report_consumers(run, group)
        except (OSError, FirearrowError):  # as upstream: who is not there is not reported
            continue
    _log(f"{_RULE}endRound")


def _log(text: str) -> None:
    print(f"[MONITOR] {text}", file=sys.stderr)


async def _report_waiting(run: Invocation, group: str) -> None:
    stats = await run.admin.progress(group)
    await run.admin.consumers(group)
    for topic in text_order(queue.topic for queue in stats.offset_table):
        diffs = _diffs(stats, topic)
        delay = 0
        for queue, offsets in stats.offset_table.items():
            if queue.topic == topic and offsets.last_timestamp > 0:
                delay = max(delay, await _delay(run, queue, offsets))
        _log(
            f"reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic}, "
            f"undoneMsgsTotal={sum(diff for diff in diffs if diff > 0)}, "
            f"undoneMsgsSingleMQ={max([0, *diffs])}, undoneMsgsDelayTimeMills={delay}]"
        )


def _diffs(stats: ConsumeStats, topic: str) -> list[int]:
    return [
        offsets.broker_offset - offsets.consumer_offset
        for queue, offsets in stats.offset_table.items()
        if queue.topic == topic
    ]


async def _delay(run: Invocation, queue: MessageQueue, offsets: OffsetWrapper) -> int:
    """How much later the last message of a queue was stored than the last consumed one, in ms."""
    route = await run.admin.topics.route(queue.topic)
    addresses = [address_of(broker) for broker in route.broker_datas if broker.broker_name == queue.broker_name]
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
