"""First offset at which a client reads a queue.

An offset that is stored counts. Without one it is the client's choice, for which it may have to ask
the broker. What a group has failed itself (its retry topic) has choices of its own.

Source: upstream ``RebalancePushImpl#computePullFromWhereWithException``.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import Final

from firearrow.message.names import is_retry

NONE_STORED: Final = -1


class StartFrom(Enum):
    """Start of a group without an offset; the values are RocketMQ's names of them."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Behind what is there: it gets what is sent from now on."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message there is."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored since some time."""


class Ask(Enum):
    """Question to a broker that decides on the first offset."""

    MAX_OFFSET = auto()
    OFFSET_AT_TIME = auto()


def start_offset(topic: str, stored: int, start_from: StartFrom) -> int | Ask:
    """Give the offset to begin with, or what is to be asked for it."""
    if stored >= 0:
        return stored
    if start_from is StartFrom.FIRST:
        return 0
    if start_from is StartFrom.LAST:
        return 0 if is_retry(topic) else Ask.MAX_OFFSET
    return Ask.MAX_OFFSET if is_retry(topic) else Ask.OFFSET_AT_TIME


def to_start(start: StartFrom | datetime | None) -> tuple[StartFrom, int | None]:
    """Give where to begin and the time for that, in ms since 1970; a naive time is local."""
    if isinstance(start, datetime):
        return StartFrom.TIMESTAMP, int(start.timestamp() * 1000)
    return start or StartFrom.LAST, None
