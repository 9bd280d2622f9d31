"""Queues that a route describes, writable and readable, and the addresses of their brokers.

Values in, values out. The order of queues is the order of RocketMQ's clients.

Source: RocketMQ's ``MQClientInstance#topicRouteData2TopicPublishInfo`` and ``#topicRouteData2TopicSubscribeInfo``,
``MQClientInstance#findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from firearrow.client.queues import Queue
from firearrow.wire.bodies import MASTER_ID, PERM_READ, PERM_WRITE, Route

LOGICAL_BROKER: Final = "__syslo__global__"  # broker name of the queues of static topics


def publish_queues(topic: str, route: Route, queues_max: int | None = None) -> list[Queue]:
    """Writable queues; ``queues_max`` limits the queues of each broker."""
    if route.order_topic_conf:
        return list(_ordered(topic, route.order_topic_conf))
    if route.topic_queue_mapping_by_broker:
        return sorted(_logical(topic, route))
    masters = {one.broker_name for one in route.broker_datas if MASTER_ID in one.broker_addrs}
    return [
        Queue(topic, queues.broker_name, queue_id)
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name)
        if queues.perm & PERM_WRITE and queues.broker_name in masters
        for queue_id in range(min(queues.write_queue_nums, queues_max or queues.write_queue_nums))
    ]


class WritableQueue(NamedTuple):
    """Writable queue with the address of its broker."""

    broker_name: str
    address: str
    queue_id: int


def writable(route: Route, queues_max: int | None = None) -> list[WritableQueue]:
    """Writable queues, each with its master's address."""
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    return [
        WritableQueue(queue.broker, masters[queue.broker], queue.queue_id)
        for queue in publish_queues("", route, queues_max)
        if queue.broker in masters
    ]


def is_ordered(route: Route) -> bool:
    """Tell whether the name server fixes the queues of the topic."""
    return bool(route.order_topic_conf)


def subscribe_queues(topic: str, route: Route) -> list[Queue]:
    """Readable queues, sorted, also of brokers without a master."""
    if route.topic_queue_mapping_by_broker:
        return sorted(_logical(topic, route))
    return sorted(
        Queue(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    )


def hosts_of_logical(route: Route) -> dict[int, str]:
    """Broker of each queue of a static topic: the latest of several that claim the queue."""
    hosts: dict[int, tuple[int, str]] = {}
    for name, mapping in (route.topic_queue_mapping_by_broker or {}).items():
        for queue_id in mapping.curr_id_map:
            if queue_id not in hosts or hosts[queue_id][0] <= mapping.epoch:
                hosts[queue_id] = mapping.epoch, name
    return {queue_id: name for queue_id, (_, name) in hosts.items()}


def broker_addresses(route: Route) -> dict[str, dict[int, str]]:
    """Addresses of each broker name, by broker id."""
    return {broker.broker_name: dict(broker.broker_addrs) for broker in route.broker_datas}


def address_of_id(addresses: Mapping[int, str], broker_id: int = MASTER_ID, *, any_will_do: bool = False) -> str | None:
    """Address for a broker id. Without that slave, the next id will do. With ``any_will_do``, so will the lowest id."""
    found = addresses.get(broker_id)
    if found is None and broker_id != MASTER_ID:
        found = addresses.get(broker_id + 1)
    if found is None and any_will_do and addresses:
        found = addresses[min(addresses)]
    return found


def _ordered(topic: str, conf: str) -> Iterator[Queue]:
    """Queues in the form ``broker:number;broker:number``; see `Route.usable`."""
    for part in filter(None, conf.split(";")):
        broker, _, number = part.partition(":")
        yield from (Queue(topic, broker, queue_id) for queue_id in range(int(number)))


def _logical(topic: str, route: Route) -> Iterator[Queue]:
    mappings = route.topic_queue_mapping_by_broker or {}
    for queue_id in range(max((it.total_queues for it in mappings.values()), default=0)):
        yield Queue(topic, LOGICAL_BROKER, queue_id)
