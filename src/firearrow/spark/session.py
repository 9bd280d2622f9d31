"""Settings of a Spark session that reads and writes RocketMQ, and the class data that lets its JVM start faster."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from firearrow.clock import SystemClock
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS: Final = ("4.2", "4.3")
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
SETTINGS: Final = {
    # a reader that takes filters is refused without it
    _PUSHDOWN: "true",
    # Arrow batches through sockets of the machine: a tenth faster than through TCP
    "spark.python.unix.domain.socket.enabled": "true",
    # the default is the JVM's temporary directory, whose path in a container of YARN is too long for a socket
    "spark.python.unix.domain.socket.dir": "/tmp",
    # otherwise a worker that Spark drops prints a traceback, most often on a busy machine
    "spark.python.daemon.module": "pyspark_firearrow.daemon",
    # the default one asks the local file system for permissions by starting processes
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

EXECUTOR_PYTHON: Final = "spark.sql.execution.pyspark.python"
"""Without this setting, executors read a source with the Python of the driver."""

REMOTE_SETTINGS: Final = {_PUSHDOWN: SETTINGS[_PUSHDOWN]}
"""Settings of a Spark Connect session; its server has the others."""


def configure(
    builder: SparkSession.Builder, executor_python: str | None = None, *, prune: bool = True
) -> SparkSession.Builder:
    """Return a session's builder that is set up for the sources, with the settings of another one.

    Workers of the driver run the Python of this process. So do executors, unless ``executor_python`` or the variable
    ``PYSPARK_PYTHON`` names theirs, for example ``./environment/bin/python`` of an archive that Spark unpacks for them.
    ``SETTINGS`` has the settings and their reasons. Call this before the session exists, because Python and sockets
    cannot be changed later. A session of a Spark Connect server (``remote("sc://...")``) gets ``REMOTE_SETTINGS``, and
    its workers run the server's Python.

    Queries of the session read only the columns that they use (``firearrow.spark.pruning``), unless ``prune`` is false:
    a program that always gives schemas starts a moment earlier without it. Spark Connect has no such rule.

    Raises ConfigError if Java is missing, or if PySpark is of another version than `VERSIONS`.
    """
    require_version()
    if _connects(builder):
        for key, value in REMOTE_SETTINGS.items():
            builder = builder.config(key, value)
        return builder
    require_java()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # Spark plans sources with it, and else with the executors'
    if executor_python is not None:
        os.environ["PYSPARK_PYTHON"] = executor_python
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if prune:
        from firearrow.spark.pruning import PruningBuilder  # imports Spark

        builder = PruningBuilder.like(builder)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.config(EXECUTOR_PYTHON, python)


def _connects(builder: SparkSession.Builder) -> bool:
    """Tell whether a builder's session is one of a server that runs already, and not of a JVM of this process."""
    url = builder._options.get("spark.remote", os.environ.get("SPARK_REMOTE", ""))
    return str(url).startswith("sc://")


def is_remote(spark: SparkSession) -> bool:
    """Tell whether a session is one of Spark Connect, so this process has no JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def require_version() -> None:
    """Raise ConfigError if PySpark is of a version whose data sources differ or are missing."""
    import pyspark

    if ".".join(pyspark.__version__.split(".")[:2]) not in VERSIONS:
        raise ConfigError(f"Firearrow needs PySpark {' or '.join(VERSIONS)}, but {pyspark.__version__} is installed")


def require_java() -> str:
    """Return the path of the Java that Spark runs on; raise ConfigError if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")  # noqa: PTH118
    if found is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise ConfigError(f"Spark needs Java 17 or 21, but {where} has neither")
    return found


# --- class data: Spark's classes in the JVM's form, so that the next JVM starts in half the time ---
#
# Half of the cost of a small job is loading and verifying Spark's classes. A JVM can write its loaded classes to a
# file when it ends (JEP 350), and another JVM can map that file. The JVM checks that the file fits its version and
# class path, and goes on without it if not. So the first run writes the file, which takes some seconds after the
# command has ended, and later runs are quick.
#
# A file belongs to one Java and one Spark, and takes 170 MB of the user's cache directory. There is no file if the
# class path has directories that are not empty (a Spark with ``conf/``), because JVMs refuse these.


FREE_BYTES_MIN: Final = 2 << 30  # with less free space no file is written
RETRY_SECONDS: Final = 3600  # time to wait for a JVM that writes a file; it may have been killed
KEEP_SECONDS: Final = 30 * 86_400  # a file that was unused this long belongs to a removed Spark
_NOT_LOGGED: Final = "-Xlog:cds*=off"  # otherwise standard output has a line for each class left out
_IN_CLASS_PATH: Final = (
    "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH",
    "SPARK_PREPEND_CLASSES",
)  # fmt: skip


class ClassData:
    """The file for one Java and Spark; ``java`` is the path of the program."""

    def __init__(self, java: str) -> None:
        self._path = _place(Path(java))

    @classmethod
    def at(cls, path: Path) -> ClassData:
        """Use a file at another place, for a JVM that has another class path."""
        made = cls.__new__(cls)
        made._path = path
        return made

    def options(self, *, write: bool = True) -> list[str]:
        """Return the JVM's options that use the file, or that write it if it is missing.

        The list is empty if there is no place for the file: nothing depends on it. A JVM that will be killed does not
        ``write``, because it would leave a part of a file.
        """
        if self._path is None:
            return []
        try:
            return _options(self._path, write=write)
        except OSError:
            return []

    def forget(self) -> None:
        """Remove the file because a JVM did not start with it."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def _place(java: Path) -> Path | None:
    """Return the path of the file for a Java and the Spark of this process, None if there cannot be such a file."""
    spec = find_spec("pyspark")
    try:
        home = Path(os.environ.get("SPARK_HOME") or Path((spec and spec.origin) or "").parent)
        if (home / "conf").exists() or any(os.environ.get(name) for name in _IN_CLASS_PATH):
            return None
        known = [java.resolve(), home.resolve() / "jars"]
        facts = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in known]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firearrow"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cache.stat().st_uid != os.geteuid():  # a file that other users can write must not be run
            return None
    except (OSError, RuntimeError):  # no home
        return None
    return cache / f"spark-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.jsa"


def _options(path: Path, *, write: bool) -> list[str]:
    made = path.with_suffix(".new")
    if _is_whole(made):
        _put(made, path)
    if path.exists():
        os.utime(path)
        return [f"-XX:SharedArchiveFile={shlex.quote(str(path))}", "-Xshare:auto", _NOT_LOGGED]
    if not write:
        return []
    now = SystemClock().now_ms() / 1000
    for old in path.parent.glob("spark-*.*"):
        if old.stat().st_mtime < now - KEEP_SECONDS:
            old.unlink()
    if made.exists() and made.stat().st_mtime > now - RETRY_SECONDS:
        return []
    if shutil.disk_usage(path.parent).free < FREE_BYTES_MIN:
        return []
    made.unlink(missing_ok=True)  # the file of a JVM that was killed
    made.touch()  # so that only one of several runs writes
    return [f"-XX:ArchiveClassesAtExit={shlex.quote(str(made))}", _NOT_LOGGED]


def _is_whole(made: Path) -> bool:
    """Tell whether a JVM has finished a file: it writes the first bytes last."""
    try:
        with made.open("rb") as file:
            return any(file.read(4))
    except FileNotFoundError:
        return False


def _put(made: Path, path: Path) -> None:
    """Move a file to its place once it is on the disk, because a partial file may keep JVMs from starting."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(path)
