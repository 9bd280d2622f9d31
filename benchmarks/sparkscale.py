"""How bulk work on Spark grows, and what it is beside: `python -m benchmarks.sparkscale`.

- *curves*: rebuild and archive of one log by 1, 2 and 4 local workers, and of logs of differing
  size by 2. More workers than cores gain nothing; a cost that grows with the size is a line.
- *sink*: rows written through Spark, beside what the load generator's batches reach at the same
  broker.
- *peers*: the same bodies as plain files through Spark's `binaryFile`, and the same log pulled
  from a broker by a plain client, one request at a time, in Python.

It is no measurement while something else runs. The sink's generator needs Cargo.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import remoting, toolchain
from benchmarks.generator import Generator, Load
from benchmarks.machine import commit
from benchmarks.servers import ALONE, Deployment, launch_firearrow
from benchmarks.spark import MB, QUEUES, SIZES, TOPICS, GiB, best, make_store, session
from firearrow.message.record import iter_records
from firearrow.spark.jobs.archive.archiving import archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.rebuild import rebuilt
from firearrow.spark.jobs.workers import SparkWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS: Final = (1, 2, 4)
SIZES_GIB: Final = (0.25, 1.0, 4.0, 8.0)
SPARE_BYTES: Final = 1 << 24  # what fits into files of 1 GiB besides their blank ends
SINK_ROWS: Final = 4_000_000
BATCHED: Final = Load("batch", connections=4, depth=8, topic="sink")
GENERATOR_SECONDS: Final = 5
SINK_TARGET: Final = 0.8  # of the messages that the generator's batches reach
BODY_FILE_BYTES: Final = 16 << 20

Found = dict[str, Any]


def curve(homes: Path, workers: int, size_gib: float, rounds: int) -> Iterator[Found]:
    """Rebuild and archive of a log of one size, by so many workers; the best of some rounds."""
    root = homes / f"store-{size_gib:g}"
    size = log_of(root, size_gib)
    opener, settings = source({"path": str(root)})
    with session(workers) as spark:
        jobs: tuple[tuple[str, Callable[[Path], object]], ...] = (
            ("rebuild", lambda place: rebuilt(spark, root, to=place)),
            ("archive", lambda place: archive(SparkWorkers(spark), opener, Archive(str(place)), settings)),
        )
        for job, run in jobs:
            seconds = of_places(run, homes, rounds)
            yield {
                "case": job,
                "workers": workers,
                "log_gib": size_gib,
                "seconds": seconds,
                "mb_per_s": size / MB / seconds,
            }


def log_of(root: Path, size_gib: float) -> int:
    """Make a log, if it is not there; return the bytes of it that hold records."""
    mark = root.with_suffix(".bytes")
    if not mark.exists():
        size = make_store(root, SIZES["760"], int(size_gib * (GiB - SPARE_BYTES)))
        mark.write_text(str(size))
    return int(mark.read_text())


def of_places(run: Callable[[Path], object], homes: Path, rounds: int) -> float:
    """Seconds of the best round; each writes to a place of its own, after one to warm up."""
    with tempfile.TemporaryDirectory(dir=homes) as home:
        places = (Path(home) / str(number) for number in range(rounds + 1))
        return best(lambda: run(next(places)), rounds, 1)[0]


def sink(homes: Path, rounds: int) -> Iterator[Found]:
    """Messages per second through the sink, and by the generator's batches, alternating."""
    generator = Generator(toolchain.prepare(rocketmq=False).generator)
    with launch_firearrow(homes / "broker", ALONE, {}) as deployment, session(2) as spark:
        deployment.wait_ready()
        written: list[float] = []
        sent: list[float] = []
        for number in range(rounds + 1):
            batched = generator.measure(BATCHED, deployment, GENERATOR_SECONDS)
            rows = write_rows(spark, deployment)
            if number:  # the first warms up
                sent.append(batched.messages_per_s)
                written.append(rows)
    yield {"case": "generator's batches", "messages_per_s": max(sent)}
    yield {"case": "sink", "messages_per_s": max(written), "ratio": max(written) / max(sent), "target": SINK_TARGET}


def write_rows(spark: SparkSession, deployment: Deployment) -> float:
    """Rows per second of a batch job that writes bodies of 128 bytes."""
    rows = spark.range(SINK_ROWS).selectExpr("cast(repeat('x', 128) as binary) as body")
    start = time.perf_counter()
    rows.write.format("rocketmq").mode("append").options(nameServer=deployment.namesrv, topic="sink").save()
    return SINK_ROWS / (time.perf_counter() - start)


