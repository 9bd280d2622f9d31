"""The master's side where a controller decides: who has all that was acknowledged, who may join.

Sends the log as `firearrow.replication.master` does, in the frames of
`firearrow.replication.switching`. A slave is *caught up* as long as it has what the log had some
seconds ago (``haMaxTimeSlaveNotCatchup``). One that is, and has all that was acknowledged, is to
join the set of `firearrow.replication.insync`; one that is not, or is gone, is to leave it.
``wants`` is told when such a change is to be agreed on with the controller.

Source: upstream ``AutoSwitchHAService``, ``AutoSwitchHAConnection``, ``GroupTransferService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from firearrow.clock import Clock
from firearrow.events import Event
from firearrow.replication.epochs import Epochs
from firearrow.replication.insync import InSync
from firearrow.replication.master import SLAVES_MAX, Connection, Master
from firearrow.replication.switching import Greeting, SwitchSending
from firearrow.services import Alarm
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig

log = logging.getLogger(__name__)

CLOSE_SECONDS_MAX: Final = 1.0
"""How far behind a slave may be that is about to join; sends wait for it so long at most."""
TELL_SECONDS: Final = 0.005  # after which slaves hear what is confirmed, if no data says it
ROLE_STOP_SECONDS: Final = 0.2
"""So long a master that was replaced waits for slaves: they follow another one."""


class SwitchMaster(Master):
    """Sends the log to the slaves of a name; ``in_sync`` are those that have it."""

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
        """Told when others than before are waited for."""
        self.stateless: set[int] = set()
        """The brokers that do not say what they have of the state beside the log, RocketMQ's."""
        self._with_state: AbstractSet[int] = frozenset()
        self.copies = Copies(self, loop)
        self._began_at = store.log_end_offset  # any of it may have been acknowledged before
        self._confirmed = 0
        self._telling = Alarm(loop, self._tell)
        self._stops = False
        # Of each slave: what it must have to be caught up, since when, and when it was last.
        self._goals: dict[int, tuple[int, float]] = {}
        self._caught_up_at: dict[int, float] = {}
        # Those that join as soon as they have the log up to there, and since when.
        self._candidates: dict[int, tuple[int, float]] = {}

    async def stop(self) -> None:
        """Let slaves have the last messages; who is in sync stays as it is."""
        self._stops = True
        self._telling.cancel()
        await super().stop()

    # --- what slaves have ---

    @property
    def copied(self) -> dict[int, int]:
        """Up to where each slave that is connected has the log, by its number."""
        found: dict[int, int] = {}
        for slave in self.following:
            greeting = greeting_of(slave)
            if greeting is not None:
                found[greeting.broker_id] = max(slave.sending.acked, found.get(greeting.broker_id, 0))
        return found

    @property
    def confirmed_offset(self) -> int:
        """Up to where all that must have the log have it, which never goes back.

        Java: AutoSwitchHAService#computeConfirmOffset.
        """
        others = self.in_sync.others
        if not others or not self.config.all_ack_in_sync_state_set:
            self._confirmed = self.store.log_end_offset
        else:
            copied = self.copied
            least = min(copied.get(it, 0) for it in others)
            self._confirmed = max(self._confirmed, least)
        return self._confirmed

    def is_in_sync(self, slave: Connection) -> bool:
        """Tell whether a slave is in the set."""
        greeting = greeting_of(slave)
        return greeting is not None and greeting.broker_id in self.in_sync.members

    def began(self, slave: Connection) -> None:
        """A slave says for the first time what it has, which counts: epochs were compared. What it
        said on an earlier connection it may have lost by now."""
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

    def reported(self, slave: Connection) -> None:
        """A slave says what it has."""
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
        """Know which slaves have all of the state beside the log: else one may be in sync, and
        elected, that lacks a topic which was made before."""
        came, self._with_state = broker_ids - self._with_state, broker_ids
        for slave in self.following if came else ():
            greeting = greeting_of(slave)
            if greeting is not None and greeting.broker_id in came:
                self._look_at(greeting, slave.sending.acked)

    def show_confirmed(self) -> None:
        """Have consumers see what all have that must have it, here and soon at slaves."""
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
        """Note what a slave has; say if it has what the log had shortly before."""
        now, end = self.clock.monotonic(), self.store.log_end_offset
        goal, since = self._goals.setdefault(broker_id, (end, now))
        if acked < goal:
            return False
        before = self._caught_up_at.get(broker_id, since)
        self._caught_up_at[broker_id] = now if acked >= end else max(before, since)
        self._goals[broker_id] = end, now
        return acked >= end or now - since <= CLOSE_SECONDS_MAX

    def _may_join(self, broker_id: int, acked: int, *, is_close: bool) -> None:
        """Have a slave join once it has all that was acknowledged, and something of this master's.

        Java: AutoSwitchHAService#maybeExpandInSyncStateSet compares with the end of the log, which
        a slave of a master that is alone and busy hardly ever reaches.
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
        self.copies.changed()

    def _beat(self) -> None:
        super()._beat()
        limit = self.clock.monotonic() - CLOSE_SECONDS_MAX
        for broker_id in [it for it, (_, since) in self._candidates.items() if since < limit]:
            self._drop_candidate(broker_id)

    def went(self, slave: Connection) -> None:
        """A slave is gone."""
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
        """Have those leave the set that are gone or not caught up; called again and again."""
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
        """The controller says who is in sync; others may have come meanwhile."""
        if self.in_sync.decided(members, version):
            self.copies.changed()
        for slave in self.following:
            greeting = greeting_of(slave)
            if greeting is not None:
                self._look_at(greeting, slave.sending.acked)


def greeting_of(slave: Connection) -> Greeting | None:
    """What a slave has said of itself; None of one that only reads some bytes."""
    sending = slave.sending
    greeting = sending.greeting if isinstance(sending, SwitchSending) else None
    return None if greeting is None or greeting.is_reader else greeting


class Copies:
    """That enough of those in sync have a message; a condition of its acknowledgement.

    ``answer`` is called when it may hold for more. With ``allAckInSyncStateSet`` all of the set
    must have it, else ``inSyncReplicas`` of it. Java: GroupTransferService counts any slave then,
    also one that can't be elected.
    """

    is_broken = False

    def __init__(self, master: SwitchMaster, loop: asyncio.AbstractEventLoop) -> None:
        self._master = master
        self._loop = loop
        self._is_planned = False
        self._highest = 0
        self.answer: Callable[[], object] = lambda: None

    @property
    def are_wanted(self) -> bool:
        """Tell whether a send ever waits for another broker."""
        config = self._master.config
        return config.all_ack_in_sync_state_set or config.in_sync_replicas > 1

    @property
    def reached(self) -> int:
        """Up to where enough brokers have the log."""
        master = self._master
        others, config = master.in_sync.others, master.config
        copied = master.copied
        found = sorted((copied.get(it, 0) for it in others), reverse=True)
        count = len(found) if config.all_ack_in_sync_state_set else config.in_sync_replicas - 1
        reached = master.store.log_end_offset if count <= 0 else 0
        if 0 < count <= len(found):
            reached = found[count - 1]
        self._highest = max(self._highest, reached)
        return reached

    @property
    def acknowledged(self) -> int:
        """Up to where messages may have been acknowledged."""
        return self._highest if self.are_wanted else self._master.store.log_end_offset

    def ask(self) -> None:
        """Send slaves what they lack; where none is needed, answer soon."""
        self._master.wake()
        if not self._master.in_sync.others:
            self.changed()

    def changed(self) -> None:
        """Answer soon, as others than before are to have the log."""
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        self._is_planned = False
        self.answer()
        self._master.counted(None)
        self._master.show_confirmed()

    def give_up(self) -> None:
        """Confirm nothing more: the broker is no master any longer."""
        self.is_broken = True
        self.answer()
