"""`firearrow pipeline JOB`: jobs on a store's files or on brokers, with Spark.

One table, `JOBS`, says which there are: a name, what it does, its own options and the function that
makes its report. What a job needs is imported when it runs; without PySpark one sentence says what
to install. Exit codes: 0 done, 1 an error that one sentence on standard error explains, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

from firearrow.cli import joboptions
from firearrow.cli.checks import check, has_few_messages, place, require_master
from firearrow.cli.failures import FAILED, carried_out, of_log, sentence
from firearrow.cli.interrupt import Ending, ending_at_once
from firearrow.cli.screen import as_text, progress
from firearrow.cli.summaries import as_sentence
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError, FirearrowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.cli.analyses import ReportRun
    from firearrow.cli.reports import Report, Table
    from firearrow.spark.classdata import ClassData

WITHOUT_SPARK: Final = "this needs PySpark: install Firearrow with the extra spark (docs/start.md)"

SMALL: Final = {
    # With few messages the time goes into starting: compilers that never pay, empty tasks.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Parser = argparse.ArgumentParser
Subcommands = argparse._SubParsersAction  # argparse gives its type no public name


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `JOBS`; ``report`` names what does the work and gives the tables of its report: a
    module of `firearrow.cli`, and its function that takes a `Run`."""

    name: str
    summary: str
    add: Callable[[Parser], None]
    report: str
    add_place: Callable[[Parser], None] = joboptions.add_source
    """Declares what it reads."""
    has_ages: bool = False


def add_pipeline(commands: Subcommands[Parser]) -> None:
    """Declare `pipeline` and its jobs."""
    summary = "analyze a store or a cluster with Spark, and move its messages in bulk"
    parser = commands.add_parser("pipeline", help=summary, description=as_sentence(summary))
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for job in JOBS:
        own = jobs.add_parser(job.name, help=job.summary, description=as_sentence(job.summary))
        own.set_defaults(row=job)
        own.set_defaults(path=None, name_server=None, archive=None, option=[], now=None)
        job.add_place(own)
        if job.has_ages:
            joboptions.add_now(own)
        job.add(own)
        joboptions.add_spark(own)
        joboptions.add_output(own)


def run(options: argparse.Namespace) -> int:
    """Run one job and show its report."""

    def command() -> int:
        with ending_at_once() as ending:
            with session(options, ending) as spark:
                report = report_of(options, spark)
            show(options, report)
        return 0

    return carried_out(command, FAILED, as_json=options.json)


@contextmanager
def session(options: argparse.Namespace, ending: Ending | None = None) -> Iterator[SparkSession]:
    """Have the Spark that the options of a job ask for, and that suits what the job reads.

    Raises ConfigError for what is wrong with the options, and as `started` does.
    """
    require_pyspark()
    check(options)
    with started(options, ending, is_small=has_few_messages(options)) as spark:
        yield spark


@contextmanager
def started(
    options: argparse.Namespace, ending: Ending | None, *, is_small: bool = False
) -> Iterator[SparkSession]:
    """Have the Spark of ``options``: master, conf, spark_log and progress.

    ``ending`` learns what to remove if the process ends at once. Raises ConfigError where something
    is not installed, and where Spark does not start.
    """
    require_pyspark()
    import logging

    from firearrow.spark.classdata import ClassData
    from firearrow.spark.session import require_java

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True  # they print what an error says, before it is told

    require_master(options.master)
    class_data = ClassData(require_java())
    with tempfile.TemporaryDirectory(prefix="firearrow-") as directory:
        settings = _settings(options, directory, is_small=is_small)
        quick = _with_class_data(settings, class_data, options.conf)
        if ending is not None:
            ending.temporary.append(Path(directory))
        log: Path = options.spark_log or Path(directory) / "spark.log"
        with _quiet_jvm(log) as said, ExitStack() as ends:
            with progress(None, "Spark starts", wanted=options.progress):
                try:
                    spark = ends.enter_context(_started(quick, said))
                except ConfigError:
                    if quick == settings:
                        raise
                    spark = ends.enter_context(_started(settings, said))
                    class_data.forget()  # only without it the JVM starts
            if ending is not None:
                ending.listen()  # as Spark has taken SIGINT for itself
            yield spark


