"""A replay and a restore that are killed while they send: each message arrives exactly once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from firearrow.client.queues import Bound, Queue
from firearrow.spark.jobs.archive.archiving import archive
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.sender import BATCH_ROWS, ProgressFile, SourceProgress
from firearrow.wire.codes import RequestCode
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

KILLS = 2
QUEUES = 2
ROWS = 3 * BATCH_ROWS  # of each queue
HELD = {Queue("T", "a", number): Bound(0, ROWS) for number in range(QUEUES)}
TOPICS = {"replay": "again", "restore": "T"}
SECONDS_MAX = 60.0


class Job:
    """A job of one kind, and what it has noted."""

    def __init__(self, kind: str, arguments: list[str], directory: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.jobs.resender", kind, *arguments]
        self._command.append(str(directory))
        self._directory = directory
        self._log = directory.with_suffix(".log")
        self.topic = TOPICS[kind]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self._log.open("ab") as log, subprocess.Popen(self._command, stdout=log, stderr=log) as process:
            try:
                yield process
            finally:
                process.kill()

    def noted(self) -> list[SourceProgress]:
        ledgers = [ProgressFile(path) for path in (self._directory / "queues").rglob("*.json")]
        return [progress for ledger in ledgers if (progress := ledger.read()) is not None]

    @property
    def log(self) -> str:
        return self._log.read_text()[-3000:]


def kill_all_at(jobs: list[Job], arrived: Callable[[str], int], goal: int) -> None:
    """Run the jobs and kill each as soon as so many of its messages have arrived."""
    with ExitStack() as stack:
        processes = [(job, stack.enter_context(job.running())) for job in jobs]
        for _ in range(int(SECONDS_MAX / 0.002)):
            for job, process in processes:
                assert process.poll() is None, job.log
                if arrived(job.topic) >= goal:
                    process.kill()
                    process.wait()
            processes = [(job, process) for job, process in processes if process.poll() is None]
            if not processes:
                return
            threading.Event().wait(0.002)
        raise AssertionError(f"{[job.topic for job, _ in processes]} got less than {goal}")


@pytest.mark.timeout(240)
def test_jobs_that_are_killed_while_they_send_go_on_exactly(tmp_path: Path) -> None:
    random = Random(17)
    kept = Archive(tmp_path / "archive")
    archive(Inline(), lambda: MemoryOrigin(HELD), kept)
    with serving(tmp_path / "to") as server:
        for topic in TOPICS.values():
            create_topic(server, topic, QUEUES)
        client = RawClient()

        def arrived(topic: str) -> int:
            return sum(
                int(client.call(server.broker, RequestCode.GET_MAX_OFFSET,
                                {"topic": topic, "queueId": number}).ext["offset"])
                for number in range(QUEUES)
            )  # fmt: skip

        arguments = [str(kept.root), server.namesrv]
        jobs = [Job(kind, arguments, tmp_path / kind) for kind in TOPICS]
        for kill in range(1, KILLS + 1):
            goal = kill * QUEUES * ROWS // (KILLS + 1) - random.randrange(BATCH_ROWS)
            kill_all_at(jobs, arrived, goal)
            for job in jobs:
                assert goal <= arrived(job.topic) < QUEUES * ROWS
                assert sum(progress.done for progress in job.noted()) < QUEUES
        client.close()
        with jobs[0].running() as one, jobs[1].running() as other:
            assert (one.wait(SECONDS_MAX), other.wait(SECONDS_MAX)) == (0, 0)
        for job in jobs:
            assert [(p.sent, p.done) for p in job.noted()] == [(ROWS, True)] * QUEUES
            found = [view.body for view in stored(server, job.topic, QUEUES)]
            assert set(Counter(found).values()) == {1}
            assert found == [b"T/a/%d/%d" % (q, n) for q in range(QUEUES) for n in range(ROWS)]
