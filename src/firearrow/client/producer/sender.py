"""Send messages to brokers by RocketMQ's rules: choice of queue, retries, timeouts.

A message without a fixed queue is tried on one broker after another; one timeout counts for all attempts. The retried
failures are a lost connection, a missing answer, and the codes in `RETRIED`. The broker that failed may have stored the
message nevertheless, so it is sent at least once. A message for one queue, chosen by its key, by a function or by name,
is tried once.

Source: RocketMQ's ``DefaultMQProducerImpl#sendDefaultImpl``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from firearrow.client.producer.choosing import Detector, FaultTable, Turns, by_hash, choose
from firearrow.client.producer.drafts import NEW_TOPIC_QUEUES, STATUS_OF, Draft, Receipt, SendStatus, send_fields
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import publish_queues
from firearrow.client.session.answers import read_number
from firearrow.client.session.session import Session
from firearrow.errors import BrokerError, FirearrowError, NotPermitted, SendFailed, TopicNotFound
from firearrow.message import properties as keys_of
from firearrow.message.names import AUTO_CREATE_TOPIC, is_retry
from firearrow.wire.bodies import Route
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
PAUSE_SECONDS: Final = 0.1  # before another attempt on the only broker; then twice as long

Selector = Callable[[Sequence[Queue]], Queue]
"""Chooses one of a topic's queues, which it gets without a namespace."""


class Rules(msgspec.Struct, frozen=True):
    """Rules of a producer's sends.

    ``retries`` is for messages without a fixed queue. ``try_seconds`` limits each attempt but the last. ``detects``,
    together with ``avoids_slow``, asks brokers without an answer again every 3 s; until they answer, messages go to
    other brokers if possible. ``retries_if_not_stored`` tries another broker also when a flush or a replica did not
    confirm a message; the message is then stored twice.
    """

    retries: int = 2
    timeout_seconds: float = 3.0
    try_seconds: float | None = None
    retries_if_not_stored: bool = False
    avoids_slow: bool = False
    detects: bool = False
    retried: frozenset[int] = RETRIED


class QueueChoice(NamedTuple):
    """Choice of a message's queue; at most one field may be set."""

    queue: Queue | None = None
    selector: Selector | None = None
    sharding_key: str | None = None

    @property
    def is_fixed(self) -> bool:
        """Tell whether only one queue will do."""
        return self != ANYWHERE


ANYWHERE: Final = QueueChoice()


class PostResult(msgspec.Struct, frozen=True):
    """Receipt of a message, with the broker's address and the times of the send."""

    receipt: Receipt
    address: str
    began_ms: int
    took_ms: int


class _Attempt(msgspec.Struct, frozen=True):
    queue: Queue
    broker: str
    address: str


class _TopicQueues:
    """Writable queues of a topic, and the next in turn."""

    __slots__ = ("brokers", "queues", "turns")

    def __init__(self, queues: list[Queue], turns: Turns) -> None:
        self.queues = queues
        self.turns = turns
        self.brokers = {queue.broker for queue in queues}


