"""The driver of a Spark application on a cluster. See ``cluster.py``.

Its arguments are those of ``firearrow pipeline`` behind the name of a job. Each line of standard input names a function
of this module and its arguments as JSON; a line of standard output gives the result. ``kill`` names a file: the first
task that would create it kills its executor instead of going on. Where the file is named `POD`, the task writes the
name of its host to it, and waits until it is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from hashlib import sha256
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

import firearrow
from firearrow.cli.pipeline import clusters
from firearrow.cli.pipeline.clusters import needs_of
from firearrow.cli.pipeline.jobs import SMALL, order_of, report_of, started
from firearrow.errors import FirearrowError
from firearrow.spark.executors import Needs
from firearrow.spark.jobs import workers as workers_of_jobs
from firearrow.spark.jobs.rebuild import rebuilt
from firearrow.spark.jobs.reports import reading
from firearrow.spark.jobs.resend import sender
from firearrow.spark.jobs.verify import verdict_of
from firearrow.store.offline import Order

P = TypeVar("P")
R = TypeVar("R")

Totals = dict[str, list[int]]

SPARKS_OWN = {"spark.sql.shuffle.partitions": "200", "spark.sql.adaptive.enabled": "true"}
ROWS_BEFORE_DEATH = 5  # of a worker
POD = "pod"
STRETCH_BYTES = 65_536  # so small that both workers get some of a small store


def main() -> None:
    """Start Spark as a job does, and run functions on it until standard input ends."""
    order = order_of(["accounting", "--path", ".", *sys.argv[1:]])
    with started(order.how, None, needs_of(order.options), is_small=True) as spark:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            before = _tasks_done(spark)
            result = {"found": globals()[name](spark, **arguments), **_work_since(spark, before)}
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


# --- jobs ---


def seen(spark: SparkSession) -> dict[str, Any]:
    """The Python, package and variables of two executors."""

    def look(_: Iterable[int]) -> Iterator[list[str | None]]:
        variables = map(os.environ.get, ("AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"))
        yield [sys.executable, str(firearrow.__file__), *variables]

    java: Any = spark.sparkContext._jvm
    command = Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}/cmdline").read_text()
    together = spark.sparkContext.parallelize(range(2), 2).barrier()  # on two executors, as each has one core
    found = together.mapPartitions(look).collect()
    return {"executors": sorted(found), "command": command}


def checked(spark: SparkSession, python: str = "", version: str = "", **needs: Any) -> str:
    """The failure of the check of executors, empty without one; ``version`` is that of the driver's Python."""
    context = spark.sparkContext
    with (
        _changed(context, "pythonExec", python or context.pythonExec),
        _changed(context, "pythonVer", version or context.pythonVer),
    ):
        try:
            clusters.require_cluster(spark, Needs(**needs))
        except FirearrowError as error:
            return str(error)
    return ""


def waited_for(spark: SparkSession, end: str) -> str:
    """What the check says while other tasks have all cores; they end once the file ``end`` exists."""

    def occupy(_: object) -> None:
        while not Path(end).exists():
            Event().wait(0.05)

    context = spark.sparkContext
    thread = Thread(target=context.parallelize(range(2), 2).foreach, args=[occupy])
    thread.start()
    tracker = context.statusTracker()
    while (
        sum(info.numActiveTasks for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))) < 2
    ):
        Event().wait(0.05)
    said = StringIO()
    with (
        _changed(clusters, "START_SECONDS", {"spark": 0.5}),
        _changed(clusters, "SLOW_SECONDS", 0.1),
        redirect_stderr(said),
    ):
        failure = checked(spark)
    Path(end).touch()
    thread.join()
    return said.getvalue() + failure


def totals_of(bodies: Iterable[tuple[str, bytes]]) -> Totals:
    """Of each topic the number of messages and a sum over their bodies' hashes."""
    sums: Totals = defaultdict(lambda: [0, 0])
    for topic, body in bodies:
        total = sums[topic]
        total[0] += 1
        total[1] += int(sha256(body).hexdigest()[:8], 16)
    return dict(sums)


def totals(spark: SparkSession, options: dict[str, str], kill: str = "") -> Totals:
    """The totals of the messages of a source."""
    return _totals(_dying(spark.read.format("rocketmq").options(**options).load(), kill))


