"""Rules of names: what is allowed, what is the broker's, and what a name means."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message import names


@pytest.mark.parametrize("topic", ["T", "a-b_C|9", "%RETRY%g", "ns%topic", "x" * 127])
def test_topics_that_are_allowed(topic: str) -> None:
    assert names.validate_topic(topic) is None


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("a b", "illegal characters"),
        ("a.b", "illegal characters"),
        ("标签", "illegal characters"),
        ("topic\n", "illegal characters"),
        ("x" * 128, "128 characters long, the limit is 127"),
    ],
)
def test_topics_that_are_refused(topic: str, reason: str) -> None:
    remark = names.validate_topic(topic)
    assert remark is not None
    assert reason in remark


@pytest.mark.parametrize("prefix", [names.RETRY_PREFIX, names.DLQ_PREFIX])
def test_retry_and_dead_letter_topics_may_be_longer(prefix: str) -> None:
    longest = prefix.ljust(255, "x")
    assert names.validate_topic(longest) is None
    assert "the limit is 255" in str(names.validate_topic(longest + "x"))


def test_groups_end_at_120_characters() -> None:
    assert names.validate_group("g" * 120) is None
    assert "the limit is 120" in str(names.validate_group("g" * 121))
    assert "the group name is blank" in str(names.validate_group(""))
    assert "illegal" in str(names.validate_group("a+b"))


def test_the_longest_group_has_a_valid_retry_topic() -> None:
    assert names.validate_topic(names.retry_topic("g" * names.GROUP_LENGTH_MAX)) is None


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", names.TIMER_TOPIC])
def test_system_topics(topic: str) -> None:
    assert names.is_system_topic(topic)


def test_a_broker_adds_system_topics_of_its_own() -> None:
    added = {"C", "broker-a", "C_REPLY_TOPIC"}
    assert names.is_system_topic("broker-a", added)
    assert not names.is_system_topic("broker-a")
    assert not names.is_system_topic("orders", added)


def test_system_groups() -> None:
    assert names.is_system_group("TOOLS_CONSUMER")
    assert names.is_system_group(names.REVIVE_GROUP)
    assert not names.is_system_group("g")


def test_what_clients_may_not_send_to_is_a_system_topic() -> None:
    assert names.NOT_SENDABLE_TOPICS < names.SYSTEM_TOPICS
    assert not names.is_sendable("SCHEDULE_TOPIC_XXXX")
    assert names.is_sendable("TBW102")
    assert names.is_sendable("orders")


def test_retry_and_dead_letter_topics_of_a_group() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_retry("%RETRY%g")
    assert names.is_dlq("%DLQ%g")
    assert not names.is_retry("%DLQ%g")
    assert [names.group_of(t) for t in ("%RETRY%g", "%DLQ%g", "g")] == ["g", "g", None]


@pytest.mark.parametrize("v2", [False, True])
def test_pop_retry_topics_name_group_and_topic(v2: bool) -> None:
    name = names.pop_retry_topic("T", "g", v2=v2)
    assert name == ("%RETRY%g+T" if v2 else "%RETRY%g_T")
    assert names.is_pop_retry_v2(name) is v2


def test_the_second_form_of_pop_retry_topics_tells_the_group() -> None:
    assert names.group_of("%RETRY%g_1+T") == "g_1"


def test_names_made_of_cluster_and_broker() -> None:
    assert names.reply_topic("C") == "C_REPLY_TOPIC"
    assert names.revive_topic("C") == "rmq_sys_REVIVE_LOG_C"
    assert names.broker_member_topic("b") == "rmq_sys_SYNC_BROKER_MEMBER_b"
    assert names.is_lmq("%LMQ%x")
    assert not names.is_lmq("x")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("标签", 857175),
        ("AaAa", 2031744),
        ("BBBB", 2031744),
        ("T#k1", 2539445),
        ("T#AaAa", -1855763633),
        ("T#BBBB", -1855763633),
        ("polygenelubricants", -(2**31)),
        ("😀", 31 * 0xD83D + 0xDE00),
    ],
)
def test_java_hash_vectors(text: str, code: int) -> None:
    assert names.java_hash(text) == code


@given(st.text(st.characters(exclude_categories=[]), max_size=20))
def test_java_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    encoded = text.encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    exact = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    assert names.java_hash(text) % 2**32 == exact % 2**32
    assert -(2**31) <= names.java_hash(text) < 2**31


def test_tag_code_is_zero_without_tags() -> None:
    assert names.tag_code(None) == 0
    assert names.tag_code("") == 0
    assert names.tag_code("TagA") == 2598919


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("T", "g"),
        ("%RETRY%g", "g"),
        ("%LMQ%a", "g"),
        ("%LMQ%a", "%LMQ%g"),
        ("%LMQ%p2p%G@@@device", "g"),
        ("%LMQ%p2p%G@@@device", "%LMQ%g@x"),
        ("T", "%LMQ%g@x"),
    ],
)
def test_a_key_of_offsets_comes_apart(topic: str, group: str) -> None:
    assert names.topic_and_group(names.offset_key(topic, group)) == (topic, group)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../x", "/abs", "a/b", "a\0b", "a\tb", "a\nT\t0\t9", "\ud800", "標" * 86]
)
def test_names_that_no_directory_may_have(name: str) -> None:
    assert names.fault_as_directory(name) is not None


@given(
    st.one_of(
        st.text(max_size=300),
        st.lists(st.sampled_from(["..", ".", "/", "a", "%", "\0", "\n", "標"]), max_size=90).map("".join),
    )
)
def test_a_name_of_a_directory_leads_nowhere_else(name: str) -> None:
    root = Path("/store/consumequeue")
    leads_there = "\0" not in name and Path(os.path.normpath(root / name)).parent == root
    if names.fault_as_directory(name) is None:
        assert leads_there
        assert len(name.splitlines()) == 1
        assert "\t" not in name
        assert len(name.encode()) <= 255
    if names.validate_topic(name) is None:
        assert names.fault_as_directory(name) is None


@given(st.from_regex(r"[%|a-zA-Z0-9_-]{1,120}", fullmatch=True))
def test_the_topics_of_a_broker_may_be_directories(name: str) -> None:
    topics = [name, names.retry_topic(name), names.dlq_topic(name), names.reply_topic(name)]
    topics += [names.pop_retry_topic(name, name[:120], v2=v2) for v2 in (False, True)]
    topics += [names.LMQ_PREFIX + name, names.lite_queue(name, name[:64]), *names.SYSTEM_TOPICS]
    assert [names.fault_as_directory(topic) for topic in topics] == [None] * len(topics)
