"""A master and its slaves whose network, machines and disks a seed decides, in virtual time.

The stores, `Master`, `Slave` and what waits for copies are the real ones; network and loop are not
(`tests.replication.network`), and the disks lose power (`firearrow.testing.fs`). After each thing
that happens the promises are checked, see `World.check`. In the end everything is repaired.

    python -m tests.replication.simulation 5000          runs so many seeds, and says how fast
    python -m tests.replication.simulation 5000 --first 9000     the same, with others
    python -m tests.replication.simulation --seed 17     runs one
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, cast

from firearrow.broker.replication.replicas import SLAVE, SYNC_MASTER, Replicas
from firearrow.broker.storage.feature import CATCH_UP_SECONDS
from firearrow.errors import DiskFull
from firearrow.services import Every, Service
from firearrow.store.acknowledging import PutStatus
from firearrow.testing.fs import CrashableFileSystem
from firearrow.testing.loop import VirtualClock, VirtualLoop
from tests.broker.world import scratch
from tests.replication.network import Machine, Network
from tests.store.stores import KiB, abandon, append, make_store, messages, power_off, small_config

STEPS: Final = 40
QUEUES: Final = 2
SETTLED_SECONDS: Final = 40.0
FILE_BYTES: Final = 8 * KiB
MASTER: Final = "10.0.0.1"


class Violation(AssertionError):
    """A promise is broken."""


class Sent(NamedTuple):
    """A message: where the master had put it, and in which of its histories."""

    number: int
    queue_id: int
    queue_offset: int
    start: int
    end: int
    history: int
    at: float


class Node:
    """A broker's store and its part in replication, through many lives."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self._life = 0
        self.fs: CrashableFileSystem
        self.machine: Machine
        self.is_up = False
        self.ahead_end = 0  # where the log ends if it has what the master has lost, else 0
        self.lost_at = -1.0  # when it lost its power
        self._fits_to = 0  # up to where that has not been lost
        self._history = 0  # of the master, when it was up last
        self._new_disk()

    def _new_disk(self) -> None:
        self._life += 1
        self.root = self.world.directory / f"{self.name}{self._life}"
        self.root.mkdir()
        self.fs = CrashableFileSystem(self.root)

    @property
    def is_master(self) -> bool:
        return self.name == MASTER

    async def start(self) -> None:
        """Open the store and take part."""
        world = self.world
        self.machine = Machine(self.name, world.network)
        role = world.role if self.is_master else {"broker_role": SLAVE, "ha_master_address": f"{MASTER}:1"}
        keys = {**world.keys, **role}
        loop = cast(asyncio.AbstractEventLoop, self.machine)
        self.store = make_store(self.root, clock=world.clock, fs=self.fs, scheduler=self.machine, **keys)
        self.store.open(background=False)
        replicas = Replicas(small_config(self.root, **keys))
        self.side = replicas.begin(self.store, world.clock, loop)
        if replicas.master is not None:
            world.network.serve(self.machine, replicas.master.connection)
        left_out = Every("queues", CATCH_UP_SECONDS, self.store.catch_up_left_out, self.machine)
        parts = [*self.store.services, self.side, left_out, self.store.acknowledging]
        self._services: list[Service] = parts
        if self.store.confirming is not self.store.acknowledging:
            self._services.append(self.store.confirming)
        for service in self._services:
            await service.start()
        self.is_up = True
        self.look_ahead()

    def look_ahead(self) -> None:
        """Know whether there is more here than the master has kept."""
        if self.is_master or not self.is_up:
            return
        ends = self.world.ends[self._history :]
        self._history = len(self.world.ends)
        end = self.store.log_end_offset
        if self.ahead_end or (ends and end > min(ends)):
            self._fits_to = min([*ends, self._fits_to] if self.ahead_end else ends)
            self.ahead_end = end if end > max(self._fits_to, self.log_start) else 0

    @property
    def log_start(self) -> int:
        """Where the log begins that is there."""
        files = self.store.log.segments.files
        return self.store.log_start_offset if files else self.store.log_end_offset

    async def stop(self) -> None:
        """Stop in order."""
        self.is_up = False
        for service in reversed(self._services):
            await service.stop()
        self.store.close()
        self.machine.end(silently=False)

    def kill(self) -> None:
        """Be killed: the kernel has what was written."""
        self.is_up = False
        self.machine.end(silently=False)
        abandon(self.store)

    def lose_power(self) -> None:
        """Keep what was on the disk, and perhaps some of the rest."""
        if self.is_up:
            self.machine.end(silently=True)
            power_off(self.store)
        self.is_up, self.lost_at = False, self.world.clock.monotonic()
        fs, old = self.fs, self.root
        self._life += 1
        self.root = self.world.directory / f"{self.name}{self._life}"
        fs.crash(self.root, self.world.chance.getrandbits(32))
        shutil.rmtree(old)
        self.fs = CrashableFileSystem(self.root)

    def empty(self) -> None:
        """Have a new disk, as an operator who sets a slave up anew."""
        shutil.rmtree(self.root)
        self._new_disk()
        self.ahead_end = 0

    def log(self, start: int, end: int) -> bytes:
        """Bytes of the log."""
        parts: list[bytes] = []
        while start < end:
            data = self.store.log_bytes(start, end - start)
            assert data, "the log has what it says"
            parts.append(data)
            start += len(data)
        return b"".join(parts)


