"""Groups of nodes whose network, machines and clients a seed decides, in virtual time.

Messages get lost, come late, twice and out of order; links fail in one direction or both; machines
crash between any two steps, with some of what they had not synced, and come back. After each step
of a node the promises of Raft are checked, see `Checker`. In the end everything is repaired, and
the group has to agree on something new, everywhere.

    python -m tests.raft.simulation 5000          runs so many seeds, and says how fast
    python -m tests.raft.simulation --seed 17     runs one
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from firearrow.errors import MessageError
from firearrow.files import SECTOR_BYTES
from firearrow.raft import LogEntry, LogFile, Message, Node, Saved, StateSnapshot, Timing

TICK: Final = 10  # units of virtual time; a message takes 1 at least
TIMING: Final = Timing(heartbeat=2, election=10)
EVENTS_OF_RUN: Final = 2500
REPAIR_TICKS_MAX: Final = 60 * TIMING.election


class Violation(AssertionError):
    """A promise of Raft is broken."""


class Crash(BaseException):
    """The machine is gone."""


class MemoryFile:
    """A file in memory; a crash leaves what was synced, and some sectors of the rest."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced_bytes = 0

    def read(self) -> bytes:
        return bytes(self.data)

    def append(self, data: bytes) -> None:
        self.data += data

    def sync(self) -> None:
        self.synced_bytes = len(self.data)

    def cut(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.sync()

    def replace(self, data: bytes) -> None:
        self.data[:] = data
        self.sync()

    def crash(self, chance: Random) -> None:
        """Lose what was not synced, or a part of it."""
        del self.data[chance.randint(self.synced_bytes, len(self.data)) :]
        start = self.synced_bytes
        while start < len(self.data):
            end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, len(self.data))
            if chance.random() < 0.5:
                self.data[start:end] = bytes(end - start)
            start = end
        self.sync()


class Agreed(NamedTuple):
    """An entry that somebody took for agreed on, first in the term ``during``."""

    term: int
    data: bytes
    during: int


class Checker:
    """What must hold in a group, whatever happens to it."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.agreed: dict[int, Agreed] = {}
        self._entries: dict[tuple[int, int], tuple[bytes, int | None]] = {}
        self._states: dict[int, int] = {0: 0}

    def saved(self, node: Node, entries: list[LogEntry]) -> None:
        """Log matching: an entry's index and term tell what it is, and all that is before it."""
        for entry in entries:
            fact = entry.data, node.log.term_at(entry.index - 1)
            if self._entries.setdefault((entry.index, entry.term), fact) != fact:
                raise Violation(f"entry {entry.index} of term {entry.term} is two different ones")

    def stepped(self, node: Node) -> None:
        """Election safety, and leader completeness: one leader, who has all that was agreed on."""
        if node.committed > node.log.last_index:
            raise Violation(f"{node.name} has agreed on entries that it has not")
        if not node.is_leader or self.leaders.get(node.term) == node.name:
            return
        if node.term in self.leaders:
            raise Violation(f"term {node.term}: {self.leaders[node.term]} and {node.name} lead")
        self.leaders[node.term] = node.name
        for index, entry in self.agreed.items():
            is_due = entry.during < node.term and index > node.log.snapshot.index
            if is_due and node.log.term_at(index) != entry.term:
                raise Violation(f"{node.name} leads term {node.term} without entry {index}")

    def applied(self, node: Node, entry: LogEntry, state: int) -> None:
        """State machine safety: everybody applies the same entries, and gets the same state."""
        agreed = self.agreed.setdefault(entry.index, Agreed(entry.term, entry.data, node.term))
        if (entry.term, entry.data) != agreed[:2]:
            raise Violation(f"{node.name} applies {entry}, others {agreed}")
        self.installed(node, entry.index, state)

    def installed(self, node: Node, index: int, state: int) -> None:
        """The same of a state that was taken over."""
        if self._states.setdefault(index, state) != state:
            raise Violation(f"{node.name} has another state after {index} than others")


