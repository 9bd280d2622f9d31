"""Pulls a range of a queue from a broker, several answers ahead, in order and without holes.

A broker gives at most so many messages, or so many bytes, as its configuration says (32 messages,
or 256 KiB; less of what is no longer in memory), and its answer says where it ended. Waiting for
that before asking for more would cost a round trip each; so the range is cut in advance into
stretches of as many messages as answers have had lately. Where an answer ends before its stretch
does, the rest is asked for again.

What retention has deleted meanwhile is either an error or skipped, and logged.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from firearrow.client.answers import read_number
from firearrow.client.queues import Queue, Span
from firearrow.errors import MAY_PASS, BrokerError, DataLost, RemoteProtocolError
from firearrow.net.blocking import BlockingClient, Pending
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

log = logging.getLogger(__name__)

AHEAD: Final = 16  # pulls under way: at 256 KiB an answer, 4 MiB
STRETCH_FIRST: Final = 32  # what an unchanged broker gives at most
STRETCH_MAX: Final = 1024
FILTERED_STRETCH: Final = 800  # entries that a broker looks at for messages of some tags
GROW_AFTER: Final = 16  # full answers until more is asked for
ATTEMPTS_MAX: Final = 4
PAUSE_SECONDS: Final = 0.25  # before the second attempt; then twice as long each time

_SUBSCRIPTION_FLAG: Final = 4
_NOTHING_HERE: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_REMOVING: Final = "MESSAGE_WAS_REMOVING"


class Addresses(Protocol):
    """Where brokers are."""

    def address_of(self, queue: Queue, *, anew: bool = False) -> str:
        """The address of a queue's broker; ``anew`` if the last one did not answer."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for what: the consumer group, a subscription to tags, and how to take a loss."""

    group: str
    tags: tuple[str, ...] = ()
    fail_on_data_loss: bool = True

    def fields(self, queue: Queue, queue_offset: int, count: int) -> dict[str, FieldValue]:
        """The fields of a pull that does not wait for messages."""
        return {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": queue_offset,
            "maxMsgNums": count,
            "sysFlag": _SUBSCRIPTION_FLAG,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": " || ".join(self.tags) or "*",
            "subVersion": 0,
            "expressionType": "TAG",
            "bname": queue.broker,
        }


@dataclass(slots=True)
class _Stretch:
    """A part of the range that has been asked for."""

    start: int
    end: int
    pending: Pending


