"""Timed messages: redirect a message with a delivery time, and deliver it when its time has come.

`TimerRedirection` puts a message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS into ``rmq_sys_wheel_timer``.
`TimedMessages` places the messages of that queue on the wheel (``store.timers``), and puts due messages into their
topics. A message that is due far ahead rolls: after ``timerRollWindowSlot`` slots it is put into the queue again, so
that its record is never much older than that.

A message is due at the begin of the first slot that is not before its time: never early, and up to ``timerPrecisionMs``
late. Before a slot is read, all messages put before are on the wheel. So an acknowledged recall has its effect, and
messages are delivered in the order of their slots, and within a slot in the order of their sends.

A slave delivers nothing. Its timer follows its master's (`TimedMessages.follow`), so that the slave can go on there as
a master, or act for it:

* A position of the master's timer counts when the slave's log has all records that the master had then.
* A message goes on the wheel, or counts as delivered, when the master's timer has moved on after it had that message on
  its own wheel. Until then the message may be in a later slot there than it should be.
* The put time of a message decides where it rolls, so that it is in the same slot on both.

A master that comes back goes on where the slave is that acted for it (`TimedMessages.take_back`), and places again all
messages that the slave had not placed. It finds later deliveries in the log (``delivered``). The service `Delivering`
starts and ends a broker's deliveries.

Source: RocketMQ ``HookUtils#handleScheduleMessage``, ``TimerMessageStore``.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Generator
from random import Random
from typing import Final, NamedTuple

import msgspec

from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.redelivery import TimerDeliveries
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.metrics.tally import DELAY
from firearrow.broker.sending.puts import UnstoredMessage, draft_of, wait_elsewhere
from firearrow.broker.state.settings import Settings
from firearrow.broker.timing.counts import TimerCounts
from firearrow.broker.timing.recalls import Recall, identity_of, recall_by, recall_of
from firearrow.broker.turns import RoundService, Steps
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.javanumbers import INT_MAX
from firearrow.logs import Log
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type
from firearrow.services import Scheduler, Service
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

log: Final = Log(__name__)

STEP_MESSAGES: Final = 192  # some 6 ms: requests wait for no longer at a time
STEP_UNITS: Final = 4096  # of a slot that is read
AT_STOP_MAX: Final = 10_000  # messages that a stop places on the wheel, in some seconds at most
GATHER_SECONDS: Final = 0.1  # from the arrival of a message until it is placed with those behind it
RETRY_SECONDS: Final = 0.5  # until a full disk is tried again
AHEAD_MS: Final = 3_600_000  # limit of the search for the next used slot
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class MasterTimer(NamedTuple):
    """Progress of a master's timer (`ToldProgress`), and the end of its log then or later."""

    read_ms: int
    queue_offset: int
    version: tuple[int, int, int]
    log_end: int


NOT_FOLLOWED: Final = MasterTimer(0, 0, (0, 0, 0), 0)


class _Following(msgspec.Struct):
    """A slave's view of its master's timer."""

    check: MasterTimer | None = None  # reached when the log goes to the end of the master's log then
    reached: MasterTimer = NOT_FOLLOWED
    queue_end: int = 0  # the messages before it are surely on the master's wheel


_Delivery = Generator[float | Exception, None, bool]
"""Steps that put messages, and return whether any of them has rolled."""


class _TimerFacts(msgspec.Struct):
    """Facts that a timer has read from the store since it began to lead or to follow."""

    recalled: set[Recall] = msgspec.field(default_factory=set)  # by messages that are not on the wheel yet
    recalls_end: int = 0  # end of the recalls that were read, as a queue offset
    rolled: Counter[tuple[str, str]] | None = None  # messages that have rolled into the queue, None before reading it
    delivered: set[int] | None = None  # physical offsets of messages delivered before, None before reading the log
    placed_ms: int = 0  # messages put before this time are on the wheel
    late_ms: int = 0  # the earliest due time of late messages; 0 after a start, which can't know it


