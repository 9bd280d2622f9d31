"""Queues and stores are known again: a topic that was made again, another store, a lost end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from firearrow.errors import ConfigError, DataLost
from firearrow.spark.jobs.archive.archiving import Summary, archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.options import parse
from firearrow.spark.source.stream import StreamReader
from firearrow.spark.tables import MESSAGES
from tests.loglines import told
from tests.spark.jobs.inline import Inline
from tests.store.stores import BORN_MS, abandon, append, make_store, opened, settle


class Stream:
    """A query on the files of a store; started anew for each step unless it ``stays``."""

    def __init__(self, root: Path, *, stays: bool = False, **options: str) -> None:
        self.options = {"path": str(root), "brokerName": "a", "startingOffsets": "earliest"}
        self.options |= options
        self.stays = stays
        self._reader: StreamReader | None = None
        self.checkpoint = json.dumps(self.reader.initialOffset())

    @property
    def reader(self) -> StreamReader:
        if self._reader is None or not self.stays:
            self._reader = StreamReader(parse(self.options), MESSAGES)
        return self._reader

    def step(self, rows_max: int | None = None) -> list[str]:
        """The bodies of a step."""
        limit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
        start, reader = json.loads(self.checkpoint), self.reader
        end = json.dumps(reader.latestOffset(json.loads(self.checkpoint), limit))
        if end == self.checkpoint:
            return []
        found = self.read(reader, start, json.loads(end))
        self.checkpoint = end
        return found

    def read(self, reader: StreamReader, start: Any, end: Any) -> list[str]:
        batches = [b for task in reader.partitions(start, end) for b in reader.read(task)]
        return sorted(body.decode() for b in batches for body in b["body"].to_pylist())


def fill(root: Path, name: str, count: int, start_ms: int = BORN_MS, *, anew: str = "", **options: Any) -> list[str]:
    """Add messages to a store, after the topic ``anew`` was deleted, and leave it as a kill does if
    its queues are in a database: these are then behind the log."""
    bodies = [f"{name}{number:03}" for number in range(count)]
    store = make_store(root, **options)
    store.open(background=True)
    if anew:
        store.delete_topic(anew)
    for number, body in enumerate(bodies):
        append(store, body.encode(), "TU"[number % 2], now_ms=start_ms + number)
    settle(store)
    if options:
        abandon(store)
    else:
        store.close()
    return bodies


@pytest.mark.parametrize("options", [{}, {"store_type": "defaultRocksDB"}])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("count", [20, 40, 60])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    tmp_path: Path, options: dict[str, Any], stays: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It has fewer messages than were read of the deleted one, as many, or more."""
    old = fill(tmp_path, "old", 40, **options)
    stream = Stream(tmp_path, stays=stays)
    assert stream.step() == old
    strict = stream.checkpoint
    new = fill(tmp_path, "new", count, BORN_MS + 9000, anew="T", **options)
    with pytest.raises(DataLost, match=r"'T' on a: offsets 20 to 20, the topic was deleted and created"):
        stream.step()
    stream.checkpoint, stream.options["failOnDataLoss"] = strict, "false"
    stream._reader = None
    caplog.clear()
    assert stream.step() == new
    reasons = [line["reason"] for line in told(caplog) if line["event"] == "messages are skipped"]
    assert reasons == ["the topic was deleted and created again"]
    assert stream.step() == []
    assert stream.step(7) == []
    following = fill(tmp_path, "next", 6, BORN_MS + 20_000, **options)
    assert stream.step() == following


def test_limited_steps_of_a_topic_that_was_made_again(tmp_path: Path) -> None:
    fill(tmp_path, "old", 14)
    stream = Stream(tmp_path, failOnDataLoss="false", maxOffsetsPerTrigger="7")
    assert len(stream.step(7)) == 7
    assert len(stream.step(7)) == 7
    new = fill(tmp_path, "new", 40, BORN_MS + 9000, anew="T")
    steps = [stream.step(7) for _ in range(7)]
    assert sorted(body for step in steps for body in step) == new
    assert [len(step) for step in steps] == [7, 7, 7, 7, 7, 5, 0]


def test_a_topic_that_was_made_again_between_plan_and_step(tmp_path: Path) -> None:
    """A query that was killed reads what it had planned for: of a topic that is gone by now."""
    fill(tmp_path, "old", 10)
    stream = Stream(tmp_path, failOnDataLoss="false")
    stream.step()
    start = json.loads(stream.checkpoint)
    fill(tmp_path, "more", 10, BORN_MS + 100)
    end = stream.reader.latestOffset(json.loads(stream.checkpoint), ReadAllAvailable())
    new = fill(tmp_path, "new", 60, BORN_MS + 9000, anew="T")
    first = stream.read(stream.reader, start, end)
    assert first == [f"more{number:03}" for number in range(1, 10, 2)]  # of the other topic
    stream.checkpoint = json.dumps(end)
    assert stream.step() == new


