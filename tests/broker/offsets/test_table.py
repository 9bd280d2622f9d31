"""Consumer offsets: a committed offset is found again, also after a restart."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.offsets.table import FILE_NAME, ConsumerOffsets
from firearrow.broker.state.persistence import no_rest
from firearrow.errors import ConfigError
from firearrow.state import LMQ_OFFSETS
from firearrow.wire import fastjson
from tests import golden
from tests.broker.fakes import HandClock

FILE = "consumerOffset.json"

NAMES = st.sampled_from(["a", "b", "%RETRY%a", "a_b"])
COMMITS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3), st.integers(0, 2**63 - 1)), max_size=30)


def offsets_of(root: Path | None = None, step: int = 500) -> ConsumerOffsets:
    return ConsumerOffsets(HandClock(), root, commits_per_version=step)


def test_what_was_not_committed_is_unknown() -> None:
    offsets = offsets_of()
    assert offsets.query("g", "T", 0) == -1
    offsets.commit("g", "T", 0, 5)
    assert offsets.query("g", "T", 0) == 5
    assert offsets.query("g", "T", 1) == -1
    assert offsets.query("h", "T", 0) == -1
    assert offsets.query_pull("g", "T", 0) == -1


def test_an_offset_may_go_back() -> None:
    offsets = offsets_of()
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 0, 3)
    assert offsets.query("g", "T", 0) == 3


def test_no_group_stays_behind_the_end_of_a_queue() -> None:
    offsets = offsets_of()
    for queue_id, queue_offset in enumerate((3, 5, 6)):
        offsets.commit("g", "T", queue_id, queue_offset)
    offsets.file.behind = False
    assert offsets.go_back(lambda topic, queue_id: 9) == []
    assert not offsets.file.behind
    assert offsets.go_back(lambda topic, queue_id: 5) == [("T", 2)]
    assert offsets.file.behind
    assert offsets.queues("g", "T") == {0: 3, 1: 5, 2: 5}


def test_pull_offsets_are_apart() -> None:
    offsets = offsets_of()
    offsets.commit_pull("g", "T", 0, 9)
    assert offsets.query_pull("g", "T", 0) == 9
    assert offsets.query_pull("g", "T", 1) == -1
    assert offsets.query("g", "T", 0) == -1
    assert offsets.topics_of("g") == set()


def test_topics_and_groups_find_each_other() -> None:
    offsets = offsets_of()
    offsets.commit("g", "T", 0, 1)
    offsets.commit("g", "U", 0, 1)
    offsets.commit("h", "T", 0, 1)
    assert offsets.topics_of("g") == {"T", "U"}
    assert offsets.groups_of("T") == {"g", "h"}
    assert offsets.groups_of("V") == set()


def test_deleting_a_topic_or_a_group() -> None:
    offsets = offsets_of()
    for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
        offsets.commit(group, topic, 0, 1)
        offsets.commit_pull(group, topic, 0, 2)
    offsets.delete_topic("T")
    assert offsets.query("g", "T", 0) == -1
    assert offsets.query_pull("h", "T", 0) == -1
    assert offsets.query("g", "U", 0) == 1
    offsets.delete_group("g")
    assert offsets.query("g", "U", 0) == -1
    version = offsets.data_version
    assert version.counter == 2
    offsets.delete_group("g")
    assert offsets.data_version == version


def test_every_so_many_commits_are_a_new_version() -> None:
    offsets = offsets_of(step=3)
    for offset in range(7):
        offsets.commit("g", "T", 0, offset)
    assert offsets.data_version.counter == 2


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path)
    path = tmp_path / "config" / FILE
    offsets.save()
    assert not path.exists()
    offsets.commit("g", "T", 0, 1)
    offsets.save()
    path.unlink()
    offsets.save()
    assert not path.exists()
    offsets.commit_pull("g", "T", 0, 1)
    offsets.save()
    path.unlink()  # a commit that clients repeat every five seconds is no change
    offsets.commit("g", "T", 0, 1)
    offsets.commit_pull("g", "T", 0, 1)
    offsets.save()
    assert not path.exists()
    offsets.commit("g", "T", 0, 2)
    offsets.save()
    assert path.exists()


def test_the_file_is_what_java_writes(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path)
    offsets.commit("g", "T", 0, 44)
    offsets.commit_pull("g", "T", 1, 45)
    offsets.save()
    text = (tmp_path / "config" / FILE).read_text()
    assert text == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n'
        '\t\t"timestamp":1795210273741\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":[\n\t\t\t"T"\n\t\t]\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:44\n\t\t}\n\t},\n'
        '\t"pullOffsetTable":{\n\t\t"T@g":{\n\t\t\t1:45\n\t\t}\n\t}\n}'
    )


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed"])
def test_a_golden_file_is_read_and_written_as_it_was(name: str, tmp_path: Path) -> None:
    store = golden.extract(name, tmp_path)
    path = store / "config" / FILE
    before = fastjson.loads(path.read_bytes())
    offsets = offsets_of(store)
    offsets.load()
    for key, queues in before["offsetTable"].items():
        topic, _, group = key.partition("@")
        assert {queue: offsets.query(group, topic, queue) for queue in queues} == queues
    some = next(iter(before["offsetTable"]))
    topic, _, group = some.partition("@")
    queue_id, offset = next(iter(before["offsetTable"][some].items()))
    offsets.commit(group, topic, queue_id, offset + 1)
    offsets.commit(group, topic, queue_id, offset)
    path.unlink()
    offsets.save()
    assert _sorted(fastjson.loads(path.read_bytes())) == _sorted(before)


def _sorted(content: dict[str, dict[str, list[str]]]) -> dict[str, object]:
    """Topics of a group have no order."""
    topics = {group: sorted(names) for group, names in content["groupTopicMap"].items()}
    return {**content, "groupTopicMap": topics}


def test_what_is_written_aside_is_what_was_committed_before(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path)
    offsets.commit("g", "T", 0, 7)
    offsets.commit_pull("g", "T", 0, 8)
    write = offsets.file.prepare()
    assert write is not None
    offsets.commit("g", "T", 0, 9)
    offsets.commit_pull("g", "T", 1, 9)
    offsets.commit("g2", "T", 0, 1)
    write(no_rest)
    loaded = offsets_of(tmp_path)
    loaded.load()
    assert loaded.committed == {"T@g": {0: 7}}
    assert loaded.pulled == {"T@g": {0: 8}}
    assert offsets.file.prepare() is not None, "what came meanwhile is still to be written"


def test_quoted_numbers_and_unknown_fields_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "config" / FILE
    path.parent.mkdir()
    path.write_text(json.dumps({"offsetTable": {"T@g": {"0": "7"}}, "epoch": 1}))
    offsets = offsets_of(tmp_path)
    offsets.load()
    assert offsets.query("g", "T", 0) == 7
    offsets.commit("g", "T", 0, 8)
    offsets.save()
    saved = fastjson.loads(path.read_bytes())
    assert saved["epoch"] == 1
    assert saved["offsetTable"] == {"T@g": {0: 8}}


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config" / FILE
    path.parent.mkdir()
    path.write_text('{"offsetTable":{"T@g":{"x":1}}}')
    with pytest.raises(ConfigError, match="offsetTable"):
        offsets_of(tmp_path).load()


@given(COMMITS)
def test_a_restart_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("store")
    before = offsets_of(root)
    model: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        before.commit(group, topic, queue_id, offset)
        model[group, topic, queue_id] = offset
    before.save()
    after = offsets_of(root)
    after.load()
    assert {key: after.query(*key) for key in model} == model


LMQ_FILE = {
    "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 5},
    "groupTopicMap": {"g": ["%LMQ%a"]},
    "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 3, "%LMQ%c@3@%LMQ%g": 4},
    "offsetTable": {"%LMQ%a@g": {0: 5}, "%LMQ%x@y@g": {0: 6}},
    "pullOffsetTable": {},
}


def lmq_offsets(root: Path, lmq: bool = True) -> ConsumerOffsets:
    offsets = ConsumerOffsets(HandClock(), root, lmq=lmq)
    offsets.load()
    return offsets


def test_lmq_groups_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "config" / LMQ_OFFSETS.file_name
    path.parent.mkdir()
    path.write_bytes(fastjson.dumps(LMQ_FILE, pretty=True))
    offsets = lmq_offsets(tmp_path)
    assert offsets.query("%LMQ%g", "%LMQ%a", 0) == 3
    assert offsets.query("%LMQ%g", "%LMQ%c@3", 0) == 4
    assert (offsets.query("g", "%LMQ%a", 0), offsets.query("g", "%LMQ%x@y", 0)) == (5, 6)
    assert offsets.topics_of("%LMQ%g") == {"%LMQ%a", "%LMQ%c@3"}
    assert offsets.groups_of("%LMQ%x@y") == {"g"}
    offsets.commit("%LMQ%g", "%LMQ%a", 0, 9)
    offsets.save()
    content = fastjson.loads(path.read_bytes())
    assert content["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 9, "%LMQ%c@3@%LMQ%g": 4}
    assert content["offsetTable"] == LMQ_FILE["offsetTable"]
    assert not (path.parent / FILE_NAME).exists()


def test_the_setting_can_be_changed_and_taken_back(tmp_path: Path) -> None:
    offsets = lmq_offsets(tmp_path, lmq=False)
    offsets.commit("g", "T", 0, 7)
    offsets.save()
    lmq = lmq_offsets(tmp_path)
    assert lmq.query("g", "T", 0) == 7
    lmq.commit("%LMQ%g", "%LMQ%a", 0, 1)
    lmq.delete_topic("T")  # a new version
    lmq.save()
    after = lmq_offsets(tmp_path, lmq=False)
    assert (after.query("g", "T", 0), after.query("%LMQ%g", "%LMQ%a", 0)) == (-1, 1)
    after.save()
    assert fastjson.loads((tmp_path / "config" / FILE_NAME).read_bytes())["offsetTable"] == {"%LMQ%a@%LMQ%g": {0: 1}}


def test_a_commit_counts_though_it_made_no_new_version(tmp_path: Path) -> None:
    for at, lmq in enumerate((False, True, False), 7):
        offsets = lmq_offsets(tmp_path, lmq=lmq)
        assert offsets.query("g", "T", 0) == (at - 1 if at > 7 else -1)
        offsets.commit("g", "T", 0, at)
        offsets.save()


def test_what_is_being_written_does_not_change(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(HandClock(), tmp_path)
    for topic in ("T", "U", "V"):
        offsets.commit("g", topic, 0, 1)
        offsets.commit_pull("g", topic, 0, 2)
    write = offsets.file.prepare()
    assert write is not None
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 1, 11)
    offsets.commit_pull("g", "T", 0, 12)
    offsets.delete_topic("U")
    offsets.commit("g", "U", 0, 13)
    assert offsets.clone("k", "g", "V")
    offsets.go_back(lambda topic, queue_id: 0)
    write(lambda: None)
    read = ConsumerOffsets(HandClock(), tmp_path)
    read.load()
    assert read.committed == {f"{topic}@g": {0: 1} for topic in ("T", "U", "V")}
    assert read.pulled == {f"{topic}@g": {0: 2} for topic in ("T", "U", "V")}
    assert offsets.committed["T@g"] == {0: 0, 1: 0}
    assert offsets.committed["U@g"] == {0: 0}
    offsets.save()
    read.load()
    assert read.committed == offsets.committed
