"""Send the records of a message trace to the trace topic, in small batches in the background.

No send or handler waits for it. Records that do not fit or can't be sent are dropped, since a trace must not stop the
traced work. The log counts dropped records.

Source: RocketMQ's ``AsyncTraceDispatcher``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from firearrow.client.message import Message
from firearrow.client.producer.drafts import Draft, Receipt
from firearrow.client.producer.sender import PostResult, Rules, Sender
from firearrow.client.producer.transactions import Decision
from firearrow.client.session.session import Session
from firearrow.client.tracing import records as tracerecords
from firearrow.client.tracing.records import ConsumeReturnType, Record, SendKind, sub_after, sub_before
from firearrow.errors import FirearrowError
from firearrow.logs import Log
from firearrow.message import properties as keys_of
from firearrow.message.names import TRACE_TOPIC
from firearrow.message.sysflag import TRANSACTION_PREPARED

log: Final = Log(__name__)

HELD_MAX: Final = 16_384  # records of about 500 bytes: a second of sends. Java has 2048
BATCH_MAX: Final = 20  # records in a message
FLUSH_SECONDS: Final = 5.0
MESSAGE_CHARACTERS_MAX: Final = 128_000
CLOSE_SECONDS_MAX: Final = 5.0
_RULES: Final = Rules(timeout_seconds=5.0)


class Tracer:
    """Trace of one producer or consumer; ``kind`` is ``PRODUCE`` or ``CONSUME``."""

    def __init__(self, session: Session, group: str, kind: str, trace_topic: str = TRACE_TOPIC) -> None:
        self._session = session
        self._topic = trace_topic
        self._poster = Sender(session, f"_INNER_TRACE_PRODUCER-{group}-{kind}", _RULES)
        self._held: deque[Record] = deque()
        self._wakes = asyncio.Event()
        self._is_closing = False
        self.dropped: int = 0
        self._dropped_said = 0
        self._running = session.tasks.start(self._run(), f"trace of {group}")

    def add(self, record: Record) -> None:
        """Send a record soon."""
        if record.topic == self._topic:
            return
        if len(self._held) >= HELD_MAX:
            self.dropped += 1
            return
        self._held.append(record)
        if len(self._held) >= BATCH_MAX:
            self._wakes.set()

    async def close(self) -> None:
        """Send the pending records, for a time at most, and end."""
        self._is_closing = True
        self._wakes.set()
        if not await self._running.ended(CLOSE_SECONDS_MAX):
            await self._running.stop()
            self.dropped += len(self._held)
            self._say_dropped("no time was left at the end")
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
        self._say_dropped(f"more than {HELD_MAX} were pending")

    def _say_dropped(self, reason: Exception | str) -> None:
        if self.dropped > self._dropped_said:
            fields = {"topic": self._topic, "records": self.dropped - self._dropped_said}
            log.warning("trace records are dropped", extra={**fields, "error": reason})
            self._dropped_said = self.dropped

    def _drafts(self, records: list[Record]) -> Iterator[tuple[Draft, int]]:
        """Messages with records of one topic each, and their counts of records."""
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


# --- consumer's side ---
#
# Source: RocketMQ's ``ConsumeMessageTraceHookImpl``.


DEFAULT_REGION: Final = "DefaultRegion"


class ConsumeTrace:
    """Trace of one consumer; ``add`` gets its records."""

    def __init__(self, session: Session, group: str, add: Callable[[Record], None]) -> None:
        self._session = session
        self._group = session.bare(group)
        self._add = add

    def begin(self, messages: Sequence[Message]) -> str:
        """Record the start of a handler call; returns the id of the call."""
        request_id, now_ms = self._session.ids.next(), self._session.clock.now_ms()
        for message in _traced(messages):
            self._add(
                sub_before(
                    time_ms=now_ms,
                    region=message.properties.get(keys_of.MSG_REGION, DEFAULT_REGION),
                    group=self._group,
                    request_id=request_id,
                    topic=message.topic,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(keys_of.KEYS),
                )
            )
        return request_id

    def end(self, request_id: str, messages: Sequence[Message], took: float, *, ok: bool) -> None:
        """Record the end of a handler call, which took ``took`` seconds."""
        now_ms = self._session.clock.now_ms()
        for message in _traced(messages):
            self._add(
                sub_after(
                    time_ms=now_ms,
                    group=self._group,
                    request_id=request_id,
                    topic=message.topic,
                    message_id=message.message_id,
                    cost_ms=int(took * 1000) // len(messages),
                    success=ok,
                    keys=message.properties.get(keys_of.KEYS),
                    outcome=ConsumeReturnType.SUCCESS if ok else ConsumeReturnType.EXCEPTION,
                )
            )


def _traced(messages: Sequence[Message]) -> list[Message]:
    """Messages whose sender has not switched the trace off."""
    return [one for one in messages if one.properties.get(keys_of.TRACE_ON) != "false"]


# --- producer's side ---


_STATES = {Decision.COMMIT: "COMMIT_MESSAGE", Decision.ROLLBACK: "ROLLBACK_MESSAGE", Decision.UNKNOWN: "UNKNOW"}


class SendTrace:
    """Trace of one producer; ``add`` gets its records."""

    def __init__(self, session: Session, group: str, add: Callable[[Record], None]) -> None:
        self._session = session
        self._group = group
        self._add = add

    def sent(self, drafts: Sequence[Draft], receipts: Sequence[Receipt], posted: PostResult, sys_flag: int) -> None:
        """Record the send of a message or batch, unless the broker disables traces."""
        whole = posted.receipt
        if not whole.trace_on:
            return
        first = drafts[0].properties
        self._add(
            tracerecords.pub(
                time_ms=posted.began_ms,
                region=whole.region,
                group=self._session.bare(self._group),
                topic=whole.topic,
                message_id=",".join(receipt.message_id for receipt in receipts),
                tags=first.get(keys_of.TAGS),
                keys=first.get(keys_of.KEYS),
                store_host=posted.address,
                body_bytes=sum(len(draft.body) for draft in drafts),
                cost_ms=posted.took_ms,
                kind=_kind_of(drafts[0], sys_flag),
                offset_message_id=whole.offset_message_id,
            )
        )

    def decided(self, receipt: Receipt, decision: Decision, from_check: bool) -> None:
        """Record the decision about a transaction."""
        self._add(
            tracerecords.end_transaction(
                time_ms=self._session.clock.now_ms(),
                region=receipt.region,
                group=self._session.bare(self._group),
                topic=receipt.topic,
                message_id=receipt.message_id,
                tags=None,
                keys=None,
                store_host=self._session.address_of(receipt.queue.broker, any_will_do=True),
                transaction_id=receipt.transaction_id or receipt.message_id,
                state=_STATES[decision],
                from_check=from_check,
            )
        )


def _kind_of(draft: Draft, sys_flag: int) -> SendKind:
    if sys_flag & TRANSACTION_PREPARED:
        return SendKind.HALF
    if draft.waits:
        return SendKind.DELAYED
    return SendKind.ORDERED if keys_of.SHARDING_KEY in draft.properties else SendKind.NORMAL
