"""Batches that are sent, retried, or fail with an error that explains it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from firearrow.client.producer import batchsender as batch_sender
from firearrow.client.producer.batchsender import BatchBody, BatchSender, SendCounts
from firearrow.client.routing.queues import WritableQueue
from firearrow.errors import BrokerBusy, InvalidRequest, MessageError, NotPermitted, TopicNotFound
from firearrow.message.batch import split_batch
from firearrow.spark.access import Cluster
from firearrow.spark.options import for_sink
from firearrow.spark.sink import send_rows
from firearrow.spark.sinkrows import Ids, SinkRows, rows_of
from firearrow.wire.frame import AnyCommand
from tests.client.fakes import HANG_UP, FakeBroker, FakeCluster, fake_cluster


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(batch_sender, "PAUSE_SECONDS", 0.0)


def rows(count: int = 1, **columns: Any) -> SinkRows:
    bodies = pa.array([b"%d" % number for number in range(count)], pa.binary())
    batch = pa.RecordBatch.from_pydict({"body": bodies, **columns})
    return rows_of(batch, Ids("0" * 20), "T", None)


def send(cluster: FakeCluster, *all_rows: SinkRows, **options: str) -> SendCounts:
    given = for_sink({"nameServer": cluster.name_server, **options})
    found = Cluster(given.place, given.access)
    sink, broker_name, count_max = given.sink, given.place.broker_name, int(options.get("sendBatch", "10"))
    sender = BatchSender(
        found.client, found.name_servers, sink.producer_group, retries=sink.retries, broker_name=broker_name
    )
    try:
        for each in all_rows:
            send_rows(found, sender, each, count_max)
        return found.run(sender.finish())
    finally:
        found.close()


def bodies(broker: FakeBroker, queue_id: int | None = None) -> list[bytes]:
    """What a broker has taken, in order; of a single send the body, of batches the members'."""
    found: list[bytes] = []
    for header, body in broker.taken:
        if queue_id in (None, header.queue_id):
            found += [member.body for member in split_batch(body)] if header.batch else [body]
    return found


def test_queues_take_turns_and_all_is_acknowledged() -> None:
    with fake_cluster("a", "b") as cluster:
        assert send(cluster, rows(95), rows(5)) == SendCounts(100, 11, 0, 0)
        taken = [(b.name, h.queue_id) for b in cluster.brokers.values() for h, _ in b.taken]
    queues = {queue: taken.count(queue) for queue in taken}
    assert set(queues) == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert max(queues.values()) - min(queues.values()) <= 1


def test_headers_are_those_of_a_producer() -> None:
    with fake_cluster("a") as cluster:
        send(cluster, rows(2), producerGroup="mine")
        [(header, _)] = cluster.brokers["a"].taken
    assert (header.producer_group, header.topic, header.batch) == ("mine", "T", True)
    assert (header.broker_name, header.sys_flag, header.default_topic) == ("a", 0, "TBW102")


def test_messages_with_a_delay_are_sent_one_by_one() -> None:
    delayed = rows(3, delayLevel=pa.array([None, 3, None]), flag=pa.array([0, 7, 0]))
    with fake_cluster("a") as cluster:
        assert send(cluster, delayed).batches == 2
        single = [(h.flag, h.properties, body) for h, body in cluster.brokers["a"].taken if not h.batch]
    assert single == [(7, "UNIQ_KEY\x01" + "0" * 31 + "1\x02DELAY\x013\x02", b"1")]


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 215, 1500, HANG_UP])
def test_what_one_broker_does_not_take_goes_to_another(code: int) -> None:
    with fake_cluster("a", "b") as cluster:
        good, bad = cluster.brokers.values()
        bad.answers.extend([code] * 100)
        sent = send(cluster, rows(100))
        assert (sent.messages, sent.batches) == (100, 10)
        assert sent.retries == bad.asked or code == HANG_UP
        assert sorted(map(int, bodies(good))) == list(range(100))
        assert bad.taken == []


