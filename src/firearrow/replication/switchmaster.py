"""The master's side in controller mode: it decides which slaves may join the in-sync set, and which must leave it.

Sends the log as `firearrow.replication.master` does, in the frames of `firearrow.replication.switching`. A slave is
*caught up* while it has the log up to its end some seconds ago (``haMaxTimeSlaveNotCatchup``). A slave that is caught
up, and has every acknowledged message, joins the set of `InSync`. A slave that is not, or has left, leaves it.
``wants`` fires when the master must agree on such a change with the controller.

Source: RocketMQ's ``AutoSwitchHAService``, ``AutoSwitchHAConnection``, ``GroupTransferService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from firearrow.clock import Clock
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.replication.epochs import Epochs
from firearrow.replication.master import SLAVES_MAX, Master, SlaveConnection
from firearrow.replication.switching import Greeting, SwitchSending
from firearrow.services import Alarm
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig

log: Final = Log(__name__)

CLOSE_SECONDS_MAX: Final = 1.0
"""Limit of a joining slave's delay; sends wait for such a slave at most for this time."""
TELL_SECONDS: Final = 0.005  # delay until slaves learn the confirmed offset, if no data carries it
ROLE_STOP_SECONDS: Final = 0.2
"""Time that a replaced master waits for its slaves: they follow another one."""


