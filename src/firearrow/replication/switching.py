"""The bytes between a master and its slave in controller mode, where a controller decides the roles.

Both sides are state machines without a socket or a clock, as in `firearrow.replication.stream`. All numbers are signed
and big-endian. First comes a *handshake*: the slave gives its number, and the master the epochs
(`firearrow.replication.epochs`) of its log:

====== ==== ====================================================================
offset size field of the slave's handshake, 16 bytes
====== ==== ====================================================================
0      4    1
4      2    1: an empty log begins with the master's last file
6      2    1: the slave can never be master, no send waits for it (a *learner*); 2: it is no
            learner, and says how much it has of its master's state beside the log. RocketMQ's
            slave says 0, and its master treats 2 as 0
8      8    the number that the controller has given the slave
====== ==== ====================================================================

====== ==== ====================================================================
offset size field of the master's handshake
====== ==== ====================================================================
0      4    1
4      4    count of the epochs' bytes that follow, 12 for each
8      8    end of its log
16     4    its last epoch, -1 without any
20     12   an epoch (4), and the physical offset of its start (8); and so on
====== ==== ====================================================================

The slave cuts off the part of its log that the master does not have. Then it reports at the same times as in the plain
stream. The master sends the log in frames, and never puts bytes of two epochs into one:

====== ==== ====================================================================
offset size field of a report, 12 bytes
====== ==== ====================================================================
0      4    2
4      8    end of the slave's log, a physical offset
====== ==== ====================================================================

====== ==== ====================================================================
offset size field of a frame
====== ==== ====================================================================
0      4    2
4      4    count of the log's bytes that follow; 0 in a heartbeat
8      8    physical offset of the first of them; in a heartbeat, of the next frame
16     4    their epoch
20     8    start of that epoch
28     8    the confirmed offset: all brokers that must have the log have it up to there
36     n    bytes of the CommitLog, cut anywhere
====== ==== ====================================================================

A first report of 0 asks for the log from its start. Examples, broker 2 and a master with 4098 bytes of epoch 1; the
report of 4096, and the frame that follows on it, ``AB``::

    00000001 0000 0000 0000000000000002
    00000001 0000000c 0000000000001002 00000001  00000001 0000000000000000
    00000002 0000000000001000
    00000002 00000002 0000000000001000 00000001 0000000000000000 0000000000001000 4142

RocketMQ's master may put the next epoch into the frame with the last bytes of one. Its heartbeat has the offset -1
while its log is empty.

Source: RocketMQ's ``AutoSwitchHAConnection``, ``AutoSwitchHAClient``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from firearrow.errors import RemoteProtocolError
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.stream import LogSender, Mismatch

HANDSHAKE: Final = 1
TRANSFER: Final = 2
LEARNER: Final = 1
STATEFUL: Final = 2
_STATE: Final = struct.Struct(">i")
SLAVE_HANDSHAKE: Final = struct.Struct(">ihhq")
MASTER_HANDSHAKE: Final = struct.Struct(">iiqi")
EPOCH: Final = struct.Struct(">iq")
REPORT: Final = struct.Struct(">iq")
FRAME_HEAD: Final = struct.Struct(">iiqiqq")
FRAME_DATA_BYTES_MAX: Final = 4 * 1024 * 1024 - FRAME_HEAD.size
EPOCHS_MAX: Final = 100_000  # limit for a handshake; RocketMQ sends 1000 at most


class Greeting(NamedTuple):
    """A slave's handshake."""

    broker_id: int
    is_learner: bool = False
    from_last_file: bool = False
    has_state: bool = False
    """The slave reports its part of the state beside the log; the greeting of a learner can't say so."""

    def encode(self) -> bytes:
        """Return the bytes of the handshake."""
        kind = LEARNER if self.is_learner else STATEFUL if self.has_state else 0
        return SLAVE_HANDSHAKE.pack(HANDSHAKE, self.from_last_file, kind, self.broker_id)

    @property
    def is_reader(self) -> bool:
        """Tell whether the peer only reads some bytes of the log, see `firearrow.replication.fetching`."""
        return self.broker_id < 0


