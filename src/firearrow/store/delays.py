"""Delay levels: ``1s 5s 10s 30s 1m ... 2h``, level 1 first.

In the ConsumeQueue of ``SCHEDULE_TOPIC_XXXX``, the due time of each message stands in place of a tag code: its store
time plus the delay of its level. A level that the table lacks counts as one second. A level above the highest counts as
the highest.

Source: RocketMQ's ``ScheduleMessageService#parseDelayLevel``, ``#computeDeliverTimestamp``.
"""

from __future__ import annotations

from typing import Final

from firearrow.errors import ConfigError

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1000


class DelayLevels:
    """The table of ``messageDelayLevel``; ``highest`` is the number of its last level."""

    def __init__(self, text: str) -> None:
        self.change(text)

    def change(self, text: str) -> None:
        """Use another table from now on."""
        self._delays_ms = [_parse(word) for word in text.split()]
        self.highest: int = len(self._delays_ms)

    def due_ms(self, level: int, store_ms: int) -> int:
        """Time when a message that was stored at ``store_ms`` with a level (>= 1) is due."""
        return store_ms + self.delay_ms(level)

    def delay_ms(self, level: int) -> int:
        """Delay of a level (>= 1)."""
        level = min(level, self.highest)
        return self._delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS


def _parse(word: str) -> int:
    unit = _UNIT_MS.get(word[-1:])
    if unit is None or not word[:-1].isdigit():
        raise ConfigError(f"messageDelayLevel has {word!r}: a level is a number followed by s, m, h or d")
    return int(word[:-1]) * unit
