"""The slave's side in controller mode, where a controller decides the roles.

It follows as `firearrow.replication.slave` does, in the frames of `firearrow.replication.switching`. After the
handshake it compares its epochs with the master's. The master does not have the part of the slave's log behind the last
common epoch. Then ``ahead`` fires with the offset where the log must be cut, which its owner does with the store
closed. Without a common epoch nothing changes, and the slave tries again. Consumers see its log up to the master's
confirmed offset.

Source: RocketMQ's ``AutoSwitchHAClient``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firearrow.clock import Clock
from firearrow.events import Event
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.proof import OPEN, HaAccess
from firearrow.replication.slave import MasterConnection, Slave
from firearrow.replication.stream import Mismatch
from firearrow.replication.switching import FrameHead, Greeting, MasterLog, SwitchReceiving, report
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig


class SwitchSlave(Slave):
    """Follower of the master at ``master_address``; while that is empty, it waits."""

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        epochs: Epochs,
        greeting: Callable[[], Greeting],
        access: HaAccess = OPEN,
    ) -> None:
        super().__init__(store, config, clock, loop, access)
        self.epochs = epochs
        self.greeting = greeting
        self.ahead: Event[int] = Event()
        self.confirmed_offset: int = 0

    def connection(self) -> MasterConnection:
        """Make the protocol of a new connection."""
        return SwitchFollowing(self, self._loop)

    def confirm(self, physical_offset: int) -> None:
        """Note the confirmed offset; dispatch stops there."""
        self.confirmed_offset = min(physical_offset, self.store.log_end_offset)
        self.store.dispatching.limit_to(self.confirmed_offset)


class SwitchFollowing(MasterConnection):
    """One connection to the master."""

    def __init__(self, slave: SwitchSlave, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(slave, loop)
        self._switch_slave = slave
        self._from_master = SwitchReceiving(self._store.log_end_offset)

    def _begin(self) -> None:
        self._from_master = SwitchReceiving(self._store.log_end_offset)
        self._report()

    @property
    def _end_there(self) -> int:
        return self._store.log_end_offset

    def _said(self) -> bytes:
        if not self._from_master.is_ready:
            return self._switch_slave.greeting().encode()
        return report(self._store.log_end_offset)

    def _take(self, data: bytes) -> None:
        slave, confirmed = self._switch_slave, -1
        for it in self._from_master.receive(data):
            match it:
                case MasterLog():
                    if not self._fits(it):
                        return
                case FrameHead(epoch, confirmed):
                    self._enter(epoch)
                case _:
                    self._store.put_raw(it.physical_offset, it.data)
        if confirmed >= 0:
            slave.confirm(confirmed)

    def _fits(self, master: MasterLog) -> bool:
        """Tell whether the master's log continues this one; otherwise close the connection and request a cut."""
        assert not self._from_master.is_ready, "a connection has one handshake"
        own, end = self._switch_slave.epochs, self._store.log_end_offset
        own.cut_behind(end)
        if end and own.entries:
            common = own.common_end(end, master.epochs, master.end)
            if common is None:
                raise Mismatch("the master's log has no epoch of this one: they are different logs")
            if common < end:
                self.close()
                self._switch_slave.fail(f"the master has this log up to {common} only")
                self._switch_slave.ahead(common)
                return False
        elif end > master.end:
            raise Mismatch(f"the master's log ends at {master.end}, this one at {end}")
        own.follow(master.epochs, end)
        own.save()
        self._from_master.is_ready = True
        self._report()
        return True

    def _enter(self, epoch: Epoch) -> None:
        """Note the epoch of the next bytes before they arrive."""
        epochs = self._switch_slave.epochs
        if epoch.epoch > epochs.last_epoch and epoch.start >= 0:
            epochs.begin(*epoch)
            epochs.save()
