"""Fixtures of the interop tests: one Java process and one server for all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver, running_driver
from tests.interop.grpcservers import GUARDED, SETTINGS, admit
from tests.interop.javaclient import JavaClient
from tests.interop.servers import Server, serve, target_kind
from tests.net.certificates import make_certificate

pytest.register_assert_rewrite("tests.interop.grpcscenarios", "tests.interop.litescenarios", "tests.interop.visitors")

HERE = Path(__file__).parent
TIMEOUT_S = 600  # the first test may wait for Maven or Go to download and build
LOG_TAIL_CHARACTERS = 3000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this directory, so that ``-m "not interop"`` leaves them all out."""
    here = f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the server and the Java process last said."""
    report = yield
    if report.failed:
        used = getattr(item, "funcargs", {})
        client, driver = used.get("java"), used.get("driver") or used.get("program")
        logs = sorted(client.server.logs.glob("*.log")) if isinstance(client, JavaClient) else []
        logs += [driver.log] if isinstance(driver, Driver) else []
        report.sections += [(f"the end of {log}", _tail(log)) for log in logs]
    return report


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The Java process with the official clients."""
    with running_driver(tmp_path_factory.mktemp("driver")) as driver:
        yield driver


@pytest.fixture(scope="session")
def server(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server under test, with small files. It outlives no client: ``driver`` ends later."""
    directory = tmp_path_factory.mktemp("server")
    with serve(target_kind(), directory / "store", directory / "logs") as server:
        yield server


@pytest.fixture(scope="session")
def grpc_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate of the server for clients of RocketMQ 5, see `make_certificate`."""
    return make_certificate(tmp_path_factory.mktemp("grpc-certificate"), "interop")


@pytest.fixture(scope="session")
def grpc_server(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server for clients of RocketMQ 5, plain and encrypted."""
    directory = tmp_path_factory.mktemp("grpc")
    settings = {**SETTINGS, "tls.server.certPath": str(grpc_certificate)}
    with serve("firearrow", directory / "store", directory / "logs", settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server for clients of RocketMQ 5 with access control."""
    directory = tmp_path_factory.mktemp("guarded-grpc")
    with serve("firearrow", directory / "store", directory / "logs", settings=GUARDED) as server:
        admit(server)
        yield server


@pytest.fixture(autouse=True)
def patient(patience: None) -> None:
    """Clients in Python wait for an answer of RocketMQ: its JVM may pause for seconds on a busy machine."""


@pytest.fixture
def java(driver: Driver, server: Server) -> Iterator[JavaClient]:
    """The official Java client on the server under test."""
    client = JavaClient(driver, server)
    yield client
    client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name made of the test's own, fit for topics and groups."""
    return re.sub(r"\W+", "_", request.node.name, flags=re.ASCII).strip("_")


@pytest.fixture
def topic(java: JavaClient, name: str) -> str:
    """A fresh topic with four queues."""
    java.create_topic(name, queues=4)
    return name


@pytest.fixture
def group(name: str) -> str:
    """A consumer group that no other test uses."""
    return f"{name}_group"
