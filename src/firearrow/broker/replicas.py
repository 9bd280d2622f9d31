"""What a broker is among its replicas: a master that sends its log, or a slave that follows one.

Source of the rules: upstream ``BrokerStartup``, ``DefaultHAService``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.errors import CannotListen, ConfigError
from firearrow.net.listening import listen, port_of
from firearrow.replication.master import Connection, Master
from firearrow.replication.slave import Slave
from firearrow.services import Service
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.admin_bodies import HaStatus

log = logging.getLogger(__name__)

SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"


def check_role(broker: BrokerConfig, store: StoreConfig) -> None:
    """Raise a `ConfigError` where the role does not fit the number.

    Java: BrokerStartup sets the number of a master to 0, whatever the file says.
    """
    if store.broker_role == SLAVE and broker.broker_id == 0:
        raise ConfigError("brokerRole=SLAVE needs a brokerId above 0: 0 is the master's")
    if store.broker_role != SLAVE and broker.broker_id != 0:
        raise ConfigError(
            f"brokerId={broker.broker_id} needs brokerRole=SLAVE: the number of a master is 0"
        )


class Replicas:
    """The broker's part in replication: ``master`` or ``slave`` is there, the other one None."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._server: asyncio.Server | None = None
        self.master: Master | None = None
        self.slave: Slave | None = None
        self._sender: Master | None = None

    @property
    def is_slave(self) -> bool:
        """Whether another broker is the master."""
        return self._config.broker_role == SLAVE

    @property
    def has_master(self) -> bool:
        """Whether it is a slave whose master is there."""
        return self.slave is not None and self.slave.is_following

    async def bind(self, host: str, asked_port: int, port: int) -> int:
        """Take the port for slaves; give it, as others are to be told.

        ``asked_port`` is the ``listenPort`` of the configuration, ``port`` the one that was found.
        Raises CannotListen where slaves are wanted for sure: else a broker does without. A slave
        takes others as well, which follow it or want bytes of the log back.
        """
        wanted = self._config.ha_listen_port
        if not wanted and asked_port:
            wanted = port + 1
        try:
            self._server = await listen(self._connection, host, wanted)
        except CannotListen as error:
            wants = self._config.ha_listen_port or self._config.broker_role == SYNC_MASTER
            if wants and not self.is_slave:
                raise
            log.warning(
                "slaves can't connect: their port is taken (haListenPort)",
                extra={"address": error.filename, "error": error.strerror},
            )
            return wanted or port + 1
        return port_of(self._server)

    def close(self) -> None:
        """Give the port back, if nothing came of the start."""
        if self._server is not None:
            self._server.close()

    def _connection(self) -> Connection:
        assert self._sender is not None, "slaves are taken when all is there"
        return self._sender.connection()

    def begin(self, store: MessageStore, clock: Clock) -> Service:
        """Make the master's part or the slave's, as a service."""
        loop = asyncio.get_running_loop()
        self._sender = Master(store, self._config, clock, loop, self._server)
        if self.is_slave:
            self.slave = Slave(store, self._config, clock, loop)
            return _Both(self.slave, self._sender)
        self.master = self._sender
        if self._config.broker_role == SYNC_MASTER and self._config.in_sync_replicas > 1:
            copies = _Copies(self.master, self._config.in_sync_replicas - 1)
            confirming = store.copy_by(copies, self._config.slave_timeout / 1000)
            self.master.acked.listen(lambda _: confirming.answer())
        return self.master

    def peer_of_log(self) -> str:
        """Where another broker sends the same log to slaves; empty if none is known."""
        return self._config.heal_from or (self.slave.master_address if self.slave else "")

    def follow(self, ha_address: str) -> None:
        """Follow the master that takes slaves there, unless the configuration says another."""
        if self.slave is not None and ha_address and not self._config.ha_master_address:
            self.slave.follow(ha_address)

    def status(self) -> HaStatus:
        """What 907 is answered."""
        side = self.slave or self.master
        assert side is not None, "it has begun"
        return side.status()


class _Both(Service):
    """A slave that is sent the log, and sends it on."""

    def __init__(self, slave: Slave, sender: Master) -> None:
        super().__init__(slave.name)
        self._slave = slave
        self._sender = sender

    @property
    def trouble(self) -> str | None:
        """Why it does not follow."""
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
    """That so many slaves have a message; a condition of its acknowledgement.

    Java: GroupTransferService looks at each waiting send once a millisecond.
    """

    is_broken = False

    def __init__(self, master: Master, count: int) -> None:
        self._count = count
        self._master = master

    @property
    def reached(self) -> int:
        """Up to where enough slaves have the log."""
        return self._master.copied_offset(self._count)

    def ask(self) -> None:
        """Send slaves what they lack."""
        self._master.wake()
