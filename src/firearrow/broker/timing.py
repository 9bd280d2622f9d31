"""Messages with a delivery time: where they wait, and how they go on when their time comes.

`TimerRedirection` has a message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS wait in
``rmq_sys_wheel_timer``. `TimedMessages` puts what is in that queue on the wheel (``store.timers``),
and what is due into its topic. A message that is due far ahead is put into the queue again after
``timerRollWindowSlot`` slots, so that its record is never much older than that.

A message is due at the begin of the first slot that is not before its time, so never early and up
to ``timerPrecisionMs`` late. Before a slot is read, everything that was put before is on the wheel:
so a recall that was acknowledged is heeded, and messages are delivered in the order of their slots,
and within a slot in the order in which they were sent.

A slave delivers nothing: its timer follows its master's (`TimedMessages.follow`), so that the slave
goes on there as a master, or acts for it. How far that was counts when all that the master had put
by then is here. A message goes on the wheel, or counts as delivered, when the master's timer has
moved on since it had it on its own wheel: until then it may be there in a later slot than it should
be. Where a message rolls depends on when it was put, so that it is in one slot on both.

A master that comes back goes on where the slave is that acted for it (`TimedMessages.take_back`):
what that had not is placed again. What went on since, the log says (``delivered``). `Delivering`
has a broker deliver as long as it is its turn.

Source: upstream ``HookUtils#handleScheduleMessage``, ``TimerMessageStore``.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Generator
from random import Random
from typing import Final, NamedTuple

from firearrow.broker.context import BrokerContext
from firearrow.broker.delivered import DeliveredTimers
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.metrics.tally import DELAY
from firearrow.broker.puts import Draft, draft_of, wait_elsewhere
from firearrow.broker.recalls import Recall, identity_of, recall_by, recall_of
from firearrow.broker.state.settings import Settings
from firearrow.errors import BrokerError, MessageError, PutLater, StoreError
from firearrow.javanumbers import INT_MAX
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type
from firearrow.services import Alarm, Scheduler, Service
from firearrow.store import (
    DELETE,
    NORMAL,
    ROLL,
    WHEEL_SLOTS,
    MessageStore,
    TimedQueue,
    TimerFlush,
    TimerStore,
    TimerUnit,
    ToldProgress,
    due_ms_of,
    timed_message,
)
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import ResponseCode

log = logging.getLogger(__name__)

STEP_MESSAGES: Final = 192  # some 6 ms: requests wait for no longer at a time
STEP_UNITS: Final = 4096  # of a slot that is read
AT_STOP_MAX: Final = 10_000  # messages that a stop puts on the wheel, in some seconds at most
GATHER_SECONDS: Final = 0.1  # messages that came gather for so long before they go on the wheel
RETRY_SECONDS: Final = 0.5  # how soon a full disk is tried again
AHEAD_MS: Final = 3_600_000  # how far ahead the next time is looked for
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

_Steps = Generator[float, None, None]
"""Work in steps: each yields the seconds after which it goes on."""


class MasterTimer(NamedTuple):
    """How far a master's timer was (`ToldProgress`), and where its log ended then or later."""

    read_ms: int
    queue_offset: int
    version: tuple[int, int, int]
    log_end: int


NOT_FOLLOWED: Final = MasterTimer(0, 0, (0, 0, 0), 0)


