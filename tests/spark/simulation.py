"""A store of a hundred terabytes that takes no room, and the plans that are made of it: `make simulate`.

Its files are names and sizes. The bytes of a queue are made when it is read; the log has none. Each queue has
`MESSAGES_OF_QUEUE` messages within a gigabyte of the log, and the queues begin one after another along it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final, cast
from unittest import mock

import numpy as np
from pyspark.sql.streaming.datasource import ReadAllAvailable

from firearrow.spark.jobs.archive.archiving import ArchiveSettings, ArchiveTask, follow
from firearrow.spark.jobs.archive.delta import Archive, QueueRows, WrittenFiles
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import batch_spans
from firearrow.spark.source.files import FileOrigin, QueuePartition
from firearrow.spark.source.stream import StreamReader
from firearrow.spark.tables import MESSAGES
from firearrow.store.reading.entries import QUEUE_ENTRY
from firearrow.store.reading.storage import Entry

GiB: Final = 1 << 30
MESSAGES_OF_QUEUE: Final = 20
QUEUES_OF_TOPIC: Final = 16
FILES: Final = 100_000
QUEUES: Final = 1_000_000
STEP_QUEUES: Final = 100_000  # of a large step of an archive: a message of each
CPU_SECONDS_MAX: Final = 60
MEMORY_BYTES_MAX: Final = 2 * GiB
OPTIONS: Final = {"path": "/simulated", "brokerName": "b"}


class SimulatedStorage:
    """Implements `Storage`; counts what is asked of it, and if it is watched, the files that are open at a time."""

    root = "/simulated"
    window_bytes_max = 1 << 31

    def __init__(self, files: int, queues: int, *, is_watched: bool) -> None:
        self.files, self.queues = files, queues
        self._is_watched = is_watched
        self.counts: Counter[str] = Counter()
        self.held = self.held_max = 0
        self._entries = np.zeros(MESSAGES_OF_QUEUE, QUEUE_ENTRY)
        self._entries["size"] = files * GiB // (queues * MESSAGES_OF_QUEUE)
        self._steps = np.arange(MESSAGES_OF_QUEUE) * (GiB // MESSAGES_OF_QUEUE)

    def entries(self, directory: str) -> list[Entry]:
        """The content of a directory."""
        self.counts["listed"] += 1
        match directory.split("/"):
            case [""]:
                return [Entry("checkpoint", 4096, True), Entry("commitlog", 0, False), Entry("consumequeue", 0, False)]
            case ["commitlog"]:
                return [Entry(f"{number * GiB:020}", GiB, True) for number in range(self.files)]
            case ["consumequeue"]:
                return [Entry(f"topic-{number:06}", 0, False) for number in range(self.queues // QUEUES_OF_TOPIC)]
            case ["consumequeue", _]:
                return [Entry(str(number), 0, False) for number in range(QUEUES_OF_TOPIC)]
            case ["consumequeue", _, _]:
                return [Entry("0" * 20, MESSAGES_OF_QUEUE * QUEUE_ENTRY.itemsize, True)]
        return []

    def window(self, path: str, start: int, end: int) -> memoryview:
        """The bytes of a file."""
        self.counts["read"] += 1
        match path.split("/"):
            case ["checkpoint"]:
                return memoryview(struct.pack(">6q", 1, 1, 1, 0, 0, self.files * GiB - 1))[start:end]
            case ["commitlog", _]:
                return memoryview(b"\xda\xa3\x20\xa7" * 2)[: end - start]
            case ["consumequeue", topic, queue_id, _]:
                return self._queue(int(topic[6:]) * QUEUES_OF_TOPIC + int(queue_id))[start:end]
        raise FileNotFoundError(path)

    def _queue(self, number: int) -> memoryview:
        entries = self._entries.copy()
        entries["physical_offset"] = self._steps + number * (self.files - 1) * GiB // self.queues
        if self._is_watched:
            self.held += 1
            self.held_max = max(self.held_max, self.held)
            weakref.finalize(entries, self._released)
        return entries.view(np.uint8).data

    def _released(self) -> None:
        self.held -= 1

    def read(self, path: str) -> memoryview:
        """A whole file."""
        return self.window(path, 0, 1 << 62)

    def place(self, path: str) -> Path:
        """A path of this machine, where nothing is."""
        return Path("/nonexistent") / path


@contextmanager
def simulated(files: int, queues: int, *, is_watched: bool = True) -> Iterator[SimulatedStorage]:
    """A store of this size, as the one that every path names."""
    storage = SimulatedStorage(files, queues, is_watched=is_watched)
    with mock.patch("firearrow.spark.planning.stores.open_storage", return_value=storage):
        yield storage


def batch(origin: FileOrigin) -> list[QueuePartition]:
    """The tasks of a batch that reads everything."""
    return cast(list[QueuePartition], origin.partitions(batch_spans(origin, origin.options)))


class Workers:
    """Workers that say of each task that it has read and written its messages."""

    parallelism = 1

    def __init__(self, on_planned: Callable[[], object]) -> None:
        self._on_planned = on_planned
        self.queues: set[tuple[str, int]] = set()

    def run(self, _: object, pieces: Sequence[Any]) -> list[Any]:
        """What the tasks would have written."""
        self._on_planned()
        return [WrittenFiles(queues=tuple(self._rows(piece))) for piece in pieces]

    def _rows(self, task: ArchiveTask) -> Iterator[QueueRows]:
        partition = cast(QueuePartition, task.partition)
        for topic, queue_id, start, end in partition.parts:
            self.queues.add((topic, queue_id))
            yield QueueRows(topic, partition.broker, queue_id, start, end - 1, end - start, 1, 1)


def archived_step(
    origin: FileOrigin, archive: Archive, settings: ArchiveSettings, on_planned: Callable[[], object] = int
) -> int:
    """Make the next step of an archive; return how many queues it has messages of."""
    stop, workers = Event(), Workers(on_planned)
    follow(workers, lambda: origin, archive, settings, stop=stop, upkeep=stop.set)
    return len(workers.queues)


class Stage:
    """Prints what a part of the plan costs, and checks it."""

    def __init__(self, storage: SimulatedStorage) -> None:
        self._storage = storage
        self.is_kept = True

    def say(self, line: str) -> None:
        """Print a line."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    @contextmanager
    def of(self, name: str, *, is_limited: bool = True) -> Iterator[None]:
        """Measure a part. Streams and commits are measured only: they do not meet the limits yet (docs/scale.md)."""
        start, before = time.process_time(), self._storage.counts.copy()
        yield
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        asked = ", ".join(f"{count:,} {what}" for what, count in (self._storage.counts - before).items())
        self.say(f"{name}: {seconds:.1f} s of CPU, {peak / GiB:.2f} GiB at most; {asked or 'nothing asked'}")
        if is_limited:
            self.is_kept &= seconds <= CPU_SECONDS_MAX and peak <= MEMORY_BYTES_MAX


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan a batch, a stream and an archive's step of a store; 1 if one takes too long or too much memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.simulation", description=__doc__)
    parser.add_argument("--files", type=int, default=FILES, help="of the log, a GiB each")
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--part", choices=PARTS, help="a process of its own measures each part's memory")
    given = parser.parse_args(arguments)
    if given.part is None:
        shape = ["--files", str(given.files), "--queues", str(given.queues)]
        command = [sys.executable, "-m", "tests.spark.simulation", *shape, "--part"]
        return max(subprocess.run([*command, part], check=False).returncode for part in PARTS)
    with simulated(given.files, given.queues, is_watched=False) as storage:
        stage = Stage(storage)
        PARTS[given.part](stage, FileOrigin(parse(OPTIONS)))
        return 0 if stage.is_kept else 1


