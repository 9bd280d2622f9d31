"""One ConsumeQueue whose entries are rows of a database; see ``rocks`` for all of them.

Source: upstream ``RocksDBConsumeQueue``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firearrow.message.record import topic_field
from firearrow.store import rocksformat as rows
from firearrow.store.queues import ENTRY_BYTES

if TYPE_CHECKING:
    from firearrow.store.rocks import RocksConsumeQueues


class RocksConsumeQueue:
    """Implements ``ConsumeQueue`` by rows of a database."""

    __slots__ = (
        "__weakref__",
        "_min_offset",
        "_next_offset",
        "_queues",
        "head",
        "magic",
        "max_offset",
        "max_physical_offset",
        "queue_id",
        "topic",
        "topic_field",
    )

    def __init__(
        self, queues: RocksConsumeQueues, topic: str, queue_id: int, place: tuple[int, int]
    ) -> None:
        self._queues = queues
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_field = topic_field(topic)
        self.head = rows.entry_head(topic, queue_id)
        self.max_physical_offset, last = place
        self.max_offset = self._next_offset = last + 1
        self._min_offset = -1

    @property
    def next_offset(self) -> int:
        """What the next appended message gets."""
        return self._next_offset

    @next_offset.setter
    def next_offset(self, queue_offset: int) -> None:
        self._next_offset = queue_offset
        self._queues.pending.add(self)

    @property
    def min_offset(self) -> int:
        """The first whose record the log still holds; looked up when it is asked for."""
        if self._min_offset < 0:
            self._min_offset = self.first_at_or_after(self._queues.log_start_offset)
        return self._min_offset

    @property
    def is_settled(self) -> bool:
        """Whether all that was appended is dispatched."""
        return self._next_offset == self.max_offset

    def set_end(self, max_offset: int, max_physical_offset: int) -> None:
        """Take note of what was written."""
        self.max_offset = max_offset
        self.max_physical_offset = max_physical_offset
        self._next_offset = max(self._next_offset, max_offset)

    def forget_min(self) -> None:
        """Have the first message looked up again."""
        self._min_offset = -1

    def _key(self, queue_offset: int) -> bytes:
        return self.head + queue_offset.to_bytes(8, "big")

    def _value(self, queue_offset: int) -> bytes | None:
        if not 0 <= queue_offset < self.max_offset:
            return None
        return self._queues.entries.get(self._key(queue_offset))

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

    def stored_ms(self, queue_offset: int) -> int | None:
        """Store time (ms) of an entry, None where there is none."""
        value = self._value(queue_offset)
        return None if value is None else int.from_bytes(value[rows.STORE_MS_AT :], "big")

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries (``ENTRY``) from an offset on; empty where none are."""
        count = min(count, self.max_offset - queue_offset)
        if count <= 0:
            return b""
        found = self._queues.entries.some(self._key(queue_offset), count)
        # Rows come in order: if the last is as far on as it should be, none in between is missing.
        if len(found) < count or found[-1][0] != self._key(queue_offset + count - 1):
            found = self._side_by_side(found, queue_offset)
        return b"".join([value[:ENTRY_BYTES] for _, value in found])

    def _side_by_side(
        self, found: list[tuple[bytes, bytes]], queue_offset: int
    ) -> list[tuple[bytes, bytes]]:
        for number, (key, _) in enumerate(found):
            if key != self._key(queue_offset + number):
                return found[:number]
        return found

    def gap_end(self, queue_offset: int) -> int:
        """Where to go on when ``read`` has nothing at an offset: at the next entry there is."""
        found = self._queues.entries.some(self._key(queue_offset), 1)
        if not found or not found[0][0].startswith(self.head):
            return self.max_offset
        return min(int.from_bytes(found[0][0][-8:], "big"), self.max_offset)

    def first_at_or_after(self, physical_offset: int) -> int:
        """The queue offset of the first entry whose record lies at or after a physical offset.

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
