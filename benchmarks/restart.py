"""How long a broker needs until all that is in its store can be read again.

Each side fills a store once. In every round its files are as they were then, in the same directory:
after ``kill -9``, or after a clean stop with all ConsumeQueues and the index deleted, so that they
must be made from the log. After a kill, the machine having gone on, both sides find all that was
written; ``lost`` copies the store to another directory, where nobody can know that.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import remoting
from benchmarks.servers import ALONE, Deployment, Launch
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
    lost: bool = False
    _filled: dict[Launch, tuple[Path, int]] = field(default_factory=dict)

    def measure_fresh(self, bench: Bench, launch: Launch) -> Metrics:
        """Lay the side's store there, start on it, wait until every queue is complete."""
        if launch not in self._filled:
            self._filled[launch] = self._fill(bench, launch)
        store, messages = self._filled[launch]
        parent = Path(tempfile.mkdtemp(prefix="side-", dir=bench.directory))
        run = parent / "run"
        try:
            if self.lost:
                shutil.copytree(_kept(store), run / "store")
            else:
                _restore(store)
                run.mkdir()
                (run / "store").symlink_to(store)
            start = time.monotonic()
            with launch(run, ALONE, {}) as deployment:
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
        return {"complete_s": seconds, "messages": float(messages), "private_mb": memory.private_bytes / 1e6}

    def _fill(self, bench: Bench, launch: Launch) -> tuple[Path, int]:
        parent = Path(tempfile.mkdtemp(prefix="filled-", dir=bench.directory))
        store, run = parent / "store", parent / "run"
        store.mkdir()
        run.mkdir()
        (run / "store").symlink_to(store)
        with launch(run, ALONE, {}) as deployment:
            deployment.wait_ready()
            fill(bench, deployment, TOPIC, bench.settings.restart_messages)
            messages = _messages(deployment)
            if self.killed:
                for process in reversed(deployment.processes):
                    process.kill()
            else:
                deployment.stop()
        if not self.killed:
            for name in DERIVED:
                shutil.rmtree(store / name)
        shutil.copytree(store, _kept(store))
        return store, messages


def _kept(store: Path) -> Path:
    """Where a copy of a filled store is."""
    return store.with_name("kept")


def _restore(store: Path) -> None:
    """Give a store the files that it was filled with; the directory itself stays the same."""
    for path in store.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(_kept(store), store, dirs_exist_ok=True)


def _messages(deployment: Deployment) -> int:
    return remoting.messages_in(deployment.brokers[0].address, TOPIC, QUEUES)
