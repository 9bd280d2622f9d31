"""Queues of sends: those of RocketMQ's proxy for a key, and all in turn without one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message.names import java_hash
from firearrow.proxy.messages import Code
from firearrow.proxy.queuechoice import Turns, consistent_hash, queue_for
from firearrow.proxy.statuses import ProxyError
from tests.proxy.golden import rows


def test_a_key_has_the_queue_that_guava_gives_it() -> None:
    cases = rows("consistent-hashes.json")
    assert len(cases) == 1000
    assert {buckets for _, buckets, _ in cases} == set(range(1, 65))
    assert [case for case in cases if queue_for(case[0], range(case[1])) != case[2]] == []


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(1, 200))
def test_a_further_queue_moves_keys_to_itself_only(number: int, buckets: int) -> None:
    before, after = consistent_hash(number, buckets), consistent_hash(number, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_the_example_is_right() -> None:
    assert java_hash("order-17") == 1_234_255_109
    assert queue_for("order-17", "abcdefgh") == "d"


def test_sends_without_a_key_take_turns() -> None:
    turns = Turns(first=4)
    assert [turns.queue_of("abc") for _ in range(5)] == ["b", "c", "a", "b", "c"]
    assert turns.queue_of("ab") == "b"


def test_without_a_queue_a_send_is_refused() -> None:
    with pytest.raises(ProxyError, match="no writable queue") as raised:
        queue_for("key", [])
    assert raised.value.code is Code.FORBIDDEN
    with pytest.raises(ProxyError, match="no writable queue"):
        Turns().queue_of([])
