"""Blocking client, against a broker in another thread."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firearrow import client
from firearrow.client import Decision, Message
from firearrow.client.blocking import Producer, PullConsumer, PushConsumer, Session, SimpleConsumer
from firearrow.errors import ClientError, MessageError
from tests.broker.serving import stored
from tests.client.cluster import Cluster, serving_cluster
from tests.net.background import in_thread


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with in_thread(lambda: serving_cluster(tmp_path, ("a",))) as cluster:
        yield cluster
    names = {thread.name for thread in threading.enumerate()}
    assert "firearrow client" not in names, "the loop's thread is left"


def all_bodies(cluster: Cluster, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        broker = cluster.brokers["a"]
        return sorted(view.body for queue in range(4) for view in stored(broker, topic, queue))

    return asyncio.run_coroutine_threadsafe(read(), cluster.loop).result(10)


def test_it_sends_from_any_thread(cluster: Cluster) -> None:
    with Producer(cluster.name_server, group="shop") as producer:
        receipt = producer.send("orders", b"one", key="k", tag="t")
        assert receipt.topic == "orders"
        assert len(producer.send_batch("orders", [b"two", b"three"])) == 2
        with ThreadPoolExecutor(4) as threads:
            bodies = [b"%03d" % n for n in range(40)]
            receipts = list(threads.map(lambda body: producer.send("orders", body), bodies))
        assert len({(it.queue, it.queue_offset) for it in receipts}) == 40
        with pytest.raises(MessageError, match="is empty"):
            producer.send("orders", b"")
    assert all_bodies(cluster, "orders") == sorted([b"one", b"two", b"three", *bodies])


def test_two_share_a_session(cluster: Cluster) -> None:
    with (
        Session(cluster.name_server) as session,
        Producer(session, group="one") as one,
        Producer(session, group="two") as two,
    ):
        one.send("orders", b"1")
        two.send("orders", b"2")
    assert all_bodies(cluster, "orders") == [b"1", b"2"]


def test_two_threads_may_close_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(cluster.name_server)
    session.start()
    close, begun, may_end = session.inner.close, threading.Event(), threading.Event()

    async def close_slowly() -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait, 10)
        await close()

    monkeypatch.setattr(session.inner, "close", close_slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(session.close)
        assert begun.wait(10)
        threads.submit(session.close).result(10)
        may_end.set()
        first.result(10)


def test_transactions(cluster: Cluster) -> None:
    def check(message: Message) -> Decision:
        raise AssertionError("all are decided")

    with Producer(cluster.name_server, group="shop", check=check) as producer:
        with producer.transaction("orders", b"good") as transaction:
            assert transaction.receipt.topic == "orders"
        with producer.transaction("orders", b"bad") as transaction:
            transaction.roll_back()
        with pytest.raises(ZeroDivisionError), producer.transaction("orders", b"open"):
            raise ZeroDivisionError
        producer.send("orders", b"end")
    assert all_bodies(cluster, "orders") == [b"end", b"good"]


def test_one_that_is_not_open(cluster: Cluster) -> None:
    producer = Producer(cluster.name_server, group="shop")
    with pytest.raises(ClientError, match="this Producer is not open: use it in `with`"):
        producer.send("orders", b"x")
    producer.close()
    with producer, pytest.raises(ClientError, match="this Producer is open already"):
        producer.start()


def test_a_call_on_the_thread_of_the_loop_is_refused(cluster: Cluster) -> None:
    with Producer(cluster.name_server, group="shop") as producer:

        async def call() -> None:
            producer.send("orders", b"x")

        with pytest.raises(ClientError, match="would wait forever"):
            producer.portal.run(call())


class Got:
    """What handlers in other threads were given."""

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes] = []
        self.threads: set[str] = set()
        self.all_came = threading.Event()
        self._count = count

    def take(self, message: Message) -> None:
        """Take a message."""
        self.bodies.append(message.body)
        self.threads.add(threading.current_thread().name)
        if len(self.bodies) == self._count:
            self.all_came.set()


def test_a_push_consumer_runs_until_it_is_stopped(cluster: Cluster) -> None:
    got = Got(10)
    consumer = PushConsumer(cluster.name_server, group="billing")
    consumer.on("orders")(got.take)
    with Producer(cluster.name_server, group="shop") as producer:
        sent = [b"%d" % n for n in range(10)]
        for body in sent:
            producer.send("orders", body)
        running = threading.Thread(target=consumer.run)
        running.start()
        assert got.all_came.wait(20)
        assert consumer.queues["orders"] == [("a", number) for number in range(4)]
        consumer.stop()
        running.join(20)
        assert not running.is_alive()
    assert sorted(got.bodies) == sent
    assert "firearrow client" not in got.threads


def test_a_simple_and_a_pull_consumer(cluster: Cluster) -> None:
    with Producer(cluster.name_server, group="shop") as producer:
        receipt = producer.send("orders", b"one")
        with SimpleConsumer(cluster.name_server, group="simple", topics=["orders"]) as simple:
            received: list[Message] = []
            while not received:
                received = simple.receive()
            assert [it.body for it in received] == [b"one"]
            assert simple.ack(received[0])
        with PullConsumer(cluster.name_server, group="pull") as pull:
            pull.assign([receipt.queue])
            assert pull.assigned == [receipt.queue]
            pull.seek_to_begin(receipt.queue)
            assert [it.body for it in pull.poll(10)] == [b"one"]
            pull.commit()
            assert pull.committed(receipt.queue) == 1


@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (Producer, client.Producer),
        (PushConsumer, client.PushConsumer),
        (PullConsumer, client.PullConsumer),
        (SimpleConsumer, client.SimpleConsumer),
    ],
)
def test_it_has_the_names_of_its_twin(kind: type, twin: type) -> None:
    inner = {"consumer_data", "divide_soon", "reset"}  # for the parts of the client
    names = {name for name, it in vars(twin).items() if inspect.isfunction(it) and not name.startswith("_")}
    assert {name for name in names - inner if not hasattr(kind, name)} == set()
