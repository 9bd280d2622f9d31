"""Who mqadmin is: the user that a file below ROCKETMQ_HOME names."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.cli.mqadmin.access import credentials
from firearrow.wire.signature import Credentials


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("accessKey: user\nsecretKey: 'secret'\n", Credentials("user", "secret")),
        ("accessKey: user\n", None),
        ("", None),
    ],
)
def test_the_user_of_the_file(
    text: str, user: Credentials | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(text)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert credentials() == user


def test_without_a_file_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert credentials() is None
    monkeypatch.delenv("ROCKETMQ_HOME")
    assert credentials() is None
