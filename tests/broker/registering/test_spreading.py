"""A topic that a send creates is on all masters of the cluster, if that is wanted."""

from __future__ import annotations

import asyncio

from firearrow.broker.events import TopicMade
from firearrow.broker.registering.spreading import Spreading
from firearrow.client import Producer
from firearrow.client.admin import Admin
from firearrow.clock import SystemClock
from firearrow.errors import TopicNotFound
from firearrow.net.client import Client
from firearrow.net.server import Answer, Peer, Server
from firearrow.testing import EmbeddedCluster
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, TopicConfig
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.broker.serving import send_fields, until

LATE_SECONDS = 30
NOBODY = "127.0.0.1:1"


async def queues_on(cluster: EmbeddedCluster, topic: str) -> list[int | None]:
    """Return the count of a topic's queues on each broker; None: no such topic."""
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


def test_servers_that_are_gone_keep_it_from_no_other() -> None:
    created: list[str] = []

    def cluster_info(_: Peer, __: AnyCommand) -> Answer:
        brokers = {"a": BrokerData("C", "a", {0: NOBODY}), "b": BrokerData("C", "b", {0: at})}
        return Response(body=fastjson.dumps(ClusterInfo(brokers, {"C": ["a", "b"]})))

    def topic_config(_: Peer, request: AnyCommand) -> Answer:
        raise TopicNotFound(17, request.ext["topic"])

    def create(_: Peer, request: AnyCommand) -> Answer:
        created.append(request.ext["topic"])
        return Response()

    handlers = {
        int(RequestCode.GET_BROKER_CLUSTER_INFO): cluster_info,
        int(RequestCode.GET_TOPIC_CONFIG): topic_config,
        int(RequestCode.UPDATE_AND_CREATE_TOPIC): create,
    }
    at = ""

    async def main() -> None:
        nonlocal at
        server = Server(handlers, SystemClock())
        at = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        spreading = Spreading(lambda: True, [NOBODY, at], "C", "127.0.0.1:2")
        await spreading.start()
        spreading.made(TopicMade(TopicConfig("T", 4, 4, 6)))
        await until(lambda: created == ["T"])
        await spreading.stop()
        await server.stop()

    asyncio.run(main())
