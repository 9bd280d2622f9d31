"""Find waiting messages that were delivered already, in the log.

The progress of each level is beside the log (``state.delayoffsets``), and a broker that takes over may have an old one:
a slave requests it from its master now and then, and RocketMQ writes its file every ten seconds. But the log has the
later deliveries. A delivery by Firearrow names its message: its ``preparedTransactionOffset`` is the physical offset of
the message, as that of a commit is the offset of its half. A delivery by RocketMQ names none, and belongs to the
message that equals it in everything. No delivery can name the message at offset 0, the first of a log, since 0 means
none.

A delivery that is not found is repeated. A wrong match would lose a message, so in doubt there is no match. Of messages
that agree in everything only the first may count as delivered, and none counts if one of the messages delivered last is
another of them. Such are messages that a sender has put twice with one unique key, or that a group has sent back twice
after the same attempt.

Messages with a delivery time are found in the same way, but only if a record names them. Here the old part may be a
slot of the timer, or a slave's view of its master's timer. The message at offset 0 may come twice.

The work is limited: the log is read from the place where the first message in question was due, and from no more than
`LOG_BYTES_MAX` before its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from firearrow.errors import MessageError
from firearrow.message import names, properties
from firearrow.message.record import Content
from firearrow.message.sysflag import HOSTS_V6_MASK
from firearrow.store import Boundary, MessageStore, QueueEntry, TimerStore, delivered_copies, timed_copies

LOG_BYTES_MAX: Final = 1 << 30
"""Bytes of the log's end that are read, a second or two: the deliveries of a minute."""

TIMED_MAX: Final = 200_000
"""Known deliveries of messages with a delivery time; further ones are repeated."""

NAMELESS_MAX: Final = 100_000
"""Deliveries without a name that are compared with messages, some seconds' worth."""

DELIVERED_BEFORE: Final = 1000
"""Messages before the first in question that are compared, beside as many as there are deliveries without a name: these
may be theirs."""

_TOPIC: Final = names.SCHEDULE_TOPIC
_STEP_BYTES: Final = 1 << 20  # of the log in one read, some 5 ms
_READ_BYTES: Final = 4096  # the read of a message takes as long as a scan of this size
_DIGITS_MAX: Final = 9  # of a queue's number
_unique: Final = properties.finder(properties.UNIQUE_KEY)
_CHANGED: Final = (  # properties that may differ between a waiting message and its delivery
    properties.INNER_MULTI_DISPATCH,
    properties.INNER_MULTI_QUEUE_OFFSET,
    properties.CRC32,
)


def stated_due_ms(store: MessageStore, level: int, entry: QueueEntry) -> int:
    """Return the due time of the message of an entry of a level's queue."""
    if entry.tag_code >= 0:
        return entry.tag_code
    # The reference to an extension, which has no more than the record.
    stored_ms = store.store_time_of(_TOPIC, level - 1, entry.queue_offset)
    return store.delays.due_ms(level, stored_ms)


class _Identity(NamedTuple):
    """Fields that a message has in common with its delivery."""

    topic: str
    queue_id: str
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    body: bytes  # its digest
    properties: frozenset[tuple[str, str]]


class _Delivery(NamedTuple):
    physical_offset: int
    store_ms: int


