"""The database of popped messages (``kvStore/``): their records, and when the next is due.

What is written outlives the process at once, and the machine after `KvStore.sync`, by a thread.
How many records become visible in each quarter of a second is counted in memory: so the database
is only searched where there is something, and an acknowledged message is never passed again. A
start counts all keys, a microsecond or two each.

A record of which something was put into the log *leaves*: to all who ask it is gone, and it is
removed when the log is on the disk that far. RocketMQ removes it at once, and a loss of power may
take the message with it.

The family ``default``, which RocketMQ's broker leaves alone, has one row of ours: until when
everything that was popped was moved to the revive topics (200056).

Source: upstream ``PopConsumerRocksdbStore``.
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
from firearrow.broker.pop.records import Checkpoint, Name, Place, QueueId
from firearrow.database import DEFAULT, Database, Family, MiB
from firearrow.errors import ConfigError, CorruptStore, MessageError
from firearrow.javanumbers import LONG_MAX
from firearrow.wire import fastjson
from firearrow.wire.pop import origin_of

DIRECTORY: Final = "kvStore"
STEP_MS: Final = 250  # records are counted by, and due when it is over
RECORDS: Final = "popState"
_MOVED_KEY: Final = b"firearrow moved until"
_BUFFER_BYTES: Final = 16 * MiB
_CACHE_BYTES: Final = 16 * MiB
_OPEN_FILES_MAX: Final = 64
_FAMILIES: Final = (Family(DEFAULT, MiB, universal=True), Family(RECORDS, _BUFFER_BYTES, universal=True))

Row = tuple[bytes, bytes]


class KvStore:
    """Records by their keys. Raises OSError or CorruptStore where the database can't be used."""

    def __init__(self, path: Path) -> None:
        self._database = Database(
            path, _FAMILIES, cache_bytes=_CACHE_BYTES, open_files_max=_OPEN_FILES_MAX, log_ahead=True
        )
        self._records = self._database.tables[RECORDS]
        self.unsynced = False
        self._counts: dict[int, int] = {}
        self._due: list[int] = []  # a heap of steps to be read; of some nothing is left
        self._planned: set[int] = set()  # the same
        self._reading: tuple[bytes, bytes] | None = None  # what is left of the step before them
        self._leaving: dict[bytes, int] = {}  # where the log ends that must be on the disk
        self._left: deque[tuple[int, list[bytes]]] = deque()
        for key, _ in self._records.rows():
            self._count(key)
        moved = self._database.tables[DEFAULT].get(_MOVED_KEY)
        self.moved_ms = TIME.unpack(moved)[0] if moved is not None else -1

    # --- records ---

    def put(self, records: Iterable[KvRecord], gone: Iterable[bytes] = ()) -> None:
        """Write records, and remove others by their keys: all or none, OSError if it can't be.

        What is written is not removed, even if it has the key of another. Java:
        PopConsumerService#changeInvisibilityDuration removes it (apache/rocketmq#10276).
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
        """Give the value of a record, None if there is no such record."""
        return None if key in self._leaving else self._records.get(key)

    def remove(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remove records; gives the keys of those that there were. OSError if it can't be."""
        there = [key for key in keys if self.get(key) is not None]
        if there:
            self.put((), there)
        return there

    def some(self, start: bytes, count: int) -> list[Row]:
        """Give up to so many rows from a key on; some may leave."""
        return self._records.some(start, count)

    # --- when they are due ---

    def due_ms(self) -> int | None:
        """Time at which the next records are due, None if there are none."""
        if self._reading is not None:
            return 0
        heap = self._due
        while heap and heap[0] not in self._counts:
            self._planned.remove(heappop(heap))
        return (heap[0] + 1) * STEP_MS if heap else None

    def due(self, now_ms: int, count: int) -> list[bytes]:
        """Give keys of up to so many records that are due, each once unless it is put again.

        It may give none although more are due.
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
            return  # not one of the broker's
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

    # --- what leaves ---

    def leave(self, keys: Sequence[bytes], log_end: int) -> None:
        """Have records be gone, and removed when the log is on the disk up to an offset."""
        if keys:
            self._leaving.update(dict.fromkeys(keys, log_end))
            self._left.append((log_end, list(keys)))
        for key in keys:
            self._uncount(key)

    @property
    def has_leaving(self) -> bool:
        """Tell whether records are still to be removed."""
        return bool(self._left)

    def settle(self, flushed_offset: int) -> None:
        """Remove what may be: the log is on the disk up to an offset. OSError if it can't be."""
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
        """Note that what was popped until a time is moved to the revive topics, on the disk."""
        batch = self._database.batch()
        batch.put(DEFAULT, _MOVED_KEY, TIME.pack(until_ms))
        self._database.write(batch)
        self.moved_ms = until_ms

    # --- the disk ---

    def sync(self) -> None:
        """Return once all that was written is on the disk, in any thread; OSError if it refuses."""
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
    """Open the database if the configuration asks for it, or there is one: what is in it comes
    again in any case. ConfigError if it can't be opened."""
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


