"""Sends the records of a message trace to the trace topic, a few at a time and in the background.

Nobody waits for it, and records that can't be kept or sent are dropped: a trace must not stop what
it is about. How many were dropped is said in the log.

Source: upstream ``AsyncTraceDispatcher``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from firearrow.client.drafts import Draft
from firearrow.client.sender import Rules, Sender
from firearrow.client.session import Session
from firearrow.client.tracerecords import Record
from firearrow.errors import FirearrowError
from firearrow.message import properties as keys_of
from firearrow.message.names import TRACE_TOPIC

log = logging.getLogger(__name__)

HELD_MAX: Final = 16_384  # records, of some 500 bytes: a second of sends. Java has 2048
BATCH_MAX: Final = 20  # records of a message
FLUSH_SECONDS: Final = 5.0
MESSAGE_CHARACTERS_MAX: Final = 128_000
CLOSE_SECONDS_MAX: Final = 5.0
_RULES: Final = Rules(timeout_seconds=5.0)


class Tracer:
    """The trace of one producer or consumer; ``kind`` is ``PRODUCE`` or ``CONSUME``."""

    def __init__(self, session: Session, group: str, kind: str, trace_topic: str = TRACE_TOPIC) -> None:
        self._session = session
        self._topic = trace_topic
        self._poster = Sender(session, f"_INNER_TRACE_PRODUCER-{group}-{kind}", _RULES)
        self._held: deque[Record] = deque()
        self._wakes = asyncio.Event()
        self._is_closing = False
        self.dropped = 0
        self._dropped_said = 0
        self._running = session.tasks.start(self._run(), f"trace of {group}")

    def add(self, record: Record) -> None:
        """Have a record sent soon."""
        if record.topic == self._topic:
            return
        if len(self._held) >= HELD_MAX:
            self.dropped += 1
            return
        self._held.append(record)
        if len(self._held) >= BATCH_MAX:
            self._wakes.set()

    async def close(self) -> None:
        """Send what is held, for as long as that may take, and end."""
        self._is_closing = True
        self._wakes.set()
        if not await self._running.ended(CLOSE_SECONDS_MAX):
            await self._running.stop()
            self.dropped += len(self._held)
            self._say_dropped("the end came first")
        self._poster.close()

    async def _run(self) -> None:
        while not (self._is_closing and not self._held):
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._wakes.wait()
            except TimeoutError:
                pass
            if not self._is_closing:
                self._wakes.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._held:
            some = list(islice(self._held, BATCH_MAX))
            for draft, count in self._drafts(some):
                try:
                    await self._poster.post(draft)
                except (OSError, FirearrowError) as error:
                    self.dropped += count
                    self._say_dropped(error)
            for _ in some:
                self._held.popleft()
        self._say_dropped(f"more than {HELD_MAX} were held")

    def _say_dropped(self, reason: Exception | str) -> None:
        if self.dropped > self._dropped_said:
            fields = {"topic": self._topic, "records": self.dropped - self._dropped_said}
            log.warning("trace is dropped", extra={**fields, "error": reason})
            self._dropped_said = self.dropped

    def _drafts(self, records: list[Record]) -> Iterator[tuple[Draft, int]]:
        """Messages of records of one topic each, with the number of these."""
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        for some in by_topic.values():
            part: list[Record] = []
            size = 0
            for record in some:
                if part and size + len(record.text) > MESSAGE_CHARACTERS_MAX:
                    yield self._draft(part), len(part)
                    part, size = [], 0
                part.append(record)
                size += len(record.text)
            yield self._draft(part), len(part)

    def _draft(self, records: list[Record]) -> Draft:
        keys = dict.fromkeys(key for record in records for key in record.keys)
        found = {keys_of.KEYS: " ".join(keys), keys_of.UNIQUE_KEY: self._session.ids.next()}
        body = "".join(record.text for record in records).encode()
        return Draft(self._session.topic(self._topic), body, found, 0)
