"""Clients with cut, delayed and corrupted connections: no message is lost, and order is kept."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from firearrow.client import Message, Producer, PushConsumer, StartFrom
from firearrow.errors import FirearrowError
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic, until_in_time
from tests.client.relay import CALM, Faults, Relay

SEEDS = range(4)
KEYS = ["k0", "k1", "k2", "k3"]
MESSAGES_OF_KEY = 60
WILD = Faults(cut=0.05, corrupt=0.03, delay=0.1)


async def send_stubbornly(producer: Producer, key: str) -> None:
    """Send numbers one after another, each until it is taken."""
    for number in range(MESSAGES_OF_KEY):
        while True:
            try:
                await producer.send("T", f"{key} {number}", sharding_key=key)
                break
            except (OSError, FirearrowError):
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["ordered", "pull", "pop"])
def test_nothing_is_lost_and_order_is_kept(root: Path, mode: str, seed: int) -> None:
    got: dict[str, list[int]] = defaultdict(list)

    async def take(message: Message) -> None:
        key, number = message.text().split()
        got[key].append(int(number))

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
        relay = Relay(cluster.brokers["a"].port, seed)
        whole = set(range(MESSAGES_OF_KEY))
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            ordered=mode == "ordered",
            mode="pop" if mode == "pop" else "pull",
            start=StartFrom.FIRST,
            clock=cluster.clock,
            ip="127.0.0.1",
        )
        consumer.subscribe("T", take)
        producer = Producer(cluster.name_server, group="p", clock=cluster.clock)
        async with relay.between(), consumer, producer:
            relay.faults = WILD
            await asyncio.gather(*(send_stubbornly(producer, key) for key in KEYS))
            relay.faults = CALM
            await until_in_time(lambda: all(set(got[key]) == whole for key in KEYS), f"all of seed {seed}", 3600)
        assert relay.done.keys() == {"cut", "corrupted", "delayed"}
        if mode == "ordered":
            for numbers in got.values():
                assert list(dict.fromkeys(numbers)) == sorted(whole)

    clustered(root, main)
