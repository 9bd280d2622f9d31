"""Queues that a route describes."""

import pytest

from firearrow.client.queues import Queue
from firearrow.client.routing.queues import (
    LOGICAL_BROKER,
    WritableQueue,
    address_of_id,
    hosts_of_logical,
    is_ordered,
    publish_queues,
    subscribe_queues,
    writable,
)
from firearrow.wire.bodies import BrokerData, QueueData, Route, TopicQueueMappingInfo

MASTERS = [BrokerData("C", "b", {0: "b:1", 1: "b:2"}), BrokerData("C", "a", {0: "a:1"})]
SLAVE = BrokerData("C", "s", {1: "s:2"})


def queues(*places: tuple[str, int]) -> list[Queue]:
    return [Queue("T", broker, number) for broker, number in places]


def test_plain_topics() -> None:
    route = Route([QueueData("b", 2, 1, 6), QueueData("a", 1, 2, 6), QueueData("s", 1, 1, 6)], [*MASTERS, SLAVE])
    assert publish_queues("T", route) == queues(("a", 0), ("a", 1), ("b", 0))
    assert publish_queues("T", route, 1) == queues(("a", 0), ("b", 0))
    assert subscribe_queues("T", route) == queues(("a", 0), ("b", 0), ("b", 1), ("s", 0))
    assert not is_ordered(route)


def test_rights() -> None:
    route = Route([QueueData("a", 1, 1, 4), QueueData("b", 1, 1, 2)], MASTERS)
    assert publish_queues("T", route) == queues(("b", 0))
    assert subscribe_queues("T", route) == queues(("a", 0))


def test_ordered_topics() -> None:
    route = Route([QueueData("a", 9, 9, 6)], MASTERS, order_topic_conf="b:2;a:1;")
    assert publish_queues("T", route) == queues(("b", 0), ("b", 1), ("a", 0))
    assert is_ordered(route)


MANY = 20_000_000


@pytest.mark.parametrize(
    ("route", "faults"),
    [
        (
            Route([QueueData("a", 1, 1, 6), QueueData("b", MANY, 4, 6)], MASTERS),
            ["broker 'b' has 20000000 queues, a topic may have 65536"],
        ),
        (
            Route([QueueData("a", 1, 1, 6), QueueData("b", -1, -1, 6)], MASTERS),
            ["broker 'b' has -1 queues, a topic may have 65536"],
        ),
        (
            Route([QueueData("a", 1, 1, 6)], MASTERS, order_topic_conf="a:1;b:x; ;:7;b:20000000"),
            [
                "'b:x' in orderTopicConf is no broker with a number",
                "':7' in orderTopicConf is no broker with a number",
                "broker 'b' in orderTopicConf has 20000000 queues, a topic may have 65536",
            ],
        ),
        (
            Route([QueueData("a", 1, 1, 6)], MASTERS, order_topic_conf="b:x"),
            ["'b:x' in orderTopicConf is no broker with a number"],
        ),
    ],
)
def test_an_entry_that_cannot_be_used_is_left_out(route: Route, faults: list[str]) -> None:
    usable, found = route.usable()
    assert found == faults
    assert publish_queues("T", usable) == queues(("a", 0))
    assert usable.usable() == (usable, [])


def test_a_topic_has_so_many_queues_in_all() -> None:
    data = [QueueData(f"b{number}", 1000, 1000, 6) for number in range(1000)]
    usable, faults = Route(data).usable()
    assert len(subscribe_queues("T", usable)) == 65_000
    assert len(faults) == 935
    mapping = {"a": TopicQueueMappingInfo("T", total_queues=MANY, bname="a")}
    usable, [fault] = Route(topic_queue_mapping_by_broker=mapping).usable()
    assert subscribe_queues("T", usable) == []
    assert fault.startswith("the mapping of broker 'a' has 20000000 queues")


def test_static_topics() -> None:
    mappings = {
        "a": TopicQueueMappingInfo("T", total_queues=3, bname="a", epoch=1, curr_id_map={0: 0, 1: 1}),
        "b": TopicQueueMappingInfo("T", total_queues=3, bname="b", epoch=2, curr_id_map={1: 0}),
    }
    route = Route([], MASTERS, topic_queue_mapping_by_broker=mappings)
    logical = queues(*((LOGICAL_BROKER, number) for number in range(3)))
    assert publish_queues("T", route) == subscribe_queues("T", route) == logical
    assert hosts_of_logical(route) == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("broker_id", "any_will_do", "address"),
    [(0, False, None), (1, False, "1"), (2, False, "3"), (4, False, None), (4, True, "1")],
)
def test_addresses(broker_id: int, any_will_do: bool, address: str | None) -> None:
    known = {1: "1", 3: "3"}
    assert address_of_id(known, broker_id, any_will_do=any_will_do) == address


def test_the_master_speaks_for_a_broker_and_a_slave_without_one() -> None:
    assert MASTERS[0].address == "b:1"
    assert BrokerData("C", "b", {2: "b:2", 1: "b:1"}).address == "b:1"


def test_the_queues_that_can_be_written_to() -> None:
    route = Route(
        queue_datas=[
            QueueData("b", 1, 3, 6),
            QueueData("a", 8, 2, 6),
            QueueData("read-only", 4, 4, 4),
            QueueData("slave-only", 4, 4, 6),
        ],
        broker_datas=[
            BrokerData("C", "a", {0: "a:1", 1: "a:2"}),
            BrokerData("C", "b", {0: "b:1"}),
            BrokerData("C", "read-only", {0: "r:1"}),
            BrokerData("C", "slave-only", {1: "s:1"}),
        ],
    )
    a = [WritableQueue("a", "a:1", 0), WritableQueue("a", "a:1", 1)]
    b = [WritableQueue("b", "b:1", n) for n in range(3)]
    assert writable(route) == [*a, *b]
    assert writable(route, 2) == [*a, *b[:2]]
