"""POP: pops, acknowledgements, invisible times, and redelivery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import GroupDeleted, SettingsChanged
from firearrow.broker.feature import Base, BulkHandlers, Feature, Handlers
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.lite.popping import LiteAcks
from firearrow.broker.lite.processor import LiteProcessor
from firearrow.broker.lite.topics import LiteTopics
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.acks import AckProcessor
from firearrow.broker.pop.books import Books, EscapedBooks
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.kvbooks import KvBooks, KvReviving
from firearrow.broker.pop.kvstore import KvStore
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.peeking import NotificationProcessor, PeekProcessor
from firearrow.broker.pop.popping import Popping
from firearrow.broker.pop.processor import PopProcessor
from firearrow.broker.pop.revive import Reviving
from firearrow.broker.pop.revivequeue import ReviveQueue
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.storage.saving import Saving
from firearrow.broker.timing.feature import TimingFeature
from firearrow.logs import Log
from firearrow.net.server import BulkHandler, ConnectionClosed, Handler, Peer, Steps, WaitEnded
from firearrow.services import Service
from firearrow.store import MessagesArrived, QueuesDeleted, TimerStore
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

ORDER_SECONDS: Final = 10.0  # between writes of the batches that are popped in order, as in RocketMQ
ENDS: Final = frozenset(
    {int(RequestCode.ACK_MESSAGE), int(RequestCode.BATCH_ACK_MESSAGE), int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)}
)
"""Requests about popped messages."""


class PopFeature(Feature):
    """Pops, their books, and waiting pops.

    ``database`` has the books if they are in RocksDB.
    """

    def __init__(self, base: Base, groups: GroupTable, offsets: ConsumerOffsets, database: KvStore | None) -> None:
        self._base = base
        self._groups = groups
        self.database = database
        settings, config = base.settings, base.settings.broker
        self.in_flight: Final = InFlight(settings, always=config.has_metrics)
        self.orders: Final = ConsumerOrderInfo(base.clock, base.root, config.config_generations)
        parts = settings, base.store, base.clock, base.loop
        self.held: Final = HeldPops("held pops", *parts)
        self.held_notifications: Final = HeldPops("held notifications", *parts, newest_first=True)
        held = self.held, self.held_notifications
        self.unblocking: Final = Unblocking(settings, base.store, self.orders, offsets, held, base.clock, base.loop)
        self.revive_queues: Callable[[], list[ReviveQueue]] = list
        self._reviving: list[Service] = []
        self._noting: Saving | None = None

    def load(self) -> None:
        """Read the batches that are popped in order."""
        store = self._base.store
        self.orders.load(store.max_queue_offset if store.may_have_lost else None)

    def connect(
        self,
        context: BrokerContext,
        saving: Saving,
        timing: TimingFeature,
        cold: ColdReads,
        routes: TopicRoutes,
        *,
        is_remote: bool,
    ) -> None:
        """Make books, redelivery and processors; with ``is_remote``, the records go to another master."""
        base, timed = self._base, timing.timed
        self._saving = saving
        self.books: Books = self._make_books(context, timing.store, routes, is_remote=is_remote)
        if timed is not None:
            reviving = Reviving(
                context, self.in_flight, routes, self.books.revive_log.put_checkpoint, timed.delivered_ms, base.loop
            )
            self.revive_queues = lambda: reviving.queues
            self._reviving.insert(0, reviving)
            base.events.listen(MessagesArrived, reviving.arrived)
        self._has_timer = timed is not None
        self.popping: Popping = Popping(context, self.in_flight, self.orders, self.unblocking, self.books)
        self._pops = PopProcessor(context, cold, self.held, self.popping)
        self._peeks = PeekProcessor(context, cold, self.books)
        self._rollbacks = RollbackProcessor(context, self.books)

    def _make_books(self, context: BrokerContext, timers: TimerStore, routes: TopicRoutes, *, is_remote: bool) -> Books:
        """Make the books; with a database also its redelivery, and the service that syncs it."""
        base, records = self._base, self.database
        if records is None:
            return (EscapedBooks if is_remote else Books)(context, timers, base.loop)
        reviving = KvReviving(context, self.in_flight, routes, records, base.loop)
        self._reviving.append(reviving)
        self._noting = Saving((records,), "saving of pops")
        books = KvBooks(context, timers, base.loop, records, reviving.expect)
        base.events.listen(SettingsChanged, books.settings_changed)
        return books

    def connect_lite(self, context: BrokerContext, lite: LiteTopics, lites: LiteProcessor) -> None:
        """Make the processors that serve lite topics, too."""
        lite_acks = LiteAcks(context, lite.popping)
        self._acks = AckProcessor(context, self.in_flight, self.orders, self.unblocking, self.books, lite_acks)
        self._notifications = NotificationProcessor(
            context, self.orders, self.held_notifications, self.held, self.books, lites
        )

    def handlers(self) -> Handlers:
        """Handlers of pops, peeks, notifications, and of popped messages."""
        return {
            RequestCode.POP_MESSAGE: self._pops.pop,
            RequestCode.PEEK_MESSAGE: self._peeks.peek,
            RequestCode.NOTIFICATION: self._notifications.notify,
            RequestCode.POLLING_INFO: self._notifications.waiting,
            RequestCode.ACK_MESSAGE: self._acks.ack,
            RequestCode.BATCH_ACK_MESSAGE: self._acks.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._acks.change_invisible_time,
            RequestCode.NEWEST_HANDLE: self._acks.newest,
            RequestCode.POP_ROLLBACK: self._rollbacks.roll_back,
        }

    def bulk_handlers(self) -> BulkHandlers:
        """Handlers of several pops or acknowledgements at once."""
        return {RequestCode.POP_MESSAGE: self._pops.pop_several, RequestCode.ACK_MESSAGE: self._acks.ack_several}

    def wrap(self, handlers: dict[int, Handler], bulk_handlers: dict[int, BulkHandler]) -> None:
        """Let requests about popped messages wait where the books are slow.

        The books are slow in a database, which is synced, and at another master.
        """
        if self._noting is not None:
            handlers |= self._noting.holding({code: handlers[code] for code in ENDS})
            for code in ENDS:
                bulk_handlers.pop(code, None)

    def listen(self) -> None:
        """Wake waiting pops, and forget deleted topics and groups."""
        listen = self._base.events.listen
        for pops in (self.held, self.held_notifications):
            listen(MessagesArrived, pops.arrived)
            listen(QueuesDeleted, pops.topic_gone)
            listen(ConnectionClosed, pops.closed)
            listen(WaitEnded, pops.wait_ended)
            listen(GroupDeleted, pops.group_gone)
        for counts in (self.orders, self.in_flight):
            listen(GroupDeleted, counts.group_gone)
            listen(QueuesDeleted, counts.topic_gone)
        listen(QueuesDeleted, lambda _: self.popping.forget_queues())
        listen(QueuesDeleted, self.books.forget_queues)

    def inner_services(self) -> Sequence[Service]:
        """Return the books, unless this is a slave."""
        return (self.books,) if self._has_timer and not self._base.replicas.is_slave else ()

    def deliveries(self) -> Sequence[Service]:
        """Redelivery of unacknowledged messages."""
        return (*self._reviving, *([self.books] if isinstance(self.books, EscapedBooks) else ()))

    def services(self) -> Sequence[Service]:
        """Waiting pops, and periodic writes of the batches that are popped in order."""
        return (
            *([self._noting] if self._noting is not None else ()),
            self._base.every("orders", ORDER_SECONDS, self._write_orders),
            self.held,
            self.held_notifications,
            self.unblocking,
        )

    def _write_orders(self) -> float | None:
        """Forget useless batches, in steps, and then write the others."""
        if self.orders.clean_step(self._groups.has, self._base.topics.read_queues):
            return 0.0
        self._saving.write(self.orders.file)
        return None

    async def finish(self) -> None:
        """Return once no answer waits for the database."""
        if self._noting is not None:
            await self._noting.finish()

    def save(self) -> None:
        """Write the batches that are popped in order."""
        self.orders.file.save()

    def close(self) -> None:
        """Close batches and database."""
        self.orders.file.close()
        if self.database is not None:
            self.database.close()


class RollbackProcessor:
    """Handler that moves all records of RocksDB to the revive topics.

    Source: RocketMQ ``AdminBrokerProcessor#transferPopToFsStore``.
    """

    def __init__(self, context: BrokerContext, books: Books) -> None:
        self._clock = context.clock
        self._books = books

    def roll_back(self, peer: Peer, request: AnyCommand) -> Steps:
        """200056: answer when the revive topics have every pop until now."""
        count = yield from self._books.move(self._clock.now_ms())
        log.info("the revive topics have all pops now", extra={"count": count, "client": peer.address})
        return Response()
