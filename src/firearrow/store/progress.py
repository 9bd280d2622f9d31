"""Progress of a long start, as log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 2.0


class Progress:
    """Called with the number of finished bytes and of all bytes; logs now and then.

    ``what`` is the work, as in "checking the CommitLog".
    """

    def __init__(self, what: str, monotonic: Callable[[], float]) -> None:
        self._what = what
        self._monotonic = monotonic
        self._started = self._said = monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Log the share and, by the average pace, the remaining time; at most every 2 s."""
        now = self._monotonic()
        if now - self._said < _INTERVAL_SECONDS or not 0 < done <= total:
            return
        self._said = now
        left_seconds = (now - self._started) * (total - done) / done
        log.info(
            "start goes on",
            extra={
                "work": self._what,
                "done_bytes": done,
                "total_bytes": total,
                "done_percent": 100 * done // total,
                "left_seconds": round(left_seconds),
            },
        )