class World:
    """One master with its slaves, and what a seed has happen to them.

    ``counts`` is what has happened, ``lost`` how many acknowledged messages a master no longer had
    after losses of power, where that may be.
    """

    def __init__(self, seed: int, directory: Path, loop: VirtualLoop) -> None:
        self.chance = chance = Random(seed)
        self.directory = directory
        self.clock = VirtualClock(loop)
        self.network = Network(loop, chance, chance.choice((0.0005, 0.01, 0.2)))
        slaves = chance.choice((1, 1, 2))
        self.copies = chance.choice((1, 2, 2, slaves + 1))  # that a send waits for
        self.is_flushed = chance.random() < 0.5
        self.role: dict[str, Any] = {
            "broker_role": SYNC_MASTER, "in_sync_replicas": self.copies,
            "slave_timeout": chance.choice((100, 3000)),
        }  # fmt: skip
        self.keys: dict[str, Any] = {
            "mapped_file_size_commit_log": FILE_BYTES, "file_reserved_time": 100_000,
            "flush_interval_consume_queue": 10_000,
            "flush_disk_type": "SYNC_FLUSH" if self.is_flushed else "ASYNC_FLUSH",
            "ha_transfer_batch_size": chance.choice((100, 32_768)),
        }  # fmt: skip
        self.ends: list[int] = []  # of the master's log, at the end of each of its lives
        self.sent: list[Sent] = []
        self.acknowledged: list[Sent] = []
        self.counts: Counter[str] = Counter()
        self.lost = 0
        self._number = 0
        self._faults: list[str] = []
        loop.set_exception_handler(self._failed)
        self.master = Node(self, MASTER)
        self.slaves = [Node(self, f"10.0.0.{number}") for number in range(2, 2 + slaves)]
        self._repaired = False

    async def run(self) -> None:
        """Let things happen, and repair everything; raises Violation."""
        for node in (self.master, *self.slaves):
            await node.start()
        await asyncio.sleep(0.5)
        for _ in range(STEPS):
            what, call = self._next()
            self.counts[what] += 1
            await call()
            self.check()
        await self._repair()

    def _next(self) -> tuple[str, Callable[[], Any]]:
        chance = self.chance
        node = chance.choice((self.master, *self.slaves))
        drawn = chance.random()
        if drawn < 0.45:
            return "send", self._send
        if drawn < 0.65:
            return "sleep", partial(asyncio.sleep, chance.choice((0.001, 0.02, 0.3, 2, 8, 30)))
        if drawn < 0.78:
            return self._next_of_network()
        if drawn < 0.86:
            return "kill", partial(self._end, node, Node.kill)
        if drawn < 0.92:
            return "power", partial(self._end, node, Node.lose_power)
        if drawn < 0.94:
            return "all power", self._lose_all_power
        return "restart", partial(self._restart, node)

    def _next_of_network(self) -> tuple[str, Callable[[], Any]]:
        chance, slave = self.chance, self.chance.choice(self.slaves)
        kind = chance.choice(("to slave", "to master", "both", "heal", "heal", "reset"))

        async def happen() -> None:
            if kind in {"to slave", "both"}:
                self.network.cut(MASTER, slave.name)
            if kind in {"to master", "both"}:
                self.network.cut(slave.name, MASTER)
            if kind == "heal":
                self.network.heal()
            if kind == "reset":
                self.network.reset()

        return kind, happen

    def _failed(self, _: object, context: dict[str, Any]) -> None:
        self._faults.append(repr(context.get("exception", context["message"])))

    # --- producers ---

    async def _send(self) -> None:
        for _ in range(self.chance.choice((1, 3, 20))):
            if not self.master.is_up:
                await asyncio.sleep(0.1)
                return
            self._put()
            if self.chance.random() < 0.1:
                await asyncio.sleep(self.chance.choice((0, 0.001, 0.05)))

    def _put(self) -> None:
        store, queue_id = self.master.store, self.chance.randrange(QUEUES)
        self._number += 1
        body = b"%d " % self._number + self.chance.randbytes(self.chance.choice((5, 100, 1500)))
        queue = store.queue("T", queue_id)
        try:
            start = append(store, body, "T", queue_id, now_ms=self.clock.now_ms())
        except DiskFull as error:
            raise Violation(f"the master takes nothing: {error}") from error
        sent = Sent(
            self._number,
            queue_id,
            queue.next_offset - 1,
            start,
            store.log_end_offset,
            len(self.ends),
            self.clock.monotonic(),
        )
        self.sent.append(sent)
        if self.is_flushed or self.copies > 1:
            store.confirming.wait_for(sent.end, partial(self._answered, sent))
        else:
            self._answered(sent, PutStatus.SAFE)

    def _answered(self, sent: Sent, outcome: PutStatus) -> None:
        """An acknowledged message is on so many brokers, and on the disk if that was asked for."""
        if outcome is not PutStatus.SAFE or sent.history != len(self.ends) or not self.master.is_up:
            return
        master, wanted = self.master, self.master.log(sent.start, sent.end)
        have = [
            slave.name
            for slave in self.slaves
            if slave.is_up and slave.log_start <= sent.start
            and slave.store.log_end_offset >= sent.end and slave.log(sent.start, sent.end) == wanted
        ]  # fmt: skip
        # These may have acknowledged it before, and have lost it.
        down = sum(not it.is_up or it.lost_at >= sent.at for it in self.slaves)
        if len(have) + down + 1 < self.copies:
            raise Violation(f"{sent} is acknowledged, of {self.copies} only {have} have it")
        if self.is_flushed and master.store.flushed_offset < sent.end:
            raise Violation(f"{sent} is acknowledged, and the disk has not got it")
        self.acknowledged.append(sent)

    # --- what happens to machines ---

    async def _end(self, node: Node, how: Callable[[Node], None]) -> None:
        if not node.is_up:
            return
        if self.chance.random() < 0.5:
            await self._send()
        how(node)
        await asyncio.sleep(self.chance.choice((0, 0.5, 5, 30)))
        await self._start(node)

    async def _restart(self, node: Node) -> None:
        if node.is_up:
            await node.stop()
            await self._start(node)

    async def _lose_all_power(self) -> None:
        for node in (self.master, *self.slaves):
            node.lose_power()
        for node in (self.master, *self.slaves):
            await self._start(node)

    async def _start(self, node: Node) -> None:
        await node.start()
        if node.is_master:
            self._master_is_back(node)

    def _master_is_back(self, node: Node) -> None:
        """What is lost is known now: slaves that have more than the master are ahead."""
        end = node.store.log_end_offset
        gone = [sent for sent in self.acknowledged if sent.end > end]
        if gone and self.is_flushed:
            raise Violation(f"{gone[0]} was acknowledged and is gone")
        self.lost += len(gone)
        if self.sent and self.sent[-1].end > end:
            self.sent = [sent for sent in self.sent if sent.end <= end]
            self.acknowledged = [sent for sent in self.acknowledged if sent.end <= end]
        self.ends.append(end)
        for slave in self.slaves:
            slave.look_ahead()

    # --- what must hold ---

    def check(self) -> None:
        """Each slave's log is its master's, as far as it goes; one that is ahead stays as it is,
        unless the master gets the same once more."""
        if self._faults:
            raise Violation(f"a broker fails: {self._faults[0]}")
        master = self.master
        if not master.is_up:
            return
        ends = master.store.log_end_offset
        for slave in self.slaves:
            if not slave.is_up or slave.log_start == slave.store.log_end_offset:
                continue
            if slave.ahead_end == slave.store.log_end_offset:
                continue
            start = max(slave.log_start, master.log_start)
            end = slave.store.log_end_offset
            if end > ends:
                raise Violation(f"{slave.name} has the log up to {end}, the master up to {ends}")
            if slave.log(start, end) != master.log(start, end):
                if slave.ahead_end:
                    raise Violation(f"{slave.name} follows, its log is another one")
                raise Violation(f"{slave.name} has another log than its master")
            slave.ahead_end = 0  # the master may have got again what it had lost, such as a blank

    async def _repair(self) -> None:
        self.network.heal()
        self.network.delay_seconds_max = 0.01
        for slave in self.slaves:
            if slave.ahead_end or slave.store.log_end_offset > self.master.store.log_end_offset:
                await slave.stop()
                slave.empty()
                await slave.start()
        await asyncio.sleep(SETTLED_SECONDS)
        self._put()  # an empty slave of a master whose log ends with a file has nothing before
        await asyncio.sleep(1)
        self.check()
        for node in (self.master, *self.slaves):
            if node.store.log_end_offset != self.master.store.log_end_offset:
                raise Violation(f"{node.name} has not caught up")
            self._check_queues(node)
        for node in (*self.slaves, self.master):
            await node.stop()

    def _check_queues(self, node: Node) -> None:
        """Who reads gets all messages in the order in which they were sent."""
        node.store.catch_up()
        for queue_id in range(QUEUES):
            views = messages(node.store, "T", queue_id)
            found = [(view.queue_offset, int(view.body.split(b" ")[0])) for view in views]
            wanted = [
                (sent.queue_offset, sent.number)
                for sent in self.sent
                if sent.queue_id == queue_id and sent.start >= node.log_start
            ]
            if found != wanted:
                raise Violation(f"{node.name} gives {found} of queue {queue_id}, not {wanted}")


def simulate(seed: int, kind: type[World] = World) -> World:
    """Run a seed; raises Violation with the seed in it."""
    directory = scratch()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = cast(VirtualLoop, runner.get_loop())
            world = kind(seed, directory, loop)
            runner.run(world.run())
    except AssertionError as error:
        raise Violation(f"seed {seed}: {error}") from error
    finally:
        shutil.rmtree(directory)
    return world


def main() -> int:
    """Run many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=100_000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    logging.disable()
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    began = time.perf_counter()
    events = 0
    for seed in seeds:
        events += simulate(seed).network.events
    seconds = time.perf_counter() - began
    rate = events / seconds
    sys.stdout.write(f"Replication: {len(seeds)} seeds, {events} events, {rate:.0f} a second\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
