"""When a popped message that its consumer failed comes again.

The client says so itself, message by message, by changing the invisible time (200053). It never
puts one into the dead letters.

Source: upstream ``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

POP_DELAYS_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""By the level that the handler asks for, else by the failures before; the last from there on."""


def delay_seconds(reconsume_times: int, level: int = 0, delays: Sequence[int] = POP_DELAYS_SECONDS) -> int:
    """Give the delay after a failure; ``level`` 0 follows from the failures before."""
    return delays[min(max(level or reconsume_times, 0), len(delays) - 1)]


def exhausted_delay_seconds(age_ms: int, delays: Sequence[int] = POP_DELAYS_SECONDS) -> int | None:
    """Give the delay of a message that has failed as often as it may; None gives it up.

    ``age_ms`` is how long ago it was born. One that is young had its failures in no time, so it
    waits once more for longer than it has lived.
    """
    if age_ms > delays[-1] * 2 * 1000:
        return None
    older_than = sum(age_ms >= seconds * 1000 for seconds in delays)
    return delays[min(older_than, len(delays) - 1)]
