"""The official Java client of RocketMQ 4 and 5 by remoting, with `firearrow proxy` as its name server and broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests.interop.driver import Driver, JavaError
from tests.interop.grpcscenarios import create, topic_of
from tests.interop.grpcservers import (
    APP,
    FOREIGN_TOPIC,
    GUARDED,
    OWN_TOPIC,
    READ_TOPIC,
    admit,
    behind_proxy,
    behind_rocketmqs_proxy,
    of_broker,
    of_proxy,
)
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, Kind, serve
from tests.interop.test_transactions import COMMIT, OFTEN, UNKNOWN, arrived
from tests.interop.waiting import wait_until
from tests.proxy.proxyclient import ProxyClient
from tests.proxy.rpcs import receive_request

QUEUES = 4
POPPED = [-1]


@contextmanager
def both(
    driver: Driver, kind: Kind, root: Path, settings: Mapping[str, str], keys: Mapping[str, str]
) -> Iterator[tuple[JavaClient, JavaClient]]:
    """Run a server and a proxy; yield the client of each."""
    with (
        serve(kind, root / "store", root / "logs", settings=settings) as server,
        behind_proxy(server, root / "proxy.log", {"grpcServerPort": "0", **keys}) as behind,
    ):
        clients = JavaClient(driver, server), JavaClient(driver, replace(behind, namesrv=behind.remoting))
        yield clients
        for client in clients:
            client.close()


@pytest.fixture(scope="module", params=["firearrow", "real"])
def clients(
    request: pytest.FixtureRequest, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JavaClient, JavaClient]]:
    root = tmp_path_factory.mktemp("remoting-proxy")
    with both(driver, request.param, root, {**SMALL_FILES, **OFTEN}, {}) as found:
        yield found


@pytest.fixture
def direct(clients: tuple[JavaClient, JavaClient]) -> JavaClient:
    """The client of the servers."""
    return clients[0]


@pytest.fixture
def java(clients: tuple[JavaClient, JavaClient], direct: JavaClient, name: str) -> JavaClient:
    """The client of the proxy, which has the topic of the test."""
    direct.create_topic(name, QUEUES)
    return clients[1]


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(body=b"%d" % number, queue=number % QUEUES) for number in range(count)]


def test_members_of_a_group_share_the_queues_with_those_of_the_broker(
    direct: JavaClient, java: JavaClient, name: str, group: str
) -> None:
    consumers = [java.push_consumer(group, name), java.push_consumer(group, name), direct.push_consumer(group, name)]

    def all_queues() -> list[int]:
        for consumer in consumers:
            consumer.rebalance()
        return sorted(queue for consumer in consumers for queue in consumer.queues(name))

    wait_until(lambda: all_queues() == list(range(QUEUES)), ARRIVAL_TIMEOUT_S, "each queue at one member")
    assert all(consumer.queues(name) for consumer in consumers)
    java.producer().send(name, numbered(40))

    def found() -> list[int]:
        return sorted(int(message.body) for consumer in consumers for message in consumer.received())

    wait_until(lambda: found() == list(range(40)), ARRIVAL_TIMEOUT_S, "each message once")


def test_an_orderly_consumer_locks_its_queues(java: JavaClient, name: str, group: str) -> None:
    consumer = java.push_consumer(group, name, orderly=True)
    java.producer().send(name, numbered(20))
    bodies = [int(message.body) for message in consumer.wait_for(20)]
    for queue in range(QUEUES):
        assert [it for it in bodies if it % QUEUES == queue] == list(range(queue, 20, QUEUES))


def test_popped_messages_are_acknowledged(direct: JavaClient, java: JavaClient, name: str, group: str) -> None:
    direct.set_request_mode(name, group, "POP")
    consumer = java.shared_consumer(group, name)
    wait_until(lambda: consumer.popped_queues(name) == POPPED, ARRIVAL_TIMEOUT_S, "the consumer pops")
    java.producer().send(name, numbered(20))
    assert sorted(int(message.body) for message in consumer.wait_for(20)) == list(range(20))
    direct.wait_until_consumed(group, name, 20)
    consumer.stop()


def test_a_producer_is_asked_for_its_transaction(direct: JavaClient, java: JavaClient, name: str) -> None:
    producer = java.transaction_producer(f"{name}_producer")
    with pytest.raises(JavaError, match="send message Exception"):
        producer.send(name, b"of another type", COMMIT)
    topic = f"{name}_of_transactions"
    create(direct.server, [topic_of(topic, "TRANSACTION", QUEUES)])
    producer.send(topic, b"asked", UNKNOWN, COMMIT)
    wait_until(lambda: len(producer.checked()) == 1, ARRIVAL_TIMEOUT_S, "a check")
    assert [message.body for message in arrived(java, topic, 1)] == [b"asked"]


def test_consumers_behind_rocketmqs_proxy_share_the_queues(driver: Driver, tmp_path: Path) -> None:
    topic, group = "Shared", "shared_group"
    with (
        both(driver, "real", tmp_path / "firearrow", SMALL_FILES, {}) as (direct, behind),
        behind_rocketmqs_proxy(direct.server, tmp_path / "rocketmq") as server,
    ):
        direct.create_topic(topic, QUEUES)
        others = JavaClient(driver, replace(server, namesrv=server.remoting))
        first, second = others.push_consumer(group, topic), behind.push_consumer(group, topic)

        def have(*counts: int) -> bool:
            """Tell whether the members have these counts of queues, and all together, without their usual 20 s."""
            for member in members:
                member.rebalance()
            found = [member.queues(topic) for member in members]
            return sorted(chain(*found)) == list(range(QUEUES)) and tuple(map(len, found)) == counts

        members = [first, second]
        wait_until(lambda: have(2, 2), 2 * ARRIVAL_TIMEOUT_S, "both proxies know both members")
        behind.producer().send(topic, numbered(20))
        wait_until(lambda: len(first.received()) == len(second.received()) == 10, ARRIVAL_TIMEOUT_S, "all messages")
        second.stop()
        members = [first]
        wait_until(lambda: have(QUEUES), ARRIVAL_TIMEOUT_S, "the other member has left")
        third = behind.push_consumer(group, topic)
        members = [first, third]
        wait_until(lambda: have(2, 2), 2 * ARRIVAL_TIMEOUT_S, "a new member")
        first.stop()
        members = [third]
        wait_until(lambda: have(QUEUES), ARRIVAL_TIMEOUT_S, "the first member has left")
        others.close()


def test_doctor_names_rocketmqs_proxy_whose_clients_brokers_do_not_know(tmp_path: Path) -> None:
    with (
        serve("real", tmp_path / "store", tmp_path / "logs", settings=SMALL_FILES) as server,
        behind_rocketmqs_proxy(server, tmp_path / "rocketmq") as behind,
        ProxyClient(behind.grpc) as client,
    ):
        create(server, [topic_of("Popped", "NORMAL", 1)])
        client.consume("popping", "Popped")
        client.send("Popped", b"makes the group known")
        [message] = client.receive("popping", "Popped")
        client.ack("popping", "Popped", message.system_properties.receipt_handle)
        request = receive_request("popping", "Popped", wait_s=20)
        receives = [client.streamed("ReceiveMessage", request)]

        def told() -> str | None:
            if not receives[-1].is_active():
                receives.append(client.streamed("ReceiveMessage", request))
            command = [sys.executable, "-m", "firearrow", "doctor", "popping", "-n", server.namesrv]
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            return found if "group popping: pops by a proxy" in found else None

        found = wait_until(told, 2 * ARRIVAL_TIMEOUT_S, "the waiting pop")
        assert "clients behind RocketMQ's proxy: ask 127.0.0.1 for" in " ".join(found.split())


def test_rights_are_those_of_the_user(driver: Driver, tmp_path: Path) -> None:
    with both(driver, "firearrow", tmp_path, of_broker(GUARDED), of_proxy(GUARDED)) as (direct, behind):
        admit(direct.server)
        java = JavaClient(driver, behind.server, APP)
        assert java.producer().send(OWN_TOPIC, [Outgoing(body=b"mine")])
        with pytest.raises(JavaError, match="still failed"):
            java.producer().send(READ_TOPIC, [Outgoing(body=b"only read")])
        with pytest.raises(JavaError, match="No route info"):
            java.producer().send(FOREIGN_TOPIC, [Outgoing(body=b"others'")])
        with pytest.raises(JavaError, match="No route info"):
            behind.producer().send(OWN_TOPIC, [Outgoing(body=b"unsigned")])
        java.close()
