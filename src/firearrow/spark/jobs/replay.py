"""Chosen messages of a store, a cluster or an archive once more to a topic, never twice.

::

    replay(workers, ArchiveMessages.of(archive), Selection(tags=("paid",), start_ms=...),
           {"nameServer": "127.0.0.1:9876", "topic": "orders-again"}, Path("jobs/1"), rate=500)

Messages keep body, tags, keys, id and properties, and say where they come from: ``REPLAY_TOPIC``,
``REPLAY_BROKER``, ``REPLAY_QUEUE``, ``REPLAY_OFFSET``, ``REPLAY_ID`` and, the same for all of one
job, ``REPLAY_JOB``. Those of one queue go to one queue of the target, in their order.

What SQL can say chooses as well: ``chosen`` takes any DataFrame over messages and fixes which these
are; the messages themselves don't pass through the JVM.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.errors import ConfigError
from firearrow.files import make_directory, sync_directory
from firearrow.spark.batching import writable
from firearrow.spark.jobs import plans
from firearrow.spark.jobs.sources import Messages, Spans
from firearrow.spark.jobs.targets import Brokers
from firearrow.spark.jobs.workers import Workers
from firearrow.spark.origin import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = ("topic", "broker", "queueId", "queueOffset")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: what is given must all hold. Times are those of storing, in ms, the end
    excluded; ``keys`` are words among a message's keys, or its id; ``chosen`` is a file that
    ``chosen`` has written."""

    start_ms: int | None = None
    end_ms: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    chosen: Path | None = None

    def asked(self) -> dict[str, Any]:
        """Give it in words that can be compared."""
        return {
            "startMs": self.start_ms,
            "endMs": self.end_ms,
            "tags": list(self.tags),
            "keys": list(self.keys),
            "chosen": None if self.chosen is None else str(self.chosen),
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what is not chosen."""
        stored_ms = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 1000
        wanted = np.ones(len(batch), np.bool_)
        if self.start_ms is not None:
            wanted &= stored_ms >= self.start_ms
        if self.end_ms is not None:
            wanted &= stored_ms < self.end_ms
        if self.tags:
            tags = pc.is_in(batch.column("tags"), pa.array(self.tags, pa.string()))
            wanted &= tags.to_numpy(zero_copy_only=False)
        if self.keys:
            wanted &= _have_keys(batch, frozenset(self.keys))
        if self.chosen is not None:
            wanted &= _are_chosen(batch, self.chosen)
        return batch.filter(pa.array(wanted))


def _have_keys(batch: pa.RecordBatch, keys: frozenset[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    pairs = zip(batch.column("keys").to_pylist(), batch.column("msgId").to_pylist(), strict=True)
    return np.array([id_ in keys or not keys.isdisjoint((k or "").split()) for k, id_ in pairs])


def _are_chosen(batch: pa.RecordBatch, path: Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether a file names the messages of a batch, which are of one queue."""
    if not len(batch):
        return np.zeros(0, np.bool_)
    queue = Queue(*(batch.column(name)[0].as_py() for name in _PLACE[:3]))
    offsets = batch.column("queueOffset").to_numpy()
    return np.isin(offsets, _chosen_offsets(path, queue))


@lru_cache(maxsize=8)
def _chosen_offsets(path: Path, queue: Queue) -> np.ndarray[Any, np.dtype[np.int64]]:
    filters = [(name, "=", value) for name, value in zip(_PLACE, queue, strict=False)]
    found = pq.read_table(path, columns=["queueOffset"], filters=filters)
    offsets: np.ndarray[Any, np.dtype[np.int64]] = found.column(0).to_numpy()
    return offsets


def chosen(frame: DataFrame, job: Path, **others: Any) -> Selection:
    """Fix what a DataFrame with the columns topic, broker, queueId and queueOffset names.

    It is run once: a job that goes on has the messages that were chosen when it began.
    """
    path = job / "chosen.parquet"
    if not path.exists():
        make_directory(job)
        fresh = path.with_suffix(".tmp")
        pq.write_table(frame.select(*_PLACE).distinct().toArrow(), fresh)
        fresh.replace(path)
        sync_directory(job)
    return Selection(chosen=path, **others)


def replay(
    workers: Workers,
    messages: Messages,
    selection: Selection,
    options: Mapping[str, str],
    job: Path,
    *,
    rate: float | None = None,
    sleep: plans.Sleep | None = None,
) -> plans.Report:
    """Send chosen messages to a topic that is there.

    Args:
        workers: who does it, a queue at a time each.
        messages: where they are; the job is about what there is when it begins.
        selection: which of them.
        options: those of the sink: ``nameServer``, ``topic``, and how to get in.
        job: a directory for the job's state, seen by all workers; the same to go on after an end.
        rate: messages a second at the most, of all workers together.
        sleep: waits for seconds; for tests.
    """
    topic = options.get("topic")
    if topic is None:
        raise ConfigError("option topic is missing: messages are replayed to one topic")
    asked = {"replay": selection.asked(), "topic": topic, "to": options.get("nameServer")}

    def make() -> plans.Plan:
        return plans.Plan(uuid.uuid4().hex, asked, tuple(_routes(messages.spans, topic, options)))

    plan = plans.begin(job, asked, make, sleep)
    done = plans.do(workers, job, plan, messages, options, choose=selection, rate=rate)
    return plans.Report(len(done), sum(part.sent for part in done))


def _routes(spans: Spans, topic: str, options: Mapping[str, str]) -> list[plans.Route]:
    """Share the source queues out to those of the target."""
    brokers = Brokers.of(options)
    try:
        targets = writable(brokers.cluster.route(topic))
    finally:
        brokers.close()
    if not targets:
        raise ConfigError(f"option topic={topic!r}: no broker allows writing to it")
    routes = []
    for number, queue in enumerate(sorted(spans)):
        target = targets[number % len(targets)]
        routes.append(
            plans.Route(*queue, *spans[queue], topic, target.broker_name, target.queue_id)
        )
    return routes
