"""The official Python client of RocketMQ 5."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import running_program
from tests.interop.grpcscenarios import AllScenarios


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    command = [sys.executable, "-m", "tests.interop.grpcclients.pythonprogram"]
    directory = tmp_path_factory.mktemp("python")
    with running_program(command, directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestPython(AllScenarios):
    """The scenarios with that client."""

    reports_route_codes = False
