"""`firearrow pipeline JOB`: jobs on a store's files or on brokers, with Spark.

The table `JOBS` has a row for each job: its name, its purpose, its options and the function that makes its report. A
job imports its modules when it runs; without PySpark one sentence names the package to install. Exit codes: 0 done, 1
an error that one sentence on standard error explains, 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, carried_out, sentence
from firearrow.cli.interrupt import Ending, ending_at_once
from firearrow.cli.output.screen import as_text
from firearrow.cli.output.screen import progress as shown
from firearrow.cli.parser import parser_for
from firearrow.cli.pipeline import clusters
from firearrow.cli.pipeline import options as options_of
from firearrow.cli.pipeline.checks import check, cores_of, has_few_messages, is_connect, require_master
from firearrow.cli.pipeline.connecting import connected
from firearrow.cli.pipeline.options import Reading, RunOptions, SparkOptions, WorkersRun
from firearrow.cli.pipeline.sparkerrors import of_log
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError, FirearrowError, MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.cli.output.reports import Report, Table
    from firearrow.cli.pipeline.analyses import ReportRun
    from firearrow.spark.executors import Needs
    from firearrow.spark.jobs.workers import Workers
    from firearrow.spark.session import ClassData

SMALL: Final = {
    # With few messages most time goes into the start: compilers that never pay off, and empty tasks.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

USUAL: Final = RunOptions()


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `JOBS`; ``report`` is ``module:function`` in this package.

    The function takes a `ReportRun` and gives the tables of the report.
    """

    name: str
    summary: str
    options: type[Reading]
    report: str
    needs_jvm: bool = True
    """False for a job whose work processes of this machine can do, too."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job from a command line, with its options."""

    job: Job
    options: Any
    """Options of the job, of the type in its row."""
    how: RunOptions

    def check(self) -> None:
        """Raise ConfigError for wrong options, without a look at the sources."""
        check(self.job.name, self.options, self.how)


def order_of(words: Sequence[str]) -> JobOrder:
    """Read a command line that begins with the name of a job; SystemExit if it is wrong."""
    parser, rest = parser_for(["pipeline", *words])
    return JobOrder(next(job for job in JOBS if job.name == words[0]), **parser.bound(rest).kwargs)


def run(order: JobOrder) -> int:
    """Run one job and show its report."""

    def command() -> int:
        from firearrow.spark.jobs.workers import local_workers

        with ending_at_once() as ending:
            if order.job.needs_jvm or not order.how.master.startswith("local"):
                with session(order, ending) as spark:
                    report = report_of(order, spark)
            else:
                require_pyspark()
                order.check()
                with local_workers(cores_of(order.how.master)) as workers:
                    report = report_of(order, None, workers)
            show(report, order.how)
        return 0

    order.options.check()
    return carried_out(command, FAILED, as_json=order.how.json)


@contextmanager
def session(order: JobOrder, ending: Ending | None = None) -> Iterator[SparkSession]:
    """Start Spark with the options of a job, sized for its input.

    Raises ConfigError for wrong options, and the errors of `started`.
    """
    require_pyspark()
    order.check()
    how, needs = order.how, clusters.needs_of(order.options)
    clusters.require_reachable(needs)
    is_small = has_few_messages(order.job.name, order.options)
    with started(how, ending, needs, progress=how.progress, is_small=is_small) as spark:
        yield spark


