"""How each kind of number is got.

A *paired* workload runs on servers that are up during the whole case: `prepare` warms one up,
`measure` is one round on it. A *fresh* workload starts its own server in every round.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from benchmarks import clients, process, remoting
from benchmarks.errors import BenchmarkError
from benchmarks.generator import Generator, Load, Warmth, WarmUp
from benchmarks.servers import ALONE, Deployment, Keys, Launch, Shape
from benchmarks.toolchain import Tools
from benchmarks.visibility import delays_ms, percentile

Metrics = Mapping[str, float]

MEGABYTE = 1_000_000
PROBE_PAUSE_S = 0.005  # a try every 5 ms: the error of the start time, and little CPU
DISPATCH_PAUSE_S = 0.02
DISPATCH_TIMEOUT_S = 120
QUIET_S = 1  # after load: dispatch catches up, buffers are given back
READING = ("pull", "pop", "grpc-receive")
BACKLOG_SHARE_MAX = 0.9  # a consumer that read more of its backlog may have waited for messages


@dataclass(frozen=True)
class Settings:
    """Times and amounts of a run; see `FULL` and `QUICK`."""

    rounds: int
    seconds: float
    warm_up: WarmUp
    fill_messages: int
    back_messages: int
    backlog_messages: int
    restart_messages: int
    client_seconds: float
    idle_seconds: float
    growth_seconds: float
    queues_max: int
    following_seconds: float
    beating_seconds: float


FULL = Settings(
    rounds=5,
    seconds=5,
    warm_up=WarmUp(least_s=20, most_s=60),
    fill_messages=2_000_000,
    back_messages=400_000,  # what can't be sent back again within ten seconds
    backlog_messages=16_000_000,
    restart_messages=4_000_000,
    client_seconds=30,
    idle_seconds=3,
    growth_seconds=20,
    queues_max=1_000_000,
    following_seconds=25,
    beating_seconds=60,  # a client is registered again with one of six heartbeats
)
"""What the targets are judged by."""

QUICK = Settings(
    rounds=1,
    seconds=2,
    warm_up=WarmUp(least_s=2, most_s=4, window_s=1),
    fill_messages=100_000,
    back_messages=400_000,
    backlog_messages=1_500_000,
    restart_messages=100_000,
    client_seconds=14,
    idle_seconds=1,
    growth_seconds=3,
    queues_max=1_000,
    following_seconds=2,
    beating_seconds=5,
)
"""Whether everything works; its numbers are of cold servers and say nothing."""


@dataclass(frozen=True)
class Bench:
    """What workloads work with."""

    tools: Tools
    generator: Generator
    settings: Settings
    directory: Path

    @contextmanager
    def start(self, launch: Launch, shape: Shape = ALONE, keys: Keys = MappingProxyType({})) -> Iterator[Deployment]:
        """Launch a side in a new directory; stop it and delete the directory in the end."""
        parent = Path(tempfile.mkdtemp(prefix="side-", dir=self.directory))
        try:
            with launch(parent / "run", shape, keys) as deployment:
                yield deployment
        finally:
            shutil.rmtree(parent, ignore_errors=True)


class Paired(Protocol):
    """A workload whose servers stay up."""

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Bring a server to the state in which it is measured; give notes for the report."""

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Run round `number`."""


@runtime_checkable
class Fresh(Protocol):
    """A workload that starts a server for every round."""

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Run one round."""


