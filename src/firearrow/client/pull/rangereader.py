"""Reads a range of a queue from a broker, several pulls ahead, in order and without holes.

A broker limits the messages and the bytes of an answer (32 messages, or 256 KiB; less of records
that are no longer in memory), and its answer says where it ended. Waiting for that before the next
pull would cost a round trip each. So the reader cuts the range in advance into stretches, as long as
the latest answers were. Where an answer ends before its stretch does, the reader pulls the rest again.

Messages that retention has deleted meanwhile are either an error or skipped, and logged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from firearrow.client.queues import Queue, Span
from firearrow.client.session.answers import read_number
from firearrow.errors import MAY_PASS, BrokerError, DataLost, RemoteProtocolError
from firearrow.logs import Log
from firearrow.net.client import Client
from firearrow.net.futures import Pending
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

AHEAD: Final = 16  # pulls in flight: at 256 KiB an answer, 4 MiB
STRETCH_FIRST: Final = 32  # limit of an answer of an unchanged broker
STRETCH_MAX: Final = 1024
FILTERED_STRETCH: Final = 800  # entries that a broker examines for messages of some tags
GROW_AFTER: Final = 16  # full answers until the stretch grows
GROW_AFTER_MAX: Final = 256  # of a broker whose limit stays: each stretch that is too long costs another pull
ATTEMPTS_MAX: Final = 4
PAUSE_SECONDS: Final = 0.25  # before the second attempt; then twice as long each time

_SUBSCRIPTION_FLAG: Final = "4"
_NOTHING_HERE: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_REMOVING: Final = "MESSAGE_WAS_REMOVING"


class Addresses(Protocol):
    """Addresses of brokers."""

    async def address_of(self, queue: Queue, *, refresh: bool = False) -> str:
        """Address of a queue's broker; ``refresh`` if the last one did not answer."""


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Options of pulls: the consumer group, a subscription to tags, and whether a loss is an error."""

    group: str
    tags: tuple[str, ...] = ()
    fail_on_data_loss: bool = True

    def fields(self, queue: Queue, queue_offset: int, count: int) -> dict[str, FieldValue]:
        """Fields of a pull that does not wait for messages, as text: a request takes these as they are."""
        return {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count),
            "sysFlag": _SUBSCRIPTION_FLAG,
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": " || ".join(self.tags) or "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "bname": queue.broker,
        }


@dataclass(slots=True)
class _Stretch:
    """A part of the range, and the pull of it that is in flight."""

    start: int
    end: int
    pending: Pending


class RangeReader:
    """Reader of one range of one queue."""

    def __init__(self, client: Client, addresses: Addresses, options: PullOptions, queue: Queue, span: Span) -> None:
        self._client = client
        self._addresses = addresses
        self._options = options
        self._fields = options.fields(queue, 0, 0)
        self._queue = queue
        self._start = span.start
        self._at = span.start  # ``read`` has returned all before it
        self._pulled = span.start  # all before it is returned or in flight
        self._end = span.end
        self._stretch = FILTERED_STRETCH if options.tags else STRETCH_FIRST
        self._full_answers = 0
        self._grow_after = GROW_AFTER
        self._limit = 0  # messages of the last answer that ended early
        self._in_flight: deque[_Stretch] = deque()
        self._attempts = 1
        self._address = ""

    @property
    def is_done(self) -> bool:
        """Tell whether ``read`` has returned the whole range."""
        return self._at >= self._end

    async def read(self, bytes_min: int = 1) -> list[bytes]:
        """Read the next stored records, by the answer: at least ``bytes_min`` bytes, or the rest.

        Inner batches come whole: the first may begin before the range, the last may end behind it.
        Raises DataLost, ConnectionError, TimeoutError or BrokerError.
        """
        if not self._address:
            self._address = await self._addresses.address_of(self._queue)
        pieces: list[bytes] = []
        size = 0
        while size < bytes_min and not self.is_done:
            try:
                answer = await self._next_answer()
            except MAY_PASS as error:
                await self._prepare_retry(error)
                continue
            self._attempts = 1
            records = await self._take(self._in_flight.popleft(), answer)
            pieces.append(records)
            size += len(records)
        return pieces

    async def _next_answer(self) -> AnyCommand:
        """Keep enough pulls in flight, and wait for the first answer."""
        if len(self._in_flight) <= AHEAD // 2 and self._pulled < self._end:
            await self._pull_ahead()
        first = self._in_flight[0].pending
        if not first.done():  # one wake for several answers: their order is that of the pulls
            later = self._in_flight[min(AHEAD // 2, len(self._in_flight)) - 1].pending
            with suppress(OSError):  # it is raised when it is the first one's turn
                await later
        answer = await first
        if answer.code == 0 or answer.code in _NOTHING_HERE:
            return answer
        raise BrokerError.of(answer.code, answer.remark, self._address)

    async def _pull_ahead(self) -> None:
        """Pull more stretches; the client writes these pulls together."""
        assert self._at <= self._pulled <= self._end
        while self._pulled < self._end and len(self._in_flight) < AHEAD:
            end = min(self._pulled + self._stretch, self._end)
            self._in_flight.append(await self._pull(self._pulled, end))
            self._pulled = end

    async def _pull(self, start: int, end: int) -> _Stretch:
        fields = self._fields | {"queueOffset": str(start), "maxMsgNums": str(end - start)}
        return _Stretch(start, end, await self._client.begin(self._address, RequestCode.PULL_MESSAGE, fields))

    async def _prepare_retry(self, error: OSError | BrokerError) -> None:
        """Prepare another attempt: forget the pulls without an answer, and pause; the address may be another. Or raise
        the error."""
        if self._attempts == ATTEMPTS_MAX:
            raise error
        self._drop_pulls()
        await pause(self._attempts)
        self._attempts += 1
        try:
            self._address = await self._addresses.address_of(self._queue, refresh=True)
        except MAY_PASS:
            log.info(
                "no route to a queue: its last address is tried again",
                extra={**self._queue.fields, "address": self._address},
            )

    def _drop_pulls(self) -> None:
        self._in_flight.clear()
        self._pulled = self._at

    async def _take(self, stretch: _Stretch, answer: AnyCommand) -> bytes:
        """Take the records of an answer, and pull the rest of its stretch again."""
        next_offset = read_number(answer, "nextBeginOffset", self._address)
        records = answer.body if answer.code == 0 else b""
        if records:
            next_offset = max(next_offset, stretch.start + 1)
            first = _queue_offset_of(records)
            if first < stretch.start != self._start:  # an inner batch that came before
                records = records[int.from_bytes(records[:4], "big") :]
            if self._options.tags:
                records = _before(records, stretch.end)
            elif first > stretch.start:
                self._note_loss(stretch.start, min(first, stretch.end), "are deleted")
        elif self._is_lost(stretch, answer, next_offset):
            self._at = min(next_offset, self._end) if next_offset > self._at else self._end
            self._drop_pulls()
            return b""
        self._at = min(next_offset, stretch.end)
        if next_offset < stretch.end:
            self._in_flight.appendleft(await self._pull(next_offset, stretch.end))
        self._adapt(stretch, next_offset)
        return records

    def _is_lost(self, stretch: _Stretch, answer: AnyCommand, next_offset: int) -> bool:
        """Tell whether an answer without messages means that they are deleted; otherwise none had the tags."""
        start = stretch.start
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVING:
            if next_offset > start:
                return False
            raise RemoteProtocolError(f"{self._address} does not continue from offset {start} of {_named(self._queue)}")
        if next_offset > start:
            self._note_loss(start, min(next_offset, self._end), "are deleted")
        else:
            self._note_loss(start, self._end, f"are not there: the queue ends at {next_offset}")
        return True

    def _note_loss(self, start: int, end: int, how: str) -> None:
        text = f"offsets {start} to {end - 1} of {_named(self._queue)} {how}"
        if self._options.fail_on_data_loss:
            raise DataLost(f"{text} (failOnDataLoss=false skips them)")
        log.warning(
            "messages are skipped",
            extra={**self._queue.fields, "queue_offset": start, "end_queue_offset": end, "reason": how},
        )

    def _adapt(self, stretch: _Stretch, next_offset: int) -> None:
        """Make stretches as long as answers are."""
        if self._options.tags:
            return
        count = min(next_offset, stretch.end) - stretch.start
        if next_offset < stretch.end:
            if count < self._stretch:  # the first answer since the stretch has grown
                self._grow_after = min(2 * self._grow_after, GROW_AFTER_MAX)
            self._stretch = self._limit = max(min(count, STRETCH_MAX), 1)
            self._full_answers = 0
            return
        if count > self._limit:
            self._grow_after = GROW_AFTER
        self._full_answers += 1
        if self._full_answers >= self._grow_after:
            self._full_answers = 0
            self._stretch = min(2 * self._stretch, STRETCH_MAX)


async def pause(attempt: int) -> None:
    """Wait after the failure of an attempt, before the next one."""
    await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))


def _queue_offset_of(records: bytes) -> int:
    """Queue offset of the first of some records."""
    return int.from_bytes(records[20:28], "big")


def _before(records: bytes, end: int) -> bytes:
    """Records before a queue offset: a broker that filters may give others, too."""
    at = 0
    while at < len(records) and _queue_offset_of(records[at : at + 28]) < end:
        at += int.from_bytes(records[at : at + 4], "big")
    return records[:at]


def _named(queue: Queue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker}"
