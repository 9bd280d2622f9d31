"""Turns of services: their budget, their pauses, their trouble, and their end."""

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import count

import pytest

from firearrow.broker.turns import RETRY_SECONDS, TURN_SECONDS, RoundService, Steps, TurnService, steps_of_turn
from firearrow.errors import DiskFull, PutLater
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock

Act = Callable[[], float]


class Scripted(TurnService):
    """Calls the next function of a list in each turn."""

    def __init__(self, clock: VirtualClock, *acts: Act) -> None:
        super().__init__("scripted", asyncio.get_running_loop())
        self.clock = clock
        self.acts = list(acts)
        self.times: list[float] = []

    def _work(self) -> float:
        self.times.append(self.clock.monotonic())
        return self.acts.pop(0)() if self.acts else math.inf


class Rounds(RoundService):
    """Runs a given list of steps in each round."""

    def __init__(self, clock: VirtualClock, *steps: float | Exception) -> None:
        super().__init__("rounds", asyncio.get_running_loop(), 0.5)
        self.clock = clock
        self.steps = steps
        self.times: list[float] = []
        self.rounds = 0

    def _round(self) -> Steps:
        for step in self.steps:
            self.times.append(self.clock.monotonic())
            yield step

    def _after_round(self) -> float:
        self.rounds += 1
        return math.inf


def failing(error: Exception) -> Act:
    def fail() -> float:
        raise error

    return fail


def test_a_turn_has_one_step_at_least_and_ends_when_its_time_is_over() -> None:
    seconds = count(0.0, TURN_SECONDS / 4)
    assert len(list(steps_of_turn(lambda: next(seconds)))) == 4
    assert len(list(steps_of_turn(lambda: 0.0, 7))) == 7
    hours = count(0.0, 3600.0)
    assert len(list(steps_of_turn(lambda: next(hours)))) == 1


def test_a_turn_says_when_the_next_one_begins_and_an_event_may_begin_it_earlier() -> None:
    async def main(clock: VirtualClock) -> None:
        service = Scripted(clock, lambda: 0.0, lambda: 2.0, lambda: math.inf, lambda: 60.0)
        service._wake(1)
        service.go_on()
        await asyncio.sleep(5)
        assert service.times == []
        await service.start()
        await asyncio.sleep(3)
        assert service.times == [5, 5, 7]
        assert not service._alarm.is_set
        service._wake(2)
        service._wake(4)
        await asyncio.sleep(4)
        service.go_on()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert service.times == [5, 5, 7, 10, 12]

    loop.run(main)


def test_a_stop_takes_no_further_turn() -> None:
    async def main(clock: VirtualClock) -> None:
        service = Scripted(clock, lambda: 1.0, lambda: 1.0, lambda: 1.0)
        await service.start()
        await asyncio.sleep(1.5)
        await service.stop()
        service.go_on()
        service._wake(0)
        await asyncio.sleep(10)
        assert service.times == [0, 1]
        await service.start()
        await asyncio.sleep(0.1)
        assert service.times == [0, 1, 11.5]

    loop.run(main)


def test_work_that_fails_is_tried_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main(clock: VirtualClock) -> None:
        full = DiskFull("no room")
        service = Scripted(clock, failing(full), failing(full), failing(OSError("torn")), lambda: 5.0)
        await service.start()
        for trouble in ("no room", "no room", "torn", None):
            await asyncio.sleep(RETRY_SECONDS / 2)
            assert service.trouble == trouble
            await asyncio.sleep(RETRY_SECONDS / 2)
        assert service.times == [0, 1, 2, 3]

    loop.run(main)
    events = [(record.levelname, getattr(record, "error", None)) for record in caplog.records]
    assert [(level, str(error)) for level, error in events] == [
        ("ERROR", "no room"),
        ("ERROR", "torn"),
        ("INFO", "None"),
    ]


def test_a_message_in_flight_is_no_trouble() -> None:
    async def main(clock: VirtualClock) -> None:
        service = Scripted(clock, failing(PutLater("in flight")))
        await service.start()
        await asyncio.sleep(RETRY_SECONDS * 1.5)
        assert (service.times, service.trouble) == ([0, RETRY_SECONDS], None)

    loop.run(main)


def test_a_fault_of_our_own_is_reported_and_does_not_end_the_service() -> None:
    async def main(clock: VirtualClock) -> None:
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
        fault = ZeroDivisionError("a fault")
        service = Scripted(clock, failing(fault))
        await service.start()
        await asyncio.sleep(RETRY_SECONDS / 2)
        assert (raised, service.trouble) == ([fault], "ZeroDivisionError: a fault")
        await asyncio.sleep(RETRY_SECONDS)
        assert (service.times, service.trouble) == ([0, RETRY_SECONDS], None)

    loop.run(main)


def test_a_round_goes_on_where_it_was_and_its_trouble_ends_with_it() -> None:
    async def main(clock: VirtualClock) -> None:
        service = Rounds(clock, 0.0, DiskFull("no room"), 0.25, 0.25)
        await service.start()
        states: list[tuple[str | None, int]] = []
        for seconds in (0.1, 0.8, 0.2):
            await asyncio.sleep(seconds)
            states.append((service.trouble, service.rounds))
        assert states == [("no room", 0), ("no room", 0), (None, 1)]
        assert service.times == [0, 0, 0.5, 0.75]
        service.go_on()
        await asyncio.sleep(2)
        assert service.rounds == 2

    loop.run(main)
