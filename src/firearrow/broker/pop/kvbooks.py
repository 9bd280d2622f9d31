"""Books of POP in RocksDB (``popConsumerKVServiceEnable``), and redelivery from there.

Each popped message has a record in ``kvStore/`` (``kvstore``) in place of a checkpoint in the revive topic, and its
acknowledgement removes the record. No record waits in the timer, and none is merged.

A group's offset moves on when the record is written, as with the other books. Neither is on the disk then, but the file
of the offsets is written when the records are. The answer to an acknowledgement waits for the disk
(``broker.storage.saving``).

*Switching.* While the database is open, an acknowledgement looks for its record there first, even if the key is off:
handles of records name revive queue 0. If there is no record, the other books get the acknowledgement. So the key can
be changed while messages are in flight: each is acknowledged, or redelivered, where it was noted. 200056 moves the
records to the revive topics, each to a separate checkpoint. The pop time tells whether an old handle means such a
checkpoint.

*Redelivery.* When the time of a record is over, its message is put into a retry topic (``retries``), and then the
record is removed. An acknowledgement that is late by less than a quarter of a second is in time. A message that can't
be put there is retried later, up to ``popReviveMaxAttemptTimes``, and others go on.
Java: PopConsumerService#revive ends at the first that fails by an exception, and redelivers nothing from then on
(apache/rocketmq#10658).

Source: RocketMQ ``PopConsumerService``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import SettingsChanged
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.kvstore import STEP_MS, KvRecord, KvStore, key_of, record_of, records_of
from firearrow.broker.pop.retries import Retries, RetryLog, RetryTarget
from firearrow.broker.pop.revivelog import PopBatch
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.turns import LOOK_SECONDS_MAX, TurnService, steps_of_turn
from firearrow.errors import BrokerError, CorruptStore, MessageError
from firearrow.javanumbers import INT_MAX, LONG_MAX
from firearrow.logs import Log
from firearrow.services import Scheduler
from firearrow.store import TimerStore
from firearrow.wire.codes import ResponseCode
from firearrow.wire.poprecords import PopCheckpoint

log: Final = Log(__name__)

REVIVE_QUEUE: Final = 0  # in handles of messages in the database, as in RocketMQ
STEP_RECORDS: Final = 64  # records that one step moves; a millisecond
_KEY: Final = "popConsumerKVServiceEnable"


class KvBooks(Books):
    """Books in a database or, as the key says, in the revive topics.

    ``expect`` is called with the due time of a new record.
    """

    def __init__(
        self,
        context: BrokerContext,
        timers: TimerStore,
        scheduler: Scheduler,
        records: KvStore,
        expect: Callable[[int], None],
    ) -> None:
        super().__init__(context, timers, scheduler)
        self.next_queue_id: Callable[[], int] = self._next_queue_id
        self._records = records
        self._expect = expect
        self._log = context.store
        self._since_ms = context.clock.now_ms() if self._is_on else None

    @property
    def _is_on(self) -> bool:
        return self._settings.broker.pop_consumer_kv_service_enable

    def settings_changed(self, changed: SettingsChanged) -> None:
        """Note since when the database is used."""
        if _KEY in changed.keys:
            self._since_ms = self._clock.now_ms() if self._is_on else None

    def _next_queue_id(self) -> int:
        """Return the revive queue of the next pop."""
        return REVIVE_QUEUE if self._is_on else self.revive_log.next_queue_id()

    # --- pops ---

    def note_pop(self, checkpoint: PopCheckpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Note that messages are popped, and that the group goes on at an offset."""
        if not self._is_on:
            super().note_pop(checkpoint, revive_queue_id, next_offset, now_ms)
            return
        records = records_of(checkpoint)
        self._note(records)
        self.skip(checkpoint.group, checkpoint.topic, checkpoint.queue_id, next_offset)
        self._tell("popped", [record.key for record in records])

    def _note(self, records: Sequence[KvRecord], gone: Sequence[bytes] = ()) -> None:
        """Write records, and remove others."""
        try:
            self._records.put(records, gone)
        except OSError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{error}") from error
        for record in records:
            self._expect(record.visible_ms)

    def note_pop_again(self, batch: PopBatch, checkpoint: PopCheckpoint, now_ms: int) -> None:
        """Note that a message of a batch is popped again, and that its earlier pop is over."""
        old = self._key(batch, checkpoint.start_offset) if self._is_here(batch) else None
        if old is None or (self._get(old) is None and not self._is_new(batch)):
            super().note_pop_again(batch, checkpoint, now_ms)
            return
        [record] = records_of(checkpoint)
        self._note([replace(record, retry_flag=0)], [old])
        self._tell("popped again", [old])

    # --- acknowledgements ---

    def acknowledge(self, batch: PopBatch, queue_offset: int, now_ms: int) -> None:
        """Note that a message was consumed."""
        if not self._is_here(batch):
            super().acknowledge(batch, queue_offset, now_ms)
        elif not self._removed(batch, [queue_offset]) and not self._is_new(batch):
            self._acknowledge_moved(batch, queue_offset, now_ms)
            super().acknowledge(batch, queue_offset, now_ms)

    def acknowledge_all(self, batch: PopBatch, queue_offsets: list[int], now_ms: int) -> None:
        """Note that messages of a batch were consumed."""
        if self._is_here(batch):
            removed = self._removed(batch, queue_offsets)
            queue_offsets = [offset for offset in queue_offsets if offset not in removed]
            if not queue_offsets or self._is_new(batch):
                return
            for queue_offset in queue_offsets:
                self._acknowledge_moved(batch, queue_offset, now_ms)
        super().acknowledge_all(batch, queue_offsets, now_ms)

    def _is_here(self, batch: PopBatch) -> bool:
        """Return whether the database may have a batch."""
        if batch.handle.revive_queue_id != REVIVE_QUEUE:
            return False
        return 0 <= batch.visible_ms <= LONG_MAX and batch.queue_id <= INT_MAX

    def _is_new(self, batch: PopBatch) -> bool:
        """Return whether only the database can have a batch: then messages without a record are redelivered already."""
        since_ms = self._since_ms
        return since_ms is not None and batch.handle.pop_ms > max(since_ms, self._records.moved_ms)

    def _key(self, batch: PopBatch, queue_offset: int) -> bytes:
        return key_of(batch.visible_ms, batch.group, batch.topic, batch.queue_id, queue_offset)

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._records.get(key)
        except OSError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{error}") from error

    def _removed(self, batch: PopBatch, queue_offsets: list[int]) -> set[int]:
        """Remove the records of some messages; return the offsets of those that had one."""
        keys = {self._key(batch, queue_offset): queue_offset for queue_offset in queue_offsets}
        try:
            there = self._records.remove(keys)
        except OSError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{error}") from error
        self._tell("acknowledged", there)
        return {keys[key] for key in there}

    def _tell(self, what: str, keys: list[bytes]) -> None:
        if self._settings.broker.pop_consumer_kv_service_log:
            for key in keys:
                log.info("popped message", extra={"what": what, "record": record_of(key, b"")})

    # --- moves to the revive topics ---

    def move(self, now_ms: int) -> Generator[None, None, int]:
        """Move all earlier pops to the revive topics, in steps; return the count of messages.

        On an error the rest stays in the database.
        Java: PopConsumerService also moves pops that come meanwhile, whose handles then do not say where they are; and
        it forgets that messages were suspended.
        """
        self._records.note_moved(now_ms)
        start, count = b"", 0
        while rows := self._some(start):
            count += self._move(rows, now_ms)
            start = rows[-1][0] + b"\0"
            yield
        return count

    def _some(self, start: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return self._records.some(start, STEP_RECORDS)
        except (OSError, CorruptStore) as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{error}") from error

    def _move(self, rows: list[tuple[bytes, bytes]], now_ms: int) -> int:
        done = []
        try:
            for key, value in rows:
                record = self._known(key, value)
                if record is not None and record.pop_ms <= now_ms and self._get(key) is not None:
                    checkpoint = record.checkpoint(self._broker_name)
                    self.revive_log.put_checkpoint(checkpoint, self._queue_of_moved(record.queue_offset), now_ms)
                    done.append(key)
        finally:
            self._records.leave(done, self._log.log_end_offset)
        if done:
            self._expect(now_ms)
        return len(done)

    def _known(self, key: bytes, value: bytes) -> KvRecord | None:
        try:
            return record_of(key, value)
        except MessageError as error:
            log.error("a record of popped messages can't be read", extra={"error": error})
            return None

    def _queue_of_moved(self, queue_offset: int) -> int:
        """Return the revive queue of a record that is moved, as in RocketMQ."""
        return queue_offset % max(min(self._settings.broker.revive_queue_num, self.revive_log.queue_count), 1)

    def _acknowledge_moved(self, batch: PopBatch, queue_offset: int, now_ms: int) -> None:
        """Note in the revive topics that a message was consumed whose record may be moved."""
        handle = batch.handle
        if handle.pop_ms > self._records.moved_ms:
            return
        own = handle._replace(start_offset=queue_offset, revive_queue_id=self._queue_of_moved(queue_offset))
        alone = self.revive_log.batch_of(own, batch.group, batch.topic, batch.queue_id)
        super().acknowledge(alone, queue_offset, now_ms)


# --- redelivery ---

PAGE_MAX: Final = 2048  # records of one read; a millisecond
SETTLE_SECONDS: Final = 0.5  # until finished records are removed, whose messages may not be on the disk yet
TRIED_AGAIN_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds after each attempt until a message that its retry topic refuses is put again."""


class KvReviving(TurnService):
    """Redeliver messages by their records."""

    def __init__(
        self, context: BrokerContext, in_flight: InFlight, routes: TopicRoutes, records: KvStore, scheduler: Scheduler
    ) -> None:
        super().__init__("popped messages in RocksDB", scheduler)
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._in_flight = in_flight
        self._retries = Retries(context, routes, lambda: None)
        self._records = records
        self._page: deque[bytes] = deque()
        self._target: RetryTarget | None = None
        self._log = RetryLog()

    # --- life ---

    async def stop(self) -> None:
        """Redeliver no further message, and remove the records of redelivered ones."""
        await super().stop()
        await self._retries.stop()
        if self._records.has_leaving:
            try:
                self._store.flush_log()
                self._records.settle(self._store.flushed_offset)
            except OSError as error:
                log.error("some popped messages will be redelivered twice", extra={"error": error})

    def expect(self, visible_ms: int) -> None:
        """Redeliver a message that is visible again at a time, if its record is still there then."""
        ahead_ms = visible_ms + STEP_MS - self._clock.now_ms()
        self._wake(min(max(ahead_ms / 1000, 0.0), LOOK_SECONDS_MAX))

    # --- turns ---

    def _work(self) -> float:
        """Remove finished records, and redeliver due messages."""
        self._records.settle(self._store.flushed_offset)
        return 0.0 if self._revive_due() else self._seconds()

    def _seconds(self) -> float:
        """Seconds until the next turn, unless new records come."""
        seconds, due_ms = math.inf, self._records.due_ms()
        if due_ms is not None:
            ahead = (due_ms - self._clock.now_ms()) / 1000
            seconds = min(max(ahead, 0.0), LOOK_SECONDS_MAX)
        if self._records.has_leaving:
            seconds = min(seconds, SETTLE_SECONDS)
        return seconds

    # --- redelivery ---

    def _revive_due(self) -> bool:
        """Redeliver due messages; return whether there are more."""
        config, now_ms = self._settings.broker, self._clock.now_ms()
        if not self._page:
            size = min(config.pop_revive_max_return_size_per_read, PAGE_MAX)
            self._page.extend(self._records.due(now_ms, size))
        done: list[bytes] = []
        try:
            for _ in steps_of_turn(self._clock.monotonic, min(config.pop_revive_concurrency, len(self._page))):
                key = self._page[0]
                if self._revive(key, now_ms):
                    done.append(key)
                self._page.popleft()
        finally:
            self._target = None
            self._records.leave(done, self._store.log_end_offset)
        due_ms = self._records.due_ms()
        return bool(self._page) or (due_ms is not None and due_ms <= now_ms)

    def _revive(self, key: bytes, now_ms: int) -> bool:
        """Redeliver the message of a record; return whether the record can be removed."""
        value = self._records.get(key)
        if value is None:  # it was acknowledged
            return False
        try:
            record = record_of(key, value)
        except MessageError as error:
            log.error("a record of popped messages can't be read", extra={"error": error})
            return False
        try:
            self._put(record, now_ms)
        except (MessageError, BrokerError) as error:
            return self._is_given_up(record, key, now_ms, error)
        return True

    def _put(self, record: KvRecord, now_ms: int) -> None:
        """Put a message into its retry topic, unless the message, its topic or its group is gone."""
        config = self._settings.broker
        target = self._target_of(record)
        if target is None:
            self._log.place_gone(record.topic, record.group)
            return
        self._retries.put(target, record.queue_offset, now_ms)
        self._in_flight.done(record.topic, record.group, record.queue_id, 1)
        if config.pop_consumer_kv_service_log:
            log.info("popped message", extra={"what": "comes again", "record": record})

    def _target_of(self, record: KvRecord) -> RetryTarget | None:
        """Retry topic of a message, mostly that of the message before."""
        checkpoint = record.checkpoint(self._settings.broker.broker_name)
        last = self._target
        if last is not None:
            known = replace(last.checkpoint, start_offset=checkpoint.start_offset)
            if known == checkpoint:
                return last
        any_group = not self._settings.broker.pop_revive_skip_if_group_absent
        self._target = self._retries.target(checkpoint, any_group=any_group)
        return self._target

    def _is_given_up(self, record: KvRecord, key: bytes, now_ms: int, error: Exception) -> bool:
        """Reschedule a failed redelivery; return True after the maximum number of attempts."""
        times = record.attempt_times
        is_last = times >= self._settings.broker.pop_revive_max_attempt_times
        outcome = "is given up" if is_last else "is tried again later"
        place = record.topic, record.queue_id, record.queue_offset
        self._log.failed(key, place, record.group, outcome, error)
        if is_last:
            return True
        waits_ms = TRIED_AGAIN_SECONDS[min(times, len(TRIED_AGAIN_SECONDS) - 1)] * 1000
        self._records.put([record.tried_again_at(now_ms + waits_ms)], [key])
        return False
