"""Subscriptions to lite topics; in memory only, as clients repeat them every 30 s.

A client of a group subscribes to lite topics one by one, or to all of the parent if the group has the attribute
``lite.sub.wildcard``. Here the name of a lite topic is that of its queue (``%LMQ%$parent$lite``).

Source: RocketMQ ``LiteSubscriptionRegistryImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from firearrow.broker.groups.clients import ClientChannel
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.events import Event
from firearrow.message.names import lite_parts
from firearrow.wire.codes import ResponseCode

CLIENTS_MAX: Final = 50_000  # of all groups: some 40 MB; each is a process, or a part of one
EVERYBODY: Final = "*"
"""Client id under which pops of a group with a wildcard wait."""
_POPS: Final = -1
_NOTIFICATIONS: Final = 0


def waiting_key(parent: str, client_id: str, group: str) -> tuple[str, str, int]:
    """Return the key under which pops of a client wait (``HeldPops``)."""
    return parent, f"{client_id}@{group}", _POPS


def notification_key(pops: tuple[str, str, int]) -> tuple[str, str, int]:
    """Return the key for notifications of a client, by the key for its pops."""
    return *pops[:2], _NOTIFICATIONS


class FirstLiteSubscription(NamedTuple):
    """A client subscribes to lite topics, the first since the start."""


class Subscriber:
    """Client of a group, its subscriptions, and the lite topics that are ready for it.

    ``ready`` has the queues that may have messages for the group, oldest first; clients of a group with a wildcard
    share it. ``attempt_id`` and ``taken`` belong to its last pop.
    """

    __slots__ = (
        *("attempt_id", "channel", "client_id", "group", "heard_at", "is_wildcard", "parent"),
        *("popped_ms", "queues", "ready", "taken"),
    )

    def __init__(self, client_id: str, group: str, parent: str, ready: dict[str, None], *, is_wildcard: bool) -> None:
        self.client_id = client_id
        self.group = group
        self.parent = parent
        self.is_wildcard = is_wildcard
        self.queues: dict[str, None] = {}
        self.ready = ready
        self.channel: ClientChannel | None = None
        self.heard_at: float = 0.0
        self.popped_ms = -1  # time of its last pop
        self.attempt_id: str | None = None
        self.taken: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Key under which its pops wait (``HeldPops``); with a wildcard, the key of the whole group."""
        client_id = EVERYBODY if self.is_wildcard else self.client_id
        return waiting_key(self.parent, client_id, self.group)