class SwitchMaster(Master):
    """Sender of the log to the slaves of a broker name; ``in_sync`` is the in-sync set."""

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        server: asyncio.Server | None,
        epochs: Epochs,
        in_sync: InSync,
    ) -> None:
        file_bytes = config.mapped_file_size_commit_log
        sending = partial(SwitchSending, file_bytes, epochs, lambda: self.confirmed_offset)
        super().__init__(store, config, clock, loop, server, sending)
        self.epochs = epochs
        self.in_sync = in_sync
        self.wants: Event[None] = Event()
        self.counted: Event[None] = Event()
        """Fires when sends wait for other brokers than before."""
        self.stateless: set[int] = set()
        """The brokers that do not report the state beside the log: RocketMQ's."""
        self._with_state: AbstractSet[int] = frozenset()
        self.copies: Final = Copies(self, loop)
        self._began_at = store.log_end_offset  # any byte of it may have been acknowledged before
        self._confirmed = 0
        self._telling = Alarm(loop, self._tell)
        self._stops = False
        # By slave: the offset that it must reach to be caught up, since when, and the time when it last was.
        self._goals: dict[int, tuple[int, float]] = {}
        self._caught_up_at: dict[int, float] = {}
        # Slaves that will join as soon as they have the log up to an offset, and since when.
        self._candidates: dict[int, tuple[int, float]] = {}

    async def stop(self) -> None:
        """Wait until slaves have the last messages; the in-sync set does not change."""
        self._stops = True
        self._telling.cancel()
        await super().stop()

    # --- slaves' progress ---

    @property
    def copied(self) -> dict[int, int]:
        """The end of each connected slave's log, by the slave's number."""
        found: dict[int, int] = {}
        for slave in self.following:
            greeting = greeting_of(slave)
            if greeting is not None:
                found[greeting.broker_id] = max(slave.sending.acked, found.get(greeting.broker_id, 0))
        return found

    @property
    def confirmed_offset(self) -> int:
        """The confirmed offset: all brokers that must have the log have it up to there. It never goes back.

        Java: AutoSwitchHAService#computeConfirmOffset.
        """
        others, before = self.in_sync.others, self._confirmed
        if not others or not self.config.all_ack_in_sync_state_set:
            self._confirmed = self.store.log_end_offset
        else:
            copied = self.copied
            least = min(copied.get(it, 0) for it in others)
            self._confirmed = max(before, least)
        assert before <= self._confirmed <= self.store.log_end_offset
        return self._confirmed

    def is_in_sync(self, slave: SlaveConnection) -> bool:
        """Tell whether a slave is in the set."""
        greeting = greeting_of(slave)
        return greeting is not None and greeting.broker_id in self.in_sync.members

    def began(self, slave: SlaveConnection) -> None:
        """Note a slave's first report, which counts because epochs were compared.

        Its reports on an earlier connection count no longer: it may have lost those bytes by now.
        """
        super().began(slave)
        greeting = greeting_of(slave)
        if greeting is None:
            return
        if greeting.has_state or len(self.stateless) >= SLAVES_MAX:
            self.stateless.discard(greeting.broker_id)
        else:
            self.stateless.add(greeting.broker_id)
        for other in self.following:
            earlier = greeting_of(other)
            if other is not slave and earlier and earlier.broker_id == greeting.broker_id:
                other.close()
        self.reported(slave)

    def reported(self, slave: SlaveConnection) -> None:
        """Note a slave's report."""
        greeting = greeting_of(slave)
        if greeting is None:
            return
        self._look_at(greeting, slave.sending.acked)
        super().reported(slave)
        self.show_confirmed()

    def _look_at(self, greeting: Greeting, acked: int) -> None:
        is_close = self._note(greeting.broker_id, acked)
        if greeting.is_learner or greeting.broker_id in self.in_sync.next_members:
            return
        if not greeting.has_state or greeting.broker_id in self._with_state:
            self._may_join(greeting.broker_id, acked, is_close=is_close)

    def know_states(self, broker_ids: AbstractSet[int]) -> None:
        """Note which slaves have the complete state beside the log.

        Otherwise a slave might be in sync, and elected, that lacks a topic which was created before.
        """
        came, self._with_state = broker_ids - self._with_state, broker_ids
        for slave in self.following if came else ():
            greeting = greeting_of(slave)
            if greeting is not None and greeting.broker_id in came:
                self._look_at(greeting, slave.sending.acked)

    def show_confirmed(self) -> None:
        """Make the confirmed part of the log visible to consumers, here and soon at slaves."""
        if not self.config.all_ack_in_sync_state_set:
            return
        before = self._confirmed
        confirmed = self.confirmed_offset
        self.store.dispatching.limit_to(confirmed if self.in_sync.others else None)
        if confirmed > before:
            self._telling.set_earlier(TELL_SECONDS)

    def _tell(self) -> None:
        for slave in self.following:
            if slave.sending.next_offset == self.store.log_end_offset:
                slave.tell()

    def _note(self, broker_id: int, acked: int) -> bool:
        """Note a slave's offset; return True if it is the end of the log, present or of shortly before."""
        now, end = self.clock.monotonic(), self.store.log_end_offset
        goal, since = self._goals.setdefault(broker_id, (end, now))
        assert goal <= end, "the log only grows"
        if acked < goal:
            return False
        before = self._caught_up_at.get(broker_id, since)
        self._caught_up_at[broker_id] = now if acked >= end else max(before, since)
        self._goals[broker_id] = end, now
        return acked >= end or now - since <= CLOSE_SECONDS_MAX

    def _may_join(self, broker_id: int, acked: int, *, is_close: bool) -> None:
        """Add a slave to the set once it has every acknowledged message, and a byte of this master's epoch.

        Java: AutoSwitchHAService#maybeExpandInSyncStateSet compares with the end of the log. The only slave of a busy
        master hardly ever reaches it.
        """
        last = self.epochs.last
        assert last is not None, "a master has an epoch"
        if not self.config.all_ack_in_sync_state_set:
            if is_close and acked >= last.start and self.in_sync.join(broker_id):
                self._say(f"broker {broker_id} has caught up")
            return
        if broker_id not in self._candidates:
            if not is_close:
                return
            known = max(self.confirmed_offset, self.copies.acknowledged)
            needed = max(last.start, self._began_at, known)
            self._candidates[broker_id] = needed, self.clock.monotonic()
            self.in_sync.candidates.add(broker_id)
        needed, _ = self._candidates[broker_id]
        if acked >= needed and self.in_sync.join(broker_id):
            self._drop_candidate(broker_id)
            self._say(f"broker {broker_id} has caught up")

    def _drop_candidate(self, broker_id: int) -> None:
        self._candidates.pop(broker_id, None)
        self.in_sync.candidates.discard(broker_id)
        assert self._candidates.keys() == self.in_sync.candidates, "a send waits for exactly the candidates"
        self.copies.changed()

    def _beat(self) -> None:
        super()._beat()
        limit = self.clock.monotonic() - CLOSE_SECONDS_MAX
        for broker_id in [it for it, (_, since) in self._candidates.items() if since < limit]:
            self._drop_candidate(broker_id)

    def went(self, slave: SlaveConnection) -> None:
        """Remove a slave that has left."""
        super().went(slave)
        greeting = greeting_of(slave)
        if greeting is None or greeting.broker_id in self.copied:
            return
        self._drop_candidate(greeting.broker_id)
        self._goals.pop(greeting.broker_id, None)
        self._caught_up_at.pop(greeting.broker_id, None)
        if greeting.broker_id in self.in_sync.next_members and not self._stops:
            self._leave([greeting.broker_id])

    def check(self) -> None:
        """Remove slaves from the set that have left or are not caught up; called repeatedly."""
        copied, now = self.copied, self.clock.monotonic()
        for broker_id, acked in copied.items():
            self._note(broker_id, acked)
        limit = now - self.config.ha_max_time_slave_not_catchup / 1000
        others = self.in_sync.next_members - {self.in_sync.own_id}
        caught_up_at = self._caught_up_at
        self._leave([it for it in others if it not in copied or caught_up_at.get(it, now) < limit])

    def _leave(self, broker_ids: list[int]) -> None:
        if broker_ids and self.in_sync.leave(broker_ids):
            self._say(f"brokers {broker_ids} are gone or behind")

    def _say(self, why: str) -> None:
        wanted = self.in_sync.wanted
        log.info("other brokers are in sync", extra={"wanted": sorted(wanted or ()), "reason": why})
        self.copies.changed()
        self.wants(None)

    def decided(self, members: Iterable[int], version: int) -> None:
        """Adopt the controller's decision about the set; further slaves may have caught up meanwhile."""
        if self.in_sync.decided(members, version):
            self.copies.changed()
        for slave in self.following:
            greeting = greeting_of(slave)
            if greeting is not None:
                self._look_at(greeting, slave.sending.acked)


