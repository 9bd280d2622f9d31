"""``python -m benchmarks.queuefiles``: start and stop with very many queues in files.

For each number of queues, a store gets a message in each of them, and what each queue takes on the
disk is added up. Then the broker is killed, started, asked to end in the middle of another start,
started and stopped. A start lasts until a message is acknowledged, a stop until the process is
gone. Topics have one queue each (``--queues-a-topic``). ``--rocketmq`` measures the original, too.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks import toolchain
from benchmarks.process import cpu_seconds
from benchmarks.queues import Sender
from benchmarks.servers import ALONE, FIREARROW, Deployment, Launch, launch_firearrow, launchers

START_PAUSE_S = 0.02
STOP_TIMEOUT_S = 600
KEYS = {"brokerFastFailureEnable": "false", "diskMaxUsedSpaceRatio": "95"}
KILLED = "start behind kill -9"
COUNTS = [10_000, 100_000]


class Run:
    """A store of one side with so many queues, in a directory of its own."""

    def __init__(self, launch: Launch, parent: Path, count: int, queues_a_topic: int) -> None:
        self._launch = launch
        self._parent = parent
        self._count = count
        self._queues_a_topic = queues_a_topic
        self._runs = 0
        self._store = parent / "store"
        self._lay_topics()

    def _lay_topics(self) -> None:
        """Write the topics as both sides keep them: to ask for each takes the original minutes."""
        names = range(-(-self._count // self._queues_a_topic))
        table = {
            f"many-{number}": {
                "topicName": f"many-{number}", "perm": 6, "order": False, "topicSysFlag": 0,
                "readQueueNums": self._queues_a_topic, "writeQueueNums": self._queues_a_topic,
                "topicFilterType": "SINGLE_TAG",
            }
            for number in names
        }  # fmt: skip
        path = self._store / "config" / "topics.json"
        path.parent.mkdir(parents=True)
        version = {"counter": 1, "stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}
        path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))

    def _begin(self) -> Deployment:
        """Start the processes on the store, and wait for nothing."""
        self._runs += 1
        directory = self._parent / f"run-{self._runs}"
        directory.mkdir()
        (directory / "store").symlink_to(self._store)
        return self._launch(directory, ALONE, KEYS)

    def _started(self, deployment: Deployment, start: float, what: str) -> dict[str, float]:
        deployment.wait_acknowledged(START_PAUSE_S)
        seconds, cpu = time.monotonic() - start, cpu_seconds(deployment.pids)
        return {f"{what}, s": seconds, f"{what}, s of CPU": cpu}

    def measure(self) -> dict[str, float]:
        """Go through the life of the store."""
        with self._begin() as deployment:
            deployment.wait_ready()
            start = time.monotonic()
            self._fill(deployment)
            found = {"messages to new queues a second": self._count / (time.monotonic() - start)}
            found["bytes of disk a queue's file"] = self._bytes_a_queue()
            for process in deployment.processes:
                process.kill()
        start = time.monotonic()
        with self._begin() as deployment:
            found |= self._started(deployment, start, KILLED)
            for process in deployment.processes:
                process.kill()
        with self._begin() as deployment:
            time.sleep(found[f"{KILLED}, s"] / 2)
            found["SIGTERM in the middle of a start, s"] = _stopped(deployment)
        with self._begin() as deployment:
            deployment.wait_acknowledged(START_PAUSE_S)
            self._fill(deployment)
            found["stop with a new message in each, s"] = _stopped(deployment)
        start = time.monotonic()
        with self._begin() as deployment:
            found |= self._started(deployment, start, "start behind a stop")
            found["private MB"] = deployment.memory().private_bytes / 1e6
            found["stop without messages, s"] = _stopped(deployment)
        return found

    def _fill(self, deployment: Deployment) -> None:
        """Send a message to each queue, in an order by chance."""
        numbers = list(range(self._count))
        random.Random(1).shuffle(numbers)
        each = self._queues_a_topic
        with Sender(deployment) as sender:
            for at in range(0, self._count, sender.round_messages):
                some = numbers[at : at + sender.round_messages]
                sender.round((f"many-{number // each}", number % each) for number in some)

    def _bytes_a_queue(self) -> float:
        """The blocks of the files that queues have, once all have one."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            files = [path.stat() for path in self._store.glob("consumequeue/many-*/*/*")]
            if len(files) >= self._count or time.monotonic() > deadline:
                return sum(stat.st_blocks for stat in files) * 512 / len(files)
            time.sleep(1)


def _stopped(deployment: Deployment) -> float:
    """Stop the processes; give the seconds that the slowest one took."""
    start = time.monotonic()
    for process in reversed(deployment.processes):
        process.stop(STOP_TIMEOUT_S)
    return time.monotonic() - start


def main() -> None:
    """Measure each side with each number of queues, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, nargs="+", default=COUNTS, help="queues")
    parser.add_argument("--queues-a-topic", type=int, default=1)
    parser.add_argument("--rocketmq", action="store_true", help="measure the original, too")
    parser.add_argument("--work-dir", type=Path, help="where stores go while it runs")
    args = parser.parse_args()
    sides: dict[str, Launch] = {FIREARROW: launch_firearrow}
    if args.rocketmq:
        sides = launchers(toolchain.prepare(rocketmq=True))
    for count in args.count:
        print(f"{count:,} queues")
        for side, launch in sides.items():
            parent = Path(tempfile.mkdtemp(prefix="queuefiles-", dir=args.work_dir))
            try:
                found = Run(launch, parent, count, args.queues_a_topic).measure()
            finally:
                shutil.rmtree(parent, ignore_errors=True)
            for what, value in found.items():
                print(f"    {side:10} {what:40} {value:12,.2f}", flush=True)


if __name__ == "__main__":
    main()
