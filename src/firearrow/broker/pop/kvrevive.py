"""Redeliver popped messages whose records are in RocksDB and that nobody acknowledged in time.

When the time of a record is over, its message is put into a retry topic (``retries``), and then the record is removed.
An acknowledgement removes the record, too: one that is late by less than a quarter of a second is in time.

A message that can't be put there is retried later, up to ``popReviveMaxAttemptTimes``, and others go on. Java:
PopConsumerService#revive ends at the first that fails by an exception, and redelivers nothing from then on
(apache/rocketmq#10658).

Source: RocketMQ ``PopConsumerService``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Final

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.kvrecords import KvRecord, record_of
from firearrow.broker.pop.kvstore import STEP_MS, KvStore
from firearrow.broker.pop.retries import Retries, Target
from firearrow.broker.pop.retrylog import RetryLog
from firearrow.broker.turns import LOOK_SECONDS_MAX, TurnService, steps_of_turn
from firearrow.errors import BrokerError, MessageError
from firearrow.services import Scheduler

log = logging.getLogger(__name__)

PAGE_MAX: Final = 2048  # records that are read at once; a millisecond
SETTLE_SECONDS: Final = 0.5  # until records are removed that wait for the log to be on the disk
TRIED_AGAIN_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds after each attempt until a message that its retry topic refuses is put again."""


class KvReviving(TurnService):
    """Redeliver messages by their records."""

    def __init__(self, context: BrokerContext, records: KvStore, scheduler: Scheduler) -> None:
        super().__init__("popped messages in RocksDB", scheduler)
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._in_flight = context.in_flight
        self._retries = Retries(context, lambda: None)
        self._records = records
        self._page: deque[bytes] = deque()
        self._target: Target | None = None
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

    def _target_of(self, record: KvRecord) -> Target | None:
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
