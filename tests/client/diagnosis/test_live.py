"""Diagnosis of a running cluster, and of groups that do not consume, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from firearrow.client import Message, Producer, PullConsumer, PushConsumer, SimpleConsumer, StartFrom
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import checks, clusterfacts, groupfacts, grouprules, sends
from firearrow.client.diagnosis.findings import Finding, Level
from firearrow.testing import VirtualTime
from firearrow.wire.bodies import TopicConfig

SOON = 30.0  # until clients have shared out the queues
LONG = 180.0  # until nobody doubts that something is stuck


class Watched:
    """A cluster with a topic of two queues, an administrator, and consumers of group ``g``."""

    def __init__(self, time: VirtualTime, admin: Admin, stack: AsyncExitStack) -> None:
        self.time = time
        self.admin = admin
        self._stack = stack

    async def send(self, count: int, topic: str = "orders") -> None:
        """Send messages, with keys."""
        server = self.time.cluster.name_server
        async with Producer(server, group="p", clock=self.time.clock) as producer:
            for number in range(count):
                await producer.send(topic, b"%d" % number, key=f"o-{number}")

    async def consumer(self, handler: Any, **options: Any) -> PushConsumer:
        """Start a consumer, which is stopped at the end."""
        tags = options.pop("tags", "*")
        usual: dict[str, Any] = {"start": StartFrom.FIRST, "drain": 0.0, "clock": self.time.clock}
        consumer = PushConsumer(self.time.cluster.name_server, group="g", **(usual | options))
        consumer.subscribe("orders", handler, tags=tags)
        await consumer.start()
        self._stack.push_async_callback(consumer.close)
        return consumer

    async def findings(self, topic: str | None = None) -> dict[str, Finding]:
        """What is found out about the group, by rule."""
        facts = await groupfacts.collect(self.admin, "g", self.time.now_ms, topic)
        return {one.rule: one for one in grouprules.findings(facts)}

    async def checks(self, **limits: Any) -> dict[str, Finding]:
        """What monitoring finds, by check."""
        facts = await clusterfacts.collect(self.admin, self.time.now_ms)
        limited = checks.Thresholds()._replace(**limits)
        return {one.rule: one for one in checks.findings(facts, limited)}


def watched(scenario: Callable[[Watched], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a scenario."""
    with VirtualTime(**options) as time:
        time.run(_watched(time, scenario))


async def _watched(time: VirtualTime, scenario: Callable[[Watched], Coroutine[Any, Any, None]]) -> None:
    async with _world(time) as world:
        await scenario(world)


@asynccontextmanager
async def _world(time: VirtualTime) -> AsyncIterator[Watched]:
    await time.cluster.create_topic("orders", queues=2)
    await time.cluster.create_group("g")
    async with Admin.of([time.cluster.name_server]) as admin, AsyncExitStack() as stack:
        yield Watched(time, admin, stack)


async def fail(message: Message) -> None:
    raise ValueError(f"{message.text()} is not wanted")


async def hang(_: Message) -> None:
    await asyncio.Event().wait()


async def take(_: Message) -> None:
    pass


def test_a_group_that_consumes_has_no_findings() -> None:
    async def scenario(world: Watched) -> None:
        await world.send(4)
        await world.consumer(take)
        await world.consumer(take)
        await asyncio.sleep(SOON)
        assert await world.findings() == {}
        assert await world.checks() == {}

    watched(scenario)


def test_messages_that_wait_for_their_time_are_no_trouble() -> None:
    async def scenario(world: Watched) -> None:
        server = world.time.cluster.name_server
        async with Producer(server, group="p", clock=world.time.clock) as producer:
            for hours in (1, 20):
                await producer.send("orders", b"later", delay=timedelta(hours=hours))
            await producer.send("orders", b"soon", delay_level=3)
        await world.consumer(take)
        for _ in range(8):
            await asyncio.sleep(1800)
            assert await world.checks() == {}

    watched(scenario)


def test_a_timer_that_is_behind_is_named() -> None:
    async def scenario(world: Watched) -> None:
        server = world.time.cluster.name_server
        async with Producer(server, group="p", clock=world.time.clock) as producer:
            await producer.send("orders", b"later", delay=timedelta(seconds=60))
        await asyncio.sleep(1)
        await world.admin.brokers.update_config(world.time.cluster.brokers[0].address, {"timerStopDequeue": "true"})
        await asyncio.sleep(100)
        found = (await world.checks())["timer"]
        assert found.level == Level.WARNING
        assert found.evidence.startswith("messages with a delivery time are 4")

    watched(scenario)


def test_nobody_is_there() -> None:
    async def scenario(world: Watched) -> None:
        consumer = await world.consumer(take)
        await asyncio.sleep(SOON)
        await consumer.close()
        await world.send(3)
        found = await world.findings()
        assert found["offline"].evidence == "no client is connected; 3 messages wait"

    watched(scenario)


