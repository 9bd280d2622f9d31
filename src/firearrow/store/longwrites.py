"""Long writes into a mapped file: by the system's call instead of through the mapping.

The first byte that goes into a page of a mapped file costs a page fault, 2 to 3 µs for each 4 KiB;
a call takes as many pages as there are at once. For 12.8 KB, 32 messages that come together, that
is 7 µs instead of 15, for 64 KB 20 instead of 73; below 8 KiB the mapping is as fast. To fill pages
ahead in a thread was rejected: it wakes so often that all else gets slower.

A fault on a page that is not in memory makes as many as the disk is set to read ahead. That is
cheap for each, as they are kept together, and long for who waits: up to 26 ms for 8 MiB. Senders
wait with their broker, but a slave's master goes on: a slave writes by calls whatever the length.
To forbid the reading ahead was rejected: sends took 3 µs more each, as pages came one by one.

File systems of Linux have one memory for both. Where that is not so (folders that a virtual machine
shares), the mapping would not show what was written. So it is compared after each call, 1 µs for
12.8 KB; if it differs, or the call fails, the same goes through the mapping, as all that is written
to the file from then on.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from firearrow.store.fs import FileSystem
from firearrow.store.segments import Segment

LONG_BYTES: Final = 8192

log = logging.getLogger(__name__)


class LongWrites:
    """Writes to one file at a time, the one that was entered last."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._segment: Segment | None = None
        self._descriptor = -1

    def enter(self, segment: Segment) -> None:
        """Go on in this file."""
        self.close()
        self._segment = segment
        try:
            self._descriptor = self._fs.open_to_write(segment.path)
        except OSError as error:
            self._give_up(str(error))

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write so that the mapping shows it."""
        segment = self._segment
        assert segment is not None, "a file was entered"
        mapped, end = segment.map, start + len(data)
        if self._descriptor >= 0:
            try:
                os.pwrite(self._descriptor, data, start)
            except OSError as error:
                self._give_up(str(error))
            else:
                if mapped[start:end] == bytes(data):
                    return
                self._give_up("its mapping does not show what is written to it")
        mapped[start:end] = data

    def _give_up(self, reason: str) -> None:
        assert self._segment is not None, "a file was entered"
        log.warning("long records are written as short ones", extra={"file": self._segment.path, "reason": reason})
        self._close_file()

    def close(self) -> None:
        """Let go of the file."""
        self._close_file()
        self._segment = None

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
