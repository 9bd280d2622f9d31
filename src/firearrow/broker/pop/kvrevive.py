"""Messages that are noted in RocksDB as popped, and were not acknowledged in time, come again.

When the time of a record is over, its message is put into a retry topic (``retries``), and then the
record is removed. Whether a message was acknowledged is known when its turn comes: who is late by
less than a quarter of a second is in time.

A message that can't be put there is tried again later, up to ``popReviveMaxAttemptTimes``; others
go on. Java: PopConsumerService#revive ends at the first that fails by an exception, and nothing
comes again any more (apache/rocketmq#10658).

Source: upstream ``PopConsumerService``.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.kvrecords import KvRecord, record_of
from firearrow.broker.pop.kvstore import STEP_MS, KvStore
from firearrow.broker.pop.retries import Retries, Target
from firearrow.broker.pop.telling import Telling
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.services import Alarm, Scheduler, Service

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.002  # requests wait for no longer than this and one message
PAGE_MAX: Final = 2048  # records that are read at once; a millisecond
RETRY_SECONDS: Final = 1.0  # how soon a full disk is tried again
SETTLE_SECONDS: Final = 0.5  # how soon it is looked whether the log is on the disk
LOOK_SECONDS_MAX: Final = 10.0  # how soon it is noticed that the wall clock was set
TRIED_AGAIN_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""For how long a message that can't be put into its retry topic waits, each time."""


class KvReviving(Service):
    """Has messages come again by their records."""

    def __init__(self, context: BrokerContext, records: KvStore, scheduler: Scheduler) -> None:
        super().__init__("popped messages in RocksDB")
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._in_flight = context.in_flight
        self._retries = Retries(context, lambda: None)
        self._records = records
        self._alarm = Alarm(scheduler, self._turn)
        self._page: deque[bytes] = deque()
        self._target: Target | None = None
        self._runs = False
        self._telling = Telling()

    # --- life ---

    async def start(self) -> None:
        """Have come again what is due, and go on from now on."""
        self._runs = True
        self._alarm.set(0)

    async def stop(self) -> None:
        """Have nothing come again, and remove the records of what has."""
        self._runs = False
        self._alarm.cancel()
        await self._retries.stop()
        if self._records.has_leaving:
            try:
                self._store.flush_log()
                self._records.settle(self._store.flushed_offset)
            except OSError as error:
                log.error("some popped messages will come twice", extra={"error": error})

    def expect(self, visible_ms: int) -> None:
        """Note that something is visible again at a time."""
        if self._runs:
            ahead_ms = visible_ms + STEP_MS - self._clock.now_ms()
            self._alarm.set_earlier(min(max(ahead_ms / 1000, 0.0), LOOK_SECONDS_MAX))

    @property
    def trouble(self) -> str | None:
        """Why messages can't come again."""
        return self._telling.trouble

    # --- when ---

    def _turn(self) -> None:
        """Do what is to be done, as much as one turn may."""
        is_busy, error = False, "an error of its own"
        try:
            self._records.settle(self._store.flushed_offset)
            is_busy, error = self._work(), ""
        except (StoreError, OSError) as refused:
            error = str(refused)
        finally:
            self._telling.note_trouble(error or None)
            seconds = RETRY_SECONDS if error else 0.0 if is_busy else self._seconds()
            if self._runs and seconds is not None:
                self._alarm.set(seconds)

    def _seconds(self) -> float | None:
        """How long there is nothing to do, None for ever unless something comes."""
        due_ms = self._records.due_ms()
        seconds = None
        if due_ms is not None:
            ahead = (due_ms - self._clock.now_ms()) / 1000
            seconds = min(max(ahead, 0.0), LOOK_SECONDS_MAX)
        if self._records.has_leaving:
            seconds = SETTLE_SECONDS if seconds is None else min(seconds, SETTLE_SECONDS)
        return seconds

    # --- coming again ---

    def _work(self) -> bool:
        """Have messages come again that are due; whether there are more."""
        config, now_ms = self._settings.broker, self._clock.now_ms()
        until = self._clock.monotonic() + TURN_SECONDS
        if not self._page:
            size = min(config.pop_revive_max_return_size_per_read, PAGE_MAX)
            self._page.extend(self._records.due(now_ms, size))
        done: list[bytes] = []
        try:
            for _ in range(min(config.pop_revive_concurrency, len(self._page))):
                key = self._page[0]
                if self._comes_again(key, now_ms):
                    done.append(key)
                self._page.popleft()
                if self._clock.monotonic() >= until:
                    break
        finally:
            self._target = None
            self._records.leave(done, self._store.log_end_offset)
        due_ms = self._records.due_ms()
        return bool(self._page) or (due_ms is not None and due_ms <= now_ms)

    def _comes_again(self, key: bytes, now_ms: int) -> bool:
        """Have the message of a record come again; whether the record is done with."""
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
        """Put a message into its retry topic, unless it, its topic or its group is gone."""
        config = self._settings.broker
        target = self._target_of(record)
        if target is None:
            self._telling.place_gone(record.topic, record.group)
            return
        self._retries.put(target, record.queue_offset, now_ms)
        self._in_flight.done(record.topic, record.group, record.queue_id, 1)
        if config.pop_consumer_kv_service_log:
            log.info("popped message", extra={"what": "comes again", "record": record})

    def _target_of(self, record: KvRecord) -> Target | None:
        """Where a message goes: mostly that of the one before."""
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
        """Have a message that can't come again tried again later, unless it was too often."""
        times = record.attempt_times
        is_last = times >= self._settings.broker.pop_revive_max_attempt_times
        outcome = "is given up" if is_last else "is tried again later"
        place = record.topic, record.queue_id, record.queue_offset
        self._telling.failed(key, place, record.group, outcome, error)
        if is_last:
            return True
        waits_ms = TRIED_AGAIN_SECONDS[min(times, len(TRIED_AGAIN_SECONDS) - 1)] * 1000
        self._records.put([record.tried_again_at(now_ms + waits_ms)], [key])
        return False
