"""Which broker of a cluster has a lite topic: a client chooses a queue of the parent by its name.

Source: upstream ``LiteShardingImpl``; the hash is Guava's ``Hashing#consistentHash``.
"""

from __future__ import annotations

from typing import Final

from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.message.names import java_hash

_MASK: Final = (1 << 64) - 1


def bucket(name: str, count: int) -> int:
    """Choose one of ``count``, such that with one more few names change their place."""
    assert count > 0
    state = java_hash(name) & _MASK
    chosen = 0
    while True:
        state = (state * 2862933555777941757 + 1) & _MASK
        drawn = ((state >> 33) + 1) / (1 << 31)
        following = int((chosen + 1) / drawn)
        if not 0 <= following < count:
            return chosen
        chosen = following


class LiteSharding:
    """Says whether lite topics are this broker's, as far as it knows where the parent's queues
    are."""

    def __init__(self, routes: TopicRoutes, broker_name: str) -> None:
        self._routes = routes
        self._broker_name = broker_name

    def is_here(self, parent: str, lite_topic: str) -> bool:
        """Whether a lite topic is this broker's; where nothing is known yet, it is."""
        found: list[Queues | None] = []
        self._routes.find(parent, found.append)
        queues = found[0] if found else None
        if not queues:
            return True
        return queues[bucket(lite_topic, len(queues))].broker_name == self._broker_name
