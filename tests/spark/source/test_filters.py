"""What filters leave out never meets them."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from firearrow.spark.source.filters import NumberSet, PushedFilters, TextSet, narrowed

MOMENT = datetime(2026, 11, 21, 3, 45, 0, 123_456, tzinfo=UTC)
MOMENT_MS = 1_795_232_700_123


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([EqualTo(("topic",), "a")], PushedFilters(topic=TextSet(frozenset("a")))),
        ([EqualNullSafe(("topic",), "a")], PushedFilters(topic=TextSet(frozenset("a")))),
        ([In(("topic",), ("a", "b"))], PushedFilters(topic=TextSet(frozenset("ab")))),
        ([StringStartsWith(("topic",), "a")], PushedFilters(topic=TextSet(None, ("a",)))),
        ([EqualTo(("queueId",), 3)], PushedFilters(queue_id=NumberSet(3, 3))),
        ([In(("queueId",), (3, None))], PushedFilters(queue_id=NumberSet(some=frozenset((3,))))),
        (
            [GreaterThan(("queueOffset",), 3), LessThanOrEqual(("queueOffset",), 9)],
            PushedFilters(queue_offset=NumberSet(4, 9)),
        ),
        (
            [GreaterThanOrEqual(("commitLogOffset",), 3), LessThan(("commitLogOffset",), 9)],
            PushedFilters(physical_offset=NumberSet(3, 8)),
        ),
        ([GreaterThan(("storeTimestamp",), MOMENT)], PushedFilters(store_ms=NumberSet(low=MOMENT_MS))),
        ([LessThan(("storeTimestamp",), MOMENT)], PushedFilters(store_ms=NumberSet(high=MOMENT_MS))),
        ([EqualTo(("tags",), "A")], PushedFilters(tags=frozenset("A"))),
        ([EqualTo(("keys",), "k1 k2")], PushedFilters(words=frozenset(("k1",)))),
        ([In(("msgId",), ("m", "n"))], PushedFilters(words=frozenset("mn"))),
        ([Not(EqualTo(("topic",), "a"))], PushedFilters()),
        ([IsNotNull(("topic",))], PushedFilters()),
        ([EqualTo(("topic",), None)], PushedFilters()),
        ([EqualNullSafe(("tags",), None)], PushedFilters()),
        ([EqualTo(("tags",), "")], PushedFilters()),
        ([EqualTo(("keys",), " ")], PushedFilters()),
        ([StringContains(("topic",), "a")], PushedFilters()),
        ([EqualTo(("properties", "TAGS"), "A")], PushedFilters()),
        ([EqualTo(("queueId",), "3")], PushedFilters()),
    ],
)
def test_conditions_become_what_may_be_left_out(conditions: list[Filter], found: PushedFilters) -> None:
    assert narrowed(conditions) == found


numbers = st.builds(
    NumberSet, st.integers(-5, 5), st.integers(-5, 5), st.none() | st.frozensets(st.integers(-6, 6), max_size=4)
)


@given(one=numbers, other=numbers)
def test_sets_of_numbers_meet(one: NumberSet, other: NumberSet) -> None:
    column = np.arange(-8, 9)
    both = one & other
    for number in column.tolist():
        assert (number in both) == (number in one and number in other)
    assert both.mask(column).tolist() == [number in both for number in column.tolist()]
    low, high = both.ends
    assert all(low <= number <= high for number in column.tolist() if number in both)


def test_sets_of_texts_meet() -> None:
    both = TextSet(frozenset(("ab", "b"))) & TextSet(None, ("a",)) & TextSet(frozenset(("ab", "c")))
    assert "ab" in both
    assert "b" not in both
    assert "c" not in both
