"""One ConsumeQueue whose entries are rows of a database; see ``rocks`` for all of them.

Source: RocketMQ's ``RocksDBConsumeQueue``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from firearrow.message.record import topic_field
from firearrow.store import rocksformat as rows
from firearrow.store.queues import ENTRY_BYTES, UNCOUNTED
from firearrow.store.scan import Ints

if TYPE_CHECKING:
    from firearrow.database import Table


NO_PLACE: Final = (-1, -1)
# Equal ids of queues of all topics are one object: a million would take 30 MB, and a miss of the processor's cache
# each.
_IDS: Final[dict[int, int]] = {}
_IDS_MAX: Final = 65_536


class AllQueues(Protocol):
    """All queues, as the interface for one of them."""

    ends: QueueEnds[RocksConsumeQueue]
    log_start_offset: int

    @property
    def entries(self) -> Table:
        """The rows of entries."""


class RocksTopic:
    """A topic's queues by their ids, and their common fields."""

    __slots__ = ("field", "head", "magic", "name", "queues", "store")

    magic: int
    field: bytes

    def __init__(self, store: AllQueues, name: str) -> None:
        self.store: Final = store
        self.name: str = name
        self.magic, self.field = topic_field(name)
        self.head: Final = rows.topic_head(name)
        self.queues: dict[int, RocksConsumeQueue] = {}

    def open(self, queue_id: int, place: tuple[int, int] = NO_PLACE) -> RocksConsumeQueue:
        """The queue; a new one gets the place of its last message."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue_id = _IDS.setdefault(queue_id, queue_id) if queue_id < _IDS_MAX else queue_id
            queue = self.queues[queue_id] = RocksConsumeQueue(self, queue_id, place)
        return queue


class RocksConsumeQueue:
    """Implements ``ConsumeQueue`` by rows of a database."""

    # There may be a million, and each is used seldom: two lines of a processor's cache must be enough.
    __slots__ = (*("_min", "counters", "magic", "next_offset", "of_topic", "queue_id", "slot"), "topic_field")

    def __init__(self, of_topic: RocksTopic, queue_id: int, place: tuple[int, int] = NO_PLACE) -> None:
        """A queue; ``place`` is the physical offset and the queue offset of its last message."""
        self.of_topic = of_topic
        self.queue_id = queue_id
        self.magic: int = of_topic.magic
        self.topic_field: bytes = of_topic.field
        self.counters = UNCOUNTED
        physical_offset, last = place
        self.next_offset: int = last + 1
        self.slot: int = of_topic.store.ends.take(self, last + 1, physical_offset)
        self._min = NO_PLACE  # the start of the log and the queue offset that belongs to it

    @property
    def topic(self) -> str:
        """Name of the queue's topic."""
        return self.of_topic.name

    @property
    def max_offset(self) -> int:
        """First queue offset that dispatch has not written yet."""
        return int(self.of_topic.store.ends.max_offset[self.slot])

    @property
    def max_physical_offset(self) -> int:
        """Physical offset of the queue's last record, -1 without any."""
        return int(self.of_topic.store.ends.max_physical_offset[self.slot])

    @property
    def min_offset(self) -> int:
        """First message whose record the log still holds; looked up on first use."""
        log_start_offset = self.of_topic.store.log_start_offset
        if self._min[0] != log_start_offset:
            self._min = log_start_offset, self.first_at_or_after(log_start_offset)
        return self._min[1]

    def set_end(self, max_offset: int, max_physical_offset: int) -> None:
        """Move the end after entries that were written."""
        assert (max_offset == 0) == (max_physical_offset < 0), "a queue with messages has a last one"
        assert self.slot, "a forgotten queue gets nothing"
        ends = self.of_topic.store.ends
        ends.max_offset[self.slot] = max_offset
        ends.max_physical_offset[self.slot] = max_physical_offset
        if self.next_offset < max_offset:
            self.next_offset = max_offset

    def forget_min(self) -> None:
        """Forget the first message, which is then looked up again."""
        self._min = NO_PLACE

    @property
    def offset_key(self) -> bytes:
        """Key of the queue's row ``MAX``."""
        return self.of_topic.head + rows.MAX_MIDDLE + rows.QUEUE_ID.pack(self.queue_id)

    @property
    def head(self) -> bytes:
        """Beginning of the keys of the queue's entries."""
        return self.of_topic.head + rows.ENTRY_KEY_MIDDLE.pack(self.queue_id, 1)

    @property
    def _entries(self) -> Table:
        return self.of_topic.store.entries

    def _key(self, queue_offset: int) -> bytes:
        return self.head + queue_offset.to_bytes(8, "big")

    def _value(self, queue_offset: int) -> bytes | None:
        if not 0 <= queue_offset < self.max_offset:
            return None
        return self._entries.get(self._key(queue_offset))

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tag code; IndexError where there is none."""
        value = self._value(queue_offset)
        if value is None:
            raise IndexError(queue_offset)
        physical_offset, size, tag_code, _ = rows.VALUE.unpack(value)
        return physical_offset, size, tag_code

    def physical_offset_at(self, queue_offset: int) -> int:
        """Physical offset of an entry, -1 where there is none."""
        value = self._value(queue_offset)
        return -1 if value is None else int.from_bytes(value[:8], "big")

    def extended_tag_code(self, address: int) -> None:
        """None: rows have the tag code itself."""
        return

    def stored_ms(self, queue_offset: int) -> int | None:
        """Store time (ms) of an entry, None where there is none."""
        value = self._value(queue_offset)
        return None if value is None else int.from_bytes(value[rows.STORE_MS_AT :], "big")

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries (``ENTRY``) from an offset on; empty where there are none."""
        count = min(count, self.max_offset - queue_offset)
        if count <= 0:
            return b""
        found = self._entries.some(self._key(queue_offset), count)
        # Rows come in order: if the last one has the expected offset, none in between is missing.
        if len(found) < count or found[-1][0] != self._key(queue_offset + count - 1):
            found = self._side_by_side(found, queue_offset)
        return b"".join([value[:ENTRY_BYTES] for _, value in found])

    def _side_by_side(self, found: list[tuple[bytes, bytes]], queue_offset: int) -> list[tuple[bytes, bytes]]:
        for number, (key, _) in enumerate(found):
            if key != self._key(queue_offset + number):
                return found[:number]
        return found

    def gap_end(self, queue_offset: int) -> int:
        """Offset of the next entry, where reading goes on when ``read`` has nothing at an offset."""
        found = self._entries.some(self._key(queue_offset), 1)
        if not found or not found[0][0].startswith(self.head):
            return self.max_offset
        return min(int.from_bytes(found[0][0][-8:], "big"), self.max_offset)

    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first entry whose record is at or after a physical offset.

        Entries are missing at the beginning only, where their records are gone.
        """
        low, high = 0, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.physical_offset_at(middle) < max(physical_offset, 0):
                low = middle + 1
            else:
                high = middle
        return low


# --- The ends of very many queues, as columns ---
#
# Dispatch compares and moves the ends of all queues that have messages in a round. As columns that costs little for
# each queue; as objects, each would cost a wait for memory.


Flags = npt.NDArray[np.bool_]

_SLOTS_AT_FIRST: Final = 64


class HasSlot(Protocol):
    """A queue in memory, which knows its slot."""

    slot: int


QueueT = TypeVar("QueueT", bound=HasSlot)


class QueueEnds(Generic[QueueT]):
    """Columns by slot; each queue in memory has one, and ``queues`` has the queue of each slot.

    Slots are taken and given up under the lock under which a flush reads them: columns that grow are replaced by
    others.

    ``max_offset`` and ``max_physical_offset`` are as in ``ConsumeQueue``. A slot is ``unsaved`` if its row in the
    database lacks these values, and ``saving`` while the row is being written. All forgotten queues have the first
    slot: they are empty.
    """

    def __init__(self) -> None:
        self.queues: list[QueueT | None] = [None]
        self._free: list[int] = []
        self.max_offset: Ints = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self.max_offsets: memoryview[int] = self.max_offset.data
        self.max_physical_offset: Ints = np.full(_SLOTS_AT_FIRST, -1, np.int64)
        self.unsaved: Flags = np.zeros(_SLOTS_AT_FIRST, np.bool_)
        self.saving: Flags = np.zeros(_SLOTS_AT_FIRST, np.bool_)

    def take(self, queue: QueueT, max_offset: int, max_physical_offset: int) -> int:
        """Give a queue a slot."""
        if self._free:
            slot = self._free.pop()
            assert self.queues[slot] is None, "a free slot is nobody's"
            self.queues[slot] = queue
        else:
            slot = len(self.queues)
            self.queues.append(queue)
            if slot == len(self.max_offset):
                self._grow(2 * slot)
        assert not self.unsaved[slot], "a new queue has nothing to save"
        self.max_offset[slot] = max_offset
        self.max_physical_offset[slot] = max_physical_offset
        return slot

    def _grow(self, slots: int) -> None:
        assert slots > len(self.max_offset), "columns only grow"
        for name in ("max_offset", "max_physical_offset", "unsaved", "saving"):
            old: npt.NDArray[np.int64 | np.bool_] = getattr(self, name)
            new = np.zeros(slots, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        self.max_offsets = self.max_offset.data

    def give_up(self, queue: QueueT) -> None:
        """Take a slot back from a queue that is forgotten."""
        slot, queue.slot = queue.slot, 0
        assert self.queues[slot] is queue, "a slot is given up once, by its queue"
        self.queues[slot] = None
        self.settled(slot)
        self._free.append(slot)

    def settled(self, slot: int) -> None:
        """Note that the present values of a slot are saved."""
        self.unsaved[slot] = self.saving[slot] = False

    def begin_saving(self) -> Ints:
        """Return the slots that are unsaved, and mark them as saving."""
        assert not self.saving.any(), "one flush at a time"
        slots = self.unsaved.nonzero()[0]
        self.unsaved[slots] = False
        self.saving[slots] = True
        return slots

    def give_back(self) -> None:
        """Mark the slots that are saving as unsaved again: the disk refused them."""
        self.unsaved |= self.saving
        self.saving[:] = False
