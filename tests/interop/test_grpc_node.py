"""The official Node.js client of RocketMQ 5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.interop.driver import Driver
from tests.interop.grpcclient import running_program
from tests.interop.grpcscenarios import AllScenarios
from tests.interop.litescenarios import OffsetScenarios, WildcardScenarios
from tests.interop.toolchain import grpc_node_command


@pytest.fixture(scope="module")
def program(grpc_certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The program with the client."""
    directory = tmp_path_factory.mktemp("node")
    with running_program(grpc_node_command(), directory, grpc_certificate.with_suffix(".crt")) as driver:
        yield driver


class TestNode(AllScenarios, OffsetScenarios, WildcardScenarios):
    """The scenarios with that client."""

    retry_policy: ClassVar = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 1000, "multiplier": 1},
    }
    hears_of_losses = False
    code_of_own_quota = 429