def peers(homes: Path, rounds: int) -> Iterator[Found]:
    """The bodies of a log, by each of the ways to all of them; MB of bodies per second."""
    root = homes / "store-1"
    log_of(root, 1.0)
    with session(2) as spark:
        frame = spark.read.format("rocketmq").schema("body binary").load(str(root))
        total = "sum(length(body))"
        ((size,),) = frame.selectExpr(total).collect()
        ways: list[tuple[str, Callable[[], object]]] = [
            ("this source, bodies only", lambda: frame.selectExpr(total).collect())
        ]
        plain = homes / "bodies"
        write_bodies(root, plain)
        files = spark.read.format("binaryFile").load(str(plain))
        ways.append(("binaryFile", lambda: files.selectExpr("sum(length(content))").collect()))
        for name, run in ways:
            yield of_bodies(name, size, best(run, rounds, 1)[0])
    holder = homes / "holder"
    holder.mkdir()
    root.rename(holder / "store")
    with launch_firearrow(holder, ALONE, {}) as deployment:
        deployment.wait_ready()
        address = deployment.brokers[0].address
        for topic in range(TOPICS):
            remoting.call(address, remoting.create_topic(f"topic-{topic:02d}", QUEUES))
        yield of_bodies("plain client", size, best(lambda: pull_all(address, size), rounds)[0])


def of_bodies(name: str, size: int, seconds: float) -> Found:
    """One way to all bodies."""
    return {"case": name, "seconds": seconds, "body_mb_per_s": size / MB / seconds}


def write_bodies(root: Path, place: Path) -> None:
    """Put the bodies of a log one after another into plain files."""
    place.mkdir()
    pieces = bytearray()
    for path in sorted((root / "commitlog").iterdir()):
        for view in iter_records(path.read_bytes()):
            pieces += view.body
            if len(pieces) >= BODY_FILE_BYTES:
                number = len(list(place.iterdir()))
                (place / f"{number:05d}").write_bytes(pieces)
                pieces.clear()
    (place / "last").write_bytes(pieces)


def pull_all(address: str, expected_bytes: int) -> None:
    """Pull every queue to its end, and decode every message."""
    found = 0
    with remoting.Line(address) as line:
        for topic in range(TOPICS):
            for queue_id in range(QUEUES):
                found += pull_queue(line, f"topic-{topic:02d}", queue_id)
    assert found == expected_bytes, (found, expected_bytes)


def pull_queue(line: remoting.Line, topic: str, queue_id: int) -> int:
    """The bytes of a queue's bodies."""
    found = queue_offset = 0
    while True:
        answer = line.ask(remoting.pull("plain", topic, queue_id, queue_offset))
        if answer.code != remoting.SUCCESS:
            return found
        for view in iter_records(answer.body):
            found += len(view.body)
        queue_offset = int(answer.fields["nextBeginOffset"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for, and print what each found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparkscale", description=__doc__)
    parser.add_argument("--part", choices=["curves", "sink", "peers"], action="append")
    parser.add_argument("--rounds", type=int, default=3, help="of each case; the best counts")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES_GIB, help="GiB of logs")
    parser.add_argument("--work-dir", type=Path, help="where logs go (the system's temporary)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    given = parser.parse_args(arguments)
    results: list[Found] = []
    with tempfile.TemporaryDirectory(dir=given.work_dir) as home:
        for found in parts(given, Path(home)):
            results.append(found)
            print(found, flush=True)
    if given.json:
        found_by = {"firearrow": commit(), "results": results}
        given.json.write_text(json.dumps(found_by, indent=1) + "\n", encoding="utf-8")
    return 0


def parts(given: argparse.Namespace, homes: Path) -> Iterator[Found]:
    """What the chosen parts find, one after another."""
    chosen = given.part or ["curves", "sink", "peers"]
    if "curves" in chosen:
        for workers in WORKERS:
            yield from curve(homes, workers, 1.0, given.rounds)
        for size_gib in given.sizes:
            if size_gib != 1.0:
                yield from curve(homes, 2, size_gib, given.rounds)
    if "sink" in chosen:
        yield from sink(homes, given.rounds)
    if "peers" in chosen:
        yield from peers(homes, given.rounds)


if __name__ == "__main__":
    sys.exit(main())
