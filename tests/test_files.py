"""Replacing a file: either the new content or the old is there, even after a crash."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.errors import ConfigError
from firearrow.files import free_path, make_directory, name_of_file, read_newest, replace_atomically, thrown_away
from firearrow.store.fs import OS_FILES
from tests.loglines import told


def read(path: Path) -> Any:
    found = read_newest(path, json.loads)
    return None if found is None else found.value


def keep(path: Path, *contents: bytes, generations: int = 3) -> list[Path]:
    """Write contents one after the other; return the files of the history, the latest first."""
    for content in contents:
        replace_atomically(path, content, generations=generations)
    history = path.parent / ".history"
    return sorted(history.iterdir(), key=lambda kept: kept.stat().st_mtime_ns, reverse=True)


def test_the_previous_content_is_kept_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    for content in (b"1", b"2", b"3"):
        replace_atomically(path, content)
    assert path.read_bytes() == b"3"
    assert path.with_name("topics.json.bak").read_bytes() == b"2"
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["topics.json", "topics.json.bak"]


def test_who_could_not_read_a_file_can_t_read_the_next(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("initAuthenticationUser=...")
    path.chmod(0o600)
    replace_atomically(path, b"new", generations=2)
    written = [it for it in tmp_path.rglob("*") if it.is_file()]
    assert len(written) == 3
    assert {it.stat().st_mode & 0o777 for it in written} == {0o600}
    open_one = tmp_path / "namesrv.conf"
    open_one.touch(0o644)
    replace_atomically(open_one, b"new")
    assert open_one.stat().st_mode & 0o777 == 0o644


def test_others_may_not_enter_a_directory_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_directory(tmp_path / "a/b")
        OS_FILES.create_file(tmp_path / "c/d/file", 10, 0)
    finally:
        os.umask(before)
    made = [tmp_path / name for name in ("a", "a/b", "c", "c/d", "c/d/file")]
    modes = [oct(path.stat().st_mode & 0o777) for path in made]
    assert modes == ["0o750", "0o750", "0o750", "0o750", "0o640"]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert read(tmp_path / "absent.json") is None


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff"])
def test_the_backup_serves_for_what_is_broken(tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    replace_atomically(path, b"1")
    replace_atomically(path, b"2")
    path.write_bytes(broken)
    assert read(path) == 1
    [line] = told(caplog)
    assert line["path"] == f"{path}.bak"


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
    """Stop of the machine at this point."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Stop before the step-th change of a directory or sync of a file; return the completed steps."""
    done: list[str] = []

    def stopping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if len(done) == step:
                raise Crash
            done.append(name)
            return real(*args, **named)

        return call

    monkeypatch.setattr(os, "fsync", stopping("fsync", os.fsync))
    for name in ("replace", "hardlink_to", "unlink"):
        monkeypatch.setattr(Path, name, stopping(name, getattr(Path, name)))
    return done


@pytest.mark.parametrize(
    ("generations", "steps"),
    [
        (0, ["fsync", "unlink", "hardlink_to", "replace", "replace", "fsync"]),
        (2, ["fsync", "fsync", "replace", "unlink", "hardlink_to", "replace", "replace", "fsync", "fsync", "unlink"]),
    ],
)
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generations: int, steps: list[str]
) -> None:
    seen = []
    for step in range(len(steps) + 1):
        path = tmp_path / str(step) / "a.json"
        for content in (b"0", b"1"):
            replace_atomically(path, content, generations=generations)
        done = crash_at(monkeypatch, step)
        try:
            replace_atomically(path, b"2", generations=generations)
        except Crash:
            assert len(done) == step
        monkeypatch.undo()
        seen.append(read(path))
        if generations:
            path.write_bytes(bytes(100))
            assert read(path) in (1, 2), "there is another copy at any step"
        for content in (b"3", b"4"):
            replace_atomically(path, content, generations=generations)
        assert read(path) == 4
    assert done == steps
    renamed = steps.index("replace", steps.index("hardlink_to")) + 1
    assert seen == [1] * renamed + [2] * (len(steps) + 1 - renamed)


# --- generations ---


def test_so_many_contents_are_kept_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "config" / "a.json"
    kept = keep(path, b"0", b"1", b"2", b"3")
    assert [file.read_bytes() for file in kept] == [b"3", b"2", b"1"]
    assert {file.name.rpartition(".")[2] for file in kept} == {
        f"{crc32(content):08x}" for content in (b"1", b"2", b"3")
    }


def test_fewer_contents_are_kept_when_fewer_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    keep(path, b"0", b"1", b"2")
    [left] = keep(path, b"3", generations=1)
    assert left.read_bytes() == b"3"


