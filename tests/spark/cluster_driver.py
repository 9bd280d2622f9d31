"""What a user's program does on a cluster; prints what it saw as JSON. See ``cluster.py``.

Arguments: the master's URL, the package as a zip, a store, a directory for what jobs make.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

import firearrow
from firearrow.spark import configure
from firearrow.spark.jobs.archive import archive, read_archive, source
from firearrow.spark.jobs.manifest import Archive
from firearrow.spark.jobs.rebuild import rebuilt
from firearrow.spark.jobs.verify import verdict_of
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.store.offline import Order

SPLIT = "512k"  # so small that both workers get some of a small store
STRETCH_BYTES = 65_536  # likewise


def main() -> None:
    """Read the store as a user would, and do bulk work on it, with tasks on both workers."""
    master, package, store, made = sys.argv[1:]
    builder = SparkSession.Builder().master(master).appName("firearrow cluster test")
    for key, value in {
        "spark.submit.pyFiles": package,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "600m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    spark = configure(builder).getOrCreate()
    seen = _seen(spark, store) | _made(spark, store, Path(made))
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


def _seen(spark: SparkSession, store: str) -> dict[str, object]:
    messages = spark.read.format("rocketmq").option("splitBytes", SPLIT).load(store)
    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(_place).collect()
    return {
        "topics": _totals(messages),
        "tasks": messages.rdd.getNumPartitions(),
        "executors": len({executor for executor, _ in places}),
        "package": sorted({path for _, path in places}),
    }


def _totals(messages: DataFrame) -> dict[str, list[int]]:
    """Of each topic the number of messages and a sum over their bodies' hashes."""
    word = fn.conv(fn.substring(fn.sha2("body", 256), 1, 8), 16, 10).cast("bigint")
    totals = messages.groupBy("topic").agg(
        fn.count("*").alias("messages"), fn.sum(word).alias("checksum")
    )
    return {row.topic: [row.messages, row.checksum] for row in totals.collect()}


def _made(spark: SparkSession, store: str, made: Path) -> dict[str, object]:
    """Verify the store, make its queues and index anew, and archive it."""
    rebuilt(spark, store, to=made, order=Order(stretch_bytes=STRETCH_BYTES))
    opener, settings = source({"path": store})
    target = Archive(str(made / "archive"))
    archive(SparkWorkers(spark), opener, target, settings)
    return {
        "findings": len(verdict_of(spark, store).findings),
        "archived": _totals(read_archive(spark, target)),
    }


def _place(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    yield os.getppid(), str(firearrow.__file__)  # the parent is the executor's daemon


if __name__ == "__main__":
    main()