class TimerRedirection:
    """Redirect messages with a delivery time into the timer's queue."""

    def __init__(self, settings: Settings, timers: TimerStore, chance: Random) -> None:
        self._settings = settings
        self._timers = timers
        self._chance = chance

    def __call__(self, draft: UnstoredMessage, now_ms: int) -> None:
        """Redirect a draft that has a delivery time; BrokerError for an impossible time."""
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
        """Return the slot where a message waits for its time, None if the time has come.

        ``deletes`` says that the message recalls another one. Raises BrokerError for a time that no message can wait
        for; None stands for a text that is no time.
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
        """Refuse some messages for a slot above the limit, and all of them above twice the limit."""
        limit = config.timer_congest_num_each_slot
        if limit == INT_MAX:
            return  # no slot counts further
        slot = self._timers.wheel.get(slot_ms)
        over = 0 if slot is None else slot.number - limit
        # Java: TimerMessageStore#isReject compares the other way round: it takes more, the fuller the slot is.
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
    """Return the delivery time in a message's properties; None if it can't be read."""
    units = (1000, now_ms), (1, now_ms), (1, 0)
    for name, (unit_ms, since_ms) in zip(properties.DELIVERY_TIMES, units, strict=True):
        text = found.get(name)
        if text is not None:
            return since_ms + int(text) * unit_ms if _LONG.fullmatch(text) else None
    return None


def open_timers(store: MessageStore, timers: TimerStore, now_ms: int) -> None:
    """Open the timer's files, and bring them in line with the log."""
    timers.open(now_ms, _queue_of(store))


def _queue_of(store: MessageStore) -> TimedQueue:
    end = store.max_queue_offset(names.TIMER_TOPIC, 0)  # dispatches the rest of the log first
    first = store.min_queue_offset(names.TIMER_TOPIC, 0)
    return TimedQueue(store.log_end_offset, first, end, store.record_at)


