"""Reads bytes of the log from a broker's port for slaves, without being a slave.

A peer that connects and reports the end of its log gets the bytes that follow. So a report of a place requests the
bytes there; each call is one connection, which ends when they have arrived. Place 0 can't be requested, because a
report of 0 means an empty log. But the byte there is the upper byte of a record's size, which is zero. The calls block:
they are for tools, and for a thread of a broker.

For a broker in controller mode, the caller shakes hands as a learner without a number, so no send waits for it. Bytes
count while the two logs have the same epochs. A broker without an answer to the handshake is in a fixed role, and is
asked again by the plain protocol. A store may have epochs from an earlier time in controller mode.
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
"""A broker that has the bytes sends them at once; after that time it has no more."""
RECEIVE_BYTES: Final = 256 * 1024
_CLOCK: Final = SystemClock()


class NoReplica(FirearrowError):
    """A replica does not answer, or speaks another protocol."""


class History(NamedTuple):
    """The epochs of the caller's log, and the end of that log."""

    epochs: Epochs
    end: int


class LogSource(NamedTuple):
    """A broker with the same log: its address for slaves, and the history to compare if it is in controller mode."""

    address: str
    history: History | None = None
    access: HaAccess = OPEN

    def fetch(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of the log, see `fetch`."""
        return fetch(self.address, physical_offset, size, self.history, self.access)


def fetch(
    address: str, physical_offset: int, size: int, history: History | None = None, access: HaAccess = OPEN
) -> bytes:
    """Return bytes of the log of the broker with this address for slaves.

    There are fewer if its log ends before, none if it begins behind. Raises NoReplica if the broker does not answer, or
    has another log. ``history`` must be given if that broker may be in controller mode.
    """
    assert physical_offset >= 0
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
    """A broker that sends the requested bytes at once."""

    def __init__(self, line: socket.socket, physical_offset: int) -> None:
        self._receiving = Receiving(physical_offset)
        line.sendall(stream.report(physical_offset))

    def pieces(self, data: bytes) -> Iterator[memoryview]:
        """Return the bytes of the log in the received data."""
        for _, piece in self._receiving.receive(data):
            yield piece


class _Switched:
    """A broker in controller mode, which sends its epochs first."""

    def __init__(self, line: socket.socket, physical_offset: int, history: History) -> None:
        self._history = history
        self._line = line
        self._at = physical_offset
        self._common = 0
        self._receiving = SwitchReceiving(physical_offset)
        line.sendall(READER.encode())

    def pieces(self, data: bytes) -> Iterator[memoryview]:
        """Return the bytes of the log in the received data, up to the end of the part that both logs share."""
        for it in self._receiving.receive(data):
            match it:
                case MasterLog():
                    self._begin(it)
                case Piece(physical_offset, piece):
                    yield piece[: max(self._common - physical_offset, 0)]

    def _begin(self, master: MasterLog) -> None:
        assert not self._receiving.is_ready, "a connection has one handshake"
        epochs, end = self._history
        common = epochs.common_end(end, master.epochs, master.end)
        if common is None or common <= self._at:
            raise Mismatch(f"its log and this one are the same up to {common or 0} only")
        self._common = common
        self._receiving.is_ready = True
        self._line.sendall(switching.report(self._at))

    @property
    def has_met(self) -> bool:
        """Tell whether the broker has answered the handshake."""
        return self._receiving.is_ready


def _received(line: socket.socket, asking: _Plain | _Switched, size: int) -> bytes:
    found = bytearray()
    quiet_at = _CLOCK.monotonic() + SILENCE_SECONDS_MAX
    while len(found) < size:
        left = quiet_at - _CLOCK.monotonic()
        if left <= 0:  # heartbeats keep coming
            break
        line.settimeout(left)
        try:
            data = line.recv(RECEIVE_BYTES)
        except TimeoutError:
            break
        if not data:  # the reported place is not in its log
            break
        before = len(found)
        for piece in asking.pieces(data):
            found += piece
        if len(found) > before:
            quiet_at = _CLOCK.monotonic() + SILENCE_SECONDS_MAX
    return bytes(found[:size])
