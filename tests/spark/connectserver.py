"""A Spark Connect server in a process of its own, which ends when its standard input does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.spark.conftest import builder_of


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """Start a server on a free port; give its address."""
    command = [sys.executable, "-m", __name__, str(home)]
    with (
        (home / "server.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, (home / "server.log").read_text()
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.communicate()  # closes its input, and waits


def main(home: Path) -> None:
    """Serve until the input ends."""
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    builder = builder_of(home)
    for key, value in {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.progress.reportInterval": "10ms",  # so that short operations report, too
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    sys.stdout.write(f"{getattr(service, 'MODULE$').localPort()}\n")
    sys.stdout.flush()
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
