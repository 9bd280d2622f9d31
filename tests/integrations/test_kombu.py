"""The transport of kombu: what kombu's own suite for transports asks for, and what is RocketMQ's.

kombu's suite itself is run by `tests/interop/test_kombu_suite.py`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError

import firearrow
import firearrow.integrations.kombu as transport
from firearrow.integrations.queues import Binding
from firearrow.testing.broker import EmbeddedBroker
from firearrow.testing.cluster import BlockingCluster

_numbers = count(1)


@pytest.fixture
def connect(rocketmq_broker: EmbeddedBroker) -> Iterator[Any]:
    """Opens connections, which are closed after the test."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Any:
            url = f"rocketmq://{rocketmq_broker.name_server}"
            return stack.enter_context(kombu.Connection(url, transport_options=options))

        yield opened


@pytest.fixture
def name() -> str:
    """A name that no other test has, of characters that RocketMQ has not."""
    return f"shop.orders@{next(_numbers)}/å"


class Taken:
    """A consumer, and what it got."""

    def __init__(self, connection: Any, *queues: kombu.Queue, prefetch: int = 0, no_ack: bool = False) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        channel = connection.channel()
        self.consumer = channel.Consumer(list(queues), callbacks=[self._take], no_ack=no_ack)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _take(self, _: object, message: Any) -> None:
        self.messages.append(message)

    def has(self, number: int) -> list[Any]:
        """Wait until so many have come, and give their bodies."""
        while len(self.messages) < number:
            self.connection.drain_events(timeout=20)
        return [message.payload for message in self.messages]

    def has_no_more(self, seconds: float = 0.05) -> None:
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=seconds)


def publish(connection: Any, *bodies: Any, **where: Any) -> None:
    with connection.channel() as channel:
        for body in bodies:
            channel.Producer().publish(body, **where)


def test_what_is_acknowledged_comes_once(connect: Any, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name)
    publish(connect(), *range(100), routing_key=name)
    taken = Taken(connect(), queue)
    assert taken.has(100) == list(range(100))  # in order, as there is one queue in the topic
    for message in taken.messages:
        message.ack()
    taken.has_no_more()
    assert not taken.messages[0].delivery_info["redelivered"]
    taken.connection.close()
    Taken(connect(), queue).has_no_more()


def test_each_kind_of_exchange_passes_on_what_other_processes_have_bound(connect: Any, name: str) -> None:
    consumer, publisher = connect(), connect()
    kinds = {kind: kombu.Exchange(f"{kind} {name}", type=kind) for kind in ("direct", "topic")}
    fanout = kombu.Exchange(f"fanout {name}", type="fanout")
    direct = kombu.Queue(f"d {name}", kinds["direct"], routing_key="a")
    topic = kombu.Queue(f"t {name}", kinds["topic"], routing_key="paid.*")
    everywhere = [kombu.Queue(f"f{number} {name}", fanout) for number in (1, 2)]
    taken = {it.name: Taken(consumer, it) for it in (direct, topic, *everywhere)}

    for exchange in (*kinds.values(), fanout):
        exchange(publisher.default_channel).declare()
    publish(publisher, "a", exchange=kinds["direct"], routing_key="a")
    publish(publisher, "not bound", exchange=kinds["direct"], routing_key="b")
    publish(publisher, "paid", exchange=kinds["topic"], routing_key="paid.here")
    publish(publisher, "sent", exchange=kinds["topic"], routing_key="sent.here")
    publish(publisher, "to all", exchange=fanout)

    found = {queue: it.has(1) for queue, it in taken.items()}
    assert list(found.values()) == [["a"], ["paid"], ["to all"], ["to all"]]
    topic(consumer.default_channel).unbind_from(kinds["topic"], routing_key="paid.*")
    publish(publisher, "too late", exchange=kinds["topic"], routing_key="paid.here")
    taken[topic.name].has_no_more()


def test_what_is_rejected(connect: Any, name: str) -> None:
    taken = Taken(connect(), kombu.Queue(name, routing_key=name))
    publish(connect(), "again", "gone", routing_key=name)
    taken.has(2)
    again, gone = taken.messages
    gone.reject()
    again.requeue()
    assert taken.has(3)[2] == "again"
    assert taken.messages[2].delivery_info["redelivered"]
    taken.messages[2].ack()
    taken.has_no_more()