@contextmanager
def started(
    options: SparkOptions, ending: Ending | None, needs: Needs, *, progress: bool | None = None, is_small: bool = False
) -> Iterator[SparkSession]:
    """Start Spark with ``options``, which name its master, and check that executors of a cluster meet the ``needs``.

    ``ending`` gets the directory to remove if the process ends at once. Raises ConfigError for a missing package, and
    if Spark does not start; FirearrowError if an executor can't do the job.
    """
    require_pyspark()
    import logging

    from firearrow.spark.session import ClassData, require_java

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True  # they print the text of an error that follows anyway

    if is_connect(options.master):
        with connected(options, ending) as spark:
            yield spark
        return
    assert options.master is not None, "the options name one"
    require_master(options.master)
    class_data = ClassData(require_java())
    with tempfile.TemporaryDirectory(prefix="firearrow-") as directory:
        settings = _settings(options.master, directory, is_small=is_small)
        settings |= clusters.settings_for(options.archives, options.py_files, Path(directory)) | dict(options.conf)
        quick = _with_class_data(settings, class_data, options.conf)
        if ending is not None:
            ending.temporary.append(Path(directory))
        log: Path = options.spark_log or Path(directory) / "spark.log"
        with _quiet_jvm(log) as said, ExitStack() as ends:
            with shown(None, "Spark starts", wanted=progress):
                try:
                    spark = ends.enter_context(_started(quick, said))
                except ConfigError:
                    if quick == settings:
                        raise
                    spark = ends.enter_context(_started(settings, said))
                    class_data.forget()  # the JVM only starts without it
            if ending is not None:
                ending.listen()  # Spark has installed its own handler
            if clusters.is_cluster(options.master):
                with shown(None, "Executors start", wanted=progress):
                    clusters.require_cluster(spark, needs)
            yield spark


def require_pyspark() -> None:
    """Raise ConfigError without PySpark, or with a version that Firearrow does not support."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise MissingPackage("this needs", "PySpark", "spark")
    from firearrow.spark.session import require_version

    require_version()


# --- the jobs ---


JOBS: Final = (
    Job(
        "backlog",
        "show the lag of consumer groups by parts, and when messages will be lost",
        options_of.Backlog,
        "analyses:report_backlog",
    ),
    Job(
        "accounting",
        "show bytes, counts, rates and growth by topic, group, producer and hour",
        options_of.Accounting,
        "analyses:report_accounting",
    ),
    Job(
        "deadletters",
        "show dead letters, group similar ones, and send them again",
        options_of.Deadletters,
        "analyses:report_deadletters",
    ),
    Job(
        "transactions",
        "show the state of transactional messages",
        options_of.Transactions,
        "analyses:report_transactions",
    ),
    Job("duplicates", "find messages that exist more than once", options_of.Duplicates, "analyses:report_duplicates"),
    Job(
        "latency",
        "show the latency of storing and consuming, and the lateness of delayed messages",
        options_of.Latency,
        "analyses:report_latency",
    ),
    Job(
        "archive", "write messages to a Delta table, each exactly once", options_of.ArchiveJob, "archive:report_archive"
    ),
    Job(
        "tables",
        "write topics to typed tables, each message exactly once",
        options_of.TablesJob,
        "tables:report_tables",
        needs_jvm=False,
    ),
    Job(
        "serve",
        "keep typed tables of topics fresh, until interrupted",
        options_of.ServeJob,
        "tables:report_serving",
        needs_jvm=False,
    ),
    Job(
        "compact",
        "join small files of an archive, and remove files that no reader needs",
        options_of.OfArchive,
        "archive:report_compact",
    ),
    Job("expire", "remove old days from an archive", options_of.Expire, "archive:report_expire"),
    Job(
        "restore",
        "write an archive's messages back to topics, each exactly once",
        options_of.Restore,
        "sending:report_restore",
    ),
    Job("replay", "send selected messages to a topic again, never twice", options_of.Replay, "sending:report_replay"),
    Job(
        "watch",
        "send alerts from a stream of messages to a topic, a webhook or the terminal",
        options_of.WatchJob,
        "watching:report_watch",
    ),
)

app: Final = CommandGroup()


def _command(job: Job) -> Callable[..., int]:
    """Give the function that takes the options of a job."""

    def command(*, options: Reading, how: RunOptions) -> int:
        return run(JobOrder(job, options, how))

    command.__annotations__["options"] = job.options
    command.__kwdefaults__ = {"options": job.options(), "how": USUAL}
    return command


for _job in JOBS:
    app.command(_job.name, _job.summary)(_command(_job))


# --- running ---


def report_of(order: JobOrder, spark: SparkSession | None, workers: Workers | None = None) -> Report:
    """Run a job in a Spark session or with other workers, and give its report."""
    from firearrow.cli.output.reports import Report

    order.check()
    job, options, how = order.job, order.options, order.how
    now_ms = options.now if options.now is not None else SystemClock().now_ms()
    with shown(spark, job.name, wanted=how.progress):
        report: Callable[[Any], list[Table]] = resolve_name(f"firearrow.cli.pipeline.{job.report}")
        found = report(_run_of(order, spark, workers, now_ms))
    tables = [table.at_most(how.top) if how.top else table for table in found]
    return Report.of(job.name, options.named(), now_ms, tables)


def _run_of(
    order: JobOrder, spark: SparkSession | None, workers: Workers | None, now_ms: int
) -> ReportRun[Any] | WorkersRun[Any]:
    if order.job.needs_jvm:
        from firearrow.cli.pipeline.analyses import ReportRun
        from firearrow.spark.jobs.reports.reading import Reader

        assert spark is not None
        return ReportRun(spark, Reader(spark, order.options.source()), order.options, order.how, now_ms)
    if workers is None:
        from firearrow.spark.jobs.workers import SparkWorkers

        assert spark is not None
        workers = SparkWorkers(spark)
    return WorkersRun(workers, order.options, order.how, now_ms)


def show(report: Report, how: RunOptions) -> None:
    """Print a report, and write its page if the options name one."""
    if how.report:
        from firearrow.cli.output.page import write_page

        write_page(report, how.report)
    if how.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(as_text(report, columns), end="")


def _settings(master: str, directory: str, *, is_small: bool) -> dict[str, str]:
    """Default settings of Spark. ``directory`` is for temporary files."""
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # places in our code help no user
    }
    if clusters.is_cluster(master):
        settings |= SMALL | clusters.SMALL_SETTINGS if is_small else clusters.SETTINGS
    else:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= SMALL if is_small else {"spark.sql.shuffle.partitions": "8"}
        settings["spark.local.dir"] = directory
        settings[_JAVA_OPTIONS] = " ".join([f"-Djava.io.tmpdir={directory}", *([_QUICK_JVM] if is_small else [])])
    return settings


def _with_class_data(
    settings: Mapping[str, str], class_data: ClassData, given: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Let the JVM of a local driver load its classes from a file, or create that file."""
    quick = dict(settings)
    if _JAVA_OPTIONS in quick and not {_JAVA_OPTIONS, "spark.driver.extraClassPath"} & set(dict(given)):
        quick[_JAVA_OPTIONS] = " ".join([quick[_JAVA_OPTIONS], *class_data.options()])
    return quick


