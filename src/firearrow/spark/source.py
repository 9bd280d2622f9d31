"""``spark.read.format("rocketmq")``: the entrance from Spark."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark.tables import TABLES


class RocketMQSource(DataSource):
    """RocketMQ's store files, or its brokers, as tables."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rocketmq"

    def schema(self) -> StructType:
        """The columns of the table that the options name."""
        table = self.options.get("table", "messages")
        if table not in TABLES:
            raise ConfigError(f"option table={table!r}: is none of {', '.join(TABLES)}")
        return from_arrow_schema(TABLES[table])
