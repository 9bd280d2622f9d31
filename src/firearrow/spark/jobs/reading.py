"""Where a job's tables come from: the files of stores, or brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from firearrow.spark.options import parse
from firearrow.spark.source import open_origin
from firearrow.spark.tables import TABLES


class Reader:
    """Reads tables of one place; ``options`` are those of the format ``rocketmq``."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self.spark = spark
        self.options = dict(options)

    def table(self, name: str, columns: Iterable[str] | None = None, **more: str) -> DataFrame:
        """Give a table, or some of its columns: what is not asked for is not built."""
        reader = self.spark.read.format("rocketmq").options(**{**self.options, **more})
        if columns is not None:
            reader = reader.schema(_part(name, columns))
        return reader.option("table", name).load()

    def stream(self, columns: Iterable[str], **more: str) -> DataFrame:
        """Give messages as a stream."""
        reader = self.spark.readStream.format("rocketmq").options(**{**self.options, **more})
        return reader.schema(_part("messages", columns)).load()

    def queues(self) -> DataFrame:
        """Give broker, topic, queueId, minOffset, maxOffset of every queue, without a task."""
        bounds = open_origin(parse(self.options)).bounds()
        rows = [
            (queue.broker, queue.topic, queue.queue_id, bound.earliest, bound.latest)
            for queue, bound in bounds.items()
        ]
        return self.spark.createDataFrame(
            rows, "broker string, topic string, queueId int, minOffset long, maxOffset long"
        )

    @property
    def has_files(self) -> bool:
        """Whether stores are read, and not brokers: then the whole log is there."""
        return "path" in self.options or "paths" in self.options

    def log(self, columns: Iterable[str]) -> DataFrame:
        """Give messages as the log has them; of brokers, what consumers can read."""
        more = {"visibility": "log"} if self.has_files else {}
        return self.table("messages", columns, **more)


def _part(name: str, columns: Iterable[str]) -> StructType:
    schema = from_arrow_schema(TABLES[name])
    return StructType([schema[column] for column in columns])
