"""How queues are divided, against RocketMQ's own classes on random queues, clients and rooms."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from firearrow.wire.allocation import (
    AVG,
    AVG_BY_CIRCLE,
    CONSISTENT_HASH,
    Strategy,
    configured,
    machine_room,
    machine_room_nearby,
    room_of,
)
from firearrow.wire.client_bodies import MessageQueue
from tests.interop.driver import Driver

ROUNDS = 200
ROOMS = ("hz", "sh", "sz", "bj")
TOPICS = ("T", "orders", "%RETRY%g", "ns%t-1")

MakeStrategy = Callable[[list[MessageQueue]], Strategy]


class Divided(msgspec.Struct):
    """What the Java process answers: places of queues, for each client."""

    name: str
    divided: list[list[int]]


def nearby(inner: Strategy) -> Strategy:
    def queue_room(queue: MessageQueue) -> str:
        return room_of(queue.broker_name) or ""

    return machine_room_nearby(inner, queue_room, lambda client: client.split("@")[0])


STRATEGIES: dict[str, MakeStrategy] = {
    "AVG": lambda _: AVG,
    "AVG_BY_CIRCLE": lambda _: AVG_BY_CIRCLE,
    "CONSISTENT_HASH": lambda _: CONSISTENT_HASH,
    "MACHINE_ROOM": lambda _: machine_room(ROOMS[:2]),
    "MACHINE_ROOM_NEARBY-AVG": lambda _: nearby(AVG),
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH": lambda _: nearby(CONSISTENT_HASH),
    "CONFIG": configured,
}


def random_queues(chance: Random) -> list[MessageQueue]:
    topic = chance.choice(TOPICS)
    brokers = {f"{chance.choice(ROOMS)}@broker-{chance.choice('abc')}" for _ in range(4)}
    return [
        MessageQueue(topic, broker, queue_id) for broker in sorted(brokers) for queue_id in range(chance.randint(1, 16))
    ]


def random_clients(chance: Random) -> list[str]:
    rooms = chance.sample(ROOMS, chance.randint(1, len(ROOMS)))
    count = chance.randint(1, 24)
    return sorted(f"{chance.choice(rooms)}@10.0.0.{number}@{number}#7" for number in range(count))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_random_group_is_divided_alike(driver: Driver, name: str) -> None:
    chance = Random(f"allocation {name}")
    for _ in range(ROUNDS):
        queues, clients = random_queues(chance), random_clients(chance)
        strategy = STRATEGIES[name](queues)
        theirs = driver.call(
            "allocate",
            Divided,
            strategy=name,
            queues=[{"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id} for one in queues],
            clients=clients,
            rooms=ROOMS[:2],
        )
        ours = [[queues.index(queue) for queue in strategy(queues, clients, client)] for client in clients]
        assert (strategy.name, ours) == (theirs.name, theirs.divided)
