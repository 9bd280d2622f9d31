"""The journal of a state: recorded changes are read again, in any condition that a crash leaves."""

import logging
from pathlib import Path
from typing import Any

import pytest

from firearrow.journal import Change, Journal, bring_up_to_date, changes_beside

TABLES = ("t",)


def version(counter: int) -> dict[str, int]:
    return {"counter": counter}


def change(counter: int, gone: tuple[str, ...] = (), **entries: Any) -> Change:
    """Return the change after a version."""
    new = {"dataVersion": version(counter + 1), "t": entries}
    return Change(version(counter), new, {"t": gone} if gone else {})


def state(counter: int, **entries: Any) -> dict[str, Any]:
    return {"dataVersion": version(counter), "t": entries}


def noted(path: Path, *changes: Change) -> Journal:
    journal = Journal(path)
    for item in changes:
        journal.append(item)
    return journal


def replayed(path: Path, content: dict[str, Any], *, current: bool = True) -> dict[str, Any]:
    bring_up_to_date(path, content, changes_beside(path), TABLES, current=current)
    return content


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.json"


def test_the_worked_example(path: Path) -> None:
    noted(path, Change(version(1), {"dataVersion": version(2), "t": {"a": 7}}))
    [file] = path.parent.iterdir()
    assert file.name == "x.json.journal.1"
    assert file.read_bytes() == (
        b'1cb88a52 {"after":{"counter":1},"new":{"dataVersion":{"counter":2},"t":{"a":7}},"gone":{}}\n'
    )


def test_changes_are_made_again_in_order(path: Path) -> None:
    noted(path, change(1, a=1, b=1), change(2, ("b",), c=1), change(3, a=2))
    assert replayed(path, state(1, z=0)) == state(4, z=0, a=2, c=1)


def test_what_the_file_has_already_is_passed_over(path: Path) -> None:
    noted(path, change(1, a=1), change(2, a=2), change(3, b=1))
    assert replayed(path, state(3, a=3)) == state(4, a=3, b=1)


def test_a_file_that_somebody_else_has_written_counts(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    noted(path, change(1, a=1), change(2, a=2))
    stranger = {"dataVersion": {"counter": 2, "timestamp": 7}, "t": {}}
    assert replayed(path, dict(stranger)) == stranger
    assert "another program" in caplog.text


def test_an_earlier_content_takes_all_that_is_later(path: Path) -> None:
    noted(path, change(5, a=1), change(6, b=1))
    assert replayed(path, state(3, c=1), current=False) == state(7, a=1, b=1, c=1)


@pytest.mark.parametrize("lost", [1, 5, 60])
def test_half_a_line_at_the_end_is_none(path: Path, lost: int) -> None:
    noted(path, change(1, a=1), change(2, b=1))
    [file] = path.parent.iterdir()
    file.write_bytes(file.read_bytes()[: -lost - 1])
    assert replayed(path, state(1)) == state(2, a=1)


def test_a_change_that_was_refused_is_not_there_and_the_next_is(path: Path) -> None:
    journal = noted(path, change(1, a=1))
    path.with_name("x.json.journal.1").unlink()
    journal.cut()
    obstacle = path.with_name("x.json.journal.2")
    obstacle.mkdir()
    with pytest.raises(OSError, match="directory"):
        journal.append(change(2, b=1))
    obstacle.rmdir()
    journal.append(change(2, c=1))
    assert replayed(path, state(2, a=1)) == state(3, a=1, c=1)


def test_a_file_that_is_written_makes_room(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Drop the changes before the snapshot of the state, and keep later ones."""
    journal = noted(path, change(1, a=1))
    journal.cut()
    journal.append(change(2, b=1))
    journal.sync()
    assert replayed(path, state(1)) == state(3, a=1, b=1), "killed before it was written"
    journal.drop()
    assert [file.name for file in path.parent.iterdir()] == ["x.json.journal.2"]
    assert replayed(path, state(2, a=1)) == state(3, a=1, b=1)
    with caplog.at_level(logging.WARNING):
        assert replayed(path, state(3, a=1, b=1)) == state(3, a=1, b=1)
    assert not caplog.records