class Machine:
    """A node with its disk and its state; ``is_up`` unless it has crashed."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.is_up = False
        self.file = MemoryFile()
        self._world = world
        self.start()

    def start(self) -> None:
        """Come up with what the disk has."""
        self._log = LogFile(self.file)
        saved = self._log.load()
        world = self._world
        self.node = world.kind(self.name, world.names, saved, world.chance.randrange, TIMING, world.entries_max)
        self.state, self.applied = _state_of(saved.snapshot)
        self.is_up = True

    def step(self, call: Callable[[Node], object]) -> None:
        """Have something happen to the node, and do what follows."""
        world = self._world
        try:
            call(self.node)
            world.checker.stepped(self.node)
            self._carry_out()
        except Crash:
            self.crash()

    def _carry_out(self) -> None:
        world = self._world
        ready = self.node.take()
        if ready.saved is not None:
            world.checker.saved(self.node, ready.saved.entries)
            self._log.append(ready.saved)
            world.may_crash()
            if world.has_synced(ready.saved):
                self._log.sync()
            world.may_crash()
        for message in ready.messages:
            world.send(message)
        if ready.snapshot is not None:
            self.state, self.applied = _state_of(ready.snapshot)
            world.checker.installed(self.node, self.applied, self.state)
        for entry in ready.committed:
            if entry.index != self.applied + 1:
                raise Violation(f"{self.name} applies {entry.index} after {self.applied}")
            self.state, self.applied = crc32(entry.data, self.state), entry.index
            world.checker.applied(self.node, entry, self.state)
        if self._log.size_bytes > world.file_bytes_max:
            self._log.rewrite(self.node.compact(self.state.to_bytes(4, "big")))
            world.may_crash()

    def crash(self) -> None:
        """Lose what is in memory, and come back some time later."""
        self.is_up = False
        self.file.crash(self._world.chance)
        self._world.plan(self._world.down_ticks() * TICK, self.start)


def _state_of(snapshot: StateSnapshot | None) -> tuple[int, int]:
    return (int.from_bytes(snapshot.data, "big"), snapshot.index) if snapshot else (0, 0)


class World:
    """One group and what a seed has happen to it."""

    kind = Node
    """What its nodes are; another one in tests of the checker."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.checker = Checker()
        self.events = 0
        chance = self.chance
        self.names = [f"n{number}" for number in range(chance.choice((1, 3, 3, 3, 5)))]
        self._loss = chance.choice((0.0, 0.02, 0.2))
        self._twice = chance.choice((0.0, 0.1))
        self._delay = chance.choice((2, TICK, 8 * TICK))
        self._crash = chance.choice((0.0, 0.001, 0.01, 0.05))
        self._down_ticks = chance.choice((2, 30))
        self._trouble = chance.choice((0.002, 0.01, 0.03))
        self.file_bytes_max = chance.choice((400, 1000, 100_000))
        self.entries_max = chance.choice((1, 3, 100))
        self._is_repaired = False
        self._now = 0
        self._order = count()
        self._proposals = count(1)
        self._plan: list[tuple[int, int, Callable[[], object]]] = []
        self._cut: set[tuple[str, str]] = set()
        self.machines = {name: Machine(self, name) for name in self.names}
        for machine in self.machines.values():
            self.plan(chance.randrange(TICK), partial(self._tick, machine))

    # --- what machines use ---

    def plan(self, after: int, call: Callable[[], object]) -> None:
        """Have something happen later."""
        heapq.heappush(self._plan, (self._now + after, next(self._order), call))

    def send(self, message: Message) -> None:
        """Have a message come, perhaps."""
        chance = self.chance
        if (message.sender, message.to) in self._cut or chance.random() < self._loss:
            return
        for _ in range(1 + (chance.random() < self._twice)):
            self.plan(chance.randint(1, self._delay), partial(self._deliver, message))

    def may_crash(self) -> None:
        """Between two steps of a machine."""
        if self._crash and self.chance.random() < self._crash:
            raise Crash

    def down_ticks(self) -> int:
        """How long a machine takes to come back."""
        return self.chance.randint(1, self._down_ticks)

    def has_synced(self, saved: Saved) -> bool:
        """Whether the disk is asked to sync this."""
        return True

    # --- what happens ---

    def run(self, events: int = EVENTS_OF_RUN) -> None:
        """Let so much happen, then repair everything; raises Violation."""
        while self.events < events:
            self._next()
            if self.chance.random() < self._trouble:
                self._make_trouble()
        self._repair()

    def _next(self) -> None:
        self.events += 1
        self._now, _, call = heapq.heappop(self._plan)
        call()

    def _tick(self, machine: Machine) -> None:
        if machine.is_up:
            machine.step(Node.tick)
        if machine.is_up and machine.node.is_leader and self.chance.random() < 0.2:
            data = b"%d " % next(self._proposals)
            machine.step(lambda node: node.propose(data))
        slowness = 0 if self._is_repaired else self.chance.choice((0, 0, 0, 1, 3))
        self.plan(TICK + slowness, partial(self._tick, machine))

    def _deliver(self, message: Message) -> None:
        machine = self.machines[message.to]
        if machine.is_up:
            try:
                machine.node.check(message)
            except MessageError as error:
                raise Violation(f"{machine.name} refuses {message}: {error}") from None
            machine.step(lambda node: node.receive(message))

    def _make_trouble(self) -> None:
        chance = self.chance
        what = chance.random()
        machine = self.machines[chance.choice(self.names)]
        if what < 0.3:
            self._cut.clear()
        elif what < 0.5:
            self._cut.add((machine.name, chance.choice(self.names)))
        elif what < 0.7:
            self._cut |= set(self._links_of(machine.name))
        elif what < 0.8:
            leading = [name for name in self.names if self.machines[name].node.is_leader]
            self._cut |= {link for name in leading for link in self._links_of(name)}
        elif self._crash and machine.is_up:
            machine.crash()

    def _links_of(self, name: str) -> Iterator[tuple[str, str]]:
        for other in self.names:
            yield name, other
            yield other, name

    # --- the end ---

    def _repair(self) -> None:
        self._cut.clear()
        self._loss = self._twice = self._crash = 0.0
        self._delay = 2
        self._is_repaired = True
        until = self._now + REPAIR_TICKS_MAX * TICK
        least = 0
        while self._now < until:
            self._next()
            leader = self._settled_leader()
            if leader is None:
                continue
            if not least:
                least = leader.node.log.last_index + 1
                leader.step(lambda node: node.propose(b"the last"))
            if all(machine.applied >= least for machine in self.machines.values()):
                return
        raise Violation("the group did not recover")

    def _settled_leader(self) -> Machine | None:
        machines = self.machines.values()
        if not all(machine.is_up for machine in machines):
            return None
        leaders = [machine for machine in machines if machine.node.is_leader]
        named = {machine.node.leader for machine in machines}
        return leaders[0] if len(leaders) == 1 and named == {leaders[0].name} else None


def simulate(seed: int, kind: type[World] = World) -> World:
    """Run a seed; raises Violation with the seed in it."""
    world = kind(seed)
    try:
        world.run()
    except AssertionError as error:
        raise Violation(f"seed {seed}: {error}") from error
    return world


def main() -> int:
    """Run many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=5000)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    began = time.perf_counter()
    events = 0
    for seed in seeds:
        events += simulate(seed).events
    seconds = time.perf_counter() - began
    rate = events / seconds
    sys.stdout.write(f"Raft: {len(seeds)} seeds, {events} events, {rate:.0f} a second\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
