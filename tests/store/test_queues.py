"""Queues of either kind behave alike: what is put is read, over cuts, deletions and restarts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.store import ConsumeQueue
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ENTRY, ConsumeQueues, DispatchedEntries, QueueRange, Runs
from firearrow.store.rocks import RocksConsumeQueues
from tests.store.stores import KINDS

RECORD_BYTES = 100
Message = tuple[int, int, int]  # physical offset, size, tag code
Model = dict[tuple[str, int], list[Message]]

kinds = pytest.mark.parametrize("kind", KINDS)


def queues_in(directory: Path, kind: str) -> ConsumeQueues:
    if kind == "default":
        return FileConsumeQueues(directory / "consumequeue", 200)
    return RocksConsumeQueues(directory, directory / "elsewhere", "lz4")


@contextmanager
def opened(directory: Path, kind: str) -> Iterator[ConsumeQueues]:
    queues = queues_in(directory, kind)
    queues.load()
    try:
        yield queues
    finally:
        queues.flush(0)
        queues.close()


def entries_of(runs: list[tuple[str, int, int, list[Message]]]) -> DispatchedEntries:
    """Columns of (topic, queue id, first queue offset, messages)."""
    messages = [message for run in runs for message in run[3]]
    numbered: list[int] = []
    ids: list[int] = []
    bounds = [0]
    for _, queue_id, first, some in runs:
        numbered += range(first, first + len(some))
        ids += [queue_id] * len(some)
        bounds.append(len(numbered))
    physical, size, tag = (np.array(part, np.int64) for part in zip(*messages, strict=True))
    queue_ids, queue_offset, ends = (np.array(column) for column in (ids, numbered, bounds))
    topics = np.arange(len(runs))
    run_ids = np.array([run[1] for run in runs])
    places = Runs([run[0] for run in runs], topics, run_ids, ends[:-1], ends[1:])
    return DispatchedEntries(physical, size, tag, physical + 1, queue_ids, queue_offset, places)


def put(queues: ConsumeQueues, model: Model, log: int, counts: dict[tuple[str, int], int]) -> int:
    """Have one round put that many messages to each queue; return the log's new end."""
    runs = []
    for (topic, queue_id), count in counts.items():
        known = model.setdefault((topic, queue_id), [])
        some = [(log + n * RECORD_BYTES, RECORD_BYTES, -n) for n in range(count)]
        log += count * RECORD_BYTES
        runs.append((topic, queue_id, len(known), some))
        known += some
    queues.put(entries_of(runs))
    return log


def contents(queue: ConsumeQueue) -> list[Message]:
    found: list[Message] = []
    at = queue.min_offset
    while at < queue.max_offset:
        some = list(ENTRY.iter_unpack(queue.read(at, 7)))
        assert some
        found += some
        at += len(some)
    return found


def check(queues: ConsumeQueues, model: Model) -> None:
    for (topic, queue_id), messages in model.items():
        queue = queues.find(topic, queue_id)
        if queue is None:
            assert not messages
            continue
        assert queue.max_offset == queue.next_offset == len(messages)
        assert contents(queue) == messages
        for number in (0, len(messages) // 2, len(messages) - 1):
            if 0 <= number < len(messages):
                assert queue.entry(number) == messages[number]
    ranges = {item[:2]: item[2:] for item in queues.ranges() if item.max_offset}
    assert ranges == {key: (0, len(messages)) for key, messages in model.items() if messages}


some_queues = st.dictionaries(
    st.tuples(st.sampled_from(["T", "TT", "主题"]), st.integers(0, 2)), st.integers(1, 12), min_size=1, max_size=5
)
steps = st.lists(
    st.one_of(
        some_queues,
        st.just("flush"),
        st.just("reopen"),
        st.tuples(st.just("cut"), st.integers(0, 60)),
        st.tuples(st.just("delete"), st.sampled_from(["T", "TT", "主题"])),
    ),
    max_size=10,
)


@kinds
@given(steps=steps)
@settings(max_examples=40)
def test_a_model(tmp_path_factory: pytest.TempPathFactory, kind: str, steps: list[object]) -> None:
    directory = tmp_path_factory.mktemp("queues")
    model: Model = {}
    log = 0
    queues = queues_in(directory, kind)
    queues.load()
    for step in steps:
        match step:
            case dict():
                log = put(queues, model, log, step)
            case "flush":
                queues.flush(0)
            case "reopen":
                queues.flush(0)
                queues.close()
                queues = queues_in(directory, kind)
                queues.load()
            case ("cut", int() as record):
                log = min(log, record * RECORD_BYTES)
                queues.cut(log)
                for messages in model.values():
                    messages[:] = [message for message in messages if message[0] < log]
            case ("delete", topic):
                queues.delete_topic(str(topic))
                for key in [key for key in model if key[0] == topic]:
                    model[key] = []
        check(queues, model)
    queues.close()


@kinds
def test_what_is_known_already_is_skipped(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as queues:
        model: Model = {}
        put(queues, model, 0, {("T", 0): 8})
        again = [(n * 100, 100, 77) for n in range(10)]
        queues.put(entries_of([("T", 0, 0, again)]))
        model["T", 0] += again[8:]
        check(queues, model)


@kinds
def test_arrivals_are_told_with_the_queue_and_its_first_new_offset(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 2})
        runs = [("T", 0, 2, [(300, 100, 0)]), ("T", 1, 0, [(400, 100, 0), (500, 100, 0)])]
        assert queues.put(entries_of(runs)) == [("T", 0, 2, 3), ("T", 1, 0, 2)]


@kinds
def test_a_hole_leaves_its_queue_out_and_no_other(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 3, ("U", 0): 1})
        hole = ("T", 0, 5, [(900, 100, 0)])
        queues.put(entries_of([hole, ("U", 0, 1, [(1000, 100, 0)])]))
        assert "queue T-0 ends at 3, its next message has 5" in caplog.text
        assert queues.open("T", 0).max_offset == 3
        assert queues.open("U", 0).max_offset == 2