READER: Final = Greeting(-1, is_learner=True)
"""Handshake of a peer that only reads some bytes; controllers give numbers from 1 on."""


def report(physical_offset: int) -> bytes:
    """Return the report of a slave whose log ends at an offset."""
    assert physical_offset >= 0, "a log has a length"
    return REPORT.pack(TRANSFER, physical_offset)


class SwitchSending(LogSender):
    """The master's side of a connection.

    ``epochs`` belong to the log; ``confirmed`` returns the confirmed offset. ``greeting`` is the slave's handshake,
    None before. ``for_readers``: this log is a slave's, so a peer that wants to follow is refused.
    """

    def __init__(
        self, file_bytes: int, epochs: Epochs, confirmed: Callable[[], int], *, for_readers: bool = False
    ) -> None:
        super().__init__(file_bytes)
        self._for_readers = for_readers
        self._epochs = epochs
        self._confirmed = confirmed
        self.greeting: Greeting | None = None
        self._reply = b""

    def receive(self, data: bytes, log_end: int, log_start: int = 0) -> bool:
        """Take the slave's bytes; return True for a report.

        Raises as `LogSender.receive`, and RemoteProtocolError for bytes that are neither handshake nor report.
        """
        data = self._rest + data
        at, acked = 0, -1
        while len(data) - at >= _STATE.size:
            [state] = _STATE.unpack_from(data, at)
            size = self._size_of(state)
            if len(data) - at < size:
                break
            if state == HANDSHAKE:
                self._greeted(data, at, log_end)
            else:
                _, acked = REPORT.unpack_from(data, at)
            at += size
        self._rest = data[at:]
        assert len(self._rest) < SLAVE_HANDSHAKE.size, "the rest is no complete message"
        if acked < 0:
            return False
        greeting = self.greeting
        assert greeting is not None, "nothing else is taken before"
        if not self._epochs.entries:
            raise Mismatch("the log has no epoch yet")
        first = max(log_end - log_end % self._file_bytes, 0)
        self._reported(acked, log_end, first if greeting.from_last_file else log_start)
        return True

    def _size_of(self, state: int) -> int:
        if state == HANDSHAKE:
            return SLAVE_HANDSHAKE.size
        if state != TRANSFER or self.greeting is None:
            raise RemoteProtocolError(f"a slave says nothing that begins with {state} now")
        return REPORT.size

    def _greeted(self, data: bytes, at: int, log_end: int) -> None:
        _, from_last_file, kind, broker_id = SLAVE_HANDSHAKE.unpack_from(data, at)
        if self.next_offset is not None:
            raise RemoteProtocolError("a slave that gets the log already shakes hands again")
        greeting = Greeting(broker_id, kind == LEARNER, from_last_file == 1, kind == STATEFUL)
        if self._for_readers and not greeting.is_reader:
            raise RemoteProtocolError(f"broker {broker_id} wants to follow a broker that is slave")
        self.greeting = greeting
        entries = b"".join(EPOCH.pack(*entry) for entry in self._epochs.entries)
        last = self._epochs.last_epoch
        self._reply = MASTER_HANDSHAKE.pack(HANDSHAKE, len(entries), log_end, last) + entries

    def take_reply(self) -> bytes:
        """Return the bytes that must be sent apart from frames, once."""
        reply, self._reply = self._reply, b""
        return reply

    @property
    def room(self) -> int:
        """Limit of the next frame's data, in bytes."""
        assert self.next_offset is not None, "nothing is sent before the first report"
        room = min(self._end_of_epoch(self.next_offset) - self.next_offset, FRAME_DATA_BYTES_MAX)
        assert room > 0, "otherwise nothing would be sent any more"
        return room

    def _end_of_epoch(self, physical_offset: int) -> int:
        later = (it.start for it in self._epochs.entries if it.start > physical_offset)
        return next(later, physical_offset + FRAME_DATA_BYTES_MAX)

    def frame(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the next frame, as head and data; without ``data`` a heartbeat."""
        at = self.next_offset
        assert at is not None, "nothing is sent before the first report"
        assert len(data) <= FRAME_DATA_BYTES_MAX, "RocketMQ's slave takes no more at once"
        assert at + len(data) <= self._end_of_epoch(at), "a frame has bytes of one epoch"
        entry = self._epochs.at(at)
        assert entry is not None, "a master has an epoch"
        self.next_offset: int | None = at + len(data)
        head = FRAME_HEAD.pack(TRANSFER, len(data), at, *entry, self._confirmed())
        return head, data


class MasterLog(NamedTuple):
    """The master's handshake: the end of its log, and its epochs."""

    end: int
    epochs: Epochs


class FrameHead(NamedTuple):
    """Head of a frame: its epoch, and the confirmed offset."""

    epoch: Epoch
    confirmed: int


class Piece(NamedTuple):
    """A part of the log."""

    physical_offset: int
    data: memoryview


class SwitchReceiving:
    """The slave's side of a connection; ``end_offset`` is the end of its log.

    The owner sets ``is_ready`` when it has cut the log to the master's: frames come only then.
    """

    def __init__(self, end_offset: int) -> None:
        self.end_offset: int = end_offset
        self.is_ready = False
        self._head = b""
        self._missing = 0  # bytes missing of the present frame

    def receive(self, data: bytes) -> Iterator[MasterLog | FrameHead | Piece]:
        """Yield the messages in the master's bytes.

        A piece counts as appended when the next one is requested. Raises Mismatch if a frame does not continue the
        slave's log, RemoteProtocolError for bytes that are neither handshake nor frame.
        """
        view, at = memoryview(data), 0
        while at < len(data):
            if self._missing:
                piece = view[at : at + self._missing]
                yield Piece(self.end_offset, piece)
                at += len(piece)
                self._missing -= len(piece)
                self.end_offset += len(piece)
                continue
            wanted = self._wanted() - len(self._head)
            self._head += view[at : at + wanted]
            at += wanted
            if len(self._head) == self._wanted():
                head, self._head = self._head, b""
                yield self._begin(head) if self.is_ready else _master_log(head)

    def _wanted(self) -> int:
        """Return the size of the head, as its first bytes give it."""
        if self.is_ready:
            return FRAME_HEAD.size
        if len(self._head) < MASTER_HANDSHAKE.size:
            return MASTER_HANDSHAKE.size
        state, size, _, _ = MASTER_HANDSHAKE.unpack_from(self._head)
        if state != HANDSHAKE or size % EPOCH.size or not 0 <= size <= EPOCHS_MAX * EPOCH.size:
            raise RemoteProtocolError(f"no handshake of a master begins with {state} and {size}")
        return MASTER_HANDSHAKE.size + int(size)

    def _begin(self, head: bytes) -> FrameHead:
        assert not self._missing, "the frame before is complete"
        state, size, physical_offset, epoch, start, confirmed = FRAME_HEAD.unpack(head)
        if state != TRANSFER or not 0 <= size <= FRAME_DATA_BYTES_MAX:
            raise RemoteProtocolError(
                f"no frame of a log begins with {state} and has {size} bytes at {physical_offset}"
            )
        if size and (physical_offset < 0 or epoch < 0 or start < 0):
            raise RemoteProtocolError(f"there is no byte of a log at {physical_offset}, of epoch {epoch} from {start}")
        if size and self.end_offset and physical_offset != self.end_offset:
            raise Mismatch(f"the master sends the log from {physical_offset} on, it ends at {self.end_offset} here")
        if size:  # the first frame for an empty log gives its start
            self.end_offset = physical_offset
        self._missing = size
        return FrameHead(Epoch(epoch, start), confirmed)


def _master_log(data: bytes) -> MasterLog:
    _, size, end, _ = MASTER_HANDSHAKE.unpack_from(data)
    assert len(data) == MASTER_HANDSHAKE.size + size
    epochs = Epochs(Epoch(*EPOCH.unpack_from(data, MASTER_HANDSHAKE.size + at)) for at in range(0, size, EPOCH.size))
    return MasterLog(max(end, 0), epochs)
