"""The archive's jobs with Spark's executors as workers, which die, and SQL that chooses."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from firearrow.client.queues import Bound, Queue
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, archive, read_archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.replay import chosen, replay
from firearrow.spark.jobs.resend.restore import restore
from firearrow.spark.jobs.resend.sources import ArchiveMessages
from firearrow.spark.jobs.workers import SparkWorkers
from tests.crash.victim import serving as serving_small
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.jobs.archive.test_archiving import every, rows_of
from tests.spark.jobs.archive.test_archiving_killed import RETENTION, Producer, compare
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

ROUNDS = int(os.environ.get("FIREARROW_SPARK_KILL_ROUNDS", "1"))
START_SECONDS_MAX = 90
A, B = Queue("T", "a", 0), Queue("T", "a", 1)
HELD = {A: Bound(0, 2500), B: Bound(0, 500)}


def dying(marks: Path, driver: int) -> MemoryOrigin:
    """Open an origin; the first workers that do it die of it."""
    origin = MemoryOrigin(dict(HELD))
    if os.getpid() != driver and len(list(marks.iterdir())) < 2:
        (marks / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return origin


def test_executors_do_it_and_may_die(spark: SparkSession, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    kept = Archive(tmp_path / "archive")
    opener = functools.partial(dying, marks, os.getpid())
    failures: list[str] = []
    for _ in range(4):
        try:
            archive(SparkWorkers(spark), opener, kept)
        except Py4JJavaError as error:
            failures.append(str(error))
            seen = rows_of(Path(kept.root))
    assert len(failures) in {1, 2}
    assert all("Python worker exited unexpectedly" in failure for failure in failures)
    assert seen == []
    assert sorted(rows_of(Path(kept.root))) == every(MemoryOrigin(HELD))
    assert kept.load().version == 1


def test_sql_reads_an_archive_and_chooses_what_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    kept = Archive(tmp_path / "archive")
    archive(Inline(), lambda: MemoryOrigin(HELD), kept, ArchiveSettings(step_rows_max=1000))
    frame = read_archive(spark, kept)
    assert frame.count() == 3000
    assert frame.where("topic = 'T' and queueId = 1 and keys = 'k7'").count() == 1
    mapped = read_archive(spark, kept, properties="map")
    assert mapped.where("properties['KEYS'] = 'k7'").select("keys").distinct().collect() == [("k7",)]
    assert read_archive(spark, Archive(tmp_path / "empty"), properties="map").count() == 0
    odd = frame.where("cast(body as string) like 'T/a/1/%7' and queueOffset < 100")
    with serving(tmp_path) as server:
        create_topic(server, "again", 2)
        to = {"nameServer": server.namesrv, "topic": "again"}
        messages = ArchiveMessages.of(kept)
        for _ in range(2):
            selection = chosen(odd, tmp_path / "job")
            report = replay(SparkWorkers(spark), messages, selection, to, tmp_path / "job", sleep=float)
            assert report.messages == 10
        found = [int(view.body.rpartition(b"/")[2]) for view in stored(server, "again", 2)]
        assert found == list(range(7, 100, 10))
        restored = restore(SparkWorkers(spark), kept, to | {"topic": "x"}, tmp_path / "back")
        assert restored.messages == 3000
        bodies = Counter(view.body for view in stored(server, "T", 2))
        assert (len(bodies), max(bodies.values())) == (3000, 1)


# --- the driver, with its JVM, is killed ---


@contextmanager
def archiver(store: Path, root: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.spark.jobs.sparkarchiver", str(store), root]
    with (
        Path(root).with_name("archiver.log").open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(120 + 2 * START_SECONDS_MAX * ROUNDS)
def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path) -> None:
    random = Random(ROUNDS)
    store, kept = tmp_path / "store", Archive(tmp_path / "archive")
    with serving_small(store, *RETENTION) as (process, port):
        producer = Producer(port, kept, ROUNDS)
        producer.start()
        try:
            for _ in range(ROUNDS):
                with archiver(store, kept.root) as running:
                    assert running.stdout is not None
                    for _ in range(random.randrange(2, 6)):
                        line = running.stdout.readline()
                        assert line.startswith("step "), (tmp_path / "archiver.log").read_text()
        finally:
            producer.stop.set()
            producer.join()
        assert producer.failure is None
        process.terminate()
        assert process.wait(30) == 0
    archive(Inline(), source({"path": str(store), "subscribe": "T"})[0], kept)
    compare(kept, producer.acknowledged)
