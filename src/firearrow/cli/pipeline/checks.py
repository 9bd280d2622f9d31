"""Checks of a command line of `firearrow pipeline` before Spark is started.

Spark takes seconds to start. So all checks that do not need it come first: the sources must exist, rules and options
must be valid, the output must be writable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from firearrow.cli.pipeline.clusters import check_files, is_cluster
from firearrow.cli.pipeline.options import (
    ArchiveJob,
    Deadletters,
    Latency,
    Reading,
    Replay,
    Restore,
    RunOptions,
    Sink,
    SparkOptions,
    TablesJob,
    WatchJob,
)
from firearrow.errors import ConfigError, FirearrowError, require_packages

_MASTERS: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+"
    r"|sc://(\[[^]]+\]|[^][/:;]+)(:\d{1,5})?(/(;.+)?)?"
)
MASTER_SECONDS: Final = 10  # for an answer, as of a name server
_RESENDING: Final = ("dry_run", "audit", "to_topic", "to_name_server", "sink_option")
_OF_BODIES: Final = {"avro": "fastavro", "protobuf": "google.protobuf"}
_CLOSING: Final = {"(": ")", "[": "]"}


def check(job: str, options: Reading, how: RunOptions) -> None:
    """Raise ConfigError for a wrong command line, without a look at its sources."""
    check_master("--master", how)
    check_files(how.archives, how.py_files, "--master", how.master)
    check_places({**vars(how), **vars(options)})
    if (where := getattr(options, "where", None)) is not None:
        _require_condition(where)
    if isinstance(options, WatchJob) and is_cluster(how.master) and not options.checkpoint:
        raise ConfigError("watch on a cluster needs --checkpoint: its executors share the state of the query there")
    if job in _OF_JOBS:
        _OF_JOBS[job](options)


def check_master(option: str, spark: SparkOptions) -> None:
    """Raise ConfigError if ``option`` is not a Spark master, or if it is one that another option does not fit."""
    master = spark.master or ""
    if not _MASTERS.fullmatch(master):
        shown = master.partition(";")[0]  # a token may follow
        raise ConfigError(
            f"{option} {shown}: must be local, local[N], local[*], spark://HOST:PORT, yarn, k8s://URL or sc://HOST:PORT"
        )
    if spark.spark_log and is_connect(master):
        raise ConfigError(f"--spark-log {spark.spark_log}: the log of a Spark Connect server is on its host")


def is_connect(master: object) -> bool:
    """Tell whether a master is a Spark Connect server."""
    return isinstance(master, str) and master.startswith("sc://")


def cores_of(master: str) -> int:
    """Return the number of processes of a local master; its form was checked."""
    found = re.search(r"\[(\*|\d+)", master)
    if found is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else max(1, int(found[1]))


def check_places(given: Mapping[str, object]) -> None:
    """Raise ConfigError if the output can't be written; other options are ignored."""
    for name in ("report", "spark_log"):
        if isinstance(path := given.get(name), Path):
            _require_file(name, path)
    of_spark = () if is_connect(given.get("master")) else ("audit", "checkpoint")  # a server's host has its own
    for name in ("to", "job", *of_spark):
        value = given.get(name)
        if isinstance(value, str | Path) and "://" not in str(value):
            _require_directory(name, Path(value))


def require_master(master: str) -> None:
    """Raise FirearrowError if a standalone master of Spark does not answer; Spark itself would try for a minute.

    ConfigError for an invalid address.
    """
    from firearrow.net.address import addresses_of, unanswered

    scheme, _, addresses = master.partition("://")
    if scheme != "spark":
        return
    reasons = unanswered(addresses_of(addresses), MASTER_SECONDS)
    if reasons:
        failures = (f"{address} can't be reached: {reason}" for address, reason in reasons.items())
        raise FirearrowError(f"Spark does not start: {'; '.join(failures)}")


def has_few_messages(job: str, options: Reading) -> bool:
    """Check the sources of a job, and tell whether they are small.

    Raises ConfigError for a missing store, topic, cluster or archive.
    """
    from firearrow.spark.jobs.archive.delta import Archive
    from firearrow.spark.jobs.reports.reading import is_small
    from firearrow.spark.options import parse, with_system_topics

    if options.archive is not None:
        if not Archive(options.archive).load().files:
            raise ConfigError(f"--archive {options.archive}: there is no archive, or it is empty")
        return False
    return is_small(parse(with_system_topics(options.source())))


