"""Options are read in any case, and each bad one gives one sentence that says what is allowed."""

from __future__ import annotations

import pickle

import pytest

from firearrow.config.kinds import MiB
from firearrow.errors import ConfigError
from firearrow.spark.options import Options, as_markdown, for_sink, parse, with_system_topics

FILES = {"path": "store"}


def test_what_is_not_said_has_its_default() -> None:
    options = parse(FILES)
    assert options.place.paths == ("store",)
    assert options.place.table == "messages"
    assert options.reading.split_bytes == 128 * MiB
    assert options.reading.fail_on_data_loss
    assert options.trigger.offsets_max is None
    assert options.range.starting_offsets is None


@pytest.mark.parametrize(
    ("name", "text", "found", "value"),
    [
        ("SubScribe", "a, b", "choice.subscribe", ("a", "b")),
        ("tags", "A || B", "choice.tags", ("A", "B")),
        ("tags", "*", "choice.tags", ()),
        ("keys", "k1  k2", "choice.keys", ("k1", "k2")),
        ("assign", '{"t": {"b": [2, 1]}}', "choice.assign", (("t", "b", (1, 2)),)),
        ("splitbytes", "64m", "reading.split_bytes", 64 * MiB),
        ("batchBytes", "1000", "reading.batch_bytes", 1000),
        ("maxTriggerDelay", "2m", "trigger.delay_max_ms", 120_000),
        ("startingOffsets", "Latest", "range.starting_offsets", "latest"),
        ("startingTimestamp", "0", "range.starting_ms", 0),
        ("startingTimestamp", "1795000000000", "range.starting_ms", 1_795_000_000_000),
        ("startingTimestamp", "2026-11-18T12:00+01:00", "range.starting_ms", 1_794_999_600_000),
        ("failOnDataLoss", "FALSE", "reading.fail_on_data_loss", False),
        ("visibility", "log", "reading.visibility", "log"),
        ("systemTopics", "true", "choice.system_topics", True),
        ("visibility", "log", "choice.system_topics", True),
        ("table", "topics", "choice.system_topics", True),
    ],
)
def test_texts_become_values(name: str, text: str, found: str, value: object) -> None:
    options = parse({**FILES, name: text})
    group, _, field = found.partition(".")
    assert getattr(getattr(options, group), field) == value


