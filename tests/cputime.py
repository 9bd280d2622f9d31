"""What something costs, in processor time, for limits that only a fault of growth exceeds.

Only this thread's time counts and nothing is collected meanwhile: in a worker that has run tests
for ten minutes, a collection takes over a second. What still comes too late, once in a thousand
runs of a busy machine, is tried again; what takes time by the square takes it each time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIES = 3


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep the garbage collector out."""
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