@pytest.mark.parametrize("stays", [False, True])
def test_a_checkpoint_knows_its_store(tmp_path: Path, stays: bool, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "store"
    old = fill(place, "old", 40)
    stream = Stream(place, stays=stays)
    assert stream.step() == old
    shutil.move(place, tmp_path / "gone")
    new = fill(place, "new", 50, BORN_MS + 7)
    with pytest.raises(
        ConfigError,
        match=r"^the checkpoint is of another store of broker 'a': at \d+ of its log there is no "
        r"message stored \S+ \S+Z; allowNewStore=true reads this one from its beginning$",
    ):
        stream.step()
    stream.options["allowNewStore"] = "true"
    stream._reader = None
    caplog.clear()
    assert stream.step() == new
    assert [line["event"] for line in told(caplog)] == ["store is another one"]
    assert stream.step() == []
    del stream.options["allowNewStore"]
    stream._reader = None
    more = fill(place, "more", 4, BORN_MS + 90)
    assert stream.step() == more


def test_a_new_store_is_read_in_limited_steps(tmp_path: Path) -> None:
    fill(tmp_path / "one", "old", 40)
    stream = Stream(tmp_path / "one", allowNewStore="true", maxOffsetsPerTrigger="30")
    assert len(stream.step(30)) == 30
    new = fill(tmp_path / "two", "new", 50, BORN_MS + 7)
    stream.options["path"] = str(tmp_path / "two")
    steps = [stream.step(30) for _ in range(3)]
    assert [len(step) for step in steps] == [30, 20, 0]
    assert sorted(body for step in steps for body in step) == new


def test_a_log_that_has_lost_its_end_is_no_other(tmp_path: Path) -> None:
    fill(tmp_path / "store", "old", 40)
    stream = Stream(tmp_path / "store")
    stream.step(20)
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    with opened(tmp_path / "store") as store:
        append(store, b"lost", "T", now_ms=BORN_MS + 100)
    stream.step()
    fill(tmp_path / "before", "other", 44, BORN_MS + 200)
    stream.options["path"] = str(tmp_path / "before")
    with pytest.raises(DataLost, match="'a' has lost messages that the checkpoint has read: at "):
        stream.step()
    stream.options["failOnDataLoss"] = "false"
    found = stream.step()
    assert found == [f"other{number:03}" for number in range(44) if number]  # one has its offset
    assert stream.step() == []


def test_a_checkpoint_without_marks_goes_on(tmp_path: Path) -> None:
    bodies = fill(tmp_path, "old", 40)
    stream = Stream(tmp_path)
    stream.checkpoint = json.dumps({"T": {"a": {"0": 18}}, "U": {"a": {"0": 20}}})
    assert stream.step() == [bodies[36], bodies[38]]
    assert len(json.loads(stream.checkpoint)["T"]["a"]["0"]) == 3
    assert json.loads(stream.checkpoint)["U"]["a"]["0"] == 20
    stream.checkpoint = stream.checkpoint.replace("[20,", "[-20,")
    with pytest.raises(ConfigError, match=r"^checkpoint, topic 'T', broker 'a', queue 0: \[-20, "):
        stream.step()


def archived(root: Path, place: Path, **options: str) -> Summary:
    opener, settings = source({"path": str(root), "brokerName": "a"} | options)
    return archive(Inline(), opener, Archive(place), settings)


@pytest.mark.parametrize("count", [20, 40, 60])
def test_an_archive_has_all_of_a_topic_that_was_made_again(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, place = tmp_path / "store", tmp_path / "archive"
    fill(root, "old", 40)
    assert archived(root, place).rows == 40
    fill(root, "new", count, BORN_MS + 9000, anew="T")
    with pytest.raises(DataLost, match="offsets 20 to 20, the topic was deleted and created again"):
        archived(root, place)
    caplog.clear()
    assert archived(root, place, failOnDataLoss="false").rows == count
    assert "the topic was deleted and created again" in {line.get("reason") for line in told(caplog)}
    [gap] = Archive(place).load().progress.gaps
    assert (gap.topic, gap.start, gap.missing) == ("T", 20, 0)
    assert archived(root, place) == Summary()
    fill(root, "next", 6, BORN_MS + 20_000)
    assert archived(root, place).rows == 6


def test_an_archive_knows_the_queues_that_it_has_read_nothing_of(tmp_path: Path) -> None:
    root, place = tmp_path / "store", tmp_path / "archive"
    fill(root, "old", 40)
    starting = json.dumps({"T": {"a": {"0": 15}}, "U": {"a": {"0": 20}}})
    assert archived(root, place, startingOffsets=starting).rows == 5
    fill(root, "new", 60, BORN_MS + 9000, anew="U")
    with pytest.raises(DataLost, match="'U' on a: offsets 20 to 20, the topic was deleted and created"):
        archived(root, place)


def test_an_archive_and_a_topic_that_was_made_again_are_no_one_table(tmp_path: Path) -> None:
    root, place = tmp_path / "store", tmp_path / "archive"
    fill(root, "old", 40)
    archived(root, place)
    stream = Stream(root, archive=str(place))
    assert len(stream.step()) == 40
    fill(root, "more", 2, BORN_MS + 100)
    assert len(stream.step()) == 2
    fill(root, "new", 60, BORN_MS + 9000, anew="T")
    with pytest.raises(DataLost, match="it was deleted and created again"):
        stream.step()


def test_another_store_needs_an_archive_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path / "one", "old", 40)
    fill(tmp_path / "two", "new", 50, BORN_MS + 7)
    archived(tmp_path / "one", tmp_path / "archive")
    with pytest.raises(ConfigError, match="option allowNewStore: another store needs a separate archive"):
        archived(tmp_path / "one", tmp_path / "archive", allowNewStore="true")
    with pytest.raises(ConfigError, match="is of another store of broker 'a'"):
        Stream(tmp_path / "two", archive=str(tmp_path / "archive"))
