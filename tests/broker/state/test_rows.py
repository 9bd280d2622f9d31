"""State in RocksDB: the original's databases are read, written as it does, and kept whole."""

import errno
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.broker.config import BrokerConfig
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.state.persistence import JsonFile
from firearrow.broker.state.rows import Rows
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.database import Batch, Database, families_of
from firearrow.errors import ConfigError, DiskFull
from firearrow.state import StatePart
from firearrow.wire.bodies import TopicConfig
from tests import golden
from tests.broker.fakes import HandClock

SETTINGS = Settings(HandClock(), BrokerConfig())
THINGS = StatePart("thing.json", {"default": "thingTable", "forbidden": "forbiddenTable"}, "things")
OFFSETS = StatePart("thing.json", {"default": "offsetTable"}, "offsets", wrapped="offsetTable")


def rows_in(directory: Path, part: StatePart = THINGS) -> Rows:
    return Rows(JsonFile(directory / part.file_name), part)


def content(counter: int, **things: Any) -> dict[str, Any]:
    return {"dataVersion": {"counter": counter}, "thingTable": things, "forbiddenTable": {}, "elsewhere": 1}


def rewritten(directory: Path, what: dict[str, Any], part: StatePart = THINGS) -> dict[str, Any]:
    rows = rows_in(directory, part)
    rows.read()
    rows.write(what)
    rows.close()
    again = rows_in(directory, part)
    try:
        return again.read()[0]
    finally:
        again.close()


def test_rows_follow_what_is_written(tmp_path: Path) -> None:
    for what in (content(1, a={"x": 1}, b={"x": 2}), content(2, b={"x": 3}), content(3)):
        found = rewritten(tmp_path, what)
        assert found == {name: what[name] for name in found}
        assert found.keys() == what.keys() - {"elsewhere"}


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20),
        st.dictionaries(st.integers(0, 1 << 31), st.integers(0, 1 << 62), max_size=4),
        max_size=4,
    )
)
def test_offsets_are_read_back(tmp_path_factory: pytest.TempPathFactory, table: dict[str, dict[int, int]]) -> None:
    directory = tmp_path_factory.mktemp("state")
    found = rewritten(directory, {"dataVersion": {"counter": 1}, "offsetTable": table}, OFFSETS)
    offsets = {
        key: {int(queue_id): offset for queue_id, offset in queues.items()}
        for key, queues in found["offsetTable"].items()
    }
    assert offsets == table


@pytest.mark.parametrize(("counter", "taken"), [(4, False), (5, False), (6, True)])
def test_a_json_file_counts_if_it_is_newer(tmp_path: Path, counter: int, taken: bool) -> None:
    rewritten(tmp_path, content(5, a={"x": 1}, b={"x": 2}))
    rows_in(tmp_path)._json_file.write(content(counter, b={"x": 3}))
    rows = rows_in(tmp_path)
    found, current = rows.read()
    rows.close()
    assert current is not taken
    assert found["thingTable"] == ({"b": {"x": 3}} if taken else {"a": {"x": 1}, "b": {"x": 2}})
    assert found["dataVersion"] == {"counter": max(counter, 5)}


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "CURRENT").write_text("nonsense")
    with pytest.raises(ConfigError, match="things"):
        rows_in(tmp_path).read()


def test_the_originals_databases_are_taken_and_keep_their_families(tmp_path: Path) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    names = ("topics", "subscriptionGroups", "consumerOffsets")
    before = {name: set(families_of(root / "config" / name)) for name in names}
    for _ in range(2):
        clock = HandClock()
        topics = TopicTable(Settings(clock, BrokerConfig()), clock, root, in_database=True)
        groups = GroupTable(Settings(clock, BrokerConfig()), clock, root, in_database=True)
        offsets = ConsumerOffsets(clock, root, in_database=True)
        for state in (topics, groups, offsets):
            state.load()
        plain = topics.get("GoldenPlain")
        assert plain is not None
        assert plain.write_queue_nums == 4
        assert groups.get("golden_ok") is not None
        assert topics.data_version.counter > 0
        assert offsets.query("golden_ok", "GoldenPlain", 0) > 0
        topics.create("Added", 3)
        offsets.commit("g", "Added", 1, 7)
        for state in (topics, groups, offsets):
            state.save()
            state.close()
    assert offsets.query("g", "Added", 1) == 7
    for name in names:
        assert set(families_of(root / "config" / name)) >= before[name]


def test_the_setting_may_change_at_any_start(tmp_path: Path) -> None:
    clock = HandClock()
    for turn, in_database in enumerate((False, True, False, False, True, False)):
        topics = TopicTable(Settings(clock, BrokerConfig()), clock, tmp_path, in_database=in_database)
        offsets = ConsumerOffsets(clock, tmp_path, in_database=in_database)
        for state in (topics, offsets):
            state.load()
        assert [topics.get(f"T{number}") is not None for number in range(3)] == [
            turn == number + 1 for number in range(3)
        ]
        assert offsets.query("g", "T", 0) == turn - 1
        offsets.commit("g", "T", 0, turn)
        topics.delete(f"T{turn - 1}")
        topics.create(f"T{turn}", 1)
        for state in (topics, offsets):
            state.save()
            state.close()


def test_a_change_is_written_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = Database.write

    def counting(database: Database, batch: Batch, *, sync: bool = True) -> None:
        written.append(batch.changes.len())
        write(database, batch, sync=sync)

    topics = TopicTable(SETTINGS, HandClock(), tmp_path, in_database=True)
    topics.load()
    topics.save()
    monkeypatch.setattr(Database, "write", counting)
    topics.put(TopicConfig("T", 2, 2))
    topics.put(TopicConfig("gone", 2, 2))
    topics.delete("gone")
    assert written == [2, 2, 2], "each with the data version"
    topics.file.sync()
    topics.save()
    assert len(written) == 3
    topics.close()
    for in_database in (True, False):  # closed, it leaves a JSON file of the same
        later = TopicTable(SETTINGS, HandClock(), tmp_path, in_database=in_database)
        later.load()
        assert (later.get("T"), later.get("gone")) == (topics.get("T"), None)
        later.close()


def test_what_a_full_disk_refuses_is_not_made_and_a_deletion_is_written_later(tmp_path: Path) -> None:
    topics = TopicTable(SETTINGS, HandClock(), tmp_path, in_database=True)
    topics.load()
    topics.put(TopicConfig("T", 2, 2))
    with mock.patch.object(Database, "write", side_effect=OSError(errno.ENOSPC, "full")):
        with pytest.raises(DiskFull):
            topics.put(TopicConfig("refused"))
        assert topics.delete("T")
        topics.save()
        assert topics.file.behind
    topics.save()
    assert not topics.file.behind
    topics.file.sync()
    topics.close()
    later = TopicTable(SETTINGS, HandClock(), tmp_path, in_database=True)
    later.load()
    assert (later.get("T"), later.get("refused"), topics.get("refused")) == (None, None, None)
    later.close()
