"""Long writes into a mapped file: by the system's call instead of through the mapping.

The first byte that is written to a page of a mapped file costs a page fault, 2 to 3 µs for each 4 KiB. A call takes all
its pages at once. For 12.8 KB, 32 messages that come together, that is 7 µs instead of 15, for 64 KB 20 instead of 73.
Below 8 KiB the mapping is as fast. Filling pages ahead in a thread was rejected: its frequent wake-ups slow down all
other work.

A fault on a page that is not in memory makes all pages of the disk's read-ahead. That is cheap for each page, as they
are kept together, but a long wait for the writer: up to 26 ms for 8 MiB. Senders wait together with their broker, but a
slave's master does not. So a slave writes by calls whatever the length. Forbidding the read-ahead was rejected: sends
took 3 µs more each, as pages came one by one.

Linux file systems use one memory for both. Where that is not so (folders that a virtual machine shares), the mapping
would not show the written bytes. So they are compared after each call, 1 µs for 12.8 KB. If they differ, or the call
fails, the same bytes go through the mapping, and so do all later writes to the file.
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
        """Write to this file from now on."""
        self.close()
        self._segment = segment
        try:
            self._descriptor = self._fs.open_to_write(segment.path)
        except OSError as error:
            self._give_up(str(error))

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write so that the mapping shows the bytes."""
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
        """Release the file."""
        self._close_file()
        self._segment = None

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
