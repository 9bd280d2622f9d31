"""The table of waiting pulls: answered, waiting and dropped ones."""

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import cast

import pytest

from firearrow.broker.pulling import longpoll
from firearrow.broker.pulling.longpoll import EXPIRED_MAX, HeldPull, HeldPulls
from firearrow.filter.sql import SqlFilter, compile_sql
from firearrow.net.server import ConnectionClosed, Peer
from firearrow.services import Scheduler
from firearrow.store import GetResult, GetStatus, MessageStore, Wanted
from firearrow.testing import loop as virtual
from firearrow.testing.loop import VirtualClock, VirtualLoop
from firearrow.wire.command import request
from firearrow.wire.frame import AnyCommand
from tests.broker.fakes import FakeChannel, HandClock


class Entries:
    """The tag codes of a queue's entries."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes
        self.looked_at: list[int] = []
        self.watchers = 0

    def watch(self) -> None:
        self.watchers += 1

    def unwatch(self) -> None:
        self.watchers -= 1

    def get(self, topic: str, queue_id: int, queue_offset: int, count_max: int, wanted: Wanted) -> GetResult:
        """One pull looks at three entries; the number of an entry is its property."""
        assert isinstance(wanted, SqlFilter)
        self.looked_at += range(queue_offset, min(queue_offset + 3, len(self.codes)))
        for at in range(queue_offset, min(queue_offset + 3, len(self.codes))):
            if wanted.wants(b"n\x01%d\x02" % self.codes[at]):
                return GetResult(GetStatus.FOUND, at + 1, 0, len(self.codes), b"record", 1)
        following = min(queue_offset + 3, len(self.codes))
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, 0, len(self.codes))

    def tag_codes(self, topic: str, queue_id: int, queue_offset: int, end: int) -> set[int]:
        self.looked_at += range(queue_offset, end)
        return set(self.codes[queue_offset:end])


class Stage:
    """Waiting pulls with numbers, and the numbers of the pulls that were answered."""

    def __init__(self, *codes: int) -> None:
        self.clock = HandClock()
        self.entries = Entries(*codes)
        self.resumed: list[int] = []
        store = cast(MessageStore, self.entries)
        self.pulls = HeldPulls(store, self.clock)
        self.on_resume: Callable[[int], None] = lambda number: None

    def _answer(self, peer: Peer, command: AnyCommand) -> None:
        self.resumed.append(command.opaque)
        self.on_resume(command.opaque)

    def hold(
        self,
        number: int,
        *,
        queue_id: int = 0,
        offset: int = 0,
        codes: frozenset[int] | None = None,
        wanted: Wanted = None,
        peer: FakeChannel | None = None,
        seconds: float = 10,
    ) -> bool:
        command = request(11, {}, opaque=number)
        deadline = self.clock.seconds + seconds
        holder = cast(Peer, peer or FakeChannel())
        pull = HeldPull(holder, command, self._answer, offset, wanted if codes is None else codes, deadline)
        return self.pulls.hold("T", queue_id, pull)

    def take(self) -> list[int]:
        resumed, self.resumed = self.resumed, []
        return resumed


def test_an_arrival_wakes_the_pulls_of_its_queue_in_their_order() -> None:
    stage = Stage()
    for number in (1, 2, 3):
        stage.hold(number)
    stage.hold(4, queue_id=1)
    stage.pulls.arrived([("U", 0, 0, 1)])
    assert stage.take() == []
    stage.pulls.arrived([("T", 0, 0, 1)])
    assert stage.take() == [1, 2, 3]
    stage.pulls.arrived([("T", 0, 1, 2)])
    assert stage.take() == []
    assert len(stage.pulls) == 1


class Turns:
    """A scheduler that makes its calls on demand."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], object]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        self.planned.append(call)

    def time(self) -> float:
        return 0.0

    def call_later(self, _: float, __: Callable[[], object]) -> None:
        """Time is over when the test says so."""


def test_waits_that_end_together_are_ended_in_several_turns() -> None:
    stage, turns = Stage(), Turns()
    stage.pulls = HeldPulls(cast(MessageStore, stage.entries), stage.clock, cast(Scheduler, turns))
    count = 3 * EXPIRED_MAX
    for number in range(count):
        stage.hold(number, queue_id=number)
    stage.clock.seconds += 11
    stage.pulls.expire()
    resumed = [stage.take()]
    while turns.planned:
        turns.planned.pop()()
        resumed.append(stage.take())
    assert max(map(len, resumed)) == EXPIRED_MAX
    assert sorted(chain(*resumed)) == list(range(count))
    assert len(stage.pulls) == 0


def test_a_pull_of_a_later_offset_stays() -> None:
    stage = Stage()
    stage.hold(1, offset=3)
    stage.pulls.arrived([("T", 0, 0, 3)])
    assert stage.take() == []
    stage.pulls.arrived([("T", 0, 3, 4)])
    assert stage.take() == [1]


