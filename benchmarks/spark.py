"""How fast Spark reads a store's files: `python -m benchmarks.spark`.

A log is made by Firearrow's store, the same one at every run: 20 topics of four queues, and records
of about 760 or 300 bytes. It is read by the file source alone, in one process, and through Spark on
two cores. Rates are bytes of the whole log by wall time, the best of some rounds after one to warm
up, or two where Spark compiles what it runs; a stream's are bytes of the rows that its steps read.
The CPU time of the source alone is given too.

It is no measurement while something else runs.
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from benchmarks.machine import commit
from benchmarks.sparkfloor import Repeated
from firearrow.clock import SystemClock
from firearrow.message.hosts import Host, pack_host
from firearrow.spark import configure
from firearrow.spark.bodies.decode import decoded
from firearrow.spark.options import parse as parse_options
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.source.opening import open_origin
from firearrow.spark.tables import DECLARED, MESSAGES
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig
from firearrow.store.scan import scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MB: Final = 1_000_000
GiB: Final = 1 << 30
SEED: Final = 5
TOPICS: Final = 20
QUEUES: Final = 4
START_MS: Final = 1_795_000_000_000
SIZES: Final = {"760": (100, 1024), "300": (60, 140)}  # of bodies: bytes, from ... to before ...
ORDER: Final = "id string, customer long, cents long, paid boolean, lines array<string>"
REBUILD_GOAL: Final = "4 times the original's, by the same log: see benchmarks/README.md"
LEAN: Final = ("topic", "queueOffset", "storeTimestamp")
# What a record does not hold as it is: made of it, or, of the broker, beside it.
MADE: Final = {"broker", "msgId", "offsetMsgId", "bornHost", "storeHost", "tags", "keys"}
RECORD: Final = tuple(name for name in MESSAGES.names if name not in MADE)


@dataclass(frozen=True)
class Measured:
    """A case: bytes of the log by second of wall time, and what it is to reach.

    ``target`` is such a rate, ``goal`` says what is to be reached where that is none.
    """

    case: str
    megabytes_per_s: float
    seconds: float
    target: float | None = None
    cpu_seconds: float | None = None
    goal: str = ""


@dataclass(frozen=True)
class Step:
    """A step of a stream that read something: how many rows, and how long it took."""

    rows: int
    seconds: float


def order(number: int, noise: bytes) -> bytes:
    """An order in JSON, about as long as ``noise``, from which its numbers and words are."""
    text = noise.hex()
    fields = {
        "id": f"order-{number}",
        "customer": int(text[:8], 16),
        "cents": int(text[8:12], 16),
        "paid": noise[6] < 128,
        "lines": [text[at : at + 16] for at in range(16, len(text) - 176, 40)],
    }
    return json.dumps(fields).encode()


Body = Callable[[int, bytes], bytes]
BODIES: Final[dict[str, Body]] = {"random": lambda _, noise: noise, "json": order}


def make_store(
    root: Path,
    sizes: tuple[int, int],
    log_bytes: int,
    body: Body = BODIES["random"],
    *,
    topics: int = TOPICS,
    queues: int = QUEUES,
) -> int:
    """Write a log of about so many bytes and its queues; return its exact size.

    ``sizes`` are those of the noise that bodies are made of.
    """
    chance = random.Random(SEED)
    noise = chance.randbytes(1 << 20)
    hosts = [pack_host(Host(f"10.0.0.{n}", 4000 + n)) for n in range(8)]
    config = StoreConfig(store_path_root_dir=str(root), message_index_enable=False)
    store = MessageStore(config, SystemClock(), pack_host(Host("127.0.0.1", 10911)))
    store.open(background=False)
    try:
        places = [store.queue(f"topic-{n:02d}", q) for n in range(topics) for q in range(queues)]
        number = end = 0
        while end < log_bytes:
            size, at = chance.randrange(*sizes), chance.randrange(len(noise) - sizes[1])
            pairs = (
                f"KEYS\x01order-{number}",
                f"UNIQ_KEY\x01{number:032X}",
                f"TAGS\x01Tag{number % 5}",
                "WAIT\x01true\x02",
            )
            now_ms = START_MS + number // 3
            place = store.log.append(
                chance.choice(places), body(number, noise[at : at + size]),
                "\x02".join(pairs).encode(), 0, 0, now_ms - 5, hosts[number % 8], now_ms, 0,
            )  # fmt: skip
            number += 1
            end = place + size
            if number % 20_000 == 0:
                settle(store)
        settle(store)
    finally:
        store.close()
    return end


def settle(store: MessageStore) -> None:
    """Dispatch what was appended."""
    while store.dispatch():
        pass


def alone(root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """The file source in this process, on one core."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    log = {"visibility": "log"}
    cases: list[tuple[str, pa.Schema, dict[str, str], float | None]] = [
        ("alone, the record's 14 columns", some(RECORD), {}, 1500),
        ("alone, the record's 14 columns, visibility=log", some(RECORD), log, None),
        ("alone, all 21 columns", MESSAGES, {}, None),
        ("alone, all 21 columns, visibility=log", MESSAGES, log, None),
        ("alone, 3 columns", some(LEAN), {}, None),
    ]
    seconds, cpu = best(lambda: scanned(root), rounds, 1)
    yield Measured("alone, records found and fixed fields read", size / MB / seconds, seconds, None, cpu)
    for name, schema, options, target in cases:
        seconds, cpu = best(lambda s=schema, o=options: read(root, s, o), rounds, 1)  # type: ignore[misc]
        yield Measured(name, size / MB / seconds, seconds, target, cpu)


