"""Send messages.

::

    async with Producer("127.0.0.1:9876", group="shop") as producer:
        receipt = await producer.send("orders", b"...", key="o-17", tag="paid")
        await producer.send("orders", b"...", delay=timedelta(minutes=5))

Any number of sends may be in flight at once; each awaits the broker's answer to its own message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from typing import Any, Final, Self, Unpack

from firearrow.client.arguments import Duration, seconds_of
from firearrow.client.message import Message
from firearrow.client.producer.accumulating import Accumulator
from firearrow.client.producer.drafts import (
    BODY_BYTES_MAX,
    COMPRESS_FROM_BYTES,
    Compressor,
    Draft,
    Receipt,
    SendOptions,
    check_body,
    check_topic,
    draft_of,
    properties_of,
)
from firearrow.client.producer.replies import REPLY_TYPE, PendingReplies, reply_to
from firearrow.client.producer.sender import ANYWHERE, PostResult, QueueChoice, Rules, Selector, Sender
from firearrow.client.producer.transactions import PREPARED, Check, Decision, Halves, Transaction
from firearrow.client.queues import Queue
from firearrow.client.session.session import Session, SessionOptions
from firearrow.client.tracing.spans import SendSpan, Spans
from firearrow.client.tracing.tracer import SendTrace, Tracer
from firearrow.errors import BrokerError, ClientError, MessageError, NoReply, SendFailed
from firearrow.message import properties as keys_of
from firearrow.message.batch import encode_batch
from firearrow.message.compress import LEVEL, Compression
from firearrow.message.names import TRACE_TOPIC, is_dlq, is_retry
from firearrow.message.recall import RecallHandle
from firearrow.message.sysflag import TRANSACTION_PREPARED
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

_TIMEOUT: Final = "timeout_seconds"
_NO_OPTIONS: Final = SendOptions()
_NO_SPAN: Final = nullcontext()  # may be entered any number of times


class Producer:
    """Producer of a group; ``cluster`` is the address of the name servers, or a `Session` to share.

    ``retries`` and ``timeout_seconds`` (for all attempts together) limit one send; ``rules`` replaces both.
    ``compression`` (``zlib``, ``lz4``, ``zstd``, or None) compresses bodies from ``compress_from_bytes`` on.
    ``auto_batch`` gathers concurrent sends into batches. ``check`` is the transaction listener: it decides transactions
    that were left open. ``trace`` (True, or the name of a topic) writes RocketMQ's message trace. ``spans`` writes
    spans of OpenTelemetry and needs the extra ``otel``.
    """

    def __init__(
        self,
        cluster: Session | str | Sequence[str] | None = None,
        *,
        group: str,
        retries: int = 2,
        timeout_seconds: Duration = 3.0,
        rules: Rules | None = None,
        compression: Compression | str | None = Compression.ZLIB,
        compress_level: int = LEVEL,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        body_bytes_max: int = BODY_BYTES_MAX,
        auto_batch: bool = False,
        check: Check | None = None,
        trace: bool | str = False,
        spans: bool = False,
        **session: Unpack[SessionOptions],
    ) -> None:
        self.session: Session
        self.session, self._owns_session = Session.of(cluster, **session)
        self.group: str = self.session.group(group)
        self._rules = rules or Rules(retries, seconds_of(timeout_seconds, _TIMEOUT))
        self._compressor = Compressor(compression, compress_level, compress_from_bytes)
        self._body_bytes_max = body_bytes_max
        self._auto_batch = auto_batch
        self._check = check
        self._trace_topic = trace if isinstance(trace, str) else TRACE_TOPIC if trace else None
        self._spans = Spans(self.session, self.group) if spans else None
        self._poster: Sender | None = None
        self._accumulator: Accumulator | None = None
        self._tracer: Tracer | None = None
        self._records: SendTrace | None = None
        self._halves: Halves | None = None
        self._good_topics: set[str] = set()

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the session; no server is asked yet."""
        if self._owns_session:
            await self.session.start()
        if not self.session.is_running:
            raise ClientError(f"the session of producer {self.group!r} is not started")
        self.session.add_producer(self.group)
        self._poster = Sender(self.session, self.group, self._rules)
        if self._trace_topic is not None:
            self._tracer = Tracer(self.session, self.group, "PRODUCE", self._trace_topic)
            self._records = SendTrace(self.session, self.group, self._tracer.add)
        if self._auto_batch:
            self._accumulator = Accumulator(self.session.tasks, self._send_drafts)
        if self._check is not None:
            decided = None if self._records is None else self._records.decided
            self._halves = Halves(self.session, self.group, self._check, decided)
        if self.session.routes.brokers:  # otherwise each new connection to a broker begins with a heartbeat
            self.session.tasks.start(self.session.heartbeat(), f"heartbeat for {self.group}")

    async def close(self) -> None:
        """Send the pending messages and leave the session; the producer closes its own session."""
        if self._poster is None:
            return
        if self._accumulator is not None:
            await self._accumulator.close()
        if self._tracer is not None:
            await self._tracer.close()
        self._poster.close()
        self._poster = None
        await self.session.remove_producer(self.group)
        if self._owns_session:
            await self.session.close()

    # --- sending ---

    async def send(
        self,
        topic: str,
        body: Any,
        *,
        key: str | Sequence[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay: Duration | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        selector: Selector | None = None,
        timeout_seconds: Duration | None = None,
    ) -> Receipt:
        """Send a message; returns when a broker has it.

        ``body`` is bytes, text, a value that msgspec writes as JSON, or a `NewMessage` with its
        own properties. ``key`` is one word, or several, for looking the message up. ``tag`` is for the filters of
        subscriptions. Only one of ``delay``, ``delay_level`` (1 to 18) and ``deliver_at`` may delay delivery. Messages
        with the same ``sharding_key`` go to the same queue, in order if the caller awaits each before the next.
        ``selector`` or ``queue`` may choose a queue instead. Raises MessageError for an invalid message, SendFailed if
        no broker took it.
        """
        if (
            key is None
            and tag is None
            and properties is None
            and delay is None
            and (
                not delay_level
                and deliver_at is None
                and priority is None
                and lite_topic is None
                and sharding_key is None
            )
        ):
            options = _NO_OPTIONS
        else:
            options = SendOptions(
                key, tag, properties, delay, delay_level, deliver_at, priority, lite_topic, sharding_key
            )
        draft = self._draft(topic, body, options)
        place = _place(queue, selector, sharding_key, draft)
        accumulator = self._accumulator
        if accumulator is not None and accumulator.takes(draft, place):
            return await accumulator.send(draft, place)
        posted = await self._post(draft, place, timeout_seconds)
        return posted.receipt

    async def send_oneway(
        self,
        topic: str,
        body: Any,
        *,
        key: str | Sequence[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        selector: Selector | None = None,
    ) -> str:
        """Send a message without waiting for a broker's answer; returns its id."""
        options = SendOptions(key, tag, properties, sharding_key=sharding_key)
        draft = self._draft(topic, body, options)
        packed, sys_flag = self._compressor.packed(draft.body)
        place = _place(queue, selector, sharding_key, draft)
        await self._started().post_one_way(draft, sys_flag=sys_flag, body=packed, place=place)
        return draft.message_id

    async def send_batch(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        tag: str | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        selector: Selector | None = None,
        timeout_seconds: Duration | None = None,
    ) -> list[Receipt]:
        """Send several messages to one queue in one request: the broker takes all or none.

        Each is a body as in ``send``, or a `NewMessage` with properties. None may be delayed,
        and together they must fit into one message.
        """
        options = SendOptions(tag=tag, sharding_key=sharding_key)
        drafts = [self._draft(topic, body, options) for body in bodies]
        if not drafts:
            raise MessageError(f"a batch to topic {topic!r} has no messages", "batch")
        for draft in drafts:
            if draft.waits or is_retry(draft.topic):
                raise MessageError(f"topic {topic!r}: a batch can't have delayed messages or a retry topic", "batch")
        place = QueueChoice(queue, selector, sharding_key)
        return await self._send_drafts(drafts, place, timeout_seconds)

    async def queues(self, topic: str) -> list[Queue]:
        """Writable queues of a topic, in the order that keys are spread by."""
        try:
            found = await self._started().queues(self.session.topic(topic))
        except (OSError, BrokerError) as error:
            raise SendFailed(topic, None, 1, str(error)) from error
        return [queue._replace(topic=topic) for queue in found]

    # --- transactions ---

    @asynccontextmanager
    async def transaction(
        self,
        topic: str,
        body: Any,
        *,
        key: str | Sequence[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_seconds: Duration | None = None,
    ) -> AsyncIterator[Transaction]:
        """Send a half message, which consumers get if the block ends without an error.

        ``roll_back()`` of the transaction discards it. If the block raises, the broker asks a producer of the group
        later, whose ``check`` decides. Raises ClientError unless the producer has a ``check`` function.
        """
        halves = self._halves
        if halves is None:
            raise ClientError(f"producer {self.group!r} has no check function, so it has no transactions")
        draft = self._draft(topic, body, SendOptions(key, tag, properties))
        if draft.waits:
            raise MessageError(f"topic {topic!r}: a transaction can't be delayed", "delay")
        draft.properties.update(PREPARED)
        draft.properties[keys_of.PRODUCER_GROUP] = self.group
        posted = await self._post(draft, ANYWHERE, timeout_seconds, TRANSACTION_PREPARED)

        async def decide(decision: Decision) -> None:
            await halves.decide(draft.topic, posted.receipt, decision)

        async with Transaction(posted.receipt, decide) as transaction:
            yield transaction

    # --- requests ---

    async def request(
        self,
        topic: str,
        body: Any,
        *,
        key: str | Sequence[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        timeout_seconds: Duration | None = None,
    ) -> Message:
        """Send a message that another application replies to; returns the reply.

        Raises SendFailed, and NoReply if none comes in time.
        """
        seconds = self._rules.timeout_seconds if timeout_seconds is None else seconds_of(timeout_seconds, _TIMEOUT)
        began = self.session.clock.monotonic()
        draft = self._draft(topic, body, SendOptions(key, tag, properties, sharding_key=sharding_key))
        await self._introduce(draft.topic)
        waiting = self.session.shared("replies", lambda: PendingReplies(self.session))
        asked, reply = waiting.begin(int(seconds * 1000))
        draft.properties.update(asked)
        try:
            await self._post(draft, _place(None, None, sharding_key, draft), seconds)
            async with asyncio.timeout(began + seconds - self.session.clock.monotonic()):
                return await reply
        except TimeoutError:
            late = f"topic {topic!r}: no reply to {draft.message_id} in {seconds:g} s"
            raise NoReply(late) from None
        finally:
            waiting.end(asked)

    async def reply(self, message: Message, body: Any) -> Receipt:
        """Reply to a request. ``body`` is a body as in ``send``, or a `NewMessage` with properties.

        Raises ClientError if the message is not a request.
        """
        sent = reply_to(message, body)
        draft = self._prepared(Draft(sent.topic, sent.body, sent.properties, 0))
        return (await self._post(draft, ANYWHERE, None)).receipt

    async def _introduce(self, topic: str) -> None:
        """Make this client known to the brokers of a topic, since they deliver the reply."""
        known = self.session.routes.known(topic)
        if known is None:
            try:
                await self._started().queues(topic)
            except (OSError, BrokerError) as error:
                raise SendFailed(self.session.bare(topic), None, 1, str(error)) from error
            await self.session.heartbeat()

    # --- recall ---

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a delayed message by the handle of its receipt; returns its id.

        Raises MessageError for a malformed handle, BrokerError if it is too late.
        """
        wrapped = self.session.topic(topic)
        if is_retry(wrapped) or is_dlq(wrapped):
            raise MessageError(f"topic {topic!r} has no messages to recall", "topic")
        told = RecallHandle.decode(handle)
        await self._started().queues(wrapped)  # afterwards its brokers are known
        fields: dict[str, FieldValue] = {
            "producerGroup": self.group,
            "topic": wrapped,
            "recallHandle": handle,
            "bname": told.broker_name,
        }
        answer = await self.session.call(told.broker_name, RequestCode.RECALL_MESSAGE, fields)
        return str(answer.ext.get("msgId", told.unique_key))

    # --- shared parts ---

    def _started(self) -> Sender:
        if self._poster is None:
            raise ClientError(f"producer {self.group!r} is not running: use it in `async with`, or start it")
        return self._poster

    def _span(self, drafts: Sequence[Draft]) -> AbstractContextManager[SendSpan | None]:
        return _NO_SPAN if self._spans is None else self._spans.sending(drafts)

    def _draft(self, topic: str, body: Any, options: SendOptions) -> Draft:
        """Draft that is ready to be sent."""
        name = self.session.topic(topic)
        if name not in self._good_topics:
            check_topic(name)
            self._good_topics.add(name)
        draft = draft_of(name, body, bytes_max=self._body_bytes_max)
        if options is not _NO_OPTIONS:
            draft.properties.update(properties_of(options))
        return self._prepared(draft)

    def _prepared(self, draft: Draft) -> Draft:
        if keys_of.UNIQUE_KEY not in draft.properties:
            draft.properties[keys_of.UNIQUE_KEY] = self.session.ids.next()
        if self.session.namespace:
            draft.properties[keys_of.INSTANCE_ID] = self.session.namespace
        return draft

    def _post(
        self, draft: Draft, place: QueueChoice, timeout_seconds: Duration | None, sys_flag: int = 0
    ) -> Awaitable[PostResult]:
        if timeout_seconds is not None:
            timeout_seconds = seconds_of(timeout_seconds, _TIMEOUT)
        packed, packing = self._compressor.packed(draft.body)
        is_reply = draft.properties.get(keys_of.MESSAGE_TYPE) == REPLY_TYPE
        code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
        posting = self._started().post(
            draft, code=code, sys_flag=sys_flag | packing, body=packed, place=place, timeout_seconds=timeout_seconds
        )
        is_noted = self._spans is not None or self._records is not None
        return self._noted(draft, posting, sys_flag) if is_noted else posting

    async def _noted(self, draft: Draft, posting: Awaitable[PostResult], sys_flag: int) -> PostResult:
        """Record a send in spans and traces."""
        with self._span([draft]) as span:
            posted = await posting
            if span is not None:
                span.sent(posted.receipt)
        if self._records is not None:
            self._records.sent([draft], [posted.receipt], posted, sys_flag)
        return posted

    async def _send_drafts(
        self, drafts: list[Draft], place: QueueChoice, timeout_seconds: Duration | None = None
    ) -> list[Receipt]:
        """Send messages of one topic as a batch."""
        topic = drafts[0].topic
        if timeout_seconds is not None:
            timeout_seconds = seconds_of(timeout_seconds, _TIMEOUT)
        with self._span(drafts) as span:
            body = encode_batch((it.flag, it.body, keys_of.encode(it.properties)) for it in drafts)
            check_body(self.session.bare(topic), body, self._body_bytes_max)
            outer = Draft(topic, body, {keys_of.UNIQUE_KEY: self.session.ids.next()}, 0)
            posted = await self._started().post(
                outer, code=RequestCode.SEND_BATCH_MESSAGE, place=place, timeout_seconds=timeout_seconds
            )
            if span is not None:
                span.sent(posted.receipt)
        receipts = _receipts(drafts, posted.receipt)
        if self._records is not None:
            self._records.sent(drafts, receipts, posted, 0)
        return receipts


def _place(queue: Queue | None, selector: Selector | None, sharding_key: str | None, draft: Draft) -> QueueChoice:
    if queue is None and selector is None and sharding_key is None:
        return ANYWHERE
    if queue is not None:
        return QueueChoice(queue=queue._replace(topic=draft.topic))
    return QueueChoice(None, selector, sharding_key)


def _receipts(drafts: list[Draft], whole: Receipt) -> list[Receipt]:
    """Receipts of the messages of a batch, which are consecutive in their queue."""
    ids = whole.offset_message_id.split(",")
    if len(ids) != len(drafts):
        ids = [whole.offset_message_id] * len(drafts)
    return [
        Receipt(
            whole.topic,
            draft.message_id,
            whole.queue,
            whole.queue_offset + number,
            ids[number],
            whole.status,
            region=whole.region,
            trace_on=whole.trace_on,
        )
        for number, draft in enumerate(drafts)
    ]
