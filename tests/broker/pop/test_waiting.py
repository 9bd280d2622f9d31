"""Pops and notifications that wait: who is woken, by what, and who is forgotten."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from firearrow.broker.config import BrokerConfig
from firearrow.broker.events import GroupDeleted
from firearrow.broker.pop import waiting
from firearrow.broker.pop.waiting import TESTS_MAX, TURN_SECONDS, HeldPops, HoldOutcome
from firearrow.broker.state.settings import Settings
from firearrow.errors import BrokerError
from firearrow.message.names import pop_retry_topic
from firearrow.net.server import ConnectionClosed, Peer
from firearrow.store import MessageStore, QueuesDeleted, Wanted
from firearrow.wire.command import request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import ANY_QUEUE
from tests.broker.fakes import FakeChannel, HandClock, HandScheduler


class Entries:
    """The tag codes of each queue's entries, and whether anybody waits for more."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str, int], list[int]] = {}
        self.looked_at: list[tuple[int, int]] = []
        self.watchers = 0

    def watch(self) -> None:
        self.watchers += 1

    def unwatch(self) -> None:
        self.watchers -= 1

    def tag_codes(self, topic: str, queue_id: int, queue_offset: int, end: int) -> set[int]:
        self.looked_at.append((queue_offset, end))
        return set(self.codes[topic, queue_id][queue_offset:end])


class Stage:
    """Requests that wait, each with a number, and the numbers of those that were run again."""

    def __init__(self, *, newest_first: bool = False, **config: int) -> None:
        self.clock = HandClock()
        self.scheduler = HandScheduler(self.clock)
        self.entries = Entries()
        settings = Settings(self.clock, BrokerConfig(**config))  # type: ignore[arg-type]
        store = cast(MessageStore, self.entries)
        self.held = HeldPops("held", settings, store, self.clock, self.scheduler, newest_first=newest_first)
        self.resumed: list[int] = []
        self.on_resume: Callable[[AnyCommand], None] = lambda command: None

    def _answer(self, peer: Peer, command: AnyCommand) -> None:
        self.resumed.append(command.opaque)
        self.on_resume(command)

    def hold(
        self,
        number: int,
        *,
        topic: str = "T",
        group: str = "g",
        queue_id: int = ANY_QUEUE,
        poll_ms: int = 10_050,
        ago_ms: int = 0,
        wanted: Wanted = None,
        peer: FakeChannel | None = None,
        exp: str | None = None,
    ) -> HoldOutcome:
        now_ms = self.clock.now_ms()
        header = PopMessage(group, topic, queue_id, 32, 60_000, poll_ms, now_ms - ago_ms, 0, exp=exp)
        command = request(200050, {}, b"body", opaque=number)
        holder = cast(Peer, peer or FakeChannel())
        return self.held.hold(holder, command, header, self._answer, wanted)

    def arrive(self, topic: str, queue_id: int, *codes: int) -> None:
        """Have messages with these tag codes in a queue, and the waiting heard."""
        known = self.entries.codes.setdefault((topic, queue_id), [1])  # offset 0 is special
        first = len(known)
        known += codes or (7,)
        self.held.arrived([(topic, queue_id, first, len(known))])

    def take(self) -> list[int]:
        """Let the loop do what is planned, and give the numbers of those that ran again."""
        self.scheduler.run()
        resumed, self.resumed = self.resumed, []
        return resumed


def test_an_arrival_wakes_one_of_each_group_in_the_next_turn() -> None:
    stage = Stage()
    for number, group in ((1, "g"), (2, "g"), (3, "h")):
        stage.hold(number, group=group)
    stage.hold(4, topic="U")
    stage.arrive("T", 0)
    assert stage.resumed == []
    assert stage.take() == [1, 3]
    stage.arrive("T", 1)
    assert stage.take() == [2]
    assert len(stage.held) == 1


def test_a_queue_is_waited_for_by_itself() -> None:
    stage = Stage()
    stage.hold(1, queue_id=0)
    stage.hold(2, queue_id=1)
    stage.hold(3)
    stage.arrive("T", 1)
    assert stage.take() == [3, 2]
    assert (stage.held.count("T", "g", 0), stage.held.count("T", "g", 1)) == (1, 0)


