"""What a user's program does on a cluster; prints what it saw as JSON. See ``cluster.py``.

Arguments: the master's URL, the package as a zip, a store.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import firearrow
from firearrow.spark import configure

SPLIT = "512k"  # so small that both workers get some of a small store


def main() -> None:
    """Read the store as a user would, with tasks on both workers."""
    master, package, store = sys.argv[1:]
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
    sys.stdout.write(json.dumps(_seen(spark, store)) + "\n")
    spark.stop()


def _seen(spark: SparkSession, store: str) -> dict[str, object]:
    messages = spark.read.format("rocketmq").option("splitBytes", SPLIT).load(store)
    word = fn.conv(fn.substring(fn.sha2("body", 256), 1, 8), 16, 10).cast("bigint")
    totals = messages.groupBy("topic").agg(
        fn.count("*").alias("messages"), fn.sum(word).alias("checksum")
    )
    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(_place).collect()
    return {
        "topics": {row.topic: [row.messages, row.checksum] for row in totals.collect()},
        "tasks": messages.rdd.getNumPartitions(),
        "executors": len({executor for executor, _ in places}),
        "package": sorted({path for _, path in places}),
    }


def _place(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    yield os.getppid(), str(firearrow.__file__)  # the parent is the executor's daemon


if __name__ == "__main__":
    main()
