"""Spark's executors as workers of the store's offline tools.

A tool is pieces of work on a store and what makes one result of theirs
(``firearrow.store.offline.pieces``). Executors do the pieces, each a task; the driver makes the
result. All of them must see the store's files below the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from firearrow.spark.workererrors import in_a_sentence
from firearrow.store.offline import Layout
from firearrow.store.offline.pieces import SharedView, work_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.store.offline import StoreView

_TASKS_A_CORE: Final = 4

P = TypeVar("P")
R = TypeVar("R")


class Executors:
    """Implements ``firearrow.store.offline.Workers``: so many pieces at once are a job of Spark.

    Few at once bound the results that the driver holds, as many as there are cores let none rest.
    """

    def __init__(self, spark: SparkSession, at_once: int | None = None) -> None:
        self._context = spark.sparkContext
        self._at_once = at_once

    def work(self, view: StoreView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Give the results in the order of the pieces; a failure of one is one of all."""
        shared = SharedView.of(view)
        at_once = self._at_once or len(pieces) or 1
        for start in range(0, len(pieces), at_once):
            yield from self._job(shared, function, pieces[start : start + at_once])

    def _job(self, shared: SharedView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> list[R]:
        """Do some pieces. A task takes several, as it costs more than a small piece does; not side
        by side, as the end of a log's last file is much room and nothing in it."""
        tasks = min(len(pieces), _TASKS_A_CORE * self.cores)
        shares = [pieces[number::tasks] for number in range(tasks)]
        task = partial(_work_on_all, shared, function)
        done = self._context.parallelize(shares, tasks).map(task).collect()
        return [done[number % tasks][number // tasks] for number in range(len(pieces))]

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        return self._context.defaultParallelism


def _work_on_all(shared: SharedView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> list[R]:
    with in_a_sentence():
        return [work_on(shared, function, piece) for piece in pieces]


def layout_of(store: Path | str | Layout) -> Layout:
    """A store directory whose log, index and delay levels are where and as they usually are."""
    return store if isinstance(store, Layout) else Layout.of(Path(store))
