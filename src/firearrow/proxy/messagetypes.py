"""Types of messages and topics: the type of a message by its properties, and the types that a topic takes.

A topic has its type in the attribute ``message.type``. The first row that fits a message's properties is its type::

    TRANSACTION  TRAN_MSG is "true"
    DELAY        DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS
    FIFO         __SHARDINGKEY
    PRIORITY     _SYS_MSG_PRIORITY_
    LITE         __LITE_TOPIC
    NORMAL       every other message

A topic of the type MIXED takes all of them.

Source: RocketMQ's ``TopicMessageType``, ``DefaultTopicMessageTypeValidator``, ``RouteActivity#parseTopicMessageType``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.proxy.messages import Code, MessageType
from firearrow.proxy.statuses import PROXY_EXCEPTION, ProxyError

ATTRIBUTE: Final = "message.type"
"""Attribute of a topic; a topic without it is NORMAL."""
UNSPECIFIED: Final = "UNSPECIFIED"
MIXED: Final = "MIXED"
NORMAL: Final = MessageType.NORMAL.name

_OF_MIXED: Final = [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]
_TYPES: Final = {kind.name: kind for kind in MessageType if kind is not MessageType.MESSAGE_TYPE_UNSPECIFIED}
_DELAYS: Final = frozenset({keys_of.DELAY_LEVEL, *keys_of.DELIVERY_TIMES})
_DECIDING: Final = _DELAYS | {keys_of.TRANSACTION_PREPARED, keys_of.SHARDING_KEY, keys_of.PRIORITY, keys_of.LITE_TOPIC}


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message by its properties."""
    if _DECIDING.isdisjoint(properties):  # nearly always
        return MessageType.NORMAL
    if properties.get(keys_of.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if keys_of.SHARDING_KEY in properties:
        return MessageType.FIFO
    if keys_of.PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.LITE if keys_of.LITE_TOPIC in properties else MessageType.NORMAL


def accepted_types(topic_type: str) -> list[MessageType]:
    """Return the types that a route names for a topic of a type; for a type without a row, the unspecified one."""
    if topic_type == MIXED:
        return list(_OF_MIXED)
    return [_TYPES.get(topic_type, MessageType.MESSAGE_TYPE_UNSPECIFIED)]


def check_type(topic: str, topic_type: str, properties: Mapping[str, str]) -> None:
    """Check that a message is of its topic's type: `Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE` if not.

    Retry and dead-letter topics take every message. A topic without a route has the type UNSPECIFIED, so no message
    fits.
    """
    kind = type_of(properties)
    if topic_type == NORMAL and kind is MessageType.NORMAL:  # nearly always
        return
    if not names.is_retry(topic) and not names.is_dlq(topic):
        check_type_name(topic_type, kind.name)


def check_type_name(topic_type: str, wanted: str) -> None:
    """Check that a topic of a type takes messages of another type: the same, or any if it is MIXED.

    A recall needs a topic that takes DELAY.
    """
    if topic_type not in (wanted, MIXED):
        raise ProxyError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"{PROXY_EXCEPTION}TopicMessageType validate failed, the expected type is {topic_type}, "
            f"but actual type is {wanted}",
        )
