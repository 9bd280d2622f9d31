"""Simple consumers: received messages, acknowledgements and redeliveries."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.message import Message
from firearrow.client.pop.simpleconsumer import SimpleConsumer
from firearrow.client.pull.pullconsumer import PullConsumer
from firearrow.errors import ClientError, ConfigError
from firearrow.wire.codes import RequestCode
from tests.broker.serving import seconds
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import GROUP, Sender, make_topic

TEN_SECONDS = timedelta(seconds=10)


def simple(cluster: Cluster, topics: Any = ("T",), **options: Any) -> SimpleConsumer:
    return SimpleConsumer(
        cluster.name_server, **{"group": GROUP, "topics": topics, "clock": cluster.clock, "ip": "127.0.0.1", **options}
    )


async def receive_all(consumer: SimpleConsumer, count: int, **options: Any) -> list[Message]:
    found: list[Message] = []
    for _ in range(100):
        found += await consumer.receive(**options)
        if len(found) >= count:
            break
    return found


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_what_is_acknowledged_does_not_come_again(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            await sender.send(40)
            async with simple(cluster) as consumer:
                messages = await receive_all(consumer, 40, invisible=TEN_SECONDS)
                assert numbers(messages) == sender.sent
                assert await consumer.ack(messages[0])
                await consumer.ack_all(messages[1:30])
                again = await receive_all(consumer, 10, wait=20)
                assert numbers(again) == numbers(messages[30:])
                assert {message.topic for message in again} == {"T"}
                assert {message.reconsume_times for message in again} == {1}
                await consumer.ack_all(again)
                assert await consumer.receive(wait=15) == []

    clustered(root, main)


def test_the_time_of_a_message_can_be_changed(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await Sender(session).send()
            async with simple(cluster) as consumer:
                [message] = await receive_all(consumer, 1, invisible=TEN_SECONDS)
                began = seconds()
                await consumer.change_invisible(message, timedelta(seconds=60))
                [again] = await receive_all(consumer, 1)
                assert 59 <= seconds() - began < 70
                assert (again.message_id, again.reconsume_times) == (message.message_id, 1)
                await consumer.change_invisible(again, TEN_SECONDS)
                assert await consumer.ack(again)
                assert await receive_all(consumer, 1, wait=1) == []

    clustered(root, main)


def test_topics_and_brokers_take_turns_and_expressions_count(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await make_topic(cluster, session, "U")
            sender, other = Sender(session), Sender(session, "U")
            for broker in ("a", "b"):
                await sender.send(4, broker=broker, properties={"TAGS": "A"})
                await sender.send(4, broker=broker, properties={"TAGS": "B"})
                await other.send(4, broker=broker)
            async with simple(cluster, {"T": "B"}) as consumer:
                await consumer.subscribe("U")
                messages = await receive_all(consumer, 16, wait=1)
                of_t = [message for message in messages if message.topic == "T"]
                assert {message.tag for message in of_t} == {"B"}
                assert len(of_t) == len(messages) - len(of_t) == 8
                await consumer.ack_all(messages)
                await consumer.unsubscribe("T")
                await sender.send(4, properties={"TAGS": "B"})
                assert await receive_all(consumer, 1, wait=1) == []

    clustered(root, main, ("a", "b"))


def test_an_acknowledgement_that_comes_too_late(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await Sender(session).send()
            async with simple(cluster) as consumer:
                [message] = await receive_all(consumer, 1, invisible=TEN_SECONDS)
                [again] = await receive_all(consumer, 1)
                await consumer.ack(message)
                assert await consumer.ack(again)

    clustered(root, main)


def test_what_cannot_be_is_named(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
        with pytest.raises(ConfigError, match="subscribes to no topic"):
            simple(cluster, [])
        consumer = simple(cluster)
        with pytest.raises(ClientError, match="'g' is not running: it is new"):
            await consumer.receive()
        async with consumer:
            with pytest.raises(ConfigError, match="max_messages=33: allowed is 1 to 32"):
                await consumer.receive(33)
            await Sender(consumer.session).send()
            message = Message.received(cluster.stored("T")[0], "a")
            with pytest.raises(ConfigError, match="T-000000 was not popped"):
                await consumer.ack(message)
        with pytest.raises(ClientError, match="it is closed"):
            await consumer.start()

    clustered(root, main)


def test_a_second_one_of_a_group_leaves_the_first_alone(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            async with SimpleConsumer(session, group=GROUP, topics=["T"]) as first:
                for second in (SimpleConsumer(session, group=GROUP, topics=["T"]), PullConsumer(session, group=GROUP)):
                    with pytest.raises(ConfigError, match="has a consumer of group"):
                        await second.start()
                    with pytest.raises(ClientError, match="it is closed"):
                        await second.start()
                info = await session.call("a", RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": first.group})
                assert session.client_id in info.body.decode()
                await sender.send()
                [message] = await receive_all(first, 1)
                assert await first.ack(message)

    clustered(root, main)
