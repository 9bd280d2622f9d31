"""A broker as a whole: its parts, the order in which they start and stop, and what it does by time.

Start: take the port, open the store (which recovers it), load the state files, serve clients,
register with the name servers. Stop is the same backwards, so that no client is told of a broker
that does not answer, and everything that was acknowledged is on the disk when the lock is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from msgspec import structs

from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.longpoll import HeldPulls
from firearrow.broker.processors.pull import PullProcessor
from firearrow.broker.processors.send import SendProcessor
from firearrow.broker.registration import Identity, Registration, addresses_of
from firearrow.broker.requests import (
    Admission,
    bulk_handlers_of,
    handlers_of,
    message_handlers_of,
)
from firearrow.broker.saving import WRITE_SECONDS, Saving
from firearrow.broker.state.clients import ClientRegistry
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.locks import QueueLocks
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.settings import Settings
from firearrow.broker.state.topics import TopicTable
from firearrow.broker.stats import SAMPLE_SECONDS, BrokerStats
from firearrow.broker.takeover import warn_of_waiting
from firearrow.broker.unserved import Unserved
from firearrow.clock import Clock
from firearrow.message.hosts import Host, pack_host
from firearrow.net.server import BulkHandler, Handler, Peer, Server
from firearrow.store import Consumed, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.bodies import TopicConfig

log = logging.getLogger(__name__)

# The first message after a rest is dispatched at once; under load they gather into batches, which
# cost less and disturb fewer sends: shortly while consumers wait for messages, longer while nobody
# does. A pull or a look-up that comes meanwhile doesn't wait for the long interval.
DISPATCH_WAITED_FOR_SECONDS: Final = 0.002
DISPATCH_UNWAITED_SECONDS: Final = 0.1
CATCH_UP_SECONDS: Final = 1.0  # how soon a queue that was left out is seen to
DISPATCH_RETRY_SECONDS: Final = 1.0  # how soon a full disk is tried again
HELD_SWEEP_SECONDS: Final = 0.5
FLUSH_WAITERS_SWEEP_SECONDS: Final = 0.1
CLIENT_SWEEP_SECONDS: Final = 10.0


class Broker:
    """One broker on one store; ``start`` and ``stop`` once each, in one event loop.

    ``config_file`` is where changes of the configuration by clients are written to.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        config_file: Path | None = None,
    ) -> None:
        self.config = config
        self._store_config = store_config
        self._clock = clock
        self._config_file = config_file
        self._handlers: dict[int, Handler] = {}
        self._bulk_handlers: dict[int, BulkHandler] = {}
        self._server = Server(
            self._handlers,
            clock,
            bulk_handlers=self._bulk_handlers,
            on_close=self._closed,
            on_unserved=Unserved(clock).note,
            idle_seconds_max=config.server_channel_max_idle_time_seconds,
            memory_bytes_max=config.request_memory_bytes_max,
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._last_dispatch = 0.0
        self.address = ""

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port.

        Raises CannotListen when the port is taken, StoreError or an OSError that names the file
        when the store can't be opened, ConfigError when a state file can't be read.
        """
        bound = await self._server.bind(host, port)
        try:
            self._open(host, bound)
            self._load()
        except BaseException:
            await self._server.stop()
            raise
        await self._server.serve()
        self._start_timers()
        await self._registration.start()
        log.info(
            "broker serves",
            extra={"broker_name": self.config.broker_name, "address": self.address},
        )
        return bound

    def _open(self, host: str, port: int) -> None:
        """Open the store and make all parts."""
        config = self.config
        ip = config.broker_ip1 or host
        self.address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        self._loop = asyncio.get_running_loop()
        self.store = store = MessageStore(
            self._store_config, self._clock, pack_host(Host(ip, port))
        )
        store.on_work = self._work_came
        store.run_in_loop = self._loop.call_soon_threadsafe
        root = self._store_config.root_path
        clock = self._clock
        # Who asks for the configuration is told the port that was found, not that any would do.
        config = self.config = structs.replace(config, listen_port=port)
        self.settings = Settings(clock, config, self._store_config, file=self._config_file)
        in_database = self._store_config.store_type == "defaultRocksDB"
        self.topics = TopicTable(self.settings, clock, root, in_database=in_database)
        store.on_locked = self.topics.load  # the store asks of what kind a topic's queues are
        store.wants_batches = self.topics.wants_batches
        try:
            store.open()
        except BaseException:
            self.topics.close()
            raise
        self.groups = GroupTable(self.settings, clock, root, in_database=in_database)
        self.offsets = ConsumerOffsets(
            clock,
            root,
            commits_per_version=config.consumer_offset_update_version_step,
            generations=config.config_generations,
            in_database=in_database,
            light=self._store_config.enable_lmq,
        )
        self._saving = Saving((self.topics.file, self.topics.deleted.file, self.groups.file))
        self.clients = ClientRegistry(self.settings, clock, self._loop.call_soon)
        self.locks = QueueLocks(clock)
        self.stats = BrokerStats(clock, config.broker_cluster_name)

    def _load(self) -> None:
        """Read the state files and connect the parts."""
        try:
            self.groups.load()
            self.offsets.load()
        except BaseException:
            self._close_state()
            self.store.close()
            raise
        self._adopt_queues()
        self._save_state()
        warn_of_waiting(self.store, self.topics, self.offsets)
        self.store.know_progress(self._progress)
        self._held = HeldPulls(self.store, self._clock.monotonic)
        self.store.on_arrivals = self._held.arrived
        self._held.on_first = self._pull_waits
        self._serve(self._context())
        self._registration = self._make_registration()
        self.topics.on_change = self._topics_changed
        self.settings.on_change = self._settings_changed

    def _adopt_queues(self) -> None:
        """See that messages have a topic, and deleted topics no messages (`TopicTable.adopt`)."""
        for topic in self.topics.adopt(self.store.queues_left(self.topics.table)):
            log.info("queues are deleted again: their topic was deleted", extra={"topic": topic})
            self.store.delete_topic(topic)
        self.topics.deleted.forget_before(self.store.log.start_offset)

    def _progress(self) -> Iterable[Consumed]:
        """How far the consumer groups are."""

        def queue_count(topic: str) -> int:
            config = self.topics.get(topic)
            return 0 if config is None else config.read_queue_nums

        return self.offsets.progress(lambda group: self.groups.get(group) is not None, queue_count)

    def _context(self) -> BrokerContext:
        return BrokerContext(
            self.settings,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.locks,
            self._held,
            self.stats,
            self._clock,
            self._loop.call_soon,
        )

    def _serve(self, context: BrokerContext) -> None:
        """Have requests handled by what the tables say."""
        self._sends = SendProcessor(context)
        self.store.on_queues_deleted = self._sends.forget_targets
        admission = Admission()
        handlers = self._saving.holding(handlers_of(context))
        handlers |= message_handlers_of(self._sends, PullProcessor(context))
        self._handlers.update(admission.before(handlers))
        self._bulk_handlers.update(admission.before_bulk(bulk_handlers_of(self._sends)))

    def _make_registration(self) -> Registration:
        config = self.config
        ip = config.broker_ip2 or self.address.rpartition(":")[0]
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self.address,
            ha_server_addr=f"{ip}:{self._store_config.ha_listen_port}",
        )
        return Registration(
            addresses_of(config.namesrv_addr),
            identity,
            lambda: self.topics.table,
            lambda: self.topics.data_version,
            permission=lambda: self.settings.broker.broker_permission,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            compressed=config.compressed_register,
        )

    @property
    def not_registered_with(self) -> list[str]:
        """The name servers that do not know this broker."""
        return self._registration.missing

    async def stop(self) -> None:
        """Take leave of the name servers, answer who waits, and close the store cleanly."""
        await self._registration.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._held.release_all()
        await self._answer_flush_waiters()
        await self._saving.finish()
        await self._server.stop()
        await self._saving.finish()
        self._save_state()
        self._close_state()
        self.store.close()

    async def _answer_flush_waiters(self) -> None:
        """Let sends that wait for the disk have their answers before connections are closed."""
        if not self.store.sync_flush:
            return
        flushed = asyncio.Event()
        self.store.when_flushed(self.store.log.end_offset, lambda _: flushed.set())
        try:
            async with asyncio.timeout(self._store_config.sync_flush_timeout / 1000):
                await flushed.wait()
        except TimeoutError:
            log.error("the disk does not confirm the last messages: their senders get no answer")

    # --- what happens by itself ---

    def _start_timers(self) -> None:
        flush_offsets = self.config.flush_consumer_offset_interval / 1000
        self._every("held", HELD_SWEEP_SECONDS, self._held.expire)
        tables = self.topics.file, self.topics.deleted.file, self.groups.file
        self._every("tables", WRITE_SECONDS, lambda: self._saving.write(*tables))
        self._every("offsets", flush_offsets, lambda: self._saving.write(self.offsets.file))
        if self.store.sync_flush:
            self._every(
                "flush waiters", FLUSH_WAITERS_SWEEP_SECONDS, self.store.expire_flush_waiters
            )
        clean = self._store_config.clean_resource_interval / 1000
        self._every("clean", clean, self.store.clean)
        self._catch_up()
        self._every("clients", CLIENT_SWEEP_SECONDS, self._expire_clients)
        self._every("stats", SAMPLE_SECONDS, self.stats.sample)

    def _catch_up(self) -> None:
        """Let queues that were left out catch up; look again soon whether there are any."""
        wait: float | None = None
        try:
            wait = self.store.catch_up_left_out()
        finally:
            seconds = CATCH_UP_SECONDS if wait is None else min(wait, CATCH_UP_SECONDS)
            self._timers["catch up"] = self._loop.call_later(seconds, self._catch_up)

    def _every(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._loop.call_later(seconds, run)
            action()

        self._timers[name] = self._loop.call_later(seconds, run)

    def _save_state(self) -> None:
        """Write the state files that are behind, here and now."""
        self.topics.save()
        self.groups.save()
        self.offsets.save()

    def _close_state(self) -> None:
        self.topics.close()
        self.groups.close()
        self.offsets.close()

    def _expire_clients(self) -> None:
        self.clients.expire()
        self.locks.expire()

    def _closed(self, peer: Peer) -> None:
        if self._handlers:
            self.clients.forget(peer)

    def _topics_changed(self, changed: list[TopicConfig]) -> None:
        self._registration.topics_changed([config.topic_name or "" for config in changed])

    def _settings_changed(self, keys: Collection[str]) -> None:
        self._sends.forget_targets()
        self.store.retain_by(self.settings.store)
        if "brokerPermission" in keys:
            self.topics.touch()

    # --- dispatch ---

    def _work_came(self) -> None:
        """Dispatch now if the last batch is a while ago, else when its interval is over."""
        waited_for = len(self._held) > 0
        interval = DISPATCH_WAITED_FOR_SECONDS if waited_for else DISPATCH_UNWAITED_SECONDS
        wait = self._last_dispatch + interval - self._loop.time()
        self._plan_dispatch(max(wait, 0.0))

    def _pull_waits(self) -> None:
        """A consumer waits from now on: what is pending must not take the long interval."""
        if self.store.working:
            self._dispatch_handle.cancel()
            self._work_came()

    def _plan_dispatch(self, seconds: float) -> None:
        self._dispatch_handle = self._loop.call_later(seconds, self._dispatch)

    def _dispatch(self) -> None:
        before = self.store.behind_bytes
        more = True  # whatever happens, it will be tried again
        try:
            more = self.store.dispatch()
        finally:
            self._last_dispatch = self._loop.time()
            if more:
                stuck = self.store.behind_bytes >= before
                self._plan_dispatch(DISPATCH_RETRY_SECONDS if stuck else 0)
