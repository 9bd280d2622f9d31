"""Event loop with virtual time, and with connections in memory.

A name server, a broker and their clients run on it in one thread. Nothing waits: as soon as no call is ready, time
leaps to the next planned call. So an hour of long polls takes milliseconds, and the same run gives the same result each
time.

``run`` runs a coroutine on such a loop; ``VirtualClock`` is the loop's clock. Work for threads (``run_in_executor``)
runs at once. Connections (``create_server``, ``create_connection``, and everything in asyncio that uses them) deliver
written bytes to the other side in the next turn. If a side does not read, the other one pauses, as with sockets.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

START_MS: Final = 1_795_211_880_000  # wall clock at the start of a loop: two minutes to an hour
_PORTS_FROM: Final = 20_000
_NS: Final = 1e9  # in a second
_HIGH: Final = 64 * 1024  # in transit, before the writer must pause


class NothingWillHappen(RuntimeError):
    """No call is planned while all tasks wait: a real loop would wait forever."""


class _LeapingSelector(selectors.SelectSelector):
    """Selector that never waits: it makes the loop's time leap."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.leaps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # While only the loop's own wake-up is registered, most turns need no request to the kernel.
        is_alone = timeout is not None and len(self.get_map()) == 1
        if is_alone and not timeout:  # ready calls come first: most turns end here
            return []
        ready = [] if is_alone else super().select(0)
        if not ready:
            if timeout is None:
                raise NothingWillHappen("all tasks wait, and no call is planned")
            # In whole ns: an hour is an hour, however many calls come between. Never less than the timeout: otherwise a
            # caller that finds its time not yet reached would ask again forever.
            until = self.seconds + max(timeout, 0.0)
            self.seconds = max(until, math.ceil(round(until * _NS, 3)) / _NS)
            self.leaps += timeout > 0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with virtual time; ``time`` begins at 0."""

    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)
        self._listening: dict[int, _MemoryServer] = {}
        self._ports = count(_PORTS_FROM)

    def time(self) -> float:
        """Virtual seconds since the start of the loop."""
        return self._leaping.seconds

    @property
    def leaps(self) -> int:
        """Count of leaps: on a real loop, the count of wake-ups."""
        return self._leaping.leaps

    def take(self, seconds: float) -> None:
        """Let the present work take ``seconds``, while everything else waits."""
        self._leaping.seconds += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the function at once."""
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

    def remove_reader(self, fd: Any) -> bool:
        """Return False: no socket has a reader."""
        return False

    def forget(self, port: int) -> None:
        """Stop listening on a port."""
        self._listening.pop(port, None)


class _MemoryServer:
    """Listener on a port, with the parts of asyncio's Server that servers use."""

    def __init__(
        self, loop: VirtualLoop, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        self._loop = loop
        self.make_protocol = make_protocol
        self.address = host, port
        self._serves = False
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        """Address of the listener."""
        return self.address

    def is_serving(self) -> bool:
        """Tell whether the listener accepts connections."""
        return self._serves

    async def start_serving(self) -> None:
        """Accept connections."""
        self._serves = True

    def close(self) -> None:
        """Accept no more connections, and free the port."""
        self._serves = False
        self._loop.forget(self.address[1])

    async def wait_closed(self) -> None:
        """Return when it is closed."""


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
        self.protocol: asyncio.Protocol = cast(asyncio.Protocol, protocol)
        self.other: MemoryTransport = self
        self._coming = bytearray()  # written by the other side and not yet read
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
        """Deliver bytes to the other side in the next turn."""
        if self._closing or self.other._lost:
            return
        self.other._coming += data
        self.other._deliver_soon()
        if not self._has_paused and len(self.other._coming) > self._high:
            self._has_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Write several pieces."""
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the lowest count of unread bytes that makes the protocol pause."""
        self._high = _HIGH if high is None else high

    def get_write_buffer_size(self) -> int:
        """Count of bytes that the other side has not read."""
        return len(self.other._coming)

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def write_eof(self) -> None:
        """Announce the end of writing."""
        self.other._other_ended = True
        self.other._deliver_soon()

    # --- reading ---

    def pause_reading(self) -> None:
        """Stop reading."""
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
        """Resume writing after a read of the other side, or end after the last one."""
        if self._has_paused and len(self.other._coming) <= self._high // 4:
            self._has_paused = False
            self.protocol.resume_writing()
        if self._closing and not self.other._coming:
            self._loop.call_soon(self._lose, None)

    # --- end ---

    def is_closing(self) -> bool:
        """Tell whether it is closing."""
        return self._closing

    def close(self) -> None:
        """Close after the other side has read everything."""
        if not self._closing:
            self._closing = True
            self._coming.clear()
            if not self.other._coming or self.other._lost:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Close now; unread bytes are lost."""
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
        """Protocol that receives the bytes."""
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that receives the bytes."""
        self.protocol = cast(asyncio.Protocol, protocol)


class VirtualClock:
    """Clock of a virtual loop; the wall clock can be set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.start_ms = START_MS

    def now_ms(self) -> int:
        """Wall clock in milliseconds since 1970-01-01 UTC."""
        return self.start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Seconds of the loop."""
        return self._loop.time()


def run(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that takes the clock on a new virtual loop; returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(VirtualClock(runner.get_loop())))