@dataclass(frozen=True)
class RawLoad:
    """The load generator, after a warm-up with the same load.

    Pulls read what was filled in, and consumers send that back. What is acknowledged must then be
    in the queues of a topic: of the load's own, unless another is named.
    """

    load: Load
    stored_topic: str = ""
    stored_queues: int = 0

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Fill, if it is to be pulled or sent back; then warm up."""
        settings = bench.settings
        amounts = dict.fromkeys(READING, settings.fill_messages) | {"send-back": settings.back_messages}
        if self.load.mode == "grpc-send":  # a proxy sends to existing topics only
            create_topic(deployment, self.load)
        if self.load.mode in amounts:
            marked = self.load.expression is not None
            fill(bench, deployment, self.load.topic, amounts[self.load.mode], marked=marked)
        warmth = bench.generator.warm_up(self.load, deployment, settings.warm_up)
        wait_dispatched(deployment)
        return unstable(deployment, warmth)

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Load for the measured time; of sends also how fast they are in their queues."""
        del number  # every round is the same
        before, start = self._readable(deployment), time.monotonic()
        found = bench.generator.measure(self.load, deployment, bench.settings.seconds)
        wait_dispatched(deployment)
        seconds = time.monotonic() - start
        sent = self._readable(deployment) - before
        if self.load.mode not in READING and sent < found.messages:
            raise BenchmarkError(f"{deployment.side}: {found.messages} messages acknowledged, {sent} in their queues")
        return {
            "messages_per_s": found.messages_per_s,
            **({"readable_per_s": sent / seconds} if sent else {}),
            "cpu_us_per_message": found.server_cpu_us_per_message,
            "round_ms_p50": found.round_ms_p50,
            "round_ms_p99": found.round_ms_p99,
            "server_cores": found.server_cores,
            "generator_cores": found.generator_cores,
            "refused": float(sum(found.refused.values())),
        }

    def _readable(self, deployment: Deployment) -> int:
        topic = self.stored_topic or self.load.topic
        queues = self.stored_queues or self.load.queues
        return sum(remoting.messages_in(broker.address, topic, queues) for broker in deployment.brokers)


@dataclass(frozen=True)
class Push:
    """How late messages come to consumers that wait for them, at a steady rate."""

    load: Load

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Make the topic, so that all consumers find their queues; then warm up."""
        create_topic(deployment, self.load)
        return unstable(deployment, bench.generator.warm_up(self.load, deployment, bench.settings.warm_up))

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Load for the measured time, once the first messages are due.

        All that comes in that time is counted, however late; fewer than were sent mean a side that
        can't keep up, of which times say little.
        """
        del number  # every round is the same
        return self.push(bench, deployment, bench.settings.seconds, self.first_due_s)

    @property
    def first_due_s(self) -> float:
        """After how long messages come."""
        return 1 + ((self.load.due_ms or 0) + (self.load.due_step_ms or 0)) / 1000

    def push(self, bench: Bench, deployment: Deployment, seconds: float, lead_s: float) -> Metrics:
        """Load for so long; raises if no message comes."""
        found = bench.generator.measure(self.load, deployment, seconds, lead_s=lead_s)
        if found.messages == 0:
            raise BenchmarkError(f"{deployment.side}: no message came to its consumer")
        return {
            "messages_per_s": found.messages_per_s,
            "visible_ms_p50": found.round_ms_p50,
            "visible_ms_p99": found.round_ms_p99,
            "cpu_us_per_message": found.server_cpu_us_per_message,
            "generator_cores": found.generator_cores,
            "refused": float(sum(found.refused.values())),
        }


@dataclass(frozen=True)
class DueAtOnce:
    """How late very many messages come that are due in one moment, every few seconds, and how long
    others take meanwhile, from their senders to their consumers."""

    load: Load
    others: Load

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Make the topics; the others warm up."""
        create_topic(deployment, self.load)
        return Push(self.others).prepare(bench, deployment)

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Load both as long as it takes until messages have been due three times."""
        del number  # every round is the same
        due, others = Push(self.load), Push(self.others)
        lead_s = due.first_due_s
        with ThreadPoolExecutor(1) as executor:
            loading = executor.submit(due.push, bench, deployment, 2 * lead_s, lead_s)
            beside = others.push(bench, deployment, 2 * lead_s, lead_s)
            found = loading.result()
        return {**found, "others_ms_p99": beside["visible_ms_p99"], "refused": found["refused"] + beside["refused"]}


