"""Delay levels: when a message is due."""

import pytest

from firearrow.errors import ConfigError
from firearrow.store.config import StoreConfig
from firearrow.store.delays import DelayLevels

NOW_MS = 1_795_000_000_000


def test_the_default_levels() -> None:
    levels = DelayLevels(StoreConfig().message_delay_level)
    assert levels.highest == 18
    due = [levels.due_ms(level, NOW_MS) - NOW_MS for level in (1, 4, 5, 14, 16, 18)]
    assert due == [1000, 30_000, 60_000, 600_000, 1_800_000, 7_200_000]


def test_levels_beyond_the_table() -> None:
    levels = DelayLevels("1s 2d")
    assert levels.due_ms(7, NOW_MS) == NOW_MS + 172_800_000
    assert levels.due_ms(0, NOW_MS) == NOW_MS + 1000
    assert DelayLevels("").due_ms(3, NOW_MS) == NOW_MS + 1000


@pytest.mark.parametrize("text", ["1", "s", "1x", "-1s", "1s ,5s", "1.5s"])
def test_what_is_no_level(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        DelayLevels(text)