@pytest.mark.parametrize("code", [1, 2, 14, 1500, HANG_UP])
def test_a_broker_that_is_alone_is_asked_again(code: int) -> None:
    with fake_cluster("a") as cluster:
        broker = cluster.brokers["a"]
        broker.answers.extend([code] * 3)
        sent = send(cluster, rows(10))
        assert sent == SendCounts(10, 1, 3, 0)
        assert sorted(map(int, bodies(broker))) == list(range(10))


@pytest.mark.parametrize("code", [10, 11, 12])
def test_what_is_stored_but_not_safe_yet_is_counted_and_not_sent_again(code: int) -> None:
    with fake_cluster("a") as cluster:
        cluster.brokers["a"].answers.append(code)
        assert send(cluster, rows(10), rows(10)) == SendCounts(20, 2, 0, 10)


def test_at_last_the_error_says_what_was_sent_and_what_not() -> None:
    with fake_cluster("a") as cluster:
        broker = cluster.brokers["a"]
        broker.answers.extend([0, 2, 2, 2])
        with pytest.raises(BrokerBusy) as caught:
            send(cluster, rows(10), rows(3), retries="2")
        assert str(caught.value) == (
            f"code 2 from {broker.address}: as told; 3 messages (195 bytes) to topic 'T' were not "
            "taken in 3 attempts; 10 of this task were"
        )


def test_a_message_that_no_broker_takes_is_not_tried_again() -> None:
    with fake_cluster("a", "b") as cluster:
        for broker in cluster.brokers.values():
            broker.answers.extend([13] * 9)
        with pytest.raises(InvalidRequest, match=r"as told; 1 messages .* were not taken; 0 of"):
            send(cluster, rows(1))
        assert sum(broker.asked for broker in cluster.brokers.values()) == 1


def test_what_a_broker_refuses_is_sent_in_halves_until_it_is_known_what_it_refuses() -> None:
    sizes = [1, 1, 9, 1, 1, 30, 1, 1]
    bodies_of = pa.array([b"x" * size for size in sizes])
    batch = pa.RecordBatch.from_pydict({"body": bodies_of, "queueId": [0] * len(sizes)})
    with fake_cluster("a") as cluster:
        broker = cluster.brokers["a"]
        broker.body_bytes_max = 300
        assert send(cluster, rows_of(batch, Ids("0" * 20), "T", None)).messages == 8
        assert [len(body) for body in bodies(broker)] == sizes
        broker.taken.clear()
        broker.body_bytes_max = 90
        error = r"too large; 1 messages \(94 bytes\) to topic 'T' were not taken; 5 of this task were"
        with pytest.raises(InvalidRequest, match=error):
            send(cluster, rows_of(batch, Ids("0" * 20), "T", None))
        assert [len(body) for body in bodies(broker)] == sizes[:5]


def test_a_broker_that_is_gone() -> None:
    with fake_cluster("a") as cluster:
        address = cluster.brokers["a"].address = "127.0.0.1:1"
        with pytest.raises(ConnectionError, match=f"^{address} can't be reached: .* 2 attempts"):
            send(cluster, rows(1), retries="1")


def test_a_broker_without_permission() -> None:
    with fake_cluster("a") as cluster:
        cluster.brokers["a"].answers.append(16)
        with pytest.raises(NotPermitted, match="as told; 1 messages"):
            send(cluster, rows(1))
        cluster.perm = 4
        with pytest.raises(NotPermitted, match="no broker allows writing to topic 'T'"):
            send(cluster, rows(1))
        with pytest.raises(NotPermitted, match="no broker named 'z' allows writing to topic 'T'"):
            send(cluster, rows(1), brokerName="z")


def test_a_broker_can_be_chosen() -> None:
    with fake_cluster("a", "b") as cluster:
        send(cluster, rows(50), brokerName="b")
        assert [len(bodies(broker)) for broker in cluster.brokers.values()] == [0, 50]


