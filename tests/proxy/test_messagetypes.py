"""Types of messages, and what a topic of a type takes."""

import pytest

from firearrow.message import properties as keys_of
from firearrow.proxy.messages import Code, MessageType
from firearrow.proxy.messagetypes import accepted_types, check_type, check_type_name, type_of
from firearrow.proxy.statuses import ProxyError

ALL = {
    keys_of.LITE_TOPIC: MessageType.LITE,
    keys_of.PRIORITY: MessageType.PRIORITY,
    keys_of.SHARDING_KEY: MessageType.FIFO,
    keys_of.TIMER_DELAY_MS: MessageType.DELAY,
    keys_of.TIMER_DELAY_SEC: MessageType.DELAY,
    keys_of.TIMER_DELIVER_MS: MessageType.DELAY,
    keys_of.DELAY_LEVEL: MessageType.DELAY,
    keys_of.TRANSACTION_PREPARED: MessageType.TRANSACTION,
}


def test_the_first_row_that_fits_is_the_type() -> None:
    properties = {"own": "1"}
    assert type_of(properties) is MessageType.NORMAL
    for name, kind in ALL.items():
        properties[name] = "TRUE"
        assert type_of(properties) is kind


def test_a_message_that_is_no_transaction_says_so() -> None:
    assert type_of({keys_of.TRANSACTION_PREPARED: "false"}) is MessageType.NORMAL


def test_a_route_names_the_types() -> None:
    assert accepted_types("FIFO") == [MessageType.FIFO]
    assert accepted_types("MIXED") == [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]
    for other in ("UNSPECIFIED", "MESSAGE_TYPE_UNSPECIFIED", "", "new"):
        assert accepted_types(other) == [MessageType.MESSAGE_TYPE_UNSPECIFIED]


def test_a_topic_takes_its_type_and_a_mixed_one_takes_all() -> None:
    for kind in (MessageType.NORMAL, MessageType.FIFO):
        check_type_name(kind.name, kind.name)
        check_type_name("MIXED", kind.name)


@pytest.mark.parametrize("topic_type", ["NORMAL", "UNSPECIFIED", "DELAY"])
def test_another_type_is_refused(topic_type: str) -> None:
    with pytest.raises(ProxyError) as raised:
        check_type("orders", topic_type, {keys_of.SHARDING_KEY: "g"})
    assert raised.value.code is Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert raised.value.message == (
        "org.apache.rocketmq.proxy.common.ProxyException: TopicMessageType validate failed, "
        f"the expected type is {topic_type}, but actual type is FIFO"
    )


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retries_and_dead_letters_have_any_type(topic: str) -> None:
    check_type(topic, "UNSPECIFIED", {keys_of.SHARDING_KEY: "g"})
