"""Firearrow beside NATS JetStream and Apache Kafka: `python -m benchmarks.peers`, or `make bench ARGS=--peers`.

One server of each on this machine, by turns, with file storage, one replica, no fsync before an acknowledgement, and
bodies of 128 bytes. Each is driven by its own benchmark tool: the load generator of `make bench`, `nats bench`, and
Kafka's `ProducerPerformance` and `ConsumerPerformance`. So a row compares what users of each system would measure, not
the same bytes on the wire. Needs Cargo, Go, Java and Maven; the first run downloads and compiles.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, Self
from uuid import uuid4

from benchmarks import process, remoting, toolchain
from benchmarks.generator import Generator, Load
from benchmarks.machine import facts
from benchmarks.process import ServerProcess
from benchmarks.servers import ALONE, Deployment, free_ports, launch_firearrow

NATS_SERVER: Final = "github.com/nats-io/nats-server/v2@v2.15.3"
NATS_TOOL: Final = "github.com/nats-io/natscli/nats@v0.5.1"
KAFKA_VERSION: Final = "4.1.1"
KAFKA_MEMORY: Final = ("-Xms1g", "-Xmx1g")
BODY_BYTES: Final = 128
READY_SECONDS: Final = 60
TOOL_SECONDS_MAX: Final = 300
IDLE_SECONDS: Final = 5
QUEUES: Final = 4
TOPIC: Final = "load"
FIRST_MESSAGES: Final = 20_000

ONE_BY_ONE: Final = "sends, 16 clients, one by one"
IN_FLIGHT: Final = "sends, 4 clients, 32 in flight each"
MANY_IN_FLIGHT: Final = "sends, 4 clients, 500 in flight each"
BATCHES: Final = "sends in batches, as many as the client makes"
FETCHES: Final = "fetches"
START: Final = "start, until it accepts"
MEMORY: Final = "memory when idle"
UNITS: Final = {START: "s", MEMORY: "MB"}
"""Units of those cases that are no messages a second."""

OF_NATS: Final = re.compile(r"stats: ([\d,]+) msgs/sec")
OF_PRODUCER: Final = re.compile(r"sent, ([\d.]+) records/sec")
OF_CONSUMER: Final = re.compile(r"(?:[^,\n]+, ){9}([\d.]+)\s*$", re.MULTILINE)
"""Messages a second, of the fetches without the time in which the group forms."""


class Found(NamedTuple):
    """A figure, and the server's CPU for each message (µs)."""

    value: float
    cpu_us: float | None = None


@dataclass
class Tools:
    """Programs and jars of all systems."""

    generator: Generator
    nats_server: Path
    nats: Path
    java: Path
    kafka: Path


def prepare() -> Tools:
    """Find, download and build what is needed; MissingTool without a compiler or Java."""
    generator = Generator(toolchain.prepare(rocketmq=False).generator)
    go = toolchain.find("go", "build NATS (Debian: apt install golang)")
    java = toolchain.find("java", "run Kafka (Debian: apt install openjdk-17-jdk-headless)")
    maven = toolchain.find("mvn", "download Kafka (Debian: apt install maven)")
    server, tool = (toolchain.go_program(go, module) for module in (NATS_SERVER, NATS_TOOL))
    jars = toolchain.fetch_jars(maven, toolchain.HERE / "kafka.xml", f"kafka-{KAFKA_VERSION}")
    return Tools(generator, server, tool, java, jars)


