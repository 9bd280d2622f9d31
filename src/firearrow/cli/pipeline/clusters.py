"""A cluster of Spark under a job: its settings, the files that executors get, and the check of its executors."""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from firearrow.errors import ConfigError, FirearrowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.cli.pipeline.options import Reading
    from firearrow.spark.executors import Needs

PYTHON: Final = "spark.pyspark.python"
ENVIRONMENT: Final = "environment"
"""Directory that an archive is unpacked to, beside each executor, unless its option names another."""

START_SECONDS: Final = {"spark": 60.0}
"""Longest wait for the first executor, by the kind of master."""
START_SECONDS_OF_OTHERS: Final = 300.0  # YARN queues applications, Kubernetes loads images
SLOW_SECONDS: Final = 10.0  # without an executor, after which a reader wants to know

SETTINGS: Final = {
    # A shuffle takes a task for each 64 MiB. By default it takes a task for each core, however small it is.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # That also holds for a cached table. By default it has 200 partitions, and each of its queries takes 200 tasks.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
SMALL_SETTINGS: Final = {
    "spark.sql.leafNodeDefaultParallelism": "1"  # rows that the driver has read itself
}

_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
_REMOTE_ARCHIVES: Final = (".tar.gz", ".tgz")
_FAST: Final = 1  # level of gzip
_PACKAGES: Final = (".whl", ".zip", ".egg", ".py")
_WRITTEN: Final = ("to", "job", "audit", "checkpoint")


def is_cluster(master: str) -> bool:
    """Tell whether executors are other processes, perhaps on other hosts."""
    return not master.startswith(("local", "sc://")) or master.startswith("local-cluster")


# --- files that executors get ---


def check_files(archives: str | None, py_files: Sequence[str], option: str, master: str | None) -> None:
    """Raise ConfigError for files that executors can't be given; ``option`` names the master."""
    given = {"--archives": [archives] if archives else [], "--py-files": list(py_files)}
    for name, files in given.items():
        if files and (master is None or not is_cluster(master)):
            raise ConfigError(f"{name} is for the executors of a cluster: {option} spark://..., yarn or k8s://...")
    if archives:
        path, _, unpacked = archives.partition("#")
        _require_file("--archives", path, _REMOTE_ARCHIVES if "://" in path else _ARCHIVES)
        if "/" in unpacked:
            raise ConfigError(f"--archives {archives}: the name behind # is that of a directory, without /")
    for file in py_files:
        _require_file("--py-files", file, _PACKAGES)
        if file.endswith(".whl"):
            _require_pure(file)


def _require_file(option: str, path: str, endings: tuple[str, ...]) -> None:
    if not path.endswith(endings) or "," in path:
        raise ConfigError(f"{option} {path}: must end with {', '.join(endings)}, and have no comma")
    if "://" not in path and not Path(path).is_file():
        raise ConfigError(f"{option} {path}: there is no such file")


def _require_pure(wheel: str) -> None:
    """Raise ConfigError for a wheel with compiled code, which Python can't load from a file within it."""
    try:
        with zipfile.ZipFile(wheel) as file:
            facts = next(name for name in file.namelist() if name.endswith(".dist-info/WHEEL"))
            is_pure = b"Root-Is-Purelib: true" in file.read(facts)
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise ConfigError(f"--py-files {wheel}: is not a wheel on this host") from error
    if not is_pure:
        raise ConfigError(f"--py-files {wheel}: has compiled code, so it must be installed: pack it with --archives")


def settings_for(archives: str | None, py_files: Sequence[str], directory: Path) -> dict[str, str]:
    """Return the settings of Spark that give executors these files; ``directory`` is for copies."""
    settings: dict[str, str] = {}
    if archives:
        path, _, name = archives.partition("#")
        name = name or ENVIRONMENT
        settings |= {"spark.archives": f"{_absolute(_gzipped(path, directory))}#{name}", PYTHON: f"./{name}/bin/python"}
    if py_files:
        files = [_absolute(_zip(file, directory)) for file in py_files]
        packages = [Path(file).name for file in files if not file.endswith(".py")]
        settings["spark.submit.pyFiles"] = ",".join(files)
        # Spark adds the files to the path of a worker, but not to that of its daemon.
        settings["spark.executorEnv.PYTHONPATH"] = ":".join([".", *(f"./{name}" for name in packages)])
    return settings


def _gzipped(archive: str, directory: Path) -> str:
    """Compress a plain tar: Spark refuses the link to Python in it, but has ``tar`` unpack a compressed one."""
    if not archive.endswith(".tar"):
        return archive
    copy = directory / f"{Path(archive).name}.gz"
    with Path(archive).open("rb") as plain, gzip.open(copy, "wb", _FAST) as packed:
        shutil.copyfileobj(plain, packed)
    return str(copy)


def _zip(file: str, directory: Path) -> str:
    """Copy a wheel to a name that Spark knows as that of a package."""
    if not file.endswith(".whl"):
        return file
    return str(shutil.copyfile(file, directory / f"{Path(file).stem}.zip"))


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


# --- the check ---


def needs_of(options: Reading) -> Needs:
    """Return the places and servers that each executor of a job needs; ``marks`` are the directories that it writes.

    Audit tables and checkpoints in object stores are not among them, because Spark writes these with its own access.
    """
    from firearrow.spark.executors import Needs
    from firearrow.spark.options import parse

    source = options.source()
    place = parse(source).place if source else None
    read = [*place.paths, place.archive] if place else []
    places = [*(path for path in (*read, options.archive) if path)]
    written = [str(value) for name in _WRITTEN if (value := getattr(options, name, None))]
    servers = [";".join(place.name_servers) if place else "", getattr(options, "to_name_server", None)]
    return Needs(
        directories=tuple(_local(path) for path in places if _local(path)),
        marks=tuple(_local(path) for path in written if _local(path)),
        uris=tuple(path for path in (*places, getattr(options, "to", "")) if path and not _local(path)),
        servers=tuple(server for server in servers if server),
    )


def _local(path: str) -> str:
    """Return the path of a place on this host, empty for any other URI."""
    path = path.removeprefix("file://")
    return "" if "://" in path else str(Path(path).absolute())


def require_reachable(needs: Needs) -> None:
    """Raise FirearrowError if this host can't reach an object store; its own client would retry for minutes."""
    from firearrow.spark.executors import unreachable

    if failures := unreachable(needs.uris):
        raise FirearrowError(f"this host {'; it '.join(failures)}")


def require_cluster(spark: SparkSession, needs: Needs) -> None:
    """Raise FirearrowError unless the executors of a cluster start, and each meets the needs of a job."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from firearrow.cli.failures import sentence
    from firearrow.spark.executors import require_executors
    from firearrow.spark.session import EXECUTOR_PYTHON

    master: str = spark.sparkContext.getConf().get("spark.master", "")
    seconds = START_SECONDS.get(master.partition("://")[0], START_SECONDS_OF_OTHERS)
    with marked(needs.marks) as marks:
        try:
            require_executors(spark, replace(needs, marks=marks), seconds, _warn, SLOW_SECONDS)
        except (PySparkException, Py4JError, OSError) as error:
            python = spark.conf.get(EXECUTOR_PYTHON)
            reason = sentence(error)
            raise FirearrowError(f"the executors of {master} can't run Firearrow with {python}: {reason}") from error


def _warn(sentence: str) -> None:
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # of the line that shows how long it takes
    print(f"{clear}firearrow: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def marked(directories: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Make a file in each directory, or above it where it is missing, for the duration of a block."""
    with ExitStack() as stack:
        marks: list[str] = []
        for directory in map(Path, directories):
            there = next(path for path in (directory, *directory.parents) if path.is_dir())
            marks.append(stack.enter_context(tempfile.NamedTemporaryFile(prefix=".firearrow-", dir=there)).name)
        yield tuple(marks)
