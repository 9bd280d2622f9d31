"""The table of waiting pulls by itself: who is woken, who stays, who is forgotten."""

from collections.abc import Callable
from typing import cast

import pytest

from firearrow.broker import longpoll
from firearrow.broker.longpoll import HeldPull, HeldPulls
from firearrow.net.server import Peer
from firearrow.store import MessageStore
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

    def tag_codes(self, topic: str, queue_id: int, queue_offset: int, end: int) -> set[int]:
        self.looked_at += range(queue_offset, end)
        return set(self.codes[queue_offset:end])


class Stage:
    """Waiting pulls, of which each has a number, and the numbers of those that were run again."""

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
        peer: FakeChannel | None = None,
        seconds: float = 10,
    ) -> bool:
        command = request(11, {}, opaque=number)
        deadline = self.clock.seconds + seconds
        holder = cast(Peer, peer or FakeChannel())
        pull = HeldPull(holder, command, self._answer, offset, codes, deadline)
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


def test_a_connection_that_ended_is_not_answered() -> None:
    stage = Stage()
    gone, stays = FakeChannel(), FakeChannel()
    for number in range(4):
        stage.hold(number, peer=(gone, stays)[number % 2], queue_id=number // 2)
    gone.is_open = False
    stage.pulls.expire()
    assert len(stage.pulls) == 2
    assert stage.take() == [0, 2]  # run again, and answered by nobody: see Peer.resume
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
