"""Topics and groups of a request, for the decision whether its sender may use them.

Most requests name them in fields of their header, some in their body. If a request refers to a message by its place in
the log, that message's topic counts, not the request's fields.

Source: RocketMQ's ``DefaultAuthorizationContextBuilder`` and the annotations of its headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from msgspec.structs import fields

from firearrow.errors import BrokerError, MessageError
from firearrow.message import properties
from firearrow.message.ids import decode_offset_id
from firearrow.message.names import is_sendable, reply_topic
from firearrow.wire.client_bodies import (
    AssignmentQuery,
    BatchAckBody,
    CheckClient,
    GroupConfigList,
    GroupNames,
    Heartbeat,
    LiteSubscriptionChanges,
    LockRequest,
    SubscriptionGroupConfig,
    TopicConfigList,
    TopicNames,
    body_of,
)
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import Header
from firearrow.wire.requests import Row

_TOPIC_FIELDS: Final = frozenset({"topic", "b", "parentTopic"})
_GROUP_FIELDS: Final = frozenset({"consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup"})
_TOPIC_LIST: Final = "topicList"  # joined by `;`
_TOPIC_LIST_CHARS_MAX: Final = 128 * 1024  # a thousand topics with long names

_real_topic: Final = properties.finder(properties.REAL_TOPIC)

Ext = Mapping[str, str]


class RequestResources(NamedTuple):
    """Topics and groups of a request. ``is_all`` tells that the request concerns nothing else: if it names none, it
    changes nothing and returns nothing.
    """

    topics: Iterable[str] = ()
    groups: Iterable[str] = ()
    is_all: bool = False


class NamedMessage(Protocol):
    """Part of a stored message."""

    @property
    def topic(self) -> str: ...

    @property
    def properties(self) -> bytes: ...


class MessagesByPlace(Protocol):
    """Stored messages, for example in a `MessageStore`."""

    def named_at(self, physical_offset: int, /) -> NamedMessage:
        """Return the message at a place that a client names; MessageError without one."""
        ...


Finder = Callable[[AnyCommand, Ext], RequestResources]
"""Finds the topics and groups of a request; BrokerError if it can't be read."""


def fields_naming(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the header fields of a request that name topics, and those that name groups."""
    if row.header is None or not issubclass(row.header, Header):
        return (), ()  # there is none, or no handler reads it
    names = [field.encode_name for field in fields(row.header)]
    return (
        tuple(name for name in names if name in _TOPIC_FIELDS),
        tuple(name for name in names if name in _GROUP_FIELDS),
    )


def finder_of(row: Row, store: MessagesByPlace, cluster: str) -> Finder | None:
    """Return the function that finds the topics and groups of a code's requests; None if `fields_naming` is enough."""
    text = text_field_of(row)
    if text is not None:
        is_reply = row.code in _REPLIES
        return _of_send(row, text, (reply_topic(cluster),) if is_reply else ())
    found = _IN_BODIES.get(row.code)
    if found is not None:
        return found
    at_place = _AT_PLACES.get(row.code)
    if at_place is not None:
        return _by_place(row, at_place, store)
    return _SPECIAL.get(row.code)


# --- in the properties of a message ---

LMQ_MARK: Final = properties.INNER_MULTI_DISPATCH
_TEXT_FIELDS: Final = frozenset({"properties", "i"})
_REPLIES: Final = frozenset({Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2})


def text_field_of(row: Row) -> str | None:
    """Return the header field with the properties of a message that is sent; None if there is none."""
    if row.header is None or not issubclass(row.header, Header):
        return None
    names = [field.encode_name for field in fields(row.header)]
    return next((name for name in names if name in _TEXT_FIELDS), None)


def _of_send(row: Row, text_field: str, also: tuple[str, ...]) -> Finder:
    """Return a finder for sends. A message goes to its topic, and to the LMQs in a property. Replies are forwarded to
    the waiting client, whatever topic they name (``also``).
    """
    [field], _ = fields_naming(row)

    def find(_: AnyCommand, ext: Ext) -> RequestResources:
        text = ext.get(text_field) or ""
        lmqs = properties.parse(text).get(LMQ_MARK, "") if LMQ_MARK in text else ""
        topics = ext.get(field, ""), *also, *lmqs.split(",")
        return RequestResources([topic for topic in topics if topic])

    return find


# --- in the body ---


def _of_heartbeat(request: AnyCommand, _: Ext) -> RequestResources:
    """Find the groups of a heartbeat. Only producers that may send to any topic are registered."""
    consumers = body_of(request, Heartbeat).consumer_data_set
    topics = [data.topic for each in consumers for data in each.subscription_data_set]
    return RequestResources(topics, [each.group_name for each in consumers], is_all=True)


def _of_check(request: AnyCommand, _: Ext) -> RequestResources:
    """Find the names in a check of a client; an empty body is allowed to everybody."""
    if not request.body:
        return RequestResources(is_all=True)
    asked = body_of(request, CheckClient)
    data = asked.subscription_data
    topics = [data.topic] if data is not None and data.topic else []
    return RequestResources(topics, [asked.group] if asked.group else [])


def _of_locks(request: AnyCommand, _: Ext) -> RequestResources:
    asked = body_of(request, LockRequest)
    return RequestResources([queue.topic for queue in asked.mq_set], [asked.consumer_group])


def _of_assignment(request: AnyCommand, _: Ext) -> RequestResources:
    asked = body_of(request, AssignmentQuery)
    return RequestResources([asked.topic], [asked.consumer_group])


def _of_acks(request: AnyCommand, _: Ext) -> RequestResources:
    if not request.body:
        return RequestResources(is_all=True)
    acks = body_of(request, BatchAckBody).acks
    return RequestResources([ack.topic for ack in acks], [ack.group for ack in acks], is_all=True)


def _of_lite_subscriptions(request: AnyCommand, _: Ext) -> RequestResources:
    if not request.body:
        return RequestResources(is_all=True)
    changes = body_of(request, LiteSubscriptionChanges).subscription_set or []
    topics = [change.topic for change in changes if change.topic]
    return RequestResources(topics, [change.group for change in changes if change.group], is_all=True)


def _of_topic_configs(request: AnyCommand, _: Ext) -> RequestResources:
    configs = body_of(request, TopicConfigList).topic_config_list
    return RequestResources([config.topic_name or "" for config in configs], is_all=True)


def _of_group_config(request: AnyCommand, _: Ext) -> RequestResources:
    return RequestResources((), [body_of(request, SubscriptionGroupConfig).group_name])


def _of_group_configs(request: AnyCommand, _: Ext) -> RequestResources:
    configs = body_of(request, GroupConfigList).group_config_list
    return RequestResources((), [config.group_name for config in configs], is_all=True)


def _of_topic_names(request: AnyCommand, _: Ext) -> RequestResources:
    return RequestResources(body_of(request, TopicNames).topic_list, is_all=True)


def _of_group_names(request: AnyCommand, _: Ext) -> RequestResources:
    return RequestResources((), body_of(request, GroupNames).group_name_list, is_all=True)


_IN_BODIES: Final[Mapping[Code, Finder]] = {
    Code.HEART_BEAT: _of_heartbeat,
    Code.CHECK_CLIENT_CONFIG: _of_check,
    Code.LOCK_BATCH_MQ: _of_locks,
    Code.UNLOCK_BATCH_MQ: _of_locks,
    Code.QUERY_ASSIGNMENT: _of_assignment,
    Code.BATCH_ACK_MESSAGE: _of_acks,
    Code.LITE_SUBSCRIPTION_CTL: _of_lite_subscriptions,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _of_topic_configs,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _of_group_config,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _of_group_configs,
    Code.DELETE_TOPIC_IN_BROKER_LIST: _of_topic_names,
    Code.DELETE_SUBSCRIPTIONGROUP_LIST: _of_group_names,
}

# --- in the header, and not in fields alone ---


def _of_unregistering(_: AnyCommand, ext: Ext) -> RequestResources:
    """Find the group of a client that leaves; a producer may always leave."""
    group = ext.get("consumerGroup")
    return RequestResources((), [group] if group else (), is_all=True)


def _of_progress(_: AnyCommand, ext: Ext) -> RequestResources:
    listed = ext.get(_TOPIC_LIST, "")
    if len(listed) > _TOPIC_LIST_CHARS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"{_TOPIC_LIST} has {len(listed)} characters, the limit is {_TOPIC_LIST_CHARS_MAX}",
        )
    topics = [ext.get("topic", ""), *listed.split(";")]
    return RequestResources([topic for topic in topics if topic], [ext.get("consumerGroup", "")])


