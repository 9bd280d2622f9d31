"""What is said in the log of popped messages that should come again, by whatever books."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

SAID_MAX: Final = 1000  # messages, topics and groups that are named in the log


class Telling:
    """Says each thing once. ``trouble`` is why messages can't come again now."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._said: set[object] = set()

    def note_trouble(self, error: str | None) -> None:
        """Note what keeps all from coming again, or that nothing does."""
        if error is not None and self.trouble != error:
            log.error("popped messages can't come again now", extra={"error": error})
        elif error is None and self.trouble is not None:
            log.info("popped messages come again")
        self.trouble = error

    def place_gone(self, topic: str, group: str) -> None:
        """Say that a topic or a group is gone."""
        if self._is_news((topic, group)):
            log.warning(
                "popped messages do not come again: their topic or group is gone",
                extra={"topic": topic, "group": group},
            )

    def failed(self, record: object, place: tuple[str, int, int], group: str, outcome: str, error: Exception) -> None:
        """Say what becomes of a message, at a topic, queue and offset, that can't be put; once for
        what ``record`` says of it."""
        if self._is_news((record, outcome)):
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

    def _is_news(self, subject: object) -> bool:
        """Whether something was not named in the log yet."""
        if subject in self._said or len(self._said) >= SAID_MAX:
            return False
        self._said.add(subject)
        return True
