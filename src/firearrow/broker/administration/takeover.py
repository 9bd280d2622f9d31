"""Warnings of pending messages in a store that RocketMQ's broker would deliver and this one does not.

A store that RocketMQ's broker has left may hold messages that are not in their topics yet: halves in RocksDB; if
``timerWheelEnable`` is off, also timers, and messages that POP consumers took or failed to consume. Nothing is lost,
but no consumer gets these messages before a broker that delivers them opens the store. So a start counts them and logs
each kind once. Retries of push consumers cause no warning: their group reads ``%RETRY%group`` itself, and copies that
still wait for their delay are delivered (``delays``).

The counts are differences of offsets. For POP, records tell which messages are done: at most `RECORDS_MAX` of them are
read, and beyond that a line says "up to" or "about".

Source: RocketMQ's ``TimerMessageStore#recover``, ``PopReviveService``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.topics.table import TopicTable
from firearrow.errors import MessageError
from firearrow.logs import Log
from firearrow.message import names
from firearrow.message.model import MessageView
from firearrow.message.properties import REAL_TOPIC
from firearrow.message.record import decode_record
from firearrow.store import MessageStore, OnWheel, TimerLog, on_wheel
from firearrow.wire.poprecords import CHECKPOINT_TAG, Acknowledgement, PopCheckpoint, acknowledgement_of, checkpoint_of

log: Final = Log(__name__)

RECORDS_MAX: Final = 10_000  # decoded for one kind: about 0.2 s


class PendingMessages(NamedTuple):
    """Count of waiting messages of a kind; ``sense`` qualifies an inexact count."""

    kind: str
    messages: int
    sense: str = ""


def warn_of_waiting(store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets) -> None:
    """Log the waiting messages of a store, a line for each kind."""
    for kind, messages, sense in waiting(store, topics, offsets):
        log.warning(
            "messages wait in the store: this version does not deliver them, they wait until "
            "RocketMQ's broker, or a version that does, opens the store again",
            extra={"kind": kind, "sense": sense.strip() or "exactly", "count": messages},
        )


def waiting(store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets) -> list[PendingMessages]:
    """Count the waiting messages of a store, by kind; kinds without any are left out."""
    found = _Count(store, topics, offsets)
    kinds = [found.rocksdb_halves()]
    if not store.config.timer_wheel_enable:
        kinds = [*found.timed_and_taken(), *kinds, found.retries()]
    return [kind for kind in kinds if kind.messages > 0]


class _Count:
    def __init__(self, store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        prefix = names.revive_topic("")  # the cluster may have had another name
        self._revive_topics = [topic for topic in topics.table if topic.startswith(prefix)]

    def timed_and_taken(self) -> tuple[PendingMessages, PendingMessages]:
        """Messages with a delivery time, and messages that POP consumers took and did not acknowledge.

        POP's checkpoints are messages with a delivery time, too, until they are due; then they are in the revive topic.
        Where there are too many to distinguish them, all count as timers.
        """
        wheel = on_wheel(self._store.root)
        units = 0 if wheel is None else wheel.messages
        new = self._left(names.TIMER_TOPIC, 0, self._enqueued(wheel))
        of_pop = [view for view in self._views(names.TIMER_TOPIC, 0, new) if self._is_pop(view)]
        if wheel is not None and units <= RECORDS_MAX:
            of_pop += self._pop_on(wheel)
        is_known = (wheel is not None or not new) and max(units, len(new)) <= RECORDS_MAX
        timers = PendingMessages("messages with a delivery time", units + len(new) - len(of_pop), _up_to(is_known))
        for topic in self._revive_topics:
            for queue_id in self._queue_ids(topic):
                done = self._offsets.query(names.REVIVE_GROUP, topic, queue_id)
                due = self._left(topic, queue_id, done + 1)
                is_known = is_known and len(due) <= RECORDS_MAX
                of_pop += self._views(topic, queue_id, due)
        text = "messages that POP consumers took and did not acknowledge"
        return timers, PendingMessages(text, _unacknowledged(of_pop), "" if is_known else "about ")

    def rocksdb_halves(self) -> PendingMessages:
        """Halves of brokers with ``transRocksDBEnable``; their decisions are in a database."""
        left = self._left(names.ROCKSDB_TRANS_HALF_TOPIC, 0, 0)
        return PendingMessages("halves of transactions (transRocksDBEnable)", len(left), "up to ")

    def retries(self) -> PendingMessages:
        """Count the messages in POP's retry topics. Without a timer wheel no consumer pops, and no other consumer reads
        those topics.
        """
        count = 0
        for key, queues in self._offsets.committed.items():
            topic, group = names.topic_and_group(key)
            retry = names.retry_topic(group)
            if topic.startswith((f"{retry}_", f"{retry}+")):
                for queue_id in self._queue_ids(topic):
                    count += len(self._left(topic, queue_id, queues.get(queue_id, 0)))
        return PendingMessages("messages that POP consumers must get again", count)

    def _queue_ids(self, topic: str) -> range:
        config = self._topics.get(topic)
        return range(0 if config is None else max(config.read_queue_nums, config.write_queue_nums))

    def _left(self, topic: str, queue_id: int, start: int) -> range:
        """Offsets of a queue from one on."""
        store = self._store
        first = max(start, store.min_queue_offset(topic, queue_id), 0)
        return range(first, max(first, store.max_queue_offset(topic, queue_id)))

    def _views(self, topic: str, queue_id: int, offsets: range) -> Iterator[MessageView]:
        """Messages of a queue, at most `RECORDS_MAX`."""
        count = min(len(offsets), RECORDS_MAX)
        for entry in self._store.iterate_from(topic, queue_id, offsets.start, count):
            yield from self._view(entry.physical_offset)

    def _view(self, physical_offset: int) -> list[MessageView]:
        record = self._store.record_at(physical_offset)
        return [] if record is None else [decode_record(record)]

    def _enqueued(self, wheel: OnWheel | None) -> int:
        """Offset of the first message in the timer's topic that is not on the wheel."""
        if wheel is None:
            return 0
        found = TimerLog(self._store.root).unit(wheel.newest)
        newest = [] if found is None else self._view(found[0].physical_offset)
        return newest[0].queue_offset + 1 if newest else wheel.queue_offset

    def _pop_on(self, wheel: OnWheel) -> Iterator[MessageView]:
        """POP's messages on the wheel."""
        timer_log = TimerLog(self._store.root)
        hashes = set(map(names.java_hash, self._revive_topics))
        for last, first in wheel.chains:
            for unit in timer_log.chain(last, first):
                if unit.topic_hash in hashes:
                    yield from filter(self._is_pop, self._view(unit.physical_offset))

    def _is_pop(self, view: MessageView) -> bool:
        return view.properties.get(REAL_TOPIC) in self._revive_topics


def _up_to(is_known: bool) -> str:
    return "" if is_known else "up to "


def _unacknowledged(views: Iterable[MessageView]) -> int:
    """Count the messages of POP's checkpoints that have no acknowledgement."""
    taken: set[tuple[object, ...]] = set()
    acknowledged: set[tuple[object, ...]] = set()
    for view in views:
        try:
            if view.tags == CHECKPOINT_TAG:
                popped = checkpoint_of(view.body)
                taken.update((*_batch(popped), offset) for offset in popped.left)
            else:
                ack = acknowledgement_of(view.body)
                acknowledged.update((*_batch(ack), offset) for offset in ack.acknowledged)
        except MessageError:
            continue  # no broker will make a message of it
    return len(taken - acknowledged)


def _batch(record: PopCheckpoint | Acknowledgement) -> tuple[object, ...]:
    """Key that a checkpoint and its acknowledgements share."""
    return record.topic, record.group, record.queue_id, record.start_offset, record.pop_ms
