"""What is popped in order: who gets the next messages, what is committed, and the file of it."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firearrow.broker.events import GroupDeleted
from firearrow.broker.pop import orderinfo
from firearrow.broker.pop.orderinfo import IGNORED, UNKNOWN, ConsumerOrderInfo
from firearrow.errors import ConfigError
from firearrow.store import QueuesDeleted
from tests.broker.fakes import NOW_MS, HandClock

DATA = Path(__file__).parents[2] / "data" / "config"
FILE = "consumerOrderInfo.json"
DAY_SECONDS = 86_400
END = 1 << 40


class Orders:
    """Queue 0 of topic T as group G pops it, and the time."""

    def __init__(self, root: Path | None = None, clock: HandClock | None = None) -> None:
        self.clock = clock or HandClock()
        self.root = root
        self.info = ConsumerOrderInfo(self.clock, root)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def pop(self, *offsets: int, invisible_ms: int = 60_000, attempt: str | None = None) -> dict[int, int]:
        counts = self.info.take("T", "G", 0, offsets, pop_ms=self.now_ms, invisible_ms=invisible_ms, attempt_id=attempt)
        return dict(counts)

    def ack(self, offset: int, *, pop_ms: int | None = None, committed: int = 0, end: int = END) -> int:
        batch = self.info.batch("T", "G", 0)
        if pop_ms is None:
            pop_ms = 0 if batch is None else batch.pop_ms
        return self.info.acknowledge("T", "G", 0, offset, pop_ms=pop_ms, committed=committed, end=end)

    def change(self, offset: int, in_ms: int, *, pop_ms: int | None = None) -> None:
        batch = self.info.batch("T", "G", 0)
        assert batch is not None
        self.info.change_visible("T", "G", 0, offset, pop_ms=pop_ms or batch.pop_ms, visible_ms=self.now_ms + in_ms)

    def suspend(self, in_ms: int) -> None:
        batch = self.info.batch("T", "G", 0)
        assert batch is not None
        self.info.suspend("T", "G", 0, pop_ms=batch.pop_ms, visible_ms=self.now_ms + in_ms)

    def is_blocked(self, attempt: str | None = None) -> bool:
        return self.info.is_blocked("T", "G", 0, attempt)

    def again(self) -> "Orders":
        """The same after a restart."""
        self.info.file.save()
        orders = Orders(self.root, self.clock)
        orders.info.load()
        return orders


def test_a_queue_is_blocked_until_all_is_acknowledged() -> None:
    orders = Orders()
    assert not orders.is_blocked()
    assert orders.pop(3, 4, 6) == {}
    assert orders.is_blocked()
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 60_000
    assert orders.ack(4) == 3
    assert orders.ack(3) == 6
    assert orders.is_blocked()
    assert orders.ack(6) == 7
    assert not orders.is_blocked()
    assert orders.info.free_ms("T", "G", 0) is None
    assert orders.ack(6) == 7


def test_a_queue_is_free_when_its_messages_are_visible_again() -> None:
    orders = Orders()
    orders.pop(0, 1)
    orders.clock.seconds += 59.999
    assert orders.is_blocked()
    orders.clock.seconds += 0.001
    assert not orders.is_blocked()
    assert orders.info.free_ms("T", "G", 0) is None


def test_who_repeats_an_attempt_gets_the_same_again() -> None:
    orders = Orders()
    orders.pop(0, 1, attempt="x")
    assert not orders.is_blocked("x")
    assert orders.is_blocked("y")
    assert orders.is_blocked()
    orders.pop(0, 1, attempt="")
    assert orders.is_blocked("")


def test_messages_that_are_popped_again_are_counted() -> None:
    orders = Orders()
    assert orders.pop(0, 1, attempt="x") == {}
    assert orders.pop(0, 1, 2, attempt="y") == {0: 1, 1: 1}
    assert orders.pop(0, 1, 2, attempt="y") == {0: 1, 1: 1}
    assert orders.pop(1, 2, 3, attempt="y") == {1: 1}
    assert orders.pop(1, attempt="y") == {1: 1}
    assert orders.pop(1, 2, 3, attempt="y") == {1: 1}
    assert orders.pop(1, 2, 3) == {1: 2, 2: 1, 3: 1}
    assert orders.pop(1, attempt="z") == {1: 3}
    assert orders.pop(1, 2, attempt="z") == {1: 3}
    assert orders.pop(1, 2, attempt="v") == {1: 4, 2: 1}
    assert orders.pop(1, attempt="v") == {1: 4}
    assert orders.pop(2, 3, attempt="v") == {2: 1}
    assert orders.pop(4) == {}


def test_what_is_popped_again_is_open_again() -> None:
    orders = Orders()
    orders.pop(0, 1, attempt="x")
    assert orders.ack(1) == 0
    orders.pop(0, 1, attempt="x")
    assert orders.ack(0) == 1
    assert orders.is_blocked()


def test_an_earlier_batch_can_not_be_acknowledged() -> None:
    orders = Orders()
    orders.pop(0, 1)
    orders.clock.seconds += 60
    orders.pop(0, 1)
    assert orders.ack(0, pop_ms=NOW_MS) == IGNORED
    assert orders.ack(2) == UNKNOWN
    assert orders.ack(0) == 1


def test_without_a_batch_only_the_next_message_is_acknowledged() -> None:
    orders = Orders()
    assert orders.ack(5, committed=3) == IGNORED
    assert orders.ack(5, committed=6) == IGNORED
    assert orders.ack(5, committed=5) == 6
    assert orders.ack(5, committed=5, end=5) == IGNORED


def test_a_message_may_become_visible_at_another_time() -> None:
    orders = Orders()
    orders.pop(0, 1, invisible_ms=10_000)
    orders.change(1, 30_000)
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 30_000
    orders.change(0, 0)
    orders.change(1, 5_000)
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 5_000
    orders.change(1, 30_000, pop_ms=7)
    orders.change(2, 30_000)
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 5_000
    orders.ack(1)
    assert not orders.is_blocked()
    orders.info.change_visible("U", "G", 0, 0, pop_ms=NOW_MS, visible_ms=0)
    assert len(orders.info) == 1


def test_a_client_can_not_fill_the_memory() -> None:
    orders = Orders()
    orders.pop(*range(32))
    for offset in range(1000):
        orders.change(offset, 30_000)
    batch = orders.info.batch("T", "G", 0)
    assert batch is not None
    assert batch.visible_ms is not None
    assert len(batch.visible_ms) == 32


def test_a_suspended_batch_is_not_counted_once_more() -> None:
    orders = Orders()
    orders.pop(0, 1)
    orders.pop(0, 1)
    orders.change(0, 90_000)
    for _ in range(2):
        orders.suspend(5_000)
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 5_000
    assert orders.pop(0, 1, 2) == {0: 1, 1: 1}
    assert orders.pop(0, 1, 2) == {0: 2, 1: 2, 2: 1}
    orders.info.suspend("T", "G", 0, pop_ms=7, visible_ms=0)
    orders.info.suspend("U", "G", 0, pop_ms=7, visible_ms=0)
    assert orders.info.free_ms("T", "G", 0) == NOW_MS + 60_000


def test_what_is_blocked_is_listed() -> None:
    orders = Orders()
    orders.pop(0)
    orders.info.take("T", "H", 1, [5], pop_ms=NOW_MS, invisible_ms=7)
    orders.info.take("U", "H", 1, [5], pop_ms=NOW_MS, invisible_ms=0)
    assert list(orders.info.blocked()) == [("T", "G", 0, NOW_MS + 60_000), ("T", "H", 1, NOW_MS + 7)]


def test_the_last_message_may_have_several_offsets(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.info.take("T", "G", 0, [0, 3], pop_ms=NOW_MS, invisible_ms=1000, end=7)
    assert orders.ack(0) == 3
    orders = orders.again()
    assert orders.ack(3) == 7


# --- what goes ---


def many() -> ConsumerOrderInfo:
    """Batches of two queues of two topics and two groups."""
    info = ConsumerOrderInfo(HandClock())
    for topic in ("T", "TT"):
        for group in ("G", "GG"):
            for queue_id in (0, 1):
                info.take(topic, group, queue_id, [0], pop_ms=NOW_MS, invisible_ms=1000)
    info.file.behind = False
    return info


def keys(info: ConsumerOrderInfo) -> set[str]:
    return {f"{topic}@{group}{queue_id}" for topic, group, queue_id, _ in info.blocked()}


ALL = {"T@G0", "T@G1", "T@GG0", "T@GG1", "TT@G0", "TT@G1", "TT@GG0", "TT@GG1"}


def test_a_deleted_topic_takes_its_batches_with_it() -> None:
    info = many()
    info.topic_gone(QueuesDeleted("T"))
    assert keys(info) == {"TT@G0", "TT@G1", "TT@GG0", "TT@GG1"}
    info.topic_gone(QueuesDeleted("TT", 1))
    assert keys(info) == {"TT@G0", "TT@GG0"}
    assert info.file.behind


def test_a_deleted_group_takes_its_batches_with_it() -> None:
    info = many()
    info.group_gone(GroupDeleted("G"))
    assert keys(info) == {"T@GG0", "T@GG1", "TT@GG0", "TT@GG1"}


def test_a_queue_that_is_read_elsewhere_is_free() -> None:
    info = many()
    info.forget("T", "G", 1)
    info.forget("TT", "G")
    assert keys(info) == ALL - {"T@G1", "TT@G0", "TT@G1"}
    info.file.behind = False
    info.forget("X", "G")
    info.forget("X", "G", 0)
    assert not info.file.behind


def test_cleaning() -> None:
    info = many()
    queues = {"T": 1, "TT": 2}
    assert not info.clean_step(lambda group: group == "G", queues.get)
    assert keys(info) == {"T@G0", "TT@G0", "TT@G1"}
    assert info.file.behind
    info.file.behind = False
    assert not info.clean_step(lambda group: group == "G", queues.get)
    assert not info.file.behind
    assert not info.clean_step(lambda group: True, lambda topic: None)
    assert len(info) == 0


def test_a_batch_is_forgotten_a_day_after_it_was_of_use() -> None:
    orders = Orders()
    orders.pop(0)
    orders.info.take("U", "G", 0, [0], pop_ms=NOW_MS, invisible_ms=DAY_SECONDS * 2000)
    for days, left in ((0.99, 2), (0.02, 1), (1.9, 1), (0.1, 0)):
        orders.clock.seconds += days * DAY_SECONDS
        orders.info.clean_step(lambda group: True, lambda topic: 1)
        assert len(orders.info) == left


def test_cleaning_is_done_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orderinfo, "CLEAN_KEYS", 3)
    info = many()
    assert info.clean_step(lambda group: False, lambda topic: 1)
    assert len(keys(info)) == 2
    info.take("N", "G", 0, [0], pop_ms=NOW_MS, invisible_ms=1000)
    assert not info.clean_step(lambda group: False, lambda topic: 1)
    assert keys(info) == {"N@G0"}
    assert not info.clean_step(lambda group: False, lambda topic: 1)
    assert len(info) == 0


# --- the file ---


def loaded(root: Path) -> ConsumerOrderInfo:
    info = ConsumerOrderInfo(HandClock(), root)
    info.load()
    return info


def test_the_original_broker_s_file_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "config" / FILE
    path.parent.mkdir()
    shutil.copy(DATA / FILE, path)
    info = loaded(tmp_path)
    batch = info.batch("U", "G", 1)
    assert batch is not None
    assert (batch.attempt_id, batch.queue_offsets) == ("u2", [1, 2, 3, 4])
    assert (batch.pop_ms, batch.invisible_ms, batch.noted_ms) == (1_795_423_921_393, 300_000, 1_795_423_921_393)
    assert batch.counts == {0: 2, 1: 2, 2: 1}
    assert batch.next_offset == 1
    assert batch.open_bits == 0b0111
    changed = info.batch("T", "G", 0)
    assert changed is not None
    assert changed.free_ms() == 1_795_424_317_770
    info.file.behind = True
    info.file.save()
    assert path.read_bytes() == (DATA / FILE).read_bytes()


def write(root: Path, content: object) -> None:
    path = root / "config" / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_what_an_old_release_wrote_blocks_for_the_time_of_who_asks(tmp_path: Path) -> None:
    write(tmp_path, {"table": {"T@G": {"0": {"o": [3, 1], "c": 2, "popTime": NOW_MS}}}})
    info = loaded(tmp_path)
    assert info.free_ms("T", "G", 0) is None
    assert not info.is_blocked("T", "G", 0)
    assert info.is_blocked("T", "G", 0, None, 1)
    assert info.acknowledge("T", "G", 0, 4, pop_ms=NOW_MS, committed=0, end=END) == 3


def test_what_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    batches: dict[str, object] = {
        "0": None,
        "1": {"o": []},
        "2": {"o": [0] * 64},
        "3": {"o": [0, 1], "cm": -1, "i": 1000, "popTime": NOW_MS},
    }
    write(tmp_path, {"table": {"T@G": batches, "U@G": None}, "later": [1]})
    info = loaded(tmp_path)
    assert [info.batch("T", "G", queue_id) is not None for queue_id in range(4)] == [*[False] * 3, True]
    assert not info.is_blocked("T", "G", 3)
    assert len(info) == 1
    info.file.behind = True
    info.file.save()
    assert '"later":[' in (tmp_path / "config" / FILE).read_text()


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    write(tmp_path, '{"table":7}')
    with pytest.raises(ConfigError, match="consumerOrderInfo"):
        loaded(tmp_path)


def test_a_batch_of_messages_that_are_lost_is_forgotten(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.pop(3, 4)
    orders.info.file.save()
    for end, there in ((5, True), (4, False)):
        info = ConsumerOrderInfo(orders.clock, tmp_path)
        info.load(lambda topic, queue_id, end=end: end)  # type: ignore[misc]
        assert (info.batch("T", "G", 0) is not None) == there


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.ack(5)
    orders.info.file.save()
    assert not list(tmp_path.iterdir())


# --- against a model ---


class Message:
    """One message as a consumer would think of it."""

    def __init__(self, offset: int, visible_ms: int) -> None:
        self.offset = offset
        self.visible_ms = visible_ms
        self.acked = False


class Model(RuleBasedStateMachine):
    """A queue with gaps, popped by consumers that do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.orders = Orders(Path(self.directory.name))
        self.messages: list[Message] = []
        self.counts: dict[int, int] = {}
        self.attempt: str | None = None
        self.pop_ms = 0
        self.suspended = False
        self.committed = 0

    def teardown(self) -> None:
        self.directory.cleanup()

    @property
    def free_ms(self) -> int:
        return max((m.visible_ms for m in self.messages if not m.acked), default=0)

    @rule(
        gaps=st.lists(st.integers(1, 3), min_size=1, max_size=5),
        attempt=st.sampled_from([None, "x", "y"]),
        invisible_ms=st.integers(1, 5000),
    )
    def pop(self, gaps: list[int], attempt: str | None, invisible_ms: int) -> None:
        repeats = attempt is not None and attempt == self.attempt
        blocked = self.free_ms > self.orders.now_ms and not repeats
        assert self.orders.is_blocked(attempt) == blocked
        if blocked:
            return
        offsets = [self.committed]
        for gap in gaps[1:]:
            offsets.append(offsets[-1] + gap)
        before = {m.offset for m in self.messages}
        more = 0 if self.suspended else 1
        counts = self.orders.pop(*offsets, invisible_ms=invisible_ms, attempt=attempt)
        self.pop_ms, self.attempt, self.suspended = self.orders.now_ms, attempt, False
        if repeats:
            self.counts = {o: n for o, n in self.counts.items() if o >= offsets[0]}
        else:
            self.counts = {o: self.counts.get(o, 0) + more for o in offsets if o in before}
        self.messages = [Message(offset, self.pop_ms + invisible_ms) for offset in offsets]
        assert counts == {o: n for o, n in self.counts.items() if n and o in offsets}

    @rule(distance=st.integers(0, 12), earlier=st.booleans())
    def ack(self, distance: int, earlier: bool) -> None:
        offset = self.committed + distance
        found = [m for m in self.messages if m.offset == offset]
        answer = self.orders.ack(offset, pop_ms=self.pop_ms - earlier, committed=self.committed, end=offset + 1)
        if self.messages and earlier:
            assert answer == IGNORED
        elif self.messages and not found:
            assert answer == UNKNOWN
        elif self.messages:
            found[0].acked = True
            left = [m.offset for m in self.messages if not m.acked]
            assert answer == min(left, default=self.messages[-1].offset + 1)
        else:
            assert answer == (IGNORED if distance else offset + 1)
        if answer >= 0:
            assert answer >= self.committed
            self.committed = answer

    @precondition(lambda self: self.messages)
    @rule(at=st.integers(0, 6), in_ms=st.integers(0, 9000))
    def change(self, at: int, in_ms: int) -> None:
        offset = self.messages[0].offset + at
        self.orders.change(offset, in_ms)
        for m in self.messages:
            if m.offset == offset:
                m.visible_ms = self.orders.now_ms + in_ms

    @precondition(lambda self: self.messages)
    @rule(in_ms=st.integers(1, 9000))
    def suspend(self, in_ms: int) -> None:
        self.orders.suspend(in_ms)
        self.suspended = True
        for m in self.messages:
            m.visible_ms = self.orders.now_ms + in_ms

    @rule(ms=st.integers(1, 4000))
    def wait(self, ms: int) -> None:
        self.orders.clock.seconds += ms / 1000

    @rule()
    def restart(self) -> None:
        self.orders = self.orders.again()

    @invariant()
    def the_same_is_blocked(self) -> None:
        assert self.orders.is_blocked() == (self.free_ms > self.orders.now_ms)
        assert self.orders.info.free_ms("T", "G", 0) == (self.free_ms if self.free_ms > self.orders.now_ms else None)


Model.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
test_it_does_what_a_simple_model_does = Model.TestCase
