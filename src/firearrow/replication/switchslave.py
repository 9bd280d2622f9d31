"""The slave's side where a controller decides who is master.

It follows as `firearrow.replication.slave` does, in the frames of
`firearrow.replication.switching`. When the two have shaken hands, it compares its epochs with the
master's. What its log has beyond the last epoch that both have in common, the master does not have:
``ahead`` is told where the log is to be cut, which its owner does with the store closed. Without
any common epoch nothing is changed, and it is tried again. Consumers see of its log what the master
says that all have who must have it.

Source: upstream ``AutoSwitchHAClient``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firearrow.clock import Clock
from firearrow.events import Event
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.proof import OPEN, HaAccess
from firearrow.replication.slave import Following, Slave
from firearrow.replication.stream import Mismatch
from firearrow.replication.switching import FrameHead, Greeting, MasterLog, SwitchReceiving, report
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig


class SwitchSlave(Slave):
    """Follows the master at ``master_address``; while that is empty, it waits for one."""

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
        self.confirmed_offset = 0

    def connection(self) -> Following:
        """Make the protocol of a connection that is new."""
        return SwitchFollowing(self, self._loop)

    def confirm(self, physical_offset: int) -> None:
        """Note up to where all that must have the log have it: it is dispatched so far."""
        self.confirmed_offset = min(physical_offset, self.store.log_end_offset)
        self.store.dispatching.limit_to(self.confirmed_offset)


class SwitchFollowing(Following):
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
        """Tell whether the log goes on where it ends; else it is given up, and cut elsewhere."""
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
        """Note which epoch the bytes belong to that come next, before they are there."""
        epochs = self._switch_slave.epochs
        if epoch.epoch > epochs.last_epoch and epoch.start >= 0:
            epochs.begin(*epoch)
            epochs.save()