@dataclass(frozen=True)
class Visibility:
    """From a sender to a waiting consumer, while the load generator loads other queues."""

    load: Load
    topic: str = "visibility"

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Warm up with the load."""
        bench.generator.warm_up(self.load, deployment, bench.settings.warm_up)
        return []

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Probe for as long as the load lasts."""
        seconds = bench.settings.seconds
        topic = f"{self.topic}{number}"
        with ThreadPoolExecutor(1) as executor:
            loading = executor.submit(bench.generator.measure, self.load, deployment, seconds)
            delays = delays_ms(deployment.brokers[0], topic, seconds)
            found = loading.result()
        return {
            "messages_per_s": found.messages_per_s,
            "visible_ms_p50": percentile(delays, 0.5),
            "visible_ms_p99": percentile(delays, 0.99),
        }


@dataclass(frozen=True)
class BenchmarkProducer:
    """RocketMQ's own Producer: so many threads, each with one synchronous send under way."""

    threads: int
    topic: str = "clients"

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Warm the broker up with as many connections, which creates the topic as well."""
        load = Load("send", connections=16, depth=4, topic=self.topic)
        bench.generator.warm_up(load, deployment, bench.settings.warm_up)
        return []

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Run the Producer until its JVM is warm and read its last report."""
        del number
        seconds = bench.settings.client_seconds
        output = clients.produce(bench.tools, deployment, self.topic, self.threads, seconds)
        return {"messages_per_s": float(clients.last_tps(output)), "refused": float(clients.failures(output))}


@dataclass(frozen=True)
class BenchmarkConsumer:
    """RocketMQ's own Consumer, reading a backlog from its first message, a new group each round."""

    topic: str = "backlog"

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Store the backlog, then pull it until that is as fast as it gets."""
        fill(bench, deployment, self.topic, bench.settings.backlog_messages)
        load = Load("pull", connections=4, depth=1, topic=self.topic)
        bench.generator.warm_up(load, deployment, bench.settings.warm_up)
        return []

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Run the Consumer until its JVM is warm and read its last report."""
        seconds = bench.settings.client_seconds
        group = f"benchmark_consumer_{number}"
        output = clients.consume(bench.tools, deployment, self.topic, group, seconds)
        tps = clients.last_tps(output)
        backlog = bench.settings.backlog_messages
        if tps == 0 or tps * seconds > backlog * BACKLOG_SHARE_MAX:
            rate = f"{tps}/s for {seconds:.0f} s"
            raise BenchmarkError(f"{deployment.side}: {rate} does not fit a backlog of {backlog}")
        return {"messages_per_s": float(tps), "refused": float(clients.failures(output))}


@dataclass(frozen=True)
class OfficialPython:
    """The official Python client: sends, and receives with an acknowledgement for each message.

    ``load`` warms the server up.
    """

    load: Load
    threads: int

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Store what is received; then warm up by sends, which cost the server most."""
        fill(bench, deployment, self.load.topic, bench.settings.fill_messages)
        remoting.call(deployment.brokers[0].address, remoting.find_group(clients.PYTHON_GROUP))
        return unstable(deployment, bench.generator.warm_up(self.load, deployment, bench.settings.warm_up))

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Send, then receive."""
        del number  # every round is the same
        assert deployment.grpc is not None, "a shape with gRPC"
        words = deployment.grpc, self.load.topic, self.threads, bench.settings.seconds
        sent, send_failures = clients.official_python(deployment, "send", *words)
        received, receive_failures = clients.official_python(deployment, "receive", *words)
        return {"messages_per_s": sent, "received_per_s": received, "refused": float(send_failures + receive_failures)}


@dataclass(frozen=True)
class StartUp:
    """From the start of the processes, on an empty store, to the first acknowledged message."""

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Start, probe, stop."""
        start = time.monotonic()
        with bench.start(launch) as deployment:
            deployment.wait_acknowledged(PROBE_PAUSE_S)
            return {"start_s": time.monotonic() - start}


@dataclass(frozen=True)
class MemoryUse:
    """Memory idle, under load, and what a stored message costs; see `process` on private memory."""

    load: Load

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Look at it idle, after half of the load, and after all of it."""
        with bench.start(launch) as deployment:
            deployment.wait_ready()
            time.sleep(bench.settings.idle_seconds)
            idle = deployment.memory()
            first = self._load(bench, deployment)
            before = deployment.memory()
            second = self._load(bench, deployment)
            after = deployment.memory()
        growth = (after.private_bytes - before.private_bytes) / second
        return {
            "idle_resident_mb": idle.resident_bytes / MEGABYTE,
            "idle_private_mb": idle.private_bytes / MEGABYTE,
            "loaded_resident_mb": after.resident_bytes / MEGABYTE,
            "loaded_private_mb": after.private_bytes / MEGABYTE,
            "stored_messages": float(first + second),
            "private_growth_bytes_per_message": growth,
        }

    def _load(self, bench: Bench, deployment: Deployment) -> int:
        seconds = bench.settings.growth_seconds
        found = bench.generator.measure(self.load, deployment, seconds, lead_s=0)
        if found.messages == 0:
            raise BenchmarkError(f"{deployment.side}: stored nothing in {seconds:.0f} s")
        time.sleep(QUIET_S)
        return found.messages


