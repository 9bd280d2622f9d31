"""Delayed messages: redirect a message with a delay level, and deliver it when its time has come.

A message with the property ``DELAY`` waits in ``SCHEDULE_TOPIC_XXXX``, in the queue of its level. An entry of that
queue has the due time of its message in place of a tag code. A delivery is a new message in the real topic and queue,
with the same properties (``DELAY`` included).

One alarm waits for the first due message of all levels. Messages that are due together are delivered in turns
(``broker.turns``). The offset that each level has reached is saved in ``state.delayoffsets``. A start finds later
deliveries in the log (``delivered``): each delivery names its message.

Source: RocketMQ ``ScheduleMessageService``, ``HookUtils#transformDelayLevelMessage``.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.delaying.redelivery import LevelDeliveries, stated_due_ms
from firearrow.broker.metrics.tally import DELAY, Tally
from firearrow.broker.sending.puts import Puts, UnstoredMessage, again, draft_of_content, wait_elsewhere
from firearrow.broker.topics.table import QUEUE_NUMS_MAX, TopicTable
from firearrow.broker.turns import LOOK_SECONDS_MAX, TURN_STEPS_MAX, TurnService, steps_of_turn
from firearrow.clock import Clock
from firearrow.errors import BrokerError, DiskFull, MessageError
from firearrow.javanumbers import INT_MAX
from firearrow.logs import Log
from firearrow.message import names, properties
from firearrow.message.record import Content
from firearrow.message.sysflag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, transaction_type
from firearrow.services import Scheduler
from firearrow.store import DelayLevels, MessagesArrived, MessageStore, QueueEntry
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

AHEAD_ENTRIES: Final = 256  # read at a time of each level: 40 KB
TOPICS_LOGGED_MAX: Final = 1000  # missing topics with a line in the log, one for each
FAILURES_LOGGED_MAX: Final = 1000  # failed messages with a line in the log; of further ones, the count

_TOPIC: Final = names.SCHEDULE_TOPIC
_NEVER_DELAYED: Final = frozenset({_TOPIC, names.TRANS_HALF_TOPIC})
_LMQS: Final = (properties.INNER_MULTI_DISPATCH.encode(),)
_real_topic: Final = properties.finder(properties.REAL_TOPIC)
_real_id: Final = properties.finder(properties.REAL_QUEUE_ID)
_INT_CHARACTERS: Final = 11


def settle_deliveries(store: MessageStore, offsets: DelayOffsets) -> None:
    """Flush deliveries to the disk: only then RocketMQ counts them, too."""
    if offsets.is_settled:
        return
    with suppress(OSError):  # the store logs it, and messages that are not on the disk are delivered again
        store.flush_soon()
        store.flush_step()
    offsets.settle(store.flushed_offset)


def delay_level(found: dict[str, str]) -> int:
    """Return the delay level of a message's properties, 0 for none; BrokerError if it is no number."""
    text = found.get(properties.DELAY_LEVEL)
    if text is None:
        return 0
    try:
        level = int(text) if text.isascii() and len(text) <= _INT_CHARACTERS else INT_MAX + 1
    except ValueError:
        level = INT_MAX + 1
    if abs(level) > INT_MAX:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the delay level {text[:20]!r} (property {properties.DELAY_LEVEL}) is no number",
        )
    return level


class DelayRedirection:
    """Redirect messages with a delay level into the queue of their level.

    Messages that wait there already pass, and so do halves: their delay begins when they are committed. Java: a half
    with a level goes into the queue of the level, and is discarded when it is due.
    """

    def __init__(self, levels: DelayLevels) -> None:
        self._levels = levels

    def __call__(self, draft: UnstoredMessage, now_ms: int) -> None:
        """Redirect a draft if it has a level; BrokerError for a level that is no number."""
        level = delay_level(draft.properties)
        if level <= 0 or draft.topic in _NEVER_DELAYED:
            return
        if transaction_type(draft.sys_flag) in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return
        level = min(level, self._levels.highest)
        for name in properties.DELIVERY_TIMES:
            draft.properties.pop(name, None)
        draft.properties[properties.DELAY_LEVEL] = str(level)
        wait_elsewhere(draft, _TOPIC, level - 1)


