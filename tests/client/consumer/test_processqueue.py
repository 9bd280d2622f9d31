"""Cache of a queue, compared with a sorted map as in RocketMQ's client."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from firearrow.client.consumer.processqueue import Limits, ProcessQueue


class Pulled(NamedTuple):
    """A message."""

    queue_offset: int
    body: bytes = b"body"


def filled(*offsets: int, in_order: bool = False) -> ProcessQueue[Pulled]:
    queue: ProcessQueue[Pulled] = ProcessQueue()
    messages = map(Pulled, offsets)
    if in_order:
        queue.put_in_order(messages)
    else:
        queue.put(messages)
    return queue


class Model(RuleBasedStateMachine):
    """What came and is not consumed, by its offset; what is taken, and what was put back."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ProcessQueue[Pulled] = ProcessQueue()
        self.here: dict[int, Pulled] = {}
        self.taken: dict[int, Pulled] = {}
        self.next = -1

    @initialize(first=st.integers(0, 1 << 40), in_order=st.booleans())
    def begin(self, first: int, in_order: bool) -> None:
        self.at = first
        self.in_order = in_order

    @rule(gaps=st.lists(st.integers(1, 5), min_size=1, max_size=8), size=st.integers(0, 9))
    def pull(self, gaps: list[int], size: int) -> None:
        messages = []
        for gap in gaps:
            self.at += gap
            messages.append(Pulled(self.at, bytes(size)))
        if self.in_order:
            self.queue.put_in_order(messages)
        else:
            assert self.queue.put(messages) == messages
        self.here |= {message.queue_offset: message for message in messages}
        self.next = self.at + 1

    @rule()
    def pull_again(self) -> None:
        assert self.queue.put(list(self.here.values())) == []

    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        if self.here and not self.in_order:
            message = data.draw(st.sampled_from(sorted(self.here.values())))
            self.queue.finish(message)
            del self.here[message.queue_offset]

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        waiting = [at for at in sorted(self.here) if at not in self.taken]
        expected = [self.here[at] for at in waiting[:count]] if self.in_order else []
        assert self.queue.take(count) == expected
        self.taken |= {message.queue_offset: message for message in expected}

    @rule()
    def commit(self) -> None:
        assert self.queue.commit() == (max(self.taken) + 1 if self.taken else -1)
        for at in self.taken:
            del self.here[at]
        self.taken.clear()

    @rule()
    def roll_back(self) -> None:
        self.queue.roll_back()
        self.taken.clear()

    @rule(count=st.integers(0, 3))
    def put_back(self, count: int) -> None:
        last = [self.taken[at] for at in sorted(self.taken)][-count:] if count else []
        self.queue.put_back(last)
        for message in last:
            del self.taken[message.queue_offset]

    @invariant()
    def agrees(self) -> None:
        queue, here = self.queue, self.here
        assert len(queue) == len(here)
        assert queue.bytes == sum(len(message.body) for message in here.values())
        assert queue.next_offset == self.next
        assert queue.commit_offset == min(here, default=self.next)
        assert queue.first_offset == min(here, default=None)
        assert queue.span == (self.next - 1 - min(here) if here else 0)
        assert queue.waiting == (len(here) - len(self.taken) if self.in_order else 0)


TestModel = Model.TestCase


def test_what_is_behind_the_first_that_is_not_consumed_is_not_committed() -> None:
    queue = filled(5, 7, 8)
    assert queue.commit_offset == 5
    queue.finish(Pulled(7))
    assert (queue.commit_offset, len(queue), queue.is_here(7)) == (5, 2, False)
    queue.finish(Pulled(5))
    assert (queue.commit_offset, queue.is_here(8), queue.is_here(9)) == (8, True, False)
    queue.finish(Pulled(8))
    assert (queue.commit_offset, queue.first_offset, queue.span) == (9, None, 0)


@pytest.mark.parametrize(
    ("limits", "excess"),
    [
        (Limits(), None),
        (Limits(messages=3), None),
        (Limits(messages=2), "3 messages"),
        (Limits(bytes=11), "12 bytes"),
        (Limits(span=9), "a span of 10 offsets"),
    ],
)
def test_a_limit_says_what_exceeds_it(limits: Limits, excess: str | None) -> None:
    assert filled(0, 4, 10).excess(limits) == excess


def test_in_order_the_span_has_no_limit() -> None:
    assert filled(0, 4, 10, in_order=True).excess(Limits(span=1), in_order=True) is None


def test_the_limits_are_those_of_rocketmq() -> None:
    assert Limits() == (1000, 104_857_600, 2000)
