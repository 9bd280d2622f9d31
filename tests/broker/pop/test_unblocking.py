"""When who waits for a queue in order is woken."""

import asyncio
from collections.abc import Sequence

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.pop.unblocking import LOOK_SECONDS_MAX
from firearrow.wire.command import request
from firearrow.wire.headers import PopMessage
from tests.broker.fakes import CONFIG, FakeBroker

PLACE = "T", "g", 0


class Stage:
    """A group that has popped two messages of a queue, and what waits for more of it."""

    def __init__(self, config: BrokerConfig = CONFIG, invisible_ms: int = 60_000) -> None:
        self.broker = FakeBroker(config)
        self.broker.store.queues["T", 0] = 0, 10, True
        self.woken: list[float] = []
        self.take([0, 1], invisible_ms)

    def take(self, offsets: Sequence[int], invisible_ms: int = 60_000) -> None:
        now_ms = self.broker.clock.now_ms()
        self.broker.orders.take(*PLACE, offsets, pop_ms=now_ms, invisible_ms=invisible_ms)
        self.broker.unblocking.changed(*PLACE)

    def wait(self) -> None:
        """Have a pop and a notification wait."""
        now_ms = self.broker.clock.now_ms()
        for held in (self.broker.held_pops, self.broker.held_notifications):
            header = PopMessage("g", "T", 0, 32, 60_000, 10**8, now_ms, 0)
            command = request(200050, {})
            held.hold(self.broker.channel, command, header, self._answer)  # type: ignore[arg-type]

    def _answer(self, peer: object, command: object) -> None:
        self.woken.append(self.broker.clock.seconds - 1000.0)

    def pass_time(self, seconds: float) -> list[float]:
        """When somebody was woken."""
        self.broker.scheduler.run(seconds)
        woken, self.woken = self.woken, []
        return woken


def test_a_queue_is_free_when_its_messages_are_visible_again() -> None:
    stage = Stage()
    stage.wait()
    assert stage.pass_time(59.9) == []
    assert stage.pass_time(1) == [pytest.approx(60, abs=0.05)] * 2
    assert stage.pass_time(100) == []


def test_who_comes_while_it_is_blocked_is_woken_too() -> None:
    stage = Stage()
    assert stage.pass_time(30) == []
    stage.wait()
    assert stage.pass_time(40) == [pytest.approx(60, abs=0.05)] * 2


def test_a_queue_is_free_when_its_messages_are_acknowledged() -> None:
    stage = Stage()
    stage.wait()
    batch = stage.broker.orders.batch(*PLACE)
    assert batch is not None
    for offset, woken in ((0, 0), (1, 2)):
        stage.broker.orders.acknowledge(*PLACE, offset, pop_ms=batch.pop_ms, committed=0, end=10)
        stage.broker.unblocking.changed(*PLACE)
        assert len(stage.pass_time(0)) == woken
    assert stage.pass_time(100) == []


def test_a_later_time_takes_the_place_of_an_earlier_one() -> None:
    stage = Stage()
    stage.wait()
    stage.pass_time(50)
    stage.take([0, 1])
    assert stage.pass_time(55) == []
    assert stage.pass_time(10) == [pytest.approx(110, abs=0.05)] * 2


def test_a_time_that_is_very_late() -> None:
    seconds = 2.5 * LOOK_SECONDS_MAX
    stage = Stage(invisible_ms=int(seconds * 1000))
    assert stage.pass_time(seconds - 1) == []
    stage.wait()
    assert stage.pass_time(2) == [pytest.approx(seconds, abs=0.1)] * 2


def test_nobody_is_woken_for_a_queue_without_messages() -> None:
    stage = Stage()
    stage.broker.offsets.commit("g", "T", 0, 10)
    stage.wait()
    assert stage.pass_time(100) == []


def test_nobody_is_woken_by_time_where_that_is_off() -> None:
    config = BrokerConfig(broker_name="broker-a", enable_notify_after_pop_order_lock_release=False)
    stage = Stage(config)
    stage.wait()
    assert stage.pass_time(100) == []


def test_a_start_knows_what_is_blocked() -> None:
    stage = Stage()
    asyncio.run(stage.broker.unblocking.stop())
    stage.wait()
    assert stage.pass_time(30) == []
    asyncio.run(stage.broker.unblocking.start())
    assert stage.pass_time(40) == [pytest.approx(60, abs=0.05)] * 2
