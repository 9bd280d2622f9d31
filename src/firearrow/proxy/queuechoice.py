"""Choice of a queue for a send: by a key, always the same one, or the next in turn.

Messages of a group must go to one queue, also if a proxy of RocketMQ and one of Firearrow serve the same producers.
Both use the same consistent hash: with one queue more, only the groups that the new queue gets move. It is fed with
Java's hash of the key::

    java_hash("order-17") = 1234255109, of 8 queues the one at 3

The queues must be in RocketMQ's order: sorted by the name of the broker, then by id.

Source: Guava's ``Hashing#consistentHash``, RocketMQ's ``SendMessageQueueSelector``, ``MessageQueueSelector``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from firearrow.message.names import java_hash
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import PROXY_EXCEPTION, ProxyError

T = TypeVar("T")

_FACTOR: Final = 2_862_933_555_777_941_757
_MASK: Final = (1 << 64) - 1
_FRACTIONS: Final = float(1 << 31)


def consistent_hash(number: int, buckets: int) -> int:
    """Return the bucket (from 0) of a signed 64-bit number; the count of buckets must be above 0."""
    assert buckets > 0, buckets
    state = number & _MASK
    bucket = 0
    while True:
        state = _FACTOR * state + 1 & _MASK
        following = int((bucket + 1) / (((state >> 33) + 1) / _FRACTIONS))
        if following >= buckets:
            return bucket
        bucket = following


def queue_for(key: str, queues: Sequence[T]) -> T:
    """Return the queue of a key; raises ProxyError if there is none."""
    if not queues:
        raise _no_queue()
    return queues[consistent_hash(java_hash(key), len(queues))]


class Turns:
    """Turns of the queues of a topic: each send gets the next one."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def queue_of(self, queues: Sequence[T]) -> T:
        """Return the next queue; raises ProxyError if there is none."""
        if not queues:
            raise _no_queue()
        turn = self._next
        self._next = turn + 1
        return queues[turn % len(queues)]


def _no_queue() -> ProxyError:
    return ProxyError(Code.FORBIDDEN, f"{PROXY_EXCEPTION}no writable queue")
