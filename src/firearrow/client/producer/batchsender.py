"""Send batches of messages to brokers, several in flight; each is acknowledged or retried.

One coroutine at a time uses a sender. It keeps several batches in flight to each broker; at their limit, it waits for
the oldest. If a broker refuses a batch for a temporary reason, or does not answer, the batch goes to another queue, on
another broker if possible. The first broker may have stored it nevertheless, so a message is sent at least once.

A batch for one queue goes to that queue only. The next batch to this queue leaves after the acknowledgement of the one
before, so batches stay in order.

With ``note_half`` each message is a half message, which no consumer sees until it is committed. Halves are in no order
before their commit, so halves for one queue do not wait for each other. A half that is sent again leaves another half,
and the caller commits only the acknowledged one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

from firearrow.client.producer.drafts import NEW_TOPIC_QUEUES, send_fields
from firearrow.client.queues import Queue
from firearrow.client.routing.nameservers import NameServers
from firearrow.client.routing.queues import WritableQueue, writable
from firearrow.clock import Clock, SystemClock
from firearrow.errors import (
    MAY_PASS,
    BrokerError,
    BrokerUnavailable,
    InvalidRequest,
    NotDurable,
    NotPermitted,
    TopicNotFound,
)
from firearrow.message.batch import split_batch
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.message.sysflag import TRANSACTION_PREPARED
from firearrow.net.client import Client
from firearrow.net.futures import Pending
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.frame import AnyCommand

IN_FLIGHT_MAX: Final = 16  # batches to one broker: enough to keep it busy meanwhile
HALVES_IN_FLIGHT_MAX: Final = 256  # single messages: as many as a broker takes in some turns
IN_FLIGHT_BYTES_MAX: Final = 2 << 20  # about as much as sockets take: with more, the client would copy once more
PAUSE_SECONDS: Final = 0.25  # before the first retry; then twice as long each time
PAUSE_SECONDS_MAX: Final = 5.0

_TRY_ELSEWHERE: Final = (NotPermitted, TopicNotFound)


class BatchBody(NamedTuple):
    """Messages of one topic as the body of a batch send; ``alone`` for a single message.

    With a ``target``, the batch must go to that queue.
    """

    topic: str
    members: bytes
    messages: int
    alone: bool
    target: WritableQueue | None

    def halves(self) -> tuple[BatchBody, BatchBody]:
        """First and second half of the messages, at least two."""
        half = self.messages // 2
        assert half
        at = 0
        for _ in range(half):
            at += int.from_bytes(self.members[at : at + 4], "big")
        first = self._replace(members=self.members[:at], messages=half)
        return first, self._replace(members=self.members[at:], messages=self.messages - half)


@dataclass(slots=True)
class _Batch:
    """Messages to send, and their attempts up to now."""

    piece: BatchBody
    number: int  # of all messages or batches that the caller has given
    attempts: int = 0
    failed_on: str = ""  # the broker of the last failure


@dataclass(slots=True)
class _Flight:
    """A batch in flight."""

    batch: _Batch
    target: WritableQueue
    pending: Pending


@dataclass(frozen=True, slots=True)
class SendCounts:
    """Counts of acknowledged messages, batches and retries."""

    messages: int
    batches: int
    retries: int
    not_durable: int  # messages that a flush or a replica did not confirm in time

    def __add__(self, other: SendCounts) -> SendCounts:
        """Sum of both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return SendCounts(*(mine + theirs for mine, theirs in pairs))


NoteHalf = Callable[[int, BatchBody, WritableQueue, AnyCommand], None]
"""Called with each half that is stored, its number in the order of sending, its queue, and the broker's answer. A half
that is sent again comes after others with higher numbers."""


