"""The parts that serve lite topics, as a whole."""

from __future__ import annotations

from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import GroupDeleted
from firearrow.broker.lite import facts
from firearrow.broker.lite.events import LiteEvents
from firearrow.broker.lite.expiry import LiteExpiry
from firearrow.broker.lite.popping import LitePopping
from firearrow.broker.lite.subscriptions import LiteBegun, LiteSubscriptions
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.events import Events
from firearrow.message.names import java_hash, lite_parts
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
        self.subscriptions = LiteSubscriptions(context.clock, events.of(LiteBegun))
        self.orders = ConsumerOrderInfo(context.clock)
        self.events = LiteEvents(
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
        self.popping = LitePopping(context, self.orders, self.events)
        self.sharding = LiteSharding(routes, context.settings.broker.broker_name)
        self.expiry = LiteExpiry(context)
        self._settings = context.settings
        self._groups = context.groups
        self._known: tuple[DataVersion, str] | None = None
        self._known_groups: list[str] = []
        events.listen(LiteBegun, lambda _: events.listen(MessagesArrived, self.events.arrived))

    async def stop(self) -> None:
        """Wake nobody any more."""
        self.events.stop()

    def expire(self) -> None:
        """Forget clients that have said nothing for some minutes: they are gone."""
        timeout_ms = self._settings.broker.lite_subscription_check_timeout_mills
        for client in self.subscriptions.silent(timeout_ms / 1000):
            self.subscriptions.leave(client)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Forget the clients of a group that is deleted, and refuse what they wait for."""
        for client in self.subscriptions.of_group(gone.group):
            self.held.group_gone(GroupDeleted(client.key[1]))
            self.subscriptions.leave(client)
        self.orders.group_gone(gone)

    def queues_gone(self, gone: QueuesDeleted) -> None:
        """Forget a lite topic that is deleted."""
        parts = lite_parts(gone.topic)
        if parts is not None:
            self.subscriptions.forget_queue(gone.topic)
            for group in self._groups_of(parts[0]):
                self.orders.forget(gone.topic, group)

    def _groups_of(self, parent: str) -> list[str]:
        """The groups of a parent, which many lite topics that are deleted in a row ask for."""
        version = self._groups.data_version
        if self._known != (version, parent):
            self._known = version, parent
            self._known_groups = facts.groups_of(self._groups.table, parent)
        return self._known_groups


# Which broker of a cluster has a lite topic: a client chooses a queue of the parent by its name.
#
# Source: upstream ``LiteShardingImpl``; the hash is Guava's ``Hashing#consistentHash``.


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
        """Tell whether a lite topic is this broker's; where nothing is known yet, it is."""
        found: list[Queues | None] = []
        self._routes.find(parent, found.append)
        queues = found[0] if found else None
        if not queues:
            return True
        return queues[bucket(lite_topic, len(queues))].broker_name == self._broker_name