class System(ABC):
    """A system under load; ``with`` stops it and deletes its files."""

    name = ""

    def __init__(self, tools: Tools, home: Path) -> None:
        self.tools = tools
        self.home = home
        self.server: ServerProcess | None = None

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and delete its files."""
        if self.server is not None:
            self.server.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def measure(self, seconds: float) -> dict[str, Found]:
        """Start the server, and measure all cases."""
        began = time.monotonic()
        self.start()
        found = {START: Found(time.monotonic() - began)}
        time.sleep(IDLE_SECONDS)
        found[MEMORY] = Found(process.memory(self.pids).resident_bytes / 1e6)
        return found | self.loads(seconds)

    @property
    def pids(self) -> list[int]:
        """Processes of the server."""
        assert self.server is not None, "it is started"
        return [self.server.pid]

    @abstractmethod
    def start(self) -> None:
        """Start the server, and return once it accepts clients."""

    @abstractmethod
    def loads(self, seconds: float) -> dict[str, Found]:
        """Measure the loads, each for about so many seconds."""

    def _started(self, command: Sequence[str | Path], address: str) -> None:
        self.server = ServerProcess.start(list(command), self.home / "server.log")
        server = self.server
        remoting.until(
            f"{self.name}: its port",
            lambda: remoting.accepts(address),
            timeout_s=READY_SECONDS,
            pause_s=0.005,
            check=server.check,
        )

    def _told(self, command: Sequence[str | Path], pattern: re.Pattern[str], messages: int) -> Found:
        """Run a tool of the system; the rate in its output, and the server's CPU meanwhile."""
        before = process.cpu_seconds(self.pids)
        text = toolchain.output(list(command), TOOL_SECONDS_MAX)
        spent = process.cpu_seconds(self.pids) - before
        return Found(last_rate(text, pattern), 1e6 * spent / messages)


class Firearrow(System):
    """Name server, broker, proxy and console: `firearrow serve`."""

    name = "Firearrow"

    def start(self) -> None:
        """Start it."""
        self.deployment: Deployment = launch_firearrow(self.home, ALONE, {})
        self.deployment.wait_ready()

    @property
    def pids(self) -> list[int]:
        """Its process."""
        return self.deployment.pids

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.deployment.__exit__(None, None, None)

    def loads(self, seconds: float) -> dict[str, Found]:
        """Measure by the load generator."""
        shapes = {
            ONE_BY_ONE: Load("send", connections=16, depth=1),
            IN_FLIGHT: Load("send", connections=4, depth=32),
            MANY_IN_FLIGHT: Load("send", connections=4, depth=500),
            BATCHES: Load("batch", connections=4, depth=8),
            FETCHES: Load("pull", connections=4),
        }
        found: dict[str, Found] = {}
        for case, shape in shapes.items():
            done = self.tools.generator.measure(shape, self.deployment, seconds)
            found[case] = Found(done.messages_per_s, done.server_cpu_us_per_message)
        return found


class Nats(System):
    """NATS with JetStream."""

    name = "NATS JetStream"

    def start(self) -> None:
        """Start the server."""
        self.home.mkdir()
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        options = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(self.home / "store")]
        self._started([self.tools.nats_server, *options], self.address)

    def loads(self, seconds: float) -> dict[str, Found]:
        """Measure by `nats bench`; each load is as long as a first look at its rate says."""
        flights = {ONE_BY_ONE: ("sync", "16", ()), IN_FLIGHT: ("async", "4", ("--batch", "32"))}
        flights[MANY_IN_FLIGHT] = "async", "4", ("--batch", "500")
        found: dict[str, Found] = {}
        for case, (way, clients, options) in flights.items():
            first = self._publish(way, clients, options, FIRST_MESSAGES, f"first-{len(found)}")
            messages = max(FIRST_MESSAGES, round(first.value * seconds))
            found[case] = self._publish(way, clients, options, messages, f"load-{len(found)}")
        found[FETCHES] = self._bench(
            ("fetch", "--batch", "500", "--acks", "none"), "4", messages, f"load-{len(found) - 1}"
        )
        return found

    def _publish(self, way: str, clients: str, options: Sequence[str], messages: int, stream: str) -> Found:
        own = ("--create", "--storage", "file", "--replicas", "1")
        return self._bench(("pub", way, stream, *options, *own), clients, messages, stream)

    def _bench(self, words: Sequence[str], clients: str, messages: int, stream: str) -> Found:
        command: list[str | Path] = [self.tools.nats, "-s", self.address, "bench", "js", *words, "--clients", clients]
        command += ["--msgs", str(messages), "--size", str(BODY_BYTES), "--no-progress", "--stream", stream]
        return self._told(command, OF_NATS, messages)


