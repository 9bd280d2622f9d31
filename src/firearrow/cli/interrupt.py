"""Ctrl-C: a command that has started others ends at once, with one line, and leaves none of them.

An exception would not do: while a JVM starts or a job runs it would be waited for, or turned into
another one. What a command does has to bear being killed anyway.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from firearrow.cli import INTERRUPTED, INTERRUPTED_LINE

_CLEAR: Final = "\r\x1b[K"  # a bar may stand on the terminal's line


class Ending:
    """The handling of SIGINT, and the directories that are removed when the process ends."""

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self.temporary: list[Path] = []

    def listen(self) -> None:
        """Take SIGINT; to be called again when something else may have taken it."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = _CLEAR + INTERRUPTED_LINE if os.isatty(self._stderr) else INTERRUPTED_LINE
        with suppress(OSError):  # nobody may read it
            os.write(self._stderr, line.encode())
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for directory in self.temporary:
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(INTERRUPTED)


@contextmanager
def ending_at_once() -> Iterator[Ending]:
    """Have SIGINT end this process and all that it has started, for the time of a block."""
    before = signal.getsignal(signal.SIGINT)
    stderr = os.dup(2)  # 2 itself may come to be a file
    ending = Ending(stderr)
    ending.listen()
    try:
        yield ending
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        os.close(stderr)


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have, parents first.

    Where there is no /proc there are none: a JVM then ends by itself, as its input does.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            behind_name = stat.read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(behind_name[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]
