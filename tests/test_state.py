"""A broker's state is the same to the broker, to the offline tools and to Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.errors import ConfigError, CorruptStore
from firearrow.journal import Change, Journal
from firearrow.spark.planning.storage import RemoteStorage
from firearrow.spark.planning.stores import Store
from firearrow.state import GROUPS, OFFSETS, PARTS, TOPICS, StatePart, consumer_offsets, has_database, stored_state
from firearrow.store import committed_offsets
from firearrow.store.offline import Layout, StoreView
from firearrow.store.offline.metadata import configured_topics
from firearrow.store.offline.view import stored_config
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from tests import golden
from tests.broker.fakes import HandClock
from tests.spark.source.test_storetables import rows_of
from tests.store.test_engine import tree

SETTINGS = Settings(HandClock(), BrokerConfig())
Offsets = set[tuple[str, str, int, int]]


def topic_table(root: Path, *, in_database: bool = False) -> TopicTable:
    topics = TopicTable(SETTINGS, HandClock(), root, in_database=in_database)
    topics.load()
    return topics


def group_table(root: Path, *, in_database: bool = False) -> GroupTable:
    groups = GroupTable(SETTINGS, HandClock(), root, in_database=in_database)
    groups.load()
    return groups


def seen_by_a_broker(root: Path) -> tuple[dict[str, Any], dict[str, Any], Offsets]:
    """Return the state as a broker reads it, with its evaluation of offsets; it may write to the store."""
    config = root / "config"
    topics = topic_table(root, in_database=has_database(config, TOPICS))
    groups = group_table(root, in_database=has_database(config, GROUPS))
    offsets = ConsumerOffsets(HandClock(), root, in_database=has_database(config, OFFSETS))
    offsets.load()
    committed = {
        (row.group, row.topic, row.queue_id, row.queue_offset) for row in offsets.progress(lambda _: True, lambda _: 0)
    }
    read = topics.file.read(), groups.file.read()
    for table in (topics, groups, offsets):
        table.close()
    return *read, committed


def check(root: Path) -> tuple[dict[str, Any], dict[str, Any], Offsets]:
    """Compare the state of all readers, and return it; the tools and Spark do not alter the store."""
    before = tree(root)
    config = root / "config"
    local = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
    far = RemoteStorage("far", local, ".").place("config")
    tools = stored_config(config, TOPICS), stored_config(config, GROUPS)
    assert (stored_state(far, TOPICS), stored_state(far, GROUPS)) == tools
    assert consumer_offsets(far) == consumer_offsets(config)
    committed = {tuple(row) for row in committed_offsets(consumer_offsets(config))}
    by_spark = rows_of(root, "consumer_offsets")
    names = ("consumerGroup", "topic", "queueId", "offset")
    assert {tuple(row[name] for name in names) for row in by_spark} == committed
    with StoreView(Layout(root)) as view:
        named = configured_topics(view) or frozenset()
    assert named == Store(str(root)).topics.keys()
    groups = {row["consumerGroup"] for row in rows_of(root, "subscription_groups")}
    assert tree(root) == before
    seen = seen_by_a_broker(root)
    assert (*tools, committed) == seen
    assert named == seen[0].get("topicConfigTable", {}).keys()
    assert groups == seen[1].get("subscriptionGroupTable", {}).keys()
    return seen


@pytest.mark.parametrize("name", sorted(path.name[:-7] for path in golden.DATA.glob("*.tar.gz")))
def test_stores_of_the_original(name: str, tmp_path: Path) -> None:
    topics, groups, _ = check(golden.extract(name, tmp_path))
    assert len(topics["topicConfigTable"]) > 5
    assert len(groups["subscriptionGroupTable"]) > 5


def with_json(root: Path, counter: int) -> None:
    """Write a topic to a database of version 1, and another to a JSON file."""
    topics = topic_table(root, in_database=True)
    topics.put(TopicConfig("Rows"))
    topics.file.save()
    topics.close()
    content = {"dataVersion": {"counter": counter}, "topicConfigTable": {"Json": {"perm": 6}}}
    write(root, TOPICS, content | {"unknown": 1})


def write(root: Path, part: StatePart, content: dict[str, Any]) -> Path:
    path = root / "config" / part.file_name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(fastjson.dumps(content))
    return path


@pytest.mark.parametrize(("counter", "seen"), [(0, "Rows"), (1, "Rows"), (2, "Json"), (1 << 40, "Json")])
def test_the_newer_of_json_and_database_counts(counter: int, seen: str, tmp_path: Path) -> None:
    with_json(tmp_path, counter)
    topics, _, _ = check(tmp_path)
    assert {"Rows", "Json"} & topics["topicConfigTable"].keys() == {seen}
    assert "unknown" not in topics


def test_a_database_of_which_all_rows_were_deleted_is_no_older(tmp_path: Path) -> None:
    groups = group_table(tmp_path, in_database=True)
    for group in list(groups.table):
        groups.delete(group)
    groups.forbid_read("g", "T", True)
    groups.file.save()
    groups.close()
    write(tmp_path, GROUPS, {"dataVersion": {"counter": 1}, "subscriptionGroupTable": {"g": {}}})
    _, seen, _ = check(tmp_path)
    assert (seen["subscriptionGroupTable"], seen["forbiddenTable"]) == ({}, {"g": {"T": 4}})


def saved(root: Path) -> Path:
    """Save topics in two generations; the first has only one of the two."""
    topics = topic_table(root)
    for name in ("First", "Second"):
        topics.put(TopicConfig(name))
        topics.save()
    return root / "config" / TOPICS.file_name


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def cut_off_without_history(path: Path) -> None:
    cut_off(path)
    shutil.rmtree(path.parent / ".history")


def alter_unnoticed(path: Path) -> None:
    """Change a byte and nothing else, not even the time."""
    at = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b'"Second"', b'"Secund"'))
    os.utime(path, ns=(at, at))


@pytest.mark.parametrize(
    ("damage", "second"),
    [(Path.unlink, True), (cut_off, True), (alter_unnoticed, True), (cut_off_without_history, False)],
)
def test_an_earlier_content_in_place_of_what_can_not_be_read(
    damage: Callable[[Path], None], second: bool, tmp_path: Path
) -> None:
    damage(saved(tmp_path))
    topics, _, _ = check(tmp_path)
    assert "First" in topics["topicConfigTable"]
    assert ("Second" in topics["topicConfigTable"]) == second


@pytest.mark.parametrize("damage", [None, cut_off, cut_off_without_history])
def test_what_a_killed_broker_has_only_noted(damage: Callable[[Path], None] | None, tmp_path: Path) -> None:
    path = saved(tmp_path)
    topics, groups = topic_table(tmp_path), group_table(tmp_path)
    groups.forbid_read("first", "T", True)
    groups.save()
    topics.put(TopicConfig("Third"))
    topics.delete("First")
    groups.forbid_read("second", "T", True)
    if damage is not None:
        damage(path)
    seen, seen_groups, _ = check(tmp_path)
    assert "Third" in seen["topicConfigTable"]
    assert "First" not in seen["topicConfigTable"]
    assert seen_groups["forbiddenTable"].keys() == {"first", "second"}


def test_a_journal_beside_a_json_file_that_is_newer_than_the_database(tmp_path: Path) -> None:
    with_json(tmp_path, 9)
    journal = Journal(tmp_path / "config" / TOPICS.file_name)
    new = {"dataVersion": {"counter": 10}, "topicConfigTable": {"Noted": {}}}
    journal.append(Change({"counter": 9}, new, {"topicConfigTable": ["Json"]}))
    journal.cut()
    topics, _, _ = check(tmp_path)
    assert topics["topicConfigTable"].keys() == {"Noted"}


def test_unknown_fields_are_seen(tmp_path: Path) -> None:
    content = {
        "dataVersion": {"counter": 1, "more": 2},
        "topicConfigTable": {"T": {"perm": 6, "later": {"a": [1]}}},
        "unknown": 1,
    }
    write(tmp_path, TOPICS, content)
    assert check(tmp_path)[0] == content


@pytest.mark.parametrize("newer", ["offsetTable", "lmqOffsetTable"])
def test_the_newer_of_two_files_of_offsets_counts(newer: str, tmp_path: Path) -> None:
    last = newer == "lmqOffsetTable"
    for lmq in (not last, last):
        offsets = ConsumerOffsets(HandClock(), tmp_path, lmq=lmq)
        offsets.load()
        offsets.commit("g", "T", 1, 8 if lmq else 4)
        offsets.commit("%LMQ%g", "%LMQ%a", 0, 9 if lmq else 5)
        offsets.save()
    _, _, seen = check(tmp_path)
    assert seen == {("g", "T", 1, 8 if last else 4), ("%LMQ%g", "%LMQ%a", 0, 9 if last else 5)}


def test_what_nothing_can_be_read_of_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, OFFSETS, {"offsetTable": {}})
    path.write_bytes(b"{]")
    with pytest.raises(CorruptStore, match=r"config/consumerOffset\.json can't be read"):
        consumer_offsets(path.parent)
    with pytest.raises(CorruptStore, match=r"config/consumerOffset\.json can't be read"):
        rows_of(tmp_path, "consumer_offsets")
    assert "can't be read" in stored_config(path.parent, OFFSETS)
    with pytest.raises(ConfigError):
        ConsumerOffsets(HandClock(), tmp_path).load()


class Unreachable(RemoteStorage):
    """Storage that lists files and, for the moment, can't read them."""

    def read(self, path: str) -> memoryview:
        raise OSError(f"{path}: no answer")


def test_a_network_that_fails_is_no_damage(tmp_path: Path) -> None:
    saved(tmp_path)
    far = Unreachable("far", pafs.LocalFileSystem(), str(tmp_path)).place("config")
    with pytest.raises(OSError, match=r"topics\.json: no answer"):
        stored_state(far, TOPICS)


def test_without_anything_there_is_nothing(tmp_path: Path) -> None:
    for part in PARTS.values():
        assert stored_state(tmp_path / "config", part) == {}
    assert not (tmp_path / "config").exists()
