"""A typed table with its newest messages as a DataFrame of Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from firearrow.client.queues import Queue, Span
from firearrow.lake.evolution import one_array
from firearrow.lake.reading import opened_table, unread
from firearrow.lake.typedrows import READ, TypedRows, mask_of, undecoded_rows
from firearrow.lake.upserts import DELETED, VERSION, UpsertTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, name: str, root: str | Path, live: Mapping[str, str] | None = None) -> DataFrame:
    """Return the rows of a topic's table, as ``firearrow.lake.table`` does, for a session of Spark.

    Spark reads the files that the table names, without Delta's connector. An object store needs Spark's usual settings
    and jars. The frame is fixed: messages that come later are not in it.
    """
    typed, state, former = opened_table(name, root)
    schema = from_arrow_schema(typed.columns)
    paths = [typed.place.full(path) for path in sorted(state.paths)]
    if paths:
        held = [column for column in typed.columns if column.name in former]
        read = from_arrow_schema(pa.schema([column.with_name(former[column.name]) for column in held]))
        rows = spark.read.schema(read).parquet(*paths).toDF(*(column.name for column in held))
        added = {column.name: F.lit(None).cast(column.dataType) for column in schema if column.name not in former}
        rows = rows.withColumns(added) if added else rows
    else:
        rows = spark.createDataFrame([], schema)
    spans = unread(typed, state, live) if live else {}
    if not spans:
        return rows
    assert live is not None
    wanted = {**live, **_places(spans), "properties": "map"}
    messages = spark.read.format("rocketmq").options(**wanted).schema(from_arrow_schema(READ)).load()
    kind = typed.columns
    if isinstance(typed, UpsertTable):
        kind = kind.append(pa.field(DELETED, pa.bool_()))
        rows = rows.withColumn(DELETED, F.lit(False))
    rows = rows.unionByName(_decoded(messages, typed.writer, kind))
    if not isinstance(typed, UpsertTable):
        return rows
    latest = Window.partitionBy(typed.key).orderBy(*(F.desc(column) for column in VERSION))
    last = rows.withColumn("_place", F.row_number().over(latest)).where(f"_place = 1 AND NOT {DELETED}")
    return last.select(*typed.columns.names)


def _decoded(messages: DataFrame, writer: TypedRows, columns: pa.Schema) -> DataFrame:
    """Return the rows of messages that decode. Unlike a function on batches, one on columns works without pandas."""

    def rows_of(*values: pa.Array) -> pa.Array:
        rows, reasons = writer.rows_of(undecoded_rows(pa.RecordBatch.from_arrays([*values], schema=READ)))
        arrays = [one_array(column) for column in rows.columns]
        return pa.StructArray.from_arrays(arrays, fields=list(columns), mask=mask_of(reasons, rows.num_rows))

    # PySpark's types ask for an argument that makes PySpark warn
    row = arrow_udf(rows_of, returnType=from_arrow_schema(columns))  # type: ignore[call-overload]
    return messages.select(row(*READ.names).alias("row")).where("row IS NOT NULL").select("row.*")


def _places(spans: Mapping[Queue, Span]) -> dict[str, str]:
    """Return the options that read some offsets of queues."""
    queues: dict[str, dict[str, dict[str, Span]]] = {}
    for (topic, broker, queue_id), span in spans.items():
        queues.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = span

    def offsets(end: int) -> str:
        return json.dumps(
            {t: {b: {q: s[end] for q, s in of.items()} for b, of in them.items()} for t, them in queues.items()}
        )

    ids = {topic: {broker: [int(each) for each in of] for broker, of in them.items()} for topic, them in queues.items()}
    return {"assign": json.dumps(ids), "startingOffsets": offsets(0), "endingOffsets": offsets(1)}