def test_several_paths_come_from_both_options() -> None:
    options = parse({"path": "a", "paths": '["b", "a"]'})
    assert options.place.paths == ("a", "b")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "path (a store's files) or nameServer (a cluster) is missing"),
        ({**FILES, "nameServer": "h:1"}, "exclude each other"),
        ({**FILES, "subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern"),
        ({**FILES, "subcribe": "a"}, "subcribe='a': there is no such option; did you mean subsc"),
        ({**FILES, "bodyFormat": "json"}, "no such option: firearrow.spark.decoded(...) decodes"),
        ({**FILES, "table": "mesages"}, "table='mesages': allowed is messages, consume_queue"),
        ({**FILES, "splitBytes": "0"}, "splitBytes='0': allowed is a number of bytes"),
        ({**FILES, "minPartitions": "-1"}, "minPartitions='-1': allowed is a whole number above 0"),
        ({**FILES, "decompress": "yes"}, "decompress='yes': allowed is true or false"),
        ({**FILES, "subscribePattern": "("}, "subscribePattern='(': allowed is a regular expr"),
        ({**FILES, "assign": "[1]"}, "assign='[1]': allowed is JSON"),
        ({**FILES, "assign": '{"t": {"b": [-1]}}'}, "assign="),
        ({**FILES, "startingOffsets": "first"}, "startingOffsets='first': allowed is earliest"),
        ({**FILES, "onCorrupt": "ignore"}, "onCorrupt='ignore': allowed is fail or skip"),
        ({**FILES, "startingTimestamp": "now"}, "2026-11-21T06:30:00Z or 1795242600000"),
        ({**FILES, "endingTimestamp": "1795000000"}, "1795000000 looks like seconds: a time is in"),
        ({**FILES, "endingTimestamp": "1795000000000000"}, "looks like microseconds or nanosec"),
        (
            {**FILES, "startingTimestamp": "2026-11-18", "endingTimestamp": "2026-11-17"},
            "startingTimestamp=1794960000000 and endingTimestamp=1794873600000: the range ends",
        ),
        (
            {**FILES, "startingTimestamp": "2026-11-18", "endingTimestamp": '{"T": {"a": {"0": "2026-11-17"}}}'},
            "endingTimestamp=1794873600000 in queue 0 of topic 'T' on a: the range ends before it",
        ),
        (
            {**FILES, "startingOffsets": '{"T": {"a": {"0": 7}}}', "endingOffsets": '{"T": {"a": {"0": 6}}}'},
            "startingOffsets=7 and endingOffsets=6 in queue 0 of topic 'T' on a: the range ends",
        ),
        (
            {**FILES, "startingOffsets": "latest", "endingOffsets": "earliest"},
            "option startingOffsets=latest is behind endingOffsets=earliest",
        ),
        ({**FILES, "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon'"),
        ({"paths": '["a", "b"]', "brokerName": "x"}, "brokerName='x' names one store"),
        ({"paths": "a,b"}, "paths='a,b': allowed is a JSON list"),
    ],
)
def test_bad_options_are_named(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(given)
    assert error in str(raised.value)


def test_a_sink_needs_brokers() -> None:
    assert for_sink({"nameServer": "a:1;b:2"}).place.name_servers == ("a:1", "b:2")
    with pytest.raises(ConfigError, match="nameServer is missing"):
        for_sink({"topic": "t"})


def test_what_spark_is_told_by_the_same_way_is_no_error() -> None:
    assert for_sink({"nameServer": "a:1", "queryName": "c"}) == for_sink({"nameServer": "a:1"})


def test_secrets_are_not_printed() -> None:
    options = parse({**FILES, "accessKey": "user", "secretKey": "geheim"})
    assert options.access.secret_key == "geheim"
    assert "user" in repr(options)
    assert "geheim" not in repr(options)


def test_topics_are_chosen_by_name_pattern_or_queue() -> None:
    assert parse(FILES).choice.wants("any")
    assert parse({**FILES, "subscribe": "a"}).choice.wants("a")
    assert not parse({**FILES, "subscribe": "a"}).choice.wants("ab")
    pattern = parse({**FILES, "subscribePattern": "a.*"}).choice
    assert pattern.wants("ab")
    assert not pattern.wants("ba")
    queues = parse({**FILES, "assign": '{"a": {"b": [1]}}'}).choice
    assert queues.wants("a")
    assert queues.wants_queue()("a", "b", 1)
    assert not queues.wants_queue()("a", "b", 0)
    assert not queues.wants_queue()("a", "c", 1)


def test_topics_of_the_broker_itself_are_chosen_by_name_or_all() -> None:
    assert not parse(FILES).choice.wants("SCHEDULE_TOPIC_XXXX")
    assert not parse({**FILES, "subscribePattern": "rmq.*"}).choice.wants("rmq_sys_wheel_timer")
    assert parse({**FILES, "subscribe": "SCHEDULE_TOPIC_XXXX"}).choice.wants("SCHEDULE_TOPIC_XXXX")
    every = with_system_topics(FILES)
    assert parse(every).choice.wants("SCHEDULE_TOPIC_XXXX")
    assert parse({**every, "subscribePattern": "rmq.*"}).choice.wants("rmq_sys_wheel_timer")
    assert not parse(with_system_topics({**FILES, "systemtopics": "false"})).choice.wants("SCHEDULE_TOPIC_XXXX")


def test_options_travel_to_tasks() -> None:
    options = parse({**FILES, "assign": '{"a": {"b": [1]}}'})
    assert pickle.loads(pickle.dumps(options)) == options
    assert len(pickle.dumps(Options())) < 2000


def test_every_option_is_explained() -> None:
    lines = [line for line in as_markdown().splitlines() if line.startswith("| `")]
    assert len(lines) > 40
    assert all(cell.strip() for line in lines for cell in line.split(" | ")[2:])
