"""Role of a broker among its replicas: a master that sends its log, or a slave that follows one.

Source of the rules: RocketMQ ``BrokerStartup``, ``DefaultHAService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.errors import CannotListen, ConfigError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.net.listening import listen, port_of
from firearrow.replication.fetching import History, LogSource
from firearrow.replication.master import Master, SlaveConnection
from firearrow.replication.proof import OPEN, Gate, HaAccess
from firearrow.replication.slave import Slave
from firearrow.services import Service
from firearrow.store import Acknowledging, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.bodies import MASTER_ID

log: Final = Log(__name__)

SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"


def check_role(broker: BrokerConfig, store: StoreConfig) -> None:
    """Raise a `ConfigError` if the role does not fit the number of the broker.

    Java: BrokerStartup sets the number of a master to 0, whatever the file says.
    """
    if not broker.enable_controller_mode and (
        store.all_ack_in_sync_state_set or store.async_learner or store.sync_from_last_file
    ):
        raise ConfigError(
            "allAckInSyncStateSet, asyncLearner and syncFromLastFile need "
            "enableControllerMode=true: only controllers know the brokers in sync"
        )
    goes_by_fewer = broker.enable_slave_acting_master and store.enable_auto_in_sync_replicas
    if store.min_in_sync_replicas > 1 and not (broker.enable_controller_mode or goes_by_fewer):
        raise ConfigError(
            "minInSyncReplicas needs enableControllerMode=true, or enableSlaveActingMaster=true "
            "and enableAutoInSyncReplicas=true: otherwise the brokers in sync are unknown"
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
    """Part of the broker in replication: either ``master`` or ``slave``, the other one is None.

    ``access`` is how brokers authenticate at each other's port for slaves. With ``acts``, slaves act for their master
    here.
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
        """Brokers of this name by number, itself among them, if slaves act for their master."""
        self.linked: Event[None] = Event()
        """Event: a slave begins to follow, or a master is connected."""
        self.counted: Event[None] = Event()
        """Event: messages wait for other brokers than before."""
        self._states: Mapping[int, int] = {}  # by number, the version that a slave has confirmed
        self.master_is_online = True
        """Clients find the master, if there is one."""

    @property
    def is_slave(self) -> bool:
        """Return whether another broker is the master."""
        return self._config.broker_role == SLAVE

    @property
    def in_sync_count(self) -> int:
        """Number of brokers of the name in sync with this master, itself among them; for names whose slaves act."""
        master = self.master
        known = [] if master is None else master.following
        in_sync = 1 + sum(master.is_in_sync(it) for it in known) if master is not None else 1
        return min(len(self.members.keys() - {MASTER_ID}) + 1, in_sync)

    def needed(self) -> int:
        """Return the number of brokers that must store a message before its sender gets the answer.

        Java: CommitLog#calcNeedAckNums, once for each message.
        """
        config = self._config
        if not self._acts or not config.enable_auto_in_sync_replicas:
            return config.in_sync_replicas
        return max(min(config.in_sync_replicas, self.in_sync_count), config.min_in_sync_replicas)

    def meet(self, members: dict[int, str]) -> None:
        """Note the brokers of the name that exist."""
        self.members = members
        if self._confirming is not None:
            self._confirming.answer()

    def know_states(self, states: Mapping[int, int], version: int) -> None:
        """Note the version of the state beside the log that each slave has; this broker is at ``version``."""
        self._states = states

    def confirms(self, version: int) -> bool:
        """Return whether all slaves that the answer to a change waits for have a version of the state.

        These are as many connected slaves as a message waits for. A disconnected slave, or one of RocketMQ's, which
        can't confirm, delays no change: no controller makes it master.
        """
        config = self._config
        if config.broker_role != SYNC_MASTER or config.in_sync_replicas < 2:
            return True
        needed = min(self.needed() - 1, len(self._states))
        return needed <= sum(it >= version for it in self._states.values())

    @property
    def has_master(self) -> bool:
        """Return whether this is a slave whose master is online."""
        return self.is_following and self.master_is_online

    @property
    def is_following(self) -> bool:
        """Return whether this is a slave that gets the log of its master."""
        return self.slave is not None and self.slave.is_following

    @property
    def is_connected(self) -> bool:
        """Return whether this is a slave that is connected to its master."""
        return self.slave is not None and self.slave.is_connected

    def unfit_hosts(self) -> set[str]:
        """Return the hosts of slaves that this master has refused because they have another log."""
        return set() if self.master is None else self.master.unfit_hosts

    def slave_hosts(self) -> list[str]:
        """Return the hosts of the slaves that follow this master."""
        known = [] if self.master is None else self.master.slaves
        return [it.address.rpartition(":")[0] for it in known if it.sending.acked >= 0]

    async def bind(self, host: str, asked_port: int, port: int) -> int:
        """Bind the port for slaves; return the port that others should use.

        ``asked_port`` is the ``listenPort`` of the configuration, ``port`` the one that is bound. Raise CannotListen if
        the configuration demands slaves; otherwise a broker goes on without the port. A slave takes connections as
        well, of brokers that follow it or need bytes of the log.
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
        """Release the port if the start has failed."""
        if self._server is not None:
            self._server.close()

    def _connection(self) -> SlaveConnection:
        assert self._sender is not None, "slaves are taken when all is there"
        return self._sender.connection()

    def begin(self, store: MessageStore, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> Service:
        """Make the part of the master or of the slave, as a service; a simulation gives its loop."""
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
        """Announce by `linked` each slave that comes, even one that is refused."""
        master.joined.listen(self.linked)
        master.refused.listen(self.linked)

    def source_of_log(self) -> LogSource | None:
        """Return another broker that has the same log; None if none is known."""
        address = self._config.heal_from or (self.slave.master_address if self.slave else "")
        return LogSource(address, self._history(), self._access) if address else None

    def _history(self) -> History | None:
        """Return the history that brokers in controller mode compare before one sends anything."""
        return None

    def follow(self, ha_address: str) -> None:
        """Follow the master that takes slaves at an address, unless the configuration names another."""
        if self.slave is not None and ha_address and not self._config.ha_master_address:
            self.slave.follow(ha_address)

    def status(self) -> HaStatus:
        """Return the answer to 907."""
        side = self.slave or self.master
        assert side is not None, "it has begun"
        return side.status()


class FollowedSlave(Service):
    """Slave that receives the log, and sends it on."""

    def __init__(self, slave: Slave, sender: Master) -> None:
        super().__init__(slave.name)
        self._slave = slave
        self._sender = sender

    @property
    def trouble(self) -> str | None:
        """Reason why it does not follow."""
        return self._slave.trouble

    async def start(self) -> None:
        """Begin to follow, and take other slaves."""
        await self._sender.start()
        await self._slave.start()

    async def stop(self) -> None:
        """Stop following, and disconnect the others."""
        await self._slave.stop()
        await self._sender.stop()


class _Copies:
    """Condition of an acknowledgement: enough brokers have a message.

    Java: GroupTransferService looks at each waiting send once a millisecond.
    """

    is_broken = False

    def __init__(self, master: Master, needed: Callable[[], int], store: MessageStore) -> None:
        self._needed = needed
        self._store = store
        self._master = master

    @property
    def reached(self) -> int:
        """End of the log that enough slaves have."""
        slaves = max(self._needed() - 1, 0)
        return self._master.copied_offset(slaves, self._store.confirming.first_offset)

    def ask(self) -> None:
        """Send slaves the bytes that they lack."""
        self._master.wake()
