"""Sends, recalls and decisions: `SendMessage`, `RecallMessage`, `EndTransaction`.

Several messages of one call are sent one by one, to one queue if they have a message group, and each gets its result.
RocketMQ sends them as a batch, and answers with one result whatever their number.

Source: RocketMQ's ``SendMessageActivity``, ``RecallMessageActivity``, ``EndTransactionActivity``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.message.ids import decode_offset_id
from firearrow.message.recall import RecallHandle
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from firearrow.net.replies import Reply, Running
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import Context
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    Message,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    TransactionResolution,
    TransactionSource,
)
from firearrow.proxy.messagetypes import NORMAL, check_type, check_type_name
from firearrow.proxy.meter import Rate
from firearrow.proxy.queuechoice import Turns, queue_for
from firearrow.proxy.routes import topic_type
from firearrow.proxy.sending import plain_header, properties_of, queue_key_of, sys_flag_of, text_of
from firearrow.proxy.statuses import ProxyError, code_of, status, status_of, status_of_all
from firearrow.proxy.times import time_ms
from firearrow.proxy.transactionids import TransactionId
from firearrow.proxy.validation import check_send, check_topic
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Placed, typed_request
from firearrow.wire.command import request as remoting_request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendMessageV2

SEND_MS_MAX: Final = 2000
TOPICS_MAX: Final = 10_000  # whose turns are kept; the turns of others begin again
TEMPLATE_TOPIC: Final = "TBW102"  # of topics that a send creates
_STORED: Final = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
Sent = tuple[Message, str, Reply[AnyCommand]]
"""A message with the name of its broker and the answer to come."""
_DECISIONS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class Producing:
    """Handlers of producers' calls."""

    def __init__(self, brokers: Brokers, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._config = config
        self._clock = clock
        self._turns: dict[str, Turns] = {}
        # The answer for a plain message, filled and written for each: a new one would take three times as long.
        self._plain_answer = SendMessageResponse(status=status(Code.OK))
        self._plain_entry = self._plain_answer.entries.add(status=status(Code.OK))
        self.sent: Final = Rate()
        """Messages that were stored."""

    # --- SendMessage ---

    def serve_send(self, context: Context, request: SendMessageRequest) -> Running[SendMessageResponse] | bytes:
        """Store messages, and answer with the result of each; without a coroutine if all is known at once."""
        messages = request.messages
        served = self._send_plain(context, messages[0]) if len(messages) == 1 else None
        return self.send(context, request) if served is None else served

    def _send_plain(self, context: Context, message: Message) -> Running[SendMessageResponse] | bytes | None:
        """Store a plain message in a known topic; None for any other. A broker in this process answers at once."""
        topic = message.topic.name
        known = self._brokers.known_queues(topic)
        if known is None or known.topic_type != NORMAL or not known.queues:
            return None
        body = message.body
        header = plain_header(message, len(body), self._config, topic, context.address)
        if header is None:
            return None
        broker, header.queue_id = self._turns_of(topic).queue_of(known.queues)
        command = typed_request(RequestCode.SEND_MESSAGE_V2, header, body)
        reply = context.link.call(broker, command, SEND_MS_MAX)
        answer, now_ms = reply.value, self._clock.now_ms()
        if answer is None or type(answer.ext) is not Placed:
            return self._answered([(message, broker, reply)], now_ms)
        self.sent.add(1, now_ms)
        entry = self._plain_entry
        entry.message_id = entry.transaction_id = header.unique
        entry.offset = answer.ext.queue_offset
        return self._plain_answer.SerializeToString()

    async def send(self, context: Context, request: SendMessageRequest) -> SendMessageResponse:
        """Store messages, and answer with the result of each."""
        now_ms = self._clock.now_ms()
        messages = list(request.messages)
        check_send(messages, self._config, now_ms)
        topic = messages[0].topic.name
        sender = context.address
        found = [properties_of(message, self._config, sender=sender, now_ms=now_ms) for message in messages]
        texts = list(map(text_of, found))
        if self._config.enable_topic_message_type_check:
            kind = topic_type(await self._brokers.topic(topic))
            for properties in found:
                check_type(topic, kind, properties)
        queues = await self._brokers.write_queues(topic)
        link = context.link
        sent: list[Sent] = []
        for message, text in zip(messages, texts, strict=True):
            key = queue_key_of(message)
            broker, queue_id = queue_for(key, queues) if key else self._turns_of(topic).queue_of(queues)
            command = _send_of(message, topic, broker, queue_id, text)
            sent.append((message, broker, link.call(broker, command, SEND_MS_MAX)))
        return await self._answered(sent, now_ms)

    async def _answered(self, sent: Sequence[Sent], now_ms: int) -> SendMessageResponse:
        """Wait for the results of messages, and return the answer with them."""
        answer = SendMessageResponse()
        codes: list[int] = []
        failed = 0
        for message, broker, reply in sent:
            entry = answer.entries.add()
            try:
                codes.append(self._note(entry, message, broker, await reply))
            except (ProxyError, BrokerError, OSError) as error:
                if len(sent) == 1:
                    raise
                outcome = status_of(error)
                entry.status.CopyFrom(outcome)
                codes.append(outcome.code)
                failed += 1
        self.sent.add(len(sent) - failed, now_ms)
        answer.status.CopyFrom(status_of_all(codes, "no message"))
        return answer

    def _turns_of(self, topic: str) -> Turns:
        """Turns of a topic: with the same ones for all, a producer of two topics would leave out half of their
        queues.
        """
        turns = self._turns.get(topic)
        if turns is None:
            if len(self._turns) >= TOPICS_MAX:
                self._turns.clear()
            turns = self._turns[topic] = Turns()
        return turns

    def _note(self, entry: SendResultEntry, message: Message, broker: str, answer: AnyCommand) -> Code:
        """Write the result of a message, and return its code."""
        code: Code | None = _STORED.get(answer.code)  # type: ignore[call-overload]
        if code is None:
            raise BrokerError.of(answer.code, answer.remark, broker)
        ext = answer.ext
        entry.status.CopyFrom(status(code))
        entry.message_id = message_id = message.system_properties.message_id
        if type(ext) is Placed:
            entry.offset, entry.transaction_id = ext.queue_offset, message_id
            return code
        entry.offset = queue_offset = int(ext["queueOffset"])
        if "recallHandle" in ext:
            entry.recall_handle = ext["recallHandle"]
        if sys_flag_of(message) & TRANSACTION_PREPARED:
            place = decode_offset_id(ext["msgId"])
            entry.transaction_id = str(TransactionId(broker, queue_offset, place.physical_offset))
        else:
            entry.transaction_id = ext.get("transactionId", "")
        return code

    # --- the others ---

    async def recall(self, context: Context, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recall a message that waits for its delivery time."""
        check_topic(request.topic.name)
        topic = request.topic.name
        if self._config.enable_topic_message_type_check:
            check_type_name(topic_type(await self._brokers.topic(topic)), "DELAY")
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except MessageError:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "recall handle is invalid") from None
        fields = {
            "producerGroup": topic,
            "topic": topic,
            "recallHandle": request.recall_handle,
            "bname": handle.broker_name,
        }
        command = remoting_request(RequestCode.RECALL_MESSAGE, fields)
        answer = await context.link.call(handle.broker_name, command, SEND_MS_MAX)
        if answer.code:
            raise BrokerError.of(answer.code, answer.remark, handle.broker_name)
        return RecallMessageResponse(status=status(Code.OK), message_id=answer.ext.get("msgId", ""))

    async def end(self, context: Context, request: EndTransactionRequest) -> EndTransactionResponse:
        """Commit or roll back; OK means that the broker has the decision."""
        check_topic(request.topic.name)
        if not request.transaction_id.strip():
            raise ProxyError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        try:
            place = TransactionId.parse(request.transaction_id)
        except MessageError as error:
            raise ProxyError(Code.INVALID_TRANSACTION_ID, str(error)) from None
        fields = {
            "producerGroup": request.topic.name,
            "topic": request.topic.name,
            "tranStateTableOffset": str(place.queue_offset),
            "commitLogOffset": str(place.log_offset),
            "commitOrRollback": str(_DECISIONS.get(request.resolution, 0)),  # type: ignore[call-overload]
            "fromTransactionCheck": "true" if request.source == TransactionSource.SOURCE_SERVER_CHECK else "false",
            "msgId": request.message_id,
            "transactionId": request.message_id,
            "bname": place.broker,
        }
        command = remoting_request(RequestCode.END_TRANSACTION, fields)
        answer = await context.link.call(place.broker, command, SEND_MS_MAX)
        if answer.code:
            raise ProxyError(code_of(answer.code), answer.remark)
        return EndTransactionResponse(status=status(Code.OK))


def _send_of(message: Message, topic: str, broker: str, queue_id: int, properties: str) -> AnyCommand:
    """Request that stores a message."""
    header = SendMessageV2(
        producer_group=topic,
        topic=topic,
        default_topic=TEMPLATE_TOPIC,
        queue_id=queue_id,
        sys_flag=sys_flag_of(message),
        born_timestamp=time_ms(message.system_properties.born_timestamp),
        flag=0,
        properties=properties,
        broker_name=broker,
    )
    return typed_request(RequestCode.SEND_MESSAGE_V2, header, message.body)
