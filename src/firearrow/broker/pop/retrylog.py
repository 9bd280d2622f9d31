"""Log lines about popped messages that can't be redelivered."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

LOGGED_MAX: Final = 1000  # messages, topics and groups with a line in the log


class RetryLog:
    """Log about each message, topic and group once."""

    def __init__(self) -> None:
        self._logged: set[object] = set()

    def place_gone(self, topic: str, group: str) -> None:
        """Log that a topic or a group is gone."""
        if self._is_first((topic, group)):
            log.warning(
                "popped messages are not redelivered: their topic or group is gone",
                extra={"topic": topic, "group": group},
            )

    def failed(self, record: object, place: tuple[str, int, int], group: str, outcome: str, error: Exception) -> None:
        """Log the outcome of a message that can't be put, once for each ``record`` and outcome.

        ``place`` is the message's topic, queue and offset.
        """
        if self._is_first((record, outcome)):
            log.error(
                "popped message can't be put into its retry topic",
                extra={
                    "topic": place[0],
                    "queue_id": place[1],
                    "queue_offset": place[2],
                    "group": group,
                    "outcome": outcome,
                    "error": error,
                },
            )

    def _is_first(self, subject: object) -> bool:
        """Return whether a subject has no line in the log yet."""
        if subject in self._logged or len(self._logged) >= LOGGED_MAX:
            return False
        self._logged.add(subject)
        return True
