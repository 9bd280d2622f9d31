"""``python -m benchmarks.takeover``: how long clients stand still when a master is killed.

``controllers``: two brokers of one name in controller mode, with ``allAckInSyncStateSet``, and
three controllers. ``acting``: a master with a slave that acts for it, and the master of another
name.

In each round the master is killed under load, once the other broker has all that it has. Two times
count from there: until a send that began later is acknowledged, and until a consumer that
had read nothing yet of a queue of the name gets its first message. Then the broker is started
again; the next round begins when it is in sync. Clients are Firearrow's, and look at their routes
each ``--poll-seconds``, as a consumer learns by nothing else where to go on.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.errors import BenchmarkError
from benchmarks.process import ServerProcess
from benchmarks.servers import free_port
from firearrow.client import Message, Producer, PullConsumer, Queue
from firearrow.client.admin import Admin
from firearrow.errors import FirearrowError
from firearrow.wire.bodies import TopicConfig

NAME, OTHER, TOPIC = "broker-a", "broker-b", "T"
HOST = "127.0.0.1"
CONTROLLED, ACTING = "controllers", "acting"
T = TypeVar("T")
CONTROLLERS = 3
SEND_PAUSE_S, LOOK_S, WAIT_S = 0.005, 0.05, 60.0
FIRST, SECOND = "first", "second"
MASTER_ID = 0


class Cluster:
    """Processes by name, and the addresses of the two brokers whose master is killed."""

    def __init__(self, directory: Path, mode: str) -> None:
        self._directory = directory
        self._commands: dict[str, list[str | Path]] = {}
        self._processes: dict[str, ServerProcess] = {}
        self.namesrv = f"{HOST}:{free_port()}"
        self.brokers = {f"{HOST}:{free_port()}": name for name in (FIRST, SECOND)}
        keys = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
        self._add("namesrv", "namesrv", keys, ["--port", self.namesrv.rpartition(":")[2]])
        self.names = (NAME,) if mode == CONTROLLED else (NAME, OTHER)
        if mode == CONTROLLED:
            self._add_controlled()
        else:
            self._add_acting()

    def _add(self, name: str, kind: str, keys: dict[str, str], more: list[str]) -> None:
        settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        self._commands[name] = [sys.executable, "-m", "firearrow", kind, "--host", HOST, *more, *settings]

    def _add_broker(self, name: str, port: str, keys: dict[str, str]) -> None:
        where = ["-n", self.namesrv, "--broker-port", port, "--store", str(self._directory / name)]
        both = {"brokerIP1": HOST, "slaveReadEnable": "true", "brokerFastFailureEnable": "false"}
        self._add(name, "broker", {"brokerName": NAME, **both, **keys}, where)

    def _add_controlled(self) -> None:
        addresses = [f"{HOST}:{free_port()}" for _ in range(CONTROLLERS)]
        for number in range(CONTROLLERS):
            keys = {
                "controllerDLegerGroup": "group",
                "controllerDLegerSelfId": f"n{number}",
                "controllerDLegerPeers": ";".join(f"n{at}-{it}" for at, it in enumerate(addresses)),
            }
            store = ["--store", str(self._directory / f"n{number}")]
            self._add(f"n{number}", "controller", keys, store)
        for address, name in self.brokers.items():
            keys = {
                "enableControllerMode": "true",
                "controllerAddr": ";".join(addresses),
                "allAckInSyncStateSet": "true",
            }
            self._add_broker(name, address.rpartition(":")[2], keys)

    def _add_acting(self) -> None:
        keys = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "totalReplicas": "2"}
        master = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "brokerId": "0"}
        slave = {"brokerRole": "SLAVE", "brokerId": "1"}
        for (address, name), role in zip(self.brokers.items(), (master, slave), strict=True):
            self._add_broker(name, address.rpartition(":")[2], {**keys, **role})
        self._add_broker("other", str(free_port()), {**keys, "brokerName": OTHER, "totalReplicas": "1"})

    def start(self, *names: str) -> None:
        """Start some; none named: all but the second broker."""
        for name in names or self._commands.keys() - {SECOND}:
            log = self._directory / f"{name}-{time.monotonic_ns()}.log"
            self._processes[name] = ServerProcess.start(self._commands[name], log)

    def kill(self, address: str) -> str:
        """Kill the broker at an address; give its name."""
        name = self.brokers[address]
        self._processes[name].kill()
        return name

    def stop(self) -> None:
        """Kill all."""
        for process in self._processes.values():
            process.kill()


class Rounds:
    """The clients of a cluster, and what was measured with them, in seconds."""

    def __init__(self, cluster: Cluster, poll_s: float) -> None:
        self.sends: list[float] = []
        self.reads: list[float] = []
        self._cluster = cluster
        self._poll_s = poll_s
        self._began_at = 0.0  # the last send that was acknowledged
        self._acked_at = 0.0
        self._acked_by: set[str] = set()  # the names whose brokers have messages of this round

    async def run(self, count: int) -> None:
        """Measure so often."""
        cluster = self._cluster
        options: dict[str, Any] = {"poll_seconds": self._poll_s}
        async with Admin.of([cluster.namesrv]) as admin:
            self._admin = admin
            async with (
                Producer(cluster.namesrv, group="p", **options) as producer,
                PullConsumer(cluster.namesrv, group="g", **options) as consumer,
            ):
                await self._until(self._has_topic)
                cluster.start(SECOND)  # it takes the topic over as it starts
                sending = asyncio.create_task(self._send(producer))
                try:
                    for _ in range(count):
                        await self._round(consumer)
                finally:
                    sending.cancel()

    async def _has_topic(self) -> bool:
        """Create the topic at all masters that there are to be."""
        with suppress(OSError, FirearrowError):
            table = (await self._admin.cluster()).broker_addr_table
            masters = [known.broker_addrs[MASTER_ID] for known in table.values()]
            if len(masters) < len(self._cluster.names):
                return False
            for address in masters:
                topic = TopicConfig(TOPIC, read_queue_nums=1, write_queue_nums=1)
                await self._admin.topics.create(address, topic)
            return True
        return False

    async def _send(self, producer: Producer) -> None:
        while True:
            began = time.monotonic()
            with suppress(OSError, FirearrowError):
                receipt = await producer.send(TOPIC, "body")
                self._acked_by.add(receipt.queue.broker)
                self._began_at, self._acked_at = began, time.monotonic()
            await asyncio.sleep(SEND_PAUSE_S)

    async def _round(self, consumer: PullConsumer) -> None:
        master = await self._until(self._replicated)
        self._acked_by.clear()
        await self._until(self._has_messages)
        queue = await self._until(lambda: self._readable(consumer))
        consumer.assign([queue])
        killed_at = time.monotonic()
        name = self._cluster.kill(master)
        await asyncio.gather(self._sends(killed_at), self._reads(consumer, queue, killed_at))
        self._cluster.start(name)

    async def _has_messages(self) -> bool:
        return NAME in self._acked_by

    async def _readable(self, consumer: PullConsumer) -> Queue | None:
        with suppress(OSError, FirearrowError):
            for queue in await consumer.queues(TOPIC):
                if queue.broker == NAME:
                    return queue
        return None

    async def _sends(self, killed_at: float) -> None:
        async def is_later() -> bool:
            return self._began_at > killed_at

        await self._until(is_later)
        self.sends.append(self._acked_at - killed_at)

    async def _reads(self, consumer: PullConsumer, queue: Queue, killed_at: float) -> None:
        async def some() -> list[Message]:
            with suppress(OSError, FirearrowError):
                await consumer.seek(queue, 0)
                return await consumer.poll(LOOK_S * 4)
            return []

        await self._until(some)
        self.reads.append(time.monotonic() - killed_at)

    async def _replicated(self) -> str | None:
        """Where the master is, once both brokers are known and the slave has all."""
        with suppress(OSError, FirearrowError):
            info = await self._admin.cluster()
            known = info.broker_addr_table.get(NAME)
            if known is None or len(known.broker_addrs) < len(self._cluster.brokers):
                return None
            address = known.broker_addrs[MASTER_ID]
            status = await self._admin.brokers.ha_status(address)
            if status.in_sync_slave_nums == 1:
                return address
        return None

    @staticmethod
    async def _until(probe: Callable[[], Awaitable[T | None]]) -> T:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await probe()
                if found:
                    return found
                await asyncio.sleep(LOOK_S / 10)


def measure(mode: str, rounds: int, poll_s: float) -> dict[str, list[float]]:
    """Measure one mode."""
    with tempfile.TemporaryDirectory(prefix="takeover-") as directory:
        cluster = Cluster(Path(directory), mode)
        measured = Rounds(cluster, poll_s)
        cluster.start()
        try:
            asyncio.run(measured.run(rounds))
        except TimeoutError:
            done = len(measured.reads)
            raise BenchmarkError(f"{mode}: nobody goes on after {done} rounds") from None
        finally:
            cluster.stop()
    return {"sends_s": measured.sends, "reads_s": measured.reads}


def main() -> int:
    """Measure, and print least, median and longest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mode", choices=(CONTROLLED, ACTING), action="append")
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path, help="file for every round")
    options = parser.parse_args()
    modes = options.mode or [CONTROLLED, ACTING]
    found = {mode: measure(mode, options.rounds, options.poll_seconds) for mode in modes}
    print(f"| {options.rounds} rounds | least, s | median, s | longest, s |")
    print("| --- | --- | --- | --- |")
    for mode, measured in found.items():
        for what, seconds in measured.items():
            shown = min(seconds), statistics.median(seconds), max(seconds)
            cells = " | ".join(f"{it:.2f}" for it in shown)
            print(f"| {mode}, {what.removesuffix('_s')} | {cells} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
