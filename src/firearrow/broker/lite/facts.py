"""Attributes of topics and groups that concern lite topics.

Source: RocketMQ ``LiteMetadataUtil``.
"""

from __future__ import annotations

from collections.abc import Mapping

from firearrow.broker.state.attributes import LITE, LITE_BIND_TOPIC, MESSAGE_TYPE
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig


def is_parent(topic: TopicConfig) -> bool:
    """Return whether a topic has lite topics."""
    return topic.attributes.get(MESSAGE_TYPE) == LITE


def expiration_minutes(topic: TopicConfig) -> int:
    """Return the minutes without a message after which a lite topic of a topic is deleted; -1: never."""
    return int(topic.attributes.get("lite.topic.expiration", "-1"))


def parent_of(group: SubscriptionGroupConfig | None) -> str | None:
    """Return the topic whose lite topics a group consumes, None for any other group."""
    return None if group is None else group.attributes.get(LITE_BIND_TOPIC)


def groups_of(groups: Mapping[str, SubscriptionGroupConfig], parent: str) -> list[str]:
    """Return the groups that consume the lite topics of a topic."""
    return [name for name, group in groups.items() if parent_of(group) == parent]


def is_exclusive(group: SubscriptionGroupConfig | None) -> bool:
    """Return whether only one client of a group can subscribe to a lite topic, the last one."""
    return group is not None and group.attributes.get("lite.sub.model") == "Exclusive"


def is_wildcard(group: SubscriptionGroupConfig | None) -> bool:
    """Return whether a group consumes all lite topics of its parent."""
    return group is not None and "lite.sub.wildcard" in group.attributes


def begins_again(group: SubscriptionGroupConfig | None, *, evicted: bool) -> bool:
    """Return whether a group consumes a lite topic from its first message again after a client gave it up.

    With ``evicted``, the client has lost it to another one.
    """
    key = "exclusive" if evicted else "unsubscribe"
    name = f"lite.sub.reset.offset.{key}"
    return group is not None and group.attributes.get(name) == "true"
