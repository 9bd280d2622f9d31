"""The official Python client of RocketMQ 5, with `firearrow proxy` in front of RocketMQ's own broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver, JavaError
from tests.interop.grpcclient import ARRIVAL_SECONDS, GrpcClients, Outgoing, running_program
from tests.interop.grpcscenarios import AllScenarios, create, topic_of
from tests.interop.grpcservers import GUARDED, SETTINGS, admit, behind_proxy, of_broker, of_proxy
from tests.interop.servers import Server, free_port, serve
from tests.interop.waiting import wait_until


@pytest.fixture(scope="module")
def grpc_server(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """RocketMQ's broker behind a proxy of two processes, plain and encrypted."""
    root = tmp_path_factory.mktemp("cluster")
    keys = of_proxy(SETTINGS) | {"tlsCertPath": str(grpc_certificate)}
    with (
        serve("real", root / "store", root / "logs", settings=of_broker(SETTINGS)) as server,
        behind_proxy(server, root / "proxy.log", keys, "--workers", "2") as behind,
    ):
        yield behind


@pytest.fixture(scope="module")
def guarded_grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """RocketMQ's broker with access control behind a proxy that has it, too."""
    root = tmp_path_factory.mktemp("guarded-cluster")
    with serve("real", root / "store", root / "logs", settings=of_broker(GUARDED)) as server:
        admit(server)
        with behind_proxy(server, root / "proxy.log", of_proxy(GUARDED)) as behind:
            yield behind


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    command = [sys.executable, "-m", "tests.interop.grpcclients.pythonprogram"]
    directory = tmp_path_factory.mktemp("python-cluster")
    with running_program(command, directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestCluster(AllScenarios):
    """The scenarios behind a proxy."""

    reports_route_codes = False

    def test_the_client_goes_on_after_a_restart(self, program: Driver, tmp_path: Path, topic: str, group: str) -> None:
        """The proxy is another process, and knows no client; the broker stays."""
        keys = of_proxy(SETTINGS) | {"grpcServerPort": str(free_port(0))}
        with serve("firearrow", tmp_path / "store", tmp_path / "logs", settings=of_broker(SETTINGS)) as server:
            create(server, [topic_of(topic)])
            with behind_proxy(server, tmp_path / "first.log", keys) as behind:
                clients = GrpcClients(program, behind.grpc)
                consumer, producer = clients.push(group, topic), clients.producer(topic)
                producer.send([Outgoing(topic=topic, body=b"before")])
                consumer.wait_for(1)
            with behind_proxy(server, tmp_path / "second.log", keys):

                def again() -> bool:
                    try:
                        producer.send([Outgoing(topic=topic, body=b"after")])
                    except JavaError:
                        return False
                    return True

                wait_until(again, 2 * ARRIVAL_SECONDS, "send")
                got = consumer.wait_for(2, 2 * ARRIVAL_SECONDS)
                assert {it.body for it in got} == {b"before", b"after"}
                clients.close()
