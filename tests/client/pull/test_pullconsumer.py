"""Pull consumers: assigned or subscribed queues, offsets, commits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.admin import Admin
from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.message import Message
from firearrow.client.pull.pullconsumer import PullConsumer
from firearrow.client.queues import Queue
from firearrow.errors import ClientError, ConfigError
from firearrow.wire.client_bodies import ConsumerRunningInfo, MessageQueue
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import GROUP, Sender, committed, make_topic, until_in_time

QUEUES = [Queue("T", "a", number) for number in range(4)]


def pulling(cluster: Cluster, **options: Any) -> PullConsumer:
    settings: dict[str, Any] = {"group": GROUP, "start": StartFrom.FIRST, "clock": cluster.clock, "ip": "127.0.0.1"}
    return PullConsumer(cluster.name_server, **(settings | options))


async def poll_all(consumer: PullConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count and (messages := await consumer.poll()):
        found += messages
    return found


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_assigned_queues_and_no_others_are_polled(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await Sender(session).send(40)
            async with pulling(cluster) as consumer:
                assert await consumer.queues("T") == QUEUES
                consumer.assign(QUEUES[:2])
                messages = await poll_all(consumer, 20)
                assert {message.queue for message in messages} == set(QUEUES[:2])
                assert numbers(messages) == [n for n in range(40) if n % 4 < 2]
                assert await consumer.poll(1) == []
                consumer.assign(QUEUES[1:3])
                assert {one.queue for one in await poll_all(consumer, 10)} == {QUEUES[2]}
                await consumer.commit()
                assert [await consumer.committed(queue) for queue in QUEUES] == [-1, 10, 10, -1]
                with pytest.raises(ConfigError, match="has assigned queues"):
                    await consumer.subscribe("T")

    # A broker answers 0 for a group that it does not know while it has all of a queue in memory.
    clustered(root, main, store={"access_message_in_memory_max_ratio": 0})


def test_it_tells_administrators_of_itself(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with (
            cluster.session() as session,
            Admin.of([cluster.name_server]) as admin,
            pulling(cluster, auto_commit=False) as consumer,
        ):
            await make_topic(cluster, session)
            await Sender(session).send(8, queue=1, properties={"TAGS": "A"})
            await consumer.subscribe("T", tags="A || B")
            await asyncio.sleep(30)
            address = f"127.0.0.1:{cluster.brokers['a'].port}"
            client_id = consumer.session.client_id

            async def told(*, stacks: bool = False) -> ConsumerRunningInfo:
                return await admin.groups.running_info(address, GROUP, client_id, stacks=stacks)

            info = await told(stacks=True)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert info.properties["PROP_NAMESERVER_ADDR"] == f"{cluster.name_server};"
            assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
            assert (info.properties["autoCommit"], info.is_paused) == ("false", False)
            assert [(one.topic, one.sub_string) for one in info.subscription_set] == [("T", "A || B")]
            assert {queue.queue_id for queue in info.mq_table} == {0, 1, 2, 3}
            assert info.jstack is not None
            held = info.mq_table[MessageQueue("T", "a", 1)]
            assert (held.cached_msg_count, held.cached_msg_max_offset) == (8, 7)
            assert held.last_pull_timestamp > 0
            assert len(await poll_all(consumer, 8)) == 8
            held = (await told()).mq_table[MessageQueue("T", "a", 1)]
            assert held.cached_msg_count == 0
            assert held.commit_offset <= 0, "nobody has committed"
            await consumer.commit()
            consumer.pause(QUEUES)
            info = await told()
            assert info.mq_table[MessageQueue("T", "a", 1)].commit_offset == 8
            assert (info.is_paused, info.jstack) == (True, None)

    clustered(root, main)


def test_subscribers_share_the_queues(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            await sender.send(20, properties={"TAGS": "A"})
            await sender.send(20, properties={"TAGS": "B"})
            async with pulling(cluster) as one:
                await one.subscribe("T", tags="B")
                assert numbers(await poll_all(one, 20)) == list(range(20, 40))
                await one.commit()
                async with pulling(cluster) as other:
                    await other.subscribe("T", tags="B")
                    await until_in_time(lambda: len(one.assigned) == len(other.assigned) == 2, "half each")
                    await sender.send(8, properties={"TAGS": "B"})
                    some, rest = await poll_all(one, 4), await poll_all(other, 4)
                    assert numbers(some + rest) == list(range(40, 48))
                    await one.commit()
                    await other.commit()
                with pytest.raises(ConfigError, match="has subscribed"):
                    one.assign(QUEUES)
                await one.unsubscribe("T")
                assert one.assigned == []
            assert sum(committed(cluster).values()) == 48

    clustered(root, main)


def test_a_queue_goes_on_elsewhere(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, queue = Sender(session), QUEUES[0]
            await sender.send(10, queue=0)
            await asyncio.sleep(100)
            later = datetime.fromtimestamp(cluster.clock.now_ms() / 1000, UTC)
            await sender.send(10, queue=0)
            async with pulling(cluster) as consumer:
                consumer.assign([queue])
                assert numbers(await poll_all(consumer, 20)) == list(range(20))
                assert consumer.position(queue) == 20
                await consumer.seek(queue, 7)
                assert numbers(await poll_all(consumer, 13)) == list(range(7, 20))
                await consumer.seek_to_time(later)
                assert await consumer.offset_at(queue, later) == 10
                assert numbers(await poll_all(consumer, 10)) == list(range(10, 20))
                await consumer.seek_to_end()
                assert await consumer.poll(1) == []
                await consumer.seek_to_begin(queue)
                assert numbers(await poll_all(consumer, 20)) == list(range(20))
                with pytest.raises(ClientError, match="queue 0 has offsets 0 to 20, not 21"):
                    await consumer.seek(queue, 21)
                with pytest.raises(ClientError, match="queue 1 is not assigned"):
                    await consumer.seek(QUEUES[1], 0)

    clustered(root, main)


def test_what_was_polled_before_is_committed_now_and_then(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, queues=1)
            sender = Sender(session)
            await sender.send(10, queue=0)
            async with pulling(cluster) as consumer:
                await consumer.subscribe("T")
                await poll_all(consumer, 10)
                await asyncio.sleep(12)
                assert not committed(cluster).get(("a", 0))
                assert await consumer.poll(1) == []
                await asyncio.sleep(6)
                assert committed(cluster)["a", 0] == 10
            async with pulling(cluster, auto_commit=False) as consumer:
                await sender.send(10, queue=0)
                await consumer.subscribe("T")
                assert numbers(await poll_all(consumer, 10)) == list(range(10, 20))
                await asyncio.sleep(12)
                await consumer.poll(1)
            assert committed(cluster)["a", 0] == 10

    clustered(root, main)


def test_a_queue_that_is_paused(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            async with pulling(cluster) as consumer:
                consumer.assign(QUEUES)
                consumer.pause(QUEUES[:1])
                await asyncio.sleep(30)
                await Sender(session).send(8)
                assert {one.queue for one in await poll_all(consumer, 6)} == set(QUEUES[1:])
                consumer.resume(QUEUES[:1])
                assert {one.queue for one in await poll_all(consumer, 2)} == {QUEUES[0]}

    clustered(root, main)


def test_a_consumer_that_does_not_run(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        consumer = pulling(cluster)
        with pytest.raises(ClientError, match="'g' is not running: it is new"):
            await consumer.poll()
        async with consumer:
            consumer.assign([])
            polling = asyncio.ensure_future(consumer.poll(60))
            await asyncio.sleep(1)
            await consumer.close()
            with pytest.raises(ClientError, match="it is closed"):
                await polling

    clustered(root, main)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_who_polls_goes_on_where_an_administrator_says(root: Path, auto_commit: bool) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await Sender(session).send(40)

            async def reset(timestamp: int) -> None:
                fields: dict[str, Any] = {"topic": "T", "group": GROUP}
                await session.call("a", 222, fields | {"timestamp": timestamp, "isForce": True})

            async with pulling(cluster, auto_commit=auto_commit) as consumer:
                await consumer.subscribe("T")
                assert numbers(await poll_all(consumer, 40)) == list(range(40))
                await consumer.commit()
                await reset(0)
                first = await consumer.poll(60)
                await asyncio.sleep(60)  # the others are pulled, and not polled
                await reset(0)
                await asyncio.sleep(60)
                assert numbers(await poll_all(consumer, 40)) == list(range(40))
                assert len(first) == 10
                await consumer.commit()
                assert sum(committed(cluster).values()) == 40

    clustered(root, main)
