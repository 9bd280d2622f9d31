"""Who is elected, of whom."""

from __future__ import annotations

import pytest

from firearrow.controller.election import NOBODY_ASKED, Standing, elected
from firearrow.controller.replicas import BrokerSet, ReplicaMember
from firearrow.wire.headers import ElectMaster
from tests.controller.test_replicas import Living

EQUAL = Standing(1, 100, 5)
MEMBERS = {broker_id: ReplicaMember(f"h:{broker_id}", "") for broker_id in (1, 2, 3, 4)}
# 1 is master, 2 and 3 are in sync as well, 4 is not.
FOUND = BrokerSet("C", MEMBERS, 5, 1, 7, frozenset((1, 2, 3)), 9)


def choose(
    alive: dict[int, Standing],
    *,
    asks: int = NOBODY_ASKED,
    designate: bool = False,
    unclean: bool = False,
    found: BrokerSet = FOUND,
) -> int | None:
    living = Living()
    living.alive = {("a", broker_id): standing for broker_id, standing in alive.items()}
    header = ElectMaster("a", "C", asks, designate)
    return elected("a", found, living, header, is_unclean_allowed=unclean)


def test_a_master_that_lives_stays() -> None:
    assert choose({1: Standing(1, 1, 9), 2: EQUAL}) == 1
    assert choose({1: EQUAL, 2: EQUAL}, asks=2) == 1


@pytest.mark.parametrize(
    ("second", "third", "expected"),
    [
        (Standing(2, 0, 9), Standing(1, 999, 0), 2),
        (Standing(1, 999, 9), Standing(2, 0, 0), 3),
        (Standing(1, 101, 9), Standing(1, 100, 0), 2),
        (Standing(1, 5 << 30, 9), Standing(1, 2 << 30, 0), 2),  # 3 GiB ahead, no int of Java's
        (Standing(1, 100, 9), Standing(1, 100, 1), 3),
        (EQUAL, EQUAL, 2),
    ],
)
def test_the_one_with_the_most_data_is_elected(second: Standing, third: Standing, expected: int) -> None:
    assert choose({2: second, 3: third, 4: Standing(9, 9999, 0)}) == expected


def test_who_is_named_must_be_a_candidate() -> None:
    alive = {1: EQUAL, 2: EQUAL, 4: EQUAL}
    assert choose(alive, asks=2, designate=True) == 2
    assert choose(alive, asks=1, designate=True) == 1
    assert choose(alive, asks=3, designate=True) is None
    assert choose(alive, asks=4, designate=True) is None
    assert choose(alive, asks=4, designate=True, unclean=True) == 4


def test_who_lacks_messages_is_elected_only_where_that_is_allowed() -> None:
    assert choose({4: EQUAL}) is None
    assert choose({4: EQUAL}, unclean=True) == 4
    assert choose({3: EQUAL, 4: Standing(9, 9, 0)}, unclean=True) == 3
    assert choose({}, unclean=True) is None


def test_the_first_master_is_who_asks() -> None:
    first = BrokerSet("C", MEMBERS, 5)
    assert choose({}, asks=2, found=first) == 2
    assert choose({1: EQUAL}, found=first) is None
    assert choose({1: EQUAL}, asks=99, found=first) is None  # RocketMQ elects one that is not there
