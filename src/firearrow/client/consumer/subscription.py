"""Subscription of a consumer to a topic, by tags or by an SQL92 expression, and its first offset.

Source: RocketMQ's ``FilterAPI#buildSubscriptionData``, ``PullAPIWrapper#processPullResult``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum, auto
from typing import Final

from firearrow.client.arguments import texts_of
from firearrow.client.message import Message
from firearrow.errors import ConfigError
from firearrow.message.names import is_retry, java_hash
from firearrow.wire.client_bodies import SQL92, SUBSCRIBE_ALL, TAG, SubscriptionData, tags_in


def subscription_to(
    topic: str, version_ms: int, *, tags: str | Iterable[str] = SUBSCRIBE_ALL, sql: str = ""
) -> SubscriptionData:
    """Subscription to a topic.

    ``tags`` is ``A || B``, or the tags; ``sql`` is an SQL92 expression in place of tags. ``version_ms`` is the time of
    the subscription. Raises ConfigError for an expression without a tag.
    """
    texts_of([topic], "topic")
    text = " || ".join(texts_of(tags, "tags"))
    if sql:
        if text != SUBSCRIBE_ALL:
            raise ConfigError(f"topic {topic!r}: subscribe by tags {text!r} or by SQL {sql!r}, not by both")
        return SubscriptionData(topic, sql, version_ms, SQL92)
    wanted = tags_in(text)
    if wanted is None:
        return SubscriptionData(topic, SUBSCRIBE_ALL, version_ms, TAG)
    if not wanted:
        raise ConfigError(f"topic {topic!r}: the subscription expression {text!r} names no tag")
    wanted = sorted(set(wanted))
    return SubscriptionData(topic, text, version_ms, TAG, wanted, list(map(java_hash, wanted)))


def wanted_of(messages: list[Message], subscription: SubscriptionData) -> list[Message]:
    """Messages with a subscribed tag: brokers compare hashes of tags, which may collide."""
    if not subscription.tags_set:
        return messages
    return [message for message in messages if message.tag in subscription.tags_set]


# --- first offset of a queue ---
#
# A stored offset counts. Without one, the client's choice counts, which may need a request to the broker. The retry
# topic of a group has separate rules.
#
# Source: RocketMQ's ``RebalancePushImpl#computePullFromWhereWithException``.


NONE_STORED: Final = -1


class StartFrom(Enum):
    """First offset of a group without a stored offset; the values are RocketMQ's names."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message: the group gets all stored messages. The default."""
    LAST = "CONSUME_FROM_LAST_OFFSET"
    """After the last message: the group gets later messages only."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message that was stored at a time or later."""


class OffsetQuery(Enum):
    """Request to a broker that decides the first offset."""

    MAX_OFFSET = auto()
    OFFSET_AT_TIME = auto()


def start_offset(topic: str, stored: int, start_from: StartFrom) -> int | OffsetQuery:
    """First offset, or the request that decides it."""
    if stored >= 0:
        return stored
    if start_from is StartFrom.FIRST:
        return 0
    if start_from is StartFrom.LAST:
        return 0 if is_retry(topic) else OffsetQuery.MAX_OFFSET
    return OffsetQuery.MAX_OFFSET if is_retry(topic) else OffsetQuery.OFFSET_AT_TIME


def to_start(start: StartFrom | datetime) -> tuple[StartFrom, int | None]:
    """First offset and its time in ms since 1970; a naive time is local."""
    if isinstance(start, datetime):
        return StartFrom.TIMESTAMP, int(start.timestamp() * 1000)
    if start not in tuple(StartFrom):
        raise ConfigError(f"start: {start!r} is neither a StartFrom nor a datetime")
    return start, None
