"""Ctrl-C in a command with child processes: the command prints one line, kills its children and ends at once.

KeyboardInterrupt does not fit: while a JVM starts or a job runs, it waits or becomes another exception. Every command
must survive a kill anyway.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from firearrow.cli import INTERRUPTED, INTERRUPTED_LINE

_CLEAR: Final = "\r\x1b[K"  # a progress bar may be on the line
_ELSEWHERE_SECONDS: Final = 3  # for an answer of another host


class Ending:
    """Handler of SIGINT, with its work at the end of the process.

    ``temporary`` are directories that it removes. ``elsewhere`` are functions that end work of other hosts.
    """

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self.temporary: list[Path] = []
        self.elsewhere: list[Callable[[], object]] = []

    def listen(self) -> None:
        """Handle SIGINT; call it again after code that may have installed another handler."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = _CLEAR + INTERRUPTED_LINE if os.isatty(self._stderr) else INTERRUPTED_LINE
        with suppress(OSError):  # standard error may be closed
            os.write(self._stderr, line.encode())
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for end in self.elsewhere:
            # in a thread, because the interrupted code may hold a lock that the function needs
            thread = threading.Thread(target=end, daemon=True)
            thread.start()
            thread.join(_ELSEWHERE_SECONDS)
        for directory in self.temporary:
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(INTERRUPTED)


@contextmanager
def ending_at_once() -> Iterator[Ending]:
    """Let SIGINT end this process and its children, for the time of a block."""
    before = signal.getsignal(signal.SIGINT)
    stderr = os.dup(2)  # descriptor 2 may become a file
    ending = Ending(stderr)
    ending.listen()
    try:
        yield ending
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        os.close(stderr)


def _descendants(pid: int) -> list[int]:
    """Child processes of a process, with their children, parents first.

    Without /proc the list is empty; a JVM then ends when its input ends.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            behind_name = stat.read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(behind_name[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]
