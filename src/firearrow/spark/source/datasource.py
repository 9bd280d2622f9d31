"""``spark.read.format("rocketmq")``: the entrance from Spark.

Spark makes these objects in separate processes: options come as texts, and readers travel to the tasks as pickles. An
``Origin`` reads; this module only chooses the origin and the messages to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.client.queues import Queue, Span
from firearrow.errors import ConfigError
from firearrow.spark import offsets
from firearrow.spark.options import Options, Range, for_sink, parse
from firearrow.spark.planning.losses import held_spans
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.filters import PushedFilters, narrowed
from firearrow.spark.source.opening import open_origin
from firearrow.spark.source.storetables import TableReader
from firearrow.spark.tables import DECLARED, PROPERTIES_MAP
from firearrow.spark.workererrors import with_short_errors

if TYPE_CHECKING:
    from firearrow.spark.source.origin import Origin


@with_short_errors
class RocketMQSource(DataSource):
    """RocketMQ's store files, or its brokers, as tables."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the columns of the table that the options name."""
        return from_arrow_schema(table_schema(parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = parse(self.options)
        checked = checked_schema(options, schema)
        if options.place.table != "messages":
            return TableReader(options, checked)
        kind = NarrowingReader if options.reading.pushdown == "on" else MessageReader
        return kind(options, checked)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream; see ``firearrow.spark.source.stream``."""
        from firearrow.spark.source.stream import StreamReader  # the half that only streams

        options = parse(self.options)
        if options.place.table != "messages":
            raise ConfigError(f"option table={options.place.table!r}: a stream reads messages only")
        return StreamReader(options, checked_schema(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch; see ``firearrow.spark.sink``."""
        from firearrow.spark.sink import BatchWriter  # the half that only writes

        columns = to_arrow_schema(schema, timezone="UTC")
        return BatchWriter(for_sink(self.options), columns, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream; see ``firearrow.spark.sink``."""
        from firearrow.spark.sink import StreamWriter  # the half that only writes

        columns = to_arrow_schema(schema, timezone="UTC")
        return StreamWriter(for_sink(self.options), columns, overwrite)


def table_schema(options: Options) -> pa.Schema:
    """Return the columns of the table for these options, with a mark on columns that always hold a value.

    Raises ConfigError for a column that the table lacks.
    """
    schema = DECLARED[options.place.table]
    place = schema.get_field_index("properties")
    if place >= 0 and options.reading.properties == "none":
        schema = schema.remove(place)
    elif place >= 0 and options.reading.properties == "map":
        schema = schema.set(place, schema.field(place).with_type(PROPERTIES_MAP))
    names = dict.fromkeys(options.reading.columns or schema.names)
    for name in names:
        _require_column(name, schema, options)
    return pa.schema([schema.field(name) for name in names])


def _require_column(name: str, schema: pa.Schema, options: Options) -> None:
    if name not in schema.names:
        raise ConfigError(f"table {options.place.table} has no column {name!r}, but {', '.join(schema.names)}")


def checked_schema(options: Options, schema: StructType) -> pa.Schema:
    """Return a user's schema in Arrow's types.

    Raises ConfigError for a column that the table lacks, for one of another type, and for one that the schema declares
    NOT NULL though it may be null.
    """
    table = DECLARED[options.place.table]
    asked: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    for column in asked:
        _require_column(column.name, table, options)
        allowed = [table.field(column.name).type]
        if column.name == "properties":
            allowed.append(PROPERTIES_MAP)
        if not any(column.type.equals(kind) for kind in allowed):
            raise ConfigError(
                f"column {column.name} of table {options.place.table} is "
                f"{' or '.join(map(str, allowed))}, not {column.type}"
            )
        if table.field(column.name).nullable and not column.nullable:
            raise ConfigError(
                f"column {column.name} of table {options.place.table} may be null: a schema can't declare it NOT NULL"
            )
    return asked


@with_short_errors
class MessageReader(DataSourceReader):
    """Reader of the messages of an origin."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.narrow: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; Spark asks for a list."""
        origin = open_origin(self.options, self.narrow)
        if isinstance(origin, FileOrigin) and self.options.reading.visibility == "log":
            return origin.log_partitions()
        return origin.partitions(batch_spans(origin, self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task."""
        if type(partition) is InputPartition:
            return iter(())  # Spark's own partition, made if there are no tasks
        return iter(open_origin(self.options, self.narrow).read(partition, self.schema))


class NarrowingReader(MessageReader):
    """Reader of only those messages that the filters of a query need (``pushdown=on``).

    Spark plans each ``load()`` once, with the filters that it saw last. It uses that plan for every other query on the
    same DataFrame, and for both sides of a self-join. So this is not the default. All filters are handed back, so a
    query never gets rows that its filters exclude.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters; Spark must apply all of them again."""
        self.narrow: PushedFilters = narrowed(filters)
        return filters


def batch_spans(origin: Origin, options: Options) -> dict[Queue, Span]:
    """Return the span of each queue that a batch reads, from ``startingOffsets`` and the like.

    Raises DataLost if some of its messages are lost. With ``failOnDataLoss=false`` they are left out and logged.
    """
    bounds = origin.bounds()
    if options.range == Range():
        return {queue: Span(bound.earliest, bound.latest) for queue, bound in bounds.items()}
    start, end = options.range.positions("earliest")
    fail = options.range.by_timestamp == "error"
    first = offsets.resolve(start, bounds, origin.offset_at, fail_where_none=fail)
    last = offsets.resolve(end, bounds, origin.offset_at)
    for queue, at in last.items():  # no message is lost if an offset and a time exclude each other
        if at < first[queue] <= bounds[queue].latest:
            last[queue] = first[queue]
    return held_spans(options.reading, first, last, bounds)
