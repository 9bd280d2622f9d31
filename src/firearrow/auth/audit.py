"""The audit log: refused requests and changes, with their users.

It is a separate logger, ``firearrow.auth.audit``, so that it can go to a separate place. A refusal that repeats is
logged once in ten seconds, with the count of the refusals in between. There are at most a hundred lines about refusals
in that time. Otherwise any peer that reaches the port could fill the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.logs import Log

log: Final = Log(__name__)

REPEAT_SECONDS: Final = 10.0
LINES_MAX: Final = 100  # about refusals, in that time
_SHOWN_CHARS_MAX: Final = 200


class Audit:
    """Writer of the audit log."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = 0.0  # time when the next ten seconds begin
        self._refused: dict[tuple[str, str, int, str], int] = {}  # count of repetitions after its line
        self._before = self._refused
        self._left_out = 0

    def refused(self, username: str, ip: str, request: str, code: int, reason: str) -> None:
        """Log a refused request; the user is the sender's claim."""
        username, reason = username[:_SHOWN_CHARS_MAX], reason[:_SHOWN_CHARS_MAX]
        key = username, ip, code, reason
        now = self._monotonic()
        if now >= self._until:
            self._begin(now)
        if key in self._refused:
            self._refused[key] += 1
            return
        if len(self._refused) >= LINES_MAX:
            self._left_out += 1
            return
        self._refused[key] = 0
        log.warning(
            "request is refused",
            extra={
                "user": username,
                "ip": ip,
                "request": request,
                "code": code,
                "reason": reason,
                "unlogged": self._before.pop(key, 0),
            },
        )

    def _begin(self, now: float) -> None:
        self._until = now + REPEAT_SECONDS
        self._before, self._refused = self._refused, {}
        if self._left_out:
            log.warning("many requests are refused", extra={"unlogged": self._left_out})
            self._left_out = 0

    def changes(self, username: str, ip: str, request: str, code: int, what: str) -> None:
        """Log a user's allowed request that changes anything other than messages and offsets."""
        log.info(
            "change is allowed",
            extra={"user": username, "ip": ip, "request": request, "code": code, "resource": what[:_SHOWN_CHARS_MAX]},
        )
