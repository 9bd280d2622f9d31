"""The origin of messages: store files, brokers, or an archive with one of these.

A batch read and each step of a stream take the same four steps. They ask the origin for the bounds of its queues,
choose a range of queue offsets for each queue, let the origin cut the ranges into tasks, and read each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from firearrow.client.queues import Bound, Mark, Queue, RecordTimes, Span

UNKNOWN_BYTES: Final = 1024.0  # assumed size of a message if none can be read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition


@runtime_checkable
class LoggedOrigin(Protocol):
    """Origin that knows the logs of its brokers."""

    def marks(self, places: Mapping[Queue, int]) -> Mapping[Queue, Mark]:
        """Return the marks of the messages at queue offsets, for messages that exist."""

    def stored_at(self, broker: str, physical_offset: int) -> RecordTimes | None:
        """Return the record at a place of the log: ``NOT_STORED`` if no record begins there, None if the place is
        deleted and nobody can know."""


@runtime_checkable
class ConfiguredOrigin(Protocol):
    """Origin that knows the configuration of its topics."""

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """Return the attributes of each topic."""


class Origin(Protocol):
    """Store files, or the brokers of a cluster."""

    def bounds(self) -> Mapping[Queue, Bound]:
        """Return every queue that the options choose, and its bounds now.

        The bounds hold only confirmed messages: an offset below ``latest`` can be read, and will not be taken back.
        """

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """Return the first offset of a message stored at or after a time; None if there is none."""

    def row_bytes(self, spans: Mapping[Queue, Span]) -> Mapping[Queue, float]:
        """Return the approximate size of a message of each span, in bytes of stored records: at least 1.

        Messages of an inner batch share the bytes of their record.
        """

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        """Cut the spans into tasks: self-contained, picklable, about ``splitBytes`` each."""

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task as batches of exactly this schema."""