class Kafka(System):
    """Apache Kafka, broker and controller in one process."""

    name = "Kafka"

    def start(self) -> None:
        """Format the storage, and start the server."""
        self.home.mkdir()
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home / "data"),
            "num.partitions": str(QUEUES),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        file = self.home / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = uuid4().hex[:22]
        toolchain.output([*self._java("kafka.tools.StorageTool"), "format", "-t", cluster, "-c", file, "--standalone"])
        self._started([*self._java("kafka.Kafka", *KAFKA_MEMORY), file], self.address)

    def _java(self, main: str, *options: str) -> list[str | Path]:
        return [self.tools.java, *options, "-cp", f"{self.tools.kafka}/*", main]

    def loads(self, seconds: float) -> dict[str, Found]:
        """Measure by Kafka's own tools."""
        first = self._produce(100_000)
        messages = max(100_000, round(first.value * seconds))
        return {BATCHES: self._produce(messages), FETCHES: self._consume(100_000 + messages)}

    def _produce(self, messages: int) -> Found:
        command = [*self._java("org.apache.kafka.tools.ProducerPerformance"), "--topic", TOPIC]
        command += ["--num-records", str(messages), "--record-size", str(BODY_BYTES), "--throughput", "-1"]
        return self._told([*command, "--producer-props", f"bootstrap.servers={self.address}"], OF_PRODUCER, messages)

    def _consume(self, messages: int) -> Found:
        command = [*self._java("org.apache.kafka.tools.ConsumerPerformance"), "--bootstrap-server", self.address]
        command += ["--topic", TOPIC, "--messages", str(messages), "--timeout", "60000"]
        return self._told(command, OF_CONSUMER, messages)


def last_rate(text: str, pattern: re.Pattern[str]) -> float:
    """Give the last rate in the output of a tool: that of all its clients."""
    return float(pattern.findall(text)[-1].replace(",", ""))


SYSTEMS: Final[Mapping[str, type[System]]] = {"firearrow": Firearrow, "nats": Nats, "kafka": Kafka}


def main(arguments: list[str] | None = None) -> int:
    """Measure by turns, print a table, and write it to the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (default: 10)")
    parser.add_argument("--work-dir", type=Path, help="directory of stores (the system's temporary)")
    parser.add_argument("--results", type=Path, default=toolchain.HERE / "results", help="directory of the report")
    given = parser.parse_args(arguments)
    tools = prepare()
    chosen = given.system or list(SYSTEMS)
    rounds: defaultdict[str, defaultdict[str, list[Found]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(dir=given.work_dir) as directory:
        for number in range(given.rounds):
            for key in chosen:
                with SYSTEMS[key](tools, Path(directory) / f"{key}-{number}") as system:
                    for case, found in system.measure(given.seconds).items():
                        rounds[case][key].append(found)
                        print(f"{number + 1}  {system.name}: {case}: {_shown(case, found)}", flush=True)
    table = _table(rounds, chosen)
    print(f"\n{table}")
    place = given.results / f"{datetime.now().astimezone():%Y-%m-%d}-peers"
    place.with_suffix(".md").write_text(f"{_head(given)}\n\n{table}", encoding="utf-8")
    every = {case: {key: [one._asdict() for one in row] for key, row in by.items()} for case, by in rounds.items()}
    machine = facts(toolchain.prepare(rocketmq=False))
    place.with_suffix(".json").write_text(json.dumps({"machine": machine, "rounds": every}, indent=1) + "\n")
    return 0


def _head(given: argparse.Namespace) -> str:
    versions = f"NATS {NATS_SERVER.rpartition('@v')[2]}, Kafka {KAFKA_VERSION}"
    return f"{versions}; medians of {given.rounds} rounds by turns, {given.seconds:g} s each, bodies of 128 bytes."


def _table(rounds: Mapping[str, Mapping[str, Sequence[Found]]], systems: Sequence[str]) -> str:
    lines = [f"| load | {' | '.join(SYSTEMS[key].name for key in systems)} |", f"|---|{'---|' * len(systems)}"]
    for case, by_system in rounds.items():
        cells = [_shown(case, _median(by_system[key])) if key in by_system else "–" for key in systems]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _median(found: Sequence[Found]) -> Found:
    spent = [one.cpu_us for one in found if one.cpu_us is not None]
    return Found(statistics.median(one.value for one in found), statistics.median(spent) if spent else None)


def _shown(case: str, found: Found) -> str:
    if case in UNITS:
        return f"{found.value:.3g} {UNITS[case]}"
    return f"{found.value:,.0f}/s, {found.cpu_us or 0:.1f} µs of CPU"


if __name__ == "__main__":
    raise SystemExit(main())
