"""Decisions on half messages: in memory, and as records of the op queue.

A decision, commit or rollback, is known here at once, as a bit for the queue offset of the half. The decisions of some
seconds become a record of ``RMQ_SYS_TRANS_OP_HALF_TOPIC``, tag ``d``, whose body has their queue offsets, ``17,18,``.
The next start reads it, and so does any other broker that opens the store. Other copies of such a half follow it,
``17,+3,``, so that they are not checked either. RocketMQ reads numbers with and without the sign; a reader that counts
decisions can tell the half from its copies.

Source: RocketMQ ``TransactionalMessageServiceImpl#batchSendOpMessage``, ``#getOpMessage``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from firearrow.broker.sending.puts import Puts, UnstoredMessage
from firearrow.broker.state.settings import Settings
from firearrow.broker.transactions.halves import OP_TOPIC, QUEUE_ID
from firearrow.clock import Clock
from firearrow.errors import BrokerError, DiskFull, MessageError, StoreError
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.model import MessageView
from firearrow.services import Alarm, Scheduler

log: Final = Log(__name__)

KNOWN_BEFORE_MAX: Final = 1 << 24
"""Decided halves in memory behind which the half queue has moved on, in case their producer decides again: 2 MiB of
bits. They are the halves of the last minutes at any rate."""

UNWRITTEN_MAX: Final = 100_000
"""Decisions that wait for their record while the disk is full, some 8 MB; above, no half is rolled back. (A commit
needs room itself.)"""

DECIDED_TAG: Final = "d"
_SEPARATOR: Final = ","
_OF_COPY: Final = "+"
_OFFSET: Final = re.compile(r"\+?[0-9]{1,18}")
_CHUNK: Final = 1 << 16  # halves whose bits are allocated and freed together


class DecidedOffsets:
    """Set of dense queue offsets: one bit each."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def __contains__(self, queue_offset: int) -> bool:
        chunk = self._chunks.get(queue_offset // _CHUNK)
        at = queue_offset % _CHUNK
        return chunk is not None and bool(chunk[at >> 3] >> (at & 7) & 1)

    def add(self, queue_offset: int) -> None:
        """Add an offset."""
        chunk = self._chunks.get(queue_offset // _CHUNK)
        if chunk is None:
            chunk = self._chunks[queue_offset // _CHUNK] = bytearray(_CHUNK // 8)
        at = queue_offset % _CHUNK
        chunk[at >> 3] |= 1 << (at & 7)

    def forget_before(self, queue_offset: int) -> None:
        """Forget offsets far before another, which no request names."""
        first = (queue_offset - KNOWN_BEFORE_MAX) // _CHUNK
        for number in [number for number in self._chunks if number < first]:
            del self._chunks[number]


def offsets_in(op: MessageView) -> Iterator[int]:
    """Yield the offsets that a record of the op queue names, without texts that are no numbers."""
    if op.tags == DECIDED_TAG:
        for number in op.body.decode("latin-1").split(_SEPARATOR):
            if _OFFSET.fullmatch(number):
                yield int(number)


class OpQueue:
    """Write decisions to the op queue, and know which of its records are no longer needed.

    A record is done once the half queue has moved on behind every half that it names. ``host`` is the broker's own
    address, packed.
    """

    def __init__(self, puts: Puts, host: bytes, settings: Settings, clock: Clock, scheduler: Scheduler) -> None:
        self._puts = puts
        self._host = host
        self._settings = settings
        self._clock = clock
        self._unwritten: list[str] = []
        self._unwritten_bytes = 0
        self._alarm = Alarm(scheduler, self.write)
        self._in_use: deque[tuple[int, int]] = deque()
        self.done_offset: int = 0
        self.trouble: str | None = None

    def check_room(self) -> None:
        """Raise DiskFull while no more decisions can be taken."""
        if len(self._unwritten) >= UNWRITTEN_MAX:
            raise DiskFull(f"{UNWRITTEN_MAX} decisions are not written yet: {self.trouble}")

    def note(self, half_offset: int, copies: Iterable[int] = ()) -> None:
        """Write later that a half and its copies are decided."""
        self._note([f"{half_offset}", *(f"{_OF_COPY}{copy}" for copy in copies)])

    def note_all(self, half_offsets: Iterable[int]) -> None:
        """Write later that halves without copies are decided."""
        self._note(map(str, half_offsets))

    def _note(self, named: Iterable[str]) -> None:
        most = self._settings.broker.transaction_op_msg_max_size
        for number in named:
            self._unwritten.append(number)
            self._unwritten_bytes += len(number) + len(_SEPARATOR)
            if self._unwritten_bytes >= most and self.trouble is None:
                self.write()
        if self._unwritten and not self._alarm.is_set:
            self._write_later()

    def _write_later(self) -> None:
        self._alarm.set(self._settings.broker.transaction_op_batch_interval / 1000)

    def write(self) -> None:
        """Write all pending decisions; retry later if the disk refuses them."""
        self.cancel()
        before = self.trouble
        try:
            while self._unwritten:
                self._write_record()
        except (StoreError, MessageError, BrokerError) as error:
            self.trouble = str(error)
            if before is None:
                log.error("decisions on transactions can't be written, and are retried", extra={"error": error})
            self._write_later()
        else:
            self.trouble = None

    def _write_record(self) -> None:
        bytes_max = self._settings.broker.transaction_op_msg_max_size
        text: list[str] = []
        size = 0
        for number in self._unwritten:
            if size >= bytes_max:
                break
            text.append(number)
            size += len(number) + len(_SEPARATOR)
        body = "".join(f"{number}{_SEPARATOR}" for number in text).encode()
        found = {properties.TAGS: DECIDED_TAG, properties.WAIT_STORE: "true"}
        now_ms = self._clock.now_ms()
        placed = self._puts.put(UnstoredMessage(OP_TOPIC, QUEUE_ID, body, found, now_ms, self._host), now_ms)
        self.in_use(placed.queue_offset, max(map(int, text)))
        del self._unwritten[: len(text)]
        self._unwritten_bytes -= size

    def cancel(self) -> None:
        """Cancel the next write."""
        self._alarm.cancel()

    def in_use(self, queue_offset: int, last_half: int) -> None:
        """Note that a record exists, and the last half that it names."""
        self._in_use.append((queue_offset, last_half))

    def done_before(self, half_offset: int) -> int:
        """Return the offset before which all records are done when the half queue is at an offset."""
        while self._in_use and self._in_use[0][1] < half_offset:
            self.done_offset = self._in_use.popleft()[0] + 1
        return self.done_offset
