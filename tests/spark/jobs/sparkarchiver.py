"""A process that archives a store with Spark until it is killed: by itself a program."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession

from firearrow.spark import configure
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, ArchiveStep, follow, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.workers import SparkWorkers
from tests.spark.javaoptions import java_options

STEP_ROWS = 700


def main() -> None:
    """Follow a store; tell each step on standard output."""
    store, root = sys.argv[1:]
    builder = SparkSession.Builder().master("local[2]").appName("archiver")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(killed=True),
    }.items():
        builder = builder.config(key, value)
    spark = configure(builder).getOrCreate()
    opener, _ = source({"path": store, "subscribe": "T", "splitBytes": "100k"})
    follow(
        SparkWorkers(spark), opener, Archive(Path(root)), ArchiveSettings(step_rows_max=STEP_ROWS),
        stop=Event(), interval_seconds=0.02, on_step=told,
    )  # fmt: skip


def told(step: ArchiveStep) -> None:
    """Say that a step counts."""
    sys.stdout.write(f"step {step.version}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
