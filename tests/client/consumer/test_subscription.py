"""Expressions of tags and of SQL, as in a heartbeat; first offsets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from firearrow.client.consumer.subscription import (
    NONE_STORED,
    OffsetQuery,
    StartFrom,
    start_offset,
    subscription_to,
    to_start,
    wanted_of,
)
from firearrow.client.message import Message
from firearrow.errors import ConfigError
from firearrow.message import properties
from firearrow.message.record import decode_record, encode_record
from firearrow.wire.client_bodies import SubscriptionData


def message(tag: str | None) -> Message:
    found = properties.encode({"TAGS": tag} if tag else {})
    host = bytes(8)
    record = encode_record("T", b"x", found, 0, 0, 0, 0, 0, 0, host, 0, host, 0, 0)
    return Message.received(decode_record(record), "a")


@pytest.mark.parametrize("tags", ["paid || refunded", "refunded||paid|| paid ||", ["paid", "refunded"]])
def test_tags_are_named_and_hashed(tags: str | list[str]) -> None:
    found = subscription_to("T", 7, tags=tags)
    assert (found.tags_set, found.code_set) == (["paid", "refunded"], [3433164, -707924457])
    assert (found.topic, found.sub_version, found.expression_type) == ("T", 7, "TAG")


@pytest.mark.parametrize("tags", ["*", ""])
def test_all(tags: str) -> None:
    assert subscription_to("T", 7, tags=tags) == SubscriptionData("T", "*", 7)


def test_sql_is_left_to_the_broker() -> None:
    found = subscription_to("T", 7, sql="a > 1")
    assert found == SubscriptionData("T", "a > 1", 7, "SQL92")
    with pytest.raises(ConfigError, match="topic 'T': subscribe by tags 'A' or by SQL 'a > 1', not by both"):
        subscription_to("T", 7, tags="A", sql="a > 1")


def test_an_expression_of_no_tag() -> None:
    with pytest.raises(ConfigError, match=r"topic 'T': .* '\|\| \|\|' names no tag"):
        subscription_to("T", 7, tags="|| ||")


def test_tags_with_the_same_hash_are_told_apart() -> None:
    messages = [message("AaBB"), message("BBAa"), message(None)]
    assert wanted_of(messages, subscription_to("T", 7, tags="AaBB")) == messages[:1]
    assert wanted_of(messages, subscription_to("T", 7)) == messages


# --- Where a queue is begun: the rules of RocketMQ's push consumer ---


RETRY = "%RETRY%g"


@pytest.mark.parametrize("start_from", StartFrom)
@pytest.mark.parametrize("topic", ["T", RETRY])
def test_what_is_stored_counts(start_from: StartFrom, topic: str) -> None:
    assert start_offset(topic, 0, start_from) == 0
    assert start_offset(topic, 7, start_from) == 7


@pytest.mark.parametrize(
    ("topic", "start_from", "expected"),
    [
        ("T", StartFrom.LAST, OffsetQuery.MAX_OFFSET),
        (RETRY, StartFrom.LAST, 0),
        ("T", StartFrom.FIRST, 0),
        (RETRY, StartFrom.FIRST, 0),
        ("T", StartFrom.TIMESTAMP, OffsetQuery.OFFSET_AT_TIME),
        (RETRY, StartFrom.TIMESTAMP, OffsetQuery.MAX_OFFSET),
    ],
)
def test_without_a_stored_one_it_is_the_choice(topic: str, start_from: StartFrom, expected: int | OffsetQuery) -> None:
    assert start_offset(topic, NONE_STORED, start_from) == expected


def test_a_time_is_a_choice() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert to_start(at) == (StartFrom.TIMESTAMP, 1_767_323_045_000)
    assert to_start(StartFrom.FIRST) == (StartFrom.FIRST, None)
    assert to_start(StartFrom.LAST) == (StartFrom.LAST, None)


def test_the_choices_have_the_names_of_the_heartbeat() -> None:
    assert [start.value for start in StartFrom] == [
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]