def test_a_topic_that_is_not_there_is_created_where_brokers_do_that() -> None:
    new = rows(40, topic=pa.array(["New"] * 40))
    with fake_cluster("a", queues=8) as cluster:
        with pytest.raises(TopicNotFound, match="topic 'New' has no route"):
            send(cluster, new)
        cluster.topics.add("TBW102")
        assert send(cluster, new, sendBatch="1").messages == 40
        taken = cluster.brokers["a"].taken
    assert {(h.topic, h.queue_id) for h, _ in taken} == {("New", n) for n in range(4)}


def test_no_name_server() -> None:
    with fake_cluster("a") as cluster:
        cluster.name_server = "127.0.0.1:1"
        with pytest.raises(ConnectionError, match=r"^no name server answers: 127.0.0.1:1 can't"):
            send(cluster, rows(1))


def test_rows_with_a_queue_stay_in_order_whatever_happens() -> None:
    numbers = list(range(100))
    pinned = [rows(100, queueId=pa.array([n % 2 for n in numbers])) for _ in range(2)]
    with fake_cluster("a") as cluster:
        broker = cluster.brokers["a"]
        broker.answers.extend([0, 2, 0, HANG_UP, 0, 2, 2])
        assert send(cluster, *pinned, sendBatch="7").messages == 200
        for queue_id in (0, 1):
            found = [int(body) for body in bodies(broker, queue_id)]
            expected = [n for n in numbers if n % 2 == queue_id] * 2
            assert found == expected


def test_equal_order_keys_go_to_one_queue_in_order() -> None:
    keys = [f"k{n % 7}" for n in range(300)]
    with fake_cluster("a", "b") as cluster:
        send(cluster, rows(300, orderKey=pa.array(keys)), sendBatch="16")
        queues: dict[str, set[tuple[str, int]]] = {}
        for broker in cluster.brokers.values():
            broker.answers.clear()
            for queue_id in (0, 1):
                found = [int(body) for body in bodies(broker, queue_id)]
                assert found == sorted(found)
                for number in found:
                    queues.setdefault(keys[number], set()).add((broker.name, queue_id))
    assert {key: len(places) for key, places in queues.items()} == dict.fromkeys(set(keys), 1)
    assert len({place for places in queues.values() for place in places}) > 1


def test_a_queue_that_is_not_there() -> None:
    with fake_cluster("a") as cluster, pytest.raises(MessageError, match="has no queue 5 to write"):
        send(cluster, rows(1, queueId=pa.array([5])))


# --- half messages ---


def test_halves_are_noted_with_their_answers_and_do_not_wait_for_each_other() -> None:
    noted: dict[int, tuple[bytes, int]] = {}

    def note(number: int, piece: BatchBody, target: WritableQueue, answer: AnyCommand) -> None:
        [member] = split_batch(piece.members)
        noted[number] = member.body, answer.code

    with fake_cluster("a") as cluster:
        cluster.brokers["a"].answers.extend([0, 10, 1])
        given = for_sink({"nameServer": cluster.name_server})
        found = Cluster(given.place, given.access)
        sender = BatchSender(found.client, found.name_servers, "g", retries=3, note_half=note)
        columns = {"body": [str(number) for number in range(40)], "orderKey": [1] * 40}
        batch = pa.RecordBatch.from_pydict(columns)
        send_rows(found, sender, rows_of(batch, Ids("0" * 20), "T", None, "g"), 10)
        counts = found.run(sender.finish())
        found.close()
        taken = cluster.brokers["a"].taken
    assert counts.messages == len(noted) == 40
    assert (counts.not_durable, counts.retries) == (1, 1)
    assert list(noted) != sorted(noted)
    assert [noted[number] for number in sorted(noted)] == [
        (str(number).encode(), 10 if number == 1 else 0) for number in range(40)
    ]
    assert {(header.sys_flag, header.batch, header.queue_id) for header, _ in taken} == {(4, False, 1)}
    assert {body for _, body in taken} == {str(number).encode() for number in range(40)}