def require_pyspark() -> None:
    """Raise ConfigError where PySpark is not installed, or none that Firearrow works with."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise ConfigError(WITHOUT_SPARK)
    from firearrow.spark.session import require_version

    require_version()


# --- the jobs ---


JOBS: Final = (
    Job(
        "backlog",
        "show what consumer groups have still to consume, broken down, and when it is lost",
        joboptions.add_backlog,
        "analyses:report_backlog",
        joboptions.add_files,
        has_ages=True,
    ),
    Job(
        "accounting",
        "show bytes, counts, rates and growth by topic, group, producer and hour",
        joboptions.add_accounting,
        "analyses:report_accounting",
        has_ages=True,
    ),
    Job(
        "deadletters",
        "show dead letters, group similar ones, and send them again",
        joboptions.add_deadletters,
        "analyses:report_deadletters",
    ),
    Job(
        "transactions",
        "show the state of transactional messages",
        joboptions.add_nothing,
        "analyses:report_transactions",
        joboptions.add_files,
        has_ages=True,
    ),
    Job(
        "duplicates",
        "find messages that are there more than once",
        lambda parser: joboptions.add_window(
            parser, 600, "how long a consumer remembers what it has received"
        ),
        "analyses:report_duplicates",
    ),
    Job(
        "latency",
        "show how long messages take to be stored and consumed, and how late delayed ones are",
        joboptions.add_latency,
        "analyses:report_latency",
        has_ages=True,
    ),
    Job(
        "archive",
        "write messages to a Delta table, each exactly once",
        joboptions.add_archive,
        "archivejobs:report_archive",
    ),
    Job(
        "compact",
        "join an archive's small files, and remove files that nobody needs any more",
        joboptions.add_nothing,
        "archivejobs:report_compact",
        joboptions.add_archive_source,
    ),
    Job(
        "expire",
        "remove old days from an archive",
        joboptions.add_expire,
        "archivejobs:report_expire",
        joboptions.add_archive_source,
    ),
    Job(
        "take-over",
        "make an archive of an earlier version a Delta table",
        joboptions.add_nothing,
        "archivejobs:report_take_over",
        joboptions.add_archive_source,
    ),
    Job(
        "restore",
        "write an archive's messages back to topics, each exactly once",
        joboptions.add_restore,
        "sending:report_restore",
        joboptions.add_archive_source,
    ),
    Job(
        "replay",
        "send selected messages to a topic again, never twice",
        joboptions.add_replay,
        "sending:report_replay",
        joboptions.add_source_or_archive,
    ),
    Job(
        "watch",
        "send alerts from a stream of messages to a topic, a webhook or the terminal",
        joboptions.add_watch,
        "watching:report_watch",
    ),
)


# --- running ---


def report_of(options: argparse.Namespace, spark: SparkSession) -> Report:
    """Do what a command line asks, in a session that is there, and give its report."""
    from firearrow.cli.analyses import ReportRun
    from firearrow.cli.reports import Report
    from firearrow.spark.jobs.reading import Reader

    check(options)
    job: Job = options.row
    now_ms = options.now if options.now is not None else SystemClock().now_ms()
    with progress(spark, job.name, wanted=options.progress):
        report: Callable[[ReportRun], list[Table]] = resolve_name(f"firearrow.cli.{job.report}")
        found = report(ReportRun(spark, Reader(spark, place(options)), options, now_ms))
    tables = [table.at_most(options.top) if options.top else table for table in found]
    source = ", ".join(options.path or ()) or options.name_server or options.archive
    return Report.of(job.name, source, now_ms, tables)


def show(options: argparse.Namespace, report: Report) -> None:
    """Print a report, and write its page where one is asked for."""
    if options.report:
        from firearrow.cli.page import write_page

        write_page(report, options.report)
    if options.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(as_text(report, columns), end="")


def _settings(options: argparse.Namespace, directory: str, *, is_small: bool) -> dict[str, str]:
    """Spark's settings; those of the options win. ``directory`` is for temporary files."""
    settings = {
        "spark.master": options.master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # our places in Python tell nobody
    }
    if options.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= SMALL if is_small else {"spark.sql.shuffle.partitions": "8"}
        settings["spark.local.dir"] = directory
        settings[_JAVA_OPTIONS] = " ".join(
            [f"-Djava.io.tmpdir={directory}", *([_QUICK_JVM] if is_small else [])]
        )
    return settings | dict(options.conf)


def _with_class_data(
    settings: Mapping[str, str], class_data: ClassData, given: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Let the JVM of a driver that runs here have its classes from a file, or make it."""
    quick = dict(settings)
    if _JAVA_OPTIONS in quick and not {_JAVA_OPTIONS, "spark.driver.extraClassPath"} & set(
        dict(given)
    ):
        quick[_JAVA_OPTIONS] = " ".join([quick[_JAVA_OPTIONS], *class_data.options()])
    return quick


@contextmanager
def _started(settings: Mapping[str, str], said: Callable[[], str]) -> Iterator[SparkSession]:
    """Have a session; ``said`` gives the error in the JVM's log.

    Raises ConfigError where the JVM does not start, FirearrowError where Spark in it does not.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from firearrow.spark import configure

    builder = configure(SparkSession.Builder().appName("firearrow pipeline"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _quiet_output():
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        reason = sentence(error)
        if "[JAVA_GATEWAY_EXITED]" in reason:
            raise ConfigError(f"Spark does not start: {said() or reason}") from error
        if isinstance(error, OSError) or "stopped SparkContext" in reason:
            reason = said() or reason  # the JVM has ended, or Spark in it, and does not tell why
        raise FirearrowError(f"Spark does not start: {reason}") from error
    try:
        yield spark
    finally:
        try:
            spark.stop()
        except (Py4JError, OSError) as error:  # there is nobody to stop
            raise FirearrowError(
                f"Spark's JVM has ended: {said() or 'its log does not say why'}"
            ) from error


@contextmanager
def _quiet_jvm(log: Path) -> Iterator[Callable[[], str]]:
    """Let the JVM, which inherits standard error when it is started, write to a file instead.

    Gives what tells the error in what it has written.
    """

    def said() -> str:
        with log.open("rb") as file:
            file.seek(begin)
            return of_log(file.read().decode(errors="replace"))

    with log.open("ab") as file:
        begin = file.tell()
        own = os.dup(2)
        stderr = sys.stderr
        os.dup2(file.fileno(), 2)
        try:
            with os.fdopen(own, "w", encoding="utf-8", errors="replace") as kept:
                sys.stderr = kept  # ours still goes where it went
                try:
                    yield said
                finally:
                    kept.flush()
                    os.dup2(own, 2)
        finally:
            sys.stderr = stderr


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Let what is started have no part of standard output: a JVM may outlive us by seconds."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