class BatchSender:
    """Sends messages of a producer group; ``retries`` is the limit for one batch.

    With ``broker_name``, it sends to that broker only. With ``note_half``, all batches have one message, whose
    properties say that it is a half.
    """

    def __init__(
        self,
        client: Client,
        name_servers: NameServers,
        group: str,
        *,
        retries: int,
        broker_name: str | None = None,
        note_half: NoteHalf | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._name_servers = name_servers
        self._group = group
        self._retries_max = retries
        self._broker_name = broker_name
        self._note_half = note_half
        self._in_flight_max = IN_FLIGHT_MAX if note_half is None else HALVES_IN_FLIGHT_MAX
        self._clock = clock or SystemClock()
        self._targets: dict[str, list[WritableQueue]] = {}
        self._turn = 0
        self._number = 0
        self._flights: deque[_Flight] = deque()
        self._in_flight: Counter[str] = Counter()
        self._in_flight_bytes: Counter[str] = Counter()
        self._pinned: Counter[tuple[str, str, int] | None] = Counter()
        self._messages = self._batches = self._retries = self._not_durable = 0

    @property
    def sent(self) -> SendCounts:
        """Counts of acknowledged messages, batches and retries up to now."""
        return SendCounts(self._messages, self._batches, self._retries, self._not_durable)

    async def send(self, pieces: Iterable[BatchBody]) -> None:
        """Send messages. Some of them may still be in flight afterwards: see ``finish``.

        Raises BrokerError, ConnectionError or TimeoutError for messages that could not be sent; the text names them.
        """
        for piece in pieces:
            self._number += 1
            await self._launch(_Batch(piece, self._number))

    async def finish(self) -> SendCounts:
        """Wait until all batches are acknowledged; raises as ``send``."""
        while self._flights:
            await self._land()
        return self.sent

    # --- in flight ---

    async def _launch(self, batch: _Batch) -> None:
        """Send a batch as soon as there is room."""
        while True:
            try:
                target = await self._target_of(batch)
            except MAY_PASS as error:
                await self._note_failure(batch, error, batch.failed_on)
                continue
            while self._is_full(batch, target):
                await self._land()
            try:
                pending = await self._begin(batch.piece, target)
            except MAY_PASS as error:
                await self._note_failure(batch, error, target.broker_name)
                continue
            self._flights.append(_Flight(batch, target, pending))
            self._in_flight[target.address] += 1
            self._in_flight_bytes[target.address] += len(batch.piece.members)
            self._pinned[_queue_of(batch)] += 1
            return

    def _is_full(self, batch: _Batch, target: WritableQueue) -> bool:
        if self._note_half is None and batch.piece.target is not None and self._pinned[_queue_of(batch)]:
            return True
        count, size = self._in_flight[target.address], self._in_flight_bytes[target.address]
        return count >= self._in_flight_max or (count > 0 and size + len(batch.piece.members) > IN_FLIGHT_BYTES_MAX)

    async def _land(self) -> None:
        """Wait for the oldest batch, and retry it after a failure."""
        flight = self._flights.popleft()
        batch = flight.batch
        self._in_flight[flight.target.address] -= 1
        self._in_flight_bytes[flight.target.address] -= len(batch.piece.members)
        self._pinned[_queue_of(batch)] -= 1
        try:
            answer = await flight.pending
            if answer.code != 0:
                raise BrokerError.of(answer.code, answer.remark, flight.target.address)
        except NotDurable:
            self._not_durable += batch.piece.messages  # stored already: a retry would store it twice
        except (*MAY_PASS, *_TRY_ELSEWHERE) as error:
            await self._note_failure(batch, error, flight.target.broker_name)
            await self._launch(batch)
            return
        except BrokerError as error:
            await self._part(batch, error)
            return
        if self._note_half is not None:
            self._note_half(batch.number, batch.piece, flight.target, answer)
        self._messages += batch.piece.messages
        self._batches += 1

    async def _part(self, batch: _Batch, error: BrokerError) -> None:
        """Send the halves of a refused batch, if a part of it can be the reason.

        The broker may refuse one message, or its ``maxMessageSize`` may be below the size of the batch.
        """
        if not isinstance(error, InvalidRequest) or batch.piece.messages == 1:
            raise self._explained(batch, error) from None
        for half in batch.piece.halves():
            await self._launch(_Batch(half, batch.number))

    async def _note_failure(self, batch: _Batch, error: OSError | BrokerError, broker_name: str) -> None:
        """Prepare another attempt, or raise the error after the last one."""
        piece = batch.piece
        batch.attempts += 1
        known = self._targets.pop(piece.topic, [])  # it may be out of date
        others = {target.broker_name for target in known} - {broker_name, batch.failed_on}
        elsewhere = piece.target is None and bool(others)
        final = isinstance(error, _TRY_ELSEWHERE) and not elsewhere
        if final or batch.attempts > self._retries_max:
            raise self._explained(batch, error) from None
        self._retries += 1
        batch.failed_on = broker_name
        if not elsewhere:
            await _pause(batch.attempts)

    def _explained(self, batch: _Batch, error: OSError | BrokerError) -> OSError | BrokerError:
        """Error that counts the messages that could not be sent and those that were."""
        tried = "" if batch.attempts < 2 else f" in {batch.attempts} attempts"
        piece = batch.piece
        what = (
            f"{piece.messages} messages ({len(piece.members)} bytes) to topic {piece.topic!r} were "
            f"not taken{tried}; {self._messages} of this task were"
        )
        if isinstance(error, BrokerError):
            remark = f"{error.remark or 'no remark'}; {what}"
            return type(error)(error.code, remark, error.address)
        return type(error)(f"{error}; {what}")

    # --- requests ---

    async def _begin(self, piece: BatchBody, target: WritableQueue) -> Pending:
        now_ms = self._clock.now_ms()
        place = Queue(piece.topic, target.broker_name, target.queue_id)
        fields = send_fields(self._group, place, now_ms, batch=not piece.alone)
        if not piece.alone:
            return await self._client.begin(target.address, RequestCode.SEND_BATCH_MESSAGE, fields, piece.members)
        [member] = split_batch(piece.members)
        if self._note_half is not None:
            assert piece.alone
            fields["f"] = str(TRANSACTION_PREPARED)
        fields["h"] = member.flag
        fields["i"] = member.properties.decode("utf-8", "replace")
        return await self._client.begin(target.address, RequestCode.SEND_MESSAGE_V2, fields, member.body)

    # --- targets ---

    async def _target_of(self, batch: _Batch) -> WritableQueue:
        """Queue that a batch must go to, at its present address; without one, the next queue in turn.

        The queue in turn is on another broker than the last failure, if possible.
        """
        piece = batch.piece
        targets = await self._targets_of(piece.topic)
        if piece.target is not None:
            name, _, queue_id = piece.target
            for target in targets:
                if (target.broker_name, target.queue_id) == (name, queue_id):
                    return target
            raise BrokerUnavailable(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"queue {queue_id} of {name} is not writable any more"
            )
        others = [target for target in targets if target.broker_name != batch.failed_on]
        self._turn += 1
        return (others or targets)[self._turn % len(others or targets)]

    async def targets_of(self, topic: str) -> list[WritableQueue]:
        """Writable queues of a topic, in the order of RocketMQ's clients.

        Raises TopicNotFound, or NotPermitted if no broker takes messages for the topic.
        """
        for attempt in range(1, self._retries_max + 1):
            try:
                return await self._targets_of(topic)
            except MAY_PASS:
                await _pause(attempt)
        return await self._targets_of(topic)

    async def _targets_of(self, topic: str) -> list[WritableQueue]:
        """``targets_of`` without retries."""
        targets = self._targets.get(topic)
        if targets is None:
            targets = self._targets[topic] = await self._find_targets(topic)
        return targets

    async def _find_targets(self, topic: str) -> list[WritableQueue]:
        queues_max = None
        try:
            route = await self._name_servers.route(topic)
        except TopicNotFound as error:
            try:
                route = await self._name_servers.route(AUTO_CREATE_TOPIC)
            except TopicNotFound:
                raise error from None
            queues_max = NEW_TOPIC_QUEUES
        targets = writable(route, queues_max)
        if self._broker_name is not None:
            targets = [target for target in targets if target.broker_name == self._broker_name]
        if not targets:
            only = "" if self._broker_name is None else f" named {self._broker_name!r}"
            raise NotPermitted(ResponseCode.NO_PERMISSION, f"no broker{only} allows writing to topic {topic!r}")
        return targets


def _queue_of(batch: _Batch) -> tuple[str, str, int] | None:
    """Queue that a batch must go to, without the broker's address; None if any will do."""
    target = batch.piece.target
    return None if target is None else (batch.piece.topic, target.broker_name, target.queue_id)


async def _pause(attempt: int) -> None:
    await asyncio.sleep(min(PAUSE_SECONDS * 2 ** (attempt - 1), PAUSE_SECONDS_MAX))
