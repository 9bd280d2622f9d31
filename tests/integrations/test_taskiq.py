"""The broker for Taskiq, with Taskiq's own receiver, on an embedded cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from taskiq import AckableMessage, Context, InMemoryBroker, SmartRetryMiddleware, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.events import TaskiqEvents
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from firearrow.client.admin import Admin
from firearrow.errors import ClientError, ConfigError, MessageError
from firearrow.integrations.taskiq import RocketMQBroker, RocketMQSchedule
from firearrow.testing import VirtualTime

INVISIBLE = timedelta(seconds=12)
MINUTE = 60.0


def broker_of(time: VirtualTime, **options: Any) -> RocketMQBroker:
    settings: dict[str, Any] = {"topic": "tasks", "group": "workers", "invisible": INVISIBLE, "clock": time.clock}
    broker = RocketMQBroker(time.cluster.name_server, **settings | options)
    return broker.with_result_backend(InMemoryBroker().result_backend)


@asynccontextmanager
async def opened(broker: RocketMQBroker) -> AsyncIterator[RocketMQBroker]:
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: RocketMQBroker, **options: Any) -> AsyncIterator[Receiver]:
    """A worker, which ends in order."""
    finish = asyncio.Event()
    settings = {"max_async_tasks": 10, "run_startup": False} | options
    receiver = Receiver(broker, **settings)
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield receiver
    finally:
        finish.set()
        await listening


async def until(holds: Callable[[], bool], seconds: float = 600) -> None:
    step = 0.001
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(step)
            step = min(step * 1.1, 1.0)


def run(time: VirtualTime, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario, which must leave no task and no connection."""

    async def alone() -> None:
        before = asyncio.all_tasks()
        await scenario
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before

    time.run(alone())


def test_a_task_runs_and_its_result_is_kept(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)

    @broker.task
    async def add(one: int, two: int) -> int:
        return one + two

    async def scenario() -> None:
        async with opened(broker), working(broker):
            kicked = await add.kiq(1, two=2)
            result = await kicked.wait_result(timeout=MINUTE)
            assert (result.return_value, result.is_err) == (3, False)
            many = [await add.kiq(number, 1) for number in range(100)]
            values = [(await it.wait_result(timeout=MINUTE)).return_value for it in many]
            assert values == list(range(1, 101))

    run(rocketmq_clock, scenario())


def test_labels_are_properties_and_the_task_is_found_by_its_id(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)

    @broker.task("shop:bill", customer="c-1", DELAY="5", bad="a\x01b")
    async def bill() -> None: ...

    async def scenario() -> None:
        async with opened(broker):
            await bill.kicker().with_task_id("t-17").with_labels(urgent=True).kiq()
        [message] = rocketmq_clock.cluster.messages("tasks")
        properties = message.properties
        assert (properties["customer"], properties["urgent"]) == ("c-1", "True")
        assert (properties["TAGS"], message.keys) == ("shop:bill", ["t-17"])
        assert {"DELAY", "bad"}.isdisjoint(properties)

    run(rocketmq_clock, scenario())


