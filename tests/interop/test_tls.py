"""The official Java client and mqadmin on servers that take nothing plain and nothing unsigned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from firearrow.wire.signature import Credentials
from tests.interop.driver import Driver, JavaError, running_driver
from tests.interop.javaclient import MIB, JavaClient, Outgoing
from tests.interop.servers import AUTHORIZED, ROOT, Server, serve
from tests.net.certificates import make_certificate

APP: Final = Credentials("app", "the app's secret")


class Encrypting(NamedTuple):
    """A client that encrypts, and a server that asks for that and for signatures."""

    driver: Driver
    server: Server
    logs: Path


@pytest.fixture(scope="module")
def encrypting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypting]:
    directory = tmp_path_factory.mktemp("encrypting")
    settings = {
        **AUTHORIZED,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(make_certificate(directory, "interop")),
        "tls.protocols": "TLSv1.2,TLSv1.3",
        "tls.ciphers": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    }
    logs = directory / "logs"
    with (
        running_driver(directory, "-Dtls.enable=true") as driver,
        serve("firearrow", directory / "store", logs, settings=settings) as server,
    ):
        yield Encrypting(driver, server, logs)


def test_a_user_made_by_mqadmin_sends_and_consumes(encrypting: Encrypting) -> None:
    driver, server, _ = encrypting
    root = JavaClient(driver, server, ROOT)
    broker = ["-b", server.broker]
    user = ["-u", APP.access_key, "-p", APP.secret_key]
    assert "success" in root.mqadmin("createUser", *broker, *user)
    subject = ["-s", f"User:{APP.access_key}", "-d", "Allow", "-a", "Pub,Sub"]
    made = root.mqadmin("createAcl", *broker, *subject, "-r", "Topic:secret,Group:readers")
    assert "success" in made
    root.create_topic("secret", queues=2)
    app = JavaClient(driver, server, APP)
    consumer = app.push_consumer("readers", "secret")
    bodies = [b"%d" % number for number in range(20)] + [bytes(range(256)) * (MIB // 256)]
    app.producer().send("secret", [Outgoing(body=body) for body in bodies])
    received = consumer.wait_for(len(bodies))
    assert sorted(message.body for message in received) == sorted(bodies)
    assert "secret" in root.mqadmin("topicList")
    app.close()
    root.close()


def test_whoever_encrypts_must_sign_as_well(encrypting: Encrypting) -> None:
    driver, server, logs = encrypting
    for credentials, why in (
        (None, "username cannot be null"),
        (Credentials(ROOT.access_key, "guessed"), "check signature failed"),
    ):
        stranger = JavaClient(driver, server, credentials)
        with pytest.raises(JavaError, match=why) as caught:
            stranger.producer().send("secret", [Outgoing(body=b"x", queue=0)])
        assert caught.value.code == 16
        stranger.close()
    written = (logs / "firearrow.log").read_text()
    assert "request is refused" in written
    assert ROOT.secret_key not in written
    assert APP.secret_key not in written