@kinds
def test_what_the_log_has_lost_within_a_queue_leads_to_what_follows(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 3})
        some = [(5000, 100, 7), (5100, 100, 8)]
        queues.put(entries_of([("T", 0, 5, some)]), complete=True)
        before = [(n * 100, 100, -n) for n in range(3)]
        assert contents(queues.open("T", 0)) == [*before, some[0], some[0], *some]


@kinds
@pytest.mark.parametrize("first", [1, 2, 4, 5, 60])
def test_a_queue_of_which_the_log_has_nothing_begins_with_the_next_message(
    tmp_path: Path, kind: str, first: int
) -> None:
    """Its smallest offset is that message's: it is not repeated for those before it."""
    some = [(5000, 100, 7), (5100, 100, 8)]
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 3})
    with opened(tmp_path, kind) as queues:
        queues.correct_min(5000)
        queues.put(entries_of([("T", 0, first, some)]), complete=True)
        assert queues.open("T", 0).next_offset == first + 2
    with opened(tmp_path, kind) as queues:
        queues.correct_min(5000)
        assert list(queues.ranges()) == [QueueRange("T", 0, first, first + 2)]
        assert contents(queues.open("T", 0)) == some


@kinds
def test_a_queue_that_was_left_out_can_be_rebuilt(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "queues", kind) as queues:
        put(queues, {}, 0, {("T", 0): 3, ("U", 0): 2})
        hole = entries_of([("T", 0, 5, [(900, 100, 0)])])
        queues.put(hole)
        assert queues.set_aside(tmp_path / "aside") == {("T", 0)}
        assert queues.set_aside(tmp_path / "aside") == set()
        assert queues.open("T", 0).max_offset == 0
        queues.put(hole, complete=True)
        assert contents(queues.open("T", 0)) == [(900, 100, 0)]
        assert queues.open("U", 0).max_offset == 2


@kinds
@pytest.mark.parametrize("first", [1, 3, 10, 4711])
def test_a_queue_may_begin_behind_what_the_log_has_lost(tmp_path: Path, kind: str, first: int) -> None:
    some = [(5000 + n * 100, 100, n) for n in range(4)]
    with opened(tmp_path, kind) as queues:
        queues.correct_min(5000)
        assert queues.open("T", 0).min_offset == 0
        queues.put(entries_of([("T", 0, first, some)]), complete=True)
    with opened(tmp_path, kind) as queues:
        queues.correct_min(5000)
        assert list(queues.ranges()) == [QueueRange("T", 0, first, first + 4)]
        assert contents(queues.open("T", 0)) == some


@kinds
def test_a_topic_that_was_made_again_counts(tmp_path: Path, kind: str) -> None:
    """The log has messages of an earlier topic of the name before those of the later."""
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 8})
        later = [(2000, 100, 1), (2100, 100, 2)]
        queues.put(entries_of([("T", 0, 0, later)]))
        assert contents(queues.open("T", 0)) == later
    with opened(tmp_path, kind) as queues:
        assert contents(queues.open("T", 0)) == later


@kinds
@pytest.mark.parametrize("lost", [0, 1, 5, 12])
def test_the_first_message_is_the_first_that_the_log_holds(tmp_path: Path, kind: str, lost: int) -> None:
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 12})
        for physical in (0, lost * 100, lost * 100 - 1):
            expected = max(0, -(-physical // 100))
            assert queues.open("T", 0).first_at_or_after(physical) == expected
        queues.correct_min(lost * 100)
        assert queues.open("T", 0).min_offset == lost


@kinds
def test_an_end_of_all(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as queues:
        put(queues, {}, 0, {("T", 0): 3, ("U", 7): 1})
        queues.open("V", 0)
        assert queues.clear() == 2
        assert not [item for item in queues.ranges() if item.max_offset]
    with opened(tmp_path, kind) as queues:
        assert list(queues.ranges()) == []
