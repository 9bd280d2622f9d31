"""What a Spark session needs to read and write RocketMQ."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS: Final = ("4.2", "4.3")
SETTINGS: Final = {
    # a reader that takes filters is refused without it
    "spark.sql.python.filterPushdown.enabled": "true",
    # Arrow batches through sockets of the machine: a tenth faster than through TCP
    "spark.python.unix.domain.socket.enabled": "true",
    # a worker that Spark no longer wants prints a traceback otherwise, most often on a busy machine
    "spark.python.daemon.module": "pyspark_firearrow.daemon",
    # the default one asks the local file system for permissions by starting processes
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set what the sources need on a session's builder, and return it.

    Workers run the Python of this process; ``SETTINGS`` says what is set and why. To be called
    before the session is there: Python and sockets can't be changed later.

    Raises ConfigError where Java is missing, or PySpark is of another version than `VERSIONS`.
    """
    require_version()
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def require_version() -> None:
    """Raise ConfigError where PySpark is of a version that has no such sources, or other ones."""
    import pyspark

    if ".".join(pyspark.__version__.split(".")[:2]) not in VERSIONS:
        raise ConfigError(f"Firearrow needs PySpark {' or '.join(VERSIONS)}, but {pyspark.__version__} is installed")


def require_java() -> str:
    """Give the Java that Spark runs on; raise ConfigError where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")  # noqa: PTH118
    if found is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise ConfigError(f"Spark needs Java 17 or 21, but {where} has neither")
    return found
