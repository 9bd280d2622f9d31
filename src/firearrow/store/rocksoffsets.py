"""How far each of very many queues goes, as columns.

Dispatch looks at the ends of all queues that a round has messages for, and moves them: by columns
that costs little for each, where as many objects would cost a wait for memory each.
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
    """Columns by slot; each queue in memory has one, and ``queues`` says whose it is.

    Slots are taken and given up under the lock that a flush takes them to save under: columns that
    grow are others than before.

    ``max_offset`` and ``max_physical_offset`` are as in ``ConsumeQueue``. A slot is ``unsaved`` if
    its row in the database does not say this yet, and ``saving`` while it is being written. The
    first slot is that of all queues that were forgotten: they are empty.
    """

    def __init__(self) -> None:
        self.queues: list[QueueT | None] = [None]
        self._free: list[int] = []
        self.max_offset: Ints = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self.max_offsets = memoryview(self.max_offset)
        self.max_physical_offset: Ints = np.full(_SLOTS_AT_FIRST, -1, np.int64)
        self.unsaved: Flags = np.zeros(_SLOTS_AT_FIRST, np.bool_)
        self.saving: Flags = np.zeros(_SLOTS_AT_FIRST, np.bool_)

    def take(self, queue: QueueT, max_offset: int, max_physical_offset: int) -> int:
        """Give a queue a slot."""
        if self._free:
            slot = self._free.pop()
            self.queues[slot] = queue
        else:
            slot = len(self.queues)
            self.queues.append(queue)
            if slot == len(self.max_offset):
                self._grow(2 * slot)
        self.max_offset[slot] = max_offset
        self.max_physical_offset[slot] = max_physical_offset
        return slot

    def _grow(self, slots: int) -> None:
        for name in ("max_offset", "max_physical_offset", "unsaved", "saving"):
            old: npt.NDArray[np.int64 | np.bool_] = getattr(self, name)
            new = np.zeros(slots, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        self.max_offsets = memoryview(self.max_offset)

    def give_up(self, queue: QueueT) -> None:
        """Take the slot of a queue that is forgotten."""
        slot, queue.slot = queue.slot, 0
        self.queues[slot] = None
        self.settled(slot)
        self._free.append(slot)

    def settled(self, slot: int) -> None:
        """Have nothing more be written of a slot, as it is now."""
        self.unsaved[slot] = self.saving[slot] = False

    def begin_saving(self) -> Ints:
        """Take the slots that are unsaved: they are saving now."""
        slots = self.unsaved.nonzero()[0]
        self.unsaved[slots] = False
        self.saving[slots] = True
        return slots

    def give_back(self) -> None:
        """Have the slots that are saving be unsaved again: the disk refused them."""
        self.unsaved |= self.saving
        self.saving[:] = False
