"""Wait for a condition of another process, which cannot tell us when it comes true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL_S = 0.02


def wait_until(probe: Callable[[], T | None], within_s: float, what: str) -> T:
    """Return the first true result of ``probe``, or raise ``TimeoutError`` that names ``what``."""
    deadline_s = time.monotonic() + within_s
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {within_s:g} s (last seen: {result!r})")
        time.sleep(POLL_INTERVAL_S)
