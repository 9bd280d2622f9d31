"""What a user's program does on a cluster; prints what it saw as JSON. See ``cluster.py``.

Arguments: the master's URL, the package as a zip, a store, a directory for what jobs make, options
of the JVMs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

import firearrow
from firearrow.spark import configure
from firearrow.spark.jobs.archive.archiving import archive, read_archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.rebuild import rebuilt
from firearrow.spark.jobs.verify import verdict_of
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.store.offline import Order

R = TypeVar("R")

SPLIT = "512k"  # so small that both workers get some of a small store
STRETCH_BYTES = 65_536  # likewise


def main() -> None:
    """Read the store as a user would, and do bulk work on it, with tasks on both workers."""
    master, package, store, made, jvm = sys.argv[1:]
    builder = SparkSession.Builder().master(master).appName("firearrow cluster test")
    for key, value in {
        "spark.submit.pyFiles": package,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "600m",
        "spark.driver.extraJavaOptions": jvm,
        "spark.executor.extraJavaOptions": jvm,
        # Nothing is begun before both workers are there: one alone could do it all.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
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
    places = messages.rdd.mapPartitions(_place).collect()
    return {
        "topics": _totals(messages),
        "tasks": len(places),
        "readers": len({executor for executor, _, rows in places if rows}),
        "package": sorted({path for _, path, _ in places}),
    }


def _totals(messages: DataFrame) -> dict[str, list[int]]:
    """Of each topic the number of messages and a sum over their bodies' hashes."""
    word = fn.conv(fn.substring(fn.sha2("body", 256), 1, 8), 16, 10).cast("bigint")
    totals = messages.groupBy("topic").agg(fn.count("*").alias("messages"), fn.sum(word).alias("checksum"))
    return {row.topic: [row.messages, row.checksum] for row in totals.collect()}


def _made(spark: SparkSession, store: str, made: Path) -> dict[str, object]:
    """Verify the store, rebuild its queues and index, and archive it."""
    opener, settings = source({"path": store, "splitBytes": SPLIT})
    target, order = Archive(str(made / "archive")), Order(stretch_bytes=STRETCH_BYTES)
    verdict, verifiers = _by_whom(spark, lambda: verdict_of(spark, store))
    _, rebuilders = _by_whom(spark, lambda: rebuilt(spark, store, to=made, order=order))
    _, archivers = _by_whom(spark, lambda: archive(SparkWorkers(spark), opener, target, settings))
    return {
        "findings": len(verdict.findings),
        "archived": _totals(read_archive(spark, target)),
        "verifiers": verifiers,
        "rebuilders": rebuilders,
        "archivers": archivers,
    }


def _by_whom(spark: SparkSession, work: Callable[[], R]) -> tuple[R, int]:
    """Do some work; give its result, and how many executors have done tasks of it."""
    before = _tasks_done(spark)
    result = work()
    after = _tasks_done(spark)
    return result, sum(done > before.get(executor, 0) for executor, done in after.items())


def _tasks_done(spark: SparkSession) -> dict[str, int]:
    """Of each executor how many tasks it has ended well. PySpark has no name of its own for it."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    executors = context.statusStore().executorList(True)
    summaries = [executors.apply(number) for number in range(executors.size())]
    return {str(executor.id()): int(executor.completedTasks()) for executor in summaries}


def _place(rows: Iterable[Row]) -> Iterator[tuple[int, str, int]]:
    """Read the rows of a task; give the executor, the package and the number of rows."""
    count = sum(1 for _ in rows)
    yield os.getppid(), str(firearrow.__file__), count  # the parent is the executor's daemon


if __name__ == "__main__":
    main()
