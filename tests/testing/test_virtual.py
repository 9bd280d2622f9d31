"""Cluster in virtual time: hours pass at once, and no wait is endless."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from firearrow.client import Message, PushConsumer, StartFrom
from firearrow.clock import SystemClock
from firearrow.message.names import retry_topic
from firearrow.testing import VirtualTime
from firearrow.testing.loop import START_MS, VirtualLoop
from tests.testing.asking import LEVEL_OF_TWO_HOURS, Asking

RETRIES = 2000


def test_two_thousand_retries_of_two_hours() -> None:
    bodies = [b"%d" % number for number in range(RETRIES)]

    async def fail_all(time: VirtualTime) -> list[int]:
        async with Asking(time.cluster.brokers[0]) as client:
            await client.send_all(bodies)
            views = await client.pull_all()
            assert [view.body for view in views] == bodies
            failed_ms = time.now_ms
            await asyncio.gather(*(client.send_back(it, LEVEL_OF_TWO_HOURS) for it in views))
            await asyncio.sleep(7199)
            assert await client.pull_all(retry_topic("g")) == []
            await asyncio.sleep(2)
            again = await client.pull_all(retry_topic("g"))
            assert [view.body for view in again] == bodies
            assert {view.reconsume_times for view in again} == {1}
            return [view.store_timestamp_ms - failed_ms for view in again]

    with VirtualTime() as time:
        time.run(time.cluster.create_topic("T", queues=1))
        time.run(time.cluster.create_group("g"))
        waited_ms = time.run(fail_all(time))
    assert all(7_200_000 <= ms < 7_201_000 for ms in waited_ms)


def test_a_consumer_that_waits_for_two_hours_wakes_nobody_for_nothing() -> None:
    async def wait(time: VirtualTime) -> tuple[int, list[str]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        consumer = PushConsumer(time.cluster.name_server, group="g", clock=time.clock, start=StartFrom.FIRST)
        got: list[str] = []

        @consumer.on("T")
        async def take(message: Message) -> None:
            got.append(message.text())

        async with consumer, Asking(time.cluster.brokers[0]) as client:
            await client.send(b"first")
            await asyncio.sleep(60)
            before = loop.leaps
            [file] = time.cluster.brokers[0].store.glob("config/consumerOffset.json")
            written = file.stat()
            await asyncio.sleep(7200)
            leaps = loop.leaps - before
            assert file.stat() == written, "nobody consumed anything, and offsets were written"
            await client.send(b"last")
            await asyncio.sleep(1)
        return leaps, got

    with VirtualTime() as time:
        time.run(time.cluster.create_topic("T", queues=1))
        leaps, got = time.run(wait(time))
    assert got == ["first", "last"]
    assert leaps < 1.5 * 7200, f"{leaps} times something was done: look for a tick that does nothing"


def test_time_goes_by_as_far_as_it_is_told() -> None:
    real = SystemClock().monotonic()
    with VirtualTime() as time:
        began = time.now_ms
        assert 0 <= began - START_MS < 1000
        time.advance(90)
        assert time.now_ms == began + 90_000
        time.advance(timedelta(hours=2))
        assert time.now == datetime.fromtimestamp((began + 7_290_000) / 1000, UTC)
    assert SystemClock().monotonic() - real < 60


def test_who_waits_for_what_never_comes_is_told_so() -> None:
    with VirtualTime() as time, pytest.raises(TimeoutError, match=r"0:10:00 of virtual time"):
        time.run(asyncio.Event().wait(), within=timedelta(minutes=10))


def test_a_timeout_of_the_test_itself_is_its_own() -> None:
    async def give_up() -> None:
        raise TimeoutError("mine")

    with VirtualTime() as time, pytest.raises(TimeoutError, match="mine"):
        time.run(give_up())


def test_a_killed_broker_goes_on_where_it_was() -> None:
    async def kill(time: VirtualTime) -> list[bytes]:
        cluster = time.cluster
        async with Asking(cluster.brokers[0]) as client:
            await client.send(b"before")
        await cluster.kill_broker()
        await cluster.restart_broker()
        async with Asking(cluster.brokers[0]) as client:
            await client.send(b"after")
            return [view.body for view in await client.pull_all()]

    with VirtualTime() as time:
        assert time.run(kill(time)) == [b"before", b"after"]


def test_two_runs_are_the_same() -> None:
    async def send(time: VirtualTime) -> None:
        async with Asking(time.cluster.brokers[0]) as client:
            for number in range(10):
                await client.send(b"%d" % number)
                await asyncio.sleep(0.25)

    found = []
    for _ in range(2):
        with VirtualTime() as time:
            time.run(send(time))
            stored = time.cluster.messages("T")
            found.append([(view.body, view.store_timestamp_ms) for view in stored])
    assert found[0] == found[1]
    assert len(found[0]) == 10
