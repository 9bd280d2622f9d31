"""Bytes of the log from a broker that sends it to slaves, without being one.

Whoever connects and reports up to where it has the log gets what follows. So to report the place of
some bytes is to ask for them: each call is a connection, which ends when they are there. The place
0 can't be asked for, as a report of 0 is that of an empty log; but the byte there is the upper one
of a record's size, which is zero. It blocks: for tools, and for a thread of a broker.

A broker in controller mode is asked by who shakes hands as a learner of no number, for whom nobody
waits. What it sends counts as far as its log and the asker's have the same epochs. One that says
nothing to that has a fixed role, and is asked as such: a store may have epochs of earlier days.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError, RemoteProtocolError
from firearrow.net.address import host_and_port
from firearrow.replication import stream, switching
from firearrow.replication.epochs import Epochs
from firearrow.replication.proof import OPEN, HaAccess
from firearrow.replication.stream import Mismatch, Receiving
from firearrow.replication.switching import READER, MasterLog, Piece, SwitchReceiving

CONNECT_SECONDS_MAX: Final = 3.0
SILENCE_SECONDS_MAX: Final = 3.0
"""A broker that has the bytes sends them at once; beyond, it has no more."""
RECEIVE_BYTES: Final = 256 * 1024
_CLOCK: Final = SystemClock()


class NoReplica(FirearrowError):
    """A replica does not answer, or speaks another protocol."""


class History(NamedTuple):
    """The epochs of the asker's log, and where that ends."""

    epochs: Epochs
    end: int


class Source(NamedTuple):
    """A broker with the same log: where it takes slaves, and if it is in controller mode, what to
    compare."""

    address: str
    history: History | None = None
    access: HaAccess = OPEN

    def fetch(self, physical_offset: int, size: int) -> bytes:
        """Give bytes of the log, see `fetch`."""
        return fetch(self.address, physical_offset, size, self.history, self.access)


def fetch(
    address: str, physical_offset: int, size: int, history: History | None = None, access: HaAccess = OPEN
) -> bytes:
    """Give bytes of the log that the broker with this port for slaves has; fewer, if its log ends
    before or begins behind. NoReplica if it can't be asked, or has another log.

    ``history`` is to be given where that broker may be in controller mode.
    """
    if not physical_offset:
        more = fetch(address, 1, size - 1, history, access) if size > 1 else b""
        return (b"\0" + more)[:size]
    try:
        place = host_and_port(address)
        with ExitStack() as stack:
            line = stack.enter_context(socket.create_connection(place, CONNECT_SECONDS_MAX))
            line = stack.enter_context(closing(access.enter(line, place[0])))
            if history is None:
                return _received(line, _Plain(line, physical_offset), size)
            asking = _Switched(line, physical_offset, history)
            found = _received(line, asking, size)
    except OSError as error:
        raise NoReplica(f"{address}: {error.strerror or error}") from error
    except RemoteProtocolError as error:
        raise NoReplica(f"{address}: {error}") from error
    return found if asking.has_met else fetch(address, physical_offset, size, None, access)


class _Plain:
    """A broker that sends what is asked for at once."""

    def __init__(self, line: socket.socket, physical_offset: int) -> None:
        self._receiving = Receiving(physical_offset)
        line.sendall(stream.report(physical_offset))

    def pieces(self, data: bytes) -> Iterator[memoryview]:
        """The bytes of the log in what came."""
        for _, piece in self._receiving.receive(data):
            yield piece


class _Switched:
    """A broker in controller mode, which tells its epochs first."""

    def __init__(self, line: socket.socket, physical_offset: int, history: History) -> None:
        self._history = history
        self._line = line
        self._at = physical_offset
        self._common = 0
        self._receiving = SwitchReceiving(physical_offset)
        line.sendall(READER.encode())

    def pieces(self, data: bytes) -> Iterator[memoryview]:
        """The bytes of the log in what came, as far as the two logs are one."""
        for it in self._receiving.receive(data):
            match it:
                case MasterLog():
                    self._begin(it)
                case Piece(physical_offset, piece):
                    yield piece[: max(self._common - physical_offset, 0)]

    def _begin(self, master: MasterLog) -> None:
        epochs, end = self._history
        common = epochs.common_end(end, master.epochs, master.end)
        if common is None or common <= self._at:
            raise Mismatch(f"its log and this one are the same up to {common or 0} only")
        self._common = common
        self._receiving.is_ready = True
        self._line.sendall(switching.report(self._at))

    @property
    def has_met(self) -> bool:
        """Tell whether it has answered the handshake."""
        return self._receiving.is_ready


def _received(line: socket.socket, asking: _Plain | _Switched, size: int) -> bytes:
    found = bytearray()
    quiet_at = _CLOCK.monotonic() + SILENCE_SECONDS_MAX
    while len(found) < size:
        left = quiet_at - _CLOCK.monotonic()
        if left <= 0:  # heartbeats come all the while
            break
        line.settimeout(left)
        try:
            data = line.recv(RECEIVE_BYTES)
        except TimeoutError:
            break
        if not data:  # it was told of a place that its log does not have
            break
        before = len(found)
        for piece in asking.pieces(data):
            found += piece
        if len(found) > before:
            quiet_at = _CLOCK.monotonic() + SILENCE_SECONDS_MAX
    return bytes(found[:size])
