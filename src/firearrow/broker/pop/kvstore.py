"""Database of popped messages (``kvStore/`` below the store's root): their records, and when the next is due.

Records are rows of the column family ``popState``, one for each message, in order of visible time. All times are in ms;
the key is big-endian::

    offset size name
    0      8    time when the message is visible again: pop time + invisible time
    8      n    group, then @
    8+n+1  m    topic of the message (perhaps a retry topic), then @
           4    queue, then @
           8    queue offset

The value is JSON with the names in this order; ``attemptId`` exists if the pop had one::

    {"popTime":1700000000000,"groupId":"g","topicId":"T","queueId":3,"retryFlag":0,
     "invisibleTime":60000,"offset":12,"attemptTimes":0,"suspend":false}

    0000018bcfe65260 67 40 54 40 00000003 40 000000000000000c     the key of that

``retryFlag`` is the origin of the handle (``wire.pop``), or 0 in the record of a message that becomes visible at
another time. ``attemptTimes`` is the count of failed puts into the retry topic. ``suspend`` says that the redelivery
does not count as a failure. An acknowledgement has the key from its handle, and removes the row.

A write outlives the process at once, and the machine after `KvStore.sync`, which a thread calls. The count of records
that become visible in each quarter of a second is in memory. So the database is searched only where records are, and
never again where messages are acknowledged. A start counts all keys, a microsecond or two each.

A record *leaves* once its message is put into the log: no reader finds it any more, and it is removed when the log is
on the disk up to there. RocketMQ removes it at once, and a loss of power may take the message with it.

The family ``default``, which RocketMQ's broker does not use, has one row of ours: the time until which all pops were
moved to the revive topics (200056).

Source: RocketMQ ``PopConsumerRocksdbStore``, ``PopConsumerRecord``.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, field

from firearrow.broker.config import BrokerConfig
from firearrow.database import DEFAULT, Database, FamilyOptions, MiB
from firearrow.errors import ConfigError, CorruptStore, MessageError
from firearrow.javanumbers import LONG_MAX
from firearrow.wire import fastjson
from firearrow.wire.pop import origin_of
from firearrow.wire.poprecords import Name, Natural, PopCheckpoint, QueueId

DIRECTORY: Final = "kvStore"
STEP_MS: Final = 250  # records are counted by this interval, and due when it is over
RECORDS: Final = "popState"
_MOVED_KEY: Final = b"firearrow moved until"
_BUFFER_BYTES: Final = 16 * MiB
_CACHE_BYTES: Final = 16 * MiB
_OPEN_FILES_MAX: Final = 64
_FAMILIES: Final = (FamilyOptions(DEFAULT, MiB, universal=True), FamilyOptions(RECORDS, _BUFFER_BYTES, universal=True))

Row = tuple[bytes, bytes]


class KvStore:
    """Records by their keys. Raise OSError or CorruptStore if the database can't be used."""

    def __init__(self, path: Path) -> None:
        self._database = Database(
            path, _FAMILIES, cache_bytes=_CACHE_BYTES, open_files_max=_OPEN_FILES_MAX, log_ahead=True
        )
        self._records = self._database.tables[RECORDS]
        self.unsynced: bool = False
        self._counts: dict[int, int] = {}
        self._due: list[int] = []  # a heap of intervals to read; some have no records left
        self._planned: set[int] = set()  # the same as a set
        self._reading: tuple[bytes, bytes] | None = None  # rest of the interval before them
        self._leaving: dict[bytes, int] = {}  # by key, the end of the log that must be on the disk
        self._left: deque[tuple[int, list[bytes]]] = deque()
        for key, _ in self._records.rows():
            self._count(key)
        moved = self._database.tables[DEFAULT].get(_MOVED_KEY)
        self.moved_ms = TIME.unpack(moved)[0] if moved is not None else -1

    # --- records ---

    def put(self, records: Iterable[KvRecord], gone: Iterable[bytes] = ()) -> None:
        """Write records, and remove others by their keys: all or none. Raise OSError if that fails.

        A written record is not removed, even if it has the key of another one.
        Java: PopConsumerService#changeInvisibilityDuration removes it (apache/rocketmq#10276).
        """
        new = {record.key: encode(record) for record in records}
        batch = self._database.batch()
        old = [key for key in gone if key not in new]
        for key in old:
            batch.delete(RECORDS, key)
        batch.put_all(RECORDS, new.keys(), new.values())
        self._database.write(batch, sync=False)
        self.unsynced = True
        for key in old:
            self._uncount(key)
        for key in new:
            self._leaving.pop(key, None)
            self._count(key)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a record, None if there is no such record."""
        return None if key in self._leaving else self._records.get(key)

    def remove(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remove records; return the keys of those that existed. Raise OSError if that fails."""
        there = [key for key in keys if self.get(key) is not None]
        if there:
            self.put((), there)
        return there

    def some(self, start: bytes, count: int) -> list[Row]:
        """Return up to ``count`` rows from a key on; some may leave."""
        return self._records.some(start, count)

    # --- due records ---

    def due_ms(self) -> int | None:
        """Due time of the next records, None if there are none."""
        if self._reading is not None:
            return 0
        heap = self._due
        while heap and heap[0] not in self._counts:
            self._planned.remove(heappop(heap))
        return (heap[0] + 1) * STEP_MS if heap else None

    def due(self, now_ms: int, count: int) -> list[bytes]:
        """Return the keys of up to ``count`` due records, each once unless the record is written again.

        The list may be empty although more records are due.
        """
        due_ms = self.due_ms()
        if due_ms is None or due_ms > now_ms:
            return []
        if self._reading is None:
            step = heappop(self._due)
            self._planned.remove(step)
            self._reading = TIME.pack(step * STEP_MS), TIME.pack((step + 1) * STEP_MS)
        start, end = self._reading
        rows = self._records.some(start, count, end)
        self._reading = (rows[-1][0] + b"\0", end) if len(rows) == count else None
        return [key for key, _ in rows if key not in self._leaving]

    def _count(self, key: bytes) -> None:
        visible_ms = int.from_bytes(key[: TIME.size], "big")
        if len(key) < TIME.size or visible_ms > LONG_MAX:
            return  # not a key of the broker
        step = visible_ms // STEP_MS
        self._counts[step] = self._counts.get(step, 0) + 1
        if step not in self._planned:
            self._planned.add(step)
            heappush(self._due, step)

    def _uncount(self, key: bytes) -> None:
        step = int.from_bytes(key[: TIME.size], "big") // STEP_MS
        left = self._counts.get(step, 0) - 1
        if left > 0:
            self._counts[step] = left
        else:
            self._counts.pop(step, None)

    # --- leaving records ---

    def leave(self, keys: Sequence[bytes], log_end: int) -> None:
        """Hide records, and remove them when the log is on the disk up to an offset."""
        if keys:
            self._leaving.update(dict.fromkeys(keys, log_end))
            self._left.append((log_end, list(keys)))
        for key in keys:
            self._uncount(key)

    @property
    def has_leaving(self) -> bool:
        """Return whether hidden records are not removed yet."""
        return bool(self._left)

    def settle(self, flushed_offset: int) -> None:
        """Remove the records that may go: the log is on the disk up to an offset. Raise OSError if that fails."""
        left = self._left
        while left and left[0][0] <= flushed_offset:
            log_end, all_keys = left[0]
            keys = [key for key in all_keys if self._leaving.get(key) == log_end]
            batch = self._database.batch()
            for key in keys:
                batch.delete(RECORDS, key)
            self._database.write(batch, sync=False)
            for key in keys:
                del self._leaving[key]
            left.popleft()

    def note_moved(self, until_ms: int) -> None:
        """Note on the disk that all pops until a time are moved to the revive topics."""
        batch = self._database.batch()
        batch.put(DEFAULT, _MOVED_KEY, TIME.pack(until_ms))
        self._database.write(batch)
        self.moved_ms = until_ms

    # --- the disk ---

    def sync(self) -> None:
        """Return once all writes are on the disk, in any thread; OSError if that fails."""
        if self.unsynced:
            self.unsynced = False
            try:
                self._database.sync()
            except BaseException:
                self.unsynced = True
                raise

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def kv_store_of(config: BrokerConfig, root: Path) -> KvStore | None:
    """Open the database if the configuration asks for it, or if it exists: its messages are redelivered in any case.

    Raise ConfigError if it can't be opened.
    """
    path = root / DIRECTORY
    if config.pop_consumer_kv_service_init:
        why = "popConsumerKVServiceInit=true"
    elif (path / "CURRENT").exists():
        why = f"popped messages are noted in {path}"
    else:
        return None
    try:
        return KvStore(path)
    except (ConfigError, OSError, CorruptStore) as error:
        raise ConfigError(f"{why}: {error}") from None


