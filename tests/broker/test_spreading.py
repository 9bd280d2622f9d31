"""A topic that a send creates is on all masters of the cluster, if that is wanted."""

from __future__ import annotations

import asyncio

from firearrow.client import Producer
from firearrow.client.admin import Admin
from firearrow.errors import TopicNotFound
from firearrow.net.client import Client
from firearrow.testing import EmbeddedCluster
from firearrow.wire.bodies import TopicConfig
from tests.broker.serving import send_fields

LATE_SECONDS = 30


async def queues_on(cluster: EmbeddedCluster, topic: str) -> list[int | None]:
    """How many queues a topic has on each broker; None: it is not there."""
    found: list[int | None] = []
    async with Admin.of([cluster.name_server]) as admin:
        for broker in cluster.brokers:
            try:
                found.append((await admin.topics.config(broker.address, topic)).write_queue_nums)
            except TopicNotFound:
                found.append(None)
    return found


async def wait_for(cluster: EmbeddedCluster, topic: str, queues: list[int | None]) -> None:
    async with asyncio.timeout(LATE_SECONDS):
        while True:
            if await queues_on(cluster, topic) == queues:
                return
            await asyncio.sleep(0.01)


def test_a_topic_that_a_send_creates_is_on_all_and_what_others_have_stays() -> None:
    async def main() -> None:
        async with EmbeddedCluster(brokers=3, autoCreateTopicOnAll=True) as cluster:
            first, _, third = cluster.brokers
            async with Admin.of([cluster.name_server]) as admin:
                await admin.topics.create(third.address, TopicConfig("orders", 1, 1, 6))
                await admin.topics.create(first.address, TopicConfig("here", 2, 2, 6))
            client = Client()
            await client.call(first.address, 310, send_fields("orders"), b"x")
            await client.close()
            await wait_for(cluster, "orders", [4, 4, 1])
            assert await queues_on(cluster, "here") == [2, None, None]

    asyncio.run(main())


def test_without_the_key_it_is_where_it_was_sent_to() -> None:
    async def main() -> None:
        async with EmbeddedCluster(brokers=2) as cluster:
            async with Producer(cluster.name_server, group="p") as producer:
                sent = await producer.send("orders", "x")
            there = [4 if it.name == sent.queue.broker else None for it in cluster.brokers]
            assert await queues_on(cluster, "orders") == there

    asyncio.run(main())