def test_who_waits_for_longest_is_first_or_last() -> None:
    for newest_first, order in ((False, [3, 1, 2]), (True, [2, 1, 3])):
        stage = Stage(newest_first=newest_first)
        stage.hold(1)
        stage.hold(2)
        stage.hold(3, ago_ms=500)
        woken = []
        for _ in range(3):
            stage.arrive("T", 0)
            woken += stage.take()
        assert woken == order


def test_time_ends_a_wait() -> None:
    stage = Stage()
    assert stage.hold(1) is HoldOutcome.HELD
    assert stage.hold(2, poll_ms=50) is HoldOutcome.OVER
    assert stage.hold(3, poll_ms=0) is HoldOutcome.OVER
    assert stage.hold(4, ago_ms=10_000) is HoldOutcome.OVER
    stage.scheduler.run(9.999)
    assert stage.take() == []
    stage.scheduler.run(0.03)
    assert stage.take() == [1]
    assert stage.entries.watchers == 0


def test_what_a_connection_waits_for_ends_with_it() -> None:
    stage = Stage()
    gone, stays = FakeChannel(), FakeChannel()
    for number in range(6):
        stage.hold(number, queue_id=number // 2 - 1, peer=(gone, stays)[number % 2])
    stage.held.closed(ConnectionClosed(cast(Peer, gone)))
    assert len(stage.held) == 3
    stage.arrive("T", 0)
    assert stage.take() == [1, 3]
    stage.held.closed(ConnectionClosed(cast(Peer, stays)))
    assert len(stage.held) == stage.entries.watchers == 0


def test_retried_messages_wake_who_waits_for_their_topic() -> None:
    stage = Stage()
    for v2 in (False, True):
        stage.hold(1)
        stage.hold(2, group="h")
        stage.arrive(pop_retry_topic("T", "g", v2=v2), 0)
        assert stage.take() == [1]
        stage.hold(3, queue_id=2)
        stage.arrive(pop_retry_topic("T", "g", v2=v2), 0)
        assert stage.take() == [3]
        stage.arrive(pop_retry_topic("T", "h", v2=v2), 0)
        assert stage.take() == [2]


def test_a_deleted_topic_or_group_ends_waits() -> None:
    stage = Stage()
    stage.hold(1)
    stage.hold(2, group="h", queue_id=3)
    stage.hold(3, topic="U")
    stage.held.topic_gone(QueuesDeleted("T"))
    assert stage.take() == [1, 2]
    stage.held.group_gone(GroupDeleted("g"))
    with pytest.raises(BrokerError, match="26"):
        stage.take()
    assert len(stage.held) == 0


def test_news_of_many_messages_wakes_one_and_that_the_next() -> None:
    stage = Stage()
    for number in (1, 2, 3):
        stage.hold(number)
    for queue_id in range(4):
        stage.arrive("T", queue_id)

    def leave_some(command: AnyCommand) -> None:
        if command.opaque < 3:
            stage.held.wake_next("T", "g", ANY_QUEUE)

    stage.on_resume = leave_some
    assert stage.take() == [1, 2, 3]


def test_only_who_waits_for_the_same_is_woken_next() -> None:
    stage = Stage()
    stage.hold(1, queue_id=0)
    stage.held.wake_next("T", "g", ANY_QUEUE)
    stage.held.wake_next("T", "h", 0)
    assert stage.take() == []
    stage.held.wake_next("T", "g", 0)
    assert stage.take() == [1]
    stage.hold(2, queue_id=-7)  # any below 0 is any queue
    stage.held.wake_next("T", "g", -3)
    assert stage.take() == [2]


def test_a_free_queue_wakes_one_pop() -> None:
    stage = Stage()
    stage.hold(1, queue_id=0)
    stage.hold(2)
    for expected in (2, 1):
        stage.held.unblocked("T", "g", 0)
        assert stage.take() == [expected]
    stage.held.unblocked("T", "g", 0)
    assert stage.take() == []


def test_messages_of_other_tags_wake_nobody_but_now_and_then() -> None:
    stage = Stage(pop_long_polling_force_notify_interval=8)
    stage.hold(1, wanted=frozenset({5}))
    stage.hold(2, wanted=frozenset({6}))
    stage.arrive("T", 0, 4, 4)
    assert stage.take() == []
    assert stage.entries.looked_at == [(1, 3)]  # once, and by one of them only if they want alike
    stage.arrive("T", 0, 6)
    assert stage.take() == [2]
    stage.arrive("T", 0, 4, 4, 4)
    stage.arrive("T", 1, 4)
    assert stage.take() == []
    stage.arrive("T", 0, 4, 4)  # 8 is one of them
    assert stage.take() == [1]


def test_who_wakes_for_tags_is_told_by_all_queues_that_got_some() -> None:
    stage = Stage()
    stage.hold(1, wanted=frozenset({5}))
    stage.arrive("T", 0, 4)
    stage.arrive("T", 1, 5)
    assert stage.take() == [1]


def test_a_look_at_tags_ends() -> None:
    stage = Stage()
    for number in range(TESTS_MAX + 2):
        stage.hold(number, wanted=frozenset({100 + number}))
    stage.arrive("T", 0, 4)
    assert stage.take() == [TESTS_MAX]


def test_who_takes_no_answers_is_woken_last() -> None:
    stage = Stage()
    slow = FakeChannel()
    slow.is_slow = True
    stage.hold(1, peer=slow)
    stage.hold(2)
    for expected in (2, 1):
        stage.arrive("T", 0)
        assert stage.take() == [expected]


@pytest.mark.parametrize(
    ("config", "held"),
    [
        ({"max_pop_polling_size": 5}, 5),
        ({"pop_polling_size": 2}, 6),  # one more for each of two queues, as in RocketMQ
        ({"pop_polling_map_size": 1}, 8),
    ],
)
def test_there_is_a_limit_to_those_that_wait(config: dict[str, int], held: int) -> None:
    stage = Stage(newest_first=False, **config)
    outcomes = [stage.hold(number, queue_id=number % 2) for number in range(16)]
    assert len(stage.held) == held == outcomes.count(HoldOutcome.HELD)
    assert outcomes.count(HoldOutcome.FULL) == 16 - held


def test_one_peer_can_not_have_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "HELD_PULLS_OF_PEER_MAX", 2)
    monkeypatch.setattr(waiting, "CHARS_MAX", 10)
    stage = Stage()
    greedy = FakeChannel()
    outcomes = [stage.hold(number, peer=greedy) for number in range(3)]
    assert outcomes == [HoldOutcome.HELD, HoldOutcome.HELD, HoldOutcome.FULL]
    assert stage.hold(3, exp="x" * 11) is HoldOutcome.FULL
    assert stage.hold(4, exp="x" * 10) is HoldOutcome.HELD
    assert stage.hold(5, exp="x") is HoldOutcome.FULL
    stage.arrive("T", 0)
    stage.arrive("T", 0)
    assert stage.take() == [0]
    assert stage.hold(6, peer=greedy) is HoldOutcome.HELD


