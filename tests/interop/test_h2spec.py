"""h2spec: a client's tests of an HTTP/2 server, against the one of gRPC."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from tests.interop.toolchain import go_tool
from tests.net.background import in_thread
from tests.net.grpcservice import grpc_serving

TESTS: Final = 145
_SUMMARY: Final = re.compile(r"^(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed$", re.MULTILINE)


def outcome(program: Path, port: int) -> tuple[str, list[int]]:
    """Return h2spec's report, and its counts of tests: all, passed, skipped, failed."""
    options = ("--host", "127.0.0.1", "--port", str(port), "--timeout", "5")
    report = subprocess.run([program, *options], check=False, capture_output=True, text=True).stdout
    found = _SUMMARY.search(report)
    return report, [int(it) for it in found.groups()] if found else []


def test_every_test_of_h2spec_passes() -> None:
    program = go_tool("h2spec")
    with in_thread(grpc_serving) as (_, port):
        report, counts = outcome(program, port)
    assert counts == [TESTS, TESTS, 0, 0], report
