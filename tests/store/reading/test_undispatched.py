"""What dispatch gives in rounds is put together by queues."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store.queues import DispatchedEntries, Run, Runs
from firearrow.store.reading.undispatched import Collected

ROUNDS = st.lists(
    st.lists(
        st.tuples(st.sampled_from("AB"), st.sampled_from([0, 7, (1 << 32) - 1]), st.integers(1, 4)),
        min_size=1,
        max_size=4,
        unique_by=lambda part: part[:2],
    ),
    max_size=4,
)
Row = tuple[str, int, int, int]


def of_round(parts: list[tuple[str, int, int]], ends: dict[tuple[str, int], int]) -> DispatchedEntries:
    """So many entries of some queues, each of two messages where the queue is 7."""
    runs, offsets, at = [], [], 0
    for topic, queue_id, count in parts:
        first, step = ends.get((topic, queue_id), 5), 1 + (queue_id == 7)
        runs.append(Run(topic, queue_id, first, at, at + count))
        offsets += [first + step * number for number in range(count)]
        ends[topic, queue_id] = first + step * count
        at += count
    ids = np.array([run.queue_id for run in runs for _ in range(run.start, run.end)], np.int64)
    number = np.arange(at, dtype=np.int64)
    columns = 100 * number, number + 91, -number, number + 1, ids, np.array(offsets, np.int64)
    return DispatchedEntries(*columns, Runs.side_by_side(runs), 1 + (ids == 7).astype(np.int64))


def rows(entries: DispatchedEntries) -> list[Row]:
    return [
        (run.topic, run.queue_id, int(entries.queue_offset[row]), int(entries.size[row]))
        for run in entries.each_run()
        for row in range(run.start, run.end)
    ]


@given(ROUNDS)
def test_the_entries_of_all_rounds_are_one_run_for_each_queue(rounds: list[list[tuple[str, int, int]]]) -> None:
    collected, ends, put = Collected(), dict[tuple[str, int], int](), list[Row]()
    for parts in rounds:
        entries = of_round(parts, ends)
        collected.put(entries)
        put += rows(entries)
    found = collected.entries()
    assert sorted(rows(found)) == sorted(put)
    runs = list(found.each_run())
    assert {(run.topic, run.queue_id): run.queue_offset for run in runs} == dict.fromkeys(ends, 5)
    assert len(runs) == len(ends)
    assert all((found.queue_id[run.start : run.end] == run.queue_id).all() for run in runs)
    several = found.messages if found.messages is not None else np.ones(len(found.size))
    assert (several == 1 + (found.queue_id == 7)).all()