def test_a_consumer_without_acknowledgements(connect: Any, name: str) -> None:
    taken = Taken(connect(), kombu.Queue(name, routing_key=name), no_ack=True)
    publish(connect(), *range(10), routing_key=name)
    assert taken.has(10) == list(range(10))
    assert taken.messages[0].channel._held == {}
    taken.connection.close()
    Taken(connect(), kombu.Queue(name, routing_key=name)).has_no_more()


def test_single_messages_and_the_size_of_a_queue(connect: Any, name: str) -> None:
    connection = connect()
    queue = kombu.Queue(name, routing_key=name)(connection.default_channel)
    assert queue.queue_declare().message_count == 0
    assert queue.get() is None
    publish(connection, "a", "b", "c", routing_key=name)
    assert queue.queue_declare(passive=True).message_count == 3
    message = queue.get()
    assert (message.payload, queue.queue_declare().message_count) == ("a", 2)
    message.ack()
    assert queue.get(no_ack=True).payload == "b"
    assert queue.purge() == 1
    assert (queue.get(), queue.queue_declare().message_count) == (None, 0)


def test_a_queue_that_is_deleted_is_gone(connect: Any, name: str) -> None:
    connection = connect()
    exchange = kombu.Exchange(f"x {name}", type="direct")
    queue = kombu.Queue(name, exchange, routing_key="a")(connection.default_channel)
    queue.declare()
    publish(connection, "a", exchange=exchange, routing_key="a")
    queue.delete(if_empty=True)
    queue.queue_declare(passive=True)
    assert Binding(exchange.name, "a", None, name) in connection.transport.queues.bindings()
    queue.delete()
    with pytest.raises(ChannelError, match="NOT_FOUND - no queue"):
        queue.queue_declare(passive=True)
    assert Binding(exchange.name, "a", None, name) not in connection.transport.queues.bindings()
    publish(connection, "nobody", exchange=exchange, routing_key="a")
    with pytest.raises(ChannelError, match="NOT_FOUND - no queue"):
        queue.queue_declare(passive=True)


def test_no_more_than_the_prefetch_count_are_under_way(connect: Any, name: str) -> None:
    publish(connect(), *range(8), routing_key=name)
    some, others = (Taken(connect(), kombu.Queue(name, routing_key=name), prefetch=3) for _ in range(2))
    some.has(3)
    some.has_no_more()
    others.has(3)
    others.has_no_more()
    for message in some.messages[:2]:
        message.ack()
    assert some.has(5) == [0, 1, 2, 6, 7]


def test_room_that_another_thread_makes_is_used_at_once(connect: Any, name: str) -> None:
    publish(connect(), "a", "b", routing_key=name)
    taken = Taken(connect(), kombu.Queue(name, routing_key=name), prefetch=1)
    taken.has(1)
    threading.Timer(0.05, taken.messages[0].ack).start()
    began = time.monotonic()
    assert taken.has(2) == ["a", "b"]
    assert time.monotonic() - began < 10  # of the 20 that it may wait