def test_tags_are_looked_up_once_and_only_if_somebody_asks() -> None:
    stage = Stage(7, 8, 9, 7)
    stage.hold(1)
    stage.pulls.arrived([("T", 0, 0, 1)])
    assert stage.entries.looked_at == []
    stage.hold(2, codes=frozenset({8}))
    stage.hold(3, codes=frozenset({9, 10}))
    stage.hold(4, codes=frozenset({10}))
    stage.hold(5, codes=frozenset())
    stage.pulls.arrived([("T", 0, 1, 4)])
    assert stage.take() == [1, 2, 3]
    assert stage.entries.looked_at == [1, 2, 3]
    assert len(stage.pulls) == 2


def test_time_ends_a_wait() -> None:
    stage = Stage()
    for number, seconds in ((1, 5), (2, 10), (3, 5)):
        stage.hold(number, seconds=seconds, queue_id=number % 2)
    stage.pulls.expire()
    assert stage.take() == []
    stage.clock.seconds += 5
    stage.pulls.expire()
    assert sorted(stage.take()) == [1, 3]
    stage.clock.seconds += 5
    stage.pulls.expire()
    assert stage.take() == [2]
    assert len(stage.pulls) == 0


def test_sweeps_are_made_while_somebody_waits_and_no_others() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        stage = Stage()
        stage.clock.seconds = loop.time()
        stage.pulls = HeldPulls(cast(MessageStore, stage.entries), clock, loop)
        ended: dict[int, float] = {}
        stage.on_resume = lambda number: ended.update({number: loop.time()})
        gone = FakeChannel()
        for number, seconds in enumerate((15, 15.2, 30)):
            stage.hold(number, seconds=seconds)
        stage.hold(3, seconds=1000, peer=gone)
        before = loop.leaps
        await asyncio.sleep(20)
        gone.is_open = False
        stage.pulls.closed(ConnectionClosed(cast(Peer, gone)))
        await asyncio.sleep(3600)
        assert [round(ended[number], 2) for number in (0, 1, 2, 3)] == [15.0, 15.5, 30.0, 20.5]
        assert loop.leaps - before == len(ended) + 2  # and the sleeps of the test

    virtual.run(main)


def test_a_connection_that_ended_is_not_answered() -> None:
    stage = Stage()
    gone, stays = FakeChannel(), FakeChannel()
    for number in range(4):
        stage.hold(number, peer=(gone, stays)[number % 2], queue_id=number // 2)
    gone.is_open = False
    stage.pulls.expire()
    assert len(stage.pulls) == 2
    assert stage.take() == [0, 2]  # called again, and left unanswered: see Peer.resume
    stage.pulls.release_all()
    assert stage.take() == [1, 3]
    assert len(stage.pulls) == 0
    stage.pulls.release_all()
    assert stage.take() == []


def test_a_pull_that_is_run_again_may_wait_again() -> None:
    stage = Stage()

    def hold_again(number: int) -> None:
        stage.hold(number + 100, offset=5)

    stage.on_resume = hold_again
    stage.hold(1)
    stage.pulls.arrived([("T", 0, 0, 1)])
    assert stage.take() == [1]
    assert len(stage.pulls) == 1
    stage.on_resume = lambda number: None
    stage.pulls.arrived([("T", 0, 1, 6)])
    assert stage.take() == [101]


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "HELD_PULLS_MAX", 2)
    stage = Stage()
    assert [stage.hold(number) for number in range(3)] == [True, True, False]
    stage.pulls.arrived([("T", 0, 0, 1)])
    assert stage.take() == [0, 1]
    assert stage.hold(3)


def test_expressions_of_those_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "FILTER_CHARS_MAX", 12)
    stage = Stage()
    short, long = compile_sql("a = 1"), compile_sql("a = 1 OR b = 2")
    assert [stage.hold(1, wanted=short), stage.hold(2, wanted=short)] == [True, True]
    assert not stage.hold(3, wanted=short)
    assert stage.hold(4)
    stage.clock.seconds += 11
    stage.pulls.expire()
    assert stage.take() == [1, 2, 4]
    assert not stage.hold(5, wanted=long)
    assert stage.hold(6, wanted=short)


def test_a_filter_wakes_only_whom_a_new_entry_is_for() -> None:
    stage = Stage(0, *range(1, 11))
    for number in (5, 0, 99, 10, 1):
        stage.hold(number, offset=1, wanted=compile_sql(f"n = {number}"))
    stage.hold(7, offset=1)
    stage.pulls.arrived([("T", 0, 1, 11)])
    assert stage.take() == [7, 1, 5, 10]
    assert len(stage.pulls) == 2
    stage.entries.looked_at.clear()
    stage.pulls.arrived([("U", 0, 1, 11)])
    stage.pulls.arrived([("T", 0, 0, 1)])
    assert stage.entries.looked_at == []
    stage.entries.codes += (0, 99)
    stage.pulls.arrived([("T", 0, 11, 13)])
    assert sorted(stage.take()) == [0, 99]
    assert stage.entries.looked_at == [11, 12, 11, 12]
