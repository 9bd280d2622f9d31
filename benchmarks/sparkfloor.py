"""What Spark costs by itself: rows of a log that come from a source which does nothing.

Each task makes one batch as the file source would, and hands it over again and again, until Spark
has had as many rows as the log has. What a scan of the log takes longer is the source's.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.spark.options import parse
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.tables import DECLARED

TASKS: Final = 8


class Repeated(DataSource):
    """Options: ``path`` of a store, and how many ``rows`` to give."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return "repeated"

    def schema(self) -> StructType:
        """All columns of ``messages``, where a query does not name some."""
        return from_arrow_schema(DECLARED["messages"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads."""
        columns = to_arrow_schema(schema, timezone="UTC")
        return RepeatedReader(self.options["path"], int(self.options["rows"]), columns)


class RepeatedReader(DataSourceReader):
    """Gives the first batch of a store over and over."""

    def __init__(self, path: str, rows: int, schema: pa.Schema) -> None:
        self._path = path
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Tasks of equal size."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows."""
        source = MessageReader(parse({"path": self._path}), self._schema)
        batch = next(source.read(source.partitions()[0]))
        left = self._rows // TASKS
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows
