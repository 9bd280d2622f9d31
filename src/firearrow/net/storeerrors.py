"""What the store refuses is logged, but the same not again soon: each consumer of a queue that is
not readable meets it with each pull."""

from __future__ import annotations

import logging
from typing import Final

from firearrow.errors import StoreError

log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 60.0  # in which the same trouble is logged once
_KNOWN_MAX: Final = 256


class StoreErrors:
    """The troubles of the store that were logged a short while ago."""

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def note(self, error: StoreError, code: int, address: str, now: float) -> None:
        """Log that a request of a peer was refused, at a time in seconds, unless that is known."""
        text = str(error)
        if now < self._quiet_until.get(text, now):
            return
        if len(self._quiet_until) >= _KNOWN_MAX:
            self._quiet_until.clear()
        self._quiet_until[text] = now + QUIET_SECONDS
        log.error(
            "request is refused by the store",
            extra={"code": code, "address": address, "error": error},
        )