class _DueLevel(NamedTuple):
    """Due time of a level's next message."""

    at_ms: int
    level: int


class DelayedDelivery(TurnService):
    """Deliver delayed messages when they are due. Events call ``arrived`` for new messages of queues."""

    def __init__(
        self,
        store: MessageStore,
        puts: Puts,
        topics: TopicTable,
        offsets: DelayOffsets,
        clock: Clock,
        scheduler: Scheduler,
        tally: Tally | None = None,
    ) -> None:
        super().__init__("delayed messages", scheduler)
        self._tally = tally
        self._store = store
        self._levels = store.delays
        self._puts = puts
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._ahead: dict[int, deque[QueueEntry]] = {}  # by level, the next first; none is empty
        self._due: list[_DueLevel] = []  # a heap with one item for each of these levels
        self._done: dict[int, set[int]] = {}  # by level, offsets that a start found delivered
        self._seen_ms = 0
        self._logged_topics: set[str] = set()
        self._failures = 0

    # --- life ---

    async def start(self) -> None:
        """Read the next messages of all levels, and deliver from now on."""
        self._have_queues()
        in_file = (level for level in self._offsets.table if 0 < level <= QUEUE_NUMS_MAX)
        levels = sorted({*range(1, self._queue_count() + 1), *in_file})
        for level in levels:
            self._correct(level)
        await self._learn(levels)
        await super().start()
        for level in levels:
            if level not in self._ahead:
                self._look(level)
        self._plan()

    async def _learn(self, levels: list[int]) -> None:
        """Find the deliveries in the log that are behind the saved offsets."""
        delivered = LevelDeliveries(self._store, self._offsets.table)
        for _ in delivered.learn(levels):
            await asyncio.sleep(0)
        self._done = found = delivered.found
        if not found:
            return
        log.info(
            "delayed messages that the log has delivered are not delivered again",
            extra={"count": sum(map(len, found.values()))},
        )
        at = {level: self._offsets.table.get(level, 0) for level in found}
        reached = {level: self._behind_done(level, first) for level, first in at.items()}
        store = self._store
        self._offsets.note(reached, store.log_end_offset, store.flushed_offset)

    async def stop(self) -> None:
        """Deliver no further message, but note the result of one that is in flight to another broker."""
        await super().stop()
        if await self._puts.settled():
            self._turn()  # of one message
        self._ahead.clear()
        self._due.clear()

    def _have_queues(self) -> None:
        """Add missing queues to the topic, one for each level; if the disk is full, leave it to the next start."""
        config = self._topics.table[_TOPIC]
        highest = self._levels.highest
        if min(config.read_queue_nums, config.write_queue_nums) < highest:
            nums = {
                "read_queue_nums": max(config.read_queue_nums, highest),
                "write_queue_nums": max(config.write_queue_nums, highest),
            }
            with suppress(DiskFull):  # the store logs it
                self._topics.put(replace(config, attributes={}, **nums))

    def change_levels(self, text: str) -> None:
        """Use another table of levels.

        Pending messages keep their due time, or are due at once if it is farther away than the new delay of their
        level. Java: the same after the broker's next start, but messages of removed levels stay where they are.
        """
        self._store.catch_up()  # messages sent before keep the delays of the old table
        self._levels.change(text)
        self._look_again()
        self._plan()
        self._have_queues()

    def arrived(self, arrivals: MessagesArrived) -> None:
        """Read the next messages of levels that had none, if they are among ``arrivals``."""
        if not self._is_running:
            return  # a start reads all levels
        is_new = False
        for topic, queue_id, _, _ in arrivals:
            if topic == _TOPIC and queue_id + 1 not in self._ahead:
                self._look(queue_id + 1)
                is_new = True
        if is_new:
            self._plan()

    # --- the next messages ---

    def _queue_count(self) -> int:
        config = self._topics.table[_TOPIC]
        return max(config.read_queue_nums, config.write_queue_nums)

    def _correct(self, level: int) -> None:
        """Move a level's offset into the range of its queue, if the file has another one."""
        at = self._offsets.table.get(level)
        if at is None:
            return
        first = self._store.min_queue_offset(_TOPIC, level - 1)
        after = self._store.max_queue_offset(_TOPIC, level - 1)
        if not first <= at <= after:
            log.error(
                "delay level goes on at another offset: its queue does not have the old one",
                extra={"delay_level": level, "queue_offset": at, "min": first, "max": after},
            )
            self._offsets.correct(level, min(max(at, first), after))

    def _look(self, level: int) -> None:
        """Read the next messages of a level that has none in memory."""
        start = self._offsets.table.get(level, 0)
        start = max(start, self._store.min_queue_offset(_TOPIC, level - 1))
        entries = self._store.iterate_from(_TOPIC, level - 1, start)
        if (done := self._done.get(level)) is not None:
            entries = (entry for entry in entries if entry.queue_offset not in done)
        ahead = deque(islice(entries, AHEAD_ENTRIES))
        if ahead:
            self._ahead[level] = ahead
            heappush(self._due, self._due_of(level))

    def _behind_done(self, level: int, queue_offset: int) -> int:
        """First offset of a level, from ``queue_offset`` on, that a start did not find delivered."""
        done = self._done[level]
        first = self._store.min_queue_offset(_TOPIC, level - 1)
        queue_offset = max(queue_offset, first)
        while queue_offset in done:
            done.remove(queue_offset)
            queue_offset += 1
        if not done:
            del self._done[level]
        return queue_offset

    def _look_again(self) -> None:
        """Calculate again when the next message of each level is due."""
        self._due = [self._due_of(level) for level in self._ahead]
        heapify(self._due)

    def _due_of(self, level: int) -> _DueLevel:
        """Due time of a level's next message: now, if it is farther away than the level's delay.

        That happens when the clock was set back. Source: RocketMQ
        DeliverDelayedMessageTimerTask#correctDeliverTimestamp.
        """
        due_ms = stated_due_ms(self._store, level, self._ahead[level][0])
        now_ms = self._clock.now_ms()
        if level <= self._levels.highest and due_ms > self._levels.due_ms(level, now_ms):
            due_ms = now_ms
        return _DueLevel(due_ms, level)

    def _plan(self) -> None:
        """Set the alarm for the next due message."""
        if self._due:
            self._alarm.set(self._seconds())
        else:
            self._alarm.cancel()

    def _seconds(self) -> float:
        """Seconds until the next message is due."""
        if not self._due:
            return math.inf
        self._seen_ms = now_ms = self._clock.now_ms()
        return max(min((self._due[0].at_ms - now_ms) / 1000, LOOK_SECONDS_MAX), 0.0)

    # --- delivery ---

    def _work(self) -> float:
        """Deliver due messages."""
        now_ms = self._clock.now_ms()
        if now_ms < self._seen_ms:
            self._look_again()
        delivered: dict[int, int] = {}
        logged = max(self._failures, FAILURES_LOGGED_MAX)
        try:
            self._deliver_due(now_ms, delivered)
        finally:
            if delivered:
                store = self._store
                self._offsets.note(delivered, store.log_end_offset, store.flushed_offset)
            if self._failures > logged:
                log.error("more delayed messages can't be delivered", extra={"count": self._failures - logged})
        return self._seconds()

    def _deliver_due(self, now_ms: int, delivered: dict[int, int]) -> None:
        """Deliver due messages, and note in ``delivered`` the offset that each level has reached."""
        for _ in steps_of_turn(self._clock.monotonic, TURN_STEPS_MAX if self._is_running else 1):
            if not self._due or self._due[0].at_ms > now_ms:
                break
            level = self._due[0].level
            ahead = self._ahead[level]
            self._deliver(level, ahead[0], now_ms)
            after = ahead.popleft().queue_offset + 1
            if level in self._done:
                after = self._behind_done(level, after)
            delivered[level] = self._offsets.table[level] = after
            heappop(self._due)
            if ahead:
                heappush(self._due, self._due_of(level))
            else:
                del self._ahead[level]
                self._look(level)

    def _deliver(self, level: int, entry: QueueEntry, now_ms: int) -> None:
        """Put the message of an entry into its real topic.

        A message that can never be delivered stays where it is, with a line in the log. Raises StoreError or OSError
        if the message can't be put now.
        """
        store = self._store
        try:
            content = store.content_at(entry.physical_offset)
            topic, queue_id = _due_place(content, level)
        except MessageError as error:
            self._note_failure(level, entry, error)
            return
        if self._topics.get(topic) is None and self._is_first(topic):
            log.warning(
                "delayed messages are delivered into a topic that is not there any more", extra={"topic": topic}
            )
        stored = content.properties
        if properties.lacks(stored, _LMQS):  # nearly all messages: the properties stay as they are
            queue, times = store.queue(topic, queue_id), content.reconsume_times
            place = content.physical_offset
            message = again(queue, content, stored, content.sys_flag, times, place)
            begin = store.log_end_offset
            try:
                self._puts.put_again(message, now_ms)
            except MessageError as error:
                self._note_failure(level, entry, error)
            else:
                self._count(topic, store.log_end_offset - begin)
            return
        draft = draft_of_content(content, b"", properties.parse(stored))
        draft.topic, draft.queue_id = topic, queue_id
        draft.prepared_transaction_offset = content.physical_offset
        self._put(draft, level, entry, now_ms)

    def _put(self, draft: UnstoredMessage, level: int, entry: QueueEntry, now_ms: int) -> None:
        """Put a message, and if that fails, put it without LMQs: there may be too many now.

        Java: retries it without end, and all messages behind it wait.
        """
        try:
            placed = self._puts.deliver(draft, now_ms)
            self._count(draft.topic, placed.end_offset - placed.physical_offset)
        except (BrokerError, MessageError) as error:
            self._note_failure(level, entry, error)
            if draft.properties.pop(properties.INNER_MULTI_DISPATCH, None) is not None:
                self._put(draft, level, entry, now_ms)

    def _count(self, topic: str, size: int) -> None:
        if self._tally is not None:
            self._tally.delivered.add(topic)
            self._tally.delivered_bytes += size
            self._tally.put(topic, DELAY, size)

    def _note_failure(self, level: int, entry: QueueEntry, error: Exception) -> None:
        """Count a message that can't be put into its real topic, and log the first ones."""
        self._failures += 1
        if self._failures <= FAILURES_LOGGED_MAX:
            log.error(
                "delayed message can't be delivered",
                extra={
                    "delay_level": level,
                    "queue_offset": entry.queue_offset,
                    "physical_offset": entry.physical_offset,
                    "error": error,
                },
            )

    def _is_first(self, topic: str) -> bool:
        """Return whether a missing topic has no line in the log yet."""
        if topic in self._logged_topics or len(self._logged_topics) >= TOPICS_LOGGED_MAX:
            return False
        self._logged_topics.add(topic)
        return True


def _due_place(content: Content, level: int) -> tuple[str, int]:
    """Return the topic and queue that a delayed message is for; MessageError if they can't be."""
    topic, queue_id = _text(_real_topic(content.properties)), _text(_real_id(content.properties))
    check = names.validate_lmq if names.is_lmq(topic) else names.validate_topic
    if (content.topic, content.queue_id) != (_TOPIC, level - 1):
        raise MessageError(f"it is in queue {content.queue_id} of {content.topic}", "topic")
    if check(topic) is not None or topic in _NEVER_DELAYED:
        raise MessageError(f"{topic!r} is none to deliver to", properties.REAL_TOPIC)
    if not (queue_id.isdecimal() and queue_id.isascii() and int(queue_id) <= INT_MAX):
        raise MessageError(f"{queue_id!r} is no queue", properties.REAL_QUEUE_ID)
    return topic, int(queue_id)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