@dataclass(frozen=True)
class IdleClients:
    """What clients by gRPC cost that only say that they are alive: memory, and the share of a core."""

    load: Load

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Connect them all; measure once each has sent a heartbeat. The highest memory of all seconds counts."""
        clients = self.load.connections
        process.allow_files(2 * clients)
        with bench.start(launch, Shape(grpc=True)) as deployment:
            deployment.wait_ready()
            create_topic(deployment, self.load)
            time.sleep(bench.settings.idle_seconds)
            before = highest = deployment.memory()
            with ThreadPoolExecutor(1) as executor:
                period_s = (self.load.period_ms or 0) / 1000
                seconds = bench.settings.beating_seconds
                loading = executor.submit(bench.generator.measure, self.load, deployment, seconds, lead_s=period_s)
                while not loading.done():
                    time.sleep(1)
                    highest = max(highest, deployment.memory(), key=lambda it: it.resident_bytes)
                found = loading.result()
        return {
            "clients": float(clients),
            "resident_mb": highest.resident_bytes / MEGABYTE,
            "kb_per_client": (highest.resident_bytes - before.resident_bytes) / clients / 1000,
            "core_percent": found.server_cores * 100,
            "cpu_us_per_heartbeat": found.server_cpu_us_per_message,
            "heartbeats_per_s": found.messages_per_s,
            "round_ms_p50": found.round_ms_p50,
            "round_ms_p99": found.round_ms_p99,
            "generator_cores": found.generator_cores,
            "refused": float(sum(found.refused.values())),
        }


def create_topic(deployment: Deployment, load: Load) -> None:
    """Make the topic of a load on all brokers; raises if one refuses."""
    for broker in deployment.brokers:
        request = remoting.create_topic(load.topic, load.queues)
        if remoting.call(broker.address, request).code != remoting.SUCCESS:
            raise BenchmarkError(f"{deployment.side}: refuses topic {load.topic}")


def unstable(deployment: Deployment, warmth: Warmth) -> list[str]:
    """Give a note about a warm-up that did not become stable."""
    if warmth.stable:
        return []
    rates = ", ".join(f"{rate:,.0f}" for rate in warmth.rates[-3:])
    return [f"{deployment.side}: not stable after {warmth.seconds:.0f} s; last rates {rates}"]


def fill(bench: Bench, deployment: Deployment, topic: str, messages: int, *, marked: bool = False) -> None:
    """Store at least so many messages of 128 bytes, by batches; raises if it takes minutes."""
    load = Load("batch", connections=4, depth=8, topic=topic, marked=marked)
    found = bench.generator.measure(load, deployment, 300, lead_s=0, messages=messages)
    if found.messages < messages:
        raise BenchmarkError(f"{deployment.side}: stored {found.messages} of {messages} messages")
    wait_dispatched(deployment)


def wait_dispatched(deployment: Deployment) -> None:
    """Wait until all messages are in their queues, those of slaves as well."""
    deployment.wait_copied()
    brokers = deployment.brokers + deployment.slaves

    def is_done() -> bool:
        return not any(remoting.undispatched_bytes(broker.address) for broker in brokers)

    remoting.until(
        f"{deployment.side}: all messages in their queues",
        is_done,
        timeout_s=DISPATCH_TIMEOUT_S,
        pause_s=DISPATCH_PAUSE_S,
        check=deployment.check,
    )
