"""Stored properties and system flags of sends are those of RocketMQ's proxy."""

import pytest

from firearrow.message import properties as keys_of
from firearrow.message.sysflag import COMPRESSED, TRANSACTION_PREPARED
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code, Encoding, Message, MessageType, Resource, SystemProperties, Timestamp
from firearrow.proxy.messagetypes import type_of
from firearrow.proxy.sending import delay_level_of, properties_of, queue_key_of, sys_flag_of, text_of
from firearrow.proxy.statuses import ProxyError
from tests.proxy.golden import CONFIG, NOW_MS, SENDER, sends

LEVELS = ProxyConfig().message_delay_level


def test_properties_and_flags_are_those_of_rocketmqs_proxy() -> None:
    stored = [send for send in sends() if send.refusal is None]
    assert len(stored) > 200
    for send in stored:
        messages = send.request.messages
        found = [properties_of(message, CONFIG, sender=SENDER, now_ms=NOW_MS) for message in messages]
        texts = [keys_of.parse(text_of(properties)) for properties in found]
        assert texts == [keys_of.parse(text) for text in send.properties]
        assert sys_flag_of(messages[0]) == send.flag
        assert [type_of(properties).name for properties in found] == send.types


def message(**fields: object) -> Message:
    system = SystemProperties(message_id="01", **fields)  # type: ignore[arg-type]
    return Message(topic=Resource(name="orders"), body=b"x", system_properties=system)


def test_the_flag_tells_of_gzip_and_transactions() -> None:
    both = message(body_encoding=Encoding.GZIP, message_type=MessageType.TRANSACTION)
    assert sys_flag_of(both) == COMPRESSED | TRANSACTION_PREPARED
    assert sys_flag_of(message(body_encoding=Encoding.IDENTITY)) == 0


def test_a_delivery_time_may_become_a_level_as_well() -> None:
    delayed = message(delivery_timestamp=Timestamp(seconds=1005))
    config = ProxyConfig(use_delay_level=True)
    properties = properties_of(delayed, config, sender=SENDER, now_ms=1_000_000)
    assert properties[keys_of.TIMER_DELIVER_MS] == "1005000"
    assert properties[keys_of.DELAY_LEVEL] == "3"
    assert keys_of.DELAY_LEVEL not in properties_of(delayed, CONFIG, sender=SENDER, now_ms=1_000_000)


@pytest.mark.parametrize(
    ("levels", "delay_ms", "level"),
    [
        (LEVELS, -5, 1),
        (LEVELS, 999, 1),
        (LEVELS, 1000, 2),
        (LEVELS, 7_199_999, 18),
        (LEVELS, 7_200_000, 18),
        ("5s  1s 1d", 500, 2),
        ("5s 1s 1d", 5000, 3),
    ],
)
def test_a_delay_has_the_next_longer_level(levels: str, delay_ms: int, level: int) -> None:
    assert delay_level_of(levels, delay_ms) == level


@pytest.mark.parametrize("field", ["message_id", "trace_context", "born_host"])
def test_no_text_forges_a_property(field: str) -> None:
    sent = message(**({} if field == "message_id" else {field: "a\x02TRAN_MSG\x01true"}))
    if field == "message_id":
        sent.system_properties.message_id = "a\x02TRAN_MSG\x01true"
    with pytest.raises(ProxyError, match="contains a separator") as raised:
        text_of(properties_of(sent, CONFIG, sender=SENDER, now_ms=NOW_MS))
    assert raised.value.code is Code.BAD_REQUEST


def test_a_property_without_a_name_is_not_stored() -> None:
    assert text_of({"": "v", "a": "1", "b": ""}) == "a\x011\x02"


def test_a_message_chooses_its_queue_by_its_group_or_lite_topic() -> None:
    group, lite, plain = message(message_group="g", lite_topic="l"), message(lite_topic="l"), message()
    assert [queue_key_of(one) for one in (group, lite, plain)] == ["g", "l", ""]
