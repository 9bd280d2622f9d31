"""Bytes of the log from a broker that sends it to slaves, without being one.

Whoever connects and reports up to where it has the log gets what follows. So to report the place of
some bytes is to ask for them: each call is a connection, which ends when they are there. The place
0 can't be asked for, as a report of 0 is that of an empty log; but the byte there is the upper one
of a record's size, which is zero. It blocks: for tools, and for a thread of a broker.
"""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Final

from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError, RemoteProtocolError
from firearrow.net.address import host_and_port
from firearrow.replication.stream import Receiving, report

CONNECT_SECONDS_MAX: Final = 3.0
SILENCE_SECONDS_MAX: Final = 3.0
"""A broker that has the bytes sends them at once; beyond, it has no more."""
RECEIVE_BYTES: Final = 256 * 1024
_CLOCK: Final = SystemClock()


class NoReplica(FirearrowError):
    """A replica does not answer, or speaks another protocol."""


def fetch(address: str, physical_offset: int, size: int) -> bytes:
    """Give bytes of the log that the broker with this port for slaves has; fewer, if its log ends
    before or begins behind. NoReplica if it can't be asked."""
    if not physical_offset:
        return (b"\0" + fetch(address, 1, size - 1))[:size] if size > 1 else b"\0"[:size]
    try:
        with closing(socket.create_connection(host_and_port(address), CONNECT_SECONDS_MAX)) as line:
            line.sendall(report(physical_offset))
            return _received(line, physical_offset, size)
    except OSError as error:
        raise NoReplica(f"{address}: {error.strerror or error}") from error
    except RemoteProtocolError as error:
        raise NoReplica(f"{address}: {error}") from error


def _received(line: socket.socket, physical_offset: int, size: int) -> bytes:
    receiving = Receiving(physical_offset)
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
        for _, piece in receiving.receive(data):
            found += piece
        if len(found) > before:
            quiet_at = _CLOCK.monotonic() + SILENCE_SECONDS_MAX
    return bytes(found[:size])
