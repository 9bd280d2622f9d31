"""The commands that change where groups go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import copied_order, front, hash_order, moment_of, queue_hash, shown
from firearrow.client.admin.cluster import Reset
from firearrow.client.routing.queues import address_of
from firearrow.errors import ConfigError, NotFound
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.codes import ResponseCode

END: Final = -1  # of all times: behind the last message


async def reset(run: Invocation) -> None:
    """Have a group go on at a time; at an offset or a time in one queue of a broker."""
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
    if offset > 0:  # as upstream: 0 is not committed
        await run.admin.offsets.commit(address, group, queue, offset)
        await run.admin.offsets.reset_queue(address, group, topic, queue_id, offset)


async def skip(run: Invocation) -> None:
    """Have a group skip all that waits for it."""
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
    run.line(f"{'#brokerName':<40}  {'#queueId':<40}  {'#offset':<40}")
    for queue in copied_order(hash_order(places, queue_hash), queue_hash):
        name = front(queue.broker_name, 32)
        run.line(f"{name:<40}  {queue.queue_id:<40}  {places[queue]:<40}")


def _print_resets(run: Invocation, resets: Sequence[Reset], last: str) -> None:
    run.line(
        f"{'#brokerName':<20}  {'#queueId':<20}  {'#brokerOffset':<20}  "
        f"{'#consumerOffset':<20}  {'#timestampOffset':<20}  {last:<20}"
    )
    for one in resets:
        run.line(
            f"{front(one.broker, 32):<20}  {one.queue_id:<20}  {one.latest:<20}  "
            f"{one.before:<20}  {one.at_time:<20}  {one.after:<20}"
        )


async def clone(run: Invocation) -> None:
    """Give a group another's offsets, in all queues that the other has any in.

    As upstream, that is not only in the topic that is named: its route says where brokers are.
    """
    source, target, topic = run.text("s"), run.text("d"), run.text("t")
    progress = await run.admin.progress(source)
    route = await run.admin.topics.route(topic)
    addresses = {broker.broker_name: address_of(broker) for broker in route.broker_datas}
    for queue, offsets in progress.offset_table.items():
        if offsets.consumer_offset >= 0:
            if queue.broker_name not in addresses:
                raise ConfigError(f"topic {topic!r} is not on broker {queue.broker_name!r}")
            await run.admin.offsets.commit(addresses[queue.broker_name], target, queue, offsets.consumer_offset)
    run.write(f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]")
