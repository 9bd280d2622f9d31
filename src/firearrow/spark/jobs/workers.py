"""Workers for the pieces of a job: Spark's executors, or processes of this machine.

A job that reduces messages to a few numbers, or writes them itself, needs only workers from Spark, and a JVM would only
cost time. Pieces and functions travel as pickles either way.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cached_property, partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeVar

from firearrow.errors import FirearrowError
from firearrow.spark.session import is_remote
from firearrow.spark.workererrors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")


class WorkersLost(FirearrowError):
    """Workers that can't go on."""


class Workers(Protocol):
    """Runner of a function on many pieces at once."""

    @property
    def parallelism(self) -> int:
        """Approximate number of pieces that run at once."""

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        """Return the results in the order of the pieces; if one piece fails, the call fails."""


class SparkWorkers:
    """The executors of a Spark application, one task a piece.

    A Spark Connect session has other tasks than a classic one, which keeps RDDs: for small pieces they need less than
    half the time of ``mapInArrow``.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @cached_property
    def parallelism(self) -> int:
        """The cores of the executors."""
        if is_remote(self._spark):
            from firearrow.spark.jobs import connecttasks

            return connecttasks.default_parallelism(self._spark)
        return self._spark.sparkContext.defaultParallelism

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        """Run a job of as many tasks as there are pieces."""
        if not pieces:
            return []
        told = partial(_told, work)
        if is_remote(self._spark):
            from firearrow.spark.jobs import connecttasks

            return connecttasks.run(self._spark, told, pieces)
        return self._spark.sparkContext.parallelize(pieces, len(pieces)).map(told).collect()


def _told(work: Callable[[P], R], piece: P) -> R:
    with short_errors():
        return work(piece)


class SameProcess:
    """This process, which does one piece after the other."""

    parallelism = 1

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        """Run the pieces."""
        return [work(piece) for piece in pieces]


class ProcessWorkers:
    """Processes of this machine. ``local_workers`` starts and ends them."""

    def __init__(self, pool: ProcessPoolExecutor, parallelism: int) -> None:
        self._pool = pool
        self.parallelism = parallelism

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        """Run the pieces. Raises WorkersLost if a process dies, and from then on."""
        try:
            return list(self._pool.map(work, pieces))
        except BrokenProcessPool:
            raise WorkersLost("a worker process has died, for example for lack of memory: start again") from None


@contextmanager
def local_workers(jobs: int, start_method: str = "spawn") -> Iterator[ProcessWorkers]:
    """Run ``jobs`` processes during a block; they end when this process ends, whatever the cause.

    They finish their work when the block ends, but Ctrl-C does not wait for them.
    """
    context = get_context(start_method)
    watched, end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent, initargs=(watched,))
    try:
        yield ProcessWorkers(pool, jobs)
    except (KeyboardInterrupt, SystemExit):
        end.send_bytes(b"end")  # no process reads it, so all see it
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        end.close()
        watched.close()


def end_with_parent(end: Connection | None = None) -> None:
    """Let this process end when its parent ends, even if the parent is killed.

    It also ends at once when there is something to read in ``end``. Ctrl-C ends it without a message, because the
    parent reports that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    ends: list[Connection | int] = [] if end is None else [end]
    if parent is not None:
        ends.append(parent.sentinel)
    if ends:
        Thread(target=_exit_after, args=(ends,), daemon=True).start()


def _exit_after(ends: list[Connection | int]) -> None:
    wait(ends)
    os._exit(1)
