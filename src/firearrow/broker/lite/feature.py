"""Lite topics: subscriptions, pops, expiry, administration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import GroupDeleted
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.lite.adminprocessor import LiteAdminProcessor
from firearrow.broker.lite.processor import LiteProcessor
from firearrow.broker.lite.topics import LiteTopics
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.net.server import ConnectionClosed, WaitEnded
from firearrow.services import Service
from firearrow.store import QueuesDeleted
from firearrow.wire.codes import RequestCode


class LiteFeature(Feature):
    """Lite topics, and their waiting pops."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.held: Final = HeldPops("held lite pops", base.settings, base.store, base.clock, base.loop)

    def connect(self, context: BrokerContext, routes: TopicRoutes, cold: ColdReads) -> None:
        """Make topics and processors."""
        self.topics: LiteTopics = LiteTopics(context, routes, self.held, self._base.loop, self._base.events)
        self.processor: LiteProcessor = LiteProcessor(context, cold, self.topics)
        self._admin = LiteAdminProcessor(context, self.topics)

    def handlers(self) -> Handlers:
        """Handlers of lite topics."""
        admin = self._admin
        return {
            RequestCode.POP_LITE_MESSAGE: self.processor.pop,
            RequestCode.LITE_SUBSCRIPTION_CTL: self.processor.subscribe,
            RequestCode.GET_BROKER_LITE_INFO: admin.of_broker,
            RequestCode.GET_PARENT_TOPIC_INFO: admin.of_parent,
            RequestCode.GET_LITE_TOPIC_INFO: admin.of_topic,
            RequestCode.GET_LITE_CLIENT_INFO: admin.of_client,
            RequestCode.GET_LITE_GROUP_INFO: admin.of_group,
            RequestCode.TRIGGER_LITE_DISPATCH: admin.dispatch,
        }

    def listen(self) -> None:
        """Forget closed connections, deleted topics and deleted groups."""
        listen = self._base.events.listen
        listen(GroupDeleted, self.topics.group_gone)
        listen(ConnectionClosed, self.held.closed)
        listen(WaitEnded, self.held.wait_ended)
        listen(ConnectionClosed, lambda _: self.topics.events.closed())
        listen(QueuesDeleted, self.held.topic_gone)
        listen(QueuesDeleted, self.topics.queues_gone)

    def services(self) -> Sequence[Service]:
        """Waiting pops, events, and the expiry of clients and topics."""
        config = self._base.settings.broker
        return (
            self.held,
            self.topics,
            self._base.every("lite clients", config.lite_subscription_check_interval / 1000, self.topics.expire),
            self._base.every("lite topics' time", config.min_lite_ttl / 1000, self.topics.expiry.step),
        )
