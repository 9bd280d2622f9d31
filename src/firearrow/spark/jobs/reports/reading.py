"""Sources of a report's tables: the files of stores, or brokers. The driver reads small sources itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.config.kinds import MiB
from firearrow.spark.options import Options, parse, with_system_topics
from firearrow.spark.planning.stores import open_stores
from firearrow.spark.source.datasource import RocketMQSource
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.opening import open_origin
from firearrow.spark.tables import TABLES

_BOUNDS = pa.schema(
    {"broker": pa.string(), "topic": pa.string(), "queueId": pa.int32(), "minOffset": pa.int64(),
     "maxOffset": pa.int64()}
)  # fmt: skip


class Reader:
    """Reader of the tables of one place, with the broker's own topics; ``options`` go to the format ``rocketmq``.

    This process reads a small place at once, not when a query runs.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self.spark = spark
        self.options: dict[str, str] = with_system_topics(options) if options else {}

    def table(self, name: str, columns: Iterable[str] | None = None, **more: str) -> DataFrame:
        """Return a table, or some of its columns; columns that are not requested are not built."""
        options = {**self.options, **more, "table": name}
        schema = None if columns is None else _part(name, columns)
        if self._is_small and (rows := rows_of(options, schema)) is not None:
            return self.spark.createDataFrame(rows, schema or from_arrow_schema(rows.schema))
        reader = self.spark.read.format("rocketmq").options(**options)
        return (reader.schema(schema) if schema is not None else reader).load()

    @cached_property
    def _is_small(self) -> bool:
        return is_small(parse(self.options))

    def stream(self, columns: Iterable[str], **more: str) -> DataFrame:
        """Return messages as a stream."""
        reader = self.spark.readStream.format("rocketmq").options(**{**self.options, **more})
        return reader.schema(_part("messages", columns)).load()

    def queues(self) -> DataFrame:
        """Return broker, topic, queueId, minOffset and maxOffset of every queue, without a task."""
        bounds = open_origin(parse(self.options)).bounds()
        rows = [
            {"broker": queue.broker, "topic": queue.topic, "queueId": queue.queue_id,
             "minOffset": bound.earliest, "maxOffset": bound.latest}
            for queue, bound in bounds.items()
        ]  # fmt: skip
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, _BOUNDS))

    def held(self, frame: DataFrame) -> DataFrame:
        """Return a table as it is now, for several queries; for a small place it is small too.

        Rows in the driver's memory spare Spark most of a plan, and an empty table spares the whole plan.
        """
        if self._is_small:
            return self.spark.createDataFrame(frame.toArrow())
        return frame.localCheckpoint()

    @property
    def has_files(self) -> bool:
        """Tell whether stores are read, and not brokers; stores have the whole log."""
        return "path" in self.options or "paths" in self.options

    def log(self, columns: Iterable[str]) -> DataFrame:
        """Return the messages of the log; for brokers, the messages that consumers can read."""
        more = {"visibility": "log"} if self.has_files else {}
        return self.table("messages", columns, **more)


def _part(name: str, columns: Iterable[str]) -> StructType:
    schema = from_arrow_schema(TABLES[name])
    return StructType([schema[column] for column in columns])


# --- small sources, which the driver reads itself ---
#
# Spark's workers take seconds to start; a hundred thousand messages take a part of one to read. The driver runs the
# reader that a worker would run (`RocketMQSource`), and Spark gets the rows as Arrow.


MESSAGES_MAX: Final = 200_000  # half a second of one core
LOG_BYTES_MAX: Final = 1024 * MiB  # one file of the usual size; it is read if queues are missing
TABLE_BYTES_MAX: Final = 64 * MiB  # a table is in memory twice, here and in the JVM


def is_small(options: Options) -> bool:
    """Tell whether a source has few messages.

    Raises ConfigError where there is no such store, topic or cluster.
    """
    origin = open_origin(options)
    bounds = origin.bounds().values()
    if sum(bound.latest - bound.earliest for bound in bounds) > MESSAGES_MAX:
        return False
    if not isinstance(origin, FileOrigin):
        return True
    return has_small_log(options)


def has_small_log(options: Options) -> bool:
    """Tell whether the files of a log are few. Raises ConfigError where there is no such store."""
    files = [file for store in open_stores(options) for file in store.log.files]
    return sum(file.size_bytes for file in files) <= LOG_BYTES_MAX


def rows_of(options: Mapping[str, str], schema: StructType | None) -> pa.Table | None:
    """Read the table that the options name; None if it is too large to hold in memory."""
    source = RocketMQSource(dict(options))
    wanted = source.schema() if schema is None else schema
    reader = source.reader(wanted)
    batches: list[pa.RecordBatch] = []
    room = TABLE_BYTES_MAX
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            batches.append(batch)
            room -= batch.nbytes
            if room < 0:
                return None
    return pa.Table.from_batches(batches, to_arrow_schema(wanted, timezone="UTC"))
