"""A broker as a whole: its parts, who hears of what, and what it does by time.

Start: take the port, open the store (which recovers it), load the state files, serve clients,
register with the name servers. Stop is the same backwards, so that no client is told of a broker
that does not answer, and everything that was acknowledged is on the disk when the lock is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from msgspec import structs

from firearrow.auth.metadata import Metadata
from firearrow.broker import access as rights
from firearrow.broker.acting import Acting, Special
from firearrow.broker.catchingup import CATCH_UP_SECONDS, CatchingUp
from firearrow.broker.coldreads import ColdReads
from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.delays import DelayedDelivery, DelayRedirection, settle_deliveries
from firearrow.broker.escape import EscapingPuts
from firearrow.broker.events import (
    GroupDeleted,
    GroupLeft,
    MembersChanged,
    SettingsChanged,
    TopicMade,
    TopicsChanged,
    WaitsElsewhere,
)
from firearrow.broker.flowcontrol import FlowControl
from firearrow.broker.grouplocks import GroupLocks
from firearrow.broker.halves import waits_as_half
from firearrow.broker.healing import Healing
from firearrow.broker.insyncrefusals import refused_by_acting_master
from firearrow.broker.lite.topics import LiteTopics
from firearrow.broker.longpoll import HeldPulls
from firearrow.broker.metrics.creating import measured
from firearrow.broker.metrics.families import Sources, metrics_of
from firearrow.broker.metrics.operations import Told, pages_of
from firearrow.broker.metrics.tally import Tally
from firearrow.broker.notices import MemberNotices
from firearrow.broker.pop.buffer import BufferedBooks
from firearrow.broker.pop.escaped import EscapedBooks
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.kvbooks import KvBooks
from firearrow.broker.pop.kvrevive import KvReviving
from firearrow.broker.pop.kvstore import KvStore, kv_store_of
from firearrow.broker.pop.popping import Popping
from firearrow.broker.pop.revive import Reviving
from firearrow.broker.pop.revivequeue import ReviveQueue
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.processors.acks import AckProcessor
from firearrow.broker.processors.liteacks import LiteAcks
from firearrow.broker.processors.pop import PopProcessor
from firearrow.broker.processors.pull import PullProcessor
from firearrow.broker.processors.send import SendProcessor
from firearrow.broker.processors.send_back import SendBackProcessor
from firearrow.broker.processors.transactions import TransactionProcessor
from firearrow.broker.puts import Puts
from firearrow.broker.reconciling import adopt_queues, load_deliveries, pass_pops, place_groups
from firearrow.broker.registration import Registration, addresses_of, identity_of, registration_of
from firearrow.broker.replicas import SYNC_MASTER, Replicas, check_role
from firearrow.broker.requests import (
    NOTING,
    Admission,
    Condition,
    auth_handlers_of,
    bulk_handlers_of,
    bulk_send_backs_of,
    handlers_of,
    message_handlers_of,
    pop_handlers_of,
    reply_handlers_of,
    transaction_handlers_of,
)
from firearrow.broker.routes import routes_of
from firearrow.broker.saving import Following, Saving
from firearrow.broker.serving import Serving
from firearrow.broker.slaverefusals import refused_by_acting_slave, refused_by_slave
from firearrow.broker.slavesync import SlaveSync
from firearrow.broker.spreading import spreading_of
from firearrow.broker.state.clients import ClientRegistry
from firearrow.broker.state.delayoffsets import DelayOffsets
from firearrow.broker.state.filters import ConsumerFilters
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.locks import QueueLocks
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.opencounts import OpenCounts
from firearrow.broker.state.orderinfo import ConsumerOrderInfo
from firearrow.broker.state.requestmode import RequestModes
from firearrow.broker.state.settings import Settings, SharedFile
from firearrow.broker.state.topics import TopicTable
from firearrow.broker.statefeed import StateFeed
from firearrow.broker.stats import SAMPLE_SECONDS, BrokerStats
from firearrow.broker.takeover import warn_of_waiting
from firearrow.broker.timercounts import TimerCounts
from firearrow.broker.timing import Delivering, TimedMessages, TimerRedirection, open_timers
from firearrow.broker.transactions import Transactions
from firearrow.broker.unserved import NOT_YET
from firearrow.broker.unservedtopics import refuse_static_topics, warn_of_compaction
from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.message.hosts import Host, pack_host
from firearrow.net.operations import Operations
from firearrow.net.server import BulkHandler, ConnectionClosed, Handler, Server
from firearrow.services import Every, Service
from firearrow.store import (
    OS_FILES,
    Consumed,
    FileSystem,
    MessagesArrived,
    MessageStore,
    QueuesDeleted,
    RecordDamaged,
    TimerFlush,
    TimerStore,
)
from firearrow.store.config import StoreConfig
from firearrow.wire.bodies import LEAD

log = logging.getLogger(__name__)

ORDER_SECONDS: Final = 10.0  # between writes of what is popped in order, as upstream
CLIENT_SWEEP_SECONDS: Final = 10.0
FILTER_SECONDS: Final = 10.0  # between writes of consumers' expressions, as upstream


class Broker:
    """One broker on one store; ``start`` and ``stop`` once each, in one event loop.

    ``config_file`` is where changes of the configuration by clients are written to. Without
    ``background`` all is done in the event loop, which a simulation decides the time of; it gives
    its ``chance`` as well, and the file system ``fs`` of log, queues, index and timer.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        config_file: Path | SharedFile | None = None,
        *,
        background: bool = True,
        chance: Random | None = None,
        fs: FileSystem = OS_FILES,
    ) -> None:
        self.config = config
        self._store_config = store_config
        self._clock = clock
        self._config_file = config_file
        self._background = background
        self._fs = fs
        self._chance = chance or Random()
        self._cut_at: int | None = None  # where the log is to end when it is opened
        self._handlers: dict[int, Handler] = {}
        self._bulk_handlers: dict[int, BulkHandler] = {}
        self.events = Events()
        self._measures = config.has_metrics
        self._flow = FlowControl(lambda: self.settings, lambda: self.store.log_end_offset, clock)
        self._is_started = False
        self._server = Server(
            self._handlers,
            clock,
            bulk_handlers=self._bulk_handlers,
            unserved=NOT_YET,
            events=self.events,
            idle_seconds_max=config.server_channel_max_idle_time_seconds,
            memory_bytes_max=config.request_memory_bytes_max,
            patience=self._flow,
            measures=self._measures,
            tls=config,
            plain_ext=config.authentication_enabled,
        )
        pages, metrics = pages_of(self._told, self._server), lambda: metrics_of(self._sources())
        self.operations = Operations(config, pages, metrics)
        self._serving = Serving(self._server)
        check_role(config, store_config)
        self.services: list[Service] = []
        self._users: Metadata | None = None
        self._kv: KvStore | None = None
        self.address = ""

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port.

        Raises CannotListen when the port is taken, StoreError or an OSError that names the file
        when the store can't be opened, ConfigError when a state file can't be read.
        """
        bound = await self._server.bind(host, port)
        try:
            if self._measures:
                await self.operations.bind(self.config.broker_ip1 or host)
            await self._make(host, port, bound)
        except BaseException:
            self.operations.close()
            await self._server.stop()
            raise
        for service in self.services:
            await service.start()
        self._is_started = True
        log.info("broker serves", extra={"broker_name": self.config.broker_name, "address": self.address})
        return bound

    async def _make(self, host: str, asked_port: int, port: int) -> None:
        """Make all that is behind the port for clients."""
        self.replicas = replicas = self._make_replicas()
        try:
            ha_port = await replicas.bind(host, asked_port, port)
            self._store_config = structs.replace(self._store_config, ha_listen_port=ha_port)
            self._open(host, port)
            self._load()
        except BaseException:
            replicas.close()
            raise

    def _make_replicas(self) -> Replicas:
        access = rights.ha_access_of(self.config, lambda: self._users, self.events)
        return Replicas(self._store_config, access, acts=self.config.enable_slave_acting_master)

    def _open(self, host: str, port: int) -> None:
        """Open the store and make all parts."""
        config = self.config
        ip = config.broker_ip1 or host
        self.address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        self._loop = asyncio.get_running_loop()
        root = self._store_config.root_path
        clock, events = self._clock, self.events
        # Who asks for the configuration is told the port that was found, not that any would do.
        config = self.config = structs.replace(config, listen_port=port)
        self.settings = Settings(clock, config, self._store_config, file=self._config_file, events=events)
        in_database = self._store_config.store_type == "defaultRocksDB"
        self.topics = TopicTable(self.settings, clock, root, in_database=in_database, events=events)
        tally = Tally() if self._measures else None
        cluster = config.broker_cluster_name
        self.stats = BrokerStats(clock, cluster, self.topics.is_system, tally, self._flow.stalls)
        self.store = store = MessageStore(
            self._store_config,
            clock,
            pack_host(Host(ip, port)),
            self._fs,
            scheduler=self._loop,
            events=events,
            wants_batches=self.topics.wants_batches,
            counters=self.stats.topic,
        )
        try:
            store.lock()
            refuse_static_topics(root)
            self.topics.load()  # the store asks of what kind a topic's queues are
            self._kv = kv_store_of(config, root)
            self._users = rights.metadata_for(config, root, events)
            store.open(background=self._background, cut_at=self._cut_at)
        except BaseException:
            for database in (self._kv, self._users):
                if database is not None:
                    database.close()
            self.topics.close()
            store.release()
            raise
        self._make_state(config, in_database=in_database)

    def _make_state(self, config: BrokerConfig, *, in_database: bool) -> None:
        """Make what a broker keeps besides its messages; nothing of it is read yet."""
        self._revive_queues: Callable[[], list[ReviveQueue]] = list
        self._kv_reviving: list[Service] = []
        self._noting: list[Saving] = []
        clock, events, root = self._clock, self.events, self._store_config.root_path
        self.groups = GroupTable(self.settings, clock, root, in_database=in_database, events=events)
        self.offsets = ConsumerOffsets(
            clock,
            root,
            commits_per_version=config.consumer_offset_update_version_step,
            generations=config.config_generations,
            in_database=in_database,
            lmq=self._store_config.enable_lmq,
            before_write=self._flush_pops,
        )
        self._in_flight = InFlight(self.settings, always=self._measures)
        self.orders = ConsumerOrderInfo(clock, root, config.config_generations)
        self.delay_offsets = DelayOffsets(clock, root, config.config_generations)
        self.open_counts = OpenCounts(clock, root)
        self.modes = RequestModes(root, config.config_generations)
        tables = self.topics.file, self.topics.deleted.file, self.groups.file
        kept = tables if self._users is None else (*tables, self._users)
        wait_seconds = self._store_config.slave_timeout / 1000
        self._feed = StateFeed(self.replicas, self._chance, clock, self._loop, wait_seconds)
        self._feed.watch_all(self.topics, self.groups, self.offsets, self.modes, events)
        self._saving = Saving(kept, confirming=self._feed.confirming)
        self._senders = rights.senders_of(config, self._users, self.store, clock, events)
        self.clients = ClientRegistry(self.settings, clock, events)
        self.locks = QueueLocks(clock)
        self.filters = ConsumerFilters(self.settings, clock, root)
        keys = self._store_config
        self._timers = TimerStore(root, keys.mapped_file_size_timer_log, keys.timer_precision_ms, self._fs)
        self._timer_counts = TimerCounts(self._timers, clock, root / "config")

    def _flush_pops(self) -> None:
        """Return once all that says what was popped is on the disk, in any thread."""
        self.store.flush_log()
        if self._kv is not None:
            self._kv.sync()

    def _load(self) -> None:
        """Read the state files and connect the parts."""
        try:
            self.groups.load()
            self.offsets.load()
            if not self.replicas.is_slave:  # else all of it comes from the master
                write_seconds = self.config.flush_consumer_offset_interval / 1000
                place_groups(self.store, self.offsets, write_seconds)
            store = self.store
            self.orders.load(store.max_queue_offset if store.may_have_lost else None)
            self.filters.load()
            load_deliveries(store, self.delay_offsets)
            self.open_counts.load()
            self.modes.load()
            self._open_timers()
        except BaseException:
            self._close_state()
            self.store.close()
            raise
        if not self.replicas.is_slave:
            adopt_queues(self.store, self.topics)
        self._save_state()
        warn_of_waiting(self.store, self.topics, self.offsets)
        warn_of_compaction(self.topics.table)
        self.store.know_progress(self._progress)
        self._held = HeldPulls(self.store, self._clock, self._loop)
        self._hold_pops()
        self._cold = ColdReads(self._loop if self._background else None)
        access, config = rights.access_of(self.config), self.config
        self._sync = SlaveSync(
            self.topics, self.groups, self.offsets, self.delay_offsets, self.modes, self._users,
            self._saving, self._timer_counts if self._store_config.timer_wheel_enable else None,
            self._clock, access, acts=config.enable_slave_acting_master,
            is_chosen=config.enable_controller_mode, broker_id=config.broker_id,
        )  # fmt: skip
        self._registration = self._make_registration()
        self._routes = routes_of(self.settings, self.topics, self._clock, access)
        self._spreading = spreading_of(self.settings, self.address)
        self._healing = Healing(self.store, self.replicas.source_of_log)
        self._make_puts()
        self._replication = self.replicas.begin(self.store, self._clock)
        context = self._context_made = self._context()
        self._serve(context)
        timing, deliveries = self._timing(context)
        self._acting: Acting | None = None
        if self.config.enable_slave_acting_master:
            self._acting = self._make_acting(context, deliveries)
        elif not self.replicas.is_slave:
            timing += deliveries
        self.services = self._make_services(timing)

    def _progress(self) -> Iterable[Consumed]:
        """How far the consumer groups are."""
        return self.offsets.progress(self.groups.has, lambda topic: self.topics.read_queues(topic) or 0)

    def _open_timers(self) -> None:
        """Bring the timer's files in line with the log."""
        if self._store_config.timer_wheel_enable:
            open_timers(self.store, self._timers, self._clock.now_ms())
            self._timer_counts.load(self.topics.table)

    def _before_acting(self) -> None:
        """Have what a slave changes from now on be later than what its master had."""
        self.store.catch_up()
        if self.replicas.is_slave:
            pass_pops(self.store, self.offsets)
            self.offsets.lead()
            self.delay_offsets.lead()
            self._timers.lead(LEAD)

    def _timing(self, context: BrokerContext) -> tuple[list[Service], list[Service]]:
        """What keeps messages with a delivery time, and what delivers them and what was popped for
        a time when it is this broker's turn."""
        config, loop = self._store_config, self._loop
        if not config.timer_wheel_enable:
            return [], []
        flush = TimerFlush(
            self._timers,
            self.store.flush_log,
            self._timer_counts.content,
            config.timer_flush_interval_ms,
            self._clock.monotonic,
            None if self._background else loop,
        )
        timed = TimedMessages(context, flush, loop)
        self.events.listen(WaitsElsewhere, timed.waits)
        self._sync.timer_told.listen(timed.follow)
        self._sync.timer_back.listen(timed.take_back)
        self.store.keep_from(timed.let_go)
        self._revive_queues = lambda: reviving.queues
        reviving = Reviving(context, self._books.put_checkpoint, timed.delivered_ms, loop)
        self.events.listen(MessagesArrived, reviving.arrived)
        acts = self.config.enable_slave_acting_master
        return [flush, timed], [Delivering(timed), reviving] if acts else [reviving]

    def _make_puts(self) -> None:
        """Make what puts messages, and what delivers those that wait for a delay."""
        redirections = (
            waits_as_half(self.settings),
            TimerRedirection(self.settings, self._timers, self._chance),
            DelayRedirection(self.store.delays),
        )
        store, clock, chance = self.store, self._clock, self._chance
        if self.replicas.is_slave and self.config.enable_slave_acting_master:
            self._puts: Puts = EscapingPuts(
                store, self.topics, clock, chance, redirections, self.events,
                self.settings, self._routes, rights.access_of(self.config),
            )  # fmt: skip
        else:
            self._puts = Puts(store, self.topics, clock, chance, redirections, self.events)
        self._delayed = DelayedDelivery(
            store, self._puts, self.topics, self.delay_offsets, clock, self._loop, self.stats.tally
        )

    def _hold_pops(self) -> None:
        """Make what keeps pops and notifications that wait, and what wakes those in order."""
        settings, store, clock, loop = parts = self.settings, self.store, self._clock, self._loop
        self._held_pops = HeldPops("held pops", *parts)
        self._held_notifications = HeldPops("held notifications", *parts, newest_first=True)
        self._held_lite = HeldPops("held lite pops", *parts)
        held = self._held_pops, self._held_notifications
        self._unblocking = Unblocking(settings, store, self.orders, self.offsets, held, clock, loop)

    def _context(self) -> BrokerContext:
        return BrokerContext(
            self.settings,
            self.store,
            self._puts,
            self.topics,
            self.groups,
            self.offsets,
            self.orders,
            self.clients,
            self.locks,
            self.filters,
            self._held,
            self.stats,
            self._clock,
            self._loop.call_soon,
            self._chance,
            self._timers,
            self._timer_counts,
            self._cold,
            self.modes,
            self._routes,
            self._held_pops,
            self._held_notifications,
            self._unblocking,
            self._in_flight,
            self.replicas,
            self.delay_offsets,
            self._senders,
        )

    def _serve(self, context: BrokerContext) -> None:
        """Have requests handled by what the tables say."""
        sends = SendProcessor(context)
        self._transactions = transactions = Transactions(context, self.open_counts, self._loop)
        sends_back = SendBackProcessor(context)
        others = handlers_of(context, sends_back)
        if self._users is not None:
            follows = self.replicas.is_slave
            others |= auth_handlers_of(self._users, self.config, follows=follows)
        if self.stats.tally is not None:
            others = measured(others, self.stats.tally, self._clock)
        handlers = self._saving.holding(others)
        ends = TransactionProcessor(context, transactions)
        handlers |= transaction_handlers_of(ends)
        handlers |= message_handlers_of(sends, PullProcessor(context))
        handlers |= reply_handlers_of(context, sends)
        books = self._books = self._make_books(context)
        self._popping = Popping(context, books)
        self._lite = LiteTopics(context, self._held_lite, self._loop, self.events)
        handlers |= self._role_handlers() | self._feed.handlers()
        pops = PopProcessor(context, self._popping)
        acks = AckProcessor(context, books, LiteAcks(context, self._lite.popping))
        handlers |= pop_handlers_of(context, books, self._lite, pops, acks)
        bulk_handlers = self._saving.holding_several(bulk_send_backs_of(sends_back))
        bulk_handlers |= bulk_handlers_of(sends, ends, pops, acks)
        if isinstance(self._puts, EscapingPuts):
            handlers |= self._puts.run_again({code: handlers[code] for code in NOTING})
            bulk_handlers = {code: it for code, it in bulk_handlers.items() if code not in NOTING}
        for noting in self._noting:
            handlers |= noting.holding({code: handlers[code] for code in NOTING})
            for code in NOTING:  # their answers wait
                bulk_handlers.pop(code, None)
        admission = self._admission()
        unserved = {code: why for code, why in NOT_YET.items() if code not in handlers}
        self._handlers.update(admission.before(handlers, unserved))
        self._bulk_handlers.update(admission.before_bulk(bulk_handlers))
        self._listen(sends)

    def _admission(self) -> Admission:
        """What is decided before a request is handled."""
        control = self._senders
        conditions = [control.condition] if isinstance(control, rights.AccessControl) else []
        return Admission([*conditions, *self._role_conditions()])

    def _role_handlers(self) -> dict[int, Handler]:
        """What is asked of brokers that do not keep their role."""
        return {}

    def _role_conditions(self) -> list[Condition]:
        """What is refused by the role."""
        acts, replicas = self.config.enable_slave_acting_master, self.replicas
        if replicas.is_slave:
            pops = self._takes_pops, self._kv is not None
            return [refused_by_acting_slave(*pops) if acts else refused_by_slave]
        alone = acts and self._store_config.broker_role == SYNC_MASTER
        return [refused_by_acting_master(replicas, self._store_config)] if alone else []

    def _takes_pops(self) -> bool:
        """Whether this slave notes pops, at another master."""
        return self.settings.broker.enable_remote_escape and self._special.runs and self._kv is None

    def _make_books(self, context: BrokerContext) -> BufferedBooks:
        """Make what notes pops; with a database, also what has messages come again by it, and has
        answers wait for it."""
        records = self._kv
        if records is None:
            escapes = isinstance(context.puts, EscapingPuts)
            return (EscapedBooks if escapes else BufferedBooks)(context, self._loop)
        reviving = KvReviving(context, records, self._loop)
        self._kv_reviving.append(reviving)
        self._noting.append(Saving((records,), "saving of pops"))
        books = KvBooks(context, self._loop, records, reviving.expect)
        self.events.listen(SettingsChanged, books.settings_changed)
        return books

    def _listen(self, sends: SendProcessor) -> None:
        """Who hears of what."""
        notices = MemberNotices(self.settings, self.clients, self._loop.call_soon)
        held = self._held, self._held_pops, self._held_notifications, self._held_lite
        rights.review_of(held, self.events, self._loop, self._clock.monotonic)
        listen = self.events.listen
        listen(MessagesArrived, self._held.arrived)
        listen(ConnectionClosed, self._held.closed)
        for pops in (self._held_pops, self._held_notifications):
            listen(MessagesArrived, pops.arrived)
            listen(QueuesDeleted, pops.topic_gone)
            listen(ConnectionClosed, pops.closed)
            listen(GroupDeleted, pops.group_gone)
        for who in (self.orders, self._in_flight, self.stats, self._lite):
            listen(GroupDeleted, who.group_gone)
        listen(ConnectionClosed, self._held_lite.closed)
        listen(ConnectionClosed, lambda _: self._lite.events.closed())
        listen(QueuesDeleted, self._held_lite.topic_gone)
        listen(QueuesDeleted, self._lite.queues_gone)
        listen(MessagesArrived, self._delayed.arrived)
        listen(QueuesDeleted, lambda _: sends.forget_targets())
        listen(QueuesDeleted, self.open_counts.topic_gone)
        listen(QueuesDeleted, self.orders.topic_gone)
        listen(QueuesDeleted, self._in_flight.topic_gone)
        listen(QueuesDeleted, lambda _: self._popping.forget_queues())
        listen(QueuesDeleted, self._books.forget_queues)
        listen(SettingsChanged, lambda _: sends.forget_targets())
        listen(SettingsChanged, self._settings_changed)
        listen(TopicsChanged, self._topics_changed)
        listen(TopicMade, self._spreading.made)
        listen(RecordDamaged, self._healing.met)
        listen(MembersChanged, notices.changed)
        if self.replicas.is_slave:
            listen(MessagesArrived, self._sync.arrived)
        if not self.replicas.is_slave or self.config.enable_slave_acting_master:
            self.replicas.linked.listen(lambda _: self._serving.serve_replicas(self.config))
        listen(WaitsElsewhere, self._transactions.waits)
        listen(GroupLeft, lambda left: self.filters.unregister(left.group))
        listen(ConnectionClosed, lambda closed: self.clients.forget(closed.peer))

    def _make_services(self, timing: list[Service]) -> list[Service]:
        """What is done by time, in the order in which it is started; stopped is it backwards."""
        offsets_seconds = self.config.flush_consumer_offset_interval / 1000
        delays_seconds = self._store_config.flush_delay_offset_interval / 1000
        counts_seconds = self.config.transaction_metric_flush_interval / 1000
        clean_seconds = self._store_config.clean_resource_interval / 1000
        ttl_seconds = self.config.min_lite_ttl / 1000
        lite_seconds = self.config.lite_subscription_check_interval / 1000
        store, saving = self.store, self._saving
        write_counts = partial(saving.write, self.open_counts.file)
        operations = [self.operations] if self._measures else []
        tables = self.topics.file, self.topics.deleted.file, self.groups.file
        is_master, acting = not self.replicas.is_slave, self._acting
        own = is_master and acting is None  # it is the master, whatever happens
        return [
            *operations,
            *store.services,
            self._replication,
            *timing,
            *([self._books] if timing and is_master else ()),
            *(self._kv_reviving if own else ()),
            self._every("retention", clean_seconds, store.clean),
            self._every("queues left out", CATCH_UP_SECONDS, CatchingUp(store).step),
            *((self._transactions,) if own else ()),
            *([self._puts] if isinstance(self._puts, EscapingPuts) else ()),
            *([self._group_locks, self._special] if acting is not None else ()),
            self._serving,
            saving,
            self._feed,
            *self._noting,
            Following(saving, tables, self._loop),
            self._every("offsets", offsets_seconds, partial(saving.write, self.offsets.file)),
            self._every("delay offsets", delays_seconds, self._write_delay_offsets),
            self._every("open transactions", counts_seconds, write_counts),
            *((self._delayed,) if own else ()),
            self._every("filters", FILTER_SECONDS, self._write_filters),
            self._every("orders", ORDER_SECONDS, self._write_orders),
            store.acknowledging,
            *([store.confirming] if store.confirming is not store.acknowledging else []),
            self._held,
            self._held_pops,
            self._held_notifications,
            self._unblocking,
            self._held_lite,
            self._lite,
            self._every("lite clients", lite_seconds, self._lite.expire),
            self._every("lite topics' time", ttl_seconds, self._lite.expiry.step),
            self._cold,
            self._every("clients", CLIENT_SWEEP_SECONDS, self._expire_clients),
            self._every("counters", SAMPLE_SECONDS, self.stats.sample_step),
            acting or self._registration,
            *(() if is_master else (self._sync,)),
            self._routes,
            self._spreading,
            self._healing,
        ]

    def _every(self, name: str, seconds: float, call: Callable[[], float | None]) -> Service:
        return Every(name, seconds, call, self._loop)

    def _make_acting(self, context: BrokerContext, deliveries: list[Service]) -> Acting:
        """Make the part in a group whose slaves act for their master."""
        services = [*deliveries, *self._kv_reviving, self._transactions, self._delayed]
        services += [self._books] if isinstance(self._books, EscapedBooks) else []
        self._special = Special(services, self._before_acting)
        self._puts.moved.listen(lambda _: self._special.go_on())
        who, access = self._identity, rights.access_of(self.config)
        acting = Acting(context, who, self._special, self._registration, self._sync, access)
        self._group_locks = GroupLocks(context, self._handlers, access)
        handlers = acting.handlers() | self._group_locks.handlers()
        self._handlers.update(self._admission().before(handlers))
        return acting

    def _make_registration(self) -> Registration:
        ha_port = self._store_config.ha_listen_port
        self._identity = identity_of(self.config, self.address, ha_port)
        on_master = self._master_is if self.replicas.is_slave else None
        return registration_of(
            self.settings, self.topics, self._name_servers(), self._identity, rights.access_of(self.config), on_master
        )

    def _name_servers(self) -> list[str]:
        return addresses_of(self.config.namesrv_addr)

    def _master_is(self, ha_address: str, address: str) -> bool:
        """Follow the master that a name server knows; say whether it is the right one."""
        self.replicas.follow(ha_address)
        self._sync.follow(address)
        return True

    def _told(self) -> Told:
        """What is told by HTTP, of a broker that has been loaded."""
        return Told(
            self._sources,
            self.address,
            lambda: self.troubles,
            lambda: self.not_registered_with,
            lambda: self._is_started,
        )

    def _sources(self) -> Sources:
        tally, meter = self.stats.tally, self._server.meter
        assert tally is not None, "who asks for metrics has them counted"
        assert meter is not None, "and measured"
        return Sources(
            self._context_made, tally, meter, self._flow, self.open_counts, self._books,
            self._revive_queues, [],
        )  # fmt: skip

    @property
    def not_registered_with(self) -> list[str]:
        """The name servers that do not know this broker."""
        return self._registration.missing

    async def stop(self) -> None:
        """Take leave of the name servers, answer who waits, and close the store cleanly."""
        for service in reversed(self.services):
            await service.stop()
        await self._close()

    async def _close(self) -> None:
        """Close what is behind the port, when no service runs any more."""
        try:
            for each in (self._saving, *self._noting):
                await each.finish()
            if self.replicas.is_slave:  # another start may make a master of it
                self.offsets.go_back(self.store.max_queue_offset)
            self._save_state()
        finally:  # on a full disk, too: a broker whose role changes opens all of it again
            self._close_state()
            self.store.close()

    def cut(self) -> None:
        """End all connections at once, as a kill of the process would; ``stop`` comes after it."""
        self._server.cut()

    @property
    def troubles(self) -> dict[str, str]:
        """What keeps services from their work at present, by their names."""
        found = {service.name: service.trouble for service in self.services}
        return {name: trouble for name, trouble in found.items() if trouble is not None}

    def _write_delay_offsets(self) -> None:
        self.delay_offsets.settle(self.store.flushed_offset)
        self._saving.write(self.delay_offsets.file)

    def _save_state(self) -> None:
        """Write the state files that are behind, here and now."""
        self.topics.save()
        self.groups.save()
        self.offsets.save()
        self.filters.save()
        self.orders.file.save()
        self.open_counts.file.save()
        settle_deliveries(self.store, self.delay_offsets)
        self.delay_offsets.save()

    def _close_state(self) -> None:
        self.topics.close()
        self.groups.close()
        self.offsets.close()
        self.delay_offsets.close()
        self.open_counts.file.close()
        self.modes.file.close()
        self.filters.close()
        self.orders.file.close()
        for database in (self._kv, self._users):
            if database is not None:
                database.close()
        self._timers.close()

    def _write_filters(self) -> None:
        self.filters.clean()
        self._saving.write(self.filters.file)

    def _write_orders(self) -> float | None:
        """Forget batches that are of no use, in steps, and write the others at last."""
        if self.orders.clean_step(self.groups.has, self.topics.read_queues):
            return 0.0
        self._saving.write(self.orders.file)
        return None

    def _expire_clients(self) -> None:
        self.clients.expire()
        self.locks.expire()

    def _topics_changed(self, changed: TopicsChanged) -> None:
        self._registration.topics_changed([config.topic_name or "" for config in changed.configs])

    def _settings_changed(self, changed: SettingsChanged) -> None:
        self.store.retain_by(self.settings.store)
        if "messageDelayLevel" in changed.keys:
            self._delayed.change_levels(self.settings.store.message_delay_level)
        if "brokerPermission" in changed.keys:
            self.topics.touch()
