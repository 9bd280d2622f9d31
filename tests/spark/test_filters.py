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

from firearrow.spark.filters import Narrow, Numbers, Texts, narrowed

MOMENT = datetime(2026, 11, 21, 3, 45, 0, 123_456, tzinfo=UTC)
MOMENT_MS = 1_795_232_700_123


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([EqualTo(("topic",), "a")], Narrow(topic=Texts(frozenset("a")))),
        ([EqualNullSafe(("topic",), "a")], Narrow(topic=Texts(frozenset("a")))),
        ([In(("topic",), ("a", "b"))], Narrow(topic=Texts(frozenset("ab")))),
        ([StringStartsWith(("topic",), "a")], Narrow(topic=Texts(None, ("a",)))),
        ([EqualTo(("queueId",), 3)], Narrow(queue_id=Numbers(3, 3))),
        ([In(("queueId",), (3, None))], Narrow(queue_id=Numbers(some=frozenset((3,))))),
        (
            [GreaterThan(("queueOffset",), 3), LessThanOrEqual(("queueOffset",), 9)],
            Narrow(queue_offset=Numbers(4, 9)),
        ),
        (
            [GreaterThanOrEqual(("commitLogOffset",), 3), LessThan(("commitLogOffset",), 9)],
            Narrow(physical_offset=Numbers(3, 8)),
        ),
        ([GreaterThan(("storeTimestamp",), MOMENT)], Narrow(store_ms=Numbers(low=MOMENT_MS))),
        ([LessThan(("storeTimestamp",), MOMENT)], Narrow(store_ms=Numbers(high=MOMENT_MS))),
        ([EqualTo(("tags",), "A")], Narrow(tags=frozenset("A"))),
        ([EqualTo(("keys",), "k1 k2")], Narrow(words=frozenset(("k1",)))),
        ([In(("msgId",), ("m", "n"))], Narrow(words=frozenset("mn"))),
        ([Not(EqualTo(("topic",), "a"))], Narrow()),
        ([IsNotNull(("topic",))], Narrow()),
        ([EqualTo(("topic",), None)], Narrow()),
        ([EqualNullSafe(("tags",), None)], Narrow()),
        ([EqualTo(("tags",), "")], Narrow()),
        ([EqualTo(("keys",), " ")], Narrow()),
        ([StringContains(("topic",), "a")], Narrow()),
        ([EqualTo(("properties", "TAGS"), "A")], Narrow()),
        ([EqualTo(("queueId",), "3")], Narrow()),
    ],
)
def test_conditions_become_what_may_be_left_out(conditions: list[Filter], found: Narrow) -> None:
    assert narrowed(conditions) == found


numbers = st.builds(
    Numbers,
    st.integers(-5, 5),
    st.integers(-5, 5),
    st.none() | st.frozensets(st.integers(-6, 6), max_size=4),
)


@given(one=numbers, other=numbers)
def test_sets_of_numbers_meet(one: Numbers, other: Numbers) -> None:
    column = np.arange(-8, 9)
    both = one & other
    for number in column.tolist():
        assert (number in both) == (number in one and number in other)
    assert both.mask(column).tolist() == [number in both for number in column.tolist()]
    low, high = both.ends
    assert all(low <= number <= high for number in column.tolist() if number in both)


def test_sets_of_texts_meet() -> None:
    both = Texts(frozenset(("ab", "b"))) & Texts(None, ("a",)) & Texts(frozenset(("ab", "c")))
    assert "ab" in both
    assert "b" not in both
    assert "c" not in both
