"""Lite topics that have messages for a client, and the wake-ups of waiting clients.

A lite topic is *ready* for a group if it has messages behind the group's offset and is not blocked
by an earlier batch (``state.orderinfo``). It becomes ready when a message arrives, a client begins
to subscribe, the last of a batch is acknowledged, or the batch's invisible time is over. Then it is
noted for each client of the group that subscribes to it, and one of those whose pop waits is woken.
A pop takes what is noted in the order in which it came. Whoever is too late finds nothing; nobody
is passed over because another one was chosen that does not ask.

For which lite topics a client was woken is known until its pop has run. Of these, the ones that it
has left, because it has enough or is gone, have another one woken. In a group with a wildcard all
is noted for the group and its pops wait together, so each that leaves something wakes the next.
A notification takes nothing: one is woken besides the pop.

What is noted for a client is among what it subscribes to, for a group with a wildcard among the
lite topics that there are: the store has more of each than a note.

Java: LiteEventDispatcher notes an event for one client, chosen by chance, and mends what goes
wrong with that by full dispatches, blacklists and rounds of 10 s.
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

STEP_QUEUES: Final = 100  # that are looked at in one step; a millisecond

Queue = tuple[str, str]
"""Group and the LMQ of a lite topic."""


class LiteEvents:
    """Note what is ready, and wakes."""

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
        self._has_notifications = False  # the first one ever; until then nobody looks for any

    def stop(self) -> None:
        """Wake nobody any more."""
        self._due.clear()

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Note the queues of lite topics among those that have new messages."""
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
        """Whom of a group a lite topic is noted for; one for all of them with a wildcard."""
        clients = [one for one in self._subscriptions.of_queue(queue) if one.group == group]
        clients += [one for one in self._subscriptions.wildcards_of(queue) if one.group == group]
        return clients

    def _note(self, queue: str, clients: Sequence[Subscriber]) -> None:
        """Note a lite topic for clients of a group, and wake one of them.

        One that is blocked is noted when it is free: by the acknowledgement, or in time.
        """
        if not clients or self._orders.is_blocked(queue, clients[0].group, 0):
            return
        for client in clients:
            client.ready[queue] = None
        self._wake(queue, clients)

    def _wake(self, queue: str, clients: Sequence[Subscriber]) -> None:
        """Wake the pop of one of some clients, and a notification, if any waits."""
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
        """Have others woken for what a pop has left of that which it was woken for."""
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
        """Return what a notification of a client is going to wait under (``HeldPops``)."""
        self._has_notifications = True
        client = self._subscriptions.find(client_id, group)
        pops = waiting_key(parent, client_id, group) if client is None else client.key
        return notification_key(pops)

    def waits(self, client: Subscriber) -> None:
        """Have the pop of a client that begins to wait run again if it has not looked at all that
        is noted."""
        if client.ready:
            self._held.wake_next(*client.key)

    def closed(self) -> None:
        """Have others woken for what those were woken for whose connection has ended."""
        for key in list(self._called):
            self.refused(key)

    def refused(self, key: Key) -> None:
        """Have others woken for what one was woken for that waits no more."""
        if key in self._called and not self._held.count(*key):
            parent, name, _ = key
            client_id, _, group = name.rpartition("@")
            self.has_run(parent, client_id, group)

    def is_ready(self, group: str, queue: str) -> bool:
        """Return whether a lite topic has messages behind a group's offset."""
        end = self._store.max_queue_offset(queue, 0)
        return end > max(self._offsets.query(group, queue, 0), 0)

    def has_any(self, client: Subscriber) -> bool:
        """Return whether a pop of a client may get something, and drop notes that lead to nothing."""
        for queue in list(islice(client.ready, STEP_QUEUES)):
            if self.is_ready(client.group, queue) and not self._orders.is_blocked(queue, client.group, 0):
                return True
            del client.ready[queue]
        return bool(client.ready)

    def begun(self, client: Subscriber, queue: str) -> None:
        """Note a lite topic that a client has begun to subscribe to, if there is anything."""
        if self.is_ready(client.group, queue):
            self._note(queue, [client])

    def look_through(self, client: Subscriber) -> Iterator[None]:
        """Note all that is ready for a client, in steps: of what it subscribes to, or of all lite
        topics of the parent if it has a wildcard."""
        queues: Iterable[str | None] = list(client.queues)
        if client.is_wildcard:
            queues = self._store.topics_from(lite_queue(client.parent, ""))
        for number, queue in enumerate(queues, 1):
            if queue is not None:
                self.begun(client, queue)
            if number % STEP_QUEUES == 0 or queue is None:
                yield

    def blocked(self, group: str, queue: str, until_ms: int) -> None:
        """See that a lite topic is noted again when its last batch becomes visible."""
        place = group, queue
        before = self._ticks.get(place)
        if before is not None:
            self._due.discard(place, before)
        seconds = max(0, until_ms - self._clock.now_ms()) / 1000
        self._ticks[place] = self._due.add(place, seconds)

    def freed(self, group: str, queue: str) -> None:
        """Note a lite topic that has become free, if there is more of it."""
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
