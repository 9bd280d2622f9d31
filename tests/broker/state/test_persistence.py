"""State files: their content is kept, and a failing disk loses nothing."""

import logging
from pathlib import Path

import pytest

from firearrow.broker.state.persistence import JsonFile, StateFile, no_rest, typed, unknown_fields, with_unknown
from firearrow.errors import ConfigError
from firearrow.wire.bodies import DataVersion
from tests.loglines import told


def test_a_file_is_written_only_when_it_is_behind(tmp_path: Path) -> None:
    path = tmp_path / "config" / "x.json"
    file = StateFile(JsonFile(path), lambda: {"a": 1})
    file.save()
    assert not path.exists()
    file.behind = True
    file.save()
    assert path.read_bytes() == b'{\n\t"a":1\n}'
    assert file.read() == {"a": 1}
    assert not file.behind


def test_a_file_that_was_lost_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config" / "x.json"
    file = StateFile(JsonFile(path, 2), lambda: {"a": 1})
    file.behind = True
    file.save()
    path.write_bytes(bytes(4096))
    assert file.read() == {"a": 1}
    assert file.behind
    [line] = told(caplog)
    assert str(line["path"]).startswith(str(path.parent / ".history" / "x.json."))
    file.save()
    assert path.read_bytes() == b'{\n\t"a":1\n}'


def test_what_is_prepared_is_written_as_it_was_then(tmp_path: Path) -> None:
    state = {"a": 1}
    file = StateFile(JsonFile(tmp_path / "x.json"), state.copy)
    file.behind = True
    write = file.prepare()
    assert write is not None
    assert file.prepare() is None
    state["a"] = 2
    write(no_rest)
    assert file.read() == {"a": 1}


def test_without_a_path_everything_stays_in_memory() -> None:
    file = StateFile(None, lambda: {"a": 1})
    file.behind = True
    file.save()
    assert not file.behind
    assert file.read() == {}


def test_a_disk_that_refuses_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    obstacle = tmp_path / "config"
    obstacle.write_text("a file where a directory should be")
    file = StateFile(JsonFile(obstacle / "x.json"), lambda: {"a": 1})
    file.behind = True
    with caplog.at_level(logging.ERROR):
        file.save()
    assert file.behind
    assert "the write is retried" in caplog.text
    obstacle.unlink()
    file.save()
    assert not file.behind
    assert file.read() == {"a": 1}


@pytest.mark.parametrize("content", [b"[1]", b"{", b"7"])
def test_what_is_no_object_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.json"):
        StateFile(JsonFile(path), dict).read()


def test_a_part_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ConfigError, match=r"x\.json: .*counter"):
        typed({"counter": "many"}, DataVersion, "x.json")


def test_null_counts_as_absent() -> None:
    assert typed({"counter": None, "timestamp": "7"}, DataVersion, "x") == DataVersion(timestamp=7)


def test_unknown_fields_are_written_among_the_known_in_order() -> None:
    raw = {"counter": 1, "zeal": 2, "beta": {"x": None}}
    unknown = unknown_fields(raw, ("counter", "stateVersion", "timestamp"))
    assert unknown == {"zeal": 2, "beta": {"x": None}}
    merged = with_unknown(DataVersion(counter=1), unknown)
    assert list(merged) == ["beta", "counter", "stateVersion", "timestamp", "zeal"]
    assert with_unknown(DataVersion(), {}) == DataVersion()
