"""Strategies that divide the queues of a topic among the clients of a group.

Each client, or the broker for it (400), computes the division. All results agree if all know the same queues and
clients, both sorted. A strategy is a function of the queues, the clients and one client. It returns the queues of that
client, and none if the client is not in the group.

Source: RocketMQ's ``AllocateMessageQueueStrategy`` and the classes that implement it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import md5
from typing import Final, NamedTuple, TypeVar

from firearrow.errors import ConfigError
from firearrow.wire.client_bodies import MessageQueue

VIRTUAL_NODES: Final = 10  # places of a client on the ring of CONSISTENT_HASH
_ROOM_END: Final = "@"

T = TypeVar("T")

Queues = Sequence[MessageQueue]
Divide = Callable[[Queues, Sequence[str], str], Queues]


class Strategy(NamedTuple):
    """A way to divide queues, with its name at brokers, if they know it."""

    name: str
    divide: Divide
    is_for_members: bool = True

    def __call__(self, queues: Queues, clients: Sequence[str], client: str) -> Queues:
        """Return the queues of a client; none if the strategy needs it among the clients and it is not."""
        if self.is_for_members and client not in clients:
            return []
        return self.divide(queues, clients, client)


def _averagely(queues: Queues, clients: Sequence[str], client: str) -> Queues:
    """Return a run of the queues; the first clients get one more if the division has a remainder."""
    index = clients.index(client)
    size, more = divmod(len(queues), len(clients))
    start = index * size + min(index, more)
    assert start + size + (index < more) <= len(queues)
    return queues[start : start + size + (index < more)]


def _by_circle(queues: Queues, clients: Sequence[str], client: str) -> Queues:
    """Return every n-th queue for n clients."""
    return queues[clients.index(client) :: len(clients)]


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Return the strategy that moves few queues when a client joins or leaves.

    Each client has ``virtual_nodes`` places on a ring of hashes; a queue belongs to the next place on the ring.
    """
    if virtual_nodes < 1:
        raise ConfigError(f"{virtual_nodes} virtual nodes of a client: there must be one at least")

    def divide(queues: Queues, clients: Sequence[str], client: str) -> Queues:
        owners = {_hash(f"{one}-{number}"): one for one in clients for number in range(virtual_nodes)}
        ring = sorted(owners)
        assert ring, "the client is one of them"

        def owner(queue: MessageQueue) -> str:
            return owners[ring[bisect_left(ring, _hash(queue.text)) % len(ring)]]

        return [queue for queue in queues if owner(queue) == client]

    return Strategy("CONSISTENT_HASH", divide)


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def machine_room(rooms: Collection[str]) -> Strategy:
    """Return the strategy that divides the queues of some machine rooms only.

    The brokers there have names of the form ``room@name``.
    """

    def divide(queues: Queues, clients: Sequence[str], client: str) -> Queues:
        kept = [queue for queue in queues if room_of(queue.broker_name) in rooms]
        size, more = divmod(len(kept), len(clients))
        index = clients.index(client)
        own = kept[index * size : (index + 1) * size]
        assert len(own) == size, "the remainder is at the end"
        return own + kept[len(clients) * size + index :][: index < more]

    return Strategy("MACHINE_ROOM", divide)


def room_of(broker_name: str) -> str | None:
    """Return the machine room at the begin of a broker's name; None if it names none."""
    parts = broker_name.rstrip(_ROOM_END).split(_ROOM_END)
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    inner: Strategy, queue_room: Callable[[MessageQueue], str], client_room: Callable[[str], str]
) -> Strategy:
    """Return the strategy that gives the queues of a machine room to the clients in it.

    The queues of a room without clients are divided among all clients. ``inner`` divides in either case.
    """

    def divide(queues: Queues, clients: Sequence[str], client: str) -> Queues:
        queues_in = _grouped(queues, queue_room)
        clients_in = _grouped(clients, client_room)
        room = client_room(client)
        assert client in clients_in[room], "one client has one room"
        own = list(inner(queues_in.get(room, []), clients_in[room], client))
        for other in sorted(queues_in.keys() - clients_in.keys()):
            own += inner(queues_in[other], clients, client)
        return own

    return Strategy(f"MACHINE_ROOM_NEARBY-{inner.name}", divide)


def _grouped(items: Sequence[T], room: Callable[[T], str]) -> dict[str, list[T]]:
    grouped: dict[str, list[T]] = {}
    for item in items:
        name = room(item)
        if not name:
            text = item.text if isinstance(item, MessageQueue) else item
            raise ConfigError(f"{text} is in no machine room")
        grouped.setdefault(name, []).append(item)
    return grouped


def configured(queues: Queues) -> Strategy:
    """Return the strategy that gives this client fixed queues, whatever the other clients have."""
    return Strategy("CONFIG", lambda *_: queues, is_for_members=False)


AVG: Final = Strategy("AVG", _averagely)
AVG_BY_CIRCLE: Final = Strategy("AVG_BY_CIRCLE", _by_circle)
CONSISTENT_HASH: Final = consistent_hash()

BROKER_STRATEGIES: Final[Mapping[str, Strategy]] = {strategy.name: strategy for strategy in (AVG, AVG_BY_CIRCLE)}
"""Strategies that brokers use."""
