"""Transactions of the official producer: what it decides, what it is asked, and a takeover while
halves wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.goclient import GoClient, Half
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing, Received
from tests.interop.servers import HANDOVERS, SMALL_FILES, Kind, serve, target_kind
from tests.interop.test_takeover import Handover
from tests.interop.toolchain import go_program
from tests.interop.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
# The original asks about a half that is decided, but not in a record of the op queue yet.
OFTEN = {"transactionCheckInterval": "1000", "transactionTimeOut": "600", "transactionOpBatchInterval": "100"}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
ADDED = {"local", "checks", "TRAN_MSG", "PGROUP", "__transactionId__", "UNIQ_KEY", "WAIT"}
QUEUES = 4


@pytest.fixture(scope="module")
def java(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """The official client on a server that asks often."""
    directory = tmp_path_factory.mktemp("transactions")
    settings = {**SMALL_FILES, **OFTEN, "transactionCheckMax": "3"}
    with serve(target_kind(), directory / "store", directory / "logs", settings=settings) as server:
        client = JavaClient(driver, server)
        yield client
        client.close()


def arrived(java: JavaClient, topic: str, count: int) -> list[Received]:
    """Wait for so many messages of a topic, and read them."""
    wait_until(
        lambda: sum(java.max_offset(topic, queue) for queue in range(QUEUES)) >= count,
        ARRIVAL_TIMEOUT_S,
        f"{count} messages in {topic}",
    )
    return java.pull_consumer().read(topic)


def test_a_producer_decides(java: JavaClient, topic: str) -> None:
    producer = java.transaction_producer()
    reports = [producer.send(topic, b"%d" % i, COMMIT, keys=f"k{i}", flag=i) for i in range(5)]
    assert {report.status for report in reports} == {"SEND_OK"}
    producer.send(topic, b"never", ROLLBACK)
    messages = arrived(java, topic, 5)
    assert sorted(message.body for message in messages) == [b"%d" % i for i in range(5)]
    for message in messages:
        number = int(message.body)
        report = reports[number]
        assert (message.keys, message.flag) == (f"k{number}", number)
        assert message.msg_id == report.msg_id == report.transaction_id
        assert message.queue_id == report.queue_id
        assert message.sys_flag & 12 == 8
        assert message.properties.keys() >= ADDED
        assert {"REAL_TOPIC", "REAL_QID"}.isdisjoint(message.properties)
    assert producer.checked() == []


@pytest.mark.parametrize(("checks", "times"), [(COMMIT, 1), (f"{UNKNOWN} {COMMIT}", 2), (ROLLBACK, 1)])
def test_a_producer_is_asked(java: JavaClient, topic: str, checks: str, times: int) -> None:
    group = f"{topic}_group"
    producer = java.transaction_producer(group)
    report = producer.send(topic, b"asked", UNKNOWN, checks, tags="T", flag=7, queue=2)
    wait_until(lambda: len(producer.checked()) == times, ARRIVAL_TIMEOUT_S, "checks")
    last = producer.checked()[-1]
    assert (last.topic, last.body, last.tags, last.flag) == (topic, b"asked", "T", 7)
    assert last.queue_id == report.queue_id
    assert last.properties["TRANSACTION_CHECK_TIMES"] == str(times)
    producer.send(topic, b"after", COMMIT)
    count = 1 + (ROLLBACK not in checks)
    bodies = sorted(message.body for message in arrived(java, topic, count))
    assert bodies == [b"after", b"asked"][:count]
    end = java.max_offset(HALF, 0)
    wait_until(lambda: half_offset(java) >= end, ARRIVAL_TIMEOUT_S, "all halves done")
    assert len(producer.checked()) == times


def test_a_producer_that_never_knows_is_asked_no_more(java: JavaClient, topic: str) -> None:
    producer = java.transaction_producer(f"{topic}_group")
    producer.send(topic, b"unknown", UNKNOWN)
    consumer = java.pull_consumer()
    wait_until(lambda: GIVEN_UP in java.topics() and consumer.read(GIVEN_UP), ARRIVAL_TIMEOUT_S, GIVEN_UP)
    (given_up,) = consumer.read(GIVEN_UP)
    assert given_up.body == b"unknown"
    assert given_up.properties["REAL_TOPIC"] == topic
    assert len(producer.checked()) == 3
    assert consumer.read(topic) == []
    assert java.call("admin.checkAgain", bool, topic=GIVEN_UP, id=given_up.offset_msg_id)
    wait_until(lambda: len(producer.checked()) > 3, ARRIVAL_TIMEOUT_S, "a check again")


def test_a_producer_in_go_decides_and_is_asked(java: JavaClient, topic: str) -> None:
    halves = [
        Half(Outgoing(body=b"committed", tags="T", flag=1), COMMIT),
        Half(Outgoing(body=b"rolled back"), ROLLBACK),
        Half(Outgoing(body=b"committed later", tags="T", flag=3), UNKNOWN, [COMMIT]),
        Half(Outgoing(body=b"rolled back later"), UNKNOWN, [ROLLBACK]),
    ]
    go = GoClient(go_program(), java.server.namesrv)
    with go.transacting(topic, f"{topic}_group", halves) as done:
        assert [report.status for report in done.reports] == ["SEND_OK"] * 4
        asked = [message.body for message in done.checked if message.body.endswith(b" later")]
        # RocketMQ may ask about others, too.
        assert asked == [b"committed later", b"rolled back later"]
        end = java.max_offset(HALF, 0)
        wait_until(lambda: half_offset(java) >= end, ARRIVAL_TIMEOUT_S, "all halves done")
    messages = java.pull_consumer().read(topic)
    found = sorted((message.body, message.tags, message.flag) for message in messages)
    assert found == [(b"committed", "T", 1), (b"committed later", "T", 3)]


def half_offset(java: JavaClient) -> int:
    """Up to where the broker is done with halves."""
    return java.pull_consumer("CID_RMQ_SYS_TRANS").committed(HALF, 0)


@pytest.mark.parametrize(("store_type", "kinds"), HANDOVERS)
def test_halves_go_on_under_the_other_broker(
    driver: Driver, tmp_path: Path, kinds: tuple[Kind, Kind], store_type: str
) -> None:
    """What is decided stays so, what waits is asked about; nothing is delivered twice."""
    handover = Handover(driver, tmp_path, store_type, **OFTEN, transactionCheckMax="1000")
    first, second = kinds
    group = "carried"
    with handover.opened_by(first) as java:
        java.create_topic("Carried", QUEUES)
        producer = java.transaction_producer(group)
        producer.send("Carried", b"committed", COMMIT)
        producer.send("Carried", b"rolled back", ROLLBACK)
        producer.send("Carried", b"checked", UNKNOWN, COMMIT)
        arrived(java, "Carried", 2)
        producer.send("Carried", b"waits", UNKNOWN)
        wait_until(lambda: producer.checked()[-1].body == b"waits", ARRIVAL_TIMEOUT_S, "a check")
        producer.close()
    with handover.opened_by(second) as java:
        consumer = java.push_consumer("carried_consumers", "Carried")
        assert len(consumer.wait_for(2)) == 2
        producer = java.transaction_producer(group)
        producer.send("Carried", b"new", COMMIT)
        wait_until(lambda: len(producer.checked()) >= 2, ARRIVAL_TIMEOUT_S, "checks")
        assert {message.body for message in producer.checked()} == {b"waits"}
        assert int(producer.checked()[0].properties["TRANSACTION_CHECK_TIMES"]) >= 2
        assert len(consumer.wait_for(3)) == 3
        assert sorted(message.body for message in consumer.stop()) == [b"checked", b"committed", b"new"]
