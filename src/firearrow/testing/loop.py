"""An event loop of which the time is virtual, and in which connections are in memory.

A whole name server, broker and their clients run on it in one thread: nothing is waited for, since
time leaps to the next call that is planned as soon as nothing else is left to do. So an hour of
long polls takes milliseconds, and the same run gives the same result each time.

``run`` runs a coroutine on such a loop; ``VirtualClock`` is the clock that goes with it. What would
be done by threads (``run_in_executor``) is done at once. Connections (``create_server``,
``create_connection``, and all that asyncio makes of them) deliver what one side writes to the other
in the next turn; a side that does not read makes the other one pause, as with sockets.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

START_MS: Final = 1_795_211_880_000  # the wall clock when a loop begins: two minutes to an hour
_PORTS_FROM: Final = 20_000
_NS: Final = 1e9  # in a second
_HIGH: Final = 64 * 1024  # bytes on their way before the writer is to pause


class NothingWillHappen(RuntimeError):
    """Everybody waits, and no call is planned: a real loop would wait for ever."""


class _LeapingSelector(selectors.SelectSelector):
    """A selector that never waits: it has the loop's time leap instead."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.leaps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # While there is nothing but what wakes the loop, the kernel need not be asked each time.
        is_alone = timeout is not None and len(self.get_map()) == 1
        if is_alone and not timeout:  # what is ready is done first: most turns end here
            return []
        ready = [] if is_alone else super().select(0)
        if not ready:
            if timeout is None:
                raise NothingWillHappen("all wait, and nothing is planned")
            # In whole ns: an hour is an hour, however many calls come between. Never less than was
            # asked for, or who finds that it is not time yet would ask again for ever.
            until = self.seconds + max(timeout, 0.0)
            self.seconds = max(until, math.ceil(round(until * _NS, 3)) / _NS)
            self.leaps += timeout > 0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; ``time`` begins at 0."""

    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)
        self._listening: dict[int, _MemoryServer] = {}
        self._ports = count(_PORTS_FROM)

    def time(self) -> float:
        """The virtual seconds since the loop was made."""
        return self._leaping.seconds

    @property
    def leaps(self) -> int:
        """How often time has leapt: on a real loop, how often it would have been woken."""
        return self._leaping.leaps

    def take(self, seconds: float) -> None:
        """Have what is done now take so long, with everybody waiting for it."""
        self._leaping.seconds += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do it here and now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except (OSError, ValueError, RuntimeError) as error:
            future.set_exception(error)
        return future

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        **_: Any,
    ) -> asyncio.Server:
        """Listen on a port of this loop."""
        number = port or next(self._ports)
        if number in self._listening:
            raise OSError(98, "Address already in use")
        server = _MemoryServer(self, protocol_factory, host or "127.0.0.1", number)
        self._listening[number] = server
        if start_serving:
            await server.start_serving()
        return cast(asyncio.Server, server)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a port of this loop."""
        server = self._listening.get(port or 0)
        if server is None or not server.is_serving():
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        protocol = protocol_factory()
        here = (host or "127.0.0.1", next(self._ports))
        ours = MemoryTransport(self, protocol, here, server.address)
        theirs = MemoryTransport(self, server.make_protocol(), server.address, here)
        ours.other, theirs.other = theirs, ours
        for transport in (theirs, ours):
            transport.protocol.connection_made(transport)
        return ours, protocol

    def forget(self, port: int) -> None:
        """Nobody listens there any more."""
        self._listening.pop(port, None)


class _MemoryServer:
    """What listens on a port; as much of asyncio's Server as servers use."""

    def __init__(
        self, loop: VirtualLoop, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        self._loop = loop
        self.make_protocol = make_protocol
        self.address = host, port
        self._serves = False
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self.address

    def is_serving(self) -> bool:
        """Tell whether it takes connections."""
        return self._serves

    async def start_serving(self) -> None:
        """Take connections."""
        self._serves = True

    def close(self) -> None:
        """Take none any more, and give the port back."""
        self._serves = False
        self._loop.forget(self.address[1])

    async def wait_closed(self) -> None:
        """Return once it is closed."""


class MemoryTransport(asyncio.Transport):
    """One side of a connection in memory."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        here: tuple[str, int],
        there: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self._loop = loop
        self.protocol = cast(asyncio.Protocol, protocol)
        self.other: MemoryTransport = self
        self._coming = bytearray()  # what the other side has written and this one not read
        self._is_delivering = False
        self._reads = True
        self._other_ended = False
        self._told_end = False
        self._closing = False
        self._lost = False
        self._high = _HIGH
        self._has_paused = False

    # --- writing ---

    def write(self, data: Any) -> None:
        """Have the other side read something in the next turn."""
        if self._closing or self.other._lost:
            return
        self.other._coming += data
        self.other._deliver_soon()
        if not self._has_paused and len(self.other._coming) > self._high:
            self._has_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """The same, of several pieces."""
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From how many unread bytes on the protocol is to pause."""
        self._high = _HIGH if high is None else high

    def get_write_buffer_size(self) -> int:
        """How many bytes the other side has not read."""
        return len(self.other._coming)

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes."""
        self.other._other_ended = True
        self.other._deliver_soon()

    # --- reading ---

    def pause_reading(self) -> None:
        """Leave what comes where it is."""
        self._reads = False

    def resume_reading(self) -> None:
        """Read again."""
        if not self._reads:
            self._reads = True
            self._deliver_soon()

    def is_reading(self) -> bool:
        """Tell whether it reads."""
        return self._reads

    def _deliver_soon(self) -> None:
        if not self._is_delivering:
            self._is_delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_delivering = False
        if self._lost:
            return
        if self._closing:
            self._coming.clear()
        elif self._reads and self._coming:
            data = bytes(self._coming)
            self._coming.clear()
            self.protocol.data_received(data)
        self.other._has_caught_up()
        if self._coming and self._reads:
            self._deliver_soon()
        elif self._other_ended and not self._told_end and not self._coming and self._reads:
            self._told_end = True
            if not self.protocol.eof_received():
                self.close()

    def _has_caught_up(self) -> None:
        """The other side has read: go on, or end if that was all that was left."""
        if self._has_paused and len(self.other._coming) <= self._high // 4:
            self._has_paused = False
            self.protocol.resume_writing()
        if self._closing and not self.other._coming:
            self._loop.call_soon(self._lose, None)

    # --- the end ---

    def is_closing(self) -> bool:
        """Tell whether it ends."""
        return self._closing

    def close(self) -> None:
        """End once the other side has read what was written."""
        if not self._closing:
            self._closing = True
            self._coming.clear()
            if not self.other._coming or self.other._lost:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End now; what is unread is lost."""
        self._closing = True
        self.other._coming.clear()
        self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self.protocol.connection_lost(error)
        if not self.other._lost:
            self.other._other_ended = True
            self.other._deliver_soon()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told of what comes."""
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell somebody else from now on."""
        self.protocol = cast(asyncio.Protocol, protocol)


class VirtualClock:
    """The clocks of a virtual loop; the wall clock can be set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.start_ms = START_MS

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970-01-01 UTC."""
        return self.start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Return the loop's seconds."""
        return self._loop.time()


def run(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine, made for a clock, on a loop of its own; give its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(VirtualClock(runner.get_loop())))
