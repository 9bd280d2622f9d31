"""Tables by hand: rows that name only what matters, with the tables' own schemas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from firearrow.message.model import MessageView
from firearrow.message.properties import format as properties_text
from firearrow.message.record import iter_records
from firearrow.spark.tables import TABLES

START_MS = 1_795_000_000_000 - 1_795_000_000_000 % 3_600_000  # a full hour

MESSAGE: dict[str, Any] = {
    "broker": "a",
    "topic": "T",
    "queueId": 0,
    "queueOffset": 0,
    "commitLogOffset": 0,
    "storeSize": 100,
    "msgId": "ID",
    "offsetMsgId": "OID",
    "flag": 0,
    "sysFlag": 0,
    "bornTimestamp": 0,
    "bornHost": "10.0.0.7:4711",
    "storeTimestamp": 0,
    "storeHost": "127.0.0.1:10911",
    "reconsumeTimes": 0,
    "preparedTransactionOffset": 0,
    "bodyCrc": 1,
    "tags": None,
    "keys": None,
    "properties": "",
    "body": b"body",
}


def at(ms: int) -> datetime:
    """A time so many milliseconds after `START_MS`."""
    return datetime.fromtimestamp(START_MS // 1000, UTC) + timedelta(milliseconds=ms)


def messages(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """A table of messages; times are in ms after the start, properties a dict."""
    return table(spark, "messages", *({**MESSAGE, **row} for row in rows))


def table(spark: SparkSession, name: str, *rows: dict[str, Any]) -> DataFrame:
    """Any table, columns that a row lacks being null."""
    schema = from_arrow_schema(TABLES[name])
    values = [tuple(_value(column, row.get(column)) for column in schema.names) for row in rows]
    return spark.createDataFrame(values, schema)


def _value(column: str, value: Any) -> Any:
    if column.endswith("Timestamp") and isinstance(value, int):
        return at(value)
    if column == "properties" and isinstance(value, dict):
        return properties_text(value)
    return value


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """What a DataFrame holds, or some of its columns."""
    return [tuple(row) for row in (frame.select(*columns) if columns else frame).collect()]


def golden(spark: SparkSession, store: Path) -> DataFrame:
    """Every record of a store's log as a table of messages, as `visibility=log` gives it."""
    found: list[dict[str, Any]] = []
    for file in sorted((store / "commitlog").iterdir()):
        found += [of_record(record) for record in iter_records(file.read_bytes())]
    return messages(spark, *found)


def of_record(view: MessageView) -> dict[str, Any]:
    """A row of the table of messages."""
    return {
        "broker": "a",
        "topic": view.topic,
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "commitLogOffset": view.physical_offset,
        "storeSize": view.store_size,
        "msgId": view.unique_key or view.offset_message_id,
        "offsetMsgId": view.offset_message_id,
        "sysFlag": view.sys_flag,
        "bornTimestamp": view.born_timestamp_ms - START_MS,
        "bornHost": f"{view.born_host.ip}:{view.born_host.port}",
        "storeTimestamp": view.store_timestamp_ms - START_MS,
        "reconsumeTimes": view.reconsume_times,
        "preparedTransactionOffset": view.prepared_transaction_offset,
        "bodyCrc": view.body_crc,
        "tags": view.tags,
        "keys": view.properties.get("KEYS"),
        "properties": view.properties,
        "body": view.body_decompressed(),
    }
