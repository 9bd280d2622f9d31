"""Pulls: reads of queues, long polling, cold reads, queries of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.broker.pulling.processor import PullProcessor
from firearrow.broker.pulling.queries import QueryProcessor
from firearrow.net.server import ConnectionClosed, WaitEnded
from firearrow.services import Service
from firearrow.store import MessagesArrived
from firearrow.wire.codes import RequestCode


class PullFeature(Feature):
    """Pulls, the waiting pulls, and the reads that wait for the disk."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.held: Final = HeldPulls(base.store, base.clock, base.loop)
        self.cold: Final = ColdReads(base.loop if base.in_background else None)

    def connect(self, context: BrokerContext, filters: ConsumerFilters) -> None:
        """Make the handlers."""
        self._pulls = PullProcessor(context, self.held, self.cold, filters)
        self._handlers = query_handlers(context, filters)

    def handlers(self) -> Handlers:
        """Handlers of pulls."""
        return {RequestCode.PULL_MESSAGE: self._pulls.pull, RequestCode.LITE_PULL_MESSAGE: self._pulls.pull}

    def saved_handlers(self) -> Handlers:
        """Handlers of queries."""
        return self._handlers

    def listen(self) -> None:
        """Answer waiting pulls when messages arrive; drop the pulls of a closed connection."""
        self._base.events.listen(MessagesArrived, self.held.arrived)
        self._base.events.listen(ConnectionClosed, self.held.closed)
        self._base.events.listen(WaitEnded, self.held.wait_ended)

    def services(self) -> Sequence[Service]:
        """The waiting pulls, and the threads of cold reads."""
        return (self.held, self.cold)


def query_handlers(context: BrokerContext, filters: ConsumerFilters) -> Handlers:
    """Make the handlers of queries."""
    queries = QueryProcessor(context, filters)
    return {
        RequestCode.QUERY_MESSAGE: queries.query_message,
        RequestCode.VIEW_MESSAGE_BY_ID: queries.view_message,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queries.search_offset,
        RequestCode.GET_MAX_OFFSET: queries.max_offset,
        RequestCode.GET_MIN_OFFSET: queries.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: queries.earliest_store_time,
        RequestCode.QUERY_CONSUME_QUEUE: queries.queue_entries,
    }
