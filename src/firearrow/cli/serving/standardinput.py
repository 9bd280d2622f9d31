"""End of standard input as a signal to stop: a child process ends with its parent."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

CHUNK_BYTES: Final = 64 * 1024  # of what nobody wants to know


def call_at_end(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    """Call ``stop`` in a loop at the end of standard input, be it a pipe, a terminal or a file.

    A thread waits for it, since no event loop can wait for a file. The thread holds no lock of Python, so it may still
    wait at the end of the process.
    """

    def read() -> None:
        with suppress(OSError):  # closed from the start, which is its end, too
            while os.read(0, CHUNK_BYTES):
                pass
        with suppress(RuntimeError):  # a signal has closed the loop
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=read, name="firearrow-stdin", daemon=True).start()
