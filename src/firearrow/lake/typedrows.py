"""Rows of typed tables: a message's fields beside what RocketMQ knows of it.

==============  ==========================================================
column          value
==============  ==========================================================
``_broker``     the broker that stored the message
``_queue``      the id of its queue
``_offset``     its offset in the queue; broker, queue and offset identify it
``_stored_at``  the time when it was stored
``_keys``       its keys, separated by blanks
``_tag``        its tag
``_properties`` its properties, a map
``_message_id`` its id, as clients print it
==============  ==========================================================

A body that does not decode is a row of the table ``<name>__undecoded``, with these columns, the body and the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from socket import gethostname
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import ConfigError, CorruptStore
from firearrow.lake.decoding import BodyDecoder
from firearrow.lake.evolution import fitted, one_array
from firearrow.lake.partitioning import Partitioning
from firearrow.lake.tablefiles import TypedFile, write_file, write_files
from firearrow.spark.jobs.archive.delta import WrittenFiles
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import log_marks, queue_rows, require_unique, sorted_messages
from firearrow.spark.tables import MESSAGES, PROPERTIES_MAP, TIMESTAMP

METADATA: Final = pa.schema(
    [
        ("_broker", pa.string()),
        ("_queue", pa.int32()),
        ("_offset", pa.int64()),
        ("_stored_at", TIMESTAMP),
        ("_keys", pa.string()),
        ("_tag", pa.string()),
        ("_properties", PROPERTIES_MAP),
        ("_message_id", pa.string()),
    ]
)
UNDECODED_ROWS: Final = METADATA.append(pa.field("body", pa.binary())).append(pa.field("reason", pa.string()))

_SOURCES: Final = {
    "_broker": "broker",
    "_queue": "queueId",
    "_offset": "queueOffset",
    "_stored_at": "storeTimestamp",
    "_keys": "keys",
    "_tag": "tags",
    "_properties": "properties",
    "_message_id": "msgId",
}
_PLACES: Final = ("topic", "broker", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp")
READ: Final = pa.schema(
    [
        MESSAGES.field(name).with_type(PROPERTIES_MAP) if name == "properties" else MESSAGES.field(name)
        for name in (*_PLACES, "keys", "tags", "properties", "msgId", "body")
    ]
)


def columns_of(fields: pa.Schema) -> pa.Schema:
    """Return the columns of a table; raise ConfigError for a field with the name of one that all tables have."""
    taken = {name.lower() for name in METADATA.names}
    for field in fields:
        if field.name.lower() in taken:
            raise ConfigError(f"field {field.name!r}: each table has a column of this name")
    return pa.schema([*METADATA, *fields])


def undecoded_rows(batch: pa.RecordBatch) -> pa.Table:
    """Return messages in the columns of undecoded ones, without a reason."""
    known = pa.table([batch.column(source) for source in _SOURCES.values()], METADATA)
    return known.append_column(UNDECODED_ROWS.field("body"), batch.column("body"))


def mask_of(reasons: Collection[int], count: int) -> pa.BooleanArray:
    """Return a mask of ``count`` rows: true for each row with a reason against it."""
    mask = np.zeros(count, bool)
    mask[list(reasons)] = True
    return pa.array(mask)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of a typed table, and rows of its table of undecoded messages."""

    typed: pa.Table
    undecoded: pa.Table


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Writer of the rows of a table, for the workers. Bodies that do not decode go to ``undecoded_place``."""

    decoder: BodyDecoder
    rows: pa.Schema
    """The columns of the table without those of its partitions."""
    undecoded_place: FilePlace
    partitioning: tuple[Partitioning, ...] = ()
    cluster: tuple[str, ...] = ()

    @property
    def columns(self) -> pa.Schema:
        """The columns of messages that it needs."""
        return READ

    def write(self, batches: Iterator[pa.RecordBatch], place: FilePlace, stem: str) -> WrittenFiles:
        """Write messages; see ``MessageWriter``. Raises CorruptStore if a queue offset occurs twice."""
        found: list[DecodedRows] = []
        places: list[pa.RecordBatch] = []
        for batch in batches:
            places.append(batch.select(_PLACES))
            found.append(self.decoded(batch))
        if not places:
            return WrittenFiles()
        ordered = sorted_messages(pa.Table.from_batches(places))
        require_unique(ordered)
        files, undecoded = self.write_rows(found, place, stem)
        rows = sum(file.rows for file in (*files, *undecoded))
        if rows != ordered.num_rows:
            raise CorruptStore(f"{ordered.num_rows} messages have become {rows} rows")
        return WrittenFiles(files, tuple(queue_rows(ordered)), tuple(log_marks(ordered)), gethostname(), undecoded)

    def write_rows(
        self, found: Sequence[DecodedRows], place: FilePlace, stem: str, notes: dict[str, str] | None = None
    ) -> tuple[tuple[TypedFile, ...], tuple[TypedFile, ...]]:
        """Write rows; return the files of the table and of its undecoded messages.

        ``notes`` are written into the file of the undecoded messages, which then exists even without rows.
        """
        files = self.files_of(pa.concat_tables(rows.typed for rows in found), place, stem)
        undecoded = pa.concat_tables(rows.undecoded for rows in found)
        if notes:
            undecoded = undecoded.replace_schema_metadata(notes)
        if not undecoded.num_rows and not notes:
            return files, ()
        return files, (write_file(undecoded, self.undecoded_place, f"{stem}.parquet", {}),)

    def files_of(self, rows: pa.Table, place: FilePlace, stem: str) -> tuple[TypedFile, ...]:
        """Write the table's rows, one file for each partition."""
        return tuple(write_files(rows, place, stem, self.partitioning, self.cluster))

    def decoded(self, batch: pa.RecordBatch) -> DecodedRows:
        """Return the rows of messages."""
        return self.decoded_again(undecoded_rows(batch))

    def decoded_again(self, messages: pa.Table) -> DecodedRows:
        """Return the rows of messages in the columns of undecoded ones."""
        rows, reasons = self.rows_of(messages)
        if not reasons:
            return DecodedRows(rows, UNDECODED_ROWS.empty_table())
        failed = mask_of(reasons, messages.num_rows)
        undecoded = messages.select([*METADATA.names, "body"]).filter(failed)
        texts = pa.array([reasons[number] for number in sorted(reasons)], pa.string())
        return DecodedRows(
            rows.filter(pc.invert(failed)), undecoded.append_column(UNDECODED_ROWS.field("reason"), texts)
        )

    def rows_of(self, messages: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return a row for each message, and the reasons of those that do not decode, by their place."""
        found = self.decoder.decode(one_array(messages.column("body")))
        fields = self.decoder.fields()
        values = [found.values.field(number) for number in range(len(fields))]
        known = messages.select(METADATA.names).columns
        return fitted(pa.table([*known, *values], columns_of(fields)), self.rows), found.reasons
