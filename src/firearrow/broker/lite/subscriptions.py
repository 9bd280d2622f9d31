"""Subscriptions to lite topics; in memory only, as clients repeat them every 30 s.

A client of a group subscribes to lite topics one by one, or, where the group's attribute
``lite.sub.wildcard`` says so, to all of the parent. Lite topics are named by their queues here
(``%LMQ%$parent$lite``).

Source: upstream ``LiteSubscriptionRegistryImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from firearrow.broker.groups.clients import Channel
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.events import Event
from firearrow.message.names import lite_parts
from firearrow.wire.codes import ResponseCode

CLIENTS_MAX: Final = 50_000  # of all groups: some 40 MB; each is a process, or a part of one
EVERYBODY: Final = "*"
"""The client id under which pops of a group with a wildcard wait."""
_POPS: Final = -1
_NOTIFICATIONS: Final = 0


def waiting_key(parent: str, client_id: str, group: str) -> tuple[str, str, int]:
    """Give what pops of a client wait under (``HeldPops``)."""
    return parent, f"{client_id}@{group}", _POPS


def notification_key(pops: tuple[str, str, int]) -> tuple[str, str, int]:
    """Give what notifications wait under for a client whose pops wait under a key."""
    return *pops[:2], _NOTIFICATIONS


class LiteBegun(NamedTuple):
    """A client subscribes to lite topics, the first since the start."""


class Subscriber:
    """A client of a group, what it subscribes to, and what is ready for it.

    ``ready`` has the queues that may have something for the group, the first to come first; those
    of a group with a wildcard are the group's. ``attempt_id`` and ``taken`` are of its last pop.
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
        self.channel: Channel | None = None
        self.heard_at = 0.0
        self.popped_ms = -1  # when it asked last
        self.attempt_id: str | None = None
        self.taken: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Key under which its pops wait (``HeldPops``); with a wildcard, the key of the whole group."""
        client_id = EVERYBODY if self.is_wildcard else self.client_id
        return waiting_key(self.parent, client_id, self.group)


class LiteSubscriptions:
    """All subscribers. ``count`` is how many subscriptions to single lite topics there are, and
    ``client_count`` how many clients.

    The first one ever is an event: until then no message is looked at for lite topics.
    """

    def __init__(self, clock: Clock, begun: Event[LiteBegun]) -> None:
        self._monotonic = clock.monotonic
        self._begun = begun
        self._has_begun = False
        self._by_group: dict[str, dict[str, Subscriber]] = {}
        self._by_queue: dict[str, tuple[Subscriber, ...]] = {}
        # Groups that want all of a parent, and their clients; what is ready is the group's.
        self._wildcards: dict[str, dict[str, dict[str, Subscriber]]] = {}
        self.count = self.client_count = 0

    def find(self, client_id: str, group: str) -> Subscriber | None:
        """Give a client of a group, None if it subscribes to nothing."""
        return self._by_group.get(group, {}).get(client_id)

    def join(
        self, client_id: str, group: str, parent: str, channel: Channel | None, *, is_wildcard: bool
    ) -> tuple[Subscriber, bool]:
        """Give a client that has just said something, and whether it is new.

        One that has another parent, or is of another kind than before, begins anew. BrokerError if
        there are too many.
        """
        known = self.find(client_id, group)
        if known is not None and (known.parent, known.is_wildcard) != (parent, is_wildcard):
            self.leave(known)
            known = None
        is_new = known is None
        if not self._has_begun:
            self._has_begun = True
            self._begun(LiteBegun())
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
        """Note that a client subscribes to a lite topic; False if it did."""
        if queue in subscriber.queues:
            return False
        subscriber.queues[queue] = None
        self._by_queue[queue] = (*self._by_queue.get(queue, ()), subscriber)
        self.count += 1
        return True

    def remove(self, subscriber: Subscriber, queue: str) -> bool:
        """Note that a client subscribes to a lite topic no more; False if it did not."""
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
        """Forget a lite topic, which is deleted."""
        for subscriber in self._by_queue.get(queue, ()):
            self.remove(subscriber, queue)
        for subscriber in self.wildcards_of(queue):
            subscriber.ready.pop(queue, None)

    def of_queue(self, queue: str) -> Iterable[Subscriber]:
        """Give who subscribes to a lite topic by its name."""
        return self._by_queue.get(queue, ())

    def wildcards_of(self, queue: str) -> Iterator[Subscriber]:
        """Give one client of each group that wants all lite topics of this one's parent."""
        if self._wildcards:
            parts = lite_parts(queue)
            for clients in self._wildcards.get(parts[0] if parts else "", {}).values():
                yield next(iter(clients.values()))

    def wildcard_ready(self, parent: str, group: str) -> bool:
        """Tell whether anything is ready for a group that wants all lite topics of a parent."""
        clients = self._wildcards.get(parent, {}).get(group)
        return bool(clients and next(iter(clients.values())).ready)

    def of_group(self, group: str) -> list[Subscriber]:
        """Give the clients of a group."""
        return list(self._by_group.get(group, {}).values())

    def groups(self) -> list[str]:
        """Give the groups that have clients."""
        return list(self._by_group)

    def silent(self, seconds: float) -> list[Subscriber]:
        """Give the clients that have said nothing for so long."""
        before = self._monotonic() - seconds
        return [
            client for clients in self._by_group.values() for client in clients.values() if client.heard_at < before
        ]
