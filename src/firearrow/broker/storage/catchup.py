"""Has queues that were left out catch up with the log, by time."""

from __future__ import annotations

from typing import Final

from firearrow.store import MessageStore

CATCH_UP_SECONDS: Final = 1.0  # how soon a queue that was left out is seen to
RESTING_SECONDS: Final = 5.0  # the same where the log did not grow since the last look


class CatchingUp:
    """Looks after the queues of a store that were left out."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._looked_at = -1  # where the log ended at the last look

    def step(self) -> float:
        """Let them catch up; look again soon whether there are any."""
        wait = self._store.catch_up_left_out()
        looked_at, self._looked_at = self._looked_at, self._store.log_end_offset
        if wait is None and looked_at == self._looked_at:
            return RESTING_SECONDS
        return CATCH_UP_SECONDS if wait is None else min(wait, CATCH_UP_SECONDS)
