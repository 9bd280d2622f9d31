"""The official Rust client of RocketMQ 5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import running_program
from tests.interop.grpcscenarios import Scenarios
from tests.interop.toolchain import grpc_rust_program


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    directory = tmp_path_factory.mktemp("rust")
    with running_program([str(grpc_rust_program())], directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestRust(Scenarios):
    """The scenarios with that client. It has no push consumer, so that a task receives in its place.

    It knows no certificate that signs itself.
    """

    recalls = False
    changes_invisible_times = False
