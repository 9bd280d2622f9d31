"""A cluster with topic ``orders`` and six messages, and a shell whose commands reach it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shop


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)  # where undo files are written
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    with shop(monkeypatch, config={"enablePropertyFilter": True}) as cluster:
        yield Shell(cluster, capsys)
