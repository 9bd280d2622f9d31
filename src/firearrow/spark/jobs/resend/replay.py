"""Replay of chosen messages of a store, a cluster or an archive to a topic, none of them twice.

::

    replay(workers, ArchiveMessages.of(archive), Selection(tags=("paid",), start_ms=...),
           {"nameServer": "127.0.0.1:9876", "topic": "orders-again"}, Path("jobs/1"), rate=500)

Messages keep body, tags, keys, id and properties, and name their source: ``REPLAY_TOPIC``, ``REPLAY_BROKER``,
``REPLAY_QUEUE``, ``REPLAY_OFFSET``, ``REPLAY_ID``, and ``REPLAY_JOB``, which all messages of a job share. Messages of
one queue go to one queue of the target, in order.

Only messages that consumers saw are replayed, each once. The broker's own topics hold the same message before its
delivery (delayed originals; half messages, also of rolled back transactions). Retry and dead-letter topics hold it
again. So these topics are left out unless ``all_topics`` asks for them.

SQL can choose messages too: ``chosen`` records the messages that a DataFrame names. The messages themselves do not pass
through the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.client.queues import Queue
from firearrow.clock import LAST_MS, checked_ms
from firearrow.errors import ConfigError
from firearrow.files import make_directory, sync_directory
from firearrow.message.names import is_of_users
from firearrow.spark.jobs.resend import plans
from firearrow.spark.jobs.resend.sources import MessageSource, Spans
from firearrow.spark.jobs.resend.targets import ClusterMasters
from firearrow.spark.jobs.workers import Workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = ("topic", "broker", "queueId", "queueOffset")
_ASKED = b"firearrow.asked"


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of messages; all given conditions must hold.

    Times are store times in ms, the end excluded. ``keys`` are words among a message's keys, or its id. ``chosen`` is a
    file that ``chosen`` has written, and ``where`` says in words which messages it names. ``all_topics`` includes
    topics of the broker itself, and the copies in retry and dead-letter topics.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    chosen: Path | None = None
    where: str | None = None
    all_topics: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for impossible times."""
        try:
            start, end = checked_ms(self.start_ms or 0), checked_ms(self.end_ms or LAST_MS)
        except ValueError as error:
            raise ConfigError(f"selection: {error}") from None
        if start >= end:
            raise ConfigError(f"selection: {end} is not after {start}, so nothing is between them")

    def wants(self, topic: str) -> bool:
        """Tell whether messages of a topic can be chosen."""
        return self.all_topics or is_of_users(topic)

    def asked(self) -> dict[str, Any]:
        """Return the selection in values that can be compared."""
        return {
            "startMs": self.start_ms,
            "endMs": self.end_ms,
            "tags": list(self.tags),
            "keys": list(self.keys),
            "chosen": None if self.chosen is None else str(self.chosen.absolute()),
            "where": self.where,
            "allTopics": self.all_topics,
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out messages that are not chosen."""
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
    """Return a mask of the messages of a batch, all of one queue, that a file names."""
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


def chosen(frame: DataFrame, job: Path, place: Mapping[str, Any] | None = None, **others: Any) -> Selection:
    """Record the messages that a DataFrame with the columns topic, broker, queueId and queueOffset names.

    The DataFrame is run once. A continued job has the messages that were chosen when it began.

    Args:
        frame: the messages.
        job: the directory of the job.
        place: the place of the messages, from `MessageSource`.
        others: the other conditions of the selection; ``where`` describes the DataFrame in words.

    Raises ConfigError if the job has begun with other words, or with messages of another place.
    """
    path = job / "chosen.parquet"
    selection = Selection(chosen=path, **others)
    asked = {**(place or {}), **selection.asked()}
    if path.exists():
        begun = (pq.read_schema(path).metadata or {}).get(_ASKED, b"{}")
        plans.require_same(job, json.loads(begun), asked)
        return selection
    make_directory(job)
    fresh = path.with_suffix(".tmp")
    rows = frame.select(*_PLACE).distinct().toArrow()
    pq.write_table(rows.replace_schema_metadata({_ASKED: json.dumps(asked)}), fresh)
    fresh.replace(path)
    sync_directory(job)
    return selection


def replay(
    workers: Workers,
    messages: MessageSource,
    selection: Selection,
    options: Mapping[str, str],
    job: Path,
    *,
    rate: float | None = None,
    sleep: plans.Sleep | None = None,
) -> plans.ResendReport:
    """Send chosen messages to an existing topic; the report names the topics that are left out.

    Args:
        workers: the workers, each with one queue at a time.
        messages: the source; the job covers the messages that exist when it begins.
        selection: the choice of messages.
        options: options of the sink: ``nameServer``, ``topic``, and credentials.
        job: directory of the job's state, visible to all workers; give the same one to continue.
        rate: largest number of messages a second, of all workers together.
        sleep: waits for seconds; for tests.
    """
    topic = options.get("topic")
    if topic is None:
        raise ConfigError("option topic is missing: messages are replayed to one topic")
    asked = {"job": "replay", **messages.place, **selection.asked(), "topic": topic, "to": options.get("nameServer")}
    spans = {queue: span for queue, span in messages.spans.items() if selection.wants(queue.topic)}

    def routes(brokers: ClusterMasters) -> list[plans.ResendRoute]:
        return _routes(spans, topic, brokers)

    report = plans.run(workers, job, asked, routes, messages, options, choose=selection, rate=rate, sleep=sleep)
    left_out = {queue.topic for queue in messages.spans if not selection.wants(queue.topic)}
    return replace(report, skipped=tuple(sorted(left_out)))


def _routes(spans: Spans, topic: str, brokers: ClusterMasters) -> list[plans.ResendRoute]:
    """Distribute the source queues over the queues of the target."""
    targets = brokers.writable(topic)
    if not targets:
        raise ConfigError(f"option topic={topic!r}: no broker allows writing to it")
    routes = []
    for number, queue in enumerate(sorted(spans)):
        target = targets[number % len(targets)]
        routes.append(plans.ResendRoute(*queue, *spans[queue], topic, target.broker_name, target.queue_id))
    return routes
