"""Attributes: cases with the answers of a real broker."""

import pytest

from firearrow.broker.state.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, altered
from firearrow.broker.state.attributes import parse_changes as parse
from firearrow.errors import BrokerError


def changed(text: str, current: dict[str, str] | None) -> dict[str, str]:
    return altered(TOPIC_ATTRIBUTES, current, parse(text))


@pytest.mark.parametrize(
    ("text", "current", "outcome"),
    [
        ("+message.type=FIFO", None, {"message.type": "FIFO"}),
        ("+message.type=FIFO,", {}, {"message.type": "FIFO"}),
        ("+message.type=FIFO", {"message.type": "NORMAL"}, {"message.type": "FIFO"}),
        ("-message.type", {"message.type": "NORMAL"}, {}),
        (",", {"reserve.time": "1"}, {"reserve.time": "1"}),
        ("", None, {}),
        ("+queue.type=BatchCQ", None, {"queue.type": "BatchCQ"}),
        ("+cleanup.policy=DELETE", None, {"cleanup.policy": "DELETE"}),
        ("+reserve.time=9223372036854775807", {}, {"reserve.time": "9223372036854775807"}),
        ("+lite.topic.expiration=-1", {}, {"lite.topic.expiration": "-1"}),
    ],
)
def test_changes_that_are_allowed(text: str, current: dict[str, str] | None, outcome: dict[str, str]) -> None:
    assert changed(text, current) == outcome


@pytest.mark.parametrize(
    ("text", "current", "why"),
    [
        ("+foo=1", {}, "unsupported key: foo"),
        ("-message.type", None, "only add attribute is supported"),
        ("+queue.type=BatchCQ", {}, "unchangeable attribute. key: queue.type"),
        ("+cleanup.policy=COMPACTION", {}, "unchangeable attribute. key: cleanup.policy"),
        ("+message.type=FIFO,+message.type=NORMAL", {}, r"key duplication: \+message.type"),
        ("+message.type=A,-message.type", {"message.type": "FIFO"}, "not in set"),
        ("+message.type=NORMAL,-message.type", {"message.type": "FIFO"}, "duplication key"),
        ("+cleanup.policy=COMPACTION", None, "there are no compaction topics"),
        ("+cleanup.policy=COMPACT", None, "value is not in set"),
        ("+message.type=XX", {}, "value is not in set"),
        ("+message.type=fifo", {}, "value is not in set"),
        ("message.type=FIFO", {}, "add/alter attribute format is wrong: message.type"),
        ("-message.type=x", {}, "add/alter attribute format is wrong"),
        ("+message.type", {}, r"delete attribute format is wrong: \+message.type"),
        ("+a=", {}, "without a value"),
        ("+reserve.time=abc", {}, "not a number"),
        ("+reserve.time=-2", {}, "not in range"),
        ("-nokey", {}, "nonexistent key: nokey"),
        ("-", {}, "kv string format wrong"),
        (" +message.type=FIFO", {}, "format is wrong"),
    ],
)
def test_changes_that_are_refused(text: str, current: dict[str, str] | None, why: str) -> None:
    with pytest.raises(BrokerError, match=why) as refusal:
        changed(text, current)
    assert refusal.value.code == 1


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("priority.factor", "100", "101"),
        ("lite.sub.model", "Shared", "shared"),
        ("lite.sub.reset.offset.exclusive", "true", "yes"),
        ("lite.sub.client.quota", "-1", "-2"),
        ("lite.sub.client.max.event.cnt", "10", "9"),
    ],
)
def test_attributes_of_groups(key: str, good: str, bad: str) -> None:
    assert altered(GROUP_ATTRIBUTES, None, {f"+{key}": good}) == {key: good}
    with pytest.raises(BrokerError, match=key):
        altered(GROUP_ATTRIBUTES, None, {f"+{key}": bad})


def test_some_attributes_take_any_text() -> None:
    changes = {"+lite.bind.topic": "T", "+lite.sub.wildcard": "*"}
    assert altered(GROUP_ATTRIBUTES, {}, changes) == {"lite.bind.topic": "T", "lite.sub.wildcard": "*"}


def test_a_body_may_hold_a_change_without_a_sign() -> None:
    with pytest.raises(BrokerError, match="wrong format key"):
        altered(TOPIC_ATTRIBUTES, {}, {"message.type": "FIFO"})


def test_attributes_say_how_a_topic_becomes_a_table() -> None:
    text = "+table.format=delta,+table.schema=order string; cents long,+table.partition=day; bucket(4; order)"
    assert changed(text, None)["table.partition"] == "day; bucket(4; order)"
    for key, value in (("format", "hudi"), ("mode", "replace"), ("bodies", "xml"), ("change.data.feed", "yes")):
        with pytest.raises(BrokerError, match="value is not in set"):
            altered(TOPIC_ATTRIBUTES, None, {f"+table.{key}": value})