class LiteSubscriptions:
    """All subscribers. ``count`` is the number of subscriptions to single lite topics, ``client_count`` the number of
    clients.

    The first subscription ever is an event: before it no message is examined for lite topics.
    """

    def __init__(self, clock: Clock, begun: Event[FirstLiteSubscription]) -> None:
        self._monotonic = clock.monotonic
        self._begun = begun
        self._has_begun = False
        self._by_group: dict[str, dict[str, Subscriber]] = {}
        self._by_queue: dict[str, tuple[Subscriber, ...]] = {}
        # Groups with a wildcard by parent, and their clients.
        self._wildcards: dict[str, dict[str, dict[str, Subscriber]]] = {}
        self.count: int = 0
        self.client_count: int = 0

    def find(self, client_id: str, group: str) -> Subscriber | None:
        """Return a client of a group, None if it has no subscription."""
        return self._by_group.get(group, {}).get(client_id)

    def join(
        self, client_id: str, group: str, parent: str, channel: ClientChannel | None, *, is_wildcard: bool
    ) -> tuple[Subscriber, bool]:
        """Return the client of a present request, and whether it is new.

        A client with another parent, or of another kind than before, begins again. Raise BrokerError if there are too
        many.
        """
        known = self.find(client_id, group)
        if known is not None and (known.parent, known.is_wildcard) != (parent, is_wildcard):
            self.leave(known)
            known = None
        is_new = known is None
        if not self._has_begun:
            self._has_begun = True
            self._begun(FirstLiteSubscription())
        if known is None:
            if self.client_count >= CLIENTS_MAX:
                raise BrokerError(
                    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                    f"{self.client_count} clients subscribe to lite topics, the limit is {CLIENTS_MAX}",
                )
            known = self._new(client_id, group, parent, is_wildcard=is_wildcard)
        known.heard_at = self._monotonic()
        known.channel = channel or known.channel
        return known, is_new

    def _new(self, client_id: str, group: str, parent: str, *, is_wildcard: bool) -> Subscriber:
        ready: dict[str, None] = {}
        if is_wildcard:
            clients = self._wildcards.setdefault(parent, {}).setdefault(group, {})
            for other in clients.values():
                ready = other.ready
        subscriber = Subscriber(client_id, group, parent, ready, is_wildcard=is_wildcard)
        if is_wildcard:
            clients[client_id] = subscriber
        self._by_group.setdefault(group, {})[client_id] = subscriber
        self.client_count += 1
        return subscriber

    def add(self, subscriber: Subscriber, queue: str) -> bool:
        """Subscribe a client to a lite topic; return False if it was subscribed."""
        if queue in subscriber.queues:
            return False
        subscriber.queues[queue] = None
        self._by_queue[queue] = (*self._by_queue.get(queue, ()), subscriber)
        self.count += 1
        return True

    def remove(self, subscriber: Subscriber, queue: str) -> bool:
        """Unsubscribe a client from a lite topic; return False if it was not subscribed."""
        if queue not in subscriber.queues:
            return False
        del subscriber.queues[queue]
        subscriber.ready.pop(queue, None)
        left = tuple(other for other in self._by_queue[queue] if other is not subscriber)
        if left:
            self._by_queue[queue] = left
        else:
            del self._by_queue[queue]
        self.count -= 1
        return True

    def leave(self, subscriber: Subscriber) -> None:
        """Forget a client."""
        for queue in list(subscriber.queues):
            self.remove(subscriber, queue)
        clients = self._by_group[subscriber.group]
        del clients[subscriber.client_id]
        self.client_count -= 1
        if not clients:
            del self._by_group[subscriber.group]
        if not subscriber.is_wildcard:
            return
        groups = self._wildcards[subscriber.parent]
        del groups[subscriber.group][subscriber.client_id]
        if not groups[subscriber.group]:
            del groups[subscriber.group]
        if not groups:
            del self._wildcards[subscriber.parent]

    def forget_queue(self, queue: str) -> None:
        """Forget a deleted lite topic."""
        for subscriber in self._by_queue.get(queue, ()):
            self.remove(subscriber, queue)
        for subscriber in self.wildcards_of(queue):
            subscriber.ready.pop(queue, None)

    def of_queue(self, queue: str) -> Iterable[Subscriber]:
        """Return the subscribers of a lite topic by its name."""
        return self._by_queue.get(queue, ())

    def wildcards_of(self, queue: str) -> Iterator[Subscriber]:
        """Yield one client of each group that consumes all lite topics of this one's parent."""
        if self._wildcards:
            parts = lite_parts(queue)
            for clients in self._wildcards.get(parts[0] if parts else "", {}).values():
                yield next(iter(clients.values()))

    def wildcard_ready(self, parent: str, group: str) -> bool:
        """Return whether a lite topic is ready for a group with a wildcard."""
        clients = self._wildcards.get(parent, {}).get(group)
        return bool(clients and next(iter(clients.values())).ready)

    def of_group(self, group: str) -> list[Subscriber]:
        """Return the clients of a group."""
        return list(self._by_group.get(group, {}).values())

    def groups(self) -> list[str]:
        """Return the groups that have clients."""
        return list(self._by_group)

    def silent(self, seconds: float) -> list[Subscriber]:
        """Return the clients without a request for a time."""
        before = self._monotonic() - seconds
        return [
            client for clients in self._by_group.values() for client in clients.values() if client.heard_at < before
        ]
