"""A cluster and a shell for it, for tests of commands that ask one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shop


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)  # where undo files are written
    with shop(monkeypatch) as cluster:
        yield Shell(cluster, capsys)
