"""Text forms of Java: the order of hash tables in OpenJDK 17, numbers, times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.cli.mqadmin.javatext import (
    concurrent_order,
    copied_order,
    digits,
    fixed,
    front,
    hash_order,
    moment,
    moment_of,
    queue_hash,
    second,
    shown,
    text_order,
)
from firearrow.errors import ConfigError
from firearrow.message.names import java_hash
from firearrow.wire.client_bodies import MessageQueue

MS = 1_769_846_400_123


@given(st.lists(st.text(max_size=4), max_size=200))
def test_orders_lose_nothing_and_double_nothing(keys: list[str]) -> None:
    for order in (text_order(keys), concurrent_order(keys)):
        assert sorted(order) == sorted(set(keys))
    once = text_order(keys)
    assert sorted(copied_order(once, java_hash)) == sorted(once)


@given(st.lists(st.text(max_size=4), max_size=200, unique=True))
def test_a_table_is_in_the_order_of_its_buckets(keys: list[str]) -> None:
    size = 16
    while len(keys) > size * 3 // 4:
        size *= 2

    def bucket(key: str) -> int:
        code = java_hash(key) & 0xFFFFFFFF
        return (code ^ code >> 16) & size - 1

    order = text_order(keys)
    assert order == sorted(keys, key=bucket)


def test_a_concurrent_table_turns_buckets_around_when_it_grows() -> None:
    """Aa and BB have one hash, and so have all texts of the two."""
    same = ["AaAaAa", "AaAaBB", "AaBBAa", "AaBBBB"]
    others = [f"k{number}" for number in range(8)]
    grown = [key for key in concurrent_order([*same, *others]) if key in same]
    assert grown == same  # one bucket that stays together keeps its order
    assert [key for key in text_order([*same, *others]) if key in same] == same


def test_queues_are_hashed_by_broker_number_and_topic() -> None:
    queues = [MessageQueue("Play", "broker-a", number) for number in range(4)]
    order = [queue.queue_id for queue in hash_order(queues, queue_hash)]
    assert order == [0, 3, 2, 1]  # as RocketMQ's tools print them


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.0, "0.0"),
        (1e10, "1.0E10"),
        ({"a": None, "b": [1, "x"]}, "{a=null, b=[1, x]}"),
        ([], "[]"),
        ("x", "x"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.125, "0.13"), (0.135, "0.14"), (2.675, "2.68"), (1e-9, "0.00"), (1.005, "1.01"), (-1, "-1.00")],
)
def test_halves_are_rounded_up(value: float, text: str) -> None:
    assert fixed(value, 2) == text


def test_times() -> None:
    assert moment_of(str(MS)) == MS
    local = second(MS)
    assert moment(MS) == f"{local},123"
    assert digits(MS) == local.replace("-", "").replace(":", "").replace(" ", "") + "123"
    assert moment_of(f"{local.replace(' ', '#')}:123") == MS
    with pytest.raises(ConfigError, match="'yesterday' is neither a number of ms nor a time"):
        moment_of("yesterday")


def test_a_long_text_is_cut() -> None:
    assert (front("abc", 2), front("a", 2), front(None, 9)) == ("ab", "a", "null")
