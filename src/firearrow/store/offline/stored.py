"""ConsumeQueues in files as they are in a store, read-only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.snapshot.entries import Span, without
from firearrow.store.snapshot.entryfiles import FileQueue
from firearrow.store.snapshot.files import Files
from firearrow.store.snapshot.mapped import Directory, Maps, data_end


class StoredFileQueue(FileQueue):
    """Implements ``StoredQueue`` by the files of a directory."""

    entry_bytes: Final = ENTRY_BYTES

    def __init__(self, maps: Maps, directory: Directory) -> None:
        super().__init__(Files(directory.files, maps.of, data_end))
        self.directory = directory
        self._maps = maps

    @property
    def is_there(self) -> bool:
        """Tell whether it has files."""
        return bool(self.directory.files)

    @property
    def disk_bytes(self) -> int:
        """The entries from the first file's begin on."""
        first, end = self.span
        return (end - first) * ENTRY_BYTES

    @property
    def end(self) -> int:
        """The queue offset behind the last entry that is there."""
        for file in reversed(self.directory.files):
            written = np.flatnonzero(self.entries_of(file)["size"] > 0)
            if len(written):
                return file.base // ENTRY_BYTES + int(written[-1]) + 1
        return 0

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries; fewer where files end or are missing."""
        at, end = queue_offset * ENTRY_BYTES, (queue_offset + count) * ENTRY_BYTES
        parts: list[bytes] = []
        for file in self.directory.files:
            if file.base <= at < file.end:
                stop = min(end, file.end)
                parts.append(bytes(self._maps.of(file)[at - file.base : stop - file.base]))
                at = stop
            if at >= end:
                break
        return b"".join(parts)

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of each file, as far as they are not known."""
        for file in self.directory.files:
            first = file.base // ENTRY_BYTES
            yield from without(first, first + len(self.entries_of(file)), known)

    def all(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
        """What is in each file, written or not."""
        for file in self.directory.files:
            entries = self.entries_of(file)
            yield np.arange(len(entries)) + file.base // ENTRY_BYTES, entries
