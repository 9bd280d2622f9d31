"""Brokers that gave no answer are asked until they do, and nobody is asked otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

from firearrow.client import Producer, Queue, Rules
from firearrow.client.choosing import FaultTable
from firearrow.client.detecting import Detecting
from tests.broker.serving import until
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic

NAME = "brokers that do not answer"


def asking() -> bool:
    """Whether a task asks."""
    return any(task.get_name() == NAME for task in asyncio.all_tasks())


def test_who_does_not_answer_is_asked_until_it_does(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            faults = FaultTable()
            queues = {name: Queue("T", name, 0) for name in ("a", "b")}
            detecting = Detecting(session, faults, queues.get)
            for broker in ("a", "b", "in no route"):
                faults.note(broker, 0, cluster.clock.now_ms(), failed=True, gone=True)
            port = await cluster.stop_broker("b")
            detecting.soon()
            detecting.soon()
            await asyncio.sleep(10)
            assert faults.unreachable == {"b"}
            assert asking()
            await cluster.start_broker("b", port)
            await until(lambda: faults.is_reachable("b"))
            await until(lambda: not asking())

    clustered(tmp_path, main, ("a", "b"))


def test_a_producer_has_them_asked_if_it_is_to(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            for detects in (True, False):
                rules = Rules(retries=5, timeout_seconds=30, avoids_slow=True, detects=detects)
                port = await cluster.stop_broker("b")
                async with Producer(session, group="shop", rules=rules) as producer:
                    receipts = [await producer.send("T", b"x") for _ in range(8)]
                    assert {one.queue.broker for one in receipts} == {"a"}
                    assert asking() == detects
                await cluster.start_broker("b", port)
                await until(lambda: not asking())
                await session.refresh("T")

    clustered(tmp_path, main, ("a", "b"))
