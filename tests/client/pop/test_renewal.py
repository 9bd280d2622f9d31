"""Renewal of invisible times, and pops from all brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from firearrow.client.pop.renewal import LeasedMessage, LeaseHolder
from firearrow.client.pop.simpleconsumer import SimpleConsumer
from firearrow.client.session.session import Session
from firearrow.errors import ConfigError
from tests.broker.serving import seconds
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import GROUP, Sender, make_topic

INVISIBLE = timedelta(seconds=12)


@asynccontextmanager
async def with_topic(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.session() as session:
        await make_topic(cluster, session)
        yield session


@asynccontextmanager
async def held_in(cluster: Cluster) -> AsyncIterator[tuple[SimpleConsumer, LeaseHolder]]:
    async with SimpleConsumer(
        cluster.name_server, group=GROUP, topics=["T"], clock=cluster.clock, ip="127.0.0.1"
    ) as consumer:
        holder = LeaseHolder(INVISIBLE)
        try:
            yield consumer, holder
        finally:
            await holder.close()


async def receive(consumer: SimpleConsumer, holder: LeaseHolder, count: int = 1) -> list[LeasedMessage]:
    taken: list[LeasedMessage] = []
    while len(taken) < count:
        await holder.ask(consumer, 32)
        await holder.answered()
        taken += holder.take()
    return taken


def numbers(some: list[LeasedMessage]) -> list[int]:
    return sorted(int(held.message.body) for held in some)


def test_each_broker_is_asked_and_none_waits_for_another(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with with_topic(cluster) as session, held_in(cluster) as (consumer, holder):
            sender = Sender(session)
            began = seconds()
            for broker in ("b", "a", "b", "b"):
                await sender.send(broker=broker)
                [held] = await receive(consumer, holder)
                assert held.message.queue.broker == broker
                assert await held.ack()
            assert seconds() - began < 1

    clustered(root, main, ("a", "b"))


def test_it_is_held_for_as_long_as_wanted(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with with_topic(cluster) as session:
            await Sender(session).send(70)
            async with held_in(cluster) as (consumer, holder), held_in(cluster) as (other, its):
                mine = await receive(consumer, holder, 70)
                await its.ask(other, 32)
                await asyncio.sleep(10 * INVISIBLE.total_seconds())
                assert its.take() == []
                for held in mine[:68]:
                    assert await held.ack()
                mine[68].let_go()
                began = seconds()
                [again] = await receive(other, its)
                assert again.message.message_id == mine[68].message.message_id
                assert again.message.reconsume_times == 1
                assert seconds() - began < INVISIBLE.total_seconds() + 5
                await mine[69].give_back()
                began = seconds()
                [other_one] = await receive(other, its)
                assert other_one.message.message_id == mine[69].message.message_id
                assert seconds() - began < 5
                assert await again.ack()
                assert await other_one.ack()
                await asyncio.sleep(5 * INVISIBLE.total_seconds())
                assert its.take() == [], "what is acknowledged comes no more"

    clustered(root, main)


def test_a_restart_of_the_broker_is_waited_for(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with with_topic(cluster) as session, held_in(cluster) as (consumer, holder):
            sender = Sender(session)
            await sender.send()
            [held] = await receive(consumer, holder)
            await holder.ask(consumer, 32)
            port = await cluster.stop_broker("a")
            acking = asyncio.create_task(held.ack())
            await asyncio.sleep(0.5)
            await cluster.start_broker("a", port)
            assert await acking
            await sender.send()
            [after] = await receive(consumer, holder)
            assert numbers([after]) == [1]
            assert await after.ack()

    clustered(root, main)


def test_what_nobody_has_taken_comes_again_soon(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with with_topic(cluster) as session:
            sender = Sender(session)
            await sender.send(40)
            async with held_in(cluster) as (consumer, holder):
                await holder.ask(consumer, 32)
                await holder.answered()
            began = seconds()
            async with held_in(cluster) as (consumer, holder):
                again = await receive(consumer, holder, 40)
                assert numbers(again) == sender.sent
            assert seconds() - began < 10

    clustered(root, main)


def test_after_a_rest_it_receives_again(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with with_topic(cluster) as session, held_in(cluster) as (consumer, holder):
            await holder.ask(consumer, 1)
            await holder.rest()  # before the request has begun
            await Sender(session).send()
            [held] = await receive(consumer, holder)
            assert await held.ack()

    clustered(root, main)


def test_a_time_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"an invisible time of 0:00:00\.500000 is too short"):
        LeaseHolder(timedelta(seconds=0.5))
