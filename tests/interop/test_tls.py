"""The official Java client, which encrypts, on servers that take nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import running_driver
from tests.interop.javaclient import MIB, JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, serve
from tests.net.certificates import make_certificate


@pytest.fixture
def encrypting(tmp_path: Path) -> Iterator[JavaClient]:
    certificate = make_certificate(tmp_path, "interop")
    settings = {
        **SMALL_FILES,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificate),
    }
    with (
        running_driver(tmp_path, "-Dtls.enable=true") as driver,
        serve("firearrow", tmp_path / "store", tmp_path / "logs", settings=settings) as server,
    ):
        client = JavaClient(driver, server)
        yield client
        client.close()


def test_sends_and_consumes(encrypting: JavaClient) -> None:
    encrypting.create_topic("secret", queues=2)
    consumer = encrypting.push_consumer("readers", "secret")
    producer = encrypting.producer()
    bodies = [b"%d" % number for number in range(20)] + [bytes(range(256)) * (MIB // 256)]
    producer.send("secret", [Outgoing(body=body) for body in bodies])
    received = consumer.wait_for(len(bodies))
    assert sorted(message.body for message in received) == sorted(bodies)