def test_there_is_no_such_group() -> None:
    async def scenario(world: Watched) -> None:
        facts = await groupfacts.collect(world.admin, "none", world.time.now_ms)
        (found,) = grouprules.findings(facts)
        assert (found.rule, found.level) == ("unknown-group", Level.CRITICAL)

    watched(scenario)


def test_a_handler_that_hangs() -> None:
    async def scenario(world: Watched) -> None:
        await world.send(1)
        await world.consumer(hang)
        await asyncio.sleep(SOON)
        assert "stuck-message" not in await world.findings()
        await asyncio.sleep(LONG)
        found = (await world.findings())["stuck-message"]
        assert "keys o-0) has been in hand for" in found.evidence
        assert found.level is Level.CRITICAL

    watched(scenario)


def test_a_handler_that_is_slow() -> None:
    async def slow(_: Message) -> None:
        await asyncio.sleep(2)

    async def scenario(world: Watched) -> None:
        await world.consumer(slow, ordered=True)
        await asyncio.sleep(SOON)
        await world.send(40)
        await asyncio.sleep(SOON)
        found = (await world.findings())["slow-handler"]
        assert "takes 2,000 ms for a message of orders" in found.evidence

    watched(scenario)


def test_a_message_that_fails_in_order() -> None:
    async def scenario(world: Watched) -> None:
        await world.send(1)
        await world.consumer(fail, ordered=True)
        await asyncio.sleep(LONG)
        found = (await world.findings())["stuck-message"]
        assert "the message at offset 0" in found.evidence
        assert "keys o-0" in found.evidence

    watched(scenario)


def test_a_message_that_fails_again_and_again_and_is_given_up() -> None:
    async def scenario(world: Watched) -> None:
        await world.send(1)
        await world.consumer(fail, max_reconsume_times=4)
        await asyncio.sleep(120)  # after 10 s, 30 s and a minute
        found = await world.findings()
        assert "keys o-0 has failed 3 times" in found["poison-message"].evidence
        await asyncio.sleep(600)
        found = await world.findings()
        assert found["dead-letters"].evidence == "1 message became a dead letter"
        dead = (await world.checks())["dead-letters"]
        assert (dead.subject, dead.level) == ("g", Level.WARNING)
        assert dead.evidence == "1 dead letter on broker-a, 1 of them in the last hour"

    watched(scenario)


def test_there_are_more_clients_than_queues() -> None:
    async def scenario(world: Watched) -> None:
        for _ in range(3):
            await world.consumer(take)
        await asyncio.sleep(SOON)
        found = (await world.findings())["no-queue"]
        assert found.evidence.startswith("3 clients share 2 queues, so 1 client has none: ")

    watched(scenario)


def test_two_clients_have_one_id() -> None:
    async def scenario(world: Watched) -> None:
        for _ in range(2):
            await world.consumer(take, ip="10.0.0.1", instance="same")
        await asyncio.sleep(SOON)
        found = (await world.findings())["duplicate-ids"]
        assert found.subject == "10.0.0.1@same"
        assert "is the id of 2 clients on broker-a: " in found.evidence

    watched(scenario)


def test_members_want_different_things() -> None:
    async def scenario(world: Watched) -> None:
        await world.consumer(take, tags="A")
        await world.consumer(take, tags="B")
        await asyncio.sleep(SOON)
        found = (await world.findings())["unlike-subscriptions"]
        assert "wants orders [A]" in found.evidence
        assert "wants orders [B]" in found.evidence

    watched(scenario)


def test_a_group_that_is_disabled_a_topic_that_cannot_be_read_and_one_that_is_not_there() -> None:
    async def scenario(world: Watched) -> None:
        await world.consumer(take)
        await world.time.cluster.create_group("g", consume_enable=False)
        address = world.time.cluster.brokers[0].address
        await world.admin.topics.create(address, TopicConfig("orders", 2, 2, 2))
        await asyncio.sleep(SOON)
        found = await world.findings()
        assert found["disabled"].evidence == "consumeEnable=false on broker-a"
        assert found["no-permission"].evidence.startswith("perm=2 on broker-a")
        assert (await world.findings("none"))["no-topic"].subject == "none"

    watched(scenario)


def test_a_consumer_that_is_paused() -> None:
    async def scenario(world: Watched) -> None:
        consumer = await world.consumer(take)
        await asyncio.sleep(SOON)
        consumer.pause()
        assert (await world.findings())["paused"].evidence == "says it is paused"

    watched(scenario)


def test_a_consumer_that_pops_does_not_answer_and_is_no_trouble() -> None:
    async def scenario(world: Watched) -> None:
        server, clock = world.time.cluster.name_server, world.time.clock
        async with SimpleConsumer(server, group="g", topics=["orders"], clock=clock):
            await asyncio.sleep(SOON)
            assert {*await world.findings()} == {"silent-client"}

    watched(scenario)