class LevelDeliveries:
    """Deliveries of each level from an offset on (``offsets``; levels that it lacks count from the first message)."""

    def __init__(self, store: MessageStore, offsets: Mapping[int, int]) -> None:
        self._store = store
        self._until_ms = store.last_store_ms  # messages that are due later were not delivered
        self._offsets = offsets
        self._nameless: dict[_Identity, list[_Delivery]] = {}
        self._nameless_levels: Counter[int] = Counter()
        self.found: dict[int, set[int]] = {}
        """By level the queue offsets of delivered messages."""

    def learn(self, levels: Iterable[int]) -> Iterator[None]:
        """Read the log in steps."""
        firsts = {level: first for level in levels for first in self._due(level)}
        if not firsts:
            return
        runs = delivered_copies(self._store, self._begin(firsts), LOG_BYTES_MAX)
        yield from _in_steps(runs, self._note)
        for level in self._nameless_levels.keys() & firsts.keys():
            yield from self._compare(level)

    def _due(self, level: int) -> Iterator[QueueEntry]:
        """Return the first message of a level that may not be delivered, if it was due."""
        store = self._store
        start = max(self._offsets.get(level, 0), store.min_queue_offset(_TOPIC, level - 1))
        for entry in store.iterate_from(_TOPIC, level - 1, start, 1):
            if stated_due_ms(store, level, entry) <= self._until_ms:
                yield entry

    def _begin(self, firsts: Mapping[int, QueueEntry]) -> int:
        """Return the offset in the log of the first possible delivery: behind its message, and behind the records
        before its due time."""
        store = self._store
        due_ms = min(stated_due_ms(store, level, entry) for level, entry in firsts.items())
        begin = min(entry.physical_offset for entry in firsts.values())
        queues = {(_TOPIC, level - 1) for level in firsts}
        for entry in firsts.values():
            try:
                found = properties.parse(store.content_at(entry.physical_offset).properties)
            except MessageError:
                continue
            number = found.get(properties.REAL_QUEUE_ID, "")
            if number.isdecimal() and len(number) <= _DIGITS_MAX:
                queues.add((found.get(properties.REAL_TOPIC, ""), int(number)))
        for topic, queue_id in queues:
            before = store.search_offset(topic, queue_id, due_ms, Boundary.LOWER) - 1
            for entry in store.iterate_from(topic, queue_id, before, 1):
                if store.store_time_of(topic, queue_id, entry.queue_offset) < due_ms:
                    begin = max(begin, entry.physical_offset)
        return begin

    def _note(self, named: int, place: int) -> int:
        """Note the message of a delivery; return the count of bytes read."""
        store = self._store
        try:
            copy = store.content_at(place)
            message = store.content_at(named) if named else None
        except MessageError:  # the delivery logs it
            return _READ_BYTES
        found = properties.parse(copy.properties)
        if found.get(properties.REAL_TOPIC) == copy.topic:
            if message is None:
                self._note_nameless(copy, found)
            elif message.topic == _TOPIC and _waiting(message) == _identity(copy, found):
                self._found(message.queue_id + 1, message.queue_offset)
        return _READ_BYTES + 2 * len(copy.body)

    def _found(self, level: int, queue_offset: int) -> None:
        if queue_offset >= self._offsets.get(level, 0):
            self.found.setdefault(level, set()).add(queue_offset)

    def _note_nameless(self, copy: Content, found: dict[str, str]) -> None:
        level = found.get(properties.DELAY_LEVEL, "")
        is_known = level.isdecimal() and properties.UNIQUE_KEY in found
        if is_known and self._nameless_levels.total() < NAMELESS_MAX:
            delivery = _Delivery(copy.physical_offset, copy.store_timestamp_ms)
            self._nameless.setdefault(_identity(copy, found), []).append(delivery)
            self._nameless_levels[int(level)] += 1

    def _compare(self, level: int) -> Iterator[None]:
        """Find the messages of deliveries without a name."""
        store = self._store
        first = store.min_queue_offset(_TOPIC, level - 1)
        at = max(self._offsets.get(level, 0), first)
        start = max(at - self._nameless_levels[level] - DELIVERED_BEFORE, first)
        seen: set[_Identity] = set()
        spent = 0
        for entry in store.iterate_from(_TOPIC, level - 1, start):
            due_ms = stated_due_ms(store, level, entry)
            if due_ms > self._until_ms:
                return
            spent += _READ_BYTES + entry.size
            try:
                identity = _waiting(store.content_at(entry.physical_offset))
            except MessageError:
                continue
            if identity in self._nameless and identity not in seen:
                seen.add(identity)
                if any(
                    it.physical_offset > entry.physical_offset and it.store_ms >= due_ms
                    for it in self._nameless[identity]
                ):
                    self._found(level, entry.queue_offset)
            if spent >= _STEP_BYTES:
                spent = 0
                yield


class TimerDeliveries:
    """Messages with a delivery time that went on, to their topics or into a later slot.

    Only slots that are not noted as read count. A record that was put for a message names it.
    """

    def __init__(self, store: MessageStore, timers: TimerStore) -> None:
        self._store = store
        self._timers = timers
        self.found: set[int] = set()
        """Their physical offsets."""

    def learn(self) -> Iterator[None]:
        """Read the log in steps."""
        store, timers = self._store, self._timers
        at = read_ms = timers.progress.read_ms
        # The range ends where a slot ends: the wheel never gives a time within one.
        end_ms = (store.last_store_ms // timers.precision_ms + 1) * timers.precision_ms
        is_used = False
        while at < end_ms and not is_used:
            at, is_used = timers.wheel.next_used(at, end_ms)
        if not is_used:
            return
        topic, begin = names.TIMER_TOPIC, 0
        before = store.search_offset(topic, 0, read_ms, Boundary.LOWER) - 1
        for entry in store.iterate_from(topic, 0, before, 1):
            begin = entry.physical_offset
        yield from _in_steps(timed_copies(store, begin, LOG_BYTES_MAX), self._note)

    def _note(self, named: int, place: int) -> int:
        store = self._store
        try:
            copy, message = store.content_at(place), store.content_at(named)
        except MessageError:
            return _READ_BYTES
        if message.topic == names.TIMER_TOPIC and len(self.found) < TIMED_MAX:
            same = _unique(message.properties), message.born_timestamp_ms, message.body
            if same == (_unique(copy.properties), copy.born_timestamp_ms, copy.body):
                self.found.add(named)
        return _READ_BYTES + 2 * len(copy.body)


def _in_steps(runs: Iterable[Iterable[tuple[int, int]]], note: Callable[[int, int], int]) -> Iterator[None]:
    """Note copies, each with the place of its message and its own place; a step ends with a run, or within it when
    ``note`` has read enough bytes."""
    spent = 0
    for copies in runs:
        for named, place in copies:
            spent += note(named, place)
            if spent >= _STEP_BYTES:
                spent = 0
                yield
        yield


def _waiting(message: Content) -> _Identity:
    """Return the identity of a waiting message in its destination queue."""
    found = properties.parse(message.properties)
    topic = found.get(properties.REAL_TOPIC, "")
    return _identity(message, found, topic, found.get(properties.REAL_QUEUE_ID, ""))


def _identity(message: Content, found: dict[str, str], topic: str | None = None, queue_id: str = "") -> _Identity:
    for name in _CHANGED:
        found.pop(name, None)
    return _Identity(
        message.topic if topic is None else topic,
        str(message.queue_id) if topic is None else queue_id,
        message.flag,
        message.sys_flag & ~HOSTS_V6_MASK,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        sha256(message.body).digest(),
        frozenset(found.items()),
    )
