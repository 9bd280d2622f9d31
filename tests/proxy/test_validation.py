"""Checks of requests: codes, texts and order are those of RocketMQ's proxy."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code, Duration, Message, MessageType, Resource, SystemProperties, Timestamp
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.validation import (
    NAME_CHARS_SHOWN,
    check_delivery_ms,
    check_group,
    check_invisible_ms,
    check_lite_topic,
    check_message,
    check_properties,
    check_send,
    check_topic,
    check_topic_and_group,
    is_blank,
)
from tests.proxy.golden import CONFIG, NOW_MS, Send, sends

DEFAULTS = ProxyConfig()
UNLIMITED = ProxyConfig(
    max_message_size=0,
    max_user_property_size=0,
    max_message_group_size=-1,
    max_delay_time_mills=0,
    max_invisible_time_mills=0,
    max_transaction_recovery_second=0,
    enable_message_body_empty_check=False,
)


def refusal_of(send: Send) -> tuple[int, str] | None:
    try:
        check_send(send.request.messages, CONFIG, NOW_MS)
    except ProxyError as error:
        return error.code, error.message
    return None


def test_sends_are_refused_as_by_rocketmqs_proxy() -> None:
    cases = sends()
    assert len({send.refusal[0] for send in cases if send.refusal}) >= 10
    assert [send for send in cases if refusal_of(send) != send.refusal] == []


def refused(code: Code, text: str) -> pytest.RaisesExc[ProxyError]:
    return pytest.RaisesExc(ProxyError, check=lambda error: (error.code, error.message) == (code, text))


RULE = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank"),
        (" \t", "The specified topic is blank"),
        ("a" * 128, "The specified topic is longer than topic max length 127."),
        ("\U0001f600" * 64, "The specified topic is longer than topic max length 127."),
        ("a b", f"The specified topic[a b] {RULE}"),
        ("a\n", f"The specified topic[a\n] {RULE}"),
        ("\u00a0", f"The specified topic[\u00a0] {RULE}"),
        ("TBW102", "cannot access system topic"),
        ("rmq_sys_x", "cannot access system topic"),
    ],
)
def test_a_bad_topic_is_refused(name: str, text: str) -> None:
    with refused(Code.ILLEGAL_TOPIC, text):
        check_topic(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "the specified group is blank"),
        ("a" * 121, f"the specified group[{'a' * 121}] is longer than group max length: 120."),
        ("a" * 9999, f"the specified group[{'a' * NAME_CHARS_SHOWN}] is longer than group max length: 120."),
        ("a+b", f"the specified group[a+b] {RULE}"),
        ("CID_RMQ_SYS_x", "cannot use system consumer group"),
    ],
)
def test_a_bad_group_is_refused(name: str, text: str) -> None:
    with refused(Code.ILLEGAL_CONSUMER_GROUP, text):
        check_group(name)


def test_good_names_pass() -> None:
    check_topic_and_group("a" * 127, "b" * 120)
    check_topic_and_group("%RETRY%g|-_", "%g|-_")
    check_lite_topic("a" * 64, DEFAULTS)


def test_the_topic_is_checked_before_the_group() -> None:
    with refused(Code.ILLEGAL_TOPIC, "The specified topic is blank"):
        check_topic_and_group("", "")


def test_a_long_lite_topic_is_counted_in_bytes() -> None:
    with refused(Code.ILLEGAL_LITE_TOPIC, "lite topic exceed the max size 64"):
        check_lite_topic("é" * 33, DEFAULTS)


def test_an_invisible_time_has_bounds() -> None:
    check_invisible_ms(0, DEFAULTS)
    check_invisible_ms(12 * 3_600_000, DEFAULTS)
    check_invisible_ms(1 << 62, UNLIMITED)
    with refused(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 10000"):
        check_invisible_ms(9999, DEFAULTS, least_ms=10_000)
    with refused(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large. max is 43200000"):
        check_invisible_ms(12 * 3_600_000 + 1, DEFAULTS)


def test_a_delivery_time_may_be_past_but_not_far_away() -> None:
    check_delivery_ms(0, DEFAULTS, NOW_MS)
    check_delivery_ms(NOW_MS + 86_400_000, DEFAULTS, NOW_MS)
    check_delivery_ms(NOW_MS * 2, UNLIMITED, NOW_MS)
    with refused(Code.ILLEGAL_DELIVERY_TIME, "the max delay time of message is too large, max is 86400000"):
        check_delivery_ms(NOW_MS + 86_400_001, DEFAULTS, NOW_MS)


def message(body: bytes = b"x", properties: dict[str, str] | None = None, **fields: Any) -> Message:
    system = SystemProperties(**{"message_id": "01", **fields})
    return Message(topic=Resource(name="t"), body=body, user_properties=properties, system_properties=system)


def test_zero_is_no_limit() -> None:
    far = Timestamp(seconds=250_000_000_000)
    long = Duration(seconds=1_000_000)
    unlimited = message(
        b"",
        {"k": "v" * 100_000},
        message_group="g" * 1000,
        message_type=MessageType.TRANSACTION,
        delivery_timestamp=far,
        orphaned_transaction_recovery_duration=long,
    )
    check_message(unlimited, UNLIMITED, NOW_MS)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"priority": -1}, Code.BAD_REQUEST),
        ({"delivery_timestamp": Timestamp(seconds=1, nanos=-1)}, Code.ILLEGAL_DELIVERY_TIME),
        (
            {
                "message_type": MessageType.TRANSACTION,
                "orphaned_transaction_recovery_duration": Duration(seconds=1, nanos=-1),
            },
            Code.BAD_REQUEST,
        ),
    ],
)
def test_what_rocketmq_calls_an_internal_error_has_a_code(fields: dict[str, Any], code: Code) -> None:
    with pytest.raises(ProxyError) as raised:
        check_message(message(**fields), DEFAULTS, NOW_MS)
    assert raised.value.code is code


ODD = ["", " ", "\t", "\u00a0", "|", "a|b", "KEYS", "a\x7f", "\u2003", "é", "a b"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(ODD)


@given(st.dictionaries(TEXTS, TEXTS, max_size=5), TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from([-1, 0, 20, 999]))
def test_a_glance_finds_what_the_checks_one_by_one_find(
    properties: dict[str, str], tag: str, keys: list[str], size: int
) -> None:
    config = ProxyConfig(max_user_property_size=size, user_property_max_num=4)

    def outcome(together: bool) -> tuple[int, str] | None:
        sent = message(b"x", properties, tag=tag, keys=keys)
        try:
            if together:
                check_message(sent, config, NOW_MS)
            else:
                check_properties(dict(sent.user_properties), tag, keys, config)
        except ProxyError as error:
            return error.code, error.message
        return None

    assert outcome(True) == outcome(False)


@given(TEXTS)
def test_a_blank_text_has_javas_white_space_only(text: str) -> None:
    assert not is_blank(text) or not text.strip()
    assert is_blank(text + "\u00a0") is False