@contextmanager
def _started(settings: Mapping[str, str], said: Callable[[], str]) -> Iterator[SparkSession]:
    """Start a session; ``said`` gives the error in the log of the JVM.

    Raises ConfigError if the JVM does not start, FirearrowError if Spark in the JVM does not.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from firearrow.spark import configure
    from firearrow.spark.executors import environment
    from firearrow.spark.session import SETTINGS

    builder = SparkSession.Builder().appName("firearrow pipeline")
    builder = configure(builder, settings.get(clusters.PYTHON), prune=False)  # each job names its columns
    for key, value in settings.items():
        builder = builder.config(key, value)
    conf = SparkConf().setAppName("firearrow pipeline").setAll([*SETTINGS.items(), *settings.items()])
    variables = environment() if clusters.is_cluster(settings["spark.master"]) else {}
    try:
        with _quiet_output():
            SparkContext(conf=conf, environment=variables)
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        reason = sentence(error)
        if "[JAVA_GATEWAY_EXITED]" in reason:
            raise ConfigError(f"Spark does not start: {said() or reason}") from error
        if isinstance(error, OSError) or "stopped SparkContext" in reason or "context stopped" in reason:
            reason = said() or reason  # the JVM or its Spark has ended without a reason
        raise FirearrowError(f"Spark does not start: {reason}") from error
    try:
        yield spark
    finally:
        try:
            spark.stop()
        except (Py4JError, OSError) as error:  # the JVM has ended already
            raise FirearrowError(f"Spark's JVM has ended: {said() or 'its log does not say why'}") from error


@contextmanager
def _quiet_jvm(log: Path) -> Iterator[Callable[[], str]]:
    """Redirect standard error, which the JVM inherits at its start, to a file.

    Gives a function that finds the error in that file.
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
                sys.stderr = kept  # our own output goes on to the terminal
                try:
                    yield said
                finally:
                    kept.flush()
                    os.dup2(own, 2)
        finally:
            sys.stderr = stderr


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Keep standard output from child processes: a JVM may outlive this process by seconds."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