def test_a_group_that_a_proxy_pops_for_is_not_offline() -> None:
    """Brokers don't know the clients of a proxy; their pops wait all the same."""

    async def scenario(world: Watched) -> None:
        server, clock = world.time.cluster.name_server, world.time.clock
        await world.send(1)
        async with SimpleConsumer(server, group="g", topics=["orders"], clock=clock) as consumer:
            [message] = await consumer.receive(1, timedelta(seconds=60))
            await consumer.ack(message)
            await consumer.session.remove_consumer(consumer)
            waiting = asyncio.create_task(consumer.receive(1, timedelta(seconds=60), wait=30))
            await asyncio.sleep(5)
            found = await world.findings()
            assert found["offline"].level == Level.OK
            waiting.cancel()

    watched(scenario)


def test_a_consumer_that_polls_says_how_it_is() -> None:
    async def scenario(world: Watched) -> None:
        server, clock = world.time.cluster.name_server, world.time.clock
        await world.send(4)
        async with PullConsumer(server, group="g", start=StartFrom.FIRST, clock=clock) as consumer:
            await consumer.subscribe("orders")
            while await consumer.poll():
                pass
            assert await world.findings() == {}
            await world.send(2)
            await asyncio.sleep(LONG)
            found = await world.findings()
            assert "the application does not poll it" in found["stuck-message"].evidence
            consumer.pause(consumer.assigned)
            assert (await world.findings())["paused"].evidence == "says it is paused"

    watched(scenario)


def test_queues_that_are_polled_need_no_subscription() -> None:
    async def scenario(world: Watched) -> None:
        server, clock = world.time.cluster.name_server, world.time.clock
        async with PullConsumer(server, group="g", start=StartFrom.FIRST, clock=clock) as consumer:
            consumer.assign(await consumer.queues("orders"))
            await world.send(4)
            while await consumer.poll():
                pass
            await consumer.commit()
            assert await world.findings() == {}

    watched(scenario)


def test_who_comes_and_goes_is_named() -> None:
    async def scenario(world: Watched) -> None:
        await world.send(4)
        await world.consumer(take)
        for _ in range(3):
            assert "rebalances" not in await world.findings()
            consumer = await world.consumer(take)
            await asyncio.sleep(SOON)
            await consumer.close()
        await asyncio.sleep(SOON)
        found = (await world.findings())["rebalances"]
        assert "in the last 10 min its members changed 7 times on broker-a: " in found.evidence
        assert f"{consumer.session.client_id} joined 1x and left 1x, left 30 s ago" in (found.evidence)
        await asyncio.sleep(600)
        assert "rebalances" not in await world.findings()

    watched(scenario)


def test_who_came_and_went_is_named_when_all_are_gone() -> None:
    async def scenario(world: Watched) -> None:
        for _ in range(3):
            consumer = await world.consumer(take)
            await consumer.close()
        assert {"offline", "rebalances"} <= {*await world.findings()}

    watched(scenario)


def test_what_waits_is_told_in_messages_and_in_time() -> None:
    async def scenario(world: Watched) -> None:
        consumer = await world.consumer(take)
        await world.send(2)
        await asyncio.sleep(SOON)
        await consumer.close()
        await asyncio.sleep(3600)  # the first of what waits comes only now
        await world.send(4)
        await world.send(1500, "alone")
        await asyncio.sleep(400)
        found = await world.checks()
        assert found["lag"].level is Level.WARNING
        assert "has not consumed 4 messages of topic orders on broker-a" in found["lag"].evidence
        assert "400 s old, no consumer is online" in found["lag"].evidence
        assert found["unconsumed"].subject == "alone"
        assert {*found} == {"lag", "unconsumed"}

    watched(scenario, autoCreateTopicEnable=True)


def test_a_broker_and_a_name_server_that_are_gone() -> None:
    async def scenario(world: Watched) -> None:
        await world.time.cluster.kill_broker()
        found = await world.checks(brokers=2)
        assert found["brokers"].evidence == "of 2 brokers, 0 are registered"
        facts = await sends.collect(world.admin, world.time.clock, "orders")
        assert [one.rule for one in sends.findings(facts)] == ["no-route"]
        await world.time.cluster.stop_name_server()
        assert {*await world.checks()} == {"name-servers"}
        await world.time.cluster.restart_name_server()
        await world.time.cluster.restart_broker()

    watched(scenario)


def test_sends_to_a_sound_broker() -> None:
    async def scenario(world: Watched) -> None:
        facts = await sends.collect(world.admin, world.time.clock, "orders")
        assert [one.rule for one in sends.findings(facts)] == ["each-on-disk"]
        assert len(facts.round_trips_ms["broker-a"]) == sends.ROUND_TRIPS
        facts = await sends.collect(world.admin, world.time.clock, "none")
        assert "no-route" in [one.rule for one in sends.findings(facts)]

    watched(scenario, flushDiskType="SYNC_FLUSH")