class TimerRedirection:
    """Has messages with a delivery time wait for it."""

    def __init__(self, settings: Settings, timers: TimerStore, chance: Random) -> None:
        self._settings = settings
        self._timers = timers
        self._chance = chance

    def __call__(self, draft: Draft, now_ms: int) -> None:
        """Look at a draft that is about to be put; BrokerError if its time can't be."""
        found = draft.properties
        if found.keys().isdisjoint(properties.DELIVERY_TIMES):
            return
        if draft.topic == names.TIMER_TOPIC or transaction_type(draft.sys_flag) not in (
            TRANSACTION_NONE,
            TRANSACTION_COMMIT,
        ):
            return
        if _has_delay_level(found) or properties.TIMER_OUT_MS in found:
            return
        deliver_ms = _deliver_ms(found, now_ms)
        deletes = properties.TIMER_DELETE_UNIQUE_KEY in found
        slot_ms = self.slot_ms(deliver_ms, now_ms, deletes=deletes)
        if slot_ms is not None:
            found[properties.TIMER_OUT_MS] = str(slot_ms)
            wait_elsewhere(draft, names.TIMER_TOPIC, 0)

    def slot_ms(self, deliver_ms: int | None, now_ms: int, *, deletes: bool = False) -> int | None:
        """Give the slot in which a message waits for its time, None if that has come.

        ``deletes``: it recalls another one. Raises BrokerError for a time (None: that could not be
        read) that no message can wait for.
        """
        config = self._settings.store
        if not config.timer_wheel_enable:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        too_late = deliver_ms is not None and deliver_ms - now_ms > config.timer_max_delay_sec * 1000
        if deliver_ms is None or too_late or (deletes and deliver_ms <= now_ms):
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{config.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time should "
                "be bigger than the current time",
            )
        if deliver_ms <= now_ms:
            return None
        slot_ms = self._timers.slot_of(deliver_ms - 1)
        self._control_flow(slot_ms, config)
        return slot_ms

    def _control_flow(self, slot_ms: int, config: StoreConfig) -> None:
        """Refuse some messages for a slot that has very many, and all at twice as many."""
        limit = config.timer_congest_num_each_slot
        if limit == INT_MAX:
            return  # no slot counts further
        slot = self._timers.wheel.get(slot_ms)
        over = 0 if slot is None else slot.number - limit
        # Java: TimerMessageStore#isReject compares the other way round, the fuller the slot the
        # more it takes.
        if over > 0 and self._chance.random() * limit <= over:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current "
                f"value is greater than {limit} and less than {2 * limit}, trigger random flow "
                "control",
            )


def _has_delay_level(found: dict[str, str]) -> bool:
    level = found.get(properties.DELAY_LEVEL, "")
    return _LONG.fullmatch(level) is not None and int(level) > 0


def _deliver_ms(found: dict[str, str], now_ms: int) -> int | None:
    """The time that a message asks for; None if it can't be read."""
    units = (1000, now_ms), (1, now_ms), (1, 0)
    for name, (unit_ms, since_ms) in zip(properties.DELIVERY_TIMES, units, strict=True):
        text = found.get(name)
        if text is not None:
            return since_ms + int(text) * unit_ms if _LONG.fullmatch(text) else None
    return None


def open_timers(store: MessageStore, timers: TimerStore, now_ms: int) -> None:
    """Bring the timer's files in line with the log."""
    timers.open(now_ms, _queue_of(store))


def _queue_of(store: MessageStore) -> TimedQueue:
    end = store.max_queue_offset(names.TIMER_TOPIC, 0)  # has dispatched what is to come into it
    first = store.min_queue_offset(names.TIMER_TOPIC, 0)
    return TimedQueue(store.log_end_offset, first, end, store.record_at)


