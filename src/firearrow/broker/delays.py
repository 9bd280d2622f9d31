"""Messages with a delay level: where they wait, and how they are delivered.

A message with the property ``DELAY`` waits in ``SCHEDULE_TOPIC_XXXX``, in the queue of its level,
of which an entry has in place of a tag code the time at which its message is due. A delivery is a
new message in the real topic and queue, with the same properties (``DELAY`` included).

Whichever level's next message is due first, it is delivered first. One timer waits for it; what is
due together is delivered in turns of some milliseconds, with whatever else the broker has to do
between them. How far each level is: ``state.delayoffsets``. What was delivered behind that, a start
finds in the log (``delivered``): each delivery names the message that it is of.

Source: upstream ``ScheduleMessageService``, ``HookUtils#transformDelayLevelMessage``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.delivered import Delivered, stated_due_ms
from firearrow.broker.metrics.tally import DELAY, Tally
from firearrow.broker.puts import Draft, Puts, again, draft_of_content, wait_elsewhere
from firearrow.broker.state.delayoffsets import DelayOffsets
from firearrow.broker.state.topics import QUEUE_NUMS_MAX, TopicTable
from firearrow.clock import Clock
from firearrow.errors import BrokerError, DiskFull, MessageError, PutLater, StoreError
from firearrow.message import names, properties
from firearrow.message.record import Content
from firearrow.message.sysflag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, transaction_type
from firearrow.services import Alarm, Scheduler, Service
from firearrow.store import DelayLevels, MessagesArrived, MessageStore, QueueEntry
from firearrow.wire.codes import ResponseCode

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.002  # sends wait for no longer than this and one message
TURN_MESSAGES_MAX: Final = 128  # some 3 ms, where a clock does not say
RETRY_SECONDS: Final = 1.0  # how soon a full disk is tried again
LOOK_SECONDS_MAX: Final = 10.0  # how soon it is noticed that the wall clock was set
AHEAD_ENTRIES: Final = 256  # read at a time of each level: 40 KB
TOPICS_SAID_MAX: Final = 1000  # missing topics that are named in the log, each once
FAILURES_SAID_MAX: Final = 1000  # messages that are named there; of further ones, how many

_TOPIC: Final = names.SCHEDULE_TOPIC
_NEVER_DELAYED: Final = frozenset({_TOPIC, names.TRANS_HALF_TOPIC})
_LMQS: Final = (properties.INNER_MULTI_DISPATCH.encode(),)
_real_topic: Final = properties.finder(properties.REAL_TOPIC)
_real_id: Final = properties.finder(properties.REAL_QUEUE_ID)
_INT_CHARACTERS: Final = 11
_INT_MAX: Final = 2**31 - 1


def settle_deliveries(store: MessageStore, offsets: DelayOffsets) -> None:
    """Bring what was delivered to the disk: only then it counts for RocketMQ, too."""
    if offsets.is_settled:
        return
    with suppress(OSError):  # it was logged, and what is not there is delivered again
        store.flush_soon()
        store.flush_step()
    offsets.settle(store.flushed_offset)


def delay_level(found: dict[str, str]) -> int:
    """Give the delay level that properties ask for, 0 for none; BrokerError if it is no number."""
    text = found.get(properties.DELAY_LEVEL)
    if text is None:
        return 0
    try:
        level = int(text) if text.isascii() and len(text) <= _INT_CHARACTERS else _INT_MAX + 1
    except ValueError:
        level = _INT_MAX + 1
    if abs(level) > _INT_MAX:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the delay level {text[:20]!r} (property {properties.DELAY_LEVEL}) is no number",
        )
    return level


class DelayRedirection:
    """Has messages with a delay level wait in the queue of their level.

    Not what waits there already, and no half: that is delayed once it is committed. Java: a half
    with a level goes into the queue of the level, and is thrown away when it is due.
    """

    def __init__(self, levels: DelayLevels) -> None:
        self._levels = levels

    def __call__(self, draft: Draft, now_ms: int) -> None:
        """Look at a draft; BrokerError for a level that is no number."""
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


class _Due(NamedTuple):
    """When the next message of a level is due."""

    at_ms: int
    level: int


class DelayedDelivery(Service):
    """Delivers what is due. ``arrived`` is to be told of what comes into queues."""

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
        super().__init__("delayed messages")
        self._tally = tally
        self._store = store
        self._levels = store.delays
        self._puts = puts
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._ahead: dict[int, deque[QueueEntry]] = {}  # by level, the next first; none is empty
        self._due: list[_Due] = []  # a heap with one for each of these
        self._done: dict[int, set[int]] = {}  # by level, what a start has found to be delivered
        self._alarm = Alarm(scheduler, self._turn)
        self._seen_ms = 0
        self._runs = False
        self._trouble: str | None = None
        self._said: set[str] = set()
        self._failures = 0

    # --- life ---

    async def start(self) -> None:
        """Look at all levels, and deliver from now on."""
        self._have_queues()
        in_file = (level for level in self._offsets.table if 0 < level <= QUEUE_NUMS_MAX)
        levels = sorted({*range(1, self._queue_count() + 1), *in_file})
        for level in levels:
            self._correct(level)
        await self._learn(levels)
        self._runs = True
        for level in levels:
            if level not in self._ahead:
                self._look(level)
        self._plan()

    async def _learn(self, levels: list[int]) -> None:
        """Find out what was delivered of that of which it is not known."""
        delivered = Delivered(self._store, self._offsets.table)
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
        """Deliver nothing more, but note what became of a message that is on its way."""
        self._runs = False
        self._alarm.cancel()
        if await self._puts.settled():
            self._turn(1)
        self._ahead.clear()
        self._due.clear()

    def go_on(self) -> None:
        """Look again at what could not be delivered before."""
        if self._runs:
            self._alarm.set(0)

    @property
    def trouble(self) -> str | None:
        """Why what is due can't be delivered."""
        return self._trouble

    def _have_queues(self) -> None:
        """See that the topic has a queue for each level; where the disk is full, the next start
        does."""
        config = self._topics.table[_TOPIC]
        highest = self._levels.highest
        if min(config.read_queue_nums, config.write_queue_nums) < highest:
            nums = {
                "read_queue_nums": max(config.read_queue_nums, highest),
                "write_queue_nums": max(config.write_queue_nums, highest),
            }
            with suppress(DiskFull):  # it was logged
                self._topics.put(replace(config, attributes={}, **nums))

    def change_levels(self, text: str) -> None:
        """Go by another table of levels.

        What waits is due when it was, or at once where that is farther away than its level's new
        delay. Java: the same, once the broker was started again; it leaves the messages of levels
        that are no more where they are.
        """
        self._store.catch_up()  # what was sent before is due by what held then
        self._levels.change(text)
        self._look_again()
        self._plan()
        self._have_queues()

    def arrived(self, arrivals: MessagesArrived) -> None:
        """Some queues have new messages: look at those levels of which nothing waited."""
        if not self._runs:
            return  # a start looks at all levels
        is_new = False
        for topic, queue_id, _, _ in arrivals:
            if topic == _TOPIC and queue_id + 1 not in self._ahead:
                self._look(queue_id + 1)
                is_new = True
        if is_new:
            self._plan()

    # --- what comes next ---

    def _queue_count(self) -> int:
        config = self._topics.table[_TOPIC]
        return max(config.read_queue_nums, config.write_queue_nums)

    def _correct(self, level: int) -> None:
        """Have a level go on within its queue, if the file says otherwise."""
        at = self._offsets.table.get(level)
        if at is None:
            return
        first = self._store.min_queue_offset(_TOPIC, level - 1)
        after = self._store.max_queue_offset(_TOPIC, level - 1)
        if not first <= at <= after:
            log.error(
                "delay level goes on elsewhere: its queue does not reach where it was",
                extra={"delay_level": level, "queue_offset": at, "min": first, "max": after},
            )
            self._offsets.correct(level, min(max(at, first), after))

    def _look(self, level: int) -> None:
        """Find the next message of a level of which none is known."""
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
        """The first offset of a level from one on that was not found to be delivered."""
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
        """Find out anew when what is known is due."""
        self._due = [self._due_of(level) for level in self._ahead]
        heapify(self._due)

    def _due_of(self, level: int) -> _Due:
        """When the next message of a level is due: at once where that is farther away than the
        delay, as it is when the clock was set back.

        Source: upstream DeliverDelayedMessageTimerTask#correctDeliverTimestamp.
        """
        due_ms = stated_due_ms(self._store, level, self._ahead[level][0])
        now_ms = self._clock.now_ms()
        if level <= self._levels.highest and due_ms > self._levels.due_ms(level, now_ms):
            due_ms = now_ms
        return _Due(due_ms, level)

    def _plan(self, seconds_min: float = 0.0) -> None:
        """Have a turn taken when the next message is due."""
        if not self._due:
            self._alarm.cancel()
            return
        self._seen_ms = now_ms = self._clock.now_ms()
        seconds = min((self._due[0].at_ms - now_ms) / 1000, LOOK_SECONDS_MAX)
        self._alarm.set(max(seconds, seconds_min))

    # --- delivery ---

    def _turn(self, messages_max: int = TURN_MESSAGES_MAX) -> None:
        """Deliver what is due, as much as one turn may."""
        now_ms = self._clock.now_ms()
        if now_ms < self._seen_ms:
            self._look_again()
        delivered: dict[int, int] = {}
        unsaid = max(self._failures, FAILURES_SAID_MAX)
        error: str | None = "an error of its own"
        try:
            error = self._deliver_due(now_ms, delivered, messages_max)
        finally:
            if delivered:
                store = self._store
                self._offsets.note(delivered, store.log_end_offset, store.flushed_offset)
            if self._failures > unsaid:
                count = self._failures - unsaid
                log.error("more delayed messages can't be delivered", extra={"count": count})
            self._note_trouble(error or None)
            if self._runs:
                self._plan(0.0 if error is None else RETRY_SECONDS)

    def _deliver_due(self, now_ms: int, delivered: dict[int, int], messages_max: int) -> str | None:
        """Deliver, and note by level what comes next; give why it had to end, nothing for a message
        that is on its way."""
        monotonic = self._clock.monotonic
        until = monotonic() + TURN_SECONDS
        for _ in range(messages_max):
            if not self._due or self._due[0].at_ms > now_ms:
                break
            level = self._due[0].level
            ahead = self._ahead[level]
            try:
                self._deliver(level, ahead[0], now_ms)
            except PutLater:
                return ""
            except (StoreError, OSError) as error:
                return str(error)
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
            if monotonic() >= until:
                break
        return None

    def _deliver(self, level: int, entry: QueueEntry, now_ms: int) -> None:
        """Put the message of an entry where it belongs; one that can't be delivered ever is left
        where it is, with a line in the log. Raises StoreError or OSError if it can't be now."""
        store = self._store
        try:
            content = store.content_at(entry.physical_offset)
            topic, queue_id = _due_place(content, level)
        except MessageError as error:
            self._note_failure(level, entry, error)
            return
        if self._topics.get(topic) is None and self._is_news(topic):
            log.warning(
                "delayed messages are delivered into a topic that is not there any more", extra={"topic": topic}
            )
        stored = content.properties
        if properties.lacks(stored, _LMQS):  # nearly all: what it waited with is what it has
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

    def _put(self, draft: Draft, level: int, entry: QueueEntry, now_ms: int) -> None:
        """Put a message, if need be without LMQs, of which there may be too many now.

        Java: tries it again for ever, and all that is behind it waits.
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
        """Say that a message can't go where it is to go."""
        self._failures += 1
        if self._failures <= FAILURES_SAID_MAX:
            log.error(
                "delayed message can't be delivered",
                extra={
                    "delay_level": level,
                    "queue_offset": entry.queue_offset,
                    "physical_offset": entry.physical_offset,
                    "error": error,
                },
            )

    def _is_news(self, topic: str) -> bool:
        """Whether a topic was not named in the log yet."""
        if topic in self._said or len(self._said) >= TOPICS_SAID_MAX:
            return False
        self._said.add(topic)
        return True

    def _note_trouble(self, error: str | None) -> None:
        if error is not None and self._trouble != error:
            log.error("delayed messages can't be delivered now", extra={"error": error})
        elif error is None and self._trouble is not None:
            log.info("delayed messages are delivered again")
        self._trouble = error


def _due_place(content: Content, level: int) -> tuple[str, int]:
    """Give the topic and queue that a delayed message is for; MessageError for what can't be
    one."""
    topic, queue_id = _text(_real_topic(content.properties)), _text(_real_id(content.properties))
    check = names.validate_lmq if names.is_lmq(topic) else names.validate_topic
    if (content.topic, content.queue_id) != (_TOPIC, level - 1):
        raise MessageError(f"it is in queue {content.queue_id} of {content.topic}", "topic")
    if check(topic) is not None or topic in _NEVER_DELAYED:
        raise MessageError(f"{topic!r} is none to deliver to", properties.REAL_TOPIC)
    if not (queue_id.isdecimal() and queue_id.isascii() and int(queue_id) <= _INT_MAX):
        raise MessageError(f"{queue_id!r} is no queue", properties.REAL_QUEUE_ID)
    return topic, int(queue_id)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
