"""The ends of very many queues, as columns.

Dispatch compares and moves the ends of all queues that have messages in a round. As columns that costs little for each
queue; as objects, each would cost a wait for memory.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from firearrow.store.scan import Ints

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
        self.max_offsets = self.max_offset.data
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