def some(names: Sequence[str]) -> pa.Schema:
    """Columns of the table of messages, as the source declares them."""
    return pa.schema([DECLARED["messages"].field(name) for name in names])


def of_spark(names: Sequence[str]) -> StructType:
    """The same for Spark."""
    return from_arrow_schema(some(names))


def scanned(root: Path) -> int:
    """Walk the log, and read the fixed fields of all records; return how many there are."""
    count = 0
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as log:
            at = 0
            while records := len(columns := scan(log, at, len(log))):
                count += records
                at = columns.end
            del columns  # of the file that is closed now
    return count


def read(root: Path, schema: pa.Schema, options: dict[str, str]) -> int:
    """Read everything; return how many messages that were."""
    reader = MessageReader(parse_options({"path": str(root), **options}), schema)
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def best(run: Callable[[], Any], rounds: int, warm_up: int = 0) -> tuple[float, float]:
    """Wall and CPU seconds of the fastest of some rounds, after some that are not measured."""
    found: list[tuple[float, float]] = []
    for _ in range(warm_up):
        run()
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(found)


@contextmanager
def session(workers: int = 2) -> Iterator[SparkSession]:
    """Spark with so many local workers, without a page of its own."""
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().master(f"local[{workers}]").appName("firearrow benchmark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    made = configure(builder).getOrCreate()
    try:
        yield made
    finally:
        made.stop()


FULL_SUM: Final = (
    "sum(length(body))", "sum(length(properties))", "max(storeTimestamp)", "max(queueOffset)",
    "max(msgId)",
)  # fmt: skip
# The same columns without what Spark does with texts, which is half of the JVM's time in the other
# query: characters are counted one by one, and for the greatest text each row is copied.
BYTES_SUM: Final = (
    "sum(octet_length(body))", "sum(octet_length(properties))", "max(storeTimestamp)",
    "max(queueOffset)", "sum(octet_length(msgId))",
)  # fmt: skip
RECORD_BYTES_SUM: Final = (*BYTES_SUM[:-1], "sum(octet_length(topic))")
LEAN_SUM: Final = ("max(storeTimestamp)", "max(queueOffset)", "max(topic)")
LEAN_BYTES_SUM: Final = ("max(storeTimestamp)", "max(queueOffset)", "sum(octet_length(topic))")


def through_spark(spark: SparkSession, root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """Scans to an aggregate; of one topic the rate is that of the whole log, to be compared."""

    def frame(names: Sequence[str] = (), **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").options(**options)
        return (reader.schema(of_spark(names)) if names else reader).load(str(root))

    cases: list[tuple[str, Callable[[], DataFrame], float | None]] = [
        ("Spark, the record's 14 columns, bytes counted",
         lambda: frame(RECORD).selectExpr(*RECORD_BYTES_SUM), 750),
        ("Spark, all 21 columns, bytes counted", lambda: frame().selectExpr(*BYTES_SUM), None),
        ("Spark, all 21 columns, characters counted", lambda: frame().selectExpr(*FULL_SUM), None),
        ("Spark, 3 columns, bytes counted",
         lambda: frame(LEAN).selectExpr(*LEAN_BYTES_SUM), 1600),
        ("Spark, 3 columns, greatest text", lambda: frame(LEAN).selectExpr(*LEAN_SUM), None),
        ("Spark, one topic of 20 (subscribe)",
         lambda: frame(subscribe="topic-07").selectExpr(*BYTES_SUM), None),
        ("Spark, one topic of 20 (pushdown=on)",
         lambda: frame(pushdown="on").where("topic = 'topic-07'").selectExpr(*BYTES_SUM), None),
        ("Spark, one topic of 20 (filter only)",
         lambda: frame().where("topic = 'topic-07'").selectExpr(*BYTES_SUM), None),
    ]  # fmt: skip
    for name, make, target in cases:
        seconds, _ = best(lambda m=make: m().collect(), rounds, 2)  # type: ignore[misc]
        yield Measured(name, size / MB / seconds, seconds, target)


def typed(spark: SparkSession, root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """Orders as typed columns, decoded in the JVM."""

    def totals() -> object:
        messages = spark.read.format("rocketmq").schema(of_spark(["body"])).load(str(root))
        sums = ("count(undecoded)", "sum(value.cents)", "max(value.id)", "sum(size(value.lines))")
        [found] = decoded(messages, "json", ORDER).selectExpr(*sums).collect()
        assert found[0] == 0
        return found

    seconds, _ = best(totals, rounds, 2)
    yield Measured("Spark, JSON bodies decoded", size / MB / seconds, seconds)


def floors(spark: SparkSession, root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """What Spark takes for as many rows, and the same queries, from a source that does nothing."""
    spark.dataSource.register(Repeated)
    rows = str(messages_in(root))

    def frame(names: Sequence[str]) -> DataFrame:
        reader = spark.read.format("repeated").option("rows", rows)
        return reader.schema(of_spark(names)).load(str(root))

    def hand_over(names: Sequence[str]) -> None:
        frame(names).write.format("noop").mode("overwrite").save()

    every = MESSAGES.names
    cases: list[tuple[str, Callable[[], object]]] = [
        ("14 columns, bytes counted",
         lambda: frame(RECORD).selectExpr(*RECORD_BYTES_SUM).collect()),
        ("14 columns, every row", lambda: hand_over(RECORD)),
        ("21 columns, bytes counted", lambda: frame(every).selectExpr(*BYTES_SUM).collect()),
        ("21 columns, characters counted", lambda: frame(every).selectExpr(*FULL_SUM).collect()),
        ("21 columns, every row", lambda: hand_over(every)),
    ]  # fmt: skip
    for name, run in cases:
        seconds, _ = best(run, rounds, 2)
        yield Measured(f"limit: Spark by itself, {name}", size / MB / seconds, seconds)


def limits(root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """What the machine can do: read the log from the page cache, and copy memory."""
    files = sorted((root / "commitlog").iterdir())
    buffer = bytearray(8 << 20)
    source = bytes(256 << 20)

    def fill() -> None:
        for path in files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    whole = sum(path.stat().st_size for path in files)
    seconds, cpu = best(fill, rounds, 1)
    yield Measured("limit: page cache", whole / MB / seconds, seconds, None, cpu)
    seconds, cpu = best(lambda: bytearray(source), rounds, 1)
    yield Measured("limit: memory copy", len(source) / MB / seconds, seconds, None, cpu)


def jobs(spark: SparkSession, root: Path, size: int, rounds: int) -> Iterator[Measured]:
    """Bulk jobs over the whole log."""
    from firearrow.spark.jobs.archive.archiving import archive, source
    from firearrow.spark.jobs.archive.delta import Archive
    from firearrow.spark.jobs.rebuild import rebuilt
    from firearrow.spark.jobs.verify import verdict_of
    from firearrow.spark.jobs.workers import SparkWorkers

    opener, settings = source({"path": str(root)})
    cases: list[tuple[str, Callable[[Path], object], float | None, str]] = [
        ("verify", lambda _: verdict_of(spark, root), 400, ""),
        ("rebuild", lambda place: rebuilt(spark, root, to=place), None, REBUILD_GOAL),
        ("archive",
         lambda place: archive(SparkWorkers(spark), opener, Archive(str(place)), settings), 350,
         ""),
    ]  # fmt: skip
    for name, run, target, goal in cases:
        with tempfile.TemporaryDirectory(dir=root.parent) as home:
            places = (Path(home) / str(number) for number in range(rounds + 1))
            seconds, _ = best(lambda r=run, p=places: r(next(p)), rounds, 1)  # type: ignore[misc]
        yield Measured(name, size / MB / seconds, seconds, target, goal=goal)


def streams(spark: SparkSession, root: Path, size: int) -> Iterator[Measured]:
    """A stream that catches up in large steps, and what a small step costs at the median."""
    record_bytes = size / messages_in(root)
    cases: list[tuple[str, Sequence[str], Sequence[str], float | None]] = [
        ("the record's 14 columns of every row", RECORD, (), 450),
        ("the record's 14 columns, bytes counted", RECORD, RECORD_BYTES_SUM, 450),
        ("all 21 columns of every row", MESSAGES.names, (), None),
        ("all 21 columns, bytes counted", MESSAGES.names, BYTES_SUM, None),
    ]
    for name, columns, totals, target in cases:
        steps = stream_steps(spark, root, {"maxBytesPerTrigger": "256m"}, columns, totals)
        warm = steps[1:-1] or steps
        case = f"stream, steps of 256 MiB, {name}"
        seconds = sum(step.seconds for step in warm) / len(warm)
        yield Measured(case, rate_of(warm, record_bytes), seconds, target)
        whole = [stream_steps(spark, root, {}, columns, totals) for _ in range(2)]
        fastest = min(whole, key=lambda steps: sum(step.seconds for step in steps))
        seconds = sum(step.seconds for step in fastest)
        yield Measured(f"stream, one step, {name}", rate_of(fastest, record_bytes), seconds, target)
    small = stream_steps(spark, root, {"maxOffsetsPerTrigger": "2000", "assign": ONE_QUEUE}, MESSAGES.names)
    small = small[3:] or small
    middle = sorted(small, key=lambda step: step.seconds)[len(small) // 2]
    rate = rate_of([middle], record_bytes)
    yield Measured("stream, a small step", rate, middle.seconds, goal="at most 0.16 s")


def messages_in(root: Path) -> int:
    """How many messages the queues of a store hold."""
    bounds = open_origin(parse_options({"path": str(root)})).bounds()
    return sum(bound.latest - bound.earliest for bound in bounds.values())


def rate_of(steps: Sequence[Step], record_bytes: float) -> float:
    """Give MB of the log by second: of the rows that steps read, by how long these took."""
    read = sum(step.rows for step in steps) * record_bytes
    return read / MB / sum(step.seconds for step in steps)


ONE_QUEUE: Final = '{"topic-07":{"store":[1]}}'


def stream_steps(
    spark: SparkSession, root: Path, limits: dict[str, str], columns: Sequence[str], totals: Sequence[str] = ()
) -> list[Step]:
    """Give the steps, with rows, of a query that reads what there is.

    It has some columns of every row handed over, or keeps totals.
    """
    with tempfile.TemporaryDirectory(dir=root.parent) as home:
        options = {"startingOffsets": "earliest", "brokerName": "store", **limits}
        reader = spark.readStream.format("rocketmq").options(**options)
        stream = reader.schema(of_spark(columns)).load(str(root))
        kept = stream.groupBy().agg(*map(fn.expr, totals)) if totals else stream
        query = (
            kept.writeStream.format("noop")
            .outputMode("complete" if totals else "append")
            .option("checkpointLocation", home)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took = [json.loads(step.json) for step in query.recentProgress]
    return [
        Step(step["numInputRows"], step["durationMs"]["triggerExecution"] / 1000)
        for step in took
        if step["numInputRows"]
    ]


def main(arguments: list[str] | None = None) -> int:
    """Make the logs, read them and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--record", choices=list(SIZES), action="append", help="bytes of a record")
    parser.add_argument("--bodies", choices=list(BODIES), action="append", help="what is in them")
    parser.add_argument("--log-bytes", type=int, default=GiB - (1 << 24), help="of each log")
    parser.add_argument("--rounds", type=int, default=3, help="of each case; the best counts")
    parser.add_argument("--alone", action="store_true", help="without Spark")
    parser.add_argument("--work-dir", type=Path, help="where logs go (the system's temporary)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    given = parser.parse_args(arguments)
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=given.work_dir) as home:
        for record, kind in product(given.record or SIZES, given.bodies or BODIES):
            name = record if kind == "random" else f"{record} {kind}"
            root = Path(home) / f"store-{record}-{kind}"
            size = make_store(root, SIZES[record], given.log_bytes, BODIES[kind])
            found = [*limits(root, size, given.rounds), *alone(root, size, given.rounds)]
            if not given.alone:
                with session() as spark:
                    found += floors(spark, root, size, given.rounds)
                    found += through_spark(spark, root, size, given.rounds)
                    if kind == "json":
                        found += typed(spark, root, size, given.rounds)
                    found += jobs(spark, root, size, given.rounds)
                    found += streams(spark, root, size)
            results[name] = [asdict(measured) for measured in found]
            for measured in found:
                print(line(name, measured), flush=True)
            shutil.rmtree(root)
    if given.json:
        found_by = {"firearrow": commit(), "results": results}
        given.json.write_text(json.dumps(found_by, indent=1) + "\n", encoding="utf-8")
    return 0


def line(record: str, measured: Measured) -> str:
    """One result for people."""
    target = measured.goal if measured.target is None else f"{measured.target:.0f}"
    goal = f"  (target: {target})" if target else ""
    cpu = "" if measured.cpu_seconds is None else f", CPU {measured.cpu_seconds:.2f} s"
    rate = f"{measured.megabytes_per_s:8.0f} MB/s"
    return f"{record} B  {measured.case:40s}{rate} in {measured.seconds:.2f} s{cpu}{goal}"


if __name__ == "__main__":
    sys.exit(main())
