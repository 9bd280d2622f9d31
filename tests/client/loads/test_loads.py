"""Each load on an embedded cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firearrow.client import Producer, Session
from firearrow.client.admin import Admin
from firearrow.client.loads import loads
from firearrow.client.loads.pacing import LoadPlan
from firearrow.errors import ConfigError
from firearrow.testing import EmbeddedCluster

PLAN = LoadPlan(seconds=30, count=50, in_flight=8)


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[EmbeddedCluster, Admin, Session]]:
    async with (
        EmbeddedCluster(brokers=2) as embedded,
        Admin.of([embedded.name_server]) as admin,
        Session(embedded.name_server) as session,
    ):
        await loads.ensure_topic(admin, "bench", 2)
        yield embedded, admin, session


def test_what_is_produced_is_consumed_and_popped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(loads, "POP_WAIT_SECONDS", 0.1)

    async def scenario() -> None:
        async with cluster() as (embedded, admin, session):
            produced = await loads.produce(session, "bench", PLAN, 100)
            assert (produced.messages, produced.failed, produced.bytes) == (50, 0, 5000)
            assert 0 < produced.took.at(0.5) <= produced.took.max
            in_batches = await loads.produce(session, "bench", LoadPlan(count=5), 10, 10)
            assert (in_batches.messages, in_batches.took.count) == (50, 5)
            assert len(embedded.messages("bench")) == 100
            async with loads.own_group(admin, "bench", None) as group:
                consumed = await loads.consume(session, "bench", group, LoadPlan(seconds=30, count=100))
            assert (consumed.messages, consumed.bytes) == (100, 5500)
            async with loads.own_group(admin, "bench", "mine") as group:
                assert group == "mine"
                popped = await loads.pop(session, "bench", group, LoadPlan(seconds=30, in_flight=2))
            assert (popped.messages, popped.bytes, popped.failed) == (100, 5500, 0)
            table = await admin.groups.configs(embedded.brokers[0].address)
            names = [name for name in table.subscription_group_table if "bench" in name]
            assert names == []  # a run leaves no group of its own behind

    asyncio.run(scenario())


def test_round_trips() -> None:
    async def scenario() -> None:
        async with cluster() as (_, admin, session):
            async with loads.own_group(admin, "bench", None) as group:
                found = await loads.round_trip(session, "bench", group, PLAN, 1)
            assert (found.messages, found.failed, found.bytes) == (50, 0, 50 * 20)

    asyncio.run(scenario())


def test_a_message_may_be_there_before_its_sender_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_late(self: Producer, topic: str, body: bytes) -> None:
        await send(self, topic, body)
        await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with cluster() as (_, admin, session):
            async with loads.own_group(admin, "bench", None) as group:
                found = await loads.round_trip(session, "bench", group, LoadPlan(count=3), 1)
            assert (found.messages, found.failed) == (3, 0)
            assert found.took.at(0.01) >= 50_000

    send = Producer.send
    monkeypatch.setattr(Producer, "send", send_late)
    asyncio.run(scenario())


def test_transactions() -> None:
    async def scenario() -> None:
        async with cluster() as (embedded, _, session):
            found = await loads.transaction(session, "bench", PLAN, 10)
            assert (found.messages, found.failed) == (50, 0)
            assert embedded.brokers[0].is_running

    asyncio.run(scenario())


def test_a_topic_that_is_there_stays_as_it_is() -> None:
    async def scenario() -> None:
        async with cluster() as (_, admin, _session):
            await loads.ensure_topic(admin, "bench", 16)
            route = await admin.topics.route("bench")
            assert [data.write_queue_nums for data in route.queue_datas] == [2, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [0, loads.BYTES_MAX + 1])
def test_bodies_that_cannot_be_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="bodies of"):
        loads.body_of(size)