def test_delayed_tasks_run_at_their_time(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    ran: list[tuple[str, float]] = []

    @broker.task
    async def note(name: str) -> None:
        ran.append((name, rocketmq_clock.now_ms / 1000 - began))

    async def scenario() -> None:
        async with opened(broker), working(broker):
            at = rocketmq_clock.now + timedelta(hours=1)
            await note.kicker().with_labels(delay=7200).kiq("later")
            await note.kicker().with_labels(delay=1.5).kiq("soon")
            await note.schedule_by_time(RocketMQSchedule(broker), at, "scheduled")
            await note.kicker().with_labels(delay=0).kiq("now")
            await until(lambda: len(ran) == 4, 7300)

    began = rocketmq_clock.now_ms / 1000
    run(rocketmq_clock, scenario())
    assert [name for name, _ in ran] == ["now", "soon", "scheduled", "later"]
    for (name, moment), due in zip(ran, (0, 1.5, 3600, 7200), strict=True):
        assert due <= moment < due + 2, name


def test_urgent_tasks_come_first(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock, priorities=3, batch=1)
    ran: list[int] = []

    @broker.task
    async def note(priority: int) -> None:
        ran.append(priority)

    async def scenario() -> None:
        async with opened(broker):
            for priority in (0, 2, 1, 2, 9):
                await note.kicker().with_labels(priority=priority).kiq(priority)
            async with working(broker, max_async_tasks=1):
                await until(lambda: len(ran) == 5)

    run(rocketmq_clock, scenario())
    assert ran == [2, 2, 9, 1, 0]  # there are three priorities, and 9 is beyond the highest


def test_a_worker_that_dies_loses_nothing(rocketmq_clock: VirtualTime) -> None:
    began: list[str] = []
    done: list[str] = []

    def shop(name: str, dies: bool) -> tuple[RocketMQBroker, Any]:
        broker = broker_of(rocketmq_clock)

        @broker.task("shop:bill")
        async def bill(order: int) -> None:
            began.append(f"{name} {order}")
            if dies:
                await asyncio.Event().wait()
            done.append(f"{name} {order}")

        return broker, bill

    async def scenario() -> None:
        first, bill = shop("first", dies=True)
        async with opened(first):
            for order in range(20):
                await bill.kiq(order)
            async with working(first, wait_tasks_timeout=0):
                await until(lambda: len(began) == 10)
                await asyncio.sleep(5 * INVISIBLE.total_seconds())
                assert len(began) == 10, "what is at work stays there while its worker lives"
        died = rocketmq_clock.now
        second, _ = shop("second", dies=False)
        async with opened(second), working(second):
            await until(lambda: len(done) == 20)
        assert rocketmq_clock.now - died < INVISIBLE + timedelta(seconds=10)
        left = [
            task
            for task in asyncio.all_tasks()
            if task.get_coro().__qualname__ == "Receiver.callback"  # type: ignore[union-attr]
        ]
        for task in left:
            task.cancel()
        ends = await asyncio.gather(*left, return_exceptions=True)
        assert ends == [None] * 10, "Taskiq acknowledges them, too, and nobody looks at an error"

    run(rocketmq_clock, scenario())
    assert sorted(done) == sorted(f"second {order}" for order in range(20))


def test_what_is_not_acknowledged_comes_again(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    ran: list[int] = []

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def bill(context: Context = TaskiqDepends()) -> None:
        ran.append(rocketmq_clock.now_ms)
        if len(ran) == 3:
            await context.ack()

    async def scenario() -> None:
        async with opened(broker), working(broker):
            await bill.kiq()
            await asyncio.sleep(10 * INVISIBLE.total_seconds())

    run(rocketmq_clock, scenario())
    first, second, third = ran  # and no fourth
    for earlier, later in ((first, second), (second, third)):
        assert 0 < later - earlier < INVISIBLE.total_seconds() * 1000 + 5000


def test_a_failed_task_is_retried_by_taskiqs_middleware(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock).with_middlewares(SmartRetryMiddleware(default_delay=30))
    ran: list[int] = []

    @broker.task(retry_on_error=True, max_retries=3)
    async def fails() -> None:
        ran.append(rocketmq_clock.now_ms)
        raise ValueError("no")

    async def scenario() -> None:
        async with opened(broker), working(broker):
            at = rocketmq_clock.now + timedelta(seconds=10)  # which the retries have as a label
            await fails.kicker().with_labels(deliver_at=at.isoformat()).kiq()
            await until(lambda: len(ran) == 3)

    began = rocketmq_clock.now_ms
    run(rocketmq_clock, scenario())
    assert [round((moment - began) / 10_000) for moment in ran] == [1, 4, 7]


def test_a_task_can_be_put_back(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    seen: list[str | None] = []

    @broker.task
    async def shy(context: Context = TaskiqDepends()) -> str:
        seen.append(context.message.labels.get("X-Taskiq-requeue"))
        if len(seen) == 1:
            await context.requeue()
        return "done"

    async def scenario() -> None:
        async with opened(broker), working(broker):
            result = await (await shy.kiq()).wait_result(timeout=MINUTE)
            assert result.return_value == "done"

    run(rocketmq_clock, scenario())
    assert seen == [None, "1"]


def test_what_was_got_ahead_is_given_back(rocketmq_clock: VirtualTime) -> None:
    """A worker that ends has another one get the rest at once, not when it was to come again."""
    broker = broker_of(rocketmq_clock, invisible=timedelta(minutes=5))

    @broker.task
    async def bill() -> None: ...

    async def take(count: int) -> list[AckableMessage]:
        messages = broker.listen()
        taken = [await anext(messages) for _ in range(count)]
        await messages.aclose()
        return taken

    async def scenario() -> None:
        async with opened(broker):
            for _ in range(6):
                await bill.kiq()
            began = rocketmq_clock.now
            one, two = await take(2)
            assert one.ack is not None
            for message in (one, two, *await take(4)):
                await message.ack()  # type: ignore[misc]
            assert rocketmq_clock.now - began < timedelta(seconds=10)

    run(rocketmq_clock, scenario())


def test_no_member_of_a_group_is_idle_while_another_has_more(rocketmq_clock: VirtualTime) -> None:
    """There are more workers than queues, and each gets something to do."""
    busy: set[str] = set()

    async def work(name: str, all_busy: asyncio.Event) -> None:
        broker = broker_of(rocketmq_clock, queues=1, batch=1)

        @broker.task("shop:bill")
        async def bill() -> None:
            busy.add(name)
            if len(busy) == 3:
                all_busy.set()
            await all_busy.wait()

        async with opened(broker), working(broker, max_async_tasks=1):
            if name == "a":
                for _ in range(6):
                    await bill.kiq()
            await all_busy.wait()

    async def scenario() -> None:
        all_busy = asyncio.Event()
        await asyncio.gather(*(work(name, all_busy) for name in "abc"))

    run(rocketmq_clock, scenario())
    assert busy == {"a", "b", "c"}


@pytest.mark.parametrize("is_worker", [True, False])
def test_its_events_are_those_of_any_broker(rocketmq_clock: VirtualTime, is_worker: bool) -> None:
    broker = broker_of(rocketmq_clock)
    broker.is_worker_process = is_worker
    happened: list[TaskiqEvents] = []

    def note(event: TaskiqEvents) -> None:
        broker.add_event_handler(event, lambda _: happened.append(event))

    for event in TaskiqEvents:
        note(event)

    async def scenario() -> None:
        async with broker:
            pass
        async with broker:  # and it can be opened again
            pass

    run(rocketmq_clock, scenario())
    kind = "WORKER" if is_worker else "CLIENT"
    assert [event.name for event in happened] == [f"{kind}_STARTUP", f"{kind}_SHUTDOWN"] * 2


def test_its_topic_is_made_as_asked_and_not_changed(rocketmq_clock: VirtualTime) -> None:
    async def scenario() -> None:
        cluster = rocketmq_clock.cluster
        async with Admin.of([cluster.name_server]) as admin:
            for queues, priorities in ((3, 0), (5, 7)):
                async with opened(broker_of(rocketmq_clock, queues=queues, priorities=priorities)):
                    config = await admin.topics.config(cluster.brokers[0].address, "tasks")
                    assert (config.write_queue_nums, config.attributes) == (3, {})

    run(rocketmq_clock, scenario())


def test_what_cannot_be_is_said(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)

    @broker.task
    async def bill() -> None: ...

    async def cause(**labels: Any) -> BaseException | None:
        with pytest.raises(SendTaskError) as raised:
            await bill.kicker().with_labels(**labels).kiq()
        return raised.value.__cause__

    async def scenario() -> None:
        closed = await cause()
        assert isinstance(closed, ClientError)
        assert str(closed) == "the broker of topic 'tasks' is not started"
        async with opened(broker):
            for labels, told in (
                ({"delay": "soon"}, "label delay='soon' is not a number"),
                ({"delay": -1}, "is negative"),
                ({"priority": -1}, "-1 is not a priority"),
                ({"deliver_at": "noon"}, "label deliver_at='noon' is not a time"),
            ):
                error = await cause(**labels)
                assert isinstance(error, MessageError)
                assert told in str(error)
            with pytest.raises(ConfigError, match="this source takes only tasks with a time"):
                await bill.schedule_by_cron(RocketMQSchedule(broker), "* * * * *")
            assert await RocketMQSchedule(broker).get_schedules() == []

    run(rocketmq_clock, scenario())
    assert rocketmq_clock.cluster.messages("tasks") == []
