"""The tasks of one owner: all end with it, and each failure is logged."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firearrow.errors import ClientError
from firearrow.net.tasks import SerialWorker, Tasks
from firearrow.testing import loop
from tests.broker.serving import seconds, until
from tests.loglines import told


def run(main: Callable[[Tasks], Coroutine[Any, Any, None]]) -> None:
    async def limited(_: object) -> None:
        tasks = Tasks()
        await main(tasks)
        await tasks.close()
        assert len(tasks) == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop.run(limited)


def test_all_end_with_their_owner() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def main(tasks: Tasks) -> None:
        first = tasks.start(work("first"), "first")
        tasks.start(work("second"), "second")
        await asyncio.sleep(1)
        await first.stop()
        assert first.done()
        assert ended == ["first"]

    run(main)
    assert ended == ["first", "second"]


def test_nothing_begins_after_the_end() -> None:
    async def work() -> None:
        raise AssertionError

    async def main(tasks: Tasks) -> None:
        await tasks.close()
        with pytest.raises(ClientError, match="late work: the session was closed"):
            tasks.start(work(), "late work")
        tasks.begin(work(), "late work")

    run(main)


def test_who_waits_is_told_when_all_have_ended() -> None:
    async def main(tasks: Tasks) -> None:
        assert not await tasks.settled()
        tasks.begin(asyncio.sleep(5), "short")
        tasks.begin(asyncio.sleep(10), "long")
        assert await tasks.settled()
        assert seconds() == 10
        assert len(tasks) == 0

    run(main)


def test_one_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def main(tasks: Tasks) -> None:
        tasks.start(fail(), "dividing")
        await asyncio.sleep(1)

    run(main)
    assert [line["event"] for line in told(caplog)] == ["task failed"]


def test_again_and_again_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    times: list[float] = []

    async def work() -> None:
        times.append(seconds())
        if len(times) == 2:
            raise ClientError("not now")

    async def main(tasks: Tasks) -> None:
        running = tasks.every(10, work, "work", first_seconds=1)
        await asyncio.sleep(35)
        running.cancel()

    run(main)
    assert times == [1, 11, 21, 31]
    [line] = told(caplog)
    assert (line["event"], line["error"]) == ("work is retried later", "not now")


def test_what_work_awaits_may_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """Periodic work goes on, and a task that ends by it is logged."""
    times: list[float] = []

    async def work() -> None:
        times.append(seconds())
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    async def main(tasks: Tasks) -> None:
        tasks.every(10, work, "work")
        tasks.start(work(), "single work")
        await asyncio.sleep(35)
        assert len(times) == 4

    run(main)
    lines = sorted((str(line["event"]), line["task"]) for line in told(caplog))
    again, ended = "work is retried later", "task failed"
    assert lines == [(ended, "single work"), (again, "work"), (again, "work"), (again, "work")]


# --- Items handled one after the other ---


class Doing(SerialWorker[int]):
    """Handles numbers, a second each; 0 raises an error."""

    def __init__(self) -> None:
        super().__init__("numbers", 3)
        self.done: list[int] = []

    def take(self, *numbers: int) -> None:
        for number in numbers:
            self._add(number)

    async def _do(self, item: int) -> None:
        await asyncio.sleep(1)
        assert item, "it is none"
        self.done.append(item)


def test_in_their_order_and_as_many_as_may_wait() -> None:
    async def main(_: object) -> None:
        doing = Doing()
        doing.take(1)
        await asyncio.sleep(0)  # the worker has begun that one
        doing.take(2, 3, 4, 5)
        await until(lambda: len(doing.done) == 4)
        doing.take(6)
        await until(lambda: len(doing.done) == 5)
        assert doing.done == [1, 2, 3, 4, 6]
        await doing.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop.run(main)


def test_a_mistake_is_told_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: object) -> None:
        doing = Doing()
        doing.take(0)
        await until(lambda: "task failed" in caplog.text)
        doing.take(1)
        await until(lambda: doing.done == [1])
        await doing.stop()

    loop.run(main)
    assert [line["task"] for line in told(caplog)] == ["numbers"]


def test_what_waits_at_the_stop_is_not_done() -> None:
    async def main(_: object) -> None:
        doing = Doing()
        doing.take(1, 2)
        await doing.stop()
        doing.take(3)
        await asyncio.sleep(10)
        assert doing.done == []

    loop.run(main)