def greeting_of(slave: SlaveConnection) -> Greeting | None:
    """Return a slave's handshake; None for a peer that only reads some bytes."""
    sending = slave.sending
    greeting = sending.greeting if isinstance(sending, SwitchSending) else None
    return None if greeting is None or greeting.is_reader else greeting


class Copies:
    """Condition of an acknowledgement: enough in-sync brokers have the message.

    ``answer`` is called when the condition may hold for more messages. With ``allAckInSyncStateSet`` all members must
    have a message, otherwise ``inSyncReplicas`` of them. Java: GroupTransferService then counts any slave, also one
    that can't be elected.
    """

    is_broken: bool = False

    def __init__(self, master: SwitchMaster, loop: asyncio.AbstractEventLoop) -> None:
        self._master = master
        self._loop = loop
        self._is_planned = False
        self._highest = 0
        self.answer: Callable[[], object] = lambda: None

    @property
    def are_wanted(self) -> bool:
        """Tell whether sends wait for other brokers at all."""
        config = self._master.config
        return config.all_ack_in_sync_state_set or config.in_sync_replicas > 1

    @property
    def reached(self) -> int:
        """The end of the part of the log that enough brokers have."""
        master = self._master
        others, config = master.in_sync.others, master.config
        copied = master.copied
        found = sorted((copied.get(it, 0) for it in others), reverse=True)
        count = len(found) if config.all_ack_in_sync_state_set else config.in_sync_replicas - 1
        reached = master.store.log_end_offset if count <= 0 else 0
        if 0 < count <= len(found):
            reached = found[count - 1]
        assert reached <= master.store.log_end_offset, "no slave has more than the master"
        self._highest = max(self._highest, reached)
        return reached

    @property
    def acknowledged(self) -> int:
        """The end of the part of the log whose messages may have been acknowledged."""
        return self._highest if self.are_wanted else self._master.store.log_end_offset

    def ask(self) -> None:
        """Send slaves the missing bytes; if no slave is needed, answer soon."""
        self._master.wake()
        if not self._master.in_sync.others:
            self.changed()

    def changed(self) -> None:
        """Answer soon, because other brokers than before must have the log."""
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        assert self._is_planned, "one answer at a time is planned"
        self._is_planned = False
        self.answer()
        self._master.counted(None)
        self._master.show_confirmed()

    def give_up(self) -> None:
        """Confirm nothing more: the broker is no longer master."""
        self.is_broken = True
        self.answer()


# The in-sync set, agreed on between master and controller: the brokers that have every acknowledged message.
#
# The next master is a member of this set, so a message is safe when all members have it. The master proposes a
# change to the controller, which decides. Until the master knows the decision, both sets count. A broker that may
# have joined must have a message before its acknowledgement, and so must a broker that may have left. The same
# holds for a *candidate*: it will be proposed once its log contains every message that was acknowledged before.
# Otherwise it would never catch up with a log that keeps growing.
#
# Java: AutoSwitchHAService#removeConnection drops a lost slave before the controller has agreed. If the master is
# killed then, it has acknowledged messages that its successor may not have.


Ids = frozenset[int]


class InSync:
    """The in-sync set of the master ``own_id``; ``version`` counts its changes."""

    def __init__(self, own_id: int, members: Iterable[int], version: int) -> None:
        self.own_id = own_id
        self.members: Ids = frozenset(members) | {own_id}
        self.version: int = version
        self.wanted: Ids | None = None
        self.candidates: set[int] = set()
        self._proposed: Ids = frozenset()  # members of any set that may have been adopted

    @property
    def in_force(self) -> Ids:
        """The brokers whose copies count."""
        return self.members | self._proposed | self.candidates

    @property
    def others(self) -> Ids:
        """The same brokers without the master."""
        return self.in_force - {self.own_id}

    @property
    def next_members(self) -> Ids:
        """The members once all proposals are adopted."""
        return self.members if self.wanted is None else self.wanted

    def join(self, broker_id: int) -> bool:
        """Propose a further member; return True if the proposal is new."""
        return self._propose(self.next_members | {broker_id})

    def leave(self, broker_ids: Iterable[int]) -> bool:
        """Propose to remove members; return True if the proposal is new."""
        return self._propose(self.next_members - frozenset(broker_ids) | {self.own_id})

    def _propose(self, members: Ids) -> bool:
        assert self.own_id in members, "the master is in its set"
        if members == self.next_members:
            return False
        self.wanted = members
        self._proposed |= members
        return True

    def decided(self, members: Iterable[int], version: int) -> bool:
        """Adopt the controller's decision, unless its version is older; return True if other copies count now."""
        assert self.wanted is None or self.wanted <= self._proposed, "a proposal counts until the decision"
        if version < self.version:
            return False
        before = self.in_force
        self.members, self.version = frozenset(members) | {self.own_id}, version
        self.wanted, self._proposed = None, frozenset()
        return self.in_force != before
