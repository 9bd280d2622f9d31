"""Sender of stored messages, none of them twice, in jobs that may be killed at any point.

A job sends its messages of one source queue to one target queue, in order, window by window. Before each window it
notes its progress (``SourceProgress``): all earlier messages are sent, later ones may be. After an unclean end (a
killed process, or a missing answer) the target queue tells which messages have arrived, and only the rest is sent.
There are two ways to know::

    Marked       messages name their source (properties REPLAY_...), so that other programs may
                 write to the target too
    Positional   no other program writes to the target queue, so the number of its messages tells

Bodies are sent in their stored form: compressed bodies with the flag that says so, which all messages of a batch share.
An archive stores them decompressed, so they are compressed again in the same way, because a broker may refuse larger
bodies. A message that fits no batch is sent alone.

A request in flight when its sender died may arrive late. So the target is asked ``SETTLE_SECONDS`` later: a restarted
job waits that long, and so does each new attempt. A process locks the progress file while it works on a queue, so a
task that was given up but still runs cannot send beside its successor.
"""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from firearrow.client.queues import Queue
from firearrow.clock import Clock, SystemClock
from firearrow.errors import (
    BrokerError,
    CorruptStore,
    InvalidRequest,
    MessageError,
    NotFound,
    NotPermitted,
    NotSupported,
    StoreLocked,
)
from firearrow.files import make_directory, replace_atomically
from firearrow.message import properties
from firearrow.message.batch import BatchMember
from firearrow.message.compress import compress, compression_of
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_MASK

SETTLE_SECONDS: Final = 3.0  # a broker's own time-out of a send
ATTEMPTS_MAX: Final = 5
WINDOW_BYTES: Final = 8 << 20  # messages to read from the target after an unclean end
BATCH_BYTES: Final = 1 << 20
BATCH_ROWS: Final = 1024
_MEMBER_BYTES: Final = 22
# Lasting refusals: a message that is too large, a topic that is missing or can't be written.
_FINAL: Final = (InvalidRequest, NotFound, NotPermitted, NotSupported)
_CRC_MASK: Final = 0x7FFF_FFFF  # a record stores its body's CRC without the sign
_END: Final = properties.PAIR_END

# Properties that brokers and proxies have set, and those that would change the delivery.
STRIPPED: Final = frozenset(
    {
        properties.DELAY_LEVEL,
        *properties.DELIVERY_TIMES,
        properties.TIMER_OUT_MS,
        properties.TIMER_ENQUEUE_MS,
        properties.TIMER_DEQUEUE_MS,
        properties.TIMER_ROLL_TIMES,
        properties.TIMER_DELETE_UNIQUE_KEY,
        properties.TRANSACTION_PREPARED,
        properties.INNER_MULTI_DISPATCH,
        properties.INNER_MULTI_QUEUE_OFFSET,
        properties.REAL_TOPIC,
        properties.REAL_QUEUE_ID,
        properties.POP_CHECKPOINT,
        properties.FIRST_POP_TIME,
        properties.MIN_OFFSET,
        "MAX_OFFSET",
    }
)


class SourceProgress(msgspec.Struct, frozen=True, rename="camel"):
    """Progress of a source queue.

    All its chosen messages below ``next_offset`` are sent; their number is ``sent``. Later messages, if any, are in the
    target queue from ``target_offset`` on.
    """

    next_offset: int
    target_offset: int
    sent: int = 0
    done: bool = False


class TargetQueue(Protocol):
    """A queue that messages are sent to."""

    def end(self) -> int:
        """Return the queue offset of the next message."""

    def properties(self, start: int) -> Iterator[dict[str, str]]:
        """Yield the properties of its messages from an offset on."""

    def send(self, members: Sequence[BatchMember], sys_flag: int) -> None:
        """Send messages whose bodies all fit the flag; they are acknowledged on return.

        Raises OSError or BrokerError.
        """


class Message(NamedTuple):
    """One message of the source: its queue offset, its ordinal number, and its form for sending.

    ``sys_flag`` holds the compression of its body.
    """

    offset: int
    ordinal: int
    member: BatchMember
    sys_flag: int


Rows = Callable[[int], Iterator[pa.RecordBatch]]
"""The chosen rows of a source queue from an offset on, in their order; the same each time."""

