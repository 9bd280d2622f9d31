"""How long a broker needs until all that is in its store can be read again.

Each side fills a store once, and opens a copy of it in every round: after ``kill -9``, or after a
clean stop with all ConsumeQueues and the index deleted, so that they must be made from the log.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import remoting
from benchmarks.servers import Deployment, Launch
from benchmarks.workloads import Bench, Metrics, fill

QUEUES = 4
TOPIC = "restart"
DERIVED = ("consumequeue", "index")
POLL_S = 0.02
COMPLETE_TIMEOUT_S = 300


@dataclass
class Restart:
    """From the start of the processes, on a filled store, to the last message in its queue."""

    killed: bool
    _filled: dict[Launch, tuple[Path, int]] = field(default_factory=dict)

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Copy the side's store, start on it, wait until every queue is complete."""
        if launch not in self._filled:
            self._filled[launch] = self._fill(bench, launch)
        template, messages = self._filled[launch]
        parent = Path(tempfile.mkdtemp(prefix="side-", dir=bench.directory))
        run = parent / "run"
        try:
            shutil.copytree(template, run / "store")
            start = time.monotonic()
            with launch(run, 1, {}) as deployment:
                remoting.until(
                    f"{deployment.side}: {messages} messages in their queues",
                    lambda: _messages(deployment) >= messages,
                    timeout_s=COMPLETE_TIMEOUT_S,
                    pause_s=POLL_S,
                    check=deployment.check,
                )
                seconds = time.monotonic() - start
                memory = deployment.memory()
        finally:
            shutil.rmtree(parent, ignore_errors=True)
        return {
            "complete_s": seconds,
            "messages": float(messages),
            "private_mb": memory.private_bytes / 1e6,
        }

    def _fill(self, bench: Bench, launch: Launch) -> tuple[Path, int]:
        template = Path(tempfile.mkdtemp(prefix="filled-", dir=bench.directory)) / "store"
        with bench.start(launch) as deployment:
            deployment.wait_ready()
            fill(bench, deployment, TOPIC, bench.settings.restart_messages)
            messages = _settled(deployment)
            for process in reversed(deployment.processes):
                if self.killed:
                    process.kill()
                else:
                    process.stop()
            shutil.copytree(deployment.directory / "store", template)
        if not self.killed:
            for name in DERIVED:
                shutil.rmtree(template / name)
        return template, messages


def _messages(deployment: Deployment) -> int:
    return remoting.messages_in(deployment.brokers[0].address, TOPIC, QUEUES)


def _settled(deployment: Deployment) -> int:
    """The number of messages once dispatch has seen all."""
    before = -1
    while (messages := _messages(deployment)) > before:
        before = messages
        time.sleep(1)
    return messages