class Sender:
    """Sender of a producer group; times are by the session's clock."""

    def __init__(self, session: Session, group: str, rules: Rules) -> None:
        self._session = session
        self._group = group
        self._rules = rules
        self._topics: dict[str, _TopicQueues] = {}
        self._faults = FaultTable() if rules.avoids_slow else None
        self._detecting = (
            Detector(session, self._faults, self._queue_of) if self._faults is not None and rules.detects else None
        )
        self._refreshing: set[str] = set()
        self._stop_listening = session.on_route(self._route_changed)

    def close(self) -> None:
        """Stop listening to routes."""
        self._stop_listening()
        if self._detecting is not None:
            self._detecting.close()

    async def queues(self, topic: str) -> list[Queue]:
        """Writable queues of a topic; raises as a route does, and NotPermitted."""
        return list((await self._topic(topic)).queues)

    async def post(
        self,
        draft: Draft,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        sys_flag: int = 0,
        body: bytes | None = None,
        place: QueueChoice = ANYWHERE,
        timeout_seconds: float | None = None,
    ) -> PostResult:
        """Send a message, with ``body`` in place of the draft's if given. Raises SendFailed with the reason.

        ``code`` 320 makes it a batch, 325 a reply.
        """
        session, rules = self._session, self._rules
        seconds = rules.timeout_seconds if timeout_seconds is None else timeout_seconds
        began = session.clock.monotonic()
        fields, data = self._fields(draft, code, sys_flag), draft.body if body is None else body
        tries_max = 1 if place.is_fixed else 1 + rules.retries
        kept: PostResult | None = None
        chosen: _Attempt | None = None
        failure: Exception | None = None
        tries = 0
        for tried in range(tries_max):
            left = began + seconds - session.clock.monotonic()
            if left <= 0:
                break
            tries += 1
            if rules.try_seconds is not None and tries < tries_max:
                left = min(left, rules.try_seconds)
            try:
                topic = self._topics.get(draft.topic) or await self._topic(draft.topic)
                chosen = self._choose(topic, place, chosen)
                posted = await self._try(draft, chosen, code, fields, data, left)
            except BrokerError as error:
                failure = error
                if error.code not in rules.retried or chosen is None:
                    break
            except OSError as error:
                failure = error
                if chosen is None:
                    break
                self._refresh_soon(draft.topic)
            else:
                kept = posted
                if posted.receipt.status is SendStatus.SEND_OK or not rules.retries_if_not_stored:
                    return posted
            if tries < tries_max:
                await self._pause(draft.topic, tried, began + seconds)
        if kept is not None:
            return kept
        raise self._failed(draft, chosen, tries, failure, seconds) from failure

    async def post_one_way(
        self, draft: Draft, *, sys_flag: int = 0, body: bytes | None = None, place: QueueChoice = ANYWHERE
    ) -> None:
        """Send a one-way message. Raises SendFailed if it could not be written to a connection."""
        fields = self._fields(draft, RequestCode.SEND_MESSAGE_V2, sys_flag)
        chosen: _Attempt | None = None
        try:
            chosen = self._choose(await self._topic(draft.topic), place, None)
            fields["e"], fields["n"] = str(chosen.queue.queue_id), chosen.broker
            data = draft.body if body is None else body
            await self._session.client.send(chosen.address, RequestCode.SEND_MESSAGE_V2, fields, data)
        except (OSError, BrokerError) as error:
            raise self._failed(draft, chosen, 1, error, 0) from error

    # --- one attempt ---

    def _fields(self, draft: Draft, code: int, sys_flag: int) -> dict[str, FieldValue]:
        found = draft.properties
        again: dict[str, FieldValue] = {}
        if is_retry(draft.topic):
            found = dict(found)
            times = found.pop(keys_of.RECONSUME_TIME, None)
            times_max = found.pop(keys_of.MAX_RECONSUME_TIMES, None)
            again |= {"j": times} if times else {}
            again |= {"l": times_max} if times_max else {}
        fields = send_fields(
            self._group,
            Queue(draft.topic, "", 0),
            self._session.clock.now_ms(),
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            sys_flag=sys_flag,
            flag=draft.flag,
            properties=keys_of.format(found),
        )
        return fields | again if again else fields

    def _choose(self, topic: _TopicQueues, place: QueueChoice, before: _Attempt | None) -> _Attempt:
        queue = self._place(topic, place)
        if queue is None:
            now_ms = self._session.clock.now_ms() if self._faults is not None else 0
            queue = choose(
                topic.queues,
                topic.turns,
                avoided=None if before is None else before.queue.broker,
                faults=self._faults,
                now_ms=now_ms,
            )
        broker = self._session.broker_of(queue)
        return _Attempt(queue, broker, self._session.address_of(broker))

    def _place(self, topic: _TopicQueues, place: QueueChoice) -> Queue | None:
        """Queue that a message must go to; None if any will do."""
        if place is ANYWHERE:
            return None
        if place.queue is not None:
            return place.queue
        if place.sharding_key is not None:
            return by_hash(topic.queues, place.sharding_key)
        if place.selector is None:
            return None
        bare = [queue._replace(topic=self._session.bare(queue.topic)) for queue in topic.queues]
        chosen = place.selector(bare)
        return chosen._replace(topic=topic.queues[0].topic)

    async def _try(
        self, draft: Draft, chosen: _Attempt, code: int, fields: dict[str, FieldValue], body: bytes, seconds: float
    ) -> PostResult:
        session = self._session
        fields["e"], fields["n"] = str(chosen.queue.queue_id), chosen.broker
        began = session.clock.monotonic()
        try:
            answer = await session.client.answer(chosen.address, code, fields, body, timeout_seconds=seconds)
        except OSError:
            self._note(chosen, began, failed=True)
            raise
        status = STATUS_OF.get(answer.code)
        if status is None:
            self._note(chosen, began, failed=True, gone=True)
            raise BrokerError.of(answer.code, answer.remark, chosen.address)
        took = self._note(chosen, began)
        receipt = self._receipt(draft, chosen, status, answer)
        return PostResult(receipt, chosen.address, int(fields["g"]), took)

    def _note(self, chosen: _Attempt, began: float, *, failed: bool = False, gone: bool = False) -> int:
        took_ms = int((self._session.clock.monotonic() - began) * 1000)
        if self._faults is not None:
            now_ms = self._session.clock.now_ms()
            detecting = self._detecting
            gone = gone or (failed and detecting is not None)
            self._faults.note(chosen.queue.broker, took_ms, now_ms, failed=failed, gone=gone)
            if gone and detecting is not None:
                detecting.soon()
        return took_ms

    def _queue_of(self, broker: str) -> Queue | None:
        """Some queue of a broker."""
        for topic in self._topics.values():
            for queue in topic.queues:
                if queue.broker == broker:
                    return queue
        return None

    def _receipt(self, draft: Draft, chosen: _Attempt, status: SendStatus, answer: AnyCommand) -> Receipt:
        ext: Mapping[str, str] = answer.ext or {}
        queue, queue_id = chosen.queue, read_number(answer, "queueId", chosen.address)
        if queue.queue_id != queue_id or queue.topic != draft.topic:
            queue = Queue(draft.topic, queue.broker, queue_id)
        return Receipt(
            self._session.bare(draft.topic),
            draft.message_id,
            queue,
            read_number(answer, "queueOffset", chosen.address),
            ext.get("msgId", ""),
            status,
            ext.get("transactionId"),
            ext.get("recallHandle"),
            ext.get("MSG_REGION", "DefaultRegion"),
            ext.get("TRACE_ON") != "false",
        )

    # --- between attempts ---

    async def _pause(self, topic: str, tried: int, deadline: float) -> None:
        """Wait for a moment if there is no other broker."""
        known = self._topics.get(topic)
        if known is None or len(known.brokers) < 2:
            left = deadline - self._session.clock.monotonic()
            await asyncio.sleep(max(0.0, min(PAUSE_SECONDS * 2**tried, left)))

    def _failed(
        self, draft: Draft, chosen: _Attempt | None, tries: int, failure: Exception | None, seconds: float
    ) -> SendFailed:
        reason = str(failure) if failure is not None else f"no time was left of {seconds:g} s"
        code = failure.code if isinstance(failure, BrokerError) else None
        broker = None if chosen is None else chosen.broker
        topic = self._session.bare(draft.topic)
        return SendFailed(topic, broker, tries, reason, code)

    # --- topics ---

    async def _topic(self, name: str) -> _TopicQueues:
        known = self._topics.get(name)
        if known is None:
            route, queues_max = await self._route(name)
            queues = publish_queues(name, route, queues_max)
            if not queues:
                raise NotPermitted(ResponseCode.NO_PERMISSION, f"no broker allows writing to topic {name!r}")
            turns = Turns(self._session.chance.getrandbits(31))
            known = self._topics[name] = _TopicQueues(queues, turns)
        return known

    async def _route(self, name: str) -> tuple[Route, int | None]:
        """Route of a topic, or the route for a topic that its first message creates."""
        try:
            return await self._session.route(name), None
        except TopicNotFound as error:
            self._session.routes.want(name)
            try:
                return await self._session.route(AUTO_CREATE_TOPIC), NEW_TOPIC_QUEUES
            except TopicNotFound:
                raise error from None

    def _route_changed(self, topic: str, route: Route) -> None:
        self._topics.pop(topic, None)
        if topic == AUTO_CREATE_TOPIC:
            known = self._session.routes.known
            self._topics = {name: it for name, it in self._topics.items() if known(name)}

    def _refresh_soon(self, topic: str) -> None:
        """Ask for the route again, since a broker may have moved."""
        if topic not in self._refreshing and self._session.is_running:
            self._refreshing.add(topic)
            self._session.tasks.start(self._refresh(topic), f"route of {topic}")

    async def _refresh(self, topic: str) -> None:
        try:
            await self._session.refresh(topic)
        except (OSError, FirearrowError):
            return  # the next poll of all routes logs it
        finally:
            self._refreshing.discard(topic)