def has_small_log(store: Path) -> bool:
    """Tell whether the log of a store is small. The store may be damaged: the job will report that.

    Raises ConfigError if the store does not exist.
    """
    from firearrow.spark.jobs.reports.reading import has_small_log as is_small_log
    from firearrow.spark.options import parse

    return is_small_log(parse({"path": str(store)}))


# --- output ---


def _require_file(name: str, path: Path) -> None:
    option = f"--{name.replace('_', '-')} {path}"
    if path.is_dir():
        raise ConfigError(f"{option} is a directory")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: the directory {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option}: no permission to write it")


def _require_directory(name: str, path: Path) -> None:
    """Raise ConfigError unless a directory exists or can be made, and is writable."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"--{name} {path}: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--{name} {path}: no permission to write to {there}")


def _require_condition(condition: str) -> None:
    """Raise ConfigError for an obvious fault in an SQL condition; only Spark finds the others."""
    if not condition.strip():
        raise ConfigError("--where: the condition is empty")
    bare = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`", "", condition, flags=re.DOTALL)
    open_ones: list[str] = []
    for character in bare:
        if character in "'\"`":
            raise ConfigError(f"--where {condition!r}: a {character} is not closed")
        if character in _CLOSING:
            open_ones.append(_CLOSING[character])
        elif character in ")]" and (not open_ones or open_ones.pop() != character):
            raise ConfigError(f"--where {condition!r}: a {character} has no opening counterpart")
    if open_ones:
        raise ConfigError(f"--where {condition!r}: a {open_ones[-1]} is missing")


# --- single jobs ---


def _archive(options: ArchiveJob) -> None:
    from firearrow.spark.jobs.archive.archiving import require_apart, source
    from firearrow.spark.jobs.archive.fileplace import FilePlace
    from firearrow.spark.options import parse

    if options.iceberg:
        require_packages("--iceberg needs", "iceberg", "pyiceberg")
    source(options.source())
    require_apart(parse(options.source()).place.paths, FilePlace(options.to))


def _tables(options: TablesJob) -> None:
    from firearrow.cli.pipeline.lakes import lake_of

    lake = lake_of(options)
    for spec in lake.specs:
        if spec.bodies in _OF_BODIES:
            require_packages("--bodies needs", "bodies", _OF_BODIES[spec.bodies])
    lake.check()


def _deadletters(options: Deadletters) -> None:
    given = [name for name in _RESENDING if getattr(options, name)]
    if given and not options.resend:
        raise ConfigError(f"--{given[0].replace('_', '-')} can only be used with --resend")
    if not options.resend or options.dry_run:
        return
    if not options.audit or not options.to_name_server:
        raise ConfigError("--resend needs --audit DIR and --to-name-server (or --dry-run)")
    _require_sink(options)


def _latency(options: Latency) -> None:
    from firearrow.spark.jobs.reports.latency import delays_of

    if options.delay_levels:
        delays_of(options.delay_levels)


def _restore(options: Restore) -> None:
    if not options.dry_run:
        _require_sink(options)


def _replay(options: Replay) -> None:
    from firearrow.spark.jobs.resend.sources import require_queues
    from firearrow.spark.options import parse

    if not options.archive:
        require_queues(parse(options.source()))
    if options.dry_run:
        return
    if not options.to_topic:
        raise ConfigError("replay needs --to-topic")
    _require_sink(options)


def _watch(options: WatchJob) -> None:
    from firearrow.spark.jobs.reports.watch import LAG_METRICS, parse_rule

    rules = [parse_rule(text) for text in options.alert]
    if options.name_server and any(rule.metric in LAG_METRICS for rule in rules):
        raise ConfigError("lag and lost are read from a store's files: give --path")
    if options.webhook and options.to_topic:
        raise ConfigError("--webhook and --to-topic exclude each other: alerts go to one of them")
    if options.webhook and urlsplit(options.webhook).scheme not in ("http", "https"):
        raise ConfigError(f"--webhook {options.webhook}: is not an http or https URL")
    if options.to_topic:
        _require_sink(options, "--to-topic")


def _require_sink(given: Sink, what: str = "sending") -> None:
    from firearrow.net.address import addresses_of
    from firearrow.spark.options import for_sink

    if not given.to_name_server:
        raise ConfigError(f"{what} needs --to-name-server")
    addresses_of(given.to_name_server)
    for_sink(given.sink())


_OF_JOBS: Final[Mapping[str, Callable[[Any], None]]] = {
    "archive": _archive,
    "tables": _tables,
    "serve": _tables,
    "deadletters": _deadletters,
    "latency": _latency,
    "restore": _restore,
    "replay": _replay,
    "watch": _watch,
}
