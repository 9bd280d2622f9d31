"""Expressions of tags and of SQL, as a heartbeat carries them."""

from __future__ import annotations

import pytest

from firearrow.client.message import Message
from firearrow.client.subscription import subscription_to, wanted_of
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
    with pytest.raises(ConfigError, match="topic 'T': either by tags 'A' or by SQL 'a > 1'"):
        subscription_to("T", 7, tags="A", sql="a > 1")


def test_an_expression_of_no_tag() -> None:
    with pytest.raises(ConfigError, match=r"topic 'T': .* '\|\| \|\|' names no tag"):
        subscription_to("T", 7, tags="|| ||")


def test_tags_with_the_same_hash_are_told_apart() -> None:
    messages = [message("AaBB"), message("BBAa"), message(None)]
    assert wanted_of(messages, subscription_to("T", 7, tags="AaBB")) == messages[:1]
    assert wanted_of(messages, subscription_to("T", 7)) == messages
