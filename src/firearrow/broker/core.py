"""Core of a broker: it opens the store, connects the features, starts and stops them.

Start: listen, open the store (which recovers it), load the state files, serve clients, register with the name servers.
A stop goes backwards, so that no client gets the address of a broker that does not answer, and all acknowledged data
are durable when the lock is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from msgspec import structs

from firearrow.auth.metadata import Metadata
from firearrow.broker.access import control as access
from firearrow.broker.access.feature import AccessFeature
from firearrow.broker.acting.feature import ActingFeature
from firearrow.broker.administration.feature import AdministrationFeature
from firearrow.broker.admission import NOT_YET, Admission
from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.feature import DelayFeature
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.events import GroupDeleted
from firearrow.broker.feature import Base, Feature
from firearrow.broker.flowcontrol import FlowControl
from firearrow.broker.groups.assignment import RequestModes
from firearrow.broker.groups.clients import ClientRegistry
from firearrow.broker.groups.feature import GroupFeature
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.lite.feature import LiteFeature
from firearrow.broker.metrics.families import Sources, metrics_of
from firearrow.broker.metrics.operations import StatusSources, pages_of
from firearrow.broker.metrics.stats import BrokerStats
from firearrow.broker.metrics.tally import Tally, measured
from firearrow.broker.offsets.feature import OffsetFeature
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.feature import PopFeature
from firearrow.broker.pop.kvstore import KvStore, kv_store_of
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pulling.feature import PullFeature
from firearrow.broker.registering.feature import RegistrationFeature
from firearrow.broker.replication.feature import ReplicationFeature
from firearrow.broker.replication.replicas import Replicas, check_role
from firearrow.broker.role import FixedRole
from firearrow.broker.sending.feature import SendFeature
from firearrow.broker.state.settings import Settings, SharedFile
from firearrow.broker.storage.feature import StorageFeature
from firearrow.broker.storage.saving import SyncedState
from firearrow.broker.timing.feature import TimingFeature
from firearrow.broker.topics.feature import TopicFeature, refuse_static_topics
from firearrow.broker.topics.table import TopicTable
from firearrow.broker.transactions.feature import TransactionFeature
from firearrow.broker.transactions.opencounts import OpenCounts
from firearrow.clock import Clock
from firearrow.errors import CannotListen
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.message.hosts import Host, pack_host
from firearrow.net.address import endpoint, ip_of
from firearrow.net.exposition import MetricPart
from firearrow.net.operations import Operations
from firearrow.net.server import BulkHandler, Handler, Server
from firearrow.services import Service
from firearrow.store import OS_FILES, FileSystem, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import RequestCode

log: Final = Log(__name__)

T = TypeVar("T")


class Broker:
    """One broker on one store; ``start`` and ``stop`` once each, in one event loop.

    ``config_file`` gets changes of the configuration by clients. Without ``background`` all work is done in the event
    loop, whose time a simulation controls. It also provides ``chance``, and the file system ``fs`` of log, queues,
    index and timer.
    """

    # `start` makes these.
    replicas: Replicas
    settings: Settings
    topics: TopicTable
    stats: BrokerStats
    store: MessageStore
    groups_feature: GroupFeature
    groups: GroupTable
    clients: ClientRegistry
    locks: QueueLocks
    filters: ConsumerFilters
    modes: RequestModes
    offsets_feature: OffsetFeature
    offsets: ConsumerOffsets
    access: AccessFeature
    replication: ReplicationFeature
    storage: StorageFeature
    delaying: DelayFeature
    delay_offsets: DelayOffsets
    timing: TimingFeature
    transactions: TransactionFeature
    open_counts: OpenCounts
    registering: RegistrationFeature
    sending: SendFeature
    pulling: PullFeature
    popping: PopFeature
    orders: ConsumerOrderInfo
    lite: LiteFeature
    administration: AdministrationFeature

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
        role: FixedRole | None = None,
    ) -> None:
        self.config: BrokerConfig = config
        self._store_config = store_config
        self._clock = clock
        self._config_file = config_file
        self._background = background
        self._fs = fs
        self._role = role or FixedRole()
        self._chance = chance or Random()
        self._cut_at: int | None = None  # new end of the log, cut when it is opened
        self._handlers: dict[int, Handler] = {}
        self._bulk_handlers: dict[int, BulkHandler] = {}
        self.events: Final = Events()
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
        self.operations: Final = Operations(config, pages, metrics)
        self._serving = Serving(self._server)
        check_role(config, store_config)
        self.services: list[Service] = []
        self.other_metrics: list[MetricPart] = []
        """Metrics of parts outside of the broker, shown with its own."""
        self.users: Metadata | None = None
        self.address: str = ""
        self._ip = ""  # as records store it: brokerIP1 may be a name

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port.

        Raises CannotListen when the port is taken, StoreError or an OSError that names the file
        when the store can't be opened, ConfigError when a state file can't be read or no host has the name that clients
        use.
        """
        bound = await self._server.bind(host, port)
        try:
            self._ip = await ip_of("brokerIP1", self.config.broker_ip1 or host)
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
        """Make everything behind the port."""
        self.replicas = replicas = self._role.make_replicas(
            self.config, self._store_config, lambda: self.users, self.events
        )
        try:
            ha_port = await replicas.bind(host, asked_port, port)
            self._store_config = structs.replace(self._store_config, ha_listen_port=ha_port)
            self._open(host, port)
            self._load()
        except BaseException:
            replicas.close()
            raise

    def _open(self, host: str, port: int) -> None:
        """Open the store, and make the features."""
        self.address = endpoint(self.config.broker_ip1 or host, port)
        root, clock, events = self._store_config.root_path, self._clock, self.events
        # An administrator reads the actual port, not 0.
        config = self.config = structs.replace(self.config, listen_port=port)
        self.settings = Settings(clock, config, self._store_config, file=self._config_file, events=events)
        in_database = self._store_config.store_type == "defaultRocksDB"
        self.topics = topics = TopicTable(self.settings, clock, root, in_database=in_database, events=events)
        tally = Tally() if self._measures else None
        self.stats = BrokerStats(clock, config.broker_cluster_name, topics.is_system, tally, self._flow.stalls)
        loop = asyncio.get_running_loop()
        self.store = store = MessageStore(
            self._store_config,
            clock,
            pack_host(Host(self._ip, port)),
            self._fs,
            scheduler=loop,
            events=events,
            wants_batches=topics.wants_batches,
            counters=self.stats.topic,
        )
        pops: KvStore | None = None
        self.users = None
        try:
            store.lock()
            refuse_static_topics(root)
            topics.load()  # the store asks for the kind of a topic's queues
            pops = kv_store_of(config, root)
            self.users = access.metadata_for(config, root, events)
            store.open(background=self._background, cut_at=self._cut_at)
        except BaseException:
            for database in (pops, self.users):
                if database is not None:
                    database.close()
            topics.close()
            store.release()
            raise
        base = self._base = Base(
            self.settings, store, topics, self.stats, clock, loop, self._chance, events, self.replicas,
            access.access_of(config), self.address, self._fs, self._background,
        )  # fmt: skip
        self._make_features(base, pops)

    def _make_features(self, base: Base, pops: KvStore | None) -> None:
        """Make the features in an order that gives each the parts that it needs."""
        topics = TopicFeature(base)
        self.groups_feature = groups = GroupFeature(base, getattr(self, "clients", None))
        self.groups, self.clients, self.locks = groups.table, groups.clients, groups.locks
        self.filters, self.modes = groups.filters, groups.modes
        flush_pops = partial(_flush_pops, base.store, pops)
        self.offsets_feature = offsets = OffsetFeature(base, self.groups, flush_pops)
        self.offsets = offsets.table
        self.access = AccessFeature(base, self.users)
        self.replication = replication = ReplicationFeature(base, groups, self.offsets)
        files = (*topics.files, self.groups.file)
        kept: list[SyncedState] = [*files] if self.users is None else [*files, self.users]
        self.storage = StorageFeature(base, kept, files, replication.feed.confirming)
        self.delaying = delaying = DelayFeature(base)
        self.delay_offsets = delaying.offsets
        self.timing = timing = TimingFeature(base)
        self.transactions = TransactionFeature(base)
        self.open_counts = self.transactions.open_counts
        replication.make_sync(self.delay_offsets, self.users, self.storage.saving, timing.counts)
        on_master = self._master_is if self.replicas.is_slave else None
        name_servers = self._role.name_servers(self.config)
        self.registering = RegistrationFeature(base, name_servers, on_master, self._role.registration_retry_ms)
        self.sending = SendFeature(base, timing.store, self.registering.routes)
        self.pulling = PullFeature(base)
        self.popping = PopFeature(base, self.groups, self.offsets, pops)
        self.orders = self.popping.orders
        self.lite = LiteFeature(base)
        self.administration = AdministrationFeature()
        self.topics_feature = topics
        self.acting: ActingFeature | None = None
        if base.acts:
            parts = self.sending, offsets, delaying, timing
            self.acting = ActingFeature(base, *parts, has_database=pops is not None)
        acting = () if self.acting is None else (self.acting,)
        self.features: list[Feature] = [
            topics, self.storage, replication, groups, offsets, delaying, timing, self.transactions,
            self.sending, self.pulling, self.popping, self.lite, self.administration, self.access, *acting,
            self.registering,
        ]  # fmt: skip

    def _load(self) -> None:
        """Read the state files, connect the features, and give their handlers to the server."""
        try:
            self._role.begin(self.store, is_slave=self.replicas.is_slave)
            for feature in self.features:
                feature.load()
        except BaseException:
            self._close_features()
            self.store.close()
            raise
        self._save()
        self.replication.begin()
        self._connect()
        self._serve()
        self.services = self._make_services()
        self._role.begun(self._base, self.replication.sync)

    def _connect(self) -> None:
        """Give each feature the parts of others."""
        context, saving = self._context(), self.storage.saving
        pulling, popping, routes = self.pulling, self.popping, self.registering.routes
        self.topics_feature.connect(context)
        self.groups_feature.connect(context, saving, routes)
        waiting = pulling.held, popping.held, popping.held_notifications
        self.offsets_feature.connect(context, saving, *waiting, popping.in_flight.count)
        self.delaying.connect(self.sending.puts, saving)
        self.timing.connect(context, self.replication.sync)
        self.transactions.connect(context, saving)
        self.sending.connect(context, self.locks)
        pulling.connect(context, self.filters)
        is_remote = self.sending.escapes is not None
        popping.connect(context, saving, self.timing, pulling.cold, routes, is_remote=is_remote)
        self.lite.connect(context, routes, pulling.cold)
        popping.connect_lite(context, self.lite.topics, self.lite.processor)
        self.administration.connect(context, self.delay_offsets, self.timing.store, self.timing.counts)
        if self.acting is not None:
            parts = self.registering, self.replication, self.locks, pulling.held
            self.acting.connect(context, self._deliveries(), *parts)

    def _deliveries(self) -> list[Service]:
        return [service for feature in self.features for service in feature.deliveries()]

    def _context(self) -> BrokerContext:
        return BrokerContext(
            self.settings,
            self.store,
            self.sending.puts,
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.stats,
            self._clock,
            self._chance,
            self.replicas,
            self.access.senders,
        )

    def _serve(self) -> None:
        """Give the server the handlers of all features, and register the features' listeners."""
        saved: dict[int, Handler] = {}
        handlers: dict[int, Handler] = {}
        saved_bulk: dict[int, BulkHandler] = {}
        bulk_handlers: dict[int, BulkHandler] = {}
        for feature in self.features:
            saved |= _by_number(feature.saved_handlers())
            handlers |= _by_number(feature.handlers())
            saved_bulk |= _by_number(feature.saved_bulk_handlers())
            bulk_handlers |= _by_number(feature.bulk_handlers())
        if self.stats.tally is not None:
            saved = measured(saved, self.stats.tally, self._clock)
        handlers |= self.storage.saving.holding(saved) | _by_number(self._role.handlers())
        bulk_handlers |= self.storage.saving.holding_several(saved_bulk)
        for feature in self.features:
            feature.wrap(handlers, bulk_handlers)
        by_role = self._role.conditions(self._base) if self.acting is None else self.acting.conditions
        admission = Admission([*self.access.conditions, *by_role])
        unserved = {code: why for code, why in NOT_YET.items() if code not in handlers}
        self._handlers.update(admission.before(handlers, unserved))
        self._bulk_handlers.update(admission.before_bulk(bulk_handlers))
        self.access.review((self.pulling.held, self.popping.held, self.popping.held_notifications, self.lite.held))
        self.events.listen(GroupDeleted, self.stats.group_gone)
        if not self.replicas.is_slave or self._base.acts:
            self.replicas.linked.listen(lambda _: self._serving.serve_replicas(self.config))
        for feature in self.features:
            feature.listen()

    def _make_services(self) -> list[Service]:
        """Services in the order of their start; they stop in the reverse order."""
        inner = [service for feature in self.features for service in feature.inner_services()]
        outer = [service for feature in self.features for service in feature.services()]
        return [
            *([self.operations] if self._measures else []),
            *inner,
            *(self._deliveries() if self._base.is_only_master else []),
            self._serving,
            *outer,
        ]

    def _master_is(self, ha_address: str, address: str) -> bool:
        """Follow the master that a name server knows; tell whether it is the right one."""
        if not self._role.is_master_at(address):
            return False
        self.replicas.follow(ha_address)
        self.replication.sync.follow(address)
        return True

    def _told(self) -> StatusSources:
        return StatusSources(
            self._sources,
            self.address,
            lambda: self.troubles,
            lambda: self.not_registered_with,
            lambda: self._is_started,
        )

    def _sources(self) -> Sources:
        tally, meter, popping = self.stats.tally, self._server.meter, self.popping
        assert tally is not None, "metrics are requested only with a tally"
        assert meter is not None, "and measured"
        return Sources(
            self._context(),
            tally,
            meter,
            self._flow,
            self.open_counts,
            self.timing.store,
            self.timing.counts,
            popping.books,
            popping.in_flight,
            popping.revive_queues,
            [],
            self.other_metrics,
        )

    @property
    def server(self) -> Server:
        """Server of its clients."""
        return self._server

    @property
    def not_registered_with(self) -> list[str]:
        """Name servers that do not know this broker."""
        return self.registering.registration.missing

    async def stop(self) -> None:
        """Unregister, answer pending requests, and close the store cleanly."""
        for service in reversed(self.services):
            await service.stop()
        await self._close()

    async def _close(self) -> None:
        """Close everything behind the port, when no service runs any more."""
        try:
            await self.storage.finish()
            await self.popping.finish()
            self._save()
        finally:  # on a full disk, too: a broker whose role changes opens everything again
            self._close_features()
            self.store.close()

    def cut(self) -> None:
        """End all connections at once, as a kill of the process would; a call of ``stop`` must follow."""
        self._server.cut()

    @property
    def troubles(self) -> dict[str, str]:
        """Reasons why services do not work at present, by name."""
        found = {service.name: service.trouble for service in self.services}
        return {name: trouble for name, trouble in found.items() if trouble is not None}

    def _save(self) -> None:
        for feature in self.features:
            feature.save()

    def _close_features(self) -> None:
        for feature in self.features:
            feature.close()