class TimedMessages(RoundService):
    """Place messages on the wheel, and put due ones into their topics; or follow a master that does."""

    def __init__(
        self, context: BrokerContext, timers: TimerStore, counts: TimerCounts, flush: TimerFlush, scheduler: Scheduler
    ) -> None:
        super().__init__("timed messages", scheduler, RETRY_SECONDS)
        self._store = context.store
        self._timers = timers
        self._counts = counts
        self._tally = context.stats.tally
        self._puts = context.puts
        self._topics = context.topics
        self._settings = context.settings
        self._clock = context.clock
        self._flush = flush
        self._known = _TimerFacts()
        self._no_room: OSError | None = None  # for a unit of the wheel
        self._is_in_slot = False  # some messages of a slot are delivered, and others are not
        acts = self._settings.broker.enable_slave_acting_master  # leads only when `Delivering` runs
        self._following = _Following() if context.replicas.is_slave or acts else None

    async def start(self) -> None:
        """Begin with messages that are due already."""
        self._known = _TimerFacts()
        await super().start()

    async def stop(self) -> None:
        """Finish the slot in delivery, so that none of its messages is delivered twice.

        Then place the last messages on the wheel, unless that takes too long.
        """
        await super().stop()
        await self._finish()

    async def _finish(self) -> None:
        steps = self._steps
        while steps is not None and self._is_in_slot:
            if next(steps, None) != 0.0 and not await self._puts.settled():
                break
        self._steps = None
        if self._is_in_slot:
            log.warning("messages may be delivered again: others of the same time could not be put")
        self._is_in_slot = False
        self._store.catch_up()
        if not self._settings.store.timer_stop_enqueue and self._behind() <= AT_STOP_MAX:
            # Java: TimerMessageStore#doEnqueue delivers late messages that are not on the wheel in any order: an
            # acknowledgement before its checkpoint, whose messages are redelivered then.
            for _ in self._place_all(self._timers.slot_of(self._clock.now_ms())):
                continue

    def waits(self, message: WaitsElsewhere) -> None:
        """Place a message on the wheel soon, if it waits for its time."""
        if message.topic == names.TIMER_TOPIC and self._steps is None:
            self._wake(GATHER_SECONDS)

    # --- lead or follow ---

    def lead(self) -> None:
        """Deliver due messages from now on."""
        self._following = None
        if self._is_running:
            self._known = _TimerFacts()
            self._alarm.set(0)

    async def rest(self) -> None:
        """Deliver no further slot, and follow the broker that does; return when the present slot is finished."""
        was_running = self._is_running
        await self.stop()
        self._is_running = was_running
        self._following = _Following()
        timers = self._timers
        told_offset = timers.told_offset(timers.progress)
        if told_offset < timers.progress.queue_offset:  # the broker that leads has these in another slot
            read_ms = timers.progress.read_ms
            try:
                self._go_on_from(ToldProgress(read_ms, told_offset, timers.version))
            except OSError as error:
                self._note_trouble(str(error))

    def take_back(self, told: ToldProgress) -> None:
        """Go on where the slave is that acted for this master, if the slave is ahead.

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
        """On a slave, go on to the progress of the master's timer."""
        following = self._following
        if following is not None and following.check is None:  # otherwise the log has not reached the last one
            following.check = check
            if self._steps is None:
                self._wake(0)

    # --- rounds ---

    def _after_round(self) -> float:
        following = self._following
        if following is not None:
            return math.inf if following.check is None and not self._behind() else GATHER_SECONDS
        timers, config = self._timers, self._settings.store
        now_ms = self._clock.now_ms()
        waits = timers.has_units and not config.timer_stop_dequeue
        if waits and timers.progress.read_ms < timers.slot_of(now_ms):
            return 0.0
        # A slot is over when the next begins.
        slot_seconds = (timers.slot_of(now_ms) + timers.precision_ms - now_ms) / 1000
        if self._behind() or self._store.behind_bytes:
            return min(GATHER_SECONDS, slot_seconds)
        if not waits:
            return math.inf
        at, end_ms = timers.progress.read_ms, timers.slot_of(now_ms + AHEAD_MS)
        # At a late slot `delivered_ms` can't tell the time until that is read, and its callers wait for it.
        found = at <= timers.late_slot_ms
        while not found and at < end_ms:
            at, found = timers.wheel.next_used(at, end_ms)
        return max(at + timers.precision_ms - now_ms, 1) / 1000

    def _behind(self) -> int:
        """Number of messages that must go on the wheel and are not there yet."""
        return max(self._queue_end() - self._timers.progress.queue_offset, 0)

    def _queue_end(self) -> int:
        """End of the messages that must go on the wheel, as a queue offset."""
        if self._following is None:
            return self._store.max_queue_offset(names.TIMER_TOPIC, 0)
        # Only messages that are dispatched: to dispatch all at once stops a slave that copies a lot.
        queue = self._store.find_queue(names.TIMER_TOPIC, 0)
        return min(queue.max_offset if queue else 0, self._following.queue_end)

    def _round(self) -> Steps:
        """Place all messages on the wheel that were put until now, and deliver the due ones."""
        self._no_room = None
        now_ms = self._timers.slot_of(self._clock.now_ms())
        if self._following is None:
            yield from self._place_and_deliver(now_ms)
        else:
            yield from self._follow_check(self._following)
            if not self._settings.store.timer_stop_enqueue:
                yield from self._place_all(now_ms)
        if self._no_room is not None:
            raise self._no_room

    def _place_and_deliver(self, now_ms: int) -> Steps:
        config = self._settings.store
        if not config.timer_stop_enqueue:
            end = self._store.max_queue_offset(names.TIMER_TOPIC, 0)
            yield from self._place_all(now_ms)
            if self._timers.progress.queue_offset >= end:
                self._known.placed_ms = now_ms
            yield from self._read_recalls()
        if not config.timer_stop_dequeue:
            yield from self._read_delivered()
            yield from self._deliver_before(now_ms)

    def _follow_check(self, following: _Following) -> Steps:
        """Go on to the progress of the master's timer, if the log reaches to the end of its log then."""
        check, store, timers = following.check, self._store, self._timers
        if check is None or store.dispatched_offset < check.log_end:
            return
        if check.queue_offset:
            timers.make_files()  # they keep the progress
        before, following.reached = following.reached, check
        if before.read_ms < check.read_ms:
            following.queue_end = timers.placed_again_before = before.queue_offset
        end_ms, at = timers.slot_of(check.read_ms), timers.progress.read_ms
        while at < end_ms:
            at, is_used = timers.wheel.next_used(at, end_ms)
            if is_used:
                yield from self._count_off(at)
                at += timers.precision_ms
            yield 0.0
        timers.version = check.version
        if end_ms != timers.progress.read_ms:
            timers.follow(end_ms)
            self._flush.moved()
        following.check = None

    def _count_off(self, slot_ms: int) -> Steps:
        """Count the units of a slot as delivered."""
        for positions in self._timers.chain(slot_ms, STEP_MESSAGES):
            for position in positions:
                unit = self._timers.units.unit(position)
                assert unit is not None, "the chain led there"
                self._timers.count(unit.topic_hash, 1 if unit.magic & DELETE else -1)
            yield 0.0

    def _place_all(self, now_ms: int) -> Steps:
        """Place the messages of the timer's queue on the wheel, up to its present end."""
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
                        "message that waits for its time is skipped: it can't be read",
                        extra={"queue_offset": entry.queue_offset},
                    )
                    timers.pass_over(entry.queue_offset)
                elif not self._place(view, entry.queue_offset, now_ms):
                    return
            if timers.progress.queue_offset == first:
                return
            self._flush.moved()
            yield 0.0

    def _read_rolled(self) -> Steps:
        """Count the messages that have rolled already, among those that may be placed again.

        Their new records are behind them in the queue.
        """
        store, at = self._store, self._timers.progress.queue_offset
        if self._known.rolled is not None or at >= self._timers.placed_again_before:
            return
        rolled: Counter[tuple[str, str]] = Counter()
        end = store.max_queue_offset(names.TIMER_TOPIC, 0)
        while at < end:
            first = at
            for entry in store.iterate_from(names.TIMER_TOPIC, 0, first, STEP_MESSAGES):
                record = store.record_at(entry.physical_offset)
                view = None if record is None else timed_message(record)
                if view is not None and properties.TIMER_ROLL_TIMES in view.properties:
                    rolled[identity_of(view)] += 1
                at = entry.queue_offset + 1
            if at == first:
                break
            yield 0.0
        self._known.rolled = rolled

    def _has_rolled_already(self, view: MessageView, queue_offset: int) -> bool:
        """Return whether a message has a newer record in the queue."""
        rolled = self._known.rolled
        if not rolled or queue_offset >= self._timers.placed_again_before:
            return False
        config, key = self._settings.store, identity_of(view)
        due_ms = due_ms_of(view)
        assert due_ms is not None, "`timed_message` gives none without"
        rolls = _unit_of(due_ms - view.store_timestamp_ms, config)[1] & ROLL
        if not rolls or view.unique_key is None or not rolled[key]:
            return False
        rolled[key] -= 1
        return True

    def _read_delivered(self) -> Steps:
        """Find the messages of the next slots that were delivered already, once after each begin."""
        if self._known.delivered is None:
            look = TimerDeliveries(self._store, self._timers)
            for _ in look.learn():
                yield 0.0
            self._known.delivered = look.found

    def _read_recalls(self) -> Steps:
        """Read the recalls that are not on the wheel yet, for example for want of room: the slots of the recalled
        messages may be read before."""
        store, known, end = self._store, self._known, self._store.max_queue_offset(names.TIMER_TOPIC, 0)
        if self._timers.progress.queue_offset >= end:
            known.recalled.clear()
        known.recalls_end = max(known.recalls_end, self._timers.progress.queue_offset)
        while known.recalls_end < end:
            first = known.recalls_end
            for entry in store.iterate_from(names.TIMER_TOPIC, 0, first, STEP_MESSAGES):
                record = store.record_at(entry.physical_offset)
                view = None if record is None else timed_message(record)
                if view is not None and properties.TIMER_DELETE_UNIQUE_KEY in view.properties:
                    known.recalled.add(recall_by(view, self._settings))
                known.recalls_end = entry.queue_offset + 1
            if known.recalls_end == first:
                return
            yield 0.0

    def _place(self, view: MessageView, queue_offset: int, now_ms: int) -> bool:
        """Place a message on the wheel; return False if that must wait."""
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
            if timers.last_ms <= now_ms:  # until the slots that are read meanwhile are on the disk
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
            self._no_room = error
            return False
        self._no_room = None
        if self._tally is not None:
            self._tally.timed_in.add(topic)
            ahead_ms = due_ms - view.born_timestamp_ms
            self._tally.delays.add(topic, max(0, ahead_ms // 1000))
        return True

    def _delay_of(self, due_ms: int, stored_ms: int, now_ms: int) -> tuple[int, int]:
        """Return the ms from now to a message's slot, and the bits of its unit."""
        delay_ms, magic = _unit_of(due_ms - stored_ms, self._settings.store)
        if magic & ROLL and stored_ms + delay_ms < self._timers.progress.read_ms:
            return _unit_of(due_ms - now_ms, self._settings.store)  # it should have rolled already
        return stored_ms + delay_ms - now_ms, magic

    def _note_late(self, due_ms: int) -> None:
        """Note the due time of a message that will be delivered late."""
        read_ms, late_slot_ms = self._timers.progress.read_ms, self._timers.late_slot_ms
        if due_ms < read_ms:
            self._known.late_ms = min(self._known.late_ms, due_ms) if read_ms <= late_slot_ms else due_ms

    def _deliver_before(self, now_ms: int) -> Steps:
        """Deliver all slots before a time."""
        timers = self._timers
        while (read_ms := timers.progress.read_ms) < now_ms:
            has_rolled = False
            slot_ms, is_used = timers.wheel.next_used(read_ms, now_ms)
            if is_used:
                self._is_in_slot = True
                has_rolled = yield from self._deliver(slot_ms)
                slot_ms += timers.precision_ms
                self._is_in_slot = False
                self._flush.moved()
            timers.was_read(slot_ms)
            yield 0.0
            if has_rolled and not self._settings.store.timer_stop_enqueue:
                # A message that rolled may be due before now, and must be on the wheel when its slot is read.
                yield from self._place_all(now_ms)

    def _deliver(self, slot_ms: int) -> _Delivery:
        """Put the messages of a slot, oldest first, but not those that another one in the slot deletes.

        Returns whether any of them has rolled.
        """
        positions = array("q")
        for piece in self._timers.chain(slot_ms, STEP_UNITS):
            positions += piece
            yield 0.0
        deletes = set(self._known.recalled)
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
        has_rolled = False
        for number, position in enumerate(reversed(normal)):
            unit = self._timers.units.unit(position)
            assert unit is not None, "the chain led there"
            if (yield from self._deliver_unit(unit, deletes)):
                has_rolled = True
            if number % STEP_MESSAGES == STEP_MESSAGES - 1:
                yield 0.0
        return has_rolled

    def _deliver_unit(self, unit: TimerUnit, deletes: set[Recall]) -> _Delivery:
        """Put the message of a unit, unless it is recalled or was put before; return whether it has rolled."""
        view, has_rolled = self._message_of(unit), False
        is_pending = unit.physical_offset not in (self._known.delivered or ())
        if is_pending and view is not None and not self._is_deleted(view, deletes):
            has_rolled = bool(unit.magic & ROLL)
            while True:
                try:
                    self._put(view, unit)
                    break
                except (OSError, StoreError) as error:
                    # Java: TimerDequeuePutMessageService gives up after three tries.
                    yield error
        self._timers.count(unit.topic_hash, 1 if unit.magic & DELETE else -1)
        return has_rolled

    def _message_of(self, unit: TimerUnit) -> MessageView | None:
        """Return the message of a unit; None, with a line in the log, if the CommitLog no longer has it."""
        record = self._store.record_at(unit.physical_offset)
        view = None if record is None else timed_message(record)
        deletes = view is not None and properties.TIMER_DELETE_UNIQUE_KEY in view.properties
        is_same = view is not None and view.store_size == unit.record_size
        if view is None or not is_same or deletes != bool(unit.magic & DELETE):
            log.error(
                "message that is due can't be delivered: the CommitLog no longer has it",
                extra={"physical_offset": unit.physical_offset},
            )
            return None
        return view

    def _is_deleted(self, view: MessageView, deletes: set[Recall]) -> bool:
        if not deletes or view.unique_key is None:
            return False
        return recall_of(view, self._settings) in deletes

    def _put(self, view: MessageView, unit: TimerUnit) -> None:
        """Put a message into its topic, or, if it rolls, into the timer's queue again."""
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
            put = self._puts.put
        # The added properties may make it too large, and there may be too many LMQs by now. Java: doPut drops it then.
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
        """Return the queue that a message is for, or another one if its topic no longer has that queue."""
        queue_id = int(text) if _LONG.fullmatch(text) else 0
        config = self._topics.get(topic)
        count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        if config is None or 0 <= queue_id < count:
            return queue_id
        return queue_id % max(config.write_queue_nums, 1)

    def delivered_ms(self) -> int:
        """Return a time before which every due message that was put until now is in its queue.

        Messages that are put later may be for an earlier time. Returns 0 if no such time is known.
        """
        timers, now_ms = self._timers, self._timers.slot_of(self._clock.now_ms())
        if self._behind():
            now_ms = min(now_ms, self._known.placed_ms)
        if self._store.behind_bytes:
            return 0
        if timers.pending and timers.progress.read_ms <= timers.late_slot_ms:
            now_ms = min(now_ms, self._known.late_ms)
        return min(timers.wheel.next_used(timers.progress.read_ms, now_ms)[0], now_ms)

    # --- retention ---

    def let_go(self) -> int | None:
        """Remove files of the timer log that are no longer needed.

        Returns the physical offset of the oldest record that still waits for its time, None if none does.
        """
        timers = self._timers
        oldest = timers.needed_offset()
        timers.drop_files()
        first = max(timers.saved.queue_offset, self._store.min_queue_offset(names.TIMER_TOPIC, 0))
        for entry in self._store.iterate_from(names.TIMER_TOPIC, 0, first, 1):
            oldest = entry.physical_offset if oldest is None else min(oldest, entry.physical_offset)
        return oldest


class Delivering(Service):
    """Make a timer lead while this service runs: one of the services that only one broker of a name runs."""

    def __init__(self, timed: TimedMessages) -> None:
        super().__init__("delivery by time")
        self._timed = timed

    async def start(self) -> None:
        """Deliver, from the timer's progress on."""
        self._timed.lead()

    async def stop(self) -> None:
        """Finish the present slot, and deliver no further one."""
        await self._timed.rest()

    def go_on(self) -> None:
        """Take the timer's next step now: a put that failed before may succeed."""
        self._timed.go_on()


def _unit_of(delay_ms: int, config: StoreConfig) -> tuple[int, int]:
    """Return the ms to a message's slot, and the bits of its unit.

    A message that is due too far ahead rolls: after a window, or after half of one if little is left.
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
    """Number of slots after which a message rolls; a number that is too large for the wheel means the largest one."""
    most = WHEEL_SLOTS // 2 - 60
    slots = config.timer_roll_window_slot
    return slots if 2 <= slots <= most else most
