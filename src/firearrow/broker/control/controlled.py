"""A broker whose role changes while it runs, as controllers decide.

Clients' connections, their registrations and the port stay. Everything behind them is closed in order and made again
for the other role, from the files of the earlier role. So a change is a restart of the inner broker, and there is one
way to become a master or a slave: the store is recovered, the timer is brought in line with the log, deliveries
continue, and groups with offsets beyond the log go back to its end. It takes the time of a stop and a start of the
store. Requests meanwhile are answered with 14, so clients retry them.

A slave with records that its master lacks is made again in the same way, with a shorter log.

Until the controllers have named a master, the broker is a slave without a master, and no name server knows it.

Java: ReplicasManager#changeToMaster and #changeToSlave start and stop services in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from msgspec import structs

from firearrow.auth.metadata import Metadata
from firearrow.broker.access.control import access_of, ha_access_of
from firearrow.broker.admission import Check, Condition
from firearrow.broker.config import BrokerConfig
from firearrow.broker.control.control import RoleControl
from firearrow.broker.control.controllers import ControllerClient, Mastery, mastery_of
from firearrow.broker.core import Broker
from firearrow.broker.feature import Base, Handlers
from firearrow.broker.replication.refusals import refused_alone, refused_by_slave
from firearrow.broker.replication.replicas import SLAVE, SYNC_MASTER, Replicas
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.broker.replication.switchreplicas import ReplicaState, SwitchReplicas
from firearrow.broker.role import FixedRole
from firearrow.broker.state.settings import SharedFile
from firearrow.clock import Clock
from firearrow.errors import BrokerError, ConfigError
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.net.server import Answer, Peer
from firearrow.replication.epochs import Epochs
from firearrow.replication.proof import HaAccess
from firearrow.services import Service
from firearrow.store import OS_FILES, FileSystem, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.controller_bodies import EpochOfLog, EpochsOfBroker
from firearrow.wire.frame import AnyCommand
from firearrow.wire.requests import Row

log: Final = Log(__name__)

UNNUMBERED: Final = 1
"""Number of a slave before the controller has given it one; it is never sent."""
SYNC_SECONDS: Final = 10.0  # between requests for the master's state, as RocketMQ
SEEK_MS: Final = 500  # between requests for a new master's HA address
READS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
    }
)
UNCONFIRMED: Final = "the end of the log may not be on all brokers in sync yet"
NOBODY: Final = Mastery(None, "", 0, frozenset(), 0)


def broker_of(
    config: BrokerConfig,
    store_config: StoreConfig,
    clock: Clock,
    file: Path | SharedFile | None = None,
    *,
    background: bool = True,
) -> Broker:
    """Make a broker with a fixed role, or one whose role controllers decide."""
    kind = ControlledBroker if config.enable_controller_mode else Broker
    return kind(config, store_config, clock, file, background=background)


class ControlledBroker(Broker):
    """A broker in controller mode; ``start`` and ``stop`` once each, in one event loop."""

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
        config = structs.replace(config, broker_id=UNNUMBERED)
        self.place: ReplicaState = ReplicaState(Epochs.load(store_config.epoch_path), UNNUMBERED, NOBODY)
        super().__init__(
            config,
            structs.replace(store_config, broker_role=SLAVE),
            clock,
            config_file,
            background=background,
            chance=chance,
            fs=fs,
            role=ControlledRole(self, store_config.ha_listen_port),
        )
        self.control: RoleControl | None = None
        self._listens = "", 0, 0  # host, requested port, actual port
        self.is_open: bool = False

    # --- life ---

    async def start(self, host: str, port: int) -> int:
        """Listen, open the store as a slave, and take the role that controllers decide.

        Returns when it has a role, or after some seconds. Raises as `Broker.start`, and ConfigError where the store
        belongs to another broker name.
        """
        bound = await super().start(host, port)
        self._listens = host, port, bound
        controllers = ControllerClient(self.config, self._clock, access_of(self.config), self.address)
        self.control = control = RoleControl(self, controllers, self._store_config)
        try:
            await control.start()
        except BaseException:
            await self.stop()
            raise
        return bound

    async def stop(self) -> None:
        """Let slaves get the last messages, and close the store cleanly. Then unregister from the controllers, which
        may elect another master only after that.
        """
        if self.control is not None:
            await self.control.rest()
        await super().stop()
        if self.control is not None:
            await self.control.stop()

    async def _make(self, host: str, asked_port: int, port: int) -> None:
        await super()._make(host, asked_port, port)
        self.is_open = True

    async def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            await super()._close()

    @property
    def troubles(self) -> dict[str, str]:
        """Reasons why services do not work at present, by name."""
        control = self.control
        why = control.trouble if control is not None else None
        return super().troubles | ({control.name: why} if control is not None and why else {})

    # --- parts of each role ---

    @property
    def is_master(self) -> bool:
        """Tell whether it is the present master."""
        return not self.replicas.is_slave

    @property
    def max_offset(self) -> int:
        """End of its log, as a physical offset."""
        return self.store.log_end_offset

    # --- calls of the control ---

    def sign_of_life(self) -> Mapping[str, FieldValue]:
        """Fields of the heartbeat to controllers, each second."""
        offset = self.max_offset
        return {
            "brokerId": self.place.number,
            "epoch": self.place.epochs.last_epoch,
            "maxOffset": offset,
            "confirmOffset": self.replicas_now.confirmed_offset if self.is_open else offset,
        }

    @property
    def replicas_now(self) -> SwitchReplicas:
        """Its present part in replication."""
        assert isinstance(self.replicas, SwitchReplicas)
        return self.replicas

    async def lead(self, mastery: Mastery) -> None:
        """Become master, or remain master under another epoch. Raises StoreError or OSError."""
        self._check_epoch(mastery)
        if self.is_open and self.is_master:
            before, self.place.mastery = self.place.mastery, mastery
            try:
                self.replicas_now.lead_on(mastery)
            except OSError:
                self.place.mastery = before  # so the same decision is news when it comes again
                raise
            self.topics.enter_epoch(mastery.epoch)
            return
        await self._remake(SYNC_MASTER, mastery)

    async def follow(self, mastery: Mastery) -> None:
        """Become the slave of a master, or of another one. Raises StoreError or OSError."""
        self._check_epoch(mastery)
        before, place = self.place.mastery, self.place
        if not self.is_open or self.is_master or before.master_id is None:
            await self._remake(SLAVE, mastery)
            return
        place.mastery = mastery
        if before.address != mastery.address:
            self.replicas_now.leave_master()
            self.replication.sync.follow(mastery.address)
            self.registering.registration.seek_master()

    async def shorten(self, physical_offset: int) -> None:
        """Remove a slave's log from an offset on. Raises StoreError or OSError."""
        await self._remake(SLAVE, self.place.mastery, cut_at=physical_offset)

    def _check_epoch(self, mastery: Mastery) -> None:
        last = self.place.epochs.last_epoch
        if mastery.epoch < last:
            raise ConfigError(
                f"the controllers are at epoch {mastery.epoch} of this broker name, its log is at "
                f"{last}: the controllers have lost decisions"
            )

    async def _remake(self, role: str, mastery: Mastery, cut_at: int | None = None) -> None:
        """Close the parts behind the port, and make them for a role."""
        began = self._base.loop.time()
        self._is_started = False
        await self._end()
        host, asked_port, port = self._listens
        self.place.mastery = mastery
        number = 0 if role == SYNC_MASTER else self.place.number
        self.config: BrokerConfig = structs.replace(self.settings.broker, broker_id=number)
        self._store_config = structs.replace(self.settings.store, broker_role=role)
        self._cut_at = cut_at
        try:
            await self._make(host, asked_port, port)
            if cut_at is not None:
                self.place.cut(self.max_offset)
            for service in self._inner_services:
                await service.start()
        except BaseException:
            await self._end()
            raise
        finally:
            self._cut_at = None
        self._is_started = True
        log.info(
            "broker has restarted for its role",
            extra={
                "role": role,
                "cut_physical_offset": cut_at,
                "epoch": mastery.epoch,
                "end_physical_offset": self.max_offset,
                "seconds": round(self._base.loop.time() - began, 3),
            },
        )

    @property
    def _inner_services(self) -> list[Service]:
        """All inner services except those that outlast a role."""
        return [it for it in self.services if it not in (self._serving, self.operations)]

    async def _end(self) -> None:
        """End everything but the port and its connections."""
        self._server.gathering.answer()
        for code in self._handlers:
            self._handlers[code] = _changing
        self._bulk_handlers.clear()
        if not self.is_open:  # the last change of the role has failed
            return
        self.replicas_now.hurry()
        self.registering.registration.takes_leave = False
        try:
            for service in reversed(self._inner_services):
                self.services.remove(service)
                await service.stop()
            await self._close()
        finally:
            self.replicas.close()
            for peer in tuple(self._server.peers):
                if peer.owed or peer.is_planned:  # no part is left that would answer
                    peer.abort()
            self.events.silence()