# --- rows ---

TIME: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">cicq")  # @ queue @ offset, behind the topic
_AT: Final = b"@"


class KvRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Record of a popped message."""

    pop_ms: Natural = field(name="popTime")
    group: Name = field(name="groupId")
    topic: Name = field(name="topicId")
    queue_id: QueueId = field(name="queueId")
    retry_flag: int = field(name="retryFlag", default=0)
    invisible_ms: Natural = field(name="invisibleTime")
    queue_offset: Natural = field(name="offset")
    attempt_times: int = field(name="attemptTimes", default=0)
    attempt_id: str | UnsetType | None = field(name="attemptId", default=UNSET)
    is_suspended: bool = field(name="suspend", default=False)

    @property
    def visible_ms(self) -> int:
        """Time when the message can be popped again unless it is acknowledged."""
        return self.pop_ms + self.invisible_ms

    @property
    def key(self) -> bytes:
        """Key of its row."""
        return key_of(self.visible_ms, self.group, self.topic, self.queue_id, self.queue_offset)

    def checkpoint(self, broker_name: str) -> PopCheckpoint:
        """Return the checkpoint that says the same in a revive topic."""
        return PopCheckpoint(
            broker_name=broker_name,
            group=self.group,
            deltas=[0],
            invisible_ms=self.invisible_ms,
            count=1,
            pop_ms=self.pop_ms,
            queue_id=self.queue_id,
            visible_ms=self.visible_ms,
            put_again=str(self.attempt_times),
            start_offset=self.queue_offset,
            is_suspended=self.is_suspended,
            topic=self.topic,
        )

    def tried_again_at(self, visible_ms: int) -> KvRecord:
        """Return the record that retries a failed redelivery at a later time."""
        return KvRecord(
            pop_ms=min(self.pop_ms, visible_ms),
            group=self.group,
            topic=self.topic,
            queue_id=self.queue_id,
            retry_flag=self.retry_flag,
            invisible_ms=visible_ms - min(self.pop_ms, visible_ms),
            queue_offset=self.queue_offset,
            attempt_times=self.attempt_times + 1,
            is_suspended=self.is_suspended,
        )


encode: Final = msgspec.json.Encoder().encode
"""Encode the value of a record's row."""

