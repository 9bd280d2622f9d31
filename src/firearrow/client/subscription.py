"""Subscription of a consumer to a topic: an expression of tags, or an SQL92 expression.

Source: upstream ``FilterAPI#buildSubscriptionData``, ``PullAPIWrapper#processPullResult``.
"""

from __future__ import annotations

from collections.abc import Iterable

from firearrow.client.message import Message
from firearrow.errors import ConfigError
from firearrow.message.names import java_hash
from firearrow.wire.client_bodies import SQL92, SUBSCRIBE_ALL, TAG, SubscriptionData, tags_in


def subscription_to(
    topic: str, version_ms: int, *, tags: str | Iterable[str] = SUBSCRIBE_ALL, sql: str = ""
) -> SubscriptionData:
    """Give a subscription to a topic.

    ``tags`` is ``A || B``, or the tags; ``sql`` an expression by SQL92 in place of that. The
    version says since when this is wanted. Raises ConfigError for an expression of no tag.
    """
    text = tags if isinstance(tags, str) else " || ".join(tags)
    if sql:
        if text != SUBSCRIBE_ALL:
            raise ConfigError(f"topic {topic!r}: either by tags {text!r} or by SQL {sql!r}")
        return SubscriptionData(topic, sql, version_ms, SQL92)
    wanted = tags_in(text)
    if wanted is None:
        return SubscriptionData(topic, SUBSCRIBE_ALL, version_ms, TAG)
    if not wanted:
        raise ConfigError(f"topic {topic!r}: the subscription expression {text!r} names no tag")
    wanted = sorted(set(wanted))
    return SubscriptionData(topic, text, version_ms, TAG, wanted, list(map(java_hash, wanted)))


def wanted_of(messages: list[Message], subscription: SubscriptionData) -> list[Message]:
    """The messages that are wanted: brokers compare hashes of tags, which may be the same."""
    if not subscription.tags_set:
        return messages
    return [message for message in messages if message.tag in subscription.tags_set]
