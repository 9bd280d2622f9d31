"""ConsumeQueues and IndexFiles rebuilt: ``firearrow store rebuild`` with executors that read.

Executors return the entries of stretches of the log. The driver writes them in the order of the log, so the bytes equal
a broker's, and swaps the new files with the old.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from firearrow.clock import Clock, SystemClock
from firearrow.spark.jobs.storework import Executors, layout_of
from firearrow.store.offline import ALL, Layout, Order, Rebuilt, rebuild

WRITTEN: Final = "kind string, file string, bytes long, remark string"
MADE: Final = {"consumequeue": "queue", "batchconsumequeue": "queue", "consumequeue_rocksdb": "queue", "index": "index"}
"""The directories that a rebuild makes, and the kind of their files."""
_ROUNDS: Final = 4  # pieces for each core in a job; all their results are in the driver's memory


def rebuilt(
    spark: SparkSession,
    store: Path | str | Layout,
    *,
    to: Path | None = None,
    order: Order = ALL,
    clock: Clock | None = None,
) -> Rebuilt:
    """Rebuild queues, index or both, in place or below another directory.

    Raises StoreLocked while a broker runs, and StoreError if ``to`` has such files.
    """
    at_once = _ROUNDS * Executors(spark).cores
    order = msgspec.structs.replace(order, workers=Executors(spark, at_once))
    return rebuild(layout_of(store), clock or SystemClock(), order, to=to)


def written(
    spark: SparkSession,
    store: Path | str | Layout,
    *,
    to: Path | None = None,
    order: Order = ALL,
    clock: Clock | None = None,
) -> DataFrame:
    """Rebuild queues, index or both, and return the files that exist now.

    kind (queue, index, left out), file (relative to the store or ``to``; of a row that was left out the queue, or a
    topic that is not configured), bytes, remark (why it was left out). Raises the errors of ``rebuilt``.
    """
    made = rebuilt(spark, store, to=to, order=order, clock=clock)
    return spark.createDataFrame(list(_rows(made, order)), WRITTEN)


def _rows(made: Rebuilt, order: Order) -> Iterator[tuple[str, str, int | None, str | None]]:
    root = Path(made.where)
    for name, kind in MADE.items():
        if order.queues if kind == "queue" else order.index:
            for path in sorted((root / name).rglob("*")):
                if path.is_file():
                    yield kind, path.relative_to(root).as_posix(), path.stat().st_size, None
    for queue, reason in made.left_out.items():
        yield "left out", queue, None, reason
    for topic, entries in made.unconfigured.items():
        yield "left out", topic, None, f"not configured: treated as deleted, with {entries} entries"
