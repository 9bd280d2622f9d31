"""A name in SQL for each topic: ``SELECT * FROM rocketmq.orders``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import from_arrow_schema

from firearrow.spark.options import Options, parse
from firearrow.spark.source.datasource import table_schema
from firearrow.spark.source.opening import open_origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE: Final = "rocketmq"


def register(spark: SparkSession, options: Mapping[str, str], *, database: str = DATABASE) -> dict[str, str]:
    """Make a view of each topic that the options of a read choose; return the topics by the names of their views.

    A name has only characters that Spark allows: ``orders-eu`` is ``rocketmq.orders_eu``, and ``%DLQ%group`` is
    ``rocketmq._dlq_group``. A second topic of the same name ``orders_eu`` becomes ``orders_eu_2``. RocketMQ's system
    topics have a view if the options choose them. A view reads the messages at the time of a query. For new topics,
    call this again. The options, with any secrets, are part of the views, so a persistent catalog stores them too. The
    tables behind the views are in ``rocketmq_tables``.
    """
    parsed = parse(options)
    names = table_names(sorted({queue.topic for queue in open_origin(parsed).bounds()}))
    tables = f"{database}_tables"
    for each in (database, tables):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(each)}")
    kept = {name: text for name, text in options.items() if name.lower() not in _REPLACED}
    for name, topic in names.items():
        table, view = (f"{_quoted(each)}.{_quoted(name)}" for each in (tables, database))
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} ({_columns(parsed)}) USING rocketmq")
        # Spark 4 hands a table's own options to no reader of a Python data source, only those of a
        # query; and where one query has a table twice, with the options that it has first.
        chosen = kept | _places(parsed) | {"subscribe": topic}
        given = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in chosen.items())
        spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {table} WITH ({given})")
    return names


_REPLACED: Final = {"path", "paths", "subscribe", "subscribepattern", "table"}


def _places(options: Options) -> dict[str, str]:
    paths = options.place.paths
    return {"paths": json.dumps(paths)} if paths else {}


def table_names(topics: Iterable[str]) -> dict[str, str]:
    """Return topics by distinct names that Spark allows."""
    found: dict[str, str] = {}
    for topic in topics:
        plain = re.sub("[^0-9a-z_]", "_", topic.lower())
        name, number = plain, 1
        while name in found:
            number += 1
            name = f"{plain}_{number}"
        found[name] = topic
    return found


def _columns(options: Options) -> str:
    columns = from_arrow_schema(table_schema(options))
    return ", ".join(
        f"{_quoted(column.name)} {column.dataType.simpleString()}" + ("" if column.nullable else " NOT NULL")
        for column in columns
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