COLUMNS: Final = ("queueOffset", "flag", "sysFlag", "bodyCrc", "properties", "body", "msgId")


@dataclass(frozen=True, slots=True)
class SourceMarks:
    """Properties that name the source of a message."""

    job: str
    queue: Queue

    def of(self, row: dict[str, Any]) -> str:
        """Return the properties to add to a message."""
        return properties.format(
            {
                "REPLAY_JOB": self.job,
                "REPLAY_TOPIC": self.queue.topic,
                "REPLAY_BROKER": self.queue.broker,
                "REPLAY_QUEUE": str(self.queue.queue_id),
                "REPLAY_OFFSET": str(row["queueOffset"]),
                "REPLAY_ID": row["msgId"] or "",
            }
        )

    def offset(self, found: dict[str, str]) -> int | None:
        """Return the source offset of a message of this job and queue; None for any other."""
        mine = (self.job, self.queue.topic, self.queue.broker, str(self.queue.queue_id))
        names = ("REPLAY_JOB", "REPLAY_TOPIC", "REPLAY_BROKER", "REPLAY_QUEUE")
        if tuple(found.get(name) for name in names) != mine:
            return None
        return int(found["REPLAY_OFFSET"])


class ProgressFile:
    """The file that holds a queue's progress."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock out other processes during a block.

        Raises StoreLocked if another process sends the same queue.
        """
        make_directory(self._path.parent)
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked(f"{self._path}: another process is running this job") from None
            yield
        finally:
            os.close(descriptor)

    def note(self, progress: SourceProgress) -> None:
        """Write the progress to the disk."""
        replace_atomically(self._path, msgspec.json.encode(progress))

    def read(self) -> SourceProgress | None:
        """Return the progress that was noted last."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=SourceProgress)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptStore(f"{self._path} is not a progress file: {error}") from None


class Pace:
    """Rate limit in messages a second; ``per_second`` None is no limit."""

    def __init__(
        self, per_second: float | None, clock: Clock | None = None, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._per_second = per_second
        self._clock = clock or SystemClock()
        self._sleep = sleep or threading.Event().wait
        self._free_at = self._clock.monotonic()

    def wait(self, messages: int) -> None:
        """Return when this number of messages may be sent."""
        if self._per_second is None:
            return
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now - 1.0)  # an idle second may be caught up
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at += messages / self._per_second


@dataclass
class QueueResend:
    """One source queue on its way to one target queue. ``marks`` None: by position."""

    rows: Rows
    target: TargetQueue
    ledger: ProgressFile
    marks: SourceMarks | None
    pace: Pace
    sleep: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    window_bytes: int = WINDOW_BYTES
    batch_bytes: int = BATCH_BYTES

    def run(self) -> SourceProgress:
        """Send the messages that have not arrived yet; return the final progress.

        Raises OSError or BrokerError if the target does not accept a message in several attempts, or refuses it for a
        lasting reason; the call can be repeated. Raises CorruptStore if another program writes to a target that is ours
        by position.
        """
        with self.ledger.held():
            failures = 0
            while True:
                noted = self.ledger.read()
                if noted is not None and noted.done:
                    return noted
                try:
                    return self._attempt(noted)
                except _FINAL:
                    raise
                except (OSError, BrokerError):
                    failures = failures + 1 if self.ledger.read() == noted else 1
                    if failures >= ATTEMPTS_MAX:
                        raise
                    self.sleep(SETTLE_SECONDS)

    def _attempt(self, noted: SourceProgress | None) -> SourceProgress:
        """Go on from the noted progress."""
        begun = noted or SourceProgress(0, self.target.end())
        if noted is None:
            self.ledger.note(begun)
        arrived = _Arrivals(begun, self.target, self.marks)
        for window in self._windows(self._messages(begun.next_offset), arrived):
            first = window[0]
            self.ledger.note(SourceProgress(first.offset, arrived.look_from(first), begun.sent + first.ordinal))
            for batch in _cut(window, self.batch_bytes, BATCH_ROWS):
                self.pace.wait(len(batch))
                self.target.send([message.member for message in batch], batch[0].sys_flag)
        count = self._count
        if self.marks is None:
            self._require_alone(begun.target_offset + count)
        done = SourceProgress(self._next_offset, self.target.end(), begun.sent + count, done=True)
        self.ledger.note(done)
        return done

    def _messages(self, start: int) -> Iterator[Message]:
        """Read and encode the source from an offset on, counting."""
        self._count, self._next_offset = 0, start
        for batch in self.rows(start):
            for row in batch.select(COLUMNS).to_pylist():
                offset = row["queueOffset"]
                assert offset >= self._next_offset, "a source queue comes in its order"
                yield _message(row, self._count, self.marks)
                self._count += 1
                self._next_offset = offset + 1

    def _windows(self, messages: Iterator[Message], arrived: _Arrivals) -> Iterator[list[Message]]:
        missing = (message for message in messages if not arrived.has(message))
        return _cut(missing, self.window_bytes)

    def _require_alone(self, expected: int) -> None:
        """Raise CorruptStore unless the target ends with our messages."""
        end = self.target.end()
        if end < expected:  # the end may become visible a little later
            self.sleep(SETTLE_SECONDS)
            end = self.target.end()
        if end != expected:
            raise CorruptStore(
                f"the target queue ends at {end}, but {expected} was expected: other programs write to it"
                " too, so the arrived messages can't be known"
            )


class _Arrivals:
    """Messages of the source that are in the target, after an unclean end."""

    def __init__(self, begun: SourceProgress, target: TargetQueue, marks: SourceMarks | None) -> None:
        self._begun = begun
        self._target = target
        self._offsets: set[int] | None = None
        self._count = 0
        if marks is None:
            self._count = target.end() - begun.target_offset
        else:
            found = map(marks.offset, target.properties(begun.target_offset))
            self._offsets = {offset for offset in found if offset is not None}

    def has(self, message: Message) -> bool:
        """Tell whether a message has arrived."""
        if self._offsets is None:
            return message.ordinal < self._count
        return message.offset in self._offsets

    def look_from(self, first: Message) -> int:
        """Return the first target offset of the search for a window that begins with this message."""
        if self._offsets is None:
            return self._begun.target_offset + first.ordinal
        if self._offsets and max(self._offsets) > first.offset:
            return self._begun.target_offset  # some of the window has arrived already
        return self._target.end()


def _cut(messages: Iterable[Message], bytes_max: int, rows_max: int | None = None) -> Iterator[list[Message]]:
    """Cut messages into lists of at most ``bytes_max`` bytes, but of one message at least.

    With ``rows_max`` the lists are batches, with at most that many messages and bodies of one kind.
    """
    part: list[Message] = []
    size_bytes = 0
    for message in messages:
        own = member_bytes(message.member)
        full = size_bytes + own > bytes_max or len(part) == rows_max
        if part and (full or (rows_max and message.sys_flag != part[0].sys_flag)):
            yield part
            part, size_bytes = [], 0
        part.append(message)
        size_bytes += own
    if part:
        yield part


def member_bytes(member: BatchMember) -> int:
    """Return the number of bytes of a message in a batch."""
    return _MEMBER_BYTES + len(member.body) + len(member.properties)


def _message(row: dict[str, Any], ordinal: int, marks: SourceMarks | None) -> Message:
    """Return a message in its form for sending."""
    sys_flag = (row["sysFlag"] or 0) & (COMPRESSED | COMPRESSION_MASK)
    kind = compression_of(sys_flag)
    body = row["body"] or b""
    if kind is None:
        sys_flag = 0
    elif zlib.crc32(body) & _CRC_MASK != row["bodyCrc"] & _CRC_MASK:  # it was decompressed
        body = compress(body, kind)
    member = BatchMember(row["flag"] or 0, body, _properties(row, marks))
    return Message(row["queueOffset"], ordinal, member, sys_flag)


def _properties(row: dict[str, Any], marks: SourceMarks | None) -> bytes:
    """Return the properties of a message in their form for sending."""
    text = row["properties"] or ""
    if any(name in text for name in STRIPPED):
        kept = properties.parse(text)
        text = properties.format({k: v for k, v in kept.items() if k not in STRIPPED})
    if marks is not None:
        text = f"{text}{'' if not text or text.endswith(_END) else _END}{marks.of(row)}"
    encoded = text.encode()
    if len(encoded) > properties.PROPERTIES_BYTES_MAX:
        raise MessageError(
            f"{len(encoded)} bytes exceed {properties.PROPERTIES_BYTES_MAX}",
            f"properties of the message at queue offset {row['queueOffset']}",
        )
    return encoded