def _batch(stage: Stage, origin: FileOrigin) -> None:
    with stage.of("batch"):
        tasks = batch(origin)
        pickled = sum(len(pickle.dumps(task)) for task in tasks)
    stage.say(
        f"  {len(tasks):,} tasks, {sum(len(task.parts) for task in tasks):,} parts, {pickled / 1e6:.0f} MB pickled"
    )


def _stream(stage: Stage, origin: FileOrigin) -> None:
    reader = StreamReader(parse(OPTIONS | {"startingOffsets": "earliest"}), MESSAGES, origin)
    with stage.of("begin of a stream", is_limited=False):
        start = reader.initialOffset()
        text = json.dumps(start)
    with stage.of("step of a stream, its end", is_limited=False):
        end = reader.latestOffset(json.loads(text), ReadAllAvailable())
    with stage.of("step of a stream, its tasks", is_limited=False):
        tasks = reader.partitions(json.loads(text), end)
    stage.say(f"  {len(tasks):,} tasks, {len(text) / 1e6:.0f} MB of JSON in a checkpoint")


def _archive(stage: Stage, origin: FileOrigin) -> None:
    with tempfile.TemporaryDirectory() as home:
        for name, settings in (
            ("first step of an archive", ArchiveSettings()),
            ("next step", ArchiveSettings()),
            ("large step", ArchiveSettings(step_rows_max=STEP_QUEUES, step_bytes_max=1 << 60)),
        ):
            with stage.of(f"{name}, with its commit", is_limited=False), ExitStack() as plan:
                is_first = "first" in name  # the memory of its commit is still counted for the others
                plan.enter_context(stage.of(f"{name}, its plan", is_limited=is_first))
                queues = archived_step(origin, Archive(home), settings, plan.close)
            newest = max(Path(home).rglob("*.json"))
            stage.say(f"  {queues:,} queues, {newest.stat().st_size / 1e6:.1f} MB of JSON in the table's log")


PARTS: Final = {"batch": _batch, "stream": _stream, "archive": _archive}


if __name__ == "__main__":
    sys.exit(main())
