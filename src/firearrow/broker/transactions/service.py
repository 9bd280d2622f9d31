"""Transactions: decide halves, and ask producers about halves that nobody decided.

The first commit or rollback of a half, or of any copy of it, decides the half. Java: EndTransactionProcessor commits it
again when its producer answers after it was put again, and when the same answer comes twice.

Rounds of checks are `transactionCheckInterval` apart, as in RocketMQ, but a round begins only when a half may be due.
It reads the half queue from the place where the last round ended:

* It passes a decided half.
* It puts a due half again at the end of the queue, and asks its producer (39).
* It moves a half that nobody decided in time to ``TRANS_CHECK_MAX_TIME_TOPIC``.
* It ends at the first half that is too young. A half with its own minimum age (``CHECK_IMMUNITY_TIME_IN_SECONDS``)
  holds the round's offset back only until a half behind it is due: then it is put again before that one.

So a RocketMQ broker can go on from the offsets of group ``CID_RMQ_SYS_TRANS``. They are committed when the disk has the
records that they depend on.

A start reads the op queue. In the end of the log it finds halves that were committed without a record in the op queue,
so that after a kill nothing is committed twice.

Source: RocketMQ ``TransactionalMessageServiceImpl``, ``TransactionalMessageCheckService``,
``AbstractTransactionalMessageCheckListener``.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.sending.puts import PutResult, UnstoredMessage
from firearrow.broker.transactions.decisions import DecidedOffsets, OpQueue, offsets_in
from firearrow.broker.transactions.halves import (
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
from firearrow.broker.transactions.opencounts import OpenCounts
from firearrow.broker.turns import RoundService, Steps
from firearrow.errors import BrokerError, MessageError
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.model import MessageView
from firearrow.message.names import TRANS_GROUP
from firearrow.message.record import decode_record
from firearrow.services import Scheduler
from firearrow.store import ConsumeQueue, committed_halves
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

COPIES_KNOWN_MAX: Final = 200_000
"""Checked halves whose last copy is known, some 20 MB. When an answer for an earlier copy decides one of them, the op
queue names the last copy, too. The decision of any other is known to our own rounds only, by its root."""

OPS_BEFORE: Final = 1000
"""Records of the op queue that a start reads before those in use: the halves that they decide are not decided again. At
rest they are the records of 50 minutes."""

LOG_BYTES_MAX: Final = 1 << 30
"""Bytes at the log's end in which a start looks for commits, a second or two. Commits without a record are some seconds
old, and the oldest open half is not older than a round."""

HELD_BEHIND_MAX: Final = 4096
"""Halves that each round reads again because a half before them must not be checked yet. With more, that half is put
again."""

AHEAD_SECONDS_MAX: Final = 86_400.0
"""Seconds until the next round at most: the wall clock may be set, and senders name any time."""

PRODUCERS_TRIED: Final = 3  # Java: ProducerManager#GET_AVAILABLE_CHANNEL_RETRY_COUNT
_SOON: Final = 0.1  # of an interval: after a timer that rang early, no second round begins at once
_OPS_OF_STEP: Final = 64
_STEP_COST: Final = 4096  # of a step of a round, some milliseconds; to pass a decided half costs 1
_READ_COST: Final = 32  # of a record
_BYTES_FOR_COST: Final = 256


def _cost(record_bytes: int) -> int:
    return _READ_COST + record_bytes // _BYTES_FOR_COST


class _Verdict(Enum):
    """Decision of a round about a half."""

    DONE = auto()  # the round passes it
    DUE = auto()  # the round asks its producer, or gives it up
    HELD = auto()  # it must not be checked yet, halves behind it may be due
    YOUNG = auto()  # neither it nor any half behind it is due


class TransactionService(RoundService):
    """Decide halves, and check the ones that nobody decides."""

    def __init__(self, context: BrokerContext, open_counts: OpenCounts, scheduler: Scheduler) -> None:
        super().__init__("transactions", scheduler)
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
        self._planned_by: BrokerConfig | None = None  # as long as the alarm is set
        self._has_copied = False
        self._due_ms = math.inf
        self._asked = 0
        self._given_up = 0

    # --- life ---

    def _forget(self) -> None:
        """Forget the state of all halves."""
        context = self._context
        self._decided = DecidedOffsets()
        self._ops = OpQueue(context.puts, context.store.store_host, context.settings, context.clock, self._scheduler)
        self._last_copies: dict[int, int] = {}

    async def start(self) -> None:
        """Read the decided halves from the store, and check halves from now on."""
        self._began = self._scheduler.time()
        self._next = self._kept_offset(HALF_TOPIC)
        self._ops.done_offset = self._kept_offset(OP_TOPIC)
        self._saved = self._next, self._ops.done_offset
        for _ in self._learn():
            await asyncio.sleep(0)
        self._is_running = True
        if self._next < self._end:
            self._plan(0)

    async def stop(self) -> None:
        """Check no further half, and write the decisions."""
        await super().stop()
        self._steps = None
        self._ops.write()
        self._ops.cancel()
        if self._replicas.is_slave:
            self._forget()  # the next start reads the decisions that its master has made meanwhile

    @property
    def trouble(self) -> str | None:
        """Reason why halves can't be checked, or decisions not written."""
        return super().trouble or self._ops.trouble

    @property
    def _end(self) -> int:
        return self._store.max_queue_offset(HALF_TOPIC, QUEUE_ID)

    def _kept_offset(self, topic: str) -> int:
        """Return the committed offset of a queue, moved into the queue's range."""
        kept = self._offsets.query(TRANS_GROUP, topic, QUEUE_ID)
        first = self._store.min_queue_offset(topic, QUEUE_ID)
        return min(max(kept, first), self._store.max_queue_offset(topic, QUEUE_ID))

    def _learn(self) -> Iterator[None]:
        """Read the decisions in the op queue and in the end of the log, in steps."""
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
        """Return whether the record at a physical offset is the commit of a half.

        That is unknown for a half without an id: it may be committed again. Senders choose the ids, so a record of
        another topic is another message.
        """
        view, unique_key = self._store.view_at(commit), half.view.unique_key
        topic = view.properties.get(properties.REAL_TOPIC, view.topic)
        is_same = unique_key is not None and view.unique_key == unique_key
        return is_same and topic == half.real_topic

    # --- decisions ---

    def is_decided(self, half: AnyHalf) -> bool:
        """Return whether a half, or another copy of it, was committed or rolled back."""
        queue_offset, root = half.queue_offset, half.root
        return queue_offset in self._decided or (root != queue_offset and root in self._decided)

    def commit(self, half: AnyHalf) -> None:
        """Put the message of a half into its topic.

        Raises the errors of `Puts.put`; the half is then as before.
        """
        begin = self._store.log_end_offset
        put_committed(self._puts, half, self._clock.now_ms())
        self._count_commit(half, self._store.log_end_offset - begin)
        self._decide(half)

    def commit_several(self, halves: Sequence[tuple[PlainHalf, ConsumeQueue]]) -> bool:
        """Put the messages of undecided halves side by side into their queues.

        Returns False with nothing put if each half must be committed alone.
        """
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
                self._ops.note_all(usual)  # in the order of the decisions
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
        """Discard the message of a half.

        Raises DiskFull if the decision can't be written.
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

        Raises BrokerError if it is decided, and the errors of `Puts.put`.
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

    # --- rounds by time ---

    def waits(self, message: WaitsElsewhere) -> None:
        """Plan a round for a message, if it is a half."""
        if message.topic == HALF_TOPIC:
            self._open_counts.add(message.real_topic, 1)
            broker = self._settings.broker
            # A round that the same settings planned for an earlier half is not later.
            if broker is not self._planned_by or not self._alarm.is_set:
                self._plan(self._clock.now_ms() + broker.transaction_time_out)
                self._planned_by = broker

    def _plan(self, due_ms: float) -> None:
        """Begin a round at the end of the first interval that may have a due half."""
        if not self._is_running or self._steps is not None:
            return  # a round plans the next one when it ends
        interval = self._settings.broker.transaction_check_interval / 1000
        now = self._scheduler.time()
        passed = now - self._began
        ahead = max((due_ms + 1 - self._clock.now_ms()) / 1000, 0.0)
        rounds = max(math.ceil((passed + ahead) / interval), int(passed / interval + _SOON) + 1)
        at = min(self._began + rounds * interval, now + AHEAD_SECONDS_MAX)
        self._alarm.set_earlier(at - now)

    def _round(self) -> Steps:
        self._has_copied, self._due_ms, self._given_up = False, math.inf, 0
        self._planned_by = None
        cost = 0
        for paid in self._check_due():
            cost += paid
            if cost >= _STEP_COST:
                cost = 0
                yield 0.0

    def _after_round(self) -> float:
        return self._end_round(has_failed=False)

    def _pause(self) -> float:
        return self._end_round(has_failed=True)

    def _end_round(self, has_failed: bool) -> float:
        """Save the offsets that a round has reached, and plan the next round."""
        if self._given_up:
            log.warning(
                "transactions that nobody decided went to TRANS_CHECK_MAX_TIME_TOPIC", extra={"count": self._given_up}
            )
        self._decided.forget_before(self._next)
        if self._next > self._saved[0]:
            self._ops.write()  # the next start reads there the decisions of halves behind the offset
        reached = self._next, self._ops.done_before(self._next)
        if reached != self._saved:
            self._store.when_safe(self._store.log_end_offset, partial(self._save, reached))
        if self._next < self._end:
            is_soon = self._has_copied or has_failed or math.isinf(self._due_ms)
            self._plan(0 if is_soon else self._due_ms)
        return math.inf  # the alarm is set if there is a next round

    def _save(self, reached: tuple[int, int], done: bool) -> None:
        """Commit offsets, unless the disk has refused the records that they depend on."""
        if done:
            self._saved = reached
            for topic, queue_offset in zip((HALF_TOPIC, OP_TOPIC), reached, strict=True):
                self._offsets.commit(TRANS_GROUP, topic, QUEUE_ID, queue_offset)
        else:
            self._plan(0)

    # --- a round ---

    def _check_due(self) -> Iterator[int]:
        """Check due halves, and yield the cost of each half read."""
        store, end = self._store, self._end
        at = self._next = max(self._next, store.min_queue_offset(HALF_TOPIC, QUEUE_ID))
        held: list[int] = []  # physical offsets of halves that must not be checked yet
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
        """Decide how a round goes on at a half."""
        if half is None:
            log.error("a half can't be read: its transaction is not checked")
            return _Verdict.DONE
        if self.is_decided(half):
            self._forget_copy(half)
            return _Verdict.DONE
        if self._last_copies.get(half.root, -1) > half.queue_offset:
            return _Verdict.DONE  # after a kill, or request 323, there may be another chain of copies
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
        """Call ``act`` with a half, unless the half was decided meanwhile.

        A half that can't be handled is logged and stays where it is, and others go on.
        """
        if half is None or self.is_decided(half):
            return
        try:
            act(half)
        except MessageError as error:
            log.error("a half can't be checked", extra={"physical_offset": half.view.physical_offset, "error": error})

    def _put_held_again(self, held: list[int]) -> Iterator[int]:
        """Put halves again that must not be checked yet, so that the round's offset can pass them.

        Java: TransactionalMessageServiceImpl#check does so in every round, and counts it as a check: it gives halves up
        before it has asked their producer.
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
        """Put a half again with one more check counted, and ask its producer."""
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
                continue  # it has no right to the topic, whatever group it has joined
            tried += 1
            if channel.push(asking) or tried >= PRODUCERS_TRIED:
                return

    def _move(self, half: Half) -> None:
        """Forward a half to another broker, which decides it: a slave that acts for its master can't.

        Source: RocketMQ TransactionalMessageServiceImpl#check, which drops a half after ten failures, and so loses it
        for good.
        """
        self._puts.deliver(moved(half), self._clock.now_ms())
        self._decided.add(half.queue_offset)
        self._open_counts.add(half.real_topic, -1)

    def _copy(self, half: Half, check_times: int) -> tuple[UnstoredMessage, PutResult] | None:
        """Put a half at the end of its queue; give it up if it has no room for the added properties.

        Java: TransactionalMessageServiceImpl#check retries it until the round is over, and all halves behind it wait.
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
        """Move a half to the topic of halves that nobody decided."""
        self._context.topics.create(GIVEN_UP_TOPIC, 1)
        self._puts.put(given_up(half))
        self._forget_copy(half)
        self._given_up += 1
        self._open_counts.add(half.real_topic, -1)

    def _forget_copy(self, half: Half) -> None:
        if self._last_copies.get(half.root) == half.queue_offset:
            del self._last_copies[half.root]
