"""Where a queue is begun: the rules of RocketMQ's push consumer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from firearrow.client.startoffset import NONE_STORED, Ask, StartFrom, start_offset, to_start

RETRY = "%RETRY%g"


@pytest.mark.parametrize("start_from", StartFrom)
@pytest.mark.parametrize("topic", ["T", RETRY])
def test_what_is_stored_counts(start_from: StartFrom, topic: str) -> None:
    assert start_offset(topic, 0, start_from) == 0
    assert start_offset(topic, 7, start_from) == 7


@pytest.mark.parametrize(
    ("topic", "start_from", "expected"),
    [
        ("T", StartFrom.LAST, Ask.MAX_OFFSET),
        (RETRY, StartFrom.LAST, 0),
        ("T", StartFrom.FIRST, 0),
        (RETRY, StartFrom.FIRST, 0),
        ("T", StartFrom.TIMESTAMP, Ask.OFFSET_AT_TIME),
        (RETRY, StartFrom.TIMESTAMP, Ask.MAX_OFFSET),
    ],
)
def test_without_a_stored_one_it_is_the_choice(topic: str, start_from: StartFrom, expected: int | Ask) -> None:
    assert start_offset(topic, NONE_STORED, start_from) == expected


def test_a_time_is_a_choice() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert to_start(at) == (StartFrom.TIMESTAMP, 1_767_323_045_000)
    assert to_start(StartFrom.FIRST) == (StartFrom.FIRST, None)
    assert to_start(None) == (StartFrom.LAST, None)


def test_the_choices_have_the_names_of_the_heartbeat() -> None:
    assert [start.value for start in StartFrom] == [
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]
