"""Workloads, with the load generator and the servers replaced: what they count, and what fails."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from benchmarks import remoting, workloads
from benchmarks.errors import BenchmarkError
from benchmarks.generator import Generator, Load, Measurement
from benchmarks.process import Memory
from benchmarks.servers import Broker, Deployment, Launch, Shape
from benchmarks.toolchain import Tools
from benchmarks.workloads import QUICK, Bench, DueAtOnce, IdleClients, Push, RawLoad

FOUND = Measurement(
    messages=100,
    messages_per_s=50,
    round_ms_p50=1.5,
    round_ms_p99=3,
    server_cpu_us_per_message=10,
    server_cores=1,
    generator_cores=0.1,
    refused={},
)


class Loaded:
    """A generator that has found something already."""

    def __init__(self, found: Measurement) -> None:
        self.found = found
        self.lead_s = 0.0

    def measure(self, load: Load, deployment: Deployment, seconds: float, *, lead_s: float = 1) -> Measurement:
        self.lead_s = lead_s
        return self.found


def bench(generator: Loaded) -> Bench:
    return Bench(Tools(Path("load")), cast(Generator, generator), QUICK, Path())


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(workloads, "wait_dispatched", lambda _: None)
    return Deployment("side", [], "", (Broker("a", "127.0.0.1:1"),), Path())


def stored(monkeypatch: pytest.MonkeyPatch, *counts: int) -> list[tuple[str, int]]:
    """Have a topic so many messages, call by call; gives which was asked for."""
    left, asked = list(counts), []

    def messages_in(_: str, topic: str, queues: int) -> int:
        asked.append((topic, queues))
        return left.pop(0)

    monkeypatch.setattr(remoting, "messages_in", messages_in)
    return asked


def test_idle_clients_cost_what_their_highest_memory_is(
    monkeypatch: pytest.MonkeyPatch, deployment: Deployment
) -> None:
    class Idle(Loaded):
        def measure(self, load: Load, deployment: Deployment, seconds: float, *, lead_s: float = 1) -> Measurement:
            assert (seconds, lead_s) == (QUICK.beating_seconds, 0.5)
            time.sleep(0.01)
            return self.found

    shapes: list[Shape] = []

    @contextmanager
    def launch(directory: Path, shape: Shape, keys: Mapping[str, str]) -> Iterator[Deployment]:
        shapes.append(shape)
        yield deployment

    sizes = iter([50, 450, *[100] * 9])
    monkeypatch.setattr(Deployment, "wait_ready", lambda _: None)
    monkeypatch.setattr(Deployment, "memory", lambda _: Memory(next(sizes) * 10**6, 0))
    monkeypatch.setattr(workloads, "create_topic", lambda *_: None)
    load = Load("grpc-idle", connections=100, period_ms=500)
    found = IdleClients(load).measure_fresh(bench(Idle(FOUND)), cast(Launch, launch))
    assert (found["resident_mb"], found["kb_per_client"], found["core_percent"]) == (450, 4000, 100)
    assert shapes == [Shape(grpc=True)]


def test_what_is_acknowledged_must_be_stored(monkeypatch: pytest.MonkeyPatch, deployment: Deployment) -> None:
    asked = stored(monkeypatch, 1000, 1120)
    load = RawLoad(Load("send-back", connections=4), "SCHEDULE_TOPIC_XXXX", 18)
    assert load.measure(bench(Loaded(FOUND)), deployment, 0)["messages_per_s"] == 50
    assert asked == [("SCHEDULE_TOPIC_XXXX", 18)] * 2
    stored(monkeypatch, 1000, 1099)
    with pytest.raises(BenchmarkError, match="100 messages acknowledged, 99 in their queues"):
        load.measure(bench(Loaded(FOUND)), deployment, 0)


def test_pulls_store_nothing(monkeypatch: pytest.MonkeyPatch, deployment: Deployment) -> None:
    asked = stored(monkeypatch, 7, 7)
    load = RawLoad(Load("pull", connections=4))
    assert "readable_per_s" not in load.measure(bench(Loaded(FOUND)), deployment, 0)
    assert asked == [("load", 4)] * 2


def test_delays_are_measured_once_the_first_are_due(deployment: Deployment) -> None:
    generator = Loaded(FOUND)
    load = Push(Load("push", connections=1, due_ms=1000, due_step_ms=500))
    found = load.measure(bench(generator), deployment, 0)
    assert generator.lead_s == 2.5
    assert (found["visible_ms_p50"], found["visible_ms_p99"]) == (1.5, 3)


def test_consumers_that_see_nothing_are_an_error(deployment: Deployment) -> None:
    generator = Loaded(replace(FOUND, messages=0))
    with pytest.raises(BenchmarkError, match="no message came to its consumer"):
        Push(Load("push", connections=1)).measure(bench(generator), deployment, 0)


def test_others_are_measured_while_all_come_that_are_due_at_once(deployment: Deployment) -> None:
    class Both(Loaded):
        def measure(self, load: Load, deployment: Deployment, seconds: float, *, lead_s: float = 1) -> Measurement:
            assert (seconds, lead_s) == (24, 12)
            return replace(self.found, round_ms_p99=4000 if load.due_step_ms else 7)

    all_due = Load("push", connections=1, due_ms=1000, due_step_ms=10_000)
    load = DueAtOnce(all_due, Load("push", connections=1))
    found = load.measure(bench(Both(FOUND)), deployment, 0)
    assert (found["visible_ms_p99"], found["others_ms_p99"]) == (4000, 7)
    with pytest.raises(BenchmarkError, match="no message came to its consumer"):
        load.measure(bench(Both(replace(FOUND, messages=0))), deployment, 0)
