"""Who joined consumer groups lately, and who left them: what `firearrow doctor` asks for (203).

RocketMQ's brokers keep no such history. It is in memory only, and what is kept is limited.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from firearrow.clock import Clock
from firearrow.wire.client_bodies import MemberChange

CHANGES_MAX: Final = 50  # of a group: ten restarts of five clients are such a story
GROUPS_MAX: Final = 1_000  # that changed last; 10 MB at most


class MemberLog:
    """The last changes of the groups that changed last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, deque[MemberChange]] = {}

    def note(self, group: str, client_id: str, *, joined: bool) -> None:
        """A client has joined a group, or left it."""
        changes = self._groups.pop(group, None)
        if changes is None:
            changes = deque(maxlen=CHANGES_MAX)
            if len(self._groups) >= GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        changes.append(MemberChange(self._clock.now_ms(), client_id, joined))
        self._groups[group] = changes  # the last one now

    def of(self, group: str) -> list[MemberChange]:
        """Give the changes of a group, the oldest first."""
        return list(self._groups.get(group, ()))
