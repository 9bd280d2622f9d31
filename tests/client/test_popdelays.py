"""When popped messages come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.popdelays import POP_DELAYS_SECONDS, delay_seconds, exhausted_delay_seconds

TWICE_THE_LAST_MS = 2 * 7200 * 1000


def test_each_failure_waits_as_long_as_with_the_java_client() -> None:
    assert [delay_seconds(times) for times in range(17)] == [*POP_DELAYS_SECONDS, 7200]


@pytest.mark.parametrize(("level", "seconds"), [(0, 60), (1, 30), (15, 7200), (99, 7200)])
def test_a_handler_may_ask_for_a_level(level: int, seconds: int) -> None:
    assert delay_seconds(2, level) == seconds


@pytest.mark.parametrize(
    ("age_ms", "seconds"), [(0, 10), (9_999, 10), (10_000, 30), (7_200_000, 7200), (TWICE_THE_LAST_MS, 7200)]
)
def test_what_failed_too_often_while_it_was_young_waits_once_more(age_ms: int, seconds: int) -> None:
    assert exhausted_delay_seconds(age_ms) == seconds


def test_what_failed_too_often_and_is_old_is_given_up() -> None:
    assert exhausted_delay_seconds(TWICE_THE_LAST_MS + 1) is None


@given(st.integers(0, 7_199_999))
def test_it_waits_for_longer_than_it_has_lived(age_ms: int) -> None:
    seconds = exhausted_delay_seconds(age_ms)
    assert seconds is not None
    assert seconds * 1000 > age_ms
