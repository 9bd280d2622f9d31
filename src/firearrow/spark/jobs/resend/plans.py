"""Plans of jobs that send messages again, and the run of their pieces.

The directory of a job holds ``plan.json``: the request, the offsets of each queue, and the target of each queue.
``queues/`` holds the progress of each queue. The same job can be started again and again; it ends at once when all
messages are sent. A job with another request needs a separate directory.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from firearrow.client.queues import Queue, Span
from firearrow.errors import ConfigError, CorruptStore
from firearrow.files import replace_atomically
from firearrow.spark.jobs.archive.progress import OfQueue
from firearrow.spark.jobs.resend.sender import (
    SETTLE_SECONDS,
    Pace,
    ProgressFile,
    QueueResend,
    SourceMarks,
    SourceProgress,
)
from firearrow.spark.jobs.resend.sources import MessageSource
from firearrow.spark.jobs.resend.targets import ClusterMasters
from firearrow.spark.jobs.workers import Workers

_PLAN: Final = "plan.json"

Sleep = Callable[[float], object]
Choose = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Leaves out rows; must be picklable."""


class ResendRoute(OfQueue, frozen=True, rename="camel"):
    """The target queue of the messages of a source queue, ``queue``, between two offsets."""

    start: int
    end: int
    to_topic: str
    to_broker: str
    to_queue: int

    @property
    def place(self) -> Queue:
        """The target queue."""
        return Queue(self.to_topic, self.to_broker, self.to_queue)


class JobPlan(msgspec.Struct, frozen=True, rename="camel"):
    """Plan of a job. ``asked`` is the request in values that can be compared."""

    job: str
    asked: dict[str, Any]
    routes: tuple[ResendRoute, ...]


@dataclass(frozen=True, slots=True)
class ResendReport:
    """Counts of a job over all its runs."""

    queues: int
    messages: int
    skipped: tuple[str, ...] = field(default=())  # topics that were left out


@dataclass(frozen=True, slots=True)
class QueueTask:
    """One queue's part of a job, for a worker."""

    messages: MessageSource
    route: ResendRoute
    options: Mapping[str, str]
    directory: Path  # the job's directory
    plan: str  # the plan's name, which identifies the directory to a worker
    positional: bool
    choose: Choose | None
    per_second: float | None


def run(
    workers: Workers,
    directory: Path,
    asked: Mapping[str, Any],
    routes: Callable[[ClusterMasters], Iterable[ResendRoute]],
    messages: MessageSource,
    options: Mapping[str, str],
    *,
    positional: bool = False,
    choose: Choose | None = None,
    rate: float | None = None,
    sleep: Sleep | None = None,
) -> ResendReport:
    """Begin the job of a directory, or go on with it, and send all its messages.

    ``routes`` plans a new job. ``rate`` is messages a second, of all workers together. The report names topics of the
    source that no route has.
    """

    def make() -> JobPlan:
        brokers = ClusterMasters.of(options)
        try:
            return JobPlan(uuid.uuid4().hex, dict(asked), tuple(routes(brokers)))
        finally:
            brokers.close()

    plan = _begin(directory, asked, make, sleep)
    at_once = min(workers.parallelism, len(plan.routes)) or 1
    pieces = [
        QueueTask(
            messages.within({route.queue: Span(route.start, route.end)}),
            route,
            dict(options),
            directory,
            plan.job,
            positional,
            choose,
            None if rate is None else rate / at_once,
        )
        for route in plan.routes
    ]
    done = workers.run(_send, pieces)
    skipped = {queue.topic for queue in messages.spans} - {route.topic for route in plan.routes}
    return ResendReport(len(done), sum(part.sent for part in done), tuple(sorted(skipped)))


def _begin(directory: Path, asked: Mapping[str, Any], make: Callable[[], JobPlan], sleep: Sleep | None) -> JobPlan:
    """Return the plan of the job in a directory: the existing one, or a new one.

    A killed run may still have messages in flight, so a later run waits for them. Raises ConfigError if the directory
    has another job.
    """
    path = directory / _PLAN
    if not path.exists():
        plan = make()
        replace_atomically(path, msgspec.json.format(msgspec.json.encode(plan), indent=1))
        return plan
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=JobPlan)
    except msgspec.DecodeError as error:
        raise CorruptStore(f"{path} is not the plan of a job: {error}") from None
    require_same(directory, plan.asked, asked)
    (sleep or threading.Event().wait)(SETTLE_SECONDS)
    return plan


def require_same(directory: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ConfigError that names the differences, unless a job is the one that was begun."""
    differences = [
        f"{name} was {_word(begun.get(name))} and is {_word(asked.get(name))}"
        for name in {**begun, **asked}
        if begun.get(name) != asked.get(name)
    ]
    if differences:
        raise ConfigError(
            f"{directory} belongs to another job: {', '.join(differences)}; give this one a separate directory"
        )


def _word(value: Any) -> str:
    if value in (None, False, "", [], {}):
        return "not given"
    return str(value).strip("[]")


def _ledger(directory: Path, queue: Queue) -> Path:
    name = f"{quote(queue.broker, safe='')}-{queue.queue_id}.json"
    topic = quote(queue.topic, safe="").replace(".", "%2E")  # ".." leads elsewhere
    return directory / "queues" / topic / name


def _send(piece: QueueTask) -> SourceProgress:
    """Do one piece, in a worker."""
    queue, choose = piece.route.queue, piece.choose or (lambda batch: batch)
    _require_shared(piece)
    if (task := TaskContext.get()) is not None and task.attemptNumber():
        threading.Event().wait(SETTLE_SECONDS)  # an executor that died may have a request in flight
    brokers = ClusterMasters.of(piece.options)
    try:
        return QueueResend(
            lambda start: map(choose, piece.messages.read(queue, start)),
            brokers.queue(piece.route.place),
            ProgressFile(_ledger(piece.directory, queue)),
            None if piece.positional else SourceMarks(piece.plan, queue),
            Pace(piece.per_second),
        ).run()
    finally:
        brokers.close()


def _require_shared(piece: QueueTask) -> None:
    """Raise ConfigError unless this host sees the directory where the job was begun. Progress in another directory
    would be lost, and the next run would send those messages again."""
    try:
        plan = msgspec.json.decode((piece.directory / _PLAN).read_bytes(), type=JobPlan)
    except (OSError, msgspec.DecodeError):
        plan = None
    if plan is None or plan.job != piece.plan:
        raise ConfigError(
            f"{piece.directory} on {gethostname()} is not the directory where the job was begun:"
            " it must be the same for all workers and for the process that starts the job"
        )
