"""How popping is divided, so that nobody is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.groups.popsharing import shared_for_pop
from firearrow.wire.allocation import AVG, BROKER_STRATEGIES
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.pop import ANY_QUEUE

numbers = st.integers(1, 20)


def queues_of(count: int, broker_name: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker_name, queue_id) for queue_id in range(count)]


def clients_of(count: int) -> list[str]:
    return [f"c{number:02}" for number in range(count)]


@pytest.mark.parametrize("name", BROKER_STRATEGIES)
def test_a_stranger_has_nothing(name: str) -> None:
    assert shared_for_pop(BROKER_STRATEGIES[name], queues_of(4), clients_of(4), "stranger", 1) == []


@pytest.mark.parametrize(("clients", "share"), [(1, 0), (3, 0), (3, -1), (3, 2), (3, 9)])
def test_without_shares_each_client_pops_from_every_broker(clients: int, share: int) -> None:
    queues = queues_of(4, "a") + queues_of(4, "b")
    found = shared_for_pop(AVG, queues, clients_of(clients), "c00", share)
    assert found == [MessageQueue("T", "a", ANY_QUEUE), MessageQueue("T", "b", ANY_QUEUE)]


def test_a_client_shares_the_queues_of_those_that_follow() -> None:
    clients = clients_of(3)
    strategy = AVG
    shares = [shared_for_pop(strategy, queues_of(4), clients, one, 1) for one in clients]
    assert [[queue.queue_id for queue in found] for found in shares] == [[0, 1, 2], [2, 3], [3, 0, 1]]


@given(numbers, st.integers(3, 30), st.integers(1, 10))
def test_every_queue_has_enough_clients(queue_count: int, client_count: int, share: int) -> None:
    clients = clients_of(client_count)
    queues = queues_of(queue_count)
    having = {queue.queue_id: 0 for queue in queues}
    for one in clients:
        found = set(shared_for_pop(AVG, queues, clients, one, share))
        assert found, one
        for queue in found:
            having[queue.queue_id] = having.get(queue.queue_id, 0) + 1
    if share >= client_count - 1:
        assert having[ANY_QUEUE] == client_count
    elif client_count <= queue_count:
        assert set(having.values()) == {share + 1}
    else:
        assert min(having.values()) >= client_count // queue_count