_SPECIAL: Final[Mapping[Code, Finder]] = {
    Code.UNREGISTER_CLIENT: _of_unregistering,
    Code.GET_CONSUME_STATS: _of_progress,
}

# --- by a place in the log ---


def _offset_in(field: str) -> Callable[[Ext], int | None]:
    def offset(ext: Ext) -> int | None:
        try:
            return int(ext.get(field, ""))
        except ValueError:
            return None

    return offset


def _offset_of_id(ext: Ext) -> int | None:
    try:
        return decode_offset_id(ext.get("msgId", "")).physical_offset
    except MessageError:
        return None


_AT_PLACES: Final[Mapping[Code, Callable[[Ext], int | None]]] = {
    Code.VIEW_MESSAGE_BY_ID: _offset_in("offset"),
    Code.CONSUMER_SEND_MSG_BACK: _offset_in("offset"),
    Code.END_TRANSACTION: _offset_in("commitLogOffset"),
    Code.CONSUME_MESSAGE_DIRECTLY: _offset_of_id,
    Code.RESUME_CHECK_HALF_MESSAGE: _offset_of_id,
}


def _by_place(row: Row, offset_of: Callable[[Ext], int | None], store: MessagesByPlace) -> Finder:
    topic_fields, group_fields = fields_naming(row)

    def find(_: AnyCommand, ext: Ext) -> RequestResources:
        offset = offset_of(ext)
        if offset is None:
            return RequestResources()  # regardless of its fields: the message is unknown
        stored = _topic_at(store, offset)
        claimed = [name for field in topic_fields if (name := ext.get(field))]
        topics = claimed if stored is None else [stored]
        return RequestResources(topics, [name for field in group_fields if (name := ext.get(field))])

    return find


def _topic_at(store: MessagesByPlace, physical_offset: int) -> str | None:
    """Return the final topic of a stored message; None if there is no message."""
    try:
        content = store.named_at(physical_offset)
    except MessageError:
        return None
    if is_sendable(content.topic):
        return content.topic
    real_topic = _real_topic(content.properties)  # only the broker puts waiting messages there
    return content.topic if real_topic is None else real_topic.decode("utf-8", "replace")
