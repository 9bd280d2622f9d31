"""Small sources, whose tables the driver reads itself.

To start Spark's workers takes seconds, to read a hundred thousand messages a part of one. What
reads is what a worker would run (`RocketMQSource`), and Spark gets the rows as Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.spark.files import FileOrigin
from firearrow.spark.opening import open_origin
from firearrow.spark.options import MiB, Options
from firearrow.spark.source import RocketMQSource
from firearrow.spark.stores import open_stores

MESSAGES_MAX: Final = 200_000  # half a second of one core
LOG_BYTES_MAX: Final = 1024 * MiB  # one file of the usual size; where queues are gone it is read
TABLE_BYTES_MAX: Final = 64 * MiB  # they are held in memory, here and in the JVM


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
    files = [file for store in open_stores(options) for file in store.log]
    return sum(file.size_bytes for file in files) <= LOG_BYTES_MAX


def rows_of(options: Mapping[str, str], schema: StructType | None) -> pa.Table | None:
    """Read the table that options name; None where it is larger than it is good to hold."""
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
