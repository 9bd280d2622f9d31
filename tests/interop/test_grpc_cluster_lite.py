"""Lite topics of the official Java client of RocketMQ 5, with `firearrow proxy` in front of brokers of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import running_program
from tests.interop.grpcservers import SETTINGS, behind_proxy, of_broker, of_proxy
from tests.interop.litescenarios import LIMITED, OffsetScenarios
from tests.interop.servers import Kind, Server, serve
from tests.interop.toolchain import grpc_java_command


@pytest.fixture(scope="module", params=["real", "firearrow"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Kind of the broker."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def grpc_server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker behind a proxy of two processes."""
    root = tmp_path_factory.mktemp("lite-cluster")
    with (
        serve(kind, root / "store", root / "logs", settings=of_broker(SETTINGS)) as server,
        behind_proxy(server, root / "proxy.log", of_proxy(SETTINGS), "--workers", "2") as behind,
    ):
        yield behind


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    directory = tmp_path_factory.mktemp("java-lite")
    with running_program(grpc_java_command(directory), directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestCluster(OffsetScenarios):
    """The scenarios behind a proxy."""

    @pytest.fixture
    def limited_server(self, kind: Kind, tmp_path: Path) -> Iterator[Server]:
        """A broker with quotas behind a proxy."""
        with (
            serve(kind, tmp_path / "store", tmp_path / "logs", settings=of_broker(LIMITED)) as server,
            behind_proxy(server, tmp_path / "proxy.log", of_proxy(LIMITED)) as behind,
        ):
            yield behind