def test_a_callback_that_raises_loses_nothing(connect: Any, name: str) -> None:
    publish(connect(), *range(6), routing_key=name)
    taken = Taken(connect(), kombu.Queue(name, routing_key=name), prefetch=4)
    taken.consumer.register_callback(lambda body, _: 1 // (body != 1))
    with pytest.raises(ZeroDivisionError):
        taken.has(4)
    assert taken.has(4) == [0, 1, 2, 3]
    for message in taken.messages[:2]:
        message.ack()
    assert taken.has(6) == list(range(6))


def test_higher_priorities_come_first(connect: Any, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name, max_priority=5)
    connection = connect()
    queue(connection.default_channel).declare()
    for priority in (0, 3, 9, 5, 3):
        publish(connection, priority, routing_key=name, priority=priority, declare=[queue])
    assert Taken(connect(), queue).has(5) == [9, 5, 3, 3, 0]  # 9 is as high as 5 here


def test_what_is_too_old_is_not_delivered(connect: Any, name: str) -> None:
    connection = connect()
    queue = kombu.Queue(name, routing_key=name)
    publish(connection, "old", routing_key=name, expiration=0.0)
    publish(connection, "new", routing_key=name, expiration=60)
    taken = Taken(connection, queue)
    assert taken.has(1) == ["new"]
    assert list(taken.messages[0].channel._held) == [taken.messages[0].delivery_tag]


def test_a_connection_that_closes_gives_back_what_it_has(connect: Any, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name)
    publish(connect(), *range(40), routing_key=name)
    first = Taken(connect(visibility_timeout=300), queue)
    for message in [first.has(40), first.messages[:10]][1]:
        message.ack()
    first.connection.close()
    second = Taken(connect(), queue)
    assert sorted(second.has(30)) == list(range(10, 40))
    assert all(message.delivery_info["redelivered"] for message in second.messages)


WORKER = """
import os, sys
import kombu, firearrow.integrations.kombu
url, name = sys.argv[1:]

def die(body, message):
    print("got", body, flush=True)
    os._exit(9)

connection = kombu.Connection(url, transport_options={"visibility_timeout": 2})
with connection.Consumer([kombu.Queue(name, routing_key=name)], callbacks=[die]):
    connection.drain_events(timeout=20)
"""


def test_a_process_that_dies_loses_nothing(connect: Any, name: str, rocketmq_broker: EmbeddedBroker) -> None:
    publish(connect(), "precious", routing_key=name)
    url = f"rocketmq://{rocketmq_broker.name_server}"
    ran = subprocess.run([sys.executable, "-c", WORKER, url, name], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("got precious\n", 9), ran.stderr
    taken = Taken(connect(), kombu.Queue(name, routing_key=name))
    assert taken.has(1) == ["precious"]
    taken.messages[0].ack()


FORKS = """
import os, sys, warnings
import kombu, firearrow.integrations.kombu
warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
url, name = sys.argv[1:]
connection = kombu.Connection(url)
channel = connection.channel()
channel.Producer().publish("parent", routing_key=name)
if os.fork() == 0:
    with kombu.Connection(url) as own:
        own.channel().Producer().publish("child", routing_key=name)
    try:
        channel.Producer().publish("lost", routing_key=name)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    connection.close()
    os._exit(0)
_, status = os.wait()
channel.Producer().publish("parent again", routing_key=name)
connection.close()
sys.exit(status)
"""


def test_a_process_that_forks(connect: Any, name: str, rocketmq_broker: EmbeddedBroker) -> None:
    """Celery's workers do: a child has connections of its own and closes none of its parent's."""
    url = f"rocketmq://{rocketmq_broker.name_server}"
    ran = subprocess.run([sys.executable, "-c", FORKS, url, name], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "ClientError: " in ran.stdout
    assert "fork" in ran.stdout
    taken = Taken(connect(), kombu.Queue(name, routing_key=name))
    assert taken.has(3) == ["parent", "child", "parent again"]


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Any, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name, auto_delete=True)
    one, other, looking = Taken(connect(), queue), Taken(connect(), queue), connect()
    passive = queue(looking.default_channel)
    one.connection.close()
    passive.queue_declare(passive=True)
    other.connection.close()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        passive.queue_declare(passive=True)


def test_a_broker_that_restarts(rocketmq_cluster: BlockingCluster, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name)
    with kombu.Connection(f"rocketmq://{rocketmq_cluster.name_server}") as connection:
        taken = Taken(connection, queue)
        publish(connection, "before", routing_key=name)
        taken.has(1)
        rocketmq_cluster.stop_broker()
        with pytest.raises(connection.connection_errors):
            publish(connection, "meanwhile", routing_key=name)
        rocketmq_cluster.restart_broker()
        taken.messages[0].ack()
        publish(connection, "after", routing_key=name, retry=True)
        assert taken.has(2) == ["before", "after"]
        taken.messages[1].ack()


def test_names_are_those_of_the_options_and_the_url(rocketmq_cluster: BlockingCluster) -> None:
    options = {"queue_name_prefix": "shop-", "queues": 3, "name_servers": [rocketmq_cluster.name_server]}
    with kombu.Connection("rocketmq://nowhere/space", transport_options=options) as connection:
        publish(connection, "a", routing_key="orders.eu")
    [message] = rocketmq_cluster.messages("space%shop-orders%2Eeu")
    assert b'"properties"' in message.body


def test_nobody_answers() -> None:
    connection = kombu.Connection("rocketmq://127.0.0.1:1")
    with pytest.raises(connection.connection_errors):
        connection.connect()
    assert not connection.connected


def test_what_kombu_is_told_of_it() -> None:
    found = kombu.Connection("rocketmq://").transport
    assert isinstance(found, transport.Transport)
    assert (found.driver_type, found.default_port) == ("rocketmq", 9876)
    assert found.driver_version() == firearrow.__version__
    assert {"direct", "topic", "fanout"} == found.implements.exchange_type
    by_path = kombu.Connection("host", transport="firearrow.integrations.kombu:Transport")
    assert isinstance(by_path.transport, transport.Transport)