def test_what_a_client_adds_to_a_request_is_not_kept() -> None:
    stage = Stage()
    kept: list[AnyCommand] = []
    stage.on_resume = kept.append
    stage.hold(1)
    stage.arrive("T", 0)
    assert stage.take() == [1]
    assert kept[0].body == b""
    assert type(kept[0].ext) is PopMessage


def test_a_client_whose_clock_is_ahead_waits_no_longer() -> None:
    stage = Stage()
    stage.hold(1, ago_ms=-3_600_000)
    stage.scheduler.run(10.1)
    assert stage.take() == [1]


def test_a_turn_ends_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is run again takes as long as a turn."""
    stage = Stage()

    def take_time(command: AnyCommand) -> None:
        stage.clock.seconds += TURN_SECONDS

    stage.on_resume = take_time
    for number in range(6):
        stage.hold(number, group=str(number), poll_ms=100 if number > 2 else 10_000)
    stage.clock.seconds += 0.08
    stage.arrive("T", 0)
    turns = []
    while stage.scheduler.turn():
        turns.append(len(stage.resumed))
    assert max(after - before for before, after in pairwise([0, *turns])) == 1
    assert sorted(stage.resumed) == list(range(6))


def test_a_stop_runs_all_again() -> None:
    stage = Stage()
    stage.hold(1)
    stage.hold(2, queue_id=3)
    asyncio.run(stage.held.stop())
    assert stage.resumed == [1, 2]
    assert stage.hold(3) is HoldOutcome.OVER
    assert stage.entries.watchers == 0


# --- no wake-up is lost ---

TOPICS, GROUPS, QUEUES, PEERS = "TU", "gh", 3, 3


class Model(RuleBasedStateMachine):
    """A broker whose messages are counted, and pops that take what they find.

    Whenever the loop has done what is planned, nobody waits for a message that there is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.stage.on_resume = self._run_again
        self.peers = [FakeChannel(str(number)) for number in range(PEERS)]
        self.left: dict[tuple[str, str, int], int] = {}  # by topic, group and queue
        self.waiting: dict[int, tuple[str, str, int, FakeChannel, float]] = {}
        self.number = 0

    def _places(self, topic: str, group: str, queue_id: int) -> list[tuple[str, str, int]]:
        wanted = range(QUEUES) if queue_id < 0 else [queue_id]
        own = [(topic, group, number) for number in wanted]
        return [*own, (pop_retry_topic(topic, group), group, 0)]

    def _take(self, topic: str, group: str, queue_id: int) -> tuple[bool, bool]:
        """Take one message; whether there was one, and whether there is another."""
        places = self._places(topic, group, queue_id)
        some = [place for place in places if self.left.get(place, 0)]
        if some:
            self.left[some[0]] -= 1
        return bool(some), any(self.left.get(place, 0) for place in places)

    def _pop(self, number: int, topic: str, group: str, queue_id: int, peer: FakeChannel, until: float) -> None:
        found, more = self._take(topic, group, queue_id)
        poll_ms = round((until - self.stage.clock.seconds) * 1000) + 50
        if not found:
            outcome = self.stage.hold(number, topic=topic, group=group, queue_id=queue_id, poll_ms=poll_ms, peer=peer)
            if outcome is HoldOutcome.HELD:
                self.waiting[number] = topic, group, queue_id, peer, until
        elif more:
            self.stage.held.wake_next(topic, group, queue_id)

    def _run_again(self, command: AnyCommand) -> None:
        waited = self.waiting.pop(command.opaque)
        assert waited[3].is_open
        self._pop(command.opaque, *waited)

    @rule(
        topic=st.sampled_from(TOPICS),
        group=st.sampled_from(GROUPS),
        queue_id=st.integers(-1, QUEUES - 1),
        peer=st.integers(0, PEERS - 1),
        seconds=st.integers(1, 20),
    )
    def pop(self, topic: str, group: str, queue_id: int, peer: int, seconds: int) -> None:
        self.number += 1
        until = self.stage.clock.seconds + seconds
        self._pop(self.number, topic, group, queue_id, self.peers[peer], until)

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4))
    def send(self, topic: str, queue_id: int, count: int) -> None:
        for group in GROUPS:
            place = topic, group, queue_id
            self.left[place] = self.left.get(place, 0) + count
        self.stage.arrive(topic, queue_id, *[7] * count)

    @rule(topic=st.sampled_from(TOPICS), group=st.sampled_from(GROUPS))
    def retry(self, topic: str, group: str) -> None:
        name = pop_retry_topic(topic, group)
        self.left[name, group, 0] = self.left.get((name, group, 0), 0) + 1
        self.stage.arrive(name, 0)

    @rule(number=st.integers(0, PEERS - 1))
    def close(self, number: int) -> None:
        peer, self.peers[number] = self.peers[number], FakeChannel(str(number))
        peer.is_open = False
        self.stage.held.closed(ConnectionClosed(cast(Peer, peer)))
        self.waiting = {at: held for at, held in self.waiting.items() if held[3] is not peer}

    @rule(number=st.integers(0, PEERS - 1))
    def slow_down(self, number: int) -> None:
        self.peers[number].is_slow = not self.peers[number].is_slow

    @rule(seconds=st.integers(0, 7))
    def pass_time(self, seconds: int) -> None:
        self.stage.scheduler.run(seconds + 0.05)
        for topic, group, queue_id, _, until in self.waiting.values():
            assert until > self.stage.clock.seconds - 0.1
            for place in self._places(topic, group, queue_id):
                if queue_id < 0 or place[2] == queue_id:
                    assert not self.left.get(place, 0), (place, self.left)

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.stage.held) == len(self.waiting)
        assert self.stage.entries.watchers == bool(self.waiting)
        for topic in TOPICS:
            for group in GROUPS:
                for queue_id in range(-1, QUEUES):
                    same = [w for w in self.waiting.values() if w[:3] == (topic, group, queue_id)]
                    assert self.stage.held.count(topic, group, queue_id) == len(same)


TestNoWakeUpIsLost = Model.TestCase
