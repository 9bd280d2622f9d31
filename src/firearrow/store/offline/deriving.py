"""Queue entries and index keys of a stretch of the log, as one piece of a rebuild.

The store's own ``Dispatcher`` makes them. They are collected by queue, so that the writer of the files has few large
pieces to put. Results can be pickled.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.store.offline.pieces import Stretch
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import FileEnd, Gap, first_record, walk_file
from firearrow.store.queues import DispatchedEntries
from firearrow.store.reading.dispatching import dispatch_to
from firearrow.store.reading.undispatched import Collected
from firearrow.store.reading.walk import RecordRun
from firearrow.store.scan import Ints

_NO_ENTRIES: Final = Collected().entries()
_KEY: Any = np.dtype([("hash", "<i8"), ("physical_offset", "<i8"), ("store_ms", "<i8")])


class Derived(NamedTuple):
    """Entries and keys of a stretch; ``begin``, ``reached`` and ``over`` as in ``logcheck.FileReport``.

    ``keys`` are the keys of the index (``_KEY``).
    """

    base: int
    end: int
    begin: int | None
    reached: int = 0
    over: bool = False
    records: int = 0
    entries: DispatchedEntries = _NO_ENTRIES
    keys: bytes = b""

    @property
    def index_keys(self) -> tuple[Ints, Ints, Ints]:
        """Hash, physical offset and store time of the index keys."""
        keys = np.frombuffer(self.keys, _KEY)
        return keys["hash"], keys["physical_offset"], keys["store_ms"]


class _Keys:
    """Receiver of index keys, in place of the index."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Note index keys."""
        assert len(hashes) == len(physical_offsets) == len(store_ms), "each key has its record's place and time"
        keys: npt.NDArray[Any] = np.empty(len(hashes), _KEY)
        keys["hash"], keys["physical_offset"], keys["store_ms"] = hashes, physical_offsets, store_ms
        self.all.append(keys.tobytes())


class Deriving(NamedTuple):
    """A stretch as a piece of work, and the wanted results."""

    stretch: Stretch
    queues: bool
    keys: bool


def derive(view: StoreView, piece: Deriving) -> Derived | None:
    """Dispatch the records that begin in a stretch of the log; None if its file has been deleted."""
    stretch = piece.stretch
    file = view.log_file(stretch.base)
    if file is None:
        return None
    start: int | None = stretch.start
    if not stretch.known:
        start = first_record(view, file, stretch.start, stretch.end)
    if start is None:
        return Derived(stretch.base, stretch.end, None)
    collected, keys = Collected(), _Keys()
    take = collected.put if piece.queues else lambda entries: None
    levels = view.layout.delay_levels
    dispatch = dispatch_to(take, view.batch_topics, levels, keys if piece.keys else None)
    records, reached, over = 0, start, False
    for part in walk_file(view, file, start, stretch.end):
        match part:
            case RecordRun():
                dispatch(part.columns)
                records += len(part.columns)
                reached = part.columns.end
            case Gap():
                reached = part.end
            case FileEnd():
                over = True
    assert over or reached > start, "the walk goes on from its start"
    place = stretch.base, stretch.end, start, reached, over
    return Derived(*place, records, collected.entries(), b"".join(keys.all))
