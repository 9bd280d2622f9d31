"""An archive of a broker that is being written to and deletes old files, killed again and again.

The archiving process, or one of its workers, is killed at random. In the end the archive holds
every message that the broker has acknowledged exactly once, with its bytes. Whoever reads archive
and store as one table meanwhile gets each message once, at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from firearrow.client.queues import Queue
from firearrow.errors import DataLost, FirearrowError
from firearrow.message.batch import encode_batch
from firearrow.spark.jobs.archive.archiving import archive, source
from firearrow.spark.jobs.archive.delta import Archive, State
from firearrow.spark.jobs.archive.progress import FILES
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import batch_spans
from firearrow.spark.source.opening import open_origin
from firearrow.spark.tables import MESSAGES
from firearrow.wire.command import FieldValue, request
from tests.broker.serving import pull_fields, send_fields
from tests.crash.victim import QUEUES, serving
from tests.net.talker import Talker, talking
from tests.spark.jobs.archiver import Forks, forking
from tests.spark.jobs.inline import Inline

ROUNDS = int(os.environ.get("FIREARROW_ARCHIVE_KILL_ROUNDS", "20"))
GROUP = "archive"
RETENTION = (
    "brokerFastFailureEnable=false",  # this machine may be busy
    "unconsumedPolicy=keep",
    "fileReservedTime=0",
    f"deleteWhen={';'.join(f'{hour:02}' for hour in range(24))}",
    "cleanResourceInterval=100",
    "mappedFileSizeCommitLog=262144",
)
COMMIT = 15


class Producer(threading.Thread):
    """Sends batches until it is told to stop, and has the broker delete what is archived."""

    def __init__(self, port: int, kept: Archive, seed: int) -> None:
        super().__init__(name="producer")
        self._port = port
        self._kept = kept
        self._random = Random(seed)
        self.stop = threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._produce())
        except (OSError, EOFError, AssertionError) as error:
            self.failure = error

    async def _produce(self) -> None:
        async with talking(self._port) as talker:
            for queue_id in range(QUEUES):
                await self._send(talker, queue_id)
                talker.ask(request(11, pull_fields(consumerGroup=GROUP), opaque=3))
                await talker.answer()  # now there is such a group
                await self._commit(talker, queue_id, 0)
            for number in itertools.count():
                if self.stop.is_set():
                    return
                await self._send(talker, self._random.randrange(QUEUES))
                if number % 20 == 0:
                    for queue, offset in self._kept.load().offsets.items():
                        await self._commit(talker, queue.queue_id, offset)
                await asyncio.sleep(0.005)  # a load that leaves some of the machine to others

    async def _send(self, talker: Talker, queue_id: int) -> None:
        size = self._random.randrange(400)
        bodies = [self._random.randbytes(8 + size) for _ in range(self._random.randrange(1, 30))]
        batch = encode_batch([(0, body, b"KEYS\x01k\x02") for body in bodies])
        talker.ask(request(320, send_fields("T", queue_id, m=True), batch, opaque=1))
        answer = await talker.answer()
        assert answer.code == 0, answer
        first = int(answer.ext["queueOffset"])
        for queue_offset, body in enumerate(bodies, first):
            self.acknowledged[queue_id, queue_offset] = body

    async def _commit(self, talker: Talker, queue_id: int, offset: int) -> None:
        fields: dict[str, FieldValue] = {
            "consumerGroup": GROUP, "topic": "T", "queueId": queue_id, "commitOffset": offset
        }  # fmt: skip
        talker.ask(request(COMMIT, fields, opaque=2))
        assert (await talker.answer()).code == 0


class Consumer(threading.Thread):
    """Reads archive and store as one table, again and again."""

    def __init__(self, store: Path, kept: Archive, producer: Producer) -> None:
        super().__init__(name="consumer")
        self._options = parse({"path": str(store), "archive": str(kept.root), "subscribe": "T", "splitBytes": "64k"})
        self._producer = producer
        self.stop = threading.Event()
        self.tables = 0
        self._counts = [0] * QUEUES
        self.failure: Exception | None = None

    def run(self) -> None:
        while not self.stop.wait(0.8):
            try:
                self._compare()
            except DataLost:
                continue  # it was archived and deleted while it was read
            except (FirearrowError, OSError, AssertionError) as error:
                self.failure = error
                return

    def _compare(self) -> None:
        origin = open_origin(self._options)
        tasks = origin.partitions(batch_spans(origin, self._options))
        columns = pa.schema([MESSAGES.field(n) for n in ("queueId", "queueOffset", "body")])
        batches = [batch for task in tasks for batch in origin.read(task, columns)]
        rows = pa.Table.from_batches(batches, columns).to_pydict().values()
        found = {(queue, offset): body for queue, offset, body in zip(*rows, strict=True)}
        assert len(found) == sum(batch.num_rows for batch in batches), "a message is there twice"
        acknowledged = dict(self._producer.acknowledged)
        assert all(acknowledged.get(place, body) == body for place, body in found.items())
        for queue_id in range(QUEUES):
            count = sum(queue == queue_id for queue, _ in found)
            assert all((queue_id, offset) in found for offset in range(count)), "one is missing"
            assert count >= self._counts[queue_id]
            self._counts[queue_id] = count
        self.tables += 1


class Archivers:
    """Starts archiving processes and kills them."""

    def __init__(self, forks: Forks, log: Path, kept: Archive, random: Random) -> None:
        self._forks = forks
        self._log = log
        self._kept = kept
        self._known: set[str] = set()
        self._random = random
        self.interrupted = 0  # steps that had written files and were not committed

    def round(self, seconds: float) -> None:
        """Let one work for some time, then kill it, or a worker of it, which ends it too."""
        pid = self._forks.start()
        threading.Event().wait(seconds)
        if self._random.random() < 0.7:
            self._wait_for_a_step()
        try:
            workers = _children(pid)
        except FileNotFoundError as error:
            raise AssertionError(f"it has ended:\n{self._log.read_text()[-3000:]}") from error
        self._forks.kill(self._random.choice([pid, pid, *workers]))
        self.interrupted += bool(self._written() - self._kept.load().files.keys())
        self._known |= self._written()

    def _written(self) -> set[str]:
        """The files that this round has begun or written."""
        root = Path(self._kept.root)
        return {str(path.relative_to(root)) for path in root.glob("topic=*/*/*")} - self._known

    def _wait_for_a_step(self) -> None:
        """Wait until one has begun a file, and a moment longer."""
        before = self._written()
        for _ in range(60_000):
            if self._written() - before:
                break
            threading.Event().wait(0.0005)
        threading.Event().wait(self._random.uniform(0, 0.003))


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@contextmanager
def archivers(store: Path, root: str, random: Random) -> Iterator[Archivers]:
    log = Path(root).with_name("archiver.log")
    with forking(store, root, log) as forks:
        yield Archivers(forks, log, Archive(root), random)


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_a_killed_archive_holds_every_message_exactly_once(tmp_path: Path) -> None:
    random = Random(ROUNDS)
    store, kept = tmp_path / "store", Archive(tmp_path / "archive")
    with serving(store, *RETENTION) as (process, port):
        producer = Producer(port, kept, ROUNDS)
        consumer = Consumer(store, kept, producer)
        producer.start()
        try:
            with archivers(store, kept.root, random) as killed:
                while not kept.load().version:  # an empty archive is an error
                    killed.round(random.uniform(0.1, 1.2))
                consumer.start()
                rounds = 0  # that take longer to commit or join anything on a busy machine
                while rounds < ROUNDS or not is_busy(kept.load()):
                    killed.round(random.uniform(0.1, 1.2) * max(1, rounds / ROUNDS))
                    rounds += 1
        finally:
            for thread in (consumer, producer):
                thread.stop.set()
                if thread.ident is not None:
                    thread.join()
        assert (producer.failure, consumer.failure) == (None, None)
        assert consumer.tables > ROUNDS // 4
        process.terminate()
        assert process.wait(30) == 0
    archive(Inline(), source({"path": str(store), "subscribe": "T"})[0], kept)
    compare(kept, producer.acknowledged)
    first = min(path.name for path in (store / "commitlog").iterdir())
    assert int(first) > 0, "retention has deleted nothing"
    assert is_busy(kept.load())
    assert killed.interrupted or ROUNDS < 20
    assert kept.load().progress.gaps == []


def is_busy(state: State) -> bool:
    """Whether enough was committed, and files were joined."""
    return state.version > ROUNDS // 2 and FILES in state.numbers


def compare(kept: Archive, acknowledged: dict[tuple[int, int], bytes]) -> None:
    table = DeltaTable(kept.root).to_pyarrow_table()
    names = ("topic", "queueId", "queueOffset", "body")
    columns = [table.column(name).to_pylist() for name in names]
    assert set(columns[0]) == {"T"}
    places = list(zip(columns[1], columns[2], strict=True))
    assert len(places) == len(set(places)), "a message is archived twice"
    assert dict(zip(places, columns[3], strict=True)) == acknowledged
    assert set(kept.load().offsets) == {Queue("T", _broker(table), n) for n in range(QUEUES)}


def _broker(table: pa.Table) -> str:
    (name,) = set(table.column("broker").to_pylist())
    return str(name)
