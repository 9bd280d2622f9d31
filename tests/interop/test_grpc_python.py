"""The official Python client of RocketMQ 5."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import GrpcClients, running_program
from tests.interop.grpcscenarios import AllScenarios
from tests.interop.litescenarios import WildcardScenarios, by_lite_topic, lite
from tests.interop.servers import Server


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    command = [sys.executable, "-m", "tests.interop.grpcclients.pythonprogram"]
    directory = tmp_path_factory.mktemp("python")
    with running_program(command, directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestPython(AllScenarios, WildcardScenarios):
    """The scenarios with that client."""

    reports_route_codes = False
    hears_of_losses = False

    def test_a_simple_consumer_has_lite_topics(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group)
        consumer = clients.lite_simple(group, topic)
        consumer.subscribe("a", "b")
        clients.producer(topic).send([*lite(topic, "a", b"a0"), *lite(topic, "b", b"b0"), *lite(topic, "c", b"c0")])
        got = {it.lite: it for it in consumer.wait_for(2)}
        assert by_lite_topic([*got.values()]) == {"a": [b"a0"], "b": [b"b0"]}
        consumer.ack(got["a"])
        consumer.change(got["b"], 1000)
        [again] = consumer.wait_for(1)
        assert (again.lite, again.body, again.attempt) == ("b", b"b0", 2)
        consumer.ack(again)
        consumer.unsubscribe("b")
        consumer.subscribe("c")
        [other] = consumer.wait_for(1)
        assert (other.lite, other.body) == ("c", b"c0")