# The records of popped messages in RocksDB: one for each message, in order of visible time.
#
# They are rows of the column family ``popState`` in ``kvStore/`` below the store's root. All times
# are in ms; the key is big-endian::
#
#     offset size name
#     0      8    when the message is visible again: pop time + invisible time
#     8      n    group, then @
#     8+n+1  m    topic that the message is in (perhaps a retry topic), then @
#            4    queue, then @
#            8    queue offset
#
# The value is JSON, names in this order; ``attemptId`` is there if the pop had one::
#
#     {"popTime":1700000000000,"groupId":"g","topicId":"T","queueId":3,"retryFlag":0,
#      "invisibleTime":60000,"offset":12,"attemptTimes":0,"suspend":false}
#
#     0000018bcfe65260 67 40 54 40 00000003 40 000000000000000c     the key of that
#
# ``retryFlag`` is the origin of the handle (``wire.pop``), or 0 where the record was written for one
# that is to be visible at another time; ``attemptTimes`` is how often the message could not be put
# into its retry topic; ``suspend`` says that it comes again without another failure being counted.
# Who acknowledges a message knows the key by its handle, and removes the row.
#
# Source: upstream ``PopConsumerRecord``.


TIME: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">cicq")  # @ queue @ offset, behind the topic
_AT: Final = b"@"


class KvRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that was popped."""

    pop_ms: Place = field(name="popTime")
    group: Name = field(name="groupId")
    topic: Name = field(name="topicId")
    queue_id: QueueId = field(name="queueId")
    retry_flag: int = field(name="retryFlag", default=0)
    invisible_ms: Place = field(name="invisibleTime")
    queue_offset: Place = field(name="offset")
    attempt_times: int = field(name="attemptTimes", default=0)
    attempt_id: str | UnsetType | None = field(name="attemptId", default=UNSET)
    is_suspended: bool = field(name="suspend", default=False)

    @property
    def visible_ms(self) -> int:
        """Time at which the message can be popped again unless it was acknowledged."""
        return self.pop_ms + self.invisible_ms

    @property
    def key(self) -> bytes:
        """The key of its row."""
        return key_of(self.visible_ms, self.group, self.topic, self.queue_id, self.queue_offset)

    def checkpoint(self, broker_name: str) -> Checkpoint:
        """Give the checkpoint that says the same in a revive topic."""
        return Checkpoint(
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
        """Give the record of the same, which could not come again, for a later time."""
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
"""Gives the value of a record's row."""

_decode: Final = msgspec.json.Decoder(KvRecord).decode


def records_of(checkpoint: Checkpoint) -> list[KvRecord]:
    """Give the records that say the same as a checkpoint."""
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
    """Give the key of a record's row."""
    place = _PLACE.pack(_AT, queue_id, _AT, queue_offset)
    return TIME.pack(visible_ms) + f"{group}@{topic}".encode() + place


def record_of(key: bytes, value: bytes) -> KvRecord:
    """Read a row; MessageError if nothing can be made of it.

    The key says which message is meant and when it is visible, so a damaged value loses none. Java:
    PopConsumerRocksdbStore#scanExpiredRecords ends there, and nothing comes again any more.
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
    """Read what a key says; the pop then was when the message becomes visible."""
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