def streamed(spark: SparkSession, options: dict[str, str], checkpoint: str, kill: str) -> Totals:
    """The totals of a stream, whose batches come to this process."""
    found: dict[int, Totals] = {}
    stream = spark.readStream.format("rocketmq").options(startingOffsets="earliest", **options).load()

    def take(batch: DataFrame, number: int) -> None:
        found[number] = _totals(batch)

    query = (
        _dying(stream, kill)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sums: Totals = {}
    for part in found.values():
        for topic, numbers in part.items():
            sums[topic] = [a + b for a, b in zip(sums.get(topic, [0, 0]), numbers, strict=True)]
    return sums | {"batches": [len(found)]}


def sent(spark: SparkSession, options: dict[str, str], count: int, kill: str) -> None:
    """Write messages to a topic."""
    rows = spark.range(0, count, 1, 4).select(fn.concat(fn.lit("order-"), "id").alias("body"))
    _dying(rows, kill).write.format("rocketmq").options(**options).mode("append").save()


def report(spark: SparkSession, words: Sequence[str], kill: str = "", small: bool = True) -> dict[str, Any]:
    """The tables of a job of ``firearrow pipeline``; without ``small``, executors read the source."""
    most = reading.MESSAGES_MAX if small else 0
    with _killing(kill), _changed(reading, "MESSAGES_MAX", most), redirect_stdout(sys.stderr):  # alerts are printed
        found = report_of(order_of(list(words)), spark)
    return {table.title: json.loads(json.dumps(table.rows, default=str)) for table in found.tables}


def large_report(spark: SparkSession, words: Sequence[str]) -> None:
    """Run a job with the settings of a source that is not small."""
    former = {name: str(spark.conf.get(name)) for name in (*SMALL, *clusters.SETTINGS)}
    for name, value in {**SPARKS_OWN, **clusters.SETTINGS}.items():
        spark.conf.set(name, value)
    report(spark, words, small=False)
    for name, value in former.items():
        spark.conf.set(name, value)


def repaired(spark: SparkSession, store: str, to: str, meeting: str) -> list[int]:
    """Rebuild the queues and the index of a store; give the number of findings in it, and that of the jobs in which
    two executors met in a new directory ``meeting``."""
    run = workers_of_jobs.SparkWorkers.run
    met = itertools.count()

    def meeting_run(self: workers_of_jobs.SparkWorkers, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        if len(pieces) < 2:
            return run(self, work, pieces)
        place = Path(meeting) / str(next(met))
        place.mkdir(parents=True)
        return run(self, partial(_meet_and_work, place, work), pieces)

    with _changed(workers_of_jobs.SparkWorkers, "run", meeting_run):
        rebuilt(spark, store, to=Path(to), order=Order(stretch_bytes=STRETCH_BYTES))
        findings = len(verdict_of(spark, store).findings)
    return [findings, next(met)]


def _meet_and_work(place: Path, work: Callable[[P], R], piece: P) -> R:
    """Do a piece once a second executor has begun one, which it must: each has one core."""
    (place / str(os.getppid())).touch()  # the daemon of this executor's workers
    while len(list(place.iterdir())) < 2:
        Event().wait(0.05)
    return work(piece)


def _totals(messages: DataFrame) -> Totals:
    return totals_of((row.topic, bytes(row.body)) for row in messages.select("topic", "body").collect())


# --- executors that die ---


@contextmanager
def _killing(mark: str) -> Iterator[None]:
    """Let the first executor that does a piece of a job, or reads a table or a stream of a report, die at it."""
    table, stream = reading.Reader.table, reading.Reader.stream
    run = workers_of_jobs.SparkWorkers.run

    def dying_table(self: reading.Reader, *names: Any, **more: Any) -> DataFrame:
        return _dying(table(self, *names, **more), mark)

    def dying_stream(self: reading.Reader, *names: Any, **more: Any) -> DataFrame:
        return _dying(stream(self, *names, **more), mark)

    def dying_run(self: workers_of_jobs.SparkWorkers, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        return run(self, partial(_work_and_die, mark, work), pieces)

    with (
        _changed(reading.Reader, "table", dying_table),
        _changed(reading.Reader, "stream", dying_stream),
        _changed(workers_of_jobs.SparkWorkers, "run", dying_run),
    ):
        yield


@contextmanager
def _changed(place: Any, name: str, value: Any) -> Iterator[None]:
    former = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, former)


def _dying(frame: DataFrame, mark: str) -> DataFrame:
    """The same rows, from executors one of which dies among them."""
    rows = itertools.count(1)

    def go_on(_: object) -> bool:
        if next(rows) % ROWS_BEFORE_DEATH == 0:
            _kill_once(mark)
        return True

    return frame.where(fn.udf(go_on, "boolean").asNondeterministic()(frame.columns[0])) if mark else frame


def _work_and_die(mark: str, work: Callable[[P], R], piece: P) -> R:
    calls = itertools.count()

    def wait(self: sender.Pace, messages: int) -> None:
        if next(calls):  # one batch of a queue is sent, others are not
            _kill_once(mark)

    with _changed(sender.Pace, "wait", wait):
        result = work(piece)
    _kill_once(mark)  # the files are written, but their names are lost
    return result


def _kill_once(mark: str) -> None:
    """Kill the JVM of this worker's executor, the parent of its daemon, unless an earlier task has done so."""
    if not mark:
        return
    try:
        with Path(mark).open("x") as file:
            file.write(socket.gethostname())
    except FileExistsError:
        return
    if mark.endswith(POD):
        signal.pause()
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(") ")[2].split()[1]), signal.SIGKILL)


# --- tasks ---


def _work_since(spark: SparkSession, before: dict[str, int]) -> dict[str, int]:
    """The number of tasks since then, and of the executors that have done them."""
    done = {name: count - before.get(name, 0) for name, count in _tasks_done(spark).items()}
    return {"tasks": sum(done.values()), "executors": sum(count > 0 for count in done.values())}


def _tasks_done(spark: SparkSession) -> dict[str, int]:
    """Of each executor how many tasks it has ended well. PySpark has no name of its own for it."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    executors = context.statusStore().executorList(False)
    summaries = [executors.apply(number) for number in range(executors.size())]
    return {str(executor.id()): int(executor.completedTasks()) for executor in summaries}


if __name__ == "__main__":
    main()
