"""Rebalances: no message is lost in storms, restarts, cuts and without a name server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from firearrow.client.push.pushconsumer import PushConsumer
from firearrow.client.queues import Queue
from firearrow.wire import fastjson
from firearrow.wire.allocation import CONSISTENT_HASH
from firearrow.wire.client_bodies import ConsumerRunningInfo, ConsumerStatus, DirectResult
from tests.broker.serving import until
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import GROUP, Sender, Taken, committed, make_topic, push, until_in_time


def owned(*consumers: PushConsumer) -> list[tuple[str, int]]:
    return sorted(queue for one in consumers for queue in one.queues.get("T", []))


def all_queues(count: int = 4, *brokers: str) -> list[tuple[str, int]]:
    return [(broker, number) for broker in brokers or ("a",) for number in range(count)]


def test_members_share_the_queues_and_take_over(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, one, other = Sender(session), Taken(), Taken()
            first, second = push(cluster, one), push(cluster, other)
            await first.start()
            await until_in_time(lambda: owned(first) == all_queues(), "all queues")
            await second.start()
            await until_in_time(lambda: len(owned(first)) == len(owned(second)) == 2, "half of them each", 10)
            assert owned(first, second) == all_queues()
            await sender.send(40)
            await until_in_time(lambda: len(one.messages) + len(other.messages) == 40, "all")
            assert len(one.messages) == len(other.messages) == 20
            await first.close()
            await until_in_time(lambda: owned(second) == all_queues(), "to take over", 10)
            await sender.send(40)
            await other.has(60)
            await second.close()
            assert sorted(one.numbers + other.numbers) == sender.sent

    clustered(root, main)


def test_nothing_is_lost_while_ten_consumers_come_and_go(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, queues=8)
            sender, taken = Sender(session), Taken(pause=0.01)
            consumers = [push(cluster, taken, strategy=CONSISTENT_HASH, concurrency=4) for _ in range(10)]

            async def storm() -> None:
                for consumer in consumers:
                    await consumer.start()
                    await asyncio.sleep(0.7)
                for consumer in consumers[:-1]:
                    await consumer.close()
                    await asyncio.sleep(0.7)

            storming = asyncio.ensure_future(storm())
            while not storming.done():
                await sender.send(8, queues=8)
                await asyncio.sleep(0.05)
            await storming
            await until_in_time(lambda: set(taken.numbers) == set(sender.sent), "all")
            await consumers[-1].close()
            assert sum(committed(cluster).values()) == len(sender.sent)

    clustered(root, main)


def test_a_broker_that_restarts(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(20)
            async with push(cluster, taken):
                await taken.has(20)
                for _ in range(3):
                    port = await cluster.stop_broker("a")
                    await asyncio.sleep(7)
                    await cluster.start_broker("a", port)
                    await asyncio.sleep(1)
                    await sender.send(20)
                    await until_in_time(lambda: set(taken.numbers) == set(sender.sent), "all", 60)
            assert sum(committed(cluster).values()) == 80

    clustered(root, main)


def test_connections_that_are_cut(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            async with push(cluster, taken):
                for _ in range(10):
                    await sender.send(8)
                    for peer in tuple(cluster.brokers["a"].broker._server.peers):
                        peer.close("a test cuts it")
                    await asyncio.sleep(1.5)
                await until_in_time(lambda: set(taken.numbers) == set(sender.sent), "all", 60)
            assert sum(committed(cluster).values()) == 80

    clustered(root, main)


def test_without_a_name_server_it_goes_on(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            consumer = push(cluster, taken)
            async with consumer:
                await until_in_time(lambda: consumer.queues, "queues")
                consumer.session.name_servers._addresses[:] = ["127.0.0.1:1"]
                await asyncio.sleep(120)
                await sender.send(20)
                await taken.has(20)
                assert owned(consumer) == all_queues()

    clustered(root, main)


def test_queues_that_are_added_and_a_second_broker(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, queues=2)
            consumer = push(cluster, Taken(), poll_seconds=5)
            async with consumer:
                await until_in_time(lambda: owned(consumer) == all_queues(2), "queues")
                await cluster.start_broker("b")
                await make_topic(cluster, session, queues=3)
                await until_in_time(lambda: owned(consumer) == all_queues(3, "a", "b"), "more", 60)

    clustered(root, main)


def test_offsets_that_are_reset(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(20)
            async with push(cluster, taken):
                await taken.has(20)
                await asyncio.sleep(10)
                fields: dict[str, Any] = {"topic": "T", "group": GROUP, "timestamp": 0, "isForce": True}
                await session.call("a", 222, fields)
                await taken.has(40)
                await asyncio.sleep(60)
            assert sorted(taken.numbers) == sorted(sender.sent * 2)
            assert sum(committed(cluster).values()) == 20

    clustered(root, main)


def test_an_offset_that_the_queue_does_not_have(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            cluster.brokers["a"].broker.offsets.commit(GROUP, "T", 0, 1000)
            async with push(cluster, taken):
                await asyncio.sleep(5)
                await sender.send(4, queue=0)
                await taken.has(4)
            assert committed(cluster)["a", 0] == 4

    clustered(root, main)


def test_what_a_broker_asks(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(failures=1)
            await sender.send(4)
            consumer = push(cluster, taken, concurrency=9)
            async with consumer:
                await taken.has(8)
                await consumer.member.persist()
                client = {"consumerGroup": GROUP, "clientId": consumer.session.client_id}
                answer = await session.call("a", 307, client)
                info = fastjson.decode(answer.body, ConsumerRunningInfo)
                assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "9"
                assert info.properties["PROP_CONSUMEORDERLY"] == "false"
                assert info.properties["PROP_CLIENT_VERSION"] == "V5_5_0"
                assert info.jstack is None
                first, again = info.status_table["T"], info.status_table["%RETRY%g"]
                assert (first.consume_failed_msgs, again.consume_failed_msgs) == (4, 0)
                assert 4 / 60 <= first.consume_failed_tps <= 4
                assert first.pull_tps == first.consume_failed_tps
                assert first.consume_ok_tps == again.consume_failed_tps == 0
                assert 4 / 60 <= again.consume_ok_tps == again.pull_tps
                now_ms = cluster.clock.now_ms()
                for held in info.mq_table.values():
                    assert now_ms - 30_000 < held.last_consume_timestamp <= now_ms
                answer = await session.call("a", 307, client | {"jstackEnable": True})
                stacks = fastjson.decode(answer.body, ConsumerRunningInfo).jstack or ""
                assert "MainThread" in stacks
                assert "test_what_a_broker_asks.<locals>.main (" in stacks
                assert "pulls of T a/0" in stacks
                assert [one.topic for one in info.subscription_set] == ["T", "%RETRY%g"]
                rows = {Queue(*(q.topic, q.broker_name, q.queue_id)): it.commit_offset
                        for q, it in info.mq_table.items()}  # fmt: skip
                assert rows == {Queue("T", "a", n): 1 for n in range(4)} | {Queue("%RETRY%g", "a", 0): 4}
                [stored] = [it for it in cluster.stored("T") if it.body == b"0"]
                fields = client | {"msgId": stored.offset_message_id, "topic": "T"}
                answer = await session.call("a", 309, fields)
                result = fastjson.decode(answer.body, DirectResult)
                assert result.consume_result == "CR_THROW_EXCEPTION"
                assert result.remark == "ValueError: no. 0 is not wanted"
                answer = await session.call("a", 223, {"topic": "T", "group": GROUP})
                status = fastjson.decode(answer.body, ConsumerStatus).consumer_table
                assert {
                    queue.queue_id: at for queue, at in status[consumer.session.client_id].items()
                } == dict.fromkeys(range(4), 1)

    clustered(root, main)


def test_a_stopped_consumer_is_known_nowhere(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            consumer = push(cluster, Taken())
            running = asyncio.ensure_future(consumer.run())
            clients = cluster.brokers["a"].broker.clients
            await until(lambda: clients.consumer_group(GROUP) is not None)
            running.cancel()
            await asyncio.wait([running])
            assert clients.consumer_group(GROUP) is None
            await consumer.close()

    clustered(root, main)
