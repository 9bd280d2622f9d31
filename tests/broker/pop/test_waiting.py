"""Pops and notifications that wait: who is woken, by what, and who is forgotten."""

from collections.abc import Callable
from typing import cast

from firearrow.broker.config import BrokerConfig
from firearrow.broker.pop.waiting import ANY_QUEUE, HeldPops, Outcome
from firearrow.broker.state.settings import Settings
from firearrow.message.names import pop_retry_topic
from firearrow.net.server import ConnectionClosed, Peer
from firearrow.store import MessageStore, QueuesDeleted, Wanted
from firearrow.wire.command import request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PopMessage
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
        self.held = HeldPops(
            "held", settings, store, self.clock, self.scheduler, newest_first=newest_first
        )
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
    ) -> Outcome:
        now_ms = self.clock.now_ms()
        header = PopMessage(
            group, topic, queue_id, 32, 60_000, poll_ms, now_ms - ago_ms, 0, exp=exp
        )
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
    assert stage.hold(1) is Outcome.HELD
    assert stage.hold(2, poll_ms=50) is Outcome.OVER
    assert stage.hold(3, poll_ms=0) is Outcome.OVER
    assert stage.hold(4, ago_ms=10_000) is Outcome.OVER
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
    stage.held.group_gone("g")
    assert stage.take() == [3]
    assert len(stage.held) == 0
