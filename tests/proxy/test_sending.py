"""Stored properties and system flags of sends are those of RocketMQ's proxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.sending.plain import plain_properties
from firearrow.message import properties as keys_of
from firearrow.message.sysflag import COMPRESSED, TRANSACTION_PREPARED
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code, Encoding, Message, MessageType, Resource, SystemProperties, Timestamp
from firearrow.proxy.messagetypes import type_of
from firearrow.proxy.sending import delay_level_of, plain_header, properties_of, queue_key_of, sys_flag_of, text_of
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.times import time_ms
from firearrow.proxy.validation import check_message
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import typed_request, with_text
from firearrow.wire.headers import PlainSend, SendMessageV2
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


def check_plain(sent: Message, config: ProxyConfig = CONFIG) -> bool:
    """Compare the header of a plain message with what the general path makes; tell whether it is one."""
    topic = sent.topic.name
    header = plain_header(sent, len(sent.body), config, topic, SENDER)
    if header is None:
        return False
    check_message(sent, config, NOW_MS)
    properties = properties_of(sent, config, sender=SENDER, now_ms=NOW_MS)
    assert header == PlainSend(
        producer_group=topic,
        topic=topic,
        queue_id=0,
        sys_flag=sys_flag_of(sent),
        born_timestamp=time_ms(sent.system_properties.born_timestamp),
        flag=0,
        properties=text_of(properties),
    )
    assert header.unique == sent.system_properties.message_id
    assert plain_properties(header.properties.encode()) == (header.unique.encode(), False)
    fields = with_text(typed_request(RequestCode.SEND_MESSAGE_V2, header)).ext
    assert fields.keys() <= set(SendMessageV2.__struct_encode_fields__)
    assert type_of(properties) is MessageType.NORMAL
    return True


def test_a_plain_message_is_stored_as_all_its_checks_and_rules_say() -> None:
    ones = [send for send in sends() if len(send.request.messages) == 1 and send.request.messages[0].topic.name.strip()]
    plain = [send for send in ones if check_plain(send.request.messages[0])]
    assert not any(send.refusal for send in plain)
    assert 5 < len(plain) < len(ones) // 2


TEXTS = st.sampled_from(["", " ", "a", "A1", "a_b", "a b", "é", "x\x01", "\x02", "|", "DELAY", "1.2.3.4"])


@given(
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.lists(TEXTS, max_size=2),
    st.fixed_dictionaries(
        {"message_id": TEXTS},
        optional=dict.fromkeys(("tag", "message_group", "lite_topic", "trace_context", "born_host"), TEXTS)
        | {
            "message_type": st.sampled_from(MessageType),
            "body_encoding": st.sampled_from(Encoding),
            "delivery_attempt": st.integers(-1, 3),
            "priority": st.integers(-1, 3),
            "delivery_timestamp": st.just(Timestamp(seconds=NOW_MS // 1000 + 5)),
            "born_timestamp": st.builds(
                Timestamp, seconds=st.sampled_from([-1, 0, 7, 1 << 40]), nanos=st.sampled_from([-1, 0, 1_999_999])
            ),
        },
    ),
    st.binary(max_size=9),
    st.sampled_from([-1, 0, 8]),
)
def test_what_is_not_plain_at_a_glance_is_left_to_the_checks(
    own: dict[str, str], keys: list[str], fields: dict[str, object], body: bytes, size: int
) -> None:
    system = SystemProperties(keys=keys, **fields)  # type: ignore[arg-type]
    sent = Message(topic=Resource(name="orders"), user_properties=own, system_properties=system, body=body)
    check_plain(sent, ProxyConfig(max_message_size=size))


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
