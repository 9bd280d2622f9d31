"""How queues are divided: as RocketMQ's own classes do, and so that nothing is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import ConfigError
from firearrow.wire.allocation import (
    AVG,
    AVG_BY_CIRCLE,
    BROKER_STRATEGIES,
    CONSISTENT_HASH,
    Strategy,
    configured,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    room_of,
)
from firearrow.wire.client_bodies import MessageQueue

# What the classes of RocketMQ 5.5.0 answer: strategy, queues, clients, and the queues of each.
ALLOCATIONS = (Path(__file__).parents[1] / "data" / "allocations.txt").read_text().splitlines()

numbers = st.integers(1, 20)
ROOMS = ("r1", "r2", "r3")


def nearby(inner: Strategy) -> Strategy:
    def queue_room(queue: MessageQueue) -> str:
        return room_of(queue.broker_name) or ""

    return machine_room_nearby(inner, queue_room, lambda client: room_of(client) or "")


WHOLE = (AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, machine_room(ROOMS), nearby(AVG), nearby(AVG_BY_CIRCLE))


def queues_of(count: int, broker_name: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker_name, queue_id) for queue_id in range(count)]


def clients_of(count: int) -> list[str]:
    return [f"c{number:02}" for number in range(count)]


def divided(strategy: Strategy, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(queues, clients, one)] for one in clients]


def by_name(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[MessageQueue], list[str]]:
    """Queues and clients in machine rooms, both sorted."""
    room = st.sampled_from(ROOMS)
    brokers = draw(st.dictionaries(st.tuples(room, st.sampled_from("xyz")), numbers, min_size=1))
    queues = [
        MessageQueue("T", f"{room}@{name}", queue_id)
        for (room, name), count in brokers.items()
        for queue_id in range(count)
    ]
    clients = {f"{draw(room)}@{number}" for number in range(draw(numbers))}
    return sorted(queues, key=by_name), sorted(clients)


def test_the_original_divides_so() -> None:
    assert len(ALLOCATIONS) == 2 * 9 * 6
    for line in ALLOCATIONS:
        name, queue_count, client_count, allocated = line.split(" ")
        expected = [[int(queue) for queue in part.split(",") if queue] for part in allocated.split("|")]
        clients = clients_of(int(client_count))
        assert divided(BROKER_STRATEGIES[name], queues_of(int(queue_count)), clients) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, [[0, 1, 5, 6], [3, 4], [2, 7]]), (16, [[0, 1, 5, 6, 13, 14], [3, 4, 8, 9, 10, 11], [2, 7, 12, 15]])],
)
def test_the_original_hashes_so(count: int, expected: list[list[int]]) -> None:
    queues = queues_of(count, "broker-a")
    assert divided(CONSISTENT_HASH, queues, ["c0", "c1", "c2"]) == expected


def test_the_original_divides_a_machine_room_so() -> None:
    queues = sorted(queues_of(7, "room1@b") + queues_of(9, "room2@b") + queues_of(5), key=by_name)
    divisions = divided(machine_room({"room1"}), queues, clients_of(3))
    assert divisions == [[0, 1, 6], [2, 3], [4, 5]]


@given(st.sampled_from(WHOLE), groups())
def test_each_queue_has_one_client(strategy: Strategy, group: tuple[list[MessageQueue], list[str]]) -> None:
    queues, clients = group
    having = Counter(queue for one in clients for queue in strategy(queues, clients, one))
    assert having == Counter(queues)


@given(st.sampled_from((AVG, AVG_BY_CIRCLE, machine_room(ROOMS))), groups())
def test_none_has_two_queues_more_than_another(strategy: Strategy, group: tuple[list[MessageQueue], list[str]]) -> None:
    sizes = [len(part) for part in divided(strategy, *group)]
    assert max(sizes) - min(sizes) <= 1


@given(groups())
def test_by_hash_only_what_the_one_that_leaves_had_moves(group: tuple[list[MessageQueue], list[str]]) -> None:
    queues, clients = group
    *staying, leaving = clients
    moving = CONSISTENT_HASH(queues, clients, leaving)
    for client in staying:
        before = CONSISTENT_HASH(queues, clients, client)
        after = CONSISTENT_HASH(queues, staying, client)
        assert [queue for queue in after if queue not in moving] == before


@given(st.sampled_from((AVG, AVG_BY_CIRCLE, CONSISTENT_HASH)), groups())
def test_nearby_what_has_clients_in_its_room_stays_there(
    inner: Strategy, group: tuple[list[MessageQueue], list[str]]
) -> None:
    queues, clients = group
    rooms = {room_of(client) for client in clients}
    for client in clients:
        for queue in nearby(inner)(queues, clients, client):
            room = room_of(queue.broker_name)
            assert room not in rooms or room == room_of(client)


@pytest.mark.parametrize("strategy", WHOLE, ids=lambda strategy: strategy.name)
def test_a_stranger_has_nothing(strategy: Strategy) -> None:
    assert strategy(queues_of(4, "r1@b"), ["r1@c"], "r1@stranger") == []


def test_what_is_configured_is_not_divided() -> None:
    own = queues_of(2)
    assert configured(own)(queues_of(4), clients_of(2), "stranger") == own


def test_their_names_are_those_of_the_original() -> None:
    names = [strategy.name for strategy in (*WHOLE, configured([]))]
    assert names == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONSISTENT_HASH",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-AVG",
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
        "CONFIG",
    ]


@pytest.mark.parametrize(
    ("broker_name", "room"), [("r@b", "r"), ("b", None), ("r@b@c", None), ("@b", ""), ("r@b@", "r"), ("r@", None)]
)
def test_a_room_is_read_as_java_splits_text(broker_name: str, room: str | None) -> None:
    assert room_of(broker_name) == room


def test_who_is_in_no_room_is_named() -> None:
    with pytest.raises(ConfigError, match="c00 is in no machine room"):
        nearby(AVG)(queues_of(1, "r1@b"), clients_of(1), "c00")
    with pytest.raises(ConfigError, match="brokerName=b, queueId=0\\] is in no machine room"):
        nearby(AVG)(queues_of(1), ["r1@c"], "r1@c")


def test_a_ring_has_places() -> None:
    with pytest.raises(ConfigError, match="0 virtual nodes"):
        consistent_hash(0)


def test_the_text_of_a_queue_is_that_of_java() -> None:
    assert MessageQueue("T", "broker-a", 0).text == ("MessageQueue [topic=T, brokerName=broker-a, queueId=0]")
