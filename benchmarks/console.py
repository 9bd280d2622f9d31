"""The console in front of a large cluster: `python -m benchmarks.console`.

Three brokers have 1,000 topics, 2,000 groups, each with a lag in one topic, and 5,000 clients. Each page is loaded some
times; the time is that until the last byte, by one browser after the other. Then ten browsers look on, and the CPU of
the console's process is that of a minute. It is no measurement while something else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.machine import commit
from benchmarks.process import cpu_seconds, memory
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.producer.producer import Producer
from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import ConsumerData, Heartbeat, MessageQueue, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode

BROKERS: Final = 3
TOPICS: Final = 1000
GROUPS: Final = 2000
CLIENTS: Final = 5000
CONNECTIONS: Final = 50
QUEUES: Final = 4
BROWSERS: Final = 10
WATCHED_SECONDS: Final = 60
LOADS: Final = 7
BEAT_SECONDS: Final = 45
STAYING: Final[set[asyncio.Task[None]]] = set()
SETTLED_SECONDS: Final = 45
PAGES: Final = (
    "/", "/topics", "/topics?sort=-lag&page=7", "/topics/topic-0001", "/groups", "/groups?q=group-1",
    "/groups/group-0001", "/topics/topic-0001/messages", "/brokers", "/disk", "/name-servers", "/dead-letters",
    "/changes", "/do/topic-create",
)  # fmt: skip


class Figure(NamedTuple):
    """A measured figure, with what is asked of it."""

    case: str
    asked: str
    measured: str


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Run brokers with topics, groups, lags and clients; yield the name server."""
    command = [
        sys.executable, "-m", "firearrow", "serve", "--brokers", str(BROKERS), "--store", str(directory),
        "--namesrv-port", "0", "--broker-port", "0", "--no-console", "--log-level", "warning",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        words = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
        try:
            yield words["namesrv"]
        finally:
            process.terminate()


async def fill(name_server: str) -> None:
    """Make topics, groups and lags, and connect the clients."""
    topics = [TopicConfig(f"topic-{number:04}", QUEUES, QUEUES) for number in range(TOPICS)]
    groups = [SubscriptionGroupConfig(f"group-{number:04}") for number in range(GROUPS)]
    async with Admin.of([name_server]) as admin:
        info = await admin.cluster()
        addresses = {name: broker.broker_addrs[0] for name, broker in info.broker_addr_table.items()}
        for address in addresses.values():
            await admin.topics.create_all(address, topics)
            await admin.groups.create_all(address, groups)
        async with Producer([name_server], group="bench") as producer:
            for number in range(TOPICS):
                await producer.send_batch(f"topic-{number:04}", [b"x" * 100] * 20)
        places = [
            (address, f"group-{number:04}", MessageQueue(f"topic-{number % TOPICS:04}", name, queue))
            for number in range(GROUPS)
            for name, address in addresses.items()
            for queue in range(QUEUES)
        ]
        await concurrently(places, lambda it: admin.offsets.commit(*it, 0))
    await asyncio.gather(*(stay(number, list(addresses.values())) for number in range(CONNECTIONS)))


async def stay(connection: int, addresses: Sequence[str]) -> None:
    """Be a connected member of as many groups as belong to a connection, until the end of the program."""
    client = Client()
    share = CLIENTS // CONNECTIONS
    members = [ConsumerData(f"group-{(connection * share + number) % GROUPS:04}") for number in range(share)]
    body = fastjson.dumps(Heartbeat(f"client-{connection}", [], members))

    async def beat() -> None:
        for address in addresses:
            await client.call(address, RequestCode.HEART_BEAT, {}, body)

    async def again() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await beat()

    await beat()
    STAYING.add(asyncio.create_task(again()))


def load(port: int, path: str) -> float:
    """Seconds until the last byte of a page."""
    began = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/cluster{path}")
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, (path, answer.status, data[-500:])
    return time.perf_counter() - began


def watch(port: int, path: str, stop: threading.Event) -> None:
    """Look on: read the stream of a page."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/cluster{path}", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    while not stop.is_set() and answer.readline():
        pass
    connection.close()


def measure(name_server: str, state: Path) -> list[Figure]:
    """Measure a console of a cluster."""
    command = [sys.executable, "-m", "firearrow", "console", "-n", name_server, "--port", "0", "--state", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        try:
            time.sleep(SETTLED_SECONDS)
            figures = [
                Figure(f"page {path}", "300 ms", f"{1000 * median(load(port, path) for _ in range(LOADS)):.0f} ms")
                for path in PAGES
            ]
            figures.append(Figure("CPU without a browser", "-", f"{_share(process.pid):.3f} cores"))
            stop = threading.Event()
            paths = [PAGES[number % 5] for number in range(BROWSERS)]
            watching = [threading.Thread(target=watch, args=(port, path, stop)) for path in paths]
            for one in watching:
                one.start()
            figures.append(Figure(f"CPU with {BROWSERS} browsers", "0.1 cores", f"{_share(process.pid):.3f} cores"))
            stop.set()
            figures.append(Figure("memory", "150 MB", f"{memory([process.pid]).resident_bytes / 1e6:.0f} MB"))
            return figures
        finally:
            process.terminate()


def _share(pid: int) -> float:
    began = cpu_seconds([pid])
    time.sleep(WATCHED_SECONDS)
    return (cpu_seconds([pid]) - began) / WATCHED_SECONDS


def main(words: Sequence[str] | None = None) -> None:
    """Print the figures, and write them as JSON with ``--json FILE``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as directory, cluster(Path(directory, "stores")) as name_server:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(fill(name_server), loop).result()
        figures = measure(name_server, Path(directory, "state"))
    for figure in figures:
        print(f"{figure.case:40} {figure.measured:>14}   asked: {figure.asked}")
    if options.json:
        report = {"commit": commit(), "figures": [figure._asdict() for figure in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
