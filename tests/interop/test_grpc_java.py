"""The official Java client of RocketMQ 5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import running_program
from tests.interop.grpcscenarios import AllScenarios, TrustingScenarios
from tests.interop.litescenarios import OffsetScenarios
from tests.interop.toolchain import grpc_java_command


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    directory = tmp_path_factory.mktemp("java")
    with running_program(grpc_java_command(directory), directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestJava(AllScenarios, OffsetScenarios, TrustingScenarios):
    """The scenarios with that client, which encrypts by default and trusts any certificate."""

    code_of_refused_settings = 0
