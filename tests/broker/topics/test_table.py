"""Topics: their creation, and their file."""

import errno
import json
from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace

from firearrow.broker.config import BrokerConfig
from firearrow.broker.topics.table import QUEUE_NUMS_MAX, TopicTable
from firearrow.errors import BrokerError, ConfigError, DiskFull
from firearrow.store import QueuesLeft
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion, TopicConfig
from tests import golden
from tests.broker.fakes import CONFIG, NOW_MS, FakeBroker
from tests.loglines import told


def table_of(config: BrokerConfig = CONFIG, root: Path | None = None) -> TopicTable:
    return FakeBroker(config, root).topics


def test_a_new_broker_has_the_topics_of_a_new_java_broker(tmp_path: Path) -> None:
    """All but the user's topics and the retry topics of a golden store were made at its start."""
    store = golden.extract("file-cq-clean", tmp_path)
    found = fastjson.loads((store / "config" / "topics.json").read_bytes())["topicConfigTable"]
    expected = {name: config for name, config in found.items() if not name.startswith(("Golden", "%RETRY%"))}
    table = table_of(BrokerConfig(broker_name="broker-g")).table
    assert fastjson.loads(fastjson.dumps(table)) == expected


def test_the_configuration_decides_on_templates_and_trace() -> None:
    config = replace(
        CONFIG,
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
    )
    topics = table_of(config)
    assert topics.get("TBW102") is None
    cluster, broker = topics.get("C"), topics.get("broker-a")
    assert cluster is not None
    assert broker is not None
    assert (cluster.perm, broker.perm) == (1, 1)
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is not None


@pytest.mark.parametrize(
    ("topic", "system"),
    [
        ("TBW102", True),
        ("CHECKPOINT_TOPIC", True),
        ("C", True),
        ("broker-a", True),
        ("C_REPLY_TOPIC", True),
        ("rmq_sys_anything", True),
        ("T", False),
        ("%RETRY%g", False),
    ],
)
def test_system_topics_are_known(topic: str, system: bool) -> None:
    assert table_of().is_system(topic) is system


def test_a_send_creates_a_topic_after_its_template() -> None:
    topics = table_of()
    told: list[list[TopicConfig]] = []
    topics.changed.listen(lambda change: told.append(list(change.configs)))
    made = topics.create_in_send("T", "TBW102", 4, sys_flag=1)
    assert made == TopicConfig("T", 4, 4, 6, topic_sys_flag=1)
    assert topics.get("T") is made
    assert told == [[made]]
    assert topics.data_version.counter == 1
    assert topics.create_in_send("T", "TBW102", 2) is made
    assert topics.data_version.counter == 1


@pytest.mark.parametrize(("asked", "given"), [(16, 8), (8, 8), (0, 1), (-3, 1)])
def test_a_template_bounds_the_queues(asked: int, given: int) -> None:
    made = table_of().create_in_send("T", "TBW102", asked)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums) == (given, given)


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (-3, 1), (1 << 30, QUEUE_NUMS_MAX)])
def test_a_group_cannot_ask_for_an_impossible_retry_topic(asked: int, given: int) -> None:
    assert table_of().create_retry("g", asked) == TopicConfig("%RETRY%g", given, given, 6)


def test_only_templates_make_topics() -> None:
    topics = table_of()
    assert topics.create_in_send("T", "BenchmarkTest", 4) is None
    assert topics.create_in_send("T", "nothing", 4) is None
    assert topics.create_in_send("T", "broker-a", 4) == TopicConfig("T", 1, 1, 6)


def test_automatic_creation_can_be_switched_off_at_run_time() -> None:
    broker = FakeBroker()
    broker.settings.change({"autoCreateTopicEnable": "false"})
    assert broker.topics.create_in_send("T", "TBW102", 4) is None
    assert broker.topics.create_in_send("T", "C", 4) is not None


def test_retry_topics_follow_their_group() -> None:
    topics = table_of()
    made = topics.create_retry("g", 3, unit=True)
    assert made == TopicConfig("%RETRY%g", 3, 3, 6, topic_sys_flag=2)
    assert topics.create_retry("g", 5) is made
    ordered = topics.create_retry("g", 3, order=True)
    assert ordered == replace(made, order=True)
    assert topics.get("%RETRY%g") == ordered


def test_put_changes_attributes_and_nothing_when_all_is_equal() -> None:
    topics = table_of()
    topics.put(TopicConfig("T", 4, 4, 6, attributes={"+message.type": "FIFO"}))
    made = topics.get("T")
    assert made == TopicConfig("T", 4, 4, 6, attributes={"message.type": "FIFO"})
    version = topics.data_version
    topics.put(TopicConfig("T", 4, 4, 6))
    assert topics.data_version == version
    topics.put(TopicConfig("T", 8, 4, 6, attributes={"-message.type": ""}))
    assert topics.get("T") == TopicConfig("T", 8, 4, 6)


def test_a_list_is_put_whole_or_not_at_all() -> None:
    topics = table_of()
    with pytest.raises(BrokerError, match="unsupported key: foo"):
        topics.put_all([TopicConfig("A"), TopicConfig("B", attributes={"+foo": "1"})])
    assert topics.get("A") is None
    topics.put_all([TopicConfig("A"), TopicConfig("B")])
    assert topics.data_version.counter == 1


def test_what_equals_is_left_alone_beside_what_changes() -> None:
    topics = table_of()
    told: list[list[TopicConfig]] = []
    topics.put(TopicConfig("A"))
    topics.changed.listen(lambda change: told.append(list(change.configs)))
    topics.put_all([TopicConfig("A"), TopicConfig("B")])
    topics.put_all([])
    assert told == [[TopicConfig("B")]]


