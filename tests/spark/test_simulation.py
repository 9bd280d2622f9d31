"""A plan costs what its queues and its parts cost: counted on a small version of what `make simulate` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.spark.jobs.archive.archiving import ArchiveSettings
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.options import parse
from firearrow.spark.planning import splits
from firearrow.spark.source.files import FileOrigin, QueuePartition
from firearrow.spark.tables import MESSAGES
from firearrow.store.reading.filequeues import FileQueue
from tests.spark.simulation import (
    MESSAGES_OF_QUEUE,
    OPTIONS,
    QUEUES_OF_TOPIC,
    GiB,
    SimulatedStorage,
    archived_step,
    batch,
    simulated,
)

FILES, QUEUES = 100, 1600


def covered(tasks: list[QueuePartition]) -> list[tuple[str, int, int]]:
    parts = [part for task in tasks for part in task.parts]
    return sorted((topic, queue_id, number) for topic, queue_id, start, end in parts for number in range(start, end))


def size_of(task: QueuePartition) -> int:
    return sum(end - start for _, _, start, end in task.parts) * FILES * GiB // (QUEUES * MESSAGES_OF_QUEUE)


def test_a_plan_covers_everything_and_asks_little_of_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {"place": 0, "first_at_or_after": 0}
    for name in looks:
        look = getattr(FileQueue, name)

        def counted(queue: FileQueue, *given: int, name: str = name, look: object = look) -> int:
            looks[name] += 1
            found: int = look(queue, *given)  # type: ignore[operator]
            return found

        monkeypatch.setattr(FileQueue, name, counted)
    with simulated(FILES, QUEUES) as storage:
        tasks = batch(FileOrigin(parse(OPTIONS)))
    assert len(tasks) == FILES * GiB // (128 << 20)
    assert covered(tasks) == [
        (f"topic-{queue // QUEUES_OF_TOPIC:06}", queue_id, number)
        for queue in range(0, QUEUES, QUEUES_OF_TOPIC)
        for queue_id in range(QUEUES_OF_TOPIC)
        for number in range(MESSAGES_OF_QUEUE)
    ]
    parts = sum(len(task.parts) for task in tasks)
    assert all(count <= QUEUES + parts for count in looks.values())  # not queues times tasks
    topics = QUEUES // QUEUES_OF_TOPIC
    assert storage.counts["listed"] <= QUEUES + topics + 10
    assert storage.counts["read"] <= 3 * QUEUES + 10
    assert storage.held_max <= 2


def test_a_larger_store_has_larger_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "TASKS_MAX", 50)
    monkeypatch.setattr(splits, "SAMPLES_MAX", 20)  # fewer than tasks: it looks again
    with simulated(FILES, QUEUES):
        tasks = batch(FileOrigin(parse(OPTIONS)))
    assert 40 <= len(tasks) <= 50
    assert len(covered(tasks)) == QUEUES * MESSAGES_OF_QUEUE
    assert max(map(size_of, tasks)) < 3 * FILES * GiB / len(tasks)


def test_a_task_has_one_queue_open_at_a_time() -> None:
    options = parse(OPTIONS | {"splitBytes": "1000g"})
    with simulated(FILES, QUEUES) as storage:
        [task] = batch(FileOrigin(options))
        assert len(task.parts) == QUEUES
        with pytest.raises(CorruptStore):  # the log has no records
            list(FileOrigin(options).read(task, MESSAGES))
    assert storage.held_max <= 2


def looked(storage: SimulatedStorage, archive: Archive, settings: ArchiveSettings) -> int:
    """Make a step of an archive; return how many files it has read."""
    before = storage.counts["read"]
    archived_step(FileOrigin(parse(OPTIONS)), archive, settings)
    return storage.counts["read"] - before


def test_a_step_of_an_archive_looks_at_its_own_queues(tmp_path: Path) -> None:
    place = Archive(tmp_path)
    with simulated(FILES, QUEUES) as storage:
        small = looked(storage, place, ArchiveSettings(step_rows_max=10))
        large = looked(storage, place, ArchiveSettings(step_rows_max=QUEUES))
    assert QUEUES <= small <= QUEUES + 10 * 5 + 10
    assert large <= 6 * QUEUES
    assert place.load().version == 2