class Pulls:
    """One range of one queue."""

    def __init__(self, client: BlockingClient, addresses: Addresses, asking: Asking, queue: Queue, span: Span) -> None:
        self._client = client
        self._addresses = addresses
        self._asking = asking
        self._queue = queue
        self._start = span.start
        self._at = span.start  # what is before it has been given
        self._asked = span.start  # what is before it has been asked for
        self._end = span.end
        self._stretch = FILTERED_STRETCH if asking.tags else STRETCH_FIRST
        self._full_answers = 0
        self._under_way: deque[_Stretch] = deque()
        self._attempts = 1
        self._address = addresses.address_of(queue)

    def __iter__(self) -> Iterator[bytes]:
        """Stored records one after another, by the piece.

        Inner batches are given whole: the first may begin before the range, the last end behind it.
        Raises DataLost, ConnectionError, TimeoutError or BrokerError.
        """
        while self._at < self._end:
            try:
                answer = self._next_answer()
            except MAY_PASS as error:
                self._prepare_again(error)
                continue
            self._attempts = 1
            records = self._take(self._under_way.popleft(), answer)
            if records:
                yield records

    def _next_answer(self) -> AnyCommand:
        """Keep enough under way and wait for the first answer of it."""
        if len(self._under_way) <= AHEAD // 2 and self._asked < self._end:
            self._ask_ahead()
        answer = self._under_way[0].pending.answer()
        if answer.code == 0 or answer.code in _NOTHING_HERE:
            return answer
        raise BrokerError.of(answer.code, answer.remark, self._address)

    def _ask_ahead(self) -> None:
        """Ask for more stretches by one write: a write costs more than its bytes."""
        assert self._at <= self._asked <= self._end
        spans: list[Span] = []
        while self._asked < self._end and len(self._under_way) + len(spans) < AHEAD:
            end = min(self._asked + self._stretch, self._end)
            spans.append(Span(self._asked, end))
            self._asked = end
        self._under_way += self._ask(spans)

    def _ask(self, spans: Sequence[Span]) -> list[_Stretch]:
        each = [self._asking.fields(self._queue, s.start, s.end - s.start) for s in spans]
        asked = self._client.begin_all(self._address, RequestCode.PULL_MESSAGE, each)
        return [_Stretch(*span, pending) for span, pending in zip(spans, asked, strict=True)]

    def _prepare_again(self, error: OSError | BrokerError) -> None:
        """Ask again for all without an answer, perhaps at another address; or raise the error."""
        if self._attempts == ATTEMPTS_MAX:
            raise error
        pause(self._attempts)
        self._attempts += 1
        self._under_way.clear()
        self._asked = self._at
        try:
            self._address = self._addresses.address_of(self._queue, anew=True)
        except MAY_PASS:
            log.info(
                "no route to a queue: its last address is tried again",
                extra={**self._queue.fields, "address": self._address},
            )

    def _take(self, stretch: _Stretch, answer: AnyCommand) -> bytes:
        """The records of an answer; what it left of its stretch is asked for again."""
        next_offset = read_number(answer, "nextBeginOffset", self._address)
        records = answer.body if answer.code == 0 else b""
        if records:
            next_offset = max(next_offset, stretch.start + 1)
            first = _queue_offset_of(records)
            if first < stretch.start != self._start:  # an inner batch that was given before
                records = records[int.from_bytes(records[:4], "big") :]
            if self._asking.tags:
                records = _before(records, stretch.end)
            elif first > stretch.start:
                self._lost(stretch.start, min(first, stretch.end), "are deleted")
        elif self._is_lost(stretch, answer, next_offset):
            self._under_way.clear()
            self._at = self._asked = min(next_offset, self._end) if next_offset > self._at else self._end
            return b""
        self._at = min(next_offset, stretch.end)
        if next_offset < stretch.end:
            self._under_way.extendleft(self._ask([Span(next_offset, stretch.end)]))
        self._adapt(stretch, next_offset)
        return records

    def _is_lost(self, stretch: _Stretch, answer: AnyCommand, next_offset: int) -> bool:
        """Whether an answer without messages means that they are gone; else none had the tags."""
        start = stretch.start
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVING:
            if next_offset > start:
                return False
            raise RemoteProtocolError(f"{self._address} does not continue from offset {start} of {_named(self._queue)}")
        if next_offset > start:
            self._lost(start, min(next_offset, self._end), "are deleted")
        else:
            self._lost(start, self._end, f"are not there: the queue ends at {next_offset}")
        return True

    def _lost(self, start: int, end: int, how: str) -> None:
        text = f"offsets {start} to {end - 1} of {_named(self._queue)} {how}"
        if self._asking.fail_on_data_loss:
            raise DataLost(f"{text} (failOnDataLoss=false skips them)")
        log.warning(
            "messages are skipped",
            extra={**self._queue.fields, "queue_offset": start, "end_queue_offset": end, "reason": how},
        )

    def _adapt(self, stretch: _Stretch, next_offset: int) -> None:
        """Ask for as much as answers hold."""
        if self._asking.tags:
            return
        if next_offset < stretch.end:
            self._stretch = max(min(next_offset - stretch.start, STRETCH_MAX), 1)
            self._full_answers = 0
            return
        self._full_answers += 1
        if self._full_answers == GROW_AFTER:
            self._full_answers = 0
            self._stretch = min(2 * self._stretch, STRETCH_MAX)


def pause(attempt: int) -> None:
    """Wait before what has failed for the ``attempt``th time is tried again."""
    threading.Event().wait(PAUSE_SECONDS * 2 ** (attempt - 1))


def _queue_offset_of(records: bytes) -> int:
    """The queue offset of the first of some records."""
    return int.from_bytes(records[20:28], "big")


def _before(records: bytes, end: int) -> bytes:
    """The records before a queue offset: a broker that filters may give others, too."""
    at = 0
    while at < len(records) and _queue_offset_of(records[at : at + 28]) < end:
        at += int.from_bytes(records[at : at + 4], "big")
    return records[:at]


def _named(queue: Queue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker}"
