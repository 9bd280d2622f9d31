"""The tests that kombu has for its transports, run on RocketMQ's broker and on Firearrow's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interop.servers import Server
from tests.interop.toolchain import kombu_suite

SUITE = Path(__file__).with_name("kombusuite.py")
TESTS_MIN = 33  # of kombu 5.7


def test_kombus_own_tests(server: Server, tmp_path: Path) -> None:
    places = {"KOMBU_SUITE": str(kombu_suite()), "KOMBU_SUITE_NAMESRV": server.namesrv}
    suite = shutil.copy(SUITE, tmp_path / "test_suite.py")  # away from our own conftest.py
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite],
        capture_output=True, text=True, timeout=300, env=os.environ | places, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-1000:]
    [passed] = re.findall(r"^(\d+) passed in", ran.stdout, re.MULTILINE)
    assert int(passed) >= TESTS_MIN
