"""The tables beside ``messages``, from the files of a store: queues, index, state, timer.

They are read without changes. All columns of a task's rows are made at once, and the wanted ones are chosen last,
because none is expensive beside a message's body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from firearrow.errors import ConfigError
from firearrow.spark.columns.messages import timestamps
from firearrow.spark.options import Options
from firearrow.spark.planning.shortqueues import Part
from firearrow.spark.planning.stores import Store
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.timers import waiting
from firearrow.spark.workererrors import with_short_errors
from firearrow.state import GROUPS, consumer_offsets, stored_state, table_of
from firearrow.store.reading.entries import QueueKey, Span
from firearrow.store.reading.index import index_rows
from firearrow.store.reading.storage import StoreFile
from firearrow.store.reading.undispatched import NO_EXTENT, Extent
from firearrow.store.retention import committed_offsets

Rows = Mapping[str, Any]
"""Columns by name: arrays, or one value for all rows."""

_OF_QUEUES: Final = ("consume_queue", "consumer_offsets")
_QUEUE_ENTRIES: Final = 4 << 20  # of one task
_BATCH_ROWS: Final = 1 << 17


@dataclass
class TablePartition(InputPartition):
    """Part of a table of one store that a task reads."""

    root: str
    broker: str
    parts: list[Part] = field(default_factory=list)
    file: StoreFile | None = None
    extent: Extent | None = None  # the undispatched part of the log


@with_short_errors
class TableReader(DataSourceReader):
    """Reader of a table other than ``messages``, from the stores of a path."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        if options.place.name_servers:
            raise ConfigError(
                f"option table={options.place.table!r} is read from files, by option path; brokers have messages only"
            )
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: stretches of queues, index files, or stores."""
        origin = FileOrigin(self.options)
        tasks: list[InputPartition] = []
        for broker, store in origin.stores.items():
            if self.options.place.table in _OF_QUEUES:
                origin.require_whole(store, {})
            if self.options.place.table == "consume_queue":
                tasks += [
                    TablePartition(store.root, broker, parts, extent=store.extent(parts))
                    for parts in self._queues(store)
                ]
            elif self.options.place.table == "index":
                tasks += [TablePartition(store.root, broker, file=file) for file in store.index.files]
            else:
                tasks.append(TablePartition(store.root, broker))
        return tasks

    def _queues(self, store: Store) -> Iterator[list[Part]]:
        """Cut queues into stretches, about the same number of entries for each task."""
        parts: list[Part] = []
        room = _QUEUE_ENTRIES
        for key in store.queue_keys(self.options):
            start, stop = store.queues.open(key).span_from(store.log_start)
            while start < stop:
                end = min(stop, start + room)
                parts.append((*key, start, end))
                room -= end - start
                start = end
                if room == 0:
                    yield parts
                    parts, room = [], _QUEUE_ENTRIES
        if parts:
            yield parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, TablePartition):
            return
        extent = partition.extent
        if self.options.place.table == "consume_queue":
            extent = extent or NO_EXTENT
        store = Store(partition.root, partition.broker, self.options.reading, extent)
        for rows in _TABLES[self.options.place.table](store, partition, self.options):
            yield self._batch(rows, partition.broker)

    def _batch(self, rows: Rows, broker: str) -> pa.RecordBatch:
        count = next(len(column) for column in rows.values() if not isinstance(column, str | int))
        arrays = []
        for column in self.schema:
            value = broker if column.name == "broker" else rows[column.name]
            if isinstance(value, str | int):
                value = pa.repeat(pa.scalar(value, column.type), count)
            elif not isinstance(value, pa.Array):
                value = pa.array(value, column.type)
            arrays.append(value.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _consume_queue(store: Store, task: TablePartition, _: Options) -> Iterator[Rows]:
    for topic, queue_id, start, end in task.parts:
        queue = store.queues.open((topic, queue_id))
        for first in range(start, end, _BATCH_ROWS):
            entries = queue.entries(first, min(first + _BATCH_ROWS, end))
            if len(entries.size):
                yield {
                    "topic": topic,
                    "queueId": queue_id,
                    "queueOffset": entries.queue_offset,
                    "commitLogOffset": entries.physical_offset,
                    "size": entries.size,
                    "tagsCode": entries.tag_code.astype(np.int64),
                }


def _index(store: Store, task: TablePartition, _: Options) -> Iterator[Rows]:
    assert task.file is not None
    rows = index_rows(store.storage, task.file)
    for first in range(1, rows.taken, _BATCH_ROWS):
        entries = rows.entries(first, min(first + _BATCH_ROWS, rows.taken))
        hashes = entries["hash"].astype(np.int64)
        yield {
            "file": task.file.name,
            "entry": np.arange(first, first + len(entries)),
            "slot": hashes % rows.slots,
            "keyHash": hashes,
            "commitLogOffset": entries["physical_offset"].astype(np.int64),
            "storeTimestamp": timestamps(rows.begin_ms + 1000 * entries["seconds"].astype(np.int64)),
            "previous": entries["previous"].astype(np.int64),
        }


def _consumer_offsets(store: Store, _: TablePartition, options: Options) -> Iterator[Rows]:
    known = dict.fromkeys(store.queues.keys_of(None))
    bounds: dict[QueueKey, Span] = {}
    rows: list[tuple[str, str, int, int, int, int]] = []
    for consumed in sorted(
        committed_offsets(consumer_offsets(store.config)), key=lambda it: (it.topic, it.group, it.queue_id)
    ):
        key = consumed.topic, consumed.queue_id
        if not options.choice.wants(consumed.topic):
            continue
        if key not in bounds:
            queue = store.queues.open(key) if key in known else None
            bounds[key] = queue.span_from(store.log_start) if queue else (0, 0)
        rows.append((*consumed, *bounds[key]))
    if rows:
        groups, topics, queue_ids, offsets, lowest, highest = zip(*rows, strict=True)
        yield {
            "consumerGroup": groups,
            "topic": topics,
            "queueId": queue_ids,
            "offset": offsets,
            "minOffset": lowest,
            "maxOffset": highest,
            "lag": np.maximum(np.array(highest) - np.array(offsets), 0),
        }


def _topics(store: Store, _: TablePartition, options: Options) -> Iterator[Rows]:
    found = [(name, row) for name, row in sorted(store.topics.items()) if options.choice.wants(name)]
    yield from _configured(
        found,
        {
            "topic": None,
            "readQueues": ("readQueueNums", 16),
            "writeQueues": ("writeQueueNums", 16),
            "permission": ("perm", 6),
            "filterType": ("topicFilterType", "SINGLE_TAG"),
            "sysFlag": ("topicSysFlag", 0),
            "ordered": ("order", False),
            "attributes": ("attributes", {}),
        },
    )


def _subscription_groups(store: Store, _: TablePartition, __: Options) -> Iterator[Rows]:
    yield from _configured(
        sorted(table_of(stored_state(store.config, GROUPS), "subscriptionGroupTable").items()),
        {
            "consumerGroup": None,
            "consumeEnable": ("consumeEnable", True),
            "consumeFromMinEnable": ("consumeFromMinEnable", True),
            "consumeBroadcastEnable": ("consumeBroadcastEnable", True),
            "consumeMessageOrderly": ("consumeMessageOrderly", False),
            "retryQueues": ("retryQueueNums", 1),
            "retryMaxTimes": ("retryMaxTimes", 16),
            "brokerId": ("brokerId", 0),
            "attributes": ("attributes", {}),
        },
    )


def _configured(found: list[tuple[str, Any]], columns: Mapping[str, tuple[str, Any] | None]) -> Iterator[Rows]:
    """Return rows of a table of the state: the name, and fields with their defaults."""
    configs = [row if isinstance(row, dict) else {} for _, row in found]
    rows: dict[str, list[Any]] = {}
    for name, source in columns.items():
        if source is None:
            rows[name] = [key for key, _ in found]
        else:
            field_name, default = source
            rows[name] = [_or_default(config.get(field_name), default) for config in configs]
    if found:
        yield rows


def _or_default(value: Any, default: Any) -> Any:
    if value is None:
        value = default
    if isinstance(value, dict):
        return [(str(key), None if item is None else str(item)) for key, item in value.items()]
    return value


def _timer(store: Store, _: TablePartition, options: Options) -> Iterator[Rows]:
    for rows in waiting(store, options.reading):
        chosen = [options.choice.wants(topic or "") for topic in rows["topic"].to_pylist()]
        if all(chosen):
            yield rows
        elif any(chosen):
            mask = pa.array(chosen)
            yield {name: column.filter(mask) for name, column in rows.items()}


_TABLES: Final[dict[str, Callable[[Store, TablePartition, Options], Iterator[Rows]]]] = {
    "consume_queue": _consume_queue,
    "index": _index,
    "consumer_offsets": _consumer_offsets,
    "topics": _topics,
    "subscription_groups": _subscription_groups,
    "timer": _timer,
}
