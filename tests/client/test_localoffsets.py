"""The file of a broadcasting client: RocketMQ's own bytes, and what is read where it is damaged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.localoffsets import LocalOffsets, default_directory
from firearrow.client.queues import Queue
from firearrow.errors import ConfigError

THREE = Queue("T", "b", 3)
FOUR = Queue("T", "b", 4)
CLIENT = "192.0.2.2@DEFAULT"

# As the Java client of 5.5.0 wrote it.
WRITTEN = (
    b'{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":3,\n\t\t\t"topic":"T"\n\t\t}:346\n\t}\n}'
)

names = st.text("abc%_-|1", min_size=1, max_size=8)
tables = st.dictionaries(st.builds(Queue, names, names, st.integers(0, 99)), st.integers(0, (1 << 63) - 1), max_size=6)


def test_the_file_has_the_bytes_of_the_java_client(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, CLIENT, "g")
    offsets.write({THREE: 346})
    assert offsets.path == tmp_path / CLIENT / "g" / "offsets.json"
    assert offsets.path.read_bytes() == WRITTEN
    assert offsets.read() == {THREE: 346}


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert LocalOffsets(tmp_path, CLIENT, "g").read() == {}


def test_nothing_to_write_leaves_no_file(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, CLIENT, "g")
    offsets.write({})
    assert not offsets.path.exists()


@given(st.lists(tables, max_size=4))
def test_what_was_written_of_other_queues_stays(written: list[dict[Queue, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        offsets = LocalOffsets(Path(directory), CLIENT, "g")
        expected: dict[Queue, int] = {}
        for table in written:
            offsets.write(table)
            expected |= table
        assert offsets.read() == expected


@pytest.mark.parametrize("damage", [b"", b"{", b'{"offsetTable":7}'])
def test_the_content_before_it_counts_where_the_file_is_damaged(tmp_path: Path, damage: bytes) -> None:
    offsets = LocalOffsets(tmp_path, CLIENT, "g")
    offsets.write({THREE: 1})
    offsets.write({FOUR: 2})
    backup = offsets.path.with_name("offsets.json.bak")
    assert backup.read_bytes() == WRITTEN.replace(b"346", b"1")
    offsets.path.write_bytes(damage)
    assert offsets.read() == {THREE: 1}


def test_where_nothing_can_be_read_nothing_is_written(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, CLIENT, "g")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"offsets\.json"):
        offsets.write({THREE: 1})
    assert offsets.path.read_bytes() == b"{"


def test_the_directory_is_that_of_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".rocketmq_offsets"
