"""Bodies of messages as files: producers choose the names, and the directory is below `/tmp`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from firearrow.cli.mqadmin import messages
from firearrow.cli.mqadmin.messages import write_body
from firearrow.errors import ConfigError
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView

HOST = Host("10.0.0.1", 1)


@pytest.fixture
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the tools write to."""
    path = tmp_path / "rocketmq/msgbodys"
    monkeypatch.setattr(messages, "BODIES", path)
    return path


def message(unique_key: str) -> MessageView:
    properties = {"UNIQ_KEY": unique_key}
    return MessageView("T", 0, 0, 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, b"body", properties)


@pytest.mark.parametrize("key", ["../../owned", "/etc/owned", "..", ".", "a/../../../owned", "\0owned", "x" * 5000])
def test_no_unique_key_leads_out_of_the_directory(bodies: Path, key: str) -> None:
    path = write_body(message(key.replace("/etc", str(bodies.parent.parent))), "_1")
    assert path.parent == bodies
    assert list(bodies.iterdir()) == [path]
    assert path.read_bytes() == b"body"
    assert [entry.name for entry in bodies.parent.parent.iterdir()] == ["rocketmq"]


def test_a_usual_unique_key_is_the_name_of_the_file(bodies: Path) -> None:
    key = "7F00000100002A139A556A0F5E1B0000"
    assert write_body(message(key)) == bodies / key


def test_bodies_are_for_the_user_alone(bodies: Path) -> None:
    path = write_body(message("K"))
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, bodies, bodies.parent)] == [0o600, 0o700, 0o700]


def test_a_link_in_the_place_of_a_body_is_not_followed(bodies: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    bodies.mkdir(parents=True)
    (bodies / "K").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="K"):
        write_body(message("K"))
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_directory_that_everybody_may_write_is_refused(bodies: Path) -> None:
    bodies.parent.mkdir()
    bodies.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=r"rocketmq may be written by everybody: chmod o-w"):
        write_body(message("K"))
    assert not bodies.exists()


def test_a_directory_that_everybody_may_write_to_is_refused(bodies: Path) -> None:
    """The sticky bit keeps others from removing a file, not from making it, or a link, first."""
    bodies.mkdir(parents=True)
    bodies.chmod(0o1777)
    with pytest.raises(ConfigError, match=r"msgbodys may be written by everybody: chmod o-w"):
        write_body(message("K"))
