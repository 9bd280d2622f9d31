"""What very many queues cost, with ``storeType=defaultRocksDB``, by how many there are.

For each number of queues, a store is filled with one message in each, stopped and started again;
then messages go to queues by chance. Topics have up to a thousand queues. The requests come from
Python, over plain sockets: slower than the load generator, but no slower for many queues than for
few, so what is claimed is the ratio.
"""

import random
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from benchmarks import remoting
from benchmarks.errors import BenchmarkError
from benchmarks.servers import ALONE, Deployment, Launch
from benchmarks.workloads import Bench, Metrics

QUEUES_A_TOPIC = 1000
CONNECTIONS = 4
DEPTH = 32
BODY = b"x" * 128
START_PAUSE_S = 0.02
KEYS = {"storeType": "defaultRocksDB"}
Target = tuple[str, int]

METRICS = {
    "start_s": ("start s", ".2f"),
    "private_mb": ("private MB", ",.0f"),
    "open_files": ("open files", ",.0f"),
    "messages_per_s": ("messages/s", ",.0f"),
    "share": ("rate as a share of that with few", ".3f"),
}
COUNTS = (100, 1_000, 10_000, 100_000, 1_000_000)


def name_of(metric: str, count: int) -> str:
    """Name a metric of a store with so many queues."""
    return f"{metric}_{count}"


@dataclass(frozen=True)
class ManyQueues:
    """Start, memory, open files and rate with each number of queues; the first has few."""

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Go through all numbers of queues, each on a store of its own."""
        found: dict[str, float] = {}
        counts = [count for count in COUNTS if count <= bench.settings.queues_max]
        for count in counts:
            for metric, value in _measure(bench, launch, count).items():
                found[name_of(metric, count)] = value
            few = found[name_of("messages_per_s", counts[0])]
            found[name_of("share", count)] = found[name_of("messages_per_s", count)] / few
        return found


def _measure(bench: Bench, launch: Launch, count: int) -> Metrics:
    parent = Path(tempfile.mkdtemp(prefix="queues-", dir=bench.directory))
    try:
        with launch(parent / "run", ALONE, KEYS) as deployment:
            deployment.wait_ready()
            _create_topics(deployment, count)
            _fill(deployment, count)
            deployment.stop()
            again = parent / "again"
            again.mkdir()
            (deployment.directory / "store").rename(again / "store")
        start = time.monotonic()
        with launch(again, ALONE, KEYS) as deployment:
            deployment.wait_acknowledged(START_PAUSE_S)
            start_s = time.monotonic() - start
            rate = _load(deployment, count, bench.settings.seconds)
            return {
                "start_s": start_s,
                "private_mb": deployment.memory().private_bytes / 1e6,
                "open_files": float(max(map(_open_files, deployment.pids))),
                "messages_per_s": rate,
            }
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def target(number: int) -> Target:
    """Give the topic and queue id of a queue."""
    return f"many-{number // QUEUES_A_TOPIC}", number % QUEUES_A_TOPIC


def _create_topics(deployment: Deployment, count: int) -> None:
    with remoting.Line(deployment.brokers[0].address, timeout_s=60) as line:
        for first in range(0, count, QUEUES_A_TOPIC):
            code = line.ask(remoting.create_topic(target(first)[0], min(QUEUES_A_TOPIC, count - first))).code
            if code != remoting.SUCCESS:
                raise BenchmarkError(f"{deployment.side}: a topic was refused with {code}")


def _fill(deployment: Deployment, count: int) -> None:
    """Send one message to each queue, in an order by chance."""
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    with Sender(deployment) as sender:
        while numbers:
            sender.round(map(target, numbers[-sender.round_messages :]))
            del numbers[-sender.round_messages :]


def _load(deployment: Deployment, count: int, seconds: float) -> float:
    """Send to queues by chance for twice the time; give the rate of the second half."""
    source = random.Random(2)
    some = [target(source.randrange(count)) for _ in range(1 << 18)]
    with Sender(deployment) as sender:
        for _ in range(2):
            start, sent = time.monotonic(), 0
            while (took := time.monotonic() - start) < seconds:
                first = source.randrange(len(some) - sender.round_messages)
                sent += sender.round(some[first : first + sender.round_messages])
    return sent / took


class Sender:
    """Connections that each have DEPTH sends under way at once; a context that closes them."""

    round_messages = CONNECTIONS * DEPTH

    def __init__(self, deployment: Deployment) -> None:
        """Connect to the first broker."""
        broker = deployment.brokers[0]
        host, _, port = broker.address.rpartition(":")
        self._side = deployment.side
        self._connections = [socket.create_connection((host, int(port)), 60) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._header = (
            '{"code":310,"extFields":{"a":"load","b":"%s","c":"TBW102","d":"4","e":"%d","f":"0",'
            f'"g":"{time.time_ns() // 1_000_000}","h":"0","i":"","j":"0","k":"false","m":"false",'
            f'"n":"{broker.name}"}},"flag":0,"language":"JAVA","opaque":%d,'
            '"serializeTypeCurrentRPC":"JSON","version":497}'
        )
        self._opaque = 0

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def round(self, targets: Iterable[Target]) -> int:
        """Send a message to each of up to ``round_messages`` queues; return how many."""
        frames = self._frames(targets)
        waiting: list[tuple[socket.socket, int]] = []
        for connection in self._connections:
            some = list(islice(frames, DEPTH))
            if some:
                connection.sendall(b"".join(some))
                waiting.append((connection, len(some)))
        for connection, count in waiting:
            self._read(connection, count)
        return sum(count for _, count in waiting)

    def _frames(self, targets: Iterable[Target]) -> Iterator[bytes]:
        for topic, queue_id in targets:
            self._opaque += 1
            header = (self._header % (topic, queue_id, self._opaque)).encode()
            lengths = remoting.LENGTHS.pack(4 + len(header) + len(BODY), len(header))
            yield lengths + header + BODY

    def _read(self, connection: socket.socket, count: int) -> None:
        """Read so many answers; each must be an acknowledgement."""
        data = bytearray()
        at = 0
        while count:
            more = connection.recv(1 << 16)
            if not more:
                raise BenchmarkError(f"{self._side}: the broker closed a connection")
            data += more
            while count and len(data) >= at + 4:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if len(data) < end:
                    break
                if b'"code":0,' not in data[at:end]:
                    raise BenchmarkError(f"{self._side}: refused: {bytes(data[at:end])[:300]!r}")
                at, count = end, count - 1


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
