"""Lite topics are on the brokers that the original's clients choose."""

import pytest

from firearrow.broker.lite.sharding import LiteSharding, bucket
from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.wire.client_bodies import MessageQueue
from tests.broker.fakes import HandClock

COUNTS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("a", (0, 0, 0, 0, 0)),
        ("b", (0, 0, 0, 5, 5)),
        ("lite-1", (0, 1, 2, 6, 6)),
        ("user_42", (0, 0, 0, 0, 10)),
        ("标签", (0, 1, 2, 4, 4)),
    ],
)
def test_the_original_chooses_so(name: str, buckets: tuple[int, ...]) -> None:
    assert tuple(bucket(name, count) for count in COUNTS) == buckets


@pytest.mark.parametrize("count", range(1, 20))
def test_one_more_takes_from_the_others(count: int) -> None:
    names = [f"lite-{number}" for number in range(500)]
    for name in names:
        assert bucket(name, count + 1) in (bucket(name, count), count)


@pytest.mark.parametrize(
    ("queues", "here"),
    [
        (None, True),
        ((), True),
        ((MessageQueue("P", "a", 0), MessageQueue("P", "me", 0)), True),
        ((MessageQueue("P", "me", 0), MessageQueue("P", "z", 0)), False),
    ],
)
def test_whose_it_is(queues: Queues | None, here: bool) -> None:
    routes = TopicRoutes((), lambda _: queues, lambda: 30.0, HandClock())
    assert LiteSharding(routes, "me").is_here("P", "lite-1") is here
