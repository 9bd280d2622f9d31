"""Transactions: what became of halves, and asking the producers of those of which nothing is known.

A half is decided once, by the first commit or rollback for it or for any copy of it. Java:
EndTransactionProcessor commits it again when its producer answers after it was put again, and when
the same answer comes twice.

Rounds of checks are `transactionCheckInterval` apart, as upstream, but there is one only when a
half may be due. It goes over the half queue from where the last one ended: what is decided is
passed, what is due is put again at the end and its producer asked (39), what nobody decides goes to
``TRANS_CHECK_MAX_TIME_TOPIC``. It ends at the first half that is too young; halves that are not to
be checked for a while (``CHECK_IMMUNITY_TIME_IN_SECONDS``) only hold it up until one behind them is
due, then they are put again before that. So the offsets of group ``CID_RMQ_SYS_TRANS`` are those
that a RocketMQ broker goes on from. They are committed when the disk has all that they rest on.

A start reads the op queue, and in the end of the log which halves were committed without a record
there: a kill makes nothing be committed twice.

Source: upstream ``TransactionalMessageServiceImpl``, ``TransactionalMessageCheckService``,
``AbstractTransactionalMessageCheckListener``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.decisions import Decided, OpQueue, offsets_in
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.halves import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    QUEUE_ID,
    AnyHalf,
    Half,
    PlainHalf,
    check_age_ms,
    check_request,
    copied,
    given_up,
    half_of,
    moved,
    noted_root,
    plain_committed,
    put_committed,
    resumed,
)
from firearrow.broker.puts import Draft, Placed
from firearrow.broker.state.opencounts import OpenCounts
from firearrow.errors import BrokerError, MessageError, PutLater, StoreError
from firearrow.message import properties
from firearrow.message.model import MessageView
from firearrow.message.names import TRANS_GROUP
from firearrow.message.record import decode_record
from firearrow.services import Alarm, Scheduler, Service
from firearrow.store import ConsumeQueue, committed_halves
from firearrow.wire.codes import ResponseCode

log = logging.getLogger(__name__)

COPIES_KNOWN_MAX: Final = 200_000
"""Checked halves of which the last copy is known, some 20 MB. When one of them is decided by an
answer for an earlier copy, the op queue says so of the last one too; of others only our own rounds
know, by their root."""

OPS_BEFORE: Final = 1000
"""Records of the op queue that a start reads before those in use: what they decide is not decided
again. At rest they are those of 50 minutes."""

LOG_BYTES_MAX: Final = 1 << 30
"""Of the log's end, that a start looks at for commits, a second or two. Those that have no record
yet are some seconds old, and the oldest half that is open is not older than a round."""

HELD_BEHIND_MAX: Final = 4096
"""Halves that a round goes over again because one before them is not to be checked yet; with more,
that one is put again."""

AHEAD_SECONDS_MAX: Final = 86_400.0
"""A round is not planned further ahead: the wall clock may be set, and senders name any time."""

PRODUCERS_TRIED: Final = 3  # Java: ProducerManager#GET_AVAILABLE_CHANNEL_RETRY_COUNT
_SOON: Final = 0.1  # of an interval: a timer may come early, and no round follows at once
_OPS_OF_STEP: Final = 64
_STEP_COST: Final = 4096  # of a step of a round, some milliseconds
_READ_COST: Final = 32  # a record, against a half that is known to be decided
_BYTES_FOR_COST: Final = 256


def _cost(record_bytes: int) -> int:
    return _READ_COST + record_bytes // _BYTES_FOR_COST


class _Verdict(Enum):
    """What comes of looking at a half."""

    DONE = auto()  # the queue can move on over it
    DUE = auto()  # its producer is to be asked, or it is to be given up
    HELD = auto()  # it is not to be checked yet, others behind it may be
    YOUNG = auto()  # neither it nor what is behind it is due


class Transactions(Service):
    """Decides halves, and asks for decisions by time."""

    def __init__(self, context: BrokerContext, open_counts: OpenCounts, scheduler: Scheduler) -> None:
        super().__init__("transactions")
        self._context = context
        self._open_counts = open_counts
        self._tally = context.stats.tally
        self._replicas = context.replicas
        self._store = context.store
        self._puts = context.puts
        self._settings = context.settings
        self._offsets = context.offsets
        self._clock = context.clock
        self._senders = context.senders
        self._scheduler = scheduler
        self._forget()
        self._next = 0  # the first half that is perhaps not done
        self._saved = (0, 0)
        self._began = 0.0
        self._is_started = False
        self._alarm = Alarm(scheduler, self._begin_round)
        self._round: Iterator[int] | None = None
        self._planned_by: BrokerConfig | None = None  # as long as the alarm is set
        self._has_copied = False
        self._due_ms = math.inf
        self._asked = 0
        self._given_up = 0
        self._trouble: str | None = None

    # --- life ---

    def _forget(self) -> None:
        """Know of no half."""
        context = self._context
        self._decided = Decided()
        self._ops = OpQueue(context.puts, context.store.store_host, context.settings, context.clock, self._scheduler)
        self._last_copies: dict[int, int] = {}

    async def start(self) -> None:
        """Learn from the store what is decided; from here on halves are checked."""
        self._began = self._scheduler.time()
        self._next = self._kept_offset(HALF_TOPIC)
        self._ops.done_offset = self._kept_offset(OP_TOPIC)
        self._saved = self._next, self._ops.done_offset
        for _ in self._learn():
            await asyncio.sleep(0)
        self._is_started = True
        if self._next < self._end:
            self._plan(0)

    async def stop(self) -> None:
        """Write what was decided; nothing is checked any more."""
        self._is_started = False
        self._alarm.cancel()
        self._round = None
        self._ops.write()
        self._ops.cancel()
        if self._replicas.is_slave:
            self._forget()  # the next start learns what its master has decided meanwhile

    def go_on(self) -> None:
        """Look again at what could not be put before."""
        if self._is_started and self._round is None:
            self._alarm.set(0)

    @property
    def trouble(self) -> str | None:
        """Why halves can't be put again, or decisions not written."""
        return self._trouble or self._ops.trouble

    @property
    def _end(self) -> int:
        return self._store.max_queue_offset(HALF_TOPIC, QUEUE_ID)

    def _kept_offset(self, topic: str) -> int:
        """Where the last broker was; within what the queue has now."""
        kept = self._offsets.query(TRANS_GROUP, topic, QUEUE_ID)
        first = self._store.min_queue_offset(topic, QUEUE_ID)
        return min(max(kept, first), self._store.max_queue_offset(topic, QUEUE_ID))

    def _learn(self) -> Iterator[None]:
        """Note what the op queue and the log say, a step for each that is taken."""
        store, end = self._store, self._end
        in_use = self._ops.done_offset
        first = max(in_use - OPS_BEFORE, store.min_queue_offset(OP_TOPIC, QUEUE_ID))
        known = -1
        for number, op in enumerate(store.iterate_from(OP_TOPIC, QUEUE_ID, first)):
            record = store.record_at(op.physical_offset)
            named = [] if record is None else list(offsets_in(decode_record(record)))
            real = [offset for offset in named if offset < end]
            for offset in real:
                self._decided.add(offset)
            if op.queue_offset >= in_use:
                self._ops.in_use(op.queue_offset, max(real, default=-1))
            known = op.physical_offset
            if number % _OPS_OF_STEP == 0:
                yield
        for half in store.iterate_from(HALF_TOPIC, QUEUE_ID, self._next, 1):
            yield from self._learn_from_log(max(known, half.physical_offset))

    def _learn_from_log(self, physical_offset: int) -> Iterator[None]:
        first = half_of(self._store.record_at(0))
        for commits in committed_halves(self._store, physical_offset, LOG_BYTES_MAX):
            for place, commit in commits:
                half = half_of(self._store.record_at(place)) if place else first
                if half is None or self.is_decided(half):
                    continue
                if place or self._is_of(half, commit):
                    self._decide(half)
            yield

    def _is_of(self, half: Half, commit: int) -> bool:
        """Whether the record at a physical offset is of the same message as a half. Of one without
        an id that is not known: it may be committed again. Ids are of the senders' choice, so a
        message of another topic is another one."""
        view, unique_key = self._store.view_at(commit), half.view.unique_key
        topic = view.properties.get(properties.REAL_TOPIC, view.topic)
        is_same = unique_key is not None and view.unique_key == unique_key
        return is_same and topic == half.real_topic

    # --- decisions ---

    def is_decided(self, half: AnyHalf) -> bool:
        """Whether a half, or another copy of it, was committed or rolled back."""
        queue_offset, root = half.queue_offset, half.root
        return queue_offset in self._decided or (root != queue_offset and root in self._decided)

    def commit(self, half: AnyHalf) -> None:
        """Put the message of a half where it belongs.

        Raises what `Puts.put` raises; the half is then as before.
        """
        begin = self._store.log_end_offset
        put_committed(self._puts, half, self._clock.now_ms())
        self._count_commit(half, self._store.log_end_offset - begin)
        self._decide(half)

    def commit_several(self, halves: Sequence[tuple[PlainHalf, ConsumeQueue]]) -> bool:
        """Put the messages of halves, which are not decided, side by side into the queues that they
        are for. False, with nothing put, if each is to be committed by itself."""
        messages = [plain_committed(half, queue) for half, queue in halves]
        places = self._store.put_several(messages, self._clock.now_ms())
        if places is None:
            return False
        if self._tally is not None:
            places.append(self._store.log_end_offset)
            for (half, _), (place, end) in zip(halves, pairwise(places), strict=True):
                self._count_commit(half, end - place)
        usual: list[int] = []
        topics: list[str] = []
        for half, _ in halves:
            queue_offset = half.queue_offset
            if queue_offset in self._last_copies:
                self._ops.note_all(usual)  # in the order in which they are decided
                usual.clear()
                self._decide(half)
            else:
                self._decided.add(queue_offset)
                usual.append(queue_offset)
                topics.append(half.real_topic)
        self._ops.note_all(usual)
        for topic, count in Counter(topics).items():
            self._open_counts.add(topic, -count)
        return True

    def roll_back(self, half: AnyHalf) -> None:
        """Have the message of a half never be delivered.

        Raises DiskFull if that can't be written.
        """
        self._ops.check_room()
        if self._tally is not None:
            self._tally.rollbacks.add(half.real_topic)
        self._decide(half)

    def _count_commit(self, half: AnyHalf, size: int) -> None:
        if self._tally is not None:
            age_ms = max(0, self._clock.now_ms() - half.born_timestamp_ms)
            self._tally.committed(half.real_topic, size, age_ms)

    def _decide(self, half: AnyHalf) -> None:
        queue_offset, root = half.queue_offset, half.root
        last = self._last_copies.pop(root, queue_offset)
        self._decided.add(queue_offset)
        others: Sequence[int] = ()
        if root != queue_offset or last != queue_offset:  # it was put again
            others = sorted({root, last} - {queue_offset})
            for offset in others:
                self._decided.add(offset)
        self._ops.note(queue_offset, others)
        self._open_counts.add(half.real_topic, -1)

    def resume(self, view: MessageView) -> None:
        """Put a message of a transaction as a half that was never checked.

        Raises BrokerError if it is decided, and what `Puts.put` raises.
        """
        root = noted_root(view)
        if root is not None and root in self._decided:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the transaction is decided")
        placed = self._puts.put(resumed(view, root))
        if root is not None:
            self._know_copy(root, placed.queue_offset)
        self._plan(0)

    def _know_copy(self, root: int, queue_offset: int) -> None:
        if root in self._last_copies or len(self._last_copies) < COPIES_KNOWN_MAX:
            self._last_copies[root] = queue_offset

    # --- when ---

    def waits(self, message: WaitsElsewhere) -> None:
        """A message was put that may be a half."""
        if message.topic == HALF_TOPIC:
            self._open_counts.add(message.real_topic, 1)
            broker = self._settings.broker
            # What was planned for a half before this one, by the same settings, is not later.
            if broker is not self._planned_by or not self._alarm.is_set:
                self._plan(self._clock.now_ms() + broker.transaction_time_out)
                self._planned_by = broker

    def _plan(self, due_ms: float) -> None:
        """Have a round begin when it is time for one and something is due."""
        if not self._is_started or self._round is not None:
            return  # a round plans the next one when it ends
        interval = self._settings.broker.transaction_check_interval / 1000
        now = self._scheduler.time()
        passed = now - self._began
        ahead = max((due_ms + 1 - self._clock.now_ms()) / 1000, 0.0)
        rounds = max(math.ceil((passed + ahead) / interval), int(passed / interval + _SOON) + 1)
        at = min(self._began + rounds * interval, now + AHEAD_SECONDS_MAX)
        self._alarm.set_earlier(at - now)

    def _begin_round(self) -> None:
        self._has_copied, self._due_ms, self._given_up = False, math.inf, 0
        self._planned_by = None
        self._round = self._check_due()
        self._go_on()

    def _go_on(self) -> None:
        """Go on with the round until it has taken a few milliseconds."""
        steps = self._round
        if steps is None:
            return  # stopped
        goes_on, trouble = False, "a round of checks failed"
        try:
            goes_on, trouble = self._step(steps), ""
        except PutLater:
            trouble = ""
        except (StoreError, BrokerError) as error:
            trouble = str(error)
            if self._trouble is None:
                log.error("transactions can't be checked now", extra={"error": error})
        finally:
            if goes_on:
                self._scheduler.call_soon(self._go_on)
            else:
                self._trouble = trouble or None
                self._round = None
                self._end_round()

    @staticmethod
    def _step(steps: Iterator[int]) -> bool:
        cost = 0
        for paid in steps:
            cost += paid
            if cost >= _STEP_COST:
                return True
        return False

    def _end_round(self) -> None:
        if self._given_up:
            log.warning(
                "transactions that nobody decided went to TRANS_CHECK_MAX_TIME_TOPIC", extra={"count": self._given_up}
            )
        self._decided.forget_before(self._next)
        if self._next > self._saved[0]:
            self._ops.write()  # of what offsets are behind, the op queue tells the next start
        reached = self._next, self._ops.done_before(self._next)
        if reached != self._saved:
            self._store.when_safe(self._store.log_end_offset, partial(self._save, reached))
        if self._next < self._end:
            is_soon = self._has_copied or self._trouble or math.isinf(self._due_ms)
            self._plan(0 if is_soon else self._due_ms)

    def _save(self, reached: tuple[int, int], done: bool) -> None:
        """Commit offsets, unless the disk did not take what they rest on."""
        if done:
            self._saved = reached
            for topic, queue_offset in zip((HALF_TOPIC, OP_TOPIC), reached, strict=True):
                self._offsets.commit(TRANS_GROUP, topic, QUEUE_ID, queue_offset)
        elif self._is_started:
            self._plan(0)

    # --- a round ---

    def _check_due(self) -> Iterator[int]:
        """Check what is due, a half for each that is taken; gives what it has cost."""
        store, end = self._store, self._end
        at = self._next = max(self._next, store.min_queue_offset(HALF_TOPIC, QUEUE_ID))
        held: list[int] = []  # physical offsets of what is not to be checked yet
        while at < end:
            if at in self._decided:
                yield 1
            else:
                entry = next(store.iterate_from(HALF_TOPIC, QUEUE_ID, at, 1), None)
                if entry is None or entry.queue_offset >= end:
                    break
                at = entry.queue_offset
                yield _cost(entry.size)
                half = half_of(store.record_at(entry.physical_offset))
                verdict = self._verdict(half)
                if verdict is _Verdict.YOUNG:
                    return
                if verdict is _Verdict.HELD:
                    held.append(entry.physical_offset)
                elif verdict is _Verdict.DUE:
                    yield from self._put_held_again(held)
                    self._see_to(half, self._move if self._replicas.is_slave else self._ask_or_give_up)
            at += 1
            if held and at - self._next >= HELD_BEHIND_MAX:
                yield from self._put_held_again(held)
            if not held:
                self._next = at
        if not held:
            self._next = end

    def _verdict(self, half: Half | None) -> _Verdict:
        """What is to be done with a half."""
        if half is None:
            log.error("a half can't be read: its transaction is not checked")
            return _Verdict.DONE
        if self.is_decided(half):
            self._forget_copy(half)
            return _Verdict.DONE
        if self._last_copies.get(half.root, -1) > half.queue_offset:
            return _Verdict.DONE  # after a kill, or 323, there may be another chain of copies
        age_ms = self._clock.now_ms() - half.born_timestamp_ms
        if self._replicas.is_slave or self._is_to_be_given_up(half):
            return _Verdict.DUE
        limit_ms = check_age_ms(half.immunity, self._settings.broker.transaction_time_out)
        is_immune = half.immunity is not None
        if age_ms > limit_ms or (age_ms < 0 and not is_immune):
            return _Verdict.DUE
        self._due_ms = min(self._due_ms, half.born_timestamp_ms + limit_ms)
        return _Verdict.HELD if is_immune else _Verdict.YOUNG

    def _is_to_be_given_up(self, half: Half) -> bool:
        age_ms = self._clock.now_ms() - half.born_timestamp_ms
        return (
            half.check_times >= self._settings.broker.transaction_check_max
            or age_ms > self._settings.store.file_reserved_time * 3_600_000
        )

    def _see_to(self, half: Half | None, act: Callable[[Half], object]) -> None:
        """Do something with a half, unless it was decided meanwhile.

        One of which nothing can be made holds up nobody: it is logged, and stays where it is.
        """
        if half is None or self.is_decided(half):
            return
        try:
            act(half)
        except MessageError as error:
            log.error("a half can't be checked", extra={"physical_offset": half.view.physical_offset, "error": error})

    def _put_held_again(self, held: list[int]) -> Iterator[int]:
        """Put halves again that are not to be checked yet, so that the queue can move on.

        Java: TransactionalMessageServiceImpl#check does so in every round, and counts it as a
        check: a half is given up before its producer was asked.
        """
        while held:
            record = self._store.record_at(held[0])
            self._see_to(half_of(record), lambda half: self._copy(half, half.check_times))
            del held[0]
            yield _cost(len(record or b""))

    def _ask_or_give_up(self, half: Half) -> None:
        if self._is_to_be_given_up(half):
            self._give_up(half)
        else:
            self._ask_again(half)

    def _ask_again(self, half: Half) -> None:
        """Put a half again, counted up, and ask its producer."""
        copy = self._copy(half, half.check_times + 1)
        if copy is None:
            return
        draft, placed = copy
        asking = check_request(half, draft, placed, self._store.store_host, self._settings.broker.broker_name)
        members, senders = self._context.clients.producers(half.producer_group), self._senders
        tried = 0
        for _ in members:
            self._asked += 1
            member = members[self._asked % len(members)]
            channel = member.channel
            if not senders.may_publish(member.user, channel.ip, half.real_topic):
                continue  # the message is none of its business, whatever group it says it is of
            tried += 1
            if channel.push(asking) or tried >= PRODUCERS_TRIED:
                return

    def _move(self, half: Half) -> None:
        """Put a half to another broker, which decides it: a slave that acts for its master can't.

        Source: upstream TransactionalMessageServiceImpl#check, which gives one up that failed ten
        times, and so loses it for good.
        """
        self._puts.deliver(moved(half), self._clock.now_ms())
        self._decided.add(half.queue_offset)
        self._open_counts.add(half.real_topic, -1)

    def _copy(self, half: Half, check_times: int) -> tuple[Draft, Placed] | None:
        """Put a half at the end of its queue; one that has no room for notes is given up.

        Java: TransactionalMessageServiceImpl#check tries that one until the round is over, and all
        that are behind it wait.
        """
        draft = copied(half, check_times)
        try:
            placed = self._puts.put(draft)
        except MessageError:
            self._give_up(half)
            return None
        self._know_copy(half.root, placed.queue_offset)
        self._has_copied = True
        return draft, placed

    def _give_up(self, half: Half) -> None:
        """Put a half where those are that nobody decides."""
        self._context.topics.create(GIVEN_UP_TOPIC, 1)
        self._puts.put(given_up(half))
        self._forget_copy(half)
        self._given_up += 1
        self._open_counts.add(half.real_topic, -1)

    def _forget_copy(self, half: Half) -> None:
        if self._last_copies.get(half.root) == half.queue_offset:
            del self._last_copies[half.root]
