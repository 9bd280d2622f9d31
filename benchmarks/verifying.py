"""How fast `firearrow store verify` checks a store, which either side has written.

Each side fills a store once and is stopped. In every round the tool reads all of it, from the page
cache, start of the process included; it must find the store sound and every message in it.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.servers import ALONE, Launch
from benchmarks.workloads import Bench, Metrics, fill

TOPIC = "verify"
TIMEOUT_S = 300


@dataclass
class Verify:
    """Bytes of the log by second of wall time."""

    _filled: dict[Launch, Path] = field(default_factory=dict)

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Verify the side's store."""
        if launch not in self._filled:
            self._filled[launch] = _fill(bench, launch)
        store = self._filled[launch]
        command = [sys.executable, "-m", "firearrow", "store", "verify", str(store), "--json"]
        start = time.monotonic()
        found = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S)
        seconds = time.monotonic() - start
        if found.returncode:
            raise BenchmarkError(f"{store} is not sound: {found.stdout[:300]!r} {found.stderr!r}")
        verdict = json.loads(found.stdout)
        if verdict["records"] < bench.settings.restart_messages:
            raise BenchmarkError(f"{verdict['records']} messages are in {store}")
        return {
            "verify_s": seconds,
            "verify_mb_per_s": (verdict["log_end"] - verdict["log_start"]) / 1e6 / seconds,
            "messages": float(verdict["records"]),
        }


def _fill(bench: Bench, launch: Launch) -> Path:
    parent = Path(tempfile.mkdtemp(prefix="verified-", dir=bench.directory))
    with launch(parent / "run", ALONE, {}) as deployment:
        deployment.wait_ready()
        fill(bench, deployment, TOPIC, bench.settings.restart_messages)
        deployment.stop()
        return (deployment.directory / "store").rename(parent / "store")
