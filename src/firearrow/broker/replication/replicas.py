"""A broker among its replicas: a master that sends its log, or a slave that follows one.

Source of the rules: upstream ``BrokerStartup``, ``DefaultHAService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.errors import CannotListen, ConfigError
from firearrow.events import Event
from firearrow.net.listening import listen, port_of
from firearrow.replication.fetching import History, Source
from firearrow.replication.master import Connection, Master
from firearrow.replication.proof import OPEN, Gate, HaAccess
from firearrow.replication.slave import Slave
from firearrow.services import Service
from firearrow.store import Acknowledging, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.bodies import MASTER_ID

log = logging.getLogger(__name__)

SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"


def check_role(broker: BrokerConfig, store: StoreConfig) -> None:
    """Raise a `ConfigError` where the role does not fit the number.

    Java: BrokerStartup sets the number of a master to 0, whatever the file says.
    """
    if not broker.enable_controller_mode and (
        store.all_ack_in_sync_state_set or store.async_learner or store.sync_from_last_file
    ):
        raise ConfigError(
            "allAckInSyncStateSet, asyncLearner and syncFromLastFile need "
            "enableControllerMode=true: only controllers say who is in sync"
        )
    goes_by_fewer = broker.enable_slave_acting_master and store.enable_auto_in_sync_replicas
    if store.min_in_sync_replicas > 1 and not (broker.enable_controller_mode or goes_by_fewer):
        raise ConfigError(
            "minInSyncReplicas needs enableControllerMode=true, or enableSlaveActingMaster=true "
            "and enableAutoInSyncReplicas=true: else nobody says who is in sync"
        )
    if broker.enable_controller_mode and broker.enable_slave_acting_master:
        raise ConfigError(
            "enableControllerMode and enableSlaveActingMaster: where controllers make another "
            "broker master, no slave acts for one"
        )
    if store.broker_role == SLAVE and broker.broker_id == 0:
        raise ConfigError("brokerRole=SLAVE needs a brokerId above 0: 0 is the master's")
    if store.broker_role != SLAVE and broker.broker_id != 0:
        raise ConfigError(f"brokerId={broker.broker_id} needs brokerRole=SLAVE: the number of a master is 0")


class Replicas:
    """The broker's part in replication: ``master`` or ``slave`` is there, the other one None.

    ``access`` is how they get in at each other's port for slaves. ``acts``: slaves act for their
    master here.
    """

    def __init__(self, config: StoreConfig, access: HaAccess = OPEN, *, acts: bool = False) -> None:
        self._config = config
        self._access = access
        self._gate = Gate(access, self._connection)
        self._acts = acts
        self._confirming: Acknowledging | None = None
        self._server: asyncio.Server | None = None
        self.master: Master | None = None
        self.slave: Slave | None = None
        self._sender: Master | None = None
        self.members: dict[int, str] = {}
        """The brokers of this name, itself among them, if slaves act for their master."""
        self.linked: Event[None] = Event()
        """Told when a slave begins to follow, or a master is connected."""
        self.counted: Event[None] = Event()
        """Told when others than before are waited for."""
        self._states: Mapping[int, int] = {}  # what slaves have confirmed, by their number
        self.master_is_online = True
        """Whether clients find the master, if there is one."""

    @property
    def is_slave(self) -> bool:
        """Tell whether another broker is the master."""
        return self._config.broker_role == SLAVE

    @property
    def in_sync_count(self) -> int:
        """Number of brokers of the name in sync with this master, itself among them; where slaves act for their
        master."""
        master = self.master
        known = [] if master is None else master.following
        in_sync = 1 + sum(master.is_in_sync(it) for it in known) if master is not None else 1
        return min(len(self.members.keys() - {MASTER_ID}) + 1, in_sync)

    def needed(self) -> int:
        """Give the number of brokers that must have a message before its sender is answered.

        Java: CommitLog#calcNeedAckNums, once for each message.
        """
        config = self._config
        if not self._acts or not config.enable_auto_in_sync_replicas:
            return config.in_sync_replicas
        return max(min(config.in_sync_replicas, self.in_sync_count), config.min_in_sync_replicas)

    def meet(self, members: dict[int, str]) -> None:
        """Know the brokers of the name that are there."""
        self.members = members
        if self._confirming is not None:
            self._confirming.answer()

    def know_states(self, states: Mapping[int, int], version: int) -> None:
        """Know up to which version slaves have the state beside the log; it is at ``version``."""
        self._states = states

    def confirms(self, version: int) -> bool:
        """Tell whether all that the answer to a change waits for have the state up to a version.

        Of slaves that are connected, as many as a message waits for. One that is away, or
        RocketMQ's, which can't confirm, delays no change: no controller makes it master.
        """
        config = self._config
        if config.broker_role != SYNC_MASTER or config.in_sync_replicas < 2:
            return True
        needed = min(self.needed() - 1, len(self._states))
        return needed <= sum(it >= version for it in self._states.values())

    @property
    def has_master(self) -> bool:
        """Tell whether it is a slave whose master is there."""
        return self.is_following and self.master_is_online

    @property
    def is_following(self) -> bool:
        """Tell whether it is a slave that gets the log of its master."""
        return self.slave is not None and self.slave.is_following

    @property
    def is_connected(self) -> bool:
        """Tell whether it is a slave that is connected to its master."""
        return self.slave is not None and self.slave.is_connected

    def unfit_hosts(self) -> set[str]:
        """The hosts of slaves that this master has refused since they have another log."""
        return set() if self.master is None else self.master.unfit_hosts

    def slave_hosts(self) -> list[str]:
        """The hosts of the slaves that follow this master."""
        known = [] if self.master is None else self.master.slaves
        return [it.address.rpartition(":")[0] for it in known if it.sending.acked >= 0]

    async def bind(self, host: str, asked_port: int, port: int) -> int:
        """Take the port for slaves; give it, as others are to be told.

        ``asked_port`` is the ``listenPort`` of the configuration, ``port`` the one that was found.
        Raises CannotListen where slaves are wanted for sure: else a broker does without. A slave
        takes others as well, which follow it or want bytes of the log back.
        """
        wanted = self._config.ha_listen_port or (port + 1 if asked_port else 0)  # 0: a free one
        try:
            self._server = await listen(self._gate.connection, host, wanted, self._access.server_tls)
        except CannotListen as error:
            wants = self._config.ha_listen_port or self._config.broker_role == SYNC_MASTER
            if wants and not self.is_slave:
                raise
            log.warning(
                "slaves can't connect: their port is taken (haListenPort)",
                extra={"address": error.filename, "error": error.strerror},
            )
            return wanted or port + 1
        port = port_of(self._server)
        if self._access.is_left_open:
            log.warning(
                "slaves prove nothing and don't encrypt, as haAllowUnauthenticated=true: let a "
                "firewall keep others from that port",
                extra={"port": port},
            )
        return port

    def close(self) -> None:
        """Give the port back, if nothing came of the start."""
        if self._server is not None:
            self._server.close()

    def _connection(self) -> Connection:
        assert self._sender is not None, "slaves are taken when all is there"
        return self._sender.connection()

    def begin(self, store: MessageStore, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> Service:
        """Make the master's part or the slave's, as a service; a simulation gives its loop."""
        loop = loop or asyncio.get_running_loop()
        self._sender = Master(store, self._config, clock, loop, self._server)
        if self.is_slave:
            self.slave = Slave(store, self._config, clock, loop, self._access)
            self.slave.connected.listen(self.linked)
            return FollowedSlave(self.slave, self._sender)
        self.master = self._sender
        self._link(self.master)
        most = max(self._config.in_sync_replicas, self._config.min_in_sync_replicas)
        if self._config.broker_role == SYNC_MASTER and most > 1:
            copies = _Copies(self.master, self.needed, store)
            self._confirming = confirming = store.copy_by(copies, self._config.slave_timeout / 1000)
            self.master.acked.listen(lambda _: confirming.answer())
        return self.master

    def _link(self, master: Master) -> None:
        """Tell `linked` of each slave that comes, even of one that is refused."""
        master.joined.listen(self.linked)
        master.refused.listen(self.linked)

    def source_of_log(self) -> Source | None:
        """Another broker that has the same log; None if none is known."""
        address = self._config.heal_from or (self.slave.master_address if self.slave else "")
        return Source(address, self._history(), self._access) if address else None

    def _history(self) -> History | None:
        """Give the history that brokers in controller mode compare before one sends anything."""
        return None

    def follow(self, ha_address: str) -> None:
        """Follow the master that takes slaves there, unless the configuration says another."""
        if self.slave is not None and ha_address and not self._config.ha_master_address:
            self.slave.follow(ha_address)

    def status(self) -> HaStatus:
        """Give the answer to 907."""
        side = self.slave or self.master
        assert side is not None, "it has begun"
        return side.status()


class FollowedSlave(Service):
    """A slave that is sent the log, and sends it on."""

    def __init__(self, slave: Slave, sender: Master) -> None:
        super().__init__(slave.name)
        self._slave = slave
        self._sender = sender

    @property
    def trouble(self) -> str | None:
        """Reason why it does not follow."""
        return self._slave.trouble

    async def start(self) -> None:
        """Begin to follow, and take others."""
        await self._sender.start()
        await self._slave.start()

    async def stop(self) -> None:
        """Follow no longer, and let go of the others."""
        await self._slave.stop()
        await self._sender.stop()


class _Copies:
    """That so many brokers have a message; a condition of its acknowledgement.

    Java: GroupTransferService looks at each waiting send once a millisecond.
    """

    is_broken = False

    def __init__(self, master: Master, needed: Callable[[], int], store: MessageStore) -> None:
        self._needed = needed
        self._store = store
        self._master = master

    @property
    def reached(self) -> int:
        """Up to where enough slaves have the log."""
        slaves = max(self._needed() - 1, 0)
        return self._master.copied_offset(slaves, self._store.confirming.first_offset)

    def ask(self) -> None:
        """Send slaves what they lack."""
        self._master.wake()