def test_the_files_of_one_history_are_told_apart(tmp_path: Path) -> None:
    keep(tmp_path / "a.json", b"1", b"2")
    keep(tmp_path / "a.json.b", b"3")
    (tmp_path / "a.json").write_bytes(b"")
    (tmp_path / "a.json.bak").unlink()
    assert read(tmp_path / "a.json") == 2


@pytest.mark.parametrize("broken", [b"", bytes(4096), b'{"a":1,"b', b"\xff" * 9, None])
@pytest.mark.parametrize("broken_backup", [bytes(64), b"{", None])
def test_a_history_serves_where_file_and_backup_are_garbage(
    tmp_path: Path, broken: bytes | None, broken_backup: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    kept = keep(path, b"1", b"2", b"3")
    for name, content in ((path, broken), (tmp_path / "a.json.bak", broken_backup)):
        name.unlink()
        if content is not None:
            name.write_bytes(content)
    assert read(path) == 3
    [line] = told(caplog)
    assert (line["event"], line["path"]) == ("earlier content of a file is read", str(kept[0]))


def test_a_file_that_is_overwritten_in_place_is_in_the_history(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    keep(path, b"1", b"2", b"3")
    for name in (path, tmp_path / "a.json.bak"):
        with name.open("r+b") as file:
            file.write(b"\0")
    assert read(path) == 3


def test_what_another_program_writes_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    keep(path, b"1", b"2")
    path.write_bytes(b"7")
    os.utime(path, ns=(path.stat().st_mtime_ns + 1,) * 2)
    assert read(path) == 7
    keep(path, b"8")
    assert read(path) == 8


def test_a_digit_that_has_changed_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    keep(path, b"41", b"42")
    modified_ns = path.stat().st_mtime_ns
    path.write_bytes(b"43")
    os.utime(path, ns=(modified_ns, modified_ns))
    assert read(path) == 42
    [line] = told(caplog)
    fault = f"{path}: its CRC is {crc32(b'43'):08x}, {crc32(b'42'):08x} was written"
    assert fault in str(line["reason"])


def test_contents_keep_their_order_when_the_clock_is_set_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    [latest] = keep(path, b"1")
    ahead_ns = latest.stat().st_mtime_ns + 3_600_000_000_000
    latest.rename(latest.with_name(f"a.json.{ahead_ns}.{crc32(b'1'):08x}"))
    kept = keep(path, b"2", b"3")
    assert [file.read_bytes() for file in kept][:2] == [b"3", b"2"]
    path.unlink()
    (tmp_path / "a.json.bak").unlink()
    assert read(path) == 3


@given(
    contents=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8),
    generations=st.integers(1, 4),
    damaged=st.integers(0, 4),
)
def test_the_latest_undamaged_content_is_read(contents: list[bytes], generations: int, damaged: int) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "a"
        kept = keep(path, *contents, generations=generations)
        path.unlink()
        (Path(directory) / "a.bak").unlink(missing_ok=True)
        for file in kept[:damaged]:
            file.write_bytes(file.read_bytes() + b"\0")
        sound = contents[::-1][:generations][damaged:]
        if sound:
            found = read_newest(path, bytes)
            assert found is not None
            assert found.value == sound[0]
        else:
            with pytest.raises(ConfigError, match="no backup helps"):
                read_newest(path, bytes)


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


def test_a_free_path(tmp_path: Path) -> None:
    path = tmp_path / "name"
    assert free_path(path) == path
    for expected in ("name", "name.2", "name.3"):
        assert free_path(path).name == expected
        free_path(path).touch()


def test_nobody_waits_for_the_disk_for_what_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: calls.append(name))

    def write(directory: Path) -> list[str]:
        calls.clear()
        replace_atomically(directory / "state.json", b"1", generations=2)
        OS_FILES.write_file(directory / "new", [b"1"])
        OS_FILES.replace_head(directory / "head", b"1", 512)
        OS_FILES.sync_file(directory / "new")
        OS_FILES.sync_directory(directory)
        return list(calls)

    for name in ("thrown", "kept", "thrown2"):
        (tmp_path / name).mkdir()
    with thrown_away(tmp_path / "thrown"):
        assert write(tmp_path / "thrown") == []
        assert len(write(tmp_path / "kept")) > 5
        assert len(write(tmp_path / "thrown2")) > 5
    (tmp_path / "thrown" / "new").unlink()
    assert len(write(tmp_path / "thrown")) > 5


@given(text=st.text(), other=st.text())
@example(text="\ud800", other="?")  # half of a surrogate pair, as JSON may have it
def test_a_name_of_a_file_leads_nowhere_and_stands_for_one_text(text: str, other: str) -> None:
    name = name_of_file(text)
    assert Path("/d", name).parent == Path("/d")
    assert os.path.normpath(f"/d/{name}") == f"/d/{name}"
    assert 0 < len(os.fsencode(name)) < 220
    assert (name == name_of_file(other)) == (text == other)
