"""Spark's executors as workers of the store's offline tools.

A tool consists of pieces of work on a store, and of a function that joins their results
(``firearrow.store.offline.pieces``). Executors run the pieces, each a task; the driver joins the results. All of them
must see the store's files below the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.store.offline import Layout
from firearrow.store.offline.pieces import SharedView, work_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.store.offline import StoreView

_TASKS_A_CORE: Final = 4

P = TypeVar("P")
R = TypeVar("R")


class Executors:
    """``firearrow.store.offline.Workers`` on Spark: ``at_once`` pieces are one job of Spark.

    A small number limits the results that the driver holds. As many pieces as there are cores keep all of them busy.
    """

    def __init__(self, spark: SparkSession, at_once: int | None = None) -> None:
        self._workers = SparkWorkers(spark)
        self._at_once = at_once

    def work(self, view: StoreView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Yield the results in the order of the pieces; if one piece fails, the call fails."""
        shared = SharedView.of(view)
        at_once = self._at_once or len(pieces) or 1
        for start in range(0, len(pieces), at_once):
            yield from self._job(shared, function, pieces[start : start + at_once])

    def _job(self, shared: SharedView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> list[R]:
        """Run some pieces. A task takes several of them, because it costs more than a small piece.

        The pieces of a task are not neighbours: the end of a log's last file is long and empty.
        """
        tasks = min(len(pieces), _TASKS_A_CORE * self.cores)
        shares = [pieces[number::tasks] for number in range(tasks)]
        done = self._workers.run(partial(_work_on_all, shared, function), shares)
        return [done[number % tasks][number // tasks] for number in range(len(pieces))]

    @property
    def cores(self) -> int:
        """Number of tasks that run at the same time."""
        return self._workers.parallelism


def _work_on_all(shared: SharedView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> list[R]:
    return [work_on(shared, function, piece) for piece in pieces]


def layout_of(store: Path | str | Layout) -> Layout:
    """Return the layout of a store directory with log, index and delay levels in their usual places."""
    return store if isinstance(store, Layout) else Layout.of(Path(store))
