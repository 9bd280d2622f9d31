"""Replacing a file: the new content is there or the old is, whatever happens on the way."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import ConfigError
from firearrow.files import read_with_backup, replace_atomically


def read(path: Path) -> Any:
    return read_with_backup(path, json.loads)


def test_the_previous_content_is_kept_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    for content in (b"1", b"2", b"3"):
        replace_atomically(path, content)
    assert path.read_bytes() == b"3"
    assert path.with_name("topics.json.bak").read_bytes() == b"2"
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["topics.json", "topics.json.bak"]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert read(tmp_path / "absent.json") is None


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff"])
def test_the_backup_serves_for_what_is_broken(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    replace_atomically(path, b"1")
    replace_atomically(path, b"2")
    path.write_bytes(broken)
    assert read(path) == 1
    [record] = caplog.records
    assert "a.json.bak" in record.getMessage()


def test_the_backup_serves_for_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.json.bak").write_bytes(b"1")
    assert read(tmp_path / "a.json") == 1


def test_two_broken_files_are_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{")
    (tmp_path / "a.json.bak").write_bytes(b"[")
    with pytest.raises(ConfigError, match=r"a\.json: .*a\.json\.bak: "):
        read(tmp_path / "a.json")


def test_a_broken_file_does_not_displace_a_good_backup_before_the_new_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    replace_atomically(path, b"1")
    replace_atomically(path, b"2")
    path.write_bytes(b"{")
    crash_at(monkeypatch, 2)
    with pytest.raises(Crash):
        replace_atomically(path, b"3")
    monkeypatch.undo()
    assert read(path) == 1


class Crash(BaseException):
    """The machine stops here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Stop before the step-th change of a directory or sync of a file; gives what was done."""
    done: list[str] = []

    def stopping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if len(done) == step:
                raise Crash
            done.append(name)
            return real(*args, **named)

        return call

    monkeypatch.setattr(os, "fsync", stopping("fsync", os.fsync))
    for name in ("replace", "hardlink_to"):
        monkeypatch.setattr(Path, name, stopping(name, getattr(Path, name)))
    return done


def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for step in range(6):
        path = tmp_path / str(step) / "a.json"
        replace_atomically(path, b"1")
        done = crash_at(monkeypatch, step)
        try:
            replace_atomically(path, b"2")
        except Crash:
            assert len(done) == step
        monkeypatch.undo()
        seen.append(read(path))
        replace_atomically(path, b"3")
        assert read(path) == 3
    assert seen == [1, 1, 1, 2, 2, 2]
    assert done == ["fsync", "hardlink_to", "replace", "replace", "fsync"]


def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    replace_atomically(tmp_path / "a.json", b"2")
    replace_atomically(tmp_path / "a.json", b"3")
    assert (tmp_path / "a.json.bak").read_bytes() == b"2"


def test_a_full_disk_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_atomically(tmp_path / "a.json", b"1")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_atomically(tmp_path / "a.json", b"2")
    assert read(tmp_path / "a.json") == 1
