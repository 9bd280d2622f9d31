"""Subscription of a consumer to a topic: an expression of tags, or an SQL92 expression.

Source: upstream ``FilterAPI#buildSubscriptionData``, ``PullAPIWrapper#processPullResult``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum, auto
from typing import Final

from firearrow.client.message import Message
from firearrow.errors import ConfigError
from firearrow.message.names import is_retry, java_hash
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


# --- First offset at which a client reads a queue ---
#
#  An offset that is stored counts. Without one it is the client's choice, for which it may have to ask the broker.
# What a group has failed itself (its retry topic) has choices of its own.
#
# Source: upstream ``RebalancePushImpl#computePullFromWhereWithException``.


NONE_STORED: Final = -1


class StartFrom(Enum):
    """Start of a group without an offset; the values are RocketMQ's names of them."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Behind what is there: it gets what is sent from now on."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message there is."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored since some time."""


class OffsetQuery(Enum):
    """Question to a broker that decides on the first offset."""

    MAX_OFFSET = auto()
    OFFSET_AT_TIME = auto()


def start_offset(topic: str, stored: int, start_from: StartFrom) -> int | OffsetQuery:
    """Give the offset to begin with, or what is to be asked for it."""
    if stored >= 0:
        return stored
    if start_from is StartFrom.FIRST:
        return 0
    if start_from is StartFrom.LAST:
        return 0 if is_retry(topic) else OffsetQuery.MAX_OFFSET
    return OffsetQuery.MAX_OFFSET if is_retry(topic) else OffsetQuery.OFFSET_AT_TIME


def to_start(start: StartFrom | datetime | None) -> tuple[StartFrom, int | None]:
    """Give where to begin and the time for that, in ms since 1970; a naive time is local."""
    if isinstance(start, datetime):
        return StartFrom.TIMESTAMP, int(start.timestamp() * 1000)
    return start or StartFrom.LAST, None
