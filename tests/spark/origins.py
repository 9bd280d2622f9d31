"""An origin in memory: what tests of streams and jobs read where no store is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firearrow.client.queues import Bound, Queue, Span
from firearrow.spark.tables import MESSAGES, PROPERTIES_MAP

DAY_MS = 86_400_000
RECORD_BYTES = 100


class Piece(InputPartition):
    """Spans of some queues, to be read by one task."""

    def __init__(self, spans: dict[Queue, Span]) -> None:
        super().__init__(1)
        self.spans = spans


def place_as_body(queue: Queue, offset: int) -> bytes:
    """A body that names the place of its message."""
    return f"{'/'.join(map(str, queue))}/{offset}".encode()


def offset_as_key(_: Queue, offset: int) -> str:
    """A key that no other message of the queue has."""
    return f"k{offset}"


@dataclass
class MemoryOrigin:
    """Queues whose message ``n`` is stored ``n`` seconds after ``base_ms``; nothing is kept.

    ``scrambled`` gives the rows of a task in the order of no queue, as a store's files do.
    ``missing`` are offsets that bounds promise and reading does not give.
    """

    held: dict[Queue, Bound] = field(default_factory=dict)
    base_ms: int = 20_000 * DAY_MS
    split_rows: int = 1000
    scrambled: bool = False
    missing: dict[Queue, set[int]] = field(default_factory=dict)
    committed: dict[Queue, int] = field(default_factory=dict)
    body: Callable[[Queue, int], bytes] = place_as_body
    key: Callable[[Queue, int], str] = offset_as_key

    def bounds(self) -> Mapping[Queue, Bound]:
        return dict(self.held)

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        bound = self.held[queue]
        offset = max(-(-(timestamp_ms - self.base_ms) // 1000), bound.earliest)
        return offset if offset < bound.latest else None

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return {queue.topic: {} for queue in self.held}

    def row_bytes(self, spans: Mapping[Queue, Span]) -> Mapping[Queue, float]:
        return dict.fromkeys(spans, float(RECORD_BYTES))

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        rows = self.split_rows
        return [
            Piece({queue: Span(start, min(start + rows, span.end))})
            for queue, span in spans.items()
            for start in range(span.start, span.end, rows)
        ]

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        rows = [
            self.message(queue, offset)
            for queue, span in partition.spans.items()
            for offset in range(span.start, span.end)
            if offset not in self.missing.get(queue, ())
        ]
        if self.scrambled:
            rows.sort(key=lambda row: hash((row["queueOffset"], row["queueId"])))
        for start in range(0, len(rows), 300):
            batch = pa.RecordBatch.from_pylist(rows[start : start + 300], MESSAGES)
            columns = [
                pa.array([[("KEYS", row["keys"])] for row in rows[start : start + 300]], PROPERTIES_MAP)
                if name == "properties" and schema.field(name).type == PROPERTIES_MAP
                else batch.column(name)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def message(self, queue: Queue, offset: int) -> dict[str, object]:
        """Make the row of one message."""
        stored_us = (self.base_ms + offset * 1000) * 1000
        text = f"TAGS\x01t{offset % 3}\x02KEYS\x01k{offset}\x02"
        row: dict[str, object] = dict.fromkeys(MESSAGES.names)
        row |= {name: 0 for name in MESSAGES.names if pa.types.is_integer(MESSAGES.field(name).type)}
        return row | {
            "broker": queue.broker,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "commitLogOffset": offset * 1000 + queue.queue_id,
            "storeSize": RECORD_BYTES,
            "msgId": f"ID{queue.queue_id}-{offset}",
            "bornTimestamp": stored_us - 1000,
            "storeTimestamp": stored_us,
            "tags": f"t{offset % 3}",
            "keys": self.key(queue, offset),
            "properties": text,
            "body": self.body(queue, offset),
        }

    def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        self.committed.update(offsets)
