"""How a broker divides the queues of a topic among the clients of a group (400).

Each client asks for itself, of any broker: all come to the same division, as long as they know the
same queues and clients, both sorted. By POP queues are shared, so a division is by brokers, or by
queues with some neighbours.

Source: upstream ``QueryAssignmentProcessor``, ``AllocateMessageQueueAveragely``,
``AllocateMessageQueueAveragelyByCircle``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from firearrow.wire.client_bodies import MessageQueue

ANY_QUEUE: Final = -1

Queues = Sequence[MessageQueue]


def averagely(queues: Queues, clients: Sequence[str], client: str) -> Queues:
    """Give the client a stretch of the queues; the first ones have one more if that must be."""
    if client not in clients:
        return []
    index = clients.index(client)
    size, more = divmod(len(queues), len(clients))
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]


def averagely_by_circle(queues: Queues, clients: Sequence[str], client: str) -> Queues:
    """Give the client every n-th queue of n clients."""
    return queues[clients.index(client) :: len(clients)] if client in clients else []


Strategy = Callable[[Queues, Sequence[str], str], Queues]

STRATEGIES: Final[Mapping[str, Strategy]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": averagely_by_circle,
}


def shared_for_pop(
    strategy: Strategy, queues: Queues, clients: Sequence[str], client: str, share: int
) -> Queues:
    """Give the client what it may pop from.

    Each queue goes to a client and the ``share`` before it; with 0 or less, or where that would be
    all of them, everybody has all brokers. With more clients than queues, each has one queue.
    """
    if share <= 0 or share >= len(clients) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, broker_name, ANY_QUEUE) for topic, broker_name in brokers]
    if client not in clients:
        return []
    index = clients.index(client)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    neighbours = [clients[(index + ahead) % len(clients)] for ahead in range(share + 1)]
    return [queue for other in neighbours for queue in strategy(queues, clients, other)]
