"""Measure processor time, for limits that only a fault of growth exceeds.

Only this thread's time counts, without the garbage collector: in a worker that has run tests for ten minutes, a
collection takes over a second. A busy machine still exceeds a limit once in a thousand runs, so there are
several tries. Work of quadratic time exceeds it at each try.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIES = 3


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Disable the garbage collector within a block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cpu_seconds(work: Callable[[], object], limit: float) -> float:
    """Seconds that ``work`` took: the first try below ``limit``, or the last of three."""
    for _ in range(TRIES):
        with nothing_collected():
            began = time.thread_time()
            work()
            took = time.thread_time() - began
        if took < limit:
            break
    return took
