"""How large messages are, where a limit of bytes has to become one of queue offsets.

An origin that knows it has a method ``row_bytes`` (the entries of a ConsumeQueue hold sizes); of
any other a few messages of each queue are looked at. The messages of an inner batch share the bytes
of their record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from firearrow.client.queues import Queue, Span
from firearrow.spark.origin import Origin
from firearrow.spark.tables import MESSAGES

SAMPLE_ROWS: Final = 32
UNKNOWN_BYTES: Final = 1024.0  # a message that was deleted between two looks: any number will do
_COLUMNS: Final = ("topic", "broker", "queueId", "storeSize")


@runtime_checkable
class Sized(Protocol):
    """An origin that knows how large messages are without reading them."""

    def row_bytes(self, spans: Mapping[Queue, Span]) -> Mapping[Queue, float]:
        """The mean of what a message of each span takes in stored records, in bytes."""


def row_bytes(origin: Origin, spans: Mapping[Queue, Span]) -> dict[Queue, float]:
    """Give about how large the messages of each span are, in bytes."""
    if isinstance(origin, Sized):
        return dict(origin.row_bytes(spans))
    first = {q: Span(s.start, min(s.end, s.start + SAMPLE_ROWS)) for q, s in spans.items()}
    schema = pa.schema([MESSAGES.field(name) for name in _COLUMNS])
    sizes = dict.fromkeys(spans, UNKNOWN_BYTES)
    for partition in origin.partitions(first) if first else ():
        table = pa.Table.from_batches(origin.read(partition, schema), schema)
        means = table.group_by(list(_COLUMNS[:3])).aggregate([("storeSize", "mean")])
        columns = (means.column(name).to_pylist() for name in (*_COLUMNS[:3], "storeSize_mean"))
        for topic, broker, queue_id, mean in zip(*columns, strict=True):
            sizes[Queue(topic, broker, queue_id)] = max(float(mean), 1.0)
    return sizes