def _flush_pops(store: MessageStore, pops: KvStore | None) -> None:
    """Make the records of popped messages durable, in any thread."""
    store.flush_log()
    if pops is not None:
        pops.sync()


def _by_number(handlers: Mapping[RequestCode, T]) -> dict[int, T]:
    return {int(code): handler for code, handler in handlers.items()}  # ints are found faster


# --- Service of clients ---


SECOND_PORT: Final = 2  # below listenPort, as RocketMQ


class Serving(Service):
    """Serves clients from its start to its stop."""

    def __init__(self, server: Server) -> None:
        super().__init__("server")
        self._server = server
        self._second: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept clients."""
        await self._server.serve()

    def serve_replicas(self, config: BrokerConfig) -> None:
        """Accept connections at the port for RocketMQ's slaves, which ask for topics, and for its returning masters,
        which ask for offsets.

        Java: MixAll#brokerVIPChannel; a broker always has a second server there.
        """
        if self._second is None:
            port = config.listen_port - SECOND_PORT
            self._second = asyncio.get_running_loop().create_task(self._serve_second(config.bind_address, port))

    async def _serve_second(self, host: str, port: int) -> None:
        try:
            await self._server.serve_also(host, port)
        except CannotListen as error:
            log.warning("second port is not available", extra={"port": port, "error": error})

    async def stop(self) -> None:
        """Let answers leave and close every connection."""
        await self._server.stop()