class ControlledRole(FixedRole):
    """Role that controllers decide; ``ha_port`` is the configured port for slaves."""

    registration_retry_ms: int | None = SEEK_MS

    def __init__(self, broker: ControlledBroker, ha_port: int) -> None:
        self._broker = broker
        self._place = broker.place
        self._ha_port = ha_port
        self._ha_access: HaAccess | None = None

    def make_replicas(
        self, config: BrokerConfig, store_config: StoreConfig, users: Callable[[], Metadata | None], events: Events
    ) -> Replicas:
        """Make the part in replication of the present role."""
        self._ha_access = ha_access_of(config, users, events, self._ha_access)
        replicas = SwitchReplicas(store_config, self._place, self._ha_port, self._ha_access)
        replicas.cut_wanted.listen(self._cut_wanted)
        return replicas

    def _cut_wanted(self, physical_offset: int) -> None:
        if self._broker.control is not None:
            self._broker.control.cut(physical_offset)

    def name_servers(self, config: BrokerConfig) -> list[str]:
        """Addresses of the name servers; none until the controllers have named a master."""
        return [] if self._place.mastery.master_id is None else super().name_servers(config)

    def begin(self, store: MessageStore, *, is_slave: bool) -> None:
        """Begin the epoch of a master."""
        self._place.lost |= store.may_have_lost
        if not is_slave:
            self._place.begin_epoch(store.log_start_offset, store.log_end_offset)
            # Offsets of groups that a slave got from its master may be ahead of the log, or behind their pops.
            store.may_have_lost, store.was_closed = True, False

    def begun(self, base: Base, sync: SlaveSync) -> None:
        """Follow the master, or give topics the epoch of this master."""
        if base.replicas.is_slave:
            sync.whole_seconds = SYNC_SECONDS
            sync.follow(self._place.mastery.address)
        else:
            base.topics.enter_epoch(self._place.mastery.epoch)

    def is_master_at(self, address: str) -> bool:
        """Tell whether the controllers' master has an address; name servers may still have an earlier one."""
        return address == self._place.mastery.address

    def handlers(self) -> Handlers:
        """Handlers of 1007 and 1008."""
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._notified,
        }

    def conditions(self, base: Base) -> list[Condition]:
        """Conditions on requests, by the role and by the brokers in sync."""
        place, least = self._place, base.settings.store.min_in_sync_replicas
        conditions: list[Condition] = []
        if base.settings.store.all_ack_in_sync_state_set:
            conditions.append(self._refused_unconfirmed)
        if base.replicas.is_slave:
            conditions.append(refused_by_slave)
        elif least > 1:
            conditions.append(refused_alone(lambda: least, lambda: place.in_sync_count, "minInSyncReplicas"))
        return conditions

    def _refused_unconfirmed(self, row: Row) -> Check | None:
        """Return the check that refuses pulls of messages that may still be lost.

        Java: a slave serves the messages that its last run has confirmed, by its checkpoint.
        """
        if row.code not in READS:
            return None

        def check(_: Peer, __: AnyCommand) -> None:
            if self._broker.replicas_now.may_show_lost:
                raise BrokerError(ResponseCode.SYSTEM_BUSY, UNCONFIRMED)

        return check

    def _epochs(self, _: Peer, __: AnyCommand) -> Answer:
        """1007: the epochs of the log."""
        config = self._broker.config
        epochs = [EpochOfLog(it.epoch, it.start, end) for it, end in self._place.epochs.with_ends()]
        names = config.broker_cluster_name, config.broker_name, config.broker_id
        return Response(body=fastjson.dumps(EpochsOfBroker(*names, epochs, self._broker.max_offset)))

    def _notified(self, _: Peer, request: AnyCommand) -> Answer:
        """1008: a controller names the master."""
        if self._broker.control is not None:
            self._broker.control.told(mastery_of(request))
        return Response()


def _changing(_: Peer, __: AnyCommand) -> Answer:
    raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "the role of the broker changes")
