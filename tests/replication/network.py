"""A network in virtual time between machines that may be gone, over which a slave follows.

A connection has two ways. What is written to one comes in pieces of any size, in order and late; as
long as the way is cut, nothing comes and nobody is told. A connection that ends is heard of by the
other side unless the way there is cut: then it hears silence, as of a machine that has lost its
power.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from firearrow.testing.loop import VirtualLoop

HIGH_BYTES = 64 * 1024
TIMER_SECONDS = 1e-6


class Machine:
    """What a broker takes for the event loop: nothing that it has planned is done after `end`."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.is_alive = True
        self._network = network
        self._loop = network.loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, call: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(self._if_alive, call, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> asyncio.Handle:
        # A timer takes a while, else who finds that it is not time yet would ask for ever.
        return self._loop.call_later(max(seconds, TIMER_SECONDS), self._if_alive, call, *args)

    def _if_alive(self, call: Callable[..., object], *args: Any) -> None:
        if self.is_alive:
            self._network.events += 1
            call(*args)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def create_connection(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self._network.connect(self, make, host)

    def end(self, *, silently: bool) -> None:
        """Be gone, with a word to who is connected, or without."""
        self.is_alive = False
        for task in self._tasks:
            task.cancel()
        self._network.machine_gone(self, silently=silently)


class Way(asyncio.Transport):
    """A side's end of a connection, and the way to the other side."""

    def __init__(self, network: Network, here: Machine, there: Machine) -> None:
        super().__init__({"peername": (there.name, 1)})
        self.here, self._there, self._network = here, there, network
        self.protocol: asyncio.Protocol
        self.other: Way
        self.is_over = False
        self._under_way = bytearray()
        self._ends = False  # the other side is to hear so when it has all
        self._is_planned = False
        self._has_paused = False

    def write(self, data: Any) -> None:
        if not self.is_over:
            self._under_way += data
            self._plan()
            if len(self._under_way) > HIGH_BYTES and not self._has_paused:
                self._has_paused = True
                self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        """End it: what is under way is lost."""
        if not self.is_over:
            self.lose(silently=False)
            if self.here.is_alive:
                self._network.loop.call_soon(self.protocol.connection_lost, None)

    close = abort

    def lose(self, *, silently: bool) -> None:
        """Be over here; the other side hears of it, unless it happens silently."""
        self.is_over = True
        self._under_way.clear()
        if not silently:
            self._ends = True
            self._plan()

    def go_on(self) -> None:
        """The way is open again."""
        if self._under_way or self._ends:
            self._plan()

    def _plan(self) -> None:
        if not self._is_planned and not self._network.is_cut(self.here, self._there):
            self._is_planned = True
            self._network.loop.call_later(self._network.delay(), self._come)

    def _come(self) -> None:
        self._is_planned = False
        other = self.other
        if self._network.is_cut(self.here, self._there) or other.is_over or not other.here.is_alive:
            return
        count = self._network.piece_bytes(len(self._under_way))
        data = bytes(self._under_way[:count])
        del self._under_way[:count]
        if data:
            self._network.events += 1
            other.protocol.data_received(data)
        if self._has_paused and not self.is_over and len(self._under_way) < HIGH_BYTES // 4:
            self._has_paused = False
            self.protocol.resume_writing()
        if self._under_way:
            self._plan()
        elif self._ends and not other.is_over:
            other.is_over = True
            other.protocol.connection_lost(None)


class Network:
    """All machines and what is between them. ``events`` counts what happened to machines."""

    def __init__(self, loop: VirtualLoop, chance: Random, delay_seconds_max: float) -> None:
        self.loop = loop
        self.events = 0
        self.delay_seconds_max = delay_seconds_max
        self._chance = chance
        self._cut: set[tuple[str, str]] = set()
        self._ways: list[Way] = []
        self._serving: dict[str, tuple[Machine, Callable[[], asyncio.Protocol]]] = {}

    def serve(self, machine: Machine, make: Callable[[], asyncio.Protocol]) -> None:
        """Have a machine take connections."""
        self._serving[machine.name] = machine, make

    async def connect(
        self, machine: Machine, make: Callable[[], asyncio.Protocol], host: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.delay())
        there, make_other = self._serving.get(host, (None, None))
        if there is None or make_other is None or not there.is_alive:
            raise ConnectionRefusedError(111, "nobody listens")
        if self.is_cut(machine, there) or self.is_cut(there, machine):
            await asyncio.sleep(60)  # whoever connects has less patience
            raise TimeoutError
        ours, theirs = Way(self, machine, there), Way(self, there, machine)
        ours.other, theirs.other = theirs, ours
        ours.protocol, theirs.protocol = make(), make_other()
        self._ways = [way for way in self._ways if not (way.is_over and way.other.is_over)]
        self._ways += [ours, theirs]
        theirs.protocol.connection_made(theirs)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    # --- what happens ---

    def delay(self) -> float:
        return round(self._chance.random() * self.delay_seconds_max, 6)

    def piece_bytes(self, count: int) -> int:
        return self._chance.choice((count, count, self._chance.randint(0, count), min(count, 7)))

    def is_cut(self, here: Machine, there: Machine) -> bool:
        return (here.name, there.name) in self._cut

    def cut(self, here: str, there: str) -> None:
        """Have nothing come from one machine to another."""
        self._cut.add((here, there))

    def heal(self) -> None:
        """Have everything come."""
        self._cut.clear()
        for way in self._ways:
            way.go_on()

    def reset(self) -> None:
        """End a connection, for one of the two sides perhaps without a word."""
        if self._ways:
            way = self._chance.choice(self._ways)
            if not way.is_over and way.here.is_alive:
                way.lose(silently=self._chance.random() < 0.5)
                way.protocol.connection_lost(ConnectionResetError(104, "reset"))

    def machine_gone(self, machine: Machine, *, silently: bool) -> None:
        for way in self._ways:
            if way.here is machine and not way.is_over:
                way.lose(silently=silently)
