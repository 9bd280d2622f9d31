"""The bytes between a master and its slave, as two state machines without a socket or a clock.

A slave connects, and repeatedly reports the end of its log: eight bytes, a physical offset as a signed big-endian
number. It reports on connecting, after each append, and every five seconds. The master sends nothing before the first
of these *reports*, and then frames:

====== ==== ====================================================================
offset size field
====== ==== ====================================================================
0      8    physical offset of the first byte that follows
8      4    count of the log's bytes that follow; 0 in a *heartbeat*, which only says
            that the master lives, and its offset is where the next frame begins
12     n    bytes of the CommitLog, cut anywhere: within a record, a blank included
====== ==== ====================================================================

A report of 0 comes from an empty log; such a slave gets the log from the start of the master's last file on. The master
uses only the last whole report of a read. For example, the report of a slave that has 4096 bytes, and the frame of the
next two, ``AB``::

    00 00 00 00 00 00 10 00
    00 00 00 00 00 00 10 00 00 00 00 02 41 42

RocketMQ's slave keeps a frame in a buffer of 4 MiB until it is whole, so no larger frames are sent. Firearrow's slave
appends a frame's bytes as they arrive.

Source: RocketMQ's ``DefaultHAConnection``, ``DefaultHAClient``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from firearrow.errors import RemoteProtocolError

FRAME_HEAD: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")
FRAME_DATA_BYTES_MAX: Final = 4 * 1024 * 1024 - FRAME_HEAD.size


def report(physical_offset: int) -> bytes:
    """Return the report of a slave whose log ends at an offset."""
    assert physical_offset >= 0, "a log has a length"
    return REPORT.pack(physical_offset)


class Mismatch(RemoteProtocolError):
    """The logs of the two sides do not fit together."""


class LogSender:
    """The master's side of a connection.

    ``next_offset`` is the start of the next frame, None before the first report. ``acked`` is the end of the slave's
    log, -1 before; ``said_first`` is its first report. ``began_at`` is the start of the slave's log, 0 if it began
    earlier. ``file_bytes`` is the size of the files.
    """

    def __init__(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._rest = b""
        self.acked: int = -1
        self.said_first: int = -1
        self.began_at: int = 0
        self.next_offset: int | None = None

    def receive(self, data: bytes, log_end: int, log_start: int = 0) -> bool:
        """Take the slave's bytes, while the log goes from ``log_start`` to ``log_end``; return True for a report.

        Raises Mismatch for a report of bytes that the slave can't have from here. Java: the master trusts a slave that
        is ahead, and sends it the bytes behind that as if it were the same log.
        """
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        if not whole:
            return False
        [acked] = REPORT.unpack_from(data, whole - REPORT.size)
        if acked < 0:
            return False
        self._reported(acked, log_end, max(log_end - log_end % self._file_bytes, 0))
        return True

    def _reported(self, acked: int, log_end: int, first_offset: int) -> None:
        """Note a report; an empty log gets the bytes from ``first_offset`` on."""
        known = log_end if self.next_offset is None else self.next_offset
        if acked > known:
            raise Mismatch(
                f"the slave has the log up to {acked}, "
                + (f"which ends at {log_end} here" if acked > log_end else f"and was sent {known}")
            )
        if self.next_offset is None:
            self.next_offset = acked or first_offset
            self.said_first = acked
            if self.next_offset % self._file_bytes == 0:  # a log begins with a file
                self.began_at = self.next_offset
        assert acked <= self.next_offset, "a slave has no byte that it was not sent"
        self.acked = acked

    @property
    def room(self) -> int:
        """Limit of the next frame's data, in bytes."""
        return FRAME_DATA_BYTES_MAX

    def take_reply(self) -> bytes:
        """Return the bytes that must be sent apart from frames, once; there are none."""
        return b""

    def frame(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the next frame, as head and data; without ``data`` a heartbeat."""
        at = self.next_offset
        assert at is not None, "nothing is sent before the first report"
        assert len(data) <= FRAME_DATA_BYTES_MAX, "RocketMQ's slave takes no more at once"
        self.next_offset = at + len(data)
        return FRAME_HEAD.pack(at, len(data)), data


class Receiving:
    """The slave's side of a connection; ``end_offset`` is the end of its log."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset: int = end_offset
        self._head = b""
        self._missing = 0  # bytes missing of the present frame

    def receive(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield the pieces of the log in the received bytes, with their physical offsets.

        A piece counts as appended when the next one is requested. Raises Mismatch if a frame does not continue the
        slave's log, RemoteProtocolError for bytes that are no frame.
        """
        view, at = memoryview(data), 0
        while at < len(data):
            if not self._missing:
                wanted = FRAME_HEAD.size - len(self._head)
                self._head += view[at : at + wanted]
                at += wanted
                if len(self._head) == FRAME_HEAD.size:
                    self._begin(*FRAME_HEAD.unpack(self._head))
                    self._head = b""
                continue
            piece = view[at : at + self._missing]
            yield self.end_offset, piece
            at += len(piece)
            self._missing -= len(piece)
            self.end_offset += len(piece)

    def _begin(self, physical_offset: int, size: int) -> None:
        assert not self._missing, "the frame before is complete"
        if not 0 <= size <= FRAME_DATA_BYTES_MAX or physical_offset < 0:
            raise RemoteProtocolError(f"no frame of a log has {size} bytes at {physical_offset}")
        if self.end_offset and physical_offset != self.end_offset:
            raise Mismatch(f"the master sends the log from {physical_offset} on, it ends at {self.end_offset} here")
        if size:  # the first frame for an empty log gives its start
            self.end_offset = physical_offset
        self._missing = size
