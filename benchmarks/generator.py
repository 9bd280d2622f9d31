"""The load generator (`benchmarks/load`, a small Rust program) as seen from Python."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from benchmarks.servers import Deployment

OVERTIME_S = 30  # what a run may take beyond its own times, connecting and ending included


@dataclass(frozen=True)
class Load:
    """A shape of load: `mode` is a word of the generator; `depth` requests are under way at once.

    With `push`, so many messages a second go to consumers that wait, and times count from when a
    message is due: `due_ms` after it was sent, with a `property` that delays it, or with a delivery
    time at the next multiple of `due_step_ms`. `marked` batches have properties, by which an
    `expression` chooses in pulls. Consumers wait by pulls, or by `pops`; pops may be in `order`.
    Each idle client sends a heartbeat every `period_ms`.
    """

    mode: str
    connections: int
    depth: int = 1
    body_bytes: int = 128
    batch: int = 32
    queues: int = 4
    topic: str = "load"
    rate: int | None = None
    due_ms: int | None = None
    due_step_ms: int | None = None
    property: str | None = None
    marked: bool = False
    pops: bool = False
    order: bool = False
    expression: str | None = None
    period_ms: int | None = None

    def arguments(self) -> list[str]:
        """Give it as the generator's command line."""
        words = [self.mode, "--topic", self.topic]
        for name in ("connections", "depth", "body_bytes", "batch", "queues"):
            words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        for name in ("rate", "due_ms", "due_step_ms", "property", "expression", "period_ms"):
            if getattr(self, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        for name in ("marked", "pops", "order"):
            if getattr(self, name):
                words += [f"--{name}", "true"]
        return words


@dataclass(frozen=True)
class WarmUp:
    """How long to warm up: at least and at most so many seconds."""

    least_s: float
    most_s: float
    window_s: float = 2
    within_percent: float = 5


@dataclass(frozen=True)
class Measurement:
    """What one run found; times are of rounds, that is of `depth` requests sent at once."""

    messages: int
    messages_per_s: float
    round_ms_p50: float
    round_ms_p99: float
    server_cpu_us_per_message: float
    server_cores: float
    generator_cores: float
    refused: dict[str, int]


@dataclass(frozen=True)
class Warmth:
    """How a warm-up went: whether the rate became stable, and the rate of each window."""

    stable: bool
    seconds: float
    rates: tuple[float, ...]


class Generator:
    """Runs loads against a deployment."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def measure(
        self, load: Load, deployment: Deployment, seconds: float, *, lead_s: float = 1, messages: int | None = None
    ) -> Measurement:
        """Load for `lead_s` unmeasured and `seconds` measured, or until so many messages."""
        times = ["--lead-seconds", str(lead_s), "--seconds", str(seconds)]
        limit = [] if messages is None else ["--messages", str(messages)]
        words = [*load.arguments(), *times, *limit]
        return measurement(self._run(words, deployment, lead_s + seconds))

    def warm_up(self, load: Load, deployment: Deployment, limits: WarmUp) -> Warmth:
        """Load until the rate is stable."""
        words = [*load.arguments(), "--warm-up"]
        words += ["--least-seconds", str(limits.least_s), "--most-seconds", str(limits.most_s)]
        words += ["--window-seconds", str(limits.window_s)]
        words += ["--within-percent", str(limits.within_percent)]
        found = self._run(words, deployment, limits.most_s)
        return Warmth(found["stable"], found["seconds"], tuple(found["rates"]))

    def _run(self, words: list[str], deployment: Deployment, seconds: float) -> dict[str, Any]:
        command: list[str | Path] = [self._binary, *words]
        for broker in deployment.brokers:
            command += ["--broker", f"{broker.name}={broker.address}"]
        if deployment.grpc is not None:
            command += ["--grpc", deployment.grpc]
        if deployment.certificate is not None:
            command += ["--trust", deployment.certificate.binary]
        for pid in deployment.pids:
            command += ["--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + OVERTIME_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{deployment.side}: the load generator hangs") from error
        if done.returncode != 0:
            deployment.check()
            raise BenchmarkError(f"{deployment.side}: {done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def measurement(found: dict[str, Any]) -> Measurement:
    """Read the generator's line of JSON, less what only people look at."""
    return Measurement(**{name: found[name] for name in Measurement.__dataclass_fields__})
