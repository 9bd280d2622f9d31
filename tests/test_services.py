"""Services: their intervals, their end, and the report of a failure."""

import asyncio

import pytest

from firearrow.services import Alarm, Every, Service
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock


def test_a_call_is_made_again_and_again_until_the_end() -> None:
    calls: list[float] = []

    async def main(clock: VirtualClock) -> None:
        async def rest(seconds: float) -> None:
            await asyncio.sleep(seconds)

        service = Every("it", 10, lambda: calls.append(clock.monotonic()), asyncio.get_running_loop())
        await service.start()
        await rest(35)
        await service.stop()
        await rest(100)

    loop.run(main)
    assert calls == [10, 20, 30]


def test_an_alarm_rings_once_and_only_when_it_was_set_for_last() -> None:
    calls: list[float] = []

    async def main(clock: VirtualClock) -> None:
        alarm = Alarm(asyncio.get_running_loop(), lambda: calls.append(clock.monotonic()))
        alarm.set(10)
        alarm.set(20)
        alarm.set_earlier(30)
        assert alarm.is_set
        await asyncio.sleep(100)
        assert (calls, alarm.is_set) == ([20], False)
        alarm.set(10)
        alarm.set_earlier(5)
        alarm.set_earlier(7)
        await asyncio.sleep(100)
        assert calls == [20, 105]
        alarm.set(10)
        alarm.cancel()
        assert not alarm.is_set
        alarm.set_earlier(0)
        assert len(calls) == 2
        await asyncio.sleep(100)

    loop.run(main)
    assert calls == [20, 105, 200]


@pytest.mark.parametrize(("gives", "calls"), [(2.0, [10, 12, 14]), (0.0, [10, 10, 10]), (99.0, [10, 109, 208])])
def test_a_call_may_say_when_the_next_one_is_due(gives: float, calls: list[float]) -> None:
    made: list[float] = []

    async def main(clock: VirtualClock) -> None:
        enough = asyncio.Event()

        def call() -> float | None:
            made.append(clock.monotonic())
            if len(made) < 3:
                return gives
            enough.set()
            return None

        service = Every("it", 10, call, asyncio.get_running_loop())
        await service.start()
        await enough.wait()
        await service.stop()

    loop.run(main)
    assert made == calls


def test_a_failure_is_told_and_the_next_call_made() -> None:
    told: list[BaseException] = []
    troubles: list[str | None] = []

    async def main(clock: VirtualClock) -> None:
        running = asyncio.get_running_loop()
        running.set_exception_handler(lambda _, context: told.append(context["exception"]))

        def call() -> None:
            if clock.monotonic() == 10:
                raise OSError("no room")

        service = Every("it", 10, call, running)
        await service.start()
        for _ in range(3):
            await asyncio.sleep(6)
            troubles.append(service.trouble)
        await asyncio.sleep(6)
        troubles.append(service.trouble)
        await service.stop()

    loop.run(main)
    assert troubles == [None, "OSError: no room", "OSError: no room", None]
    assert [str(error) for error in told] == ["no room"]


def test_a_service_is_well_unless_it_says_otherwise() -> None:
    assert (Service("it").name, Service("it").trouble) == ("it", None)
