"""Tasks of a Spark Connect session.

Such a session has no RDDs, so pieces of work are rows of a DataFrame, and ``mapInArrow`` does them. Each piece must be
a separate task. Only ``range(0, n, 1, n)`` promises that: a local table has at most one partition for each core, and
``repartition`` may put two rows into one. So a range is joined with the pieces, which Spark broadcasts. The pieces
could be in the function instead, but then each task would receive all of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyspark.sql.functions as fn
from pyspark import cloudpickle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")

_PIECES: Final = pa.schema({"number": pa.int64(), "piece": pa.binary()})
_RESULTS: Final = pa.schema({"number": pa.int64(), "result": pa.binary()})
_ROWS: Final = 1 << 16  # more than any cluster has cores


def run(spark: SparkSession, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
    """Do each piece in a task; return the results in the order of the pieces."""
    count = len(pieces)
    pickles = [_pickled(piece) for piece in pieces]
    table = spark.createDataFrame(pa.Table.from_pydict({"number": range(count), "piece": pickles}, _PIECES))
    tasks = spark.range(0, count, 1, count).withColumnRenamed("id", "number").join(fn.broadcast(table), "number")
    done = tasks.mapInArrow(partial(_each, work), "number long, result binary").toArrow()
    results = dict(zip(done["number"].to_pylist(), done["result"].to_pylist(), strict=True))
    return [pickle.loads(results[number]) for number in range(count)]


def _each(work: Callable[[P], R], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number, piece in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            result = work(pickle.loads(piece))
            yield pa.RecordBatch.from_pydict({"number": [number], "result": [_pickled(result)]}, _RESULTS)


def _pickled(value: object) -> bytes:
    """Pickle a value as RDDs do: also values of types from a notebook."""
    return cloudpickle.dumps(value)  # type: ignore[no-any-return, no-untyped-call]


def default_parallelism(spark: SparkSession) -> int:
    """Return the number of partitions that Spark makes where no number is given: usually that of its cores."""
    partitions = spark.range(_ROWS).select(fn.spark_partition_id().alias("partition"))
    (last,) = partitions.agg(fn.max("partition")).collect()
    return int(last[0]) + 1
