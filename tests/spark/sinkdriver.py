"""A driver with an executor that sends what is new in a directory, for each line it is given: by itself a program.

Its first line of output has the pids of the driver and of its JVM. `driving` starts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from firearrow.cli.pipeline.jobs import SMALL
from firearrow.spark import configure
from tests.spark.javaoptions import java_options
from tests.spark.sinkdeaths import DyingSource

ROOT = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 240


def lines(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """The lines of files as messages that name the run."""
    return spark.readStream.text(str(directory)).selectExpr(f"concat(value, '/{name}') AS body")


def run(frame: DataFrame, name_server: str, topic: str, checkpoint: Path) -> None:
    """Send what is available now, exactly once."""
    query = (
        frame.writeStream.format(DyingSource.name())
        .option("nameServer", name_server)
        .options(topic=topic, delivery="exactly-once")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_SECONDS_MAX)


@contextmanager
def driving(name_server: str, topic: str, home: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """The program; messages name it. Whatever it has started is gone in the end."""
    command = [sys.executable, "-m", "tests.spark.sinkdriver", name_server, topic, str(home), name]
    with (
        (home / "driver.log").open("a") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        ) as process,
    ):
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Run a query for each line."""
    name_server, topic, home, name = sys.argv[1:]
    builder = SparkSession.Builder().master("local-cluster[1,1,1024]").appName("sink")
    for key, value in {
        **SMALL,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(killed=True),
        "spark.executor.extraJavaOptions": java_options(killed=True),
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }.items():
        builder = builder.config(key, value)
    spark = configure(builder).getOrCreate()
    spark.dataSource.register(DyingSource)
    frame = lines(spark, Path(home) / "in", name)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    told(f"{os.getpid()} {jvm.java.lang.ProcessHandle.current().pid()}")
    for _ in sys.stdin:
        run(frame, name_server, topic, Path(home) / "checkpoint")
        told("sent")


def told(line: str) -> None:
    """Say something on standard output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
