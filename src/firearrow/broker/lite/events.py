"""Lite topics that have messages for a client, and the wake-ups of waiting clients.

A lite topic is *ready* for a group if it has messages behind the group's offset, and no earlier batch blocks it
(``state.orderinfo``). It becomes ready when a message arrives, a client subscribes, the last message of a batch is
acknowledged, or the batch's invisible time is over. Then it is noted for each subscribing client of the group, and one
of their waiting pops is woken. A pop takes the noted lite topics in the order of their arrival. A pop that comes too
late finds nothing, but no client is passed over because another one was chosen that does not ask.

The lite topics that woke a client are known until its pop has run. If the pop leaves some, because it has enough
messages or its client is gone, others are woken for them. In a group with a wildcard all lite topics are noted for the
group, and its pops wait together, so each that leaves some wakes the next. A notification takes nothing: one is woken
in addition to the pop.

Its subscriptions limit the notes of a client, and the existing lite topics limit the notes of a group with a wildcard:
the store has more data of each than a note.

Java: LiteEventDispatcher notes an event for one client, chosen by chance, and repairs failures of that by full
dispatches, blacklists and rounds of 10 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Final

from firearrow.broker.lite.subscriptions import EVERYBODY, LiteSubscriptions, Subscriber, notification_key, waiting_key
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.deadlines import Deadlines
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.waiting import HeldPops, Key
from firearrow.clock import Clock
from firearrow.message.names import LITE_PREFIX, lite_queue
from firearrow.services import Scheduler
from firearrow.store import MessageStore

STEP_QUEUES: Final = 100  # visited in one step; a millisecond

Queue = tuple[str, str]
"""Group and the LMQ of a lite topic."""


class LiteEvents:
    """Note ready lite topics, and wake clients."""

    def __init__(
        self,
        subscriptions: LiteSubscriptions,
        store: MessageStore,
        offsets: ConsumerOffsets,
        orders: ConsumerOrderInfo,
        held: HeldPops,
        clock: Clock,
        scheduler: Scheduler,
        chance: Random,
    ) -> None:
        self._subscriptions = subscriptions
        self._store = store
        self._offsets = offsets
        self._orders = orders
        self._held = held
        self._clock = clock
        self._chance = chance
        self._due: Deadlines[Queue] = Deadlines(scheduler, self._over)
        self._ticks: dict[Queue, int] = {}
        self._called: dict[Key, dict[str, None]] = {}
        self._has_notifications = False  # set by the first one; before it no notification is looked for

    def stop(self) -> None:
        """Wake no client any more."""
        self._due.clear()

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Note the lite topics among queues with new messages."""
        for topic, _, _, _ in arrivals:
            if topic.startswith(LITE_PREFIX):
                self.offer(topic)

    def offer(self, queue: str) -> None:
        """Note that a lite topic has messages, for all groups whose clients subscribe to it."""
        clients = self._subscriptions.of_queue(queue)
        if clients:
            by_group: dict[str, list[Subscriber]] = {}
            for client in clients:
                by_group.setdefault(client.group, []).append(client)
            for of_group in by_group.values():
                self._note(queue, of_group)
        for client in self._subscriptions.wildcards_of(queue):
            self._note(queue, [client])

    def offer_to(self, group: str, queue: str) -> None:
        """Note that a lite topic may have messages for one group: it is free again."""
        self._note(queue, self._clients_of(group, queue))

    def _clients_of(self, group: str, queue: str) -> list[Subscriber]:
        """Return the clients of a group with a noted lite topic; one stands for all of them with a wildcard."""
        clients = [one for one in self._subscriptions.of_queue(queue) if one.group == group]
        clients += [one for one in self._subscriptions.wildcards_of(queue) if one.group == group]
        return clients

    def _note(self, queue: str, clients: Sequence[Subscriber]) -> None:
        """Note a lite topic for clients of a group, and wake one of them.

        A blocked lite topic is noted when it is free: by the acknowledgement, or in time.
        """
        if not clients or self._orders.is_blocked(queue, clients[0].group, 0):
            return
        for client in clients:
            client.ready[queue] = None
        self._wake(queue, clients)

    def _wake(self, queue: str, clients: Sequence[Subscriber]) -> None:
        """Wake one pop of some clients, and a notification, if any waits."""
        first = self._chance.randrange(len(clients)) if len(clients) > 1 else 0
        if self._has_notifications:
            self._wake_notification([*clients[first:], *clients[:first]])
        for number in range(len(clients)):
            client = clients[(first + number) % len(clients)]
            key = client.key
            if self._held.count(*key):
                if not client.is_wildcard:
                    self._called.setdefault(key, {})[queue] = None
                self._held.wake_next(*key)
                return

    def _wake_notification(self, clients: Sequence[Subscriber]) -> None:
        for client in clients:
            key = notification_key(client.key)
            if self._held.count(*key):
                self._held.wake_next(*key)
                return

    def has_run(self, parent: str, client_id: str, group: str) -> None:
        """Wake others for the lite topics that a pop has left of those that it was woken for."""
        key = waiting_key(parent, client_id, group)
        for queue in self._called.pop(key, ()):
            if self.is_ready(group, queue) and not self._orders.is_blocked(queue, group, 0):
                clients = self._clients_of(group, queue)
                if clients:
                    self._wake(queue, clients)
        if self._subscriptions.wildcard_ready(parent, group):
            key = waiting_key(parent, EVERYBODY, group)
            self._held.wake_next(*key)
            if self._has_notifications:
                self._held.wake_next(*notification_key(key))

    def notification_key(self, parent: str, client_id: str, group: str) -> Key:
        """Return the key under which a notification of a client will wait (``HeldPops``)."""
        self._has_notifications = True
        client = self._subscriptions.find(client_id, group)
        pops = waiting_key(parent, client_id, group) if client is None else client.key
        return notification_key(pops)

    def waits(self, client: Subscriber) -> None:
        """Run a client's pop that begins to wait again if it has not looked at all noted lite topics."""
        if client.ready:
            self._held.wake_next(*client.key)

    def closed(self) -> None:
        """Wake others in place of the clients of a closed connection."""
        for key in list(self._called):
            self.refused(key)

    def refused(self, key: Key) -> None:
        """Wake others in place of a pop that was refused."""
        if key in self._called and not self._held.count(*key):
            parent, name, _ = key
            client_id, _, group = name.rpartition("@")
            self.has_run(parent, client_id, group)

    def is_ready(self, group: str, queue: str) -> bool:
        """Return whether a lite topic has messages behind a group's offset."""
        end = self._store.max_queue_offset(queue, 0)
        return end > max(self._offsets.query(group, queue, 0), 0)

    def has_any(self, client: Subscriber) -> bool:
        """Return whether a pop of a client may get messages, and drop notes that lead to none."""
        for queue in list(islice(client.ready, STEP_QUEUES)):
            if self.is_ready(client.group, queue) and not self._orders.is_blocked(queue, client.group, 0):
                return True
            del client.ready[queue]
        return bool(client.ready)

    def begun(self, client: Subscriber, queue: str) -> None:
        """Note a lite topic that a client has subscribed to, if it has messages."""
        if self.is_ready(client.group, queue):
            self._note(queue, [client])

    def look_through(self, client: Subscriber) -> Iterator[None]:
        """Note all ready lite topics for a client, in steps: of its subscriptions, or of the parent if it has a
        wildcard."""
        queues: Iterable[str | None] = list(client.queues)
        if client.is_wildcard:
            queues = self._store.topics_from(lite_queue(client.parent, ""))
        for number, queue in enumerate(queues, 1):
            if queue is not None:
                self.begun(client, queue)
            if number % STEP_QUEUES == 0 or queue is None:
                yield

    def blocked(self, group: str, queue: str, until_ms: int) -> None:
        """Note a lite topic again when its last batch becomes visible."""
        place = group, queue
        before = self._ticks.get(place)
        if before is not None:
            self._due.discard(place, before)
        seconds = max(0, until_ms - self._clock.now_ms()) / 1000
        self._ticks[place] = self._due.add(place, seconds)

    def freed(self, group: str, queue: str) -> None:
        """Note a lite topic that has become free, if it has more messages."""
        tick = self._ticks.pop((group, queue), None)
        if tick is not None:
            self._due.discard((group, queue), tick)
        if self.is_ready(group, queue):
            self.offer_to(group, queue)

    def _over(self, places: list[Queue]) -> None:
        for group, queue in places:
            del self._ticks[group, queue]
            until_ms = self._orders.free_ms(queue, group, 0)
            if until_ms is None:
                self.offer_to(group, queue)
            else:  # another message of the batch got more time
                self.blocked(group, queue, until_ms)
