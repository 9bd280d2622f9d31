"""How a broker divides what is popped among the clients of a group (400).

By POP queues are shared: a division is by brokers, or by queues with some neighbours. What each
client has without that is in ``wire.allocation``.

Source: upstream ``QueryAssignmentProcessor``.
"""

from __future__ import annotations

from collections.abc import Sequence

from firearrow.wire.allocation import Queues, Strategy
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.pop import ANY_QUEUE


def shared_for_pop(strategy: Strategy, queues: Queues, clients: Sequence[str], client: str, share: int) -> Queues:
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
