"""One small Spark for all tests: two cores, no UI, a JVM that starts fast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.cli.pipeline.jobs import SMALL
from firearrow.spark import configure
from tests.spark.javaoptions import java_options

collect_ignore = ["test_kubernetes.py"]  # `make kubernetes` names it

# It lives for minutes: without these, collections wait for Metaspace to grow, and the compiler for room.
ROOM = "-Xms1g -Xmn512m -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing"


def builder_of(home: Path) -> SparkSession.Builder:
    """The settings of that Spark, whose files are in a directory of its own."""
    builder = SparkSession.Builder().master("local[2]").appName("firearrow tests")
    settings = {
        **SMALL,  # compiling each plan would take longer than running it
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java_options()} {ROOM} -Dderby.system.home={home}",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return configure(builder)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share; a test that sets something takes ``newSession()``."""
    session = builder_of(tmp_path_factory.mktemp("spark")).getOrCreate()
    yield session
    session.stop()