class TimedMessages(Service):
    """Puts messages on the wheel, and when they are due into their topics; in steps."""

    def __init__(self, context: BrokerContext, flush: TimerFlush, scheduler: Scheduler) -> None:
        super().__init__("timed messages")
        self._store = context.store
        self._timers = context.timers
        self._counts = context.timer_counts
        self._tally = context.stats.tally
        self._puts = context.puts
        self._topics = context.topics
        self._settings = context.settings
        self._clock = context.clock
        self._flush = flush
        self._alarm = Alarm(scheduler, self._turn)
        self._steps: _Steps | None = None
        self._reads_slot = False
        self._has_rolled = False
        self._rolled: Counter[tuple[str, str]] = Counter()
        self._knows_rolled = False
        self._delivered: set[int] | None = None  # by their physical offsets, before this began
        self._recalled: set[Recall] = set()  # by what is not on the wheel yet
        self._recalls_end = 0  # up to which queue offset that is known
        self._placed_ms = 0  # what was put before this time is on the wheel
        self._late_ms = 0  # the earliest time of what is late; 0 at a start, which can't know it
        self._runs = False
        self._gathers = False  # the alarm is set for the first of those that came since
        self._trouble: str | None = None
        acts = self._settings.broker.enable_slave_acting_master  # only when it is its turn
        self._follows = context.replicas.is_slave or acts
        self._check: MasterTimer | None = None  # to be followed when all of it is here
        self._followed = NOT_FOLLOWED
        self._followed_end = 0  # up to here the queue is on the wheel of the master for sure

    async def start(self) -> None:
        """Begin with what is due already."""
        self._runs = True
        self._begin()

    def _begin(self) -> None:
        self._recalled.clear()
        self._rolled.clear()
        self._knows_rolled = False
        self._recalls_end = self._placed_ms = self._late_ms = 0
        self._delivered = None
        self._alarm.set(0)

    async def stop(self) -> None:
        """Finish the slot that is being read, so that nothing of it is delivered twice; then put on
        the wheel what came last, unless that takes too long."""
        self._runs = self._gathers = False
        await self._finish()

    async def _finish(self) -> None:
        self._alarm.cancel()
        steps = self._steps
        while steps is not None and self._reads_slot:
            if next(steps, None) != 0.0 and not await self._puts.settled():
                break
        self._steps = None
        if self._reads_slot:
            log.warning("messages may be delivered again: some of their time could not be put")
        self._reads_slot = False
        self._store.catch_up()
        if not self._settings.store.timer_stop_enqueue and self._behind() <= AT_STOP_MAX:
            # Java: TimerMessageStore#doEnqueue delivers what is late and not on the wheel in any
            # order: an acknowledgement before what it acknowledges, which comes again then.
            for _ in self._place_all(self._timers.slot_of(self._clock.now_ms())):
                continue

    def go_on(self) -> None:
        """Look again at what could not be put before."""
        if self._runs:
            self._alarm.set(0)

    @property
    def trouble(self) -> str | None:
        """Why messages that are due can't be put."""
        return self._trouble

    def waits(self, message: WaitsElsewhere) -> None:
        """A message was put that may wait for its time."""
        if self._gathers or message.topic != names.TIMER_TOPIC:
            return
        if self._runs and self._steps is None:
            self._alarm.set_earlier(GATHER_SECONDS)
            self._gathers = True

    # --- whose turn it is ---

    def lead(self) -> None:
        """Deliver from now on what is due."""
        self._check, self._follows = None, False
        if self._runs:
            self._begin()

    async def rest(self) -> None:
        """Deliver no longer, and follow whoever does; returns when the last slot is delivered."""
        runs, self._runs = self._runs, False
        self._gathers = False
        await self._finish()
        self._runs = runs
        self._follows, self._followed, self._followed_end = True, NOT_FOLLOWED, 0
        timers = self._timers
        told_offset = timers.told_offset(timers.progress)
        if told_offset < timers.progress.queue_offset:  # who leads now has it in another slot
            read_ms = timers.progress.read_ms
            try:
                self._go_on_from(ToldProgress(read_ms, told_offset, timers.version))
            except OSError as error:
                self._stuck(error)

    def take_back(self, told: ToldProgress) -> None:
        """On a master that comes back: go on where a slave is that acted for it, if it is ahead.

        Raises StoreError or OSError.
        """
        if told.read_ms > self._timers.progress.read_ms:
            self._go_on_from(told)

    def _go_on_from(self, told: ToldProgress) -> None:
        store, timers = self._store, self._timers
        queue = _queue_of(store)
        start = max(told.queue_offset, queue.first_offset)
        first = next(store.iterate_from(names.TIMER_TOPIC, 0, start, 1), None)
        unhandled = store.log_end_offset if first is None else first.physical_offset
        with self._flush.paused():
            timers.go_on_from(told, self._clock.now_ms(), queue, unhandled)

    def follow(self, check: MasterTimer) -> None:
        """On a slave: be as far as the master's timer was."""
        if self._follows and self._check is None:  # else one is still waited for
            self._check = check
            if self._runs and self._steps is None:
                self._alarm.set_earlier(0)

    # --- when ---

    def _turn(self) -> None:
        """Take a step, and plan the next one."""
        self._gathers = False
        if self._steps is None:
            self._steps = self._work()
        seconds = RETRY_SECONDS
        try:
            found = next(self._steps, None)
            if found is None:
                self._steps, found = None, self._seconds_left()
            seconds = found
        except BaseException as error:
            self._steps, self._trouble = None, f"{type(error).__name__}: {error}"
            raise
        finally:
            if self._runs and seconds >= 0:
                self._alarm.set(seconds)

    def _seconds_left(self) -> float:
        """How long there is nothing to do; -1 as long as nobody wakes it."""
        if self._follows:
            return -1.0 if self._check is None and not self._behind() else GATHER_SECONDS
        timers, config = self._timers, self._settings.store
        now_ms = self._clock.now_ms()
        waits = timers.has_units and not config.timer_stop_dequeue
        if waits and timers.progress.read_ms < timers.slot_of(now_ms):
            return RETRY_SECONDS if self._trouble else 0.0
        # A slot is over when the next begins.
        slot_seconds = (timers.slot_of(now_ms) + timers.precision_ms - now_ms) / 1000
        if self._behind() or self._store.behind_bytes:
            return RETRY_SECONDS if self._trouble else min(GATHER_SECONDS, slot_seconds)
        if not waits:
            return -1.0
        at, end_ms = timers.progress.read_ms, timers.slot_of(now_ms + AHEAD_MS)
        # Until then `delivered_ms` can't tell, and who asks waits for it.
        found = at <= timers.late_slot_ms
        while not found and at < end_ms:
            at, found = timers.wheel.next_used(at, end_ms)
        return max(at + timers.precision_ms - now_ms, 1) / 1000

    def _behind(self) -> int:
        """How many messages are not on the wheel yet."""
        return max(self._queue_end() - self._timers.progress.queue_offset, 0)

    def _queue_end(self) -> int:
        """Up to where the timer's queue goes on the wheel."""
        if not self._follows:
            return self._store.max_queue_offset(names.TIMER_TOPIC, 0)
        # As far as it is dispatched: to dispatch all at once stops a slave that copies a lot.
        queue = self._store.find_queue(names.TIMER_TOPIC, 0)
        return min(queue.max_offset if queue else 0, self._followed_end)

    # --- what ---

    def _work(self) -> _Steps:
        """Bring the wheel up to the present, and deliver what is due by then."""
        config = self._settings.store
        now_ms = self._timers.slot_of(self._clock.now_ms())
        if self._follows:
            yield from self._follow_check()
            if not config.timer_stop_enqueue:
                yield from self._place_all(now_ms)
            return
        if not config.timer_stop_enqueue:
            end = self._store.max_queue_offset(names.TIMER_TOPIC, 0)
            yield from self._place_all(now_ms)
            if self._timers.progress.queue_offset >= end:
                self._placed_ms = now_ms
            yield from self._read_recalls()
        if not config.timer_stop_dequeue:
            yield from self._read_delivered()
            yield from self._deliver_before(now_ms)

    def _follow_check(self) -> _Steps:
        """Take over how far the master's timer was, if all that it had put is here."""
        check, store, timers = self._check, self._store, self._timers
        if check is None or store.dispatched_offset < check.log_end:
            return
        if check.queue_offset and not self._has_files():
            return
        before, self._followed = self._followed, check
        if before.read_ms < check.read_ms:
            self._followed_end = timers.placed_again_before = before.queue_offset
        end_ms, at = timers.slot_of(check.read_ms), timers.progress.read_ms
        while at < end_ms:
            at, is_used = timers.wheel.next_used(at, end_ms)
            if is_used:
                yield from self._count_off(at)
                at += timers.precision_ms
            yield 0.0
        timers.version = check.version
        if end_ms != timers.progress.read_ms:
            timers.was_read(end_ms)
            self._flush.moved()
        self._check = None

    def _has_files(self) -> bool:
        """Make the timer's files, where it is to be kept how far it is."""
        try:
            self._timers.make_files()
        except OSError as error:
            self._stuck(error)
            return False
        self._trouble = None
        return True

    def _count_off(self, slot_ms: int) -> _Steps:
        """Count the units of a slot as delivered."""
        for positions in self._timers.chain(slot_ms, STEP_MESSAGES):
            for position in positions:
                unit = self._timers.units.unit(position)
                assert unit is not None, "the chain led there"
                self._timers.count(unit.topic_hash, 1 if unit.magic & DELETE else -1)
            yield 0.0

    def _place_all(self, now_ms: int) -> _Steps:
        """Put on the wheel what is in the timer's queue by now."""
        store, timers = self._store, self._timers
        yield from self._read_rolled()
        end = self._queue_end()
        if timers.progress.queue_offset < store.min_queue_offset(names.TIMER_TOPIC, 0):
            timers.pass_over(store.min_queue_offset(names.TIMER_TOPIC, 0) - 1)
        while timers.progress.queue_offset < end:
            first = timers.progress.queue_offset
            timers.pass_spared()
            start = timers.progress.queue_offset
            most = max(min(STEP_MESSAGES, end - start), 0)
            for entry in store.iterate_from(names.TIMER_TOPIC, 0, start, most):
                if entry.queue_offset < timers.progress.queue_offset or timers.pass_spared():
                    continue
                record = store.record_at(entry.physical_offset)
                view = None if record is None else timed_message(record)
                if view is None:
                    log.error(
                        "message that waits for its time is passed over: it can't be read",
                        extra={"queue_offset": entry.queue_offset},
                    )
                    timers.pass_over(entry.queue_offset)
                elif not self._place(view, entry.queue_offset, now_ms):
                    return
            if timers.progress.queue_offset == first:
                return
            self._flush.moved()
            yield 0.0

    def _read_rolled(self) -> _Steps:
        """Count which messages have rolled already, of those that may be placed again: what they
        rolled into is behind them in the queue."""
        store, at = self._store, self._timers.progress.queue_offset
        if self._knows_rolled or at >= self._timers.placed_again_before:
            return
        self._rolled.clear()
        end = store.max_queue_offset(names.TIMER_TOPIC, 0)
        while at < end:
            first = at
            for entry in store.iterate_from(names.TIMER_TOPIC, 0, first, STEP_MESSAGES):
                record = store.record_at(entry.physical_offset)
                view = None if record is None else timed_message(record)
                if view is not None and properties.TIMER_ROLL_TIMES in view.properties:
                    self._rolled[identity_of(view)] += 1
                at = entry.queue_offset + 1
            if at == first:
                break
            yield 0.0
        self._knows_rolled = True

    def _has_rolled_already(self, view: MessageView, queue_offset: int) -> bool:
        """Whether a message is behind in the queue once more."""
        if not self._rolled or queue_offset >= self._timers.placed_again_before:
            return False
        config, key = self._settings.store, identity_of(view)
        due_ms = due_ms_of(view)
        assert due_ms is not None, "`timed_message` gives none without"
        rolls = _unit_of(due_ms - view.store_timestamp_ms, config)[1] & ROLL
        if not rolls or view.unique_key is None or not self._rolled[key]:
            return False
        self._rolled[key] -= 1
        return True

    def _read_delivered(self) -> _Steps:
        """Note what went on already of the slots that are read next, once for each beginning."""
        if self._delivered is None:
            look = DeliveredTimers(self._store, self._timers)
            for _ in look.learn():
                yield 0.0
            self._delivered = look.found

    def _read_recalls(self) -> _Steps:
        """Note which messages are recalled by those that could not be put on the wheel yet, be it
        for want of room: their slots may be read before."""
        store, end = self._store, self._store.max_queue_offset(names.TIMER_TOPIC, 0)
        if self._timers.progress.queue_offset >= end:
            self._recalled.clear()
        self._recalls_end = max(self._recalls_end, self._timers.progress.queue_offset)
        while self._recalls_end < end:
            first = self._recalls_end
            for entry in store.iterate_from(names.TIMER_TOPIC, 0, first, STEP_MESSAGES):
                record = store.record_at(entry.physical_offset)
                view = None if record is None else timed_message(record)
                if view is not None and properties.TIMER_DELETE_UNIQUE_KEY in view.properties:
                    self._recalled.add(recall_by(view, self._settings))
                self._recalls_end = entry.queue_offset + 1
            if self._recalls_end == first:
                return
            yield 0.0

    def _place(self, view: MessageView, queue_offset: int, now_ms: int) -> bool:
        """Put a message on the wheel; False if that must wait."""
        timers = self._timers
        due_ms = due_ms_of(view)
        assert due_ms is not None, "`timed_message` gives none without"
        if due_ms < timers.progress.read_ms and queue_offset < timers.placed_again_before:
            timers.pass_over(queue_offset)
            return True
        if self._has_rolled_already(view, queue_offset):
            timers.pass_over(queue_offset)
            return True
        delay_ms, magic = self._delay_of(due_ms, view.store_timestamp_ms, now_ms)
        if properties.TIMER_DELETE_UNIQUE_KEY in view.properties:
            magic |= DELETE
        if now_ms + delay_ms > timers.last_ms:  # nothing was read for a week or more
            if timers.last_ms <= now_ms:  # until what is read meanwhile is on the disk
                self._flush.moved()
                return False
            delay_ms, magic = timers.last_ms - now_ms, magic | ROLL
        topic = view.properties.get(properties.REAL_TOPIC, "")
        topic_hash = names.java_hash(topic)
        self._counts.note(topic_hash, topic)
        unit = TimerUnit(-1, magic, now_ms, delay_ms, view.physical_offset, view.store_size, topic_hash)
        try:
            self._note_late(due_ms)
            timers.place(unit, queue_offset)
        except OSError as error:
            self._stuck(error)
            return False
        self._trouble = None
        if self._tally is not None:
            self._tally.timed_in.add(topic)
            ahead_ms = due_ms - view.born_timestamp_ms
            self._tally.delays.add(topic, max(0, ahead_ms // 1000))
        return True

    def _delay_of(self, due_ms: int, stored_ms: int, now_ms: int) -> tuple[int, int]:
        """How far ahead of now a message goes on the wheel, and the bits of its unit."""
        delay_ms, magic = _unit_of(due_ms - stored_ms, self._settings.store)
        if magic & ROLL and stored_ms + delay_ms < self._timers.progress.read_ms:
            return _unit_of(due_ms - now_ms, self._settings.store)  # it should have rolled already
        return stored_ms + delay_ms - now_ms, magic

    def _note_late(self, due_ms: int) -> None:
        """Note that a message is delivered later than it should be, if it is."""
        read_ms, has_late = self._timers.progress.read_ms, self._timers.late_slot_ms
        if due_ms < read_ms:
            self._late_ms = min(self._late_ms, due_ms) if read_ms <= has_late else due_ms

    def _deliver_before(self, now_ms: int) -> _Steps:
        """Deliver all slots before a time."""
        timers = self._timers
        while (read_ms := timers.progress.read_ms) < now_ms:
            slot_ms, is_used = timers.wheel.next_used(read_ms, now_ms)
            if is_used:
                self._reads_slot = True
                yield from self._deliver(slot_ms)
                slot_ms += timers.precision_ms
                self._reads_slot = False
                self._flush.moved()
            timers.was_read(slot_ms)
            yield 0.0
            if self._has_rolled and not self._settings.store.timer_stop_enqueue:
                # What rolled may be due before now, and must be there when its slot is read.
                self._has_rolled = False
                yield from self._place_all(now_ms)

    def _deliver(self, slot_ms: int) -> _Steps:
        """Put the messages of a slot, oldest first, but those that another one there deletes."""
        positions = array("q")
        for piece in self._timers.chain(slot_ms, STEP_UNITS):
            positions += piece
            yield 0.0
        deletes = set(self._recalled)
        normal = array("q")
        for number, position in enumerate(positions):
            unit = self._timers.units.unit(position)
            assert unit is not None, "the chain led there"
            if unit.magic & DELETE and not unit.magic & ROLL:
                view = self._message_of(unit)
                if view is not None:
                    deletes.add(recall_by(view, self._settings))
                self._timers.count(unit.topic_hash, 1)
            else:
                normal.append(position)
            if number % STEP_MESSAGES == 0:
                yield 0.0
        for number, position in enumerate(reversed(normal)):
            unit = self._timers.units.unit(position)
            assert unit is not None, "the chain led there"
            yield from self._deliver_unit(unit, deletes)
            if number % STEP_MESSAGES == STEP_MESSAGES - 1:
                yield 0.0

    def _deliver_unit(self, unit: TimerUnit, deletes: set[Recall]) -> _Steps:
        view = self._message_of(unit)
        goes_on = unit.physical_offset not in (self._delivered or ())
        if goes_on and view is not None and not self._is_deleted(view, deletes):
            while True:
                try:
                    self._put(view, unit)
                    self._trouble = None
                    break
                except PutLater:
                    yield RETRY_SECONDS
                except (OSError, StoreError) as error:
                    # Java: TimerDequeuePutMessageService gives up after three tries.
                    self._stuck(error)
                    yield RETRY_SECONDS
        self._timers.count(unit.topic_hash, 1 if unit.magic & DELETE else -1)

    def _stuck(self, error: Exception) -> None:
        if self._trouble is None:
            log.error("messages that are due wait: they can't be put", extra={"error": error})
        self._trouble = str(error)

    def _message_of(self, unit: TimerUnit) -> MessageView | None:
        """The message of a unit; None, with a line of log, if the log has none there."""
        record = self._store.record_at(unit.physical_offset)
        view = None if record is None else timed_message(record)
        deletes = view is not None and properties.TIMER_DELETE_UNIQUE_KEY in view.properties
        is_same = view is not None and view.store_size == unit.record_size
        if view is None or not is_same or deletes != bool(unit.magic & DELETE):
            log.error(
                "message that is due can't be delivered: the CommitLog has it no more",
                extra={"physical_offset": unit.physical_offset},
            )
            return None
        return view

    def _is_deleted(self, view: MessageView, deletes: set[Recall]) -> bool:
        if not deletes or view.unique_key is None:
            return False
        return recall_of(view, self._settings) in deletes

    def _put(self, view: MessageView, unit: TimerUnit) -> None:
        """Put a message into its topic, or to roll it into the timer's queue again."""
        found = dict(view.properties)
        draft = draft_of(view)
        draft.prepared_transaction_offset = view.physical_offset
        if not unit.magic & ROLL:
            draft.topic = found.get(properties.REAL_TOPIC, "")
            draft.queue_id = self._queue_id(draft.topic, found.get(properties.REAL_QUEUE_ID, ""))
        now_ms = self._clock.now_ms()
        noted = found | {properties.TIMER_ENQUEUE_MS: str(unit.written_ms), properties.TIMER_DEQUEUE_MS: str(now_ms)}
        put = self._puts.deliver
        if unit.magic & ROLL:
            times = found.get(properties.TIMER_ROLL_TIMES, "")
            rolled = int(times) if _LONG.fullmatch(times) else 0
            noted[properties.TIMER_ROLL_TIMES] = str(rolled + 1)
            self._has_rolled = True
            put = self._puts.put
        # Notes may make it too large, and of LMQs there may be too many by now. Java: doPut drops
        # it then.
        alone = {name: found[name] for name in found if name != properties.INNER_MULTI_DISPATCH}
        for kept in (noted, found, alone):
            draft.properties = dict(kept)
            try:
                placed = put(draft, now_ms)
            except (MessageError, BrokerError) as error:
                refusal = str(error)
            else:
                if self._tally is not None and not unit.magic & ROLL:
                    self._tally.timed_out.add(draft.topic)
                    size = placed.end_offset - placed.physical_offset
                    self._tally.put(draft.topic, DELAY, size)
                return
        log.error(
            "message that is due is not delivered: it is refused",
            extra={"topic": draft.topic, "queue_id": draft.queue_id, "error": refusal},
        )

    def _queue_id(self, topic: str, text: str) -> int:
        """The queue that a message is for, or one of those that its topic still has."""
        queue_id = int(text) if _LONG.fullmatch(text) else 0
        config = self._topics.get(topic)
        count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        if config is None or 0 <= queue_id < count:
            return queue_id
        return queue_id % max(config.write_queue_nums, 1)

    def delivered_ms(self) -> int:
        """Give a time up to which queues have all messages that were put for a time: what is put
        from now on may be for an earlier one. 0 if that is not known."""
        timers, now_ms = self._timers, self._timers.slot_of(self._clock.now_ms())
        if self._behind():
            now_ms = min(now_ms, self._placed_ms)
        if self._store.behind_bytes:
            return 0
        if timers.pending and timers.progress.read_ms <= timers.late_slot_ms:
            now_ms = min(now_ms, self._late_ms)
        return min(timers.wheel.next_used(timers.progress.read_ms, now_ms)[0], now_ms)

    # --- what the store must keep ---

    def let_go(self) -> int | None:
        """Remove what of the timer log is needed no more; return the physical offset of the oldest
        record that still waits for its time, None if none does."""
        timers = self._timers
        oldest = timers.needed_offset()
        timers.drop_files()
        first = max(timers.saved.queue_offset, self._store.min_queue_offset(names.TIMER_TOPIC, 0))
        for entry in self._store.iterate_from(names.TIMER_TOPIC, 0, first, 1):
            oldest = entry.physical_offset if oldest is None else min(oldest, entry.physical_offset)
        return oldest


class Delivering(Service):
    """Has what is due delivered while it runs."""

    def __init__(self, timed: TimedMessages) -> None:
        super().__init__("delivery by time")
        self._timed = timed

    async def start(self) -> None:
        """Deliver from where the timer is."""
        self._timed.lead()

    async def stop(self) -> None:
        """Deliver no longer."""
        await self._timed.rest()

    def go_on(self) -> None:
        """Look again at what could not be put before."""
        self._timed.go_on()


def _unit_of(delay_ms: int, config: StoreConfig) -> tuple[int, int]:
    """How far ahead a message goes on the wheel, and the bits of its unit.

    Where it is too far, it rolls: it comes back after a window, or half of one if little is left.
    """
    slots = window_slots(config)
    precision_ms = config.timer_precision_ms
    window_ms = slots * precision_ms
    if delay_ms < window_ms:
        return delay_ms, NORMAL
    if delay_ms - window_ms < slots // 3 * precision_ms:
        return slots // 2 * precision_ms, NORMAL | ROLL
    return window_ms, NORMAL | ROLL


def window_slots(config: StoreConfig) -> int:
    """After how many slots a message rolls; a number that the wheel has no room for means the
    largest one."""
    most = WHEEL_SLOTS // 2 - 60
    slots = config.timer_roll_window_slot
    return slots if 2 <= slots <= most else most
