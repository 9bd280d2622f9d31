"""Commits of a consumer's offsets, to brokers and to a file."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.offsets import (
    COMMIT_AGAIN_SECONDS,
    BrokerOffsets,
    FileOffsets,
    LocalOffsets,
    default_directory,
)
from firearrow.client.queues import Queue
from firearrow.errors import ConfigError
from firearrow.testing.loop import VirtualClock, run

ONE, TWO = Queue("T", "b", 1), Queue("T", "b", 2)


class Told:
    """Takes commits as a broker, or fails."""

    def __init__(self) -> None:
        self.commits: list[tuple[Queue, int]] = []
        self.fails = False

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        if self.fails:
            raise ConnectionError("gone")
        self.commits.append((queue, queue_offset))

    def taken(self) -> list[tuple[Queue, int]]:
        taken, self.commits = self.commits, []
        return taken


def test_a_broker_is_told_of_changes_and_of_the_rest_once_a_minute() -> None:
    async def main(_: VirtualClock) -> None:
        told = Told()
        offsets = BrokerOffsets(cast(GroupCalls, told))
        await offsets.write_changed({ONE: 1, TWO: 2})
        assert told.taken() == [(ONE, 1), (TWO, 2)]
        await offsets.write_changed({ONE: 1, TWO: 2})
        assert told.taken() == []
        await offsets.write_changed({ONE: 1, TWO: 1})
        assert told.taken() == [(TWO, 1)]
        await offsets.write({ONE: 1})
        assert told.taken() == [(ONE, 1)]
        await asyncio.sleep(COMMIT_AGAIN_SECONDS)
        await offsets.write_changed({ONE: 1, TWO: 1})
        assert told.taken() == [(ONE, 1), (TWO, 1)]

    run(main)


def test_what_a_broker_was_not_told_it_is_told_the_next_time() -> None:
    async def main(_: VirtualClock) -> None:
        told = Told()
        offsets = BrokerOffsets(cast(GroupCalls, told))
        told.fails = True
        await offsets.write_changed({ONE: 1})
        told.fails = False
        await offsets.write_changed({ONE: 1})
        assert told.taken() == [(ONE, 1)]
        await offsets.write_changed({})  # another client has the queue, for a while
        await offsets.write_changed({ONE: 1})
        assert told.taken() == [(ONE, 1)]

    run(main)


def test_a_file_is_written_if_it_says_anything_else(tmp_path: Path) -> None:
    async def main(_: VirtualClock) -> None:
        file = LocalOffsets(tmp_path, "c", "g")
        offsets = FileOffsets(file)
        await offsets.write_changed({ONE: 1})
        file.path.unlink()
        await offsets.write_changed({ONE: 1})
        assert not file.path.exists()
        await offsets.write_changed({ONE: 2})
        assert await offsets.stored(ONE) == 2

    run(main)


# The file of a broadcasting client: RocketMQ's own bytes, and what is read where it is damaged.


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
