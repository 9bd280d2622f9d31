"""Parts that serve lite topics, as a whole; sharding and expiry.

*Sharding.* A client chooses a queue of the parent by the name of a lite topic, and so the broker of the cluster that
has the lite topic.

*Expiry.* A lite topic is deleted when its last message is older than its parent's ``lite.topic.expiration`` (minutes),
consumed or not. Every two minutes the lite topics of all parents with such a time are visited, some in each turn of the
event loop. The queue is deleted, with its groups' offsets and subscriptions; the messages stay in the parent's queues.

Source: RocketMQ ``LiteShardingImpl``, whose hash is Guava's ``Hashing#consistentHash``;
``AbstractLiteLifecycleManager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import GroupDeleted
from firearrow.broker.lite import facts
from firearrow.broker.lite.events import LiteEvents
from firearrow.broker.lite.popping import LitePopping
from firearrow.broker.lite.subscriptions import FirstLiteSubscription, LiteSubscriptions
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.errors import DiskFull
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.message.names import java_hash, lite_parts, lite_queue
from firearrow.services import Scheduler, Service
from firearrow.store import MessagesArrived, QueuesDeleted
from firearrow.wire.bodies import DataVersion


class LiteTopics(Service):
    """Subscriptions to lite topics, their events, and their pops."""

    def __init__(
        self, context: BrokerContext, routes: TopicRoutes, held: HeldPops, scheduler: Scheduler, events: Events
    ) -> None:
        super().__init__("lite topics")
        self.held = held
        self.subscriptions: Final = LiteSubscriptions(context.clock, events.of(FirstLiteSubscription))
        self.orders: Final = ConsumerOrderInfo(context.clock)
        self.events: Final = LiteEvents(
            self.subscriptions,
            context.store,
            context.offsets,
            self.orders,
            held,
            context.clock,
            scheduler,
            context.chance,
        )
        held.refused.listen(self.events.refused)
        self.popping: Final = LitePopping(context, self.orders, self.events)
        self.sharding: Final = LiteSharding(routes, context.settings.broker.broker_name)
        self.expiry: Final = LiteExpiry(context)
        self._settings = context.settings
        self._groups = context.groups
        self._known: tuple[DataVersion, str] | None = None
        self._known_groups: list[str] = []
        events.listen(FirstLiteSubscription, lambda _: events.listen(MessagesArrived, self.events.arrived))

    async def stop(self) -> None:
        """Wake no client any more."""
        self.events.stop()

    def expire(self) -> None:
        """Forget clients that have sent no request for some minutes: they are gone."""
        timeout_ms = self._settings.broker.lite_subscription_check_timeout_mills
        for client in self.subscriptions.silent(timeout_ms / 1000):
            self.subscriptions.leave(client)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Forget the clients of a deleted group, and refuse their waiting requests."""
        for client in self.subscriptions.of_group(gone.group):
            self.held.group_gone(GroupDeleted(client.key[1]))
            self.subscriptions.leave(client)
        self.orders.group_gone(gone)

    def queues_gone(self, gone: QueuesDeleted) -> None:
        """Forget a deleted lite topic."""
        parts = lite_parts(gone.topic)
        if parts is not None:
            self.subscriptions.forget_queue(gone.topic)
            for group in self._groups_of(parts[0]):
                self.orders.forget(gone.topic, group)

    def _groups_of(self, parent: str) -> list[str]:
        """Return the groups of a parent, remembered for many deleted lite topics in a row."""
        version = self._groups.data_version
        if self._known != (version, parent):
            self._known = version, parent
            self._known_groups = facts.groups_of(self._groups.table, parent)
        return self._known_groups


_MASK: Final = (1 << 64) - 1


def bucket(name: str, count: int) -> int:
    """Choose one of ``count``, such that with one more, few names change their place."""
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
    """Decide which lite topics belong to this broker, by the known queues of the parent."""

    def __init__(self, routes: TopicRoutes, broker_name: str) -> None:
        self._routes = routes
        self._broker_name = broker_name

    def is_here(self, parent: str, lite_topic: str) -> bool:
        """Return whether a lite topic belongs to this broker; True where the parent's queues are unknown."""
        found: list[Queues | None] = []
        self._routes.find(parent, found.append)
        queues = found[0] if found else None
        if not queues:
            return True
        return queues[bucket(lite_topic, len(queues))].broker_name == self._broker_name


log: Final = Log(__name__)

STEP_QUEUES: Final = 100  # visited in one turn; a millisecond
STEP_SECONDS: Final = 0.005
_MINUTE_MS: Final = 60_000


class LiteExpiry:
    """Delete lite topics whose time is over."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._clock = context.clock
        self._round: Iterator[int] | None = None

    def step(self) -> float:
        """Visit some lite topics; return the seconds until there is more to do."""
        if self._round is None:
            self._round = self._go_round()
        for deleted in self._round:
            if deleted:
                log.info("lite topics are deleted: their time is over", extra={"count": deleted})
            return STEP_SECONDS
        self._round = None
        return self._settings.broker.lite_ttl_check_interval / 1000

    def _go_round(self) -> Iterator[int]:
        """Visit all lite topics; yield the count of deleted ones after each step."""
        parents = {
            name: facts.expiration_minutes(topic)
            for name, topic in self._topics.table.items()
            if facts.is_parent(topic)
        }
        for parent, minutes in parents.items():
            if minutes <= 0:
                continue
            age_ms = max(minutes * _MINUTE_MS, self._settings.broker.min_lite_ttl)
            old: list[str] = []
            for number, queue in enumerate(self._store.topics_from(lite_queue(parent, "")), 1):
                if queue is not None and self._is_over(queue, age_ms):
                    old.append(queue)
                if number % STEP_QUEUES == 0 or queue is None:
                    yield self._delete(parent, old)
                    old = []
            yield self._delete(parent, old)

    def _is_over(self, queue: str, age_ms: int) -> bool:
        end = self._store.max_queue_offset(queue, 0)
        last_ms = self._store.store_time_of(queue, 0, end - 1) if end > 0 else 0
        return end > 0 and self._clock.now_ms() - last_ms > age_ms

    def _delete(self, parent: str, queues: list[str]) -> int:
        """Delete lite topics; return their count, 0 if the disk is too full for that."""
        try:
            self._store.delete_lmqs(queues)
        except DiskFull:
            return 0
        if queues:
            groups = facts.groups_of(self._groups.table, parent)
            for group, queue in product(groups, queues):
                self._offsets.forget(group, queue)
        return len(queues)
