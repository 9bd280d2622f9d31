"""Whatever is cut is read once, in pieces of about equal size."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.queues import Span
from firearrow.spark.planning import splits
from firearrow.spark.planning.splits import Looks, cut
from firearrow.store.reading.entries import Queue, QueueKey
from firearrow.store.reading.queues import FileQueues
from firearrow.store.reading.storage import LocalStorage
from tests.spark import logs


@given(sent=logs.stores, split=st.integers(1, 3000), least=st.integers(1, 9), most=st.sampled_from([1, 7, 1000]))
def test_tasks_cover_every_entry_once(sent: list[logs.Sent], split: int, least: int, most: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        counts = logs.write(Path(home) / "s", sent)
        queues = FileQueues(LocalStorage(f"{home}/s"))
        opened = {key: queues.open(key) for key in queues.keys_of(None)}
        assert {key: queue.span[1] for key, queue in opened.items()} == counts
        spans = [(key, Span(0, count)) for key, count in counts.items()]
        tasks = cut(Looks(opened.__getitem__), spans, split, least)
        assert all(part[2] < part[3] for task in tasks for part in task.parts)
        covered = sorted(
            (topic, queue_id, number)
            for task in tasks
            for topic, queue_id, start, end in task.parts
            for number in range(start, end)
        )
        assert covered == sorted((*key, n) for key, count in counts.items() for n in range(count))
        reach = [
            entries.physical_offset
            for task in tasks
            for entries in [opened[part[:2]].entries(part[2], part[3]) for part in task.parts]
        ]
        assert len(reach) >= len(tasks)


@given(sent=logs.stores, split=st.integers(1, 3000), least=st.integers(1, 9), first=st.integers(0, 3))
def test_short_queues_are_opened_once_and_cut_like_others(
    sent: list[logs.Sent], split: int, least: int, first: int
) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        counts = logs.write(Path(home) / "s", sent)
        queues = FileQueues(LocalStorage(f"{home}/s"))
        spans = [(key, Span(min(first, count), count)) for key, count in counts.items()]
        opened: Counter[QueueKey] = Counter()

        def open_queue(key: QueueKey) -> Queue:
            opened[key] += 1
            return queues.open(key)

        tasks = cut(Looks(open_queue), spans, split, least)
        assert set(opened.values()) <= {1}
        patch.setattr(splits, "KEPT_MAX", 0)
        others = cut(Looks(open_queue), spans, split, least)
        assert [sorted(task.parts) for task in others] == [sorted(task.parts) for task in tasks]


def test_tasks_are_even_where_only_one_queue_of_many_is_read(tmp_path: Path) -> None:
    sent = [logs.Sent(f"t{n % 10}", 0, b"x" * (n % 97)) for n in range(4000)]
    logs.write(tmp_path / "s", sent, 1 << 20)
    queues = FileQueues(LocalStorage(str(tmp_path / "s")))
    queue = queues.open(("t3", 0))
    entries = queue.entries(0, 400)
    total = int(entries.size.sum())
    tasks = cut(Looks(lambda _: queue), [(("t3", 0), Span(0, 400))], total // 8 + 1, 1)
    sizes = [int(queue.entries(*part[2:]).size.sum()) for task in tasks for part in task.parts]
    assert len(sizes) == 8
    assert max(sizes) < 1.1 * total / 8


@pytest.mark.parametrize(("splits", "tasks"), [(0.5, 1), (1.1, 1), (1.2, 2), (2.1, 2), (2.2, 3)])
def test_a_little_more_than_a_split_makes_no_other_task(splits: float, tasks: int, tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent("T", 0, b"x" * 100)] * 1000, 1 << 20)
    queue = FileQueues(LocalStorage(str(tmp_path / "s"))).open(("T", 0))
    total = int(queue.entries(0, 1000).size.sum())
    found = cut(Looks(lambda _: queue), [(("T", 0), Span(0, 1000))], int(total / splits), 1)
    assert len(found) == tasks