def test_delete_and_touch_make_new_versions() -> None:
    topics = table_of()
    told: list[list[TopicConfig]] = []
    topics.put(TopicConfig("T"))
    topics.changed.listen(lambda change: told.append(list(change.configs)))
    assert topics.delete("T")
    assert not topics.delete("T")
    assert topics.get("T") is None
    assert topics.data_version.counter == 2
    topics.touch()
    assert topics.data_version.counter == 3
    assert told == [list(topics.table.values())]


def test_each_change_outlives_the_process_at_once(tmp_path: Path) -> None:
    topics = table_of(root=tmp_path)
    topics.load()
    topics.save()
    topics.create_in_send("T", "TBW102", 4)
    topics.create_in_send("gone", "TBW102", 4)
    topics.delete("gone")
    for _ in range(2):  # also after two kills in a row
        later = table_of(root=tmp_path)
        later.load()
        assert later.get("T") == TopicConfig("T", 4, 4, 6)
        assert later.get("gone") is None
        assert later.data_version == DataVersion(counter=3, timestamp=NOW_MS)
    later.save()
    assert [path.name for path in (tmp_path / "config").glob("*journal*")] == []
    raw = fastjson.loads((tmp_path / "config" / "topics.json").read_bytes())
    assert raw["topicConfigTable"]["T"]["perm"] == 6
    assert raw["dataVersion"] == {"counter": 3, "stateVersion": 0, "timestamp": NOW_MS}


@pytest.mark.parametrize("count", [10, 1000])
def test_a_topic_costs_the_same_however_many_there_are(tmp_path: Path, count: int) -> None:
    topics = table_of(root=tmp_path)
    topics.put_all([TopicConfig(f"T{number}", 4, 4) for number in range(count)])
    topics.save()
    sizes = {path: path.stat() for path in (tmp_path / "config").rglob("*")}
    topics.create_in_send("new", "TBW102", 4)
    written = [
        path.stat().st_size
        for path in (tmp_path / "config").rglob("*")
        if path.is_file() and path.stat() != sizes.get(path)
    ]
    assert len(written) == 1
    assert written[0] < 500


def test_a_topic_that_cannot_be_kept_is_not_made(tmp_path: Path) -> None:
    topics = table_of(root=tmp_path)
    told: list[list[TopicConfig]] = []
    topics.changed.listen(lambda change: told.append(list(change.configs)))
    (tmp_path / "config").write_text("a file where a directory should be")
    with pytest.raises(DiskFull, match=r"topics\.json can't be written"):
        topics.create_in_send("T", "TBW102", 4)
    assert (topics.get("T"), told, topics.data_version.counter) == (None, [], 0)
    (tmp_path / "config").unlink()
    assert topics.create_in_send("T", "TBW102", 4) is not None


def test_a_topic_can_be_deleted_where_nothing_can_be_written(tmp_path: Path) -> None:
    topics = table_of(root=tmp_path)
    topics.put(TopicConfig("T"))
    topics.save()
    with mock.patch("os.pwrite", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        assert topics.delete("T")
    topics.put(TopicConfig("U"))
    later = table_of(root=tmp_path)
    later.load()
    assert (later.get("T"), later.get("U")) == (None, topics.get("U"))


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed"])
def test_a_golden_file_is_read_and_written_as_it_was(name: str, tmp_path: Path) -> None:
    store = golden.extract(name, tmp_path)
    path = store / "config" / "topics.json"
    before = fastjson.loads(path.read_bytes())
    topics = table_of(BrokerConfig(broker_name="broker-g"), store)
    topics.load()
    assert topics.get("GoldenPlain") == TopicConfig("GoldenPlain", 4, 4, 6)
    path.unlink()
    topics.save()
    assert fastjson.loads(path.read_bytes()) == before


def test_what_this_release_does_not_know_survives(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    topic = {"perm": 6, "color": "red", "attributes": {"from.later": "1"}}
    path.write_text(json.dumps({"topicConfigTable": {"T": topic}, "epoch": 9}))
    topics = table_of(root=tmp_path)
    topics.load()
    topics.put(TopicConfig("T", 2, 2, 4))
    topics.save()
    raw = fastjson.loads(path.read_bytes())
    assert raw["epoch"] == 9
    assert raw["topicConfigTable"]["T"]["color"] == "red"
    assert raw["topicConfigTable"]["T"]["attributes"] == {"from.later": "1"}
    assert raw["topicConfigTable"]["T"]["perm"] == 4


def test_a_name_that_can_not_be_a_directory_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    names = ["../../x", "/abs", "..", "a/b", "a\0b"]
    path.write_text(json.dumps({"topicConfigTable": {name: {"perm": 6} for name in ["T", *names]}}))
    topics = table_of(root=tmp_path)
    topics.load()
    assert topics.adopt([QueuesLeft("../y", 1, 0, batches=False)]) == []
    assert "T" in topics.table
    assert not topics.table.keys() & {*names, "../y"}
    said = [line["topic"] for line in told(caplog) if line["event"] == "topic is left out"]
    assert said == [*names, "../y"]


def test_a_broken_entry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"T":{"perm":"much"}}}')
    with pytest.raises(ConfigError, match="topic T"):
        table_of(root=tmp_path).load()


def test_the_file_beats_the_start_topics(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"TBW102":{"perm":6,"writeQueueNums":2}}}')
    topics = table_of(root=tmp_path)
    topics.load()
    template = topics.get("TBW102")
    assert template is not None
    assert (template.topic_name, template.perm, template.write_queue_nums) == ("TBW102", 6, 2)
    assert topics.get("BenchmarkTest") is not None
