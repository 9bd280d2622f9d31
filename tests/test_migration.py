"""The commands of docs/migration.md, on a store and a configuration of RocketMQ's broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import golden
from tests.pages import DOCS, blocks

COMMANDS = [line for line in blocks(DOCS / "migration.md", "bash")[0].code.splitlines() if "firearrow" in line]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    golden.extract("file-cq-clean", tmp_path).rename(tmp_path / "store")
    shutil.copy(golden.settings_file("file-cq-clean"), tmp_path / "broker.conf")
    return tmp_path


def run(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=place, env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_store_of_rocketmq_may_be_taken_over(place: Path) -> None:
    shown, verified, counted = (run(command, place) for command in COMMANDS)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "brokerName=broker-g" in (place / "firearrow.properties").read_text(encoding="utf-8")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert counted.returncode == 0
    assert "GoldenPlain" in counted.stdout


def test_a_configuration_that_asks_for_too_much_is_refused(place: Path) -> None:
    with (place / "broker.conf").open("a", encoding="utf-8") as file:
        file.write("\nenableDLegerCommitLog=true\n")
    shown = run(COMMANDS[0], place)
    assert shown.returncode == 1
    assert "enableDLegerCommitLog" in shown.stderr
    assert shown.stderr.count("\n") == 1
