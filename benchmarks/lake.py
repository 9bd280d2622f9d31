"""Typed tables, empty steps, small jobs and many queues: `python -m benchmarks.lake`.

Tables are filled by two processes of this machine, without Spark's JVM. Their rate is that of the JSON bodies, by wall
time. The best of some rounds counts, after one to warm up. It is no measurement while something else runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.machine import commit
from benchmarks.spark import (
    LEAN,
    LEAN_BYTES_SUM,
    MB,
    ORDER,
    QUEUES,
    SIZES,
    Body,
    best,
    make_store,
    messages_in,
    of_spark,
    order,
    session,
    some,
)
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec
from firearrow.spark.jobs.workers import Workers, local_workers
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import MessageReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS: Final = 2
LOG_BYTES: Final = 300 * MB
MANY_QUEUES: Final = {"300 MB": LOG_BYTES, "3 GB": 10 * LOG_BYTES}
WORDS: Final = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "lambda")
FLAT: Final = "order string, customer string, cents long, paid boolean, placed timestamp, city string, note string"
FEW: Final = "order string, customer string, cents long, paid boolean, placed timestamp, city string"
EMPTY_TRIGGERS: Final = 20
QUEUE_COUNTS: Final = (100, 10_000)


@dataclass(frozen=True)
class Figure:
    """A measured figure, with what is asked of it."""

    case: str
    value: float
    unit: str
    asked: str = ""
    note: str = ""


def flat(number: int, noise: bytes) -> bytes:
    """An order without lines."""
    text = noise.hex()
    return json.dumps(
        {
            "order": f"order-{number}",
            "customer": f"customer-{int(text[:4], 16) % 5000}",
            "cents": int(text[4:8], 16),
            "paid": noise[5] < 128,
            "placed": f"2026-11-29T12:{number % 60:02}:{number // 60 % 60:02}Z",
            "city": WORDS[noise[6] % 8],
            "note": " ".join(WORDS[at % 8] for at in noise[7 : 7 + len(noise) // 6]),
        }
    ).encode()


# name, sizes of the noise that bodies are made of, bodies, columns
SHAPES: Final[tuple[tuple[str, tuple[int, int], Body, str], ...]] = (
    ("7 of 7 fields", (60, 140), flat, FLAT),
    ("6 of 7 fields, a long text left out", (800, 1000), flat, FEW),
    ("5 fields, one of them a list of 9 texts", (100, 1024), order, ORDER),
)


def tables(home: Path, rounds: int) -> Iterator[Figure]:
    """Fill a table of a topic from its begin."""
    for number, (name, sizes, body, columns) in enumerate(SHAPES):
        root = home / f"store-{number}"
        make_store(root, sizes, LOG_BYTES, topics=1, body=body)
        rows = messages_in(root)
        size = sum(map(len, bodies(root)))
        with local_workers(WORKERS) as workers:
            seconds, _ = best(partial(fill, workers, root, columns, rows), rounds, 1)
        yield Figure(
            f"typed table, bodies of {size / rows:.0f} bytes, {name}",
            size / MB / seconds,
            "MB/s",
            ">= 250",
            f"{rows / seconds:,.0f} rows/s",
        )


def bodies(root: Path) -> Iterator[bytes]:
    """Yield the bodies of a store."""
    reader = MessageReader(parse({"path": str(root)}), some(["body"]))
    for task in reader.partitions():
        for batch in reader.read(task):
            yield from batch.column(0).to_pylist()


def fill(workers: Workers, root: Path, columns: str, rows: int) -> None:
    """Fill a new table, which must get all rows."""
    lake = tempfile.mkdtemp(dir=root.parent)
    spec = TableSpec(topics="topic-00", schema=columns)
    filling = LakeFilling(workers, Lake({"path": str(root)}, lake, (spec,), by_attributes=False))
    filling.round()
    [status] = filling.statuses.values()
    assert (status.rows, status.undecoded, status.trouble) == (rows, 0, ""), status


def empty_steps(spark: SparkSession, home: Path) -> Iterator[Figure]:
    """Look at a store of 80 queues that has no new message: a stream of Spark, and a service of one table."""
    root = home / "store-idle"
    make_store(root, SIZES["300"], MB)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    reader = spark.readStream.format("rocketmq").options(brokerName="store", startingOffsets="latest")
    query = reader.load(str(root)).writeStream.format("noop").option("checkpointLocation", str(home / "idle")).start()
    try:
        while len(steps := query.recentProgress) < 2 * EMPTY_TRIGGERS:
            query.processAllAvailable()
            time.sleep(0.1)
    finally:
        query.stop()
    millis = [step["durationMs"]["triggerExecution"] for step in steps[-EMPTY_TRIGGERS:]]
    yield Figure("a trigger with nothing new, the median", sorted(millis)[EMPTY_TRIGGERS // 2], "ms", "<= 300")
    spec = TableSpec(topics="topic-00", schema="id string")
    with local_workers(1) as workers:
        filling = LakeFilling(workers, Lake({"path": str(root)}, str(home / "lake"), (spec,), by_attributes=False))
        filling.round()
        seconds, _ = best(filling.round, EMPTY_TRIGGERS)
    yield Figure("a round of a service with nothing new", 1000 * seconds, "ms")


def small_jobs(home: Path, rounds: int) -> Iterator[Figure]:
    """Run jobs of the command line over a small store."""
    root = str(home / "store-idle")
    jobs = {"backlog": [], "tables": ["--to", str(home / "small"), "--topic", "topic-00", "--schema", "id string"]}
    for job, more in jobs.items():
        command = [sys.executable, "-m", "firearrow", "pipeline", job, "--path", root, *more]
        run = partial(subprocess.run, command, check=True, capture_output=True)
        seconds, _ = best(run, rounds, 1)
        yield Figure(f"pipeline {job} of a small store", seconds, "s", "<= 6")


def many_queues(spark: SparkSession, home: Path, rounds: int) -> Iterator[Figure]:
    """Scan three columns of logs of one size, which differ in the number of their queues."""
    for name, log_bytes in MANY_QUEUES.items():
        rates = {}
        for count in QUEUE_COUNTS:
            root = home / f"store-{count}-queues"
            size = make_store(root, SIZES["760"], log_bytes, topics=count // QUEUES)
            rates[count] = size / best(partial(scan, spark, root), rounds, 2)[0]
            shutil.rmtree(root)
        few, many = rates.values()
        case = f"scan of {name} with {QUEUE_COUNTS[1]:,} queues, by that with {QUEUE_COUNTS[0]}"
        yield Figure(case, many / few, "x", ">= 0.8", f"{many / MB:,.0f} and {few / MB:,.0f} MB/s")


def scan(spark: SparkSession, root: Path) -> None:
    """Read three columns of a store."""
    reader = spark.read.format("rocketmq").schema(of_spark(LEAN))
    reader.load(str(root)).selectExpr(*LEAN_BYTES_SUM).collect()


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lake", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each case; the best counts")
    parser.add_argument("--work-dir", type=Path, help="directory of stores and tables (the system's temporary)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    given = parser.parse_args(arguments)
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=given.work_dir) as name:
        home = Path(name)
        for figure in measured(home, given.rounds):
            found.append(figure)
            print(line(figure), flush=True)
    if given.json:
        results = {"firearrow": commit(), "results": [asdict(figure) for figure in found]}
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(home: Path, rounds: int) -> Iterator[Figure]:
    """Measure everything."""
    yield from tables(home, rounds)
    with session() as spark:
        yield from empty_steps(spark, home)
        yield from many_queues(spark, home, rounds)
    yield from small_jobs(home, rounds)


def line(figure: Figure) -> str:
    """Give a figure for people."""
    asked = f"  (asked: {figure.asked})" if figure.asked else ""
    note = f", {figure.note}" if figure.note else ""
    return f"{figure.case:70s}{figure.value:10,.2f} {figure.unit}{note}{asked}"


if __name__ == "__main__":
    sys.exit(main())
