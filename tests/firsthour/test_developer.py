"""Tasks of a Python developer in the first hour, beside the way of the best peer: the comment above a test has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from queue import Queue
from typing import TypeVar

import msgspec
import pytest

from firearrow.client import Decision, MemoryKeys, Message, RetryLater, SendStatus, StartFrom, once
from firearrow.client import Producer as AsyncProducer
from firearrow.client import PushConsumer as AsyncPushConsumer
from firearrow.client.blocking import Producer, PullConsumer, PushConsumer, SimpleConsumer
from firearrow.errors import FirearrowError
from firearrow.testing import BlockingCluster, VirtualTime

pytestmark = pytest.mark.usefixtures("patience")

SECONDS = 60
T = TypeVar("T")


class Order(msgspec.Struct):
    """Body of a message."""

    number: int


@pytest.fixture
def address(rocketmq_cluster: BlockingCluster) -> str:
    """Name server of a cluster with topic ``orders``."""
    rocketmq_cluster.create_topic("orders", queues=1)
    return rocketmq_cluster.name_server


def consumed(consumer: PushConsumer, count: int, got: Queue[T], send: Callable[[], object]) -> list[T]:
    """Consume until so many values are in the queue."""
    with consumer:
        send()
        return [got.get(timeout=SECONDS) for _ in range(count)]


# nc = await nats.connect(); await nc.jetstream().publish("orders", b"...")
def test_27_a_message_is_sent(address: str) -> None:
    with Producer(address, group="shop") as producer:
        assert producer.send("orders", "order 17", key="o-17").status is SendStatus.SEND_OK


# channel.basic_consume("orders", callback); channel.start_consuming()
def test_28_a_function_consumes_what_its_type_says(address: str) -> None:
    got: Queue[Order] = Queue()
    consumer = PushConsumer(address, group="billing")
    consumer.on("orders", kind=Order)(got.put)
    with Producer(address, group="shop") as producer:
        assert consumed(consumer, 1, got, lambda: producer.send("orders", Order(17))) == [Order(17)]


# @app.task(autoretry_for=(Exception,), retry_backoff=10)
def test_29_a_failed_message_comes_again(address: str) -> None:
    tries: Queue[int] = Queue()
    consumer = PushConsumer(address, group="billing")

    @consumer.on("orders")
    def bill(message: Message) -> None:
        tries.put(message.reconsume_times)
        if not message.reconsume_times:
            raise RetryLater(level=1)

    with Producer(address, group="shop") as producer:
        assert consumed(consumer, 2, tries, lambda: producer.send("orders", "order 17")) == [0, 1]


# task.apply_async(countdown=7200), and freezegun does not move the broker's clock
def test_30_a_message_for_later_is_tested_at_once(rocketmq_clock: VirtualTime) -> None:
    cluster = rocketmq_clock.cluster
    got: list[str] = []

    async def remind(text: str) -> None:
        got.append(text)

    async def send() -> None:
        async with AsyncProducer(cluster.name_server, group="shop") as producer:
            await producer.send("orders", "pay order 17", delay=timedelta(hours=2))

    consumer = AsyncPushConsumer(cluster.name_server, group="reminders")
    consumer.on("orders", kind=str)(remind)
    rocketmq_clock.run(cluster.create_topic("orders", queues=1))
    rocketmq_clock.run(send())
    rocketmq_clock.run(consumer.start())
    rocketmq_clock.advance(timedelta(minutes=119))
    assert got == []
    rocketmq_clock.advance(timedelta(minutes=2))
    assert got == ["pay order 17"]
    rocketmq_clock.run(consumer.close())


# await nc.request("prices", b"order 17")
def test_31_a_request_has_its_reply(address: str) -> None:
    with Producer(address, group="desk") as desk:
        consumer = PushConsumer(address, group="prices")
        consumer.on("orders")(lambda message: desk.reply(message, f"{message.text()}: 20.50"))
        with consumer:
            assert desk.request("orders", "order 17", timeout_seconds=SECONDS).text() == "order 17: 20.50"


# none: an outbox table and a relay
def test_32_a_message_and_a_database_are_one_transaction(address: str) -> None:
    def check(_: Message) -> Decision:
        return Decision.ROLLBACK

    with Producer(address, group="shop", check=check) as producer:
        with producer.transaction("orders", "paid"):
            pass  # the change in the database
        with producer.transaction("orders", "cancelled") as transaction:
            transaction.roll_back()
    with SimpleConsumer(address, group="billing", topics=["orders"]) as consumer:
        assert [message.text() for message in consumer.receive(wait=SECONDS)] == ["paid"]


# producer.send("orders", key=b"customer 7", value=...)
def test_33_messages_of_one_key_keep_their_order(rocketmq_cluster: BlockingCluster) -> None:
    rocketmq_cluster.create_topic("orders", queues=4)
    got: Queue[str] = Queue()
    consumer = PushConsumer(rocketmq_cluster.name_server, group="billing", ordered=True)
    consumer.on("orders", kind=str)(got.put)
    with Producer(rocketmq_cluster.name_server, group="shop") as producer:

        def send() -> None:
            for number in range(5):
                producer.send("orders", str(number), sharding_key="customer 7")

        assert consumed(consumer, 5, got, send) == list("01234")


# js.publish(..., headers={"Nats-Msg-Id": "o-17"}), for the time of a window
def test_34_a_repeated_message_does_its_work_once(address: str) -> None:
    got: Queue[str] = Queue()
    consumer = PushConsumer(address, group="billing", ordered=True)

    @consumer.on("orders")
    @once(MemoryKeys(), key=lambda message: message.keys[0])
    async def bill(message: Message) -> None:
        got.put(message.text())

    with Producer(address, group="shop") as producer:

        def send() -> None:
            for key in ("o-17", "o-17", "o-18"):
                producer.send("orders", key, key=key, sharding_key="one")

        assert consumed(consumer, 2, got, send) == ["o-17", "o-18"]


# kafka: linger.ms and batch.size
def test_35_many_messages_are_one_request(address: str) -> None:
    with Producer(address, group="shop") as producer:
        receipts = producer.send_batch("orders", [b"%d" % number for number in range(100)])
        assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}


# pika: AttributeError deep in a frame
def test_36_mistakes_are_named_where_they_are_made(address: str) -> None:
    with Producer(address, group="shop") as producer:
        with pytest.raises(FirearrowError, match="tag: 5 is not text"):
            producer.send("orders", "x", tag=5)  # type: ignore[arg-type]
        with pytest.raises(FirearrowError, match="None"):
            producer.send("orders", None)
    with pytest.raises(FirearrowError, match="http"):
        Producer("http://127.0.0.1:9876", group="shop")


# testcontainers: a container and 10 s for each
def test_37_a_test_has_a_broker_of_its_own(rocketmq_cluster: BlockingCluster) -> None:
    assert rocketmq_cluster.brokers[0].address.startswith("127.0.0.1:")


# kafka-python: a warning without the record
def test_38_a_log_line_says_what_failed(address: str, caplog: pytest.LogCaptureFixture) -> None:
    tried: Queue[str] = Queue()
    consumer = PushConsumer(address, group="billing", max_reconsume_times=0)

    @consumer.on("orders")
    def bill(message: Message) -> None:
        tried.put(message.message_id)
        raise ValueError("bad data")

    with caplog.at_level(logging.WARNING), Producer(address, group="shop") as producer:
        [message_id] = consumed(consumer, 1, tried, lambda: producer.send("orders", "order 17"))
    assert f"handler of 'orders' failed for {message_id} (try 1): ValueError: bad data" in caplog.messages


# consumer.seek(partition, offsets_for_times(...))
def test_39_what_was_is_read_again(address: str) -> None:
    with Producer(address, group="shop") as producer:
        for number in range(3):
            producer.send("orders", str(number))
    with PullConsumer(address, group="audit", start=StartFrom.FIRST) as consumer:
        consumer.assign(consumer.queues("orders"))
        read: list[str] = []
        while len(read) < 3:
            read += [message.text() for message in consumer.poll(wait=SECONDS)]
    assert read == list("012")