_decode: Final = msgspec.json.Decoder(KvRecord).decode


def records_of(checkpoint: PopCheckpoint) -> list[KvRecord]:
    """Return the records that say the same as a checkpoint."""
    return [
        KvRecord(
            pop_ms=checkpoint.pop_ms,
            group=checkpoint.group,
            topic=checkpoint.topic,
            queue_id=checkpoint.queue_id,
            retry_flag=origin_of(checkpoint.topic),
            invisible_ms=checkpoint.invisible_ms,
            queue_offset=queue_offset,
            is_suspended=checkpoint.is_suspended,
        )
        for queue_offset in checkpoint.left
    ]


def key_of(visible_ms: int, group: str, topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of a record's row."""
    place = _PLACE.pack(_AT, queue_id, _AT, queue_offset)
    return TIME.pack(visible_ms) + f"{group}@{topic}".encode() + place


def record_of(key: bytes, value: bytes) -> KvRecord:
    """Decode a row; MessageError if that is impossible.

    The key names the message and the time when it is visible, so a damaged value loses no message.
    Java: PopConsumerRocksdbStore#scanExpiredRecords ends there, and redelivers nothing any more.
    """
    try:
        record = _decode(value)
    except (ValueError, RecursionError):
        try:
            record = fastjson.decode(value, KvRecord)
        except MessageError:
            return _record_of_key(key)
    return record if record.key == key else _record_of_key(key)


def _record_of_key(key: bytes) -> KvRecord:
    """Decode a key; the pop time then is the time when the message becomes visible."""
    names, tail = key[TIME.size : -_PLACE.size], key[-_PLACE.size :]
    group, at, topic = names.partition(_AT)
    if len(key) < TIME.size + _PLACE.size or not (group and at and topic):
        raise MessageError(f"not the key of a popped message: {key[:200].hex()}")
    before, queue_id, behind, queue_offset = _PLACE.unpack(tail)
    visible_ms = TIME.unpack_from(key)[0]
    if before + behind != _AT + _AT or min(queue_id, queue_offset) < 0 or visible_ms > LONG_MAX:
        raise MessageError(f"not the key of a popped message: {key[:200].hex()}")
    try:
        return KvRecord(
            pop_ms=visible_ms,
            group=group.decode(),
            topic=topic.decode(),
            queue_id=queue_id,
            invisible_ms=0,
            queue_offset=queue_offset,
        )
    except UnicodeDecodeError as error:
        raise MessageError(f"a name in a key is no UTF-8: {error}") from None
