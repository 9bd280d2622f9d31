"""Things that are done one after the other, as they come."""

from __future__ import annotations

import asyncio

import pytest

from firearrow.net.serialworker import SerialWorker
from firearrow.testing.loop import run
from tests.broker.serving import until
from tests.loglines import told


class Doing(SerialWorker[int]):
    """Does numbers, a second each; 0 is a mistake."""

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
        await asyncio.sleep(0)  # it is at work on that one
        doing.take(2, 3, 4, 5)
        await until(lambda: len(doing.done) == 4)
        doing.take(6)
        await until(lambda: len(doing.done) == 5)
        assert doing.done == [1, 2, 3, 4, 6]
        await doing.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_a_mistake_is_told_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: object) -> None:
        doing = Doing()
        doing.take(0)
        await until(lambda: "task failed" in caplog.text)
        doing.take(1)
        await until(lambda: doing.done == [1])
        await doing.stop()

    run(main)
    assert [line["task"] for line in told(caplog)] == ["numbers"]


def test_what_waits_at_the_stop_is_not_done() -> None:
    async def main(_: object) -> None:
        doing = Doing()
        doing.take(1, 2)
        await doing.stop()
        doing.take(3)
        await asyncio.sleep(10)
        assert doing.done == []

    run(main)
