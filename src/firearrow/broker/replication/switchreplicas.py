"""Role of a broker in controller mode among its replicas, which may change.

Source of the rules: RocketMQ ``AutoSwitchHAService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from firearrow.broker.control.controllers import Mastery
from firearrow.broker.replication.replicas import FollowedSlave, Replicas
from firearrow.clock import Clock
from firearrow.errors import CannotListen
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.net.listening import listen, port_of
from firearrow.replication.epochs import Epochs
from firearrow.replication.fetching import History
from firearrow.replication.master import Master
from firearrow.replication.proof import OPEN, HaAccess
from firearrow.replication.slave import Slave
from firearrow.replication.switching import Greeting, SwitchSending
from firearrow.replication.switchmaster import ROLE_STOP_SECONDS, InSync, SwitchMaster
from firearrow.replication.switchslave import SwitchSlave
from firearrow.services import Service
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig

log: Final = Log(__name__)


@dataclass(slots=True)
class ReplicaState:
    """Facts that a broker knows of itself among the brokers of its name, in any role.

    ``number`` is the controller's; ``mastery`` is the master that the controller named last. ``lost`` says that the log
    may lack messages of its last epoch that were sent to others, as the machine lost power.
    """

    epochs: Epochs
    number: int
    mastery: Mastery
    lost: bool = False
    in_sync: InSync | None = None

    @property
    def in_sync_count(self) -> int:
        """Number of brokers in sync, itself among them."""
        return len(self.in_sync.members) if self.in_sync is not None else 0

    def cut(self, log_end: int) -> None:
        """Forget the epochs that begin behind the end of the log. Raise OSError if that fails."""
        self.epochs.cut_behind(log_end)
        self.epochs.save()

    def begin_epoch(self, log_start: int, log_end: int) -> None:
        """Begin the epoch of a master, unless it was master of it before. Raise OSError if that fails.

        After a loss of power, slaves may have more of that epoch than this log: later messages of this log must
        not count as the same.
        """
        self.epochs.cut_behind(log_end)
        self.epochs.cut_start(log_start)
        if self.epochs.last_epoch != self.mastery.epoch or self.lost:
            self.epochs.begin(self.mastery.epoch, log_end)
        self.lost = False
        self.epochs.save()


class SwitchReplicas(Replicas):
    """Part of the broker in replication; ``cut_wanted`` gets the offset where a slave's log must end."""

    def __init__(self, config: StoreConfig, place: ReplicaState, asked_ha_port: int, access: HaAccess = OPEN) -> None:
        super().__init__(config, access)
        self.place = place
        self.cut_wanted: Event[int] = Event()
        self._asked_ha_port = asked_ha_port
        self._opened_end = 0  # end of the log when it was opened: queues show all messages before it

    async def bind(self, host: str, asked_port: int, port: int) -> int:
        """Bind the port for slaves; return the port that others should use.

        If a port that is not configured is taken, a master binds any other: name servers publish it.
        """
        try:
            return await super().bind(host, asked_port, port)
        except CannotListen:
            if self._asked_ha_port:
                raise
        self._server = await listen(self._gate.connection, host, 0, self._access.server_tls)
        return port_of(self._server)

    def begin(self, store: MessageStore, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> Service:
        """Make the part of the master or of the slave, as a service."""
        loop = loop or asyncio.get_running_loop()
        place, config = self.place, self._config
        self._opened_end = store.log_end_offset
        if self.is_slave:
            slave = SwitchSlave(store, config, clock, loop, place.epochs, self._greeting, self._access)
            slave.ahead.listen(self.cut_wanted)
            self.slave: Slave | None = slave
            sending = partial(
                SwitchSending, config.mapped_file_size_commit_log, place.epochs,
                lambda: self.confirmed_offset, for_readers=True,
            )  # fmt: skip
            self._sender = Master(store, config, clock, loop, self._server, sending)
            self._sender.stop_seconds = 0.0  # it does not wait for readers of a few bytes
            return FollowedSlave(slave, self._sender)
        mastery = place.mastery
        place.in_sync = InSync(place.number, mastery.in_sync, mastery.in_sync_version)
        master = SwitchMaster(store, config, clock, loop, self._server, place.epochs, place.in_sync)
        copies = master.copies
        if copies.are_wanted:
            confirming = store.copy_by(copies, config.slave_timeout / 1000)
            copies.answer = confirming.answer
            master.acked.listen(lambda _: confirming.answer())
        self.master: Master | None = master
        self._sender = master
        self._link(master)
        master.counted.listen(self.counted)
        return master

    def know_states(self, states: Mapping[int, int], version: int) -> None:
        """Note the version of the state that each slave has; a slave with the whole state may join the set."""
        super().know_states(states, version)
        master = self.switch_master
        if master is not None:
            master.know_states({it for it, known in states.items() if known >= version})

    def confirms(self, version: int) -> bool:
        """Return whether all brokers in sync have a version of the state, if messages wait for slaves.

        All of them must have it even with ``inSyncReplicas``: the controller chooses among them by their logs, not by
        this. RocketMQ's brokers can't confirm it, and are left out.
        """
        master = self.switch_master
        if master is None or not master.copies.are_wanted:
            return True
        others = master.in_sync.others - master.stateless
        return all(self._states.get(it, -1) >= version for it in others)

    def _history(self) -> History:
        sender = self._sender
        assert sender is not None, "it has begun"
        return History(Epochs(self.place.epochs.entries), sender.store.log_end_offset)

    def _greeting(self) -> Greeting:
        config = self._config
        return Greeting(self.place.number, config.async_learner, config.sync_from_last_file, has_state=True)

    @property
    def switch_master(self) -> SwitchMaster | None:
        """Return the part of the master."""
        return cast(SwitchMaster | None, self.master)

    @property
    def confirmed_offset(self) -> int:
        """End of the log that all required brokers have, as this broker knows."""
        if self.master is not None:
            return cast(SwitchMaster, self.master).confirmed_offset
        return cast(SwitchSlave, self.slave).confirmed_offset

    @property
    def may_show_lost(self) -> bool:
        """Return whether queues may show messages that some of these brokers lack, so that a later master may lack
        them.

        Messages that were in the log when it was opened may be shown; later ones only when they are confirmed.
        """
        return self._config.all_ack_in_sync_state_set and self.confirmed_offset < self._opened_end

    def lead_on(self, mastery: Mastery) -> None:
        """Stay master in another epoch. Raise OSError if that fails."""
        master = self.switch_master
        assert master is not None, "who stays master is one"
        place, store = self.place, master.store
        place.begin_epoch(store.log_start_offset, store.log_end_offset)
        master.decided(mastery.in_sync, mastery.in_sync_version)

    def leave_master(self) -> None:
        """Follow no broker until name servers name the port of another master."""
        if self.slave is not None:
            self.slave.follow("")

    def hurry(self) -> None:
        """Prepare for another role: requests that wait for copies get none."""
        master = self.switch_master
        if master is not None:
            master.stop_seconds = ROLE_STOP_SECONDS
            master.copies.give_up()
