"""Sends, recalls and decisions: `SendMessage`, `RecallMessage`, `EndTransaction`.

Several messages of one call are sent one by one, to one queue if they have a message group, and each gets its result.
RocketMQ sends them as a batch, and answers with one result whatever their number.

Source: RocketMQ's ``SendMessageActivity``, ``RecallMessageActivity``, ``EndTransactionActivity``.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.message.ids import decode_offset_id
from firearrow.message.recall import RecallHandle
from firearrow.net.replies import Reply
from firearrow.proxy.brokers import Brokers, QueueGroup
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
from firearrow.proxy.routes import type_of
from firearrow.proxy.sending import check_type, properties_of, queue_for, sys_flag_of
from firearrow.proxy.statuses import ProxyError, code_of, status, status_of_all
from firearrow.proxy.times import time_ms
from firearrow.proxy.transactionids import TransactionId
from firearrow.proxy.validation import check_send, check_topic
from firearrow.wire.bodies import PERM_WRITE
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import request as remoting_request
from firearrow.wire.frame import AnyCommand

SEND_MS_MAX: Final = 2000
COMMIT, ROLLBACK = 8, 12
"""Decisions about a transaction, as in the flags of a stored message."""
_STORED: Final = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_DECISIONS: Final = {TransactionResolution.COMMIT: COMMIT, TransactionResolution.ROLLBACK: ROLLBACK}
_RECALLABLE: Final = ("DELAY", "MIXED")


class Producing:
    """Handlers of producers' calls."""

    def __init__(self, brokers: Brokers, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._config = config
        self._clock = clock
        self._turn = count()

    # --- SendMessage ---

    async def send(self, context: Context, request: SendMessageRequest) -> SendMessageResponse:
        """Store messages, and answer with the result of each."""
        messages = request.messages
        check_send(request, self._config, self._clock.now_ms())
        topic = messages[0].topic.name
        if self._config.enable_topic_message_type_check:
            check_type(topic, type_of(await self._brokers.topic(topic)), messages[0])
        groups = [one for one in (await self._brokers.own_route(topic)).groups if one.perm & PERM_WRITE]
        sent = [(message, *self._sent(context, message, groups)) for message in messages]
        answer = SendMessageResponse()
        for message, broker, reply in sent:
            self._note(answer.entries.add(), message, broker, await reply)
        answer.status.CopyFrom(status_of_all({Code(entry.status.code) for entry in answer.entries}, "no message"))
        return answer

    def _sent(self, context: Context, message: Message, groups: list[QueueGroup]) -> tuple[str, Reply[AnyCommand]]:
        broker, queue_id = self._queue(message, groups)
        properties = message.system_properties
        topic = message.topic.name
        fields = {
            "a": topic,
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": str(sys_flag_of(message)),
            "g": str(time_ms(properties.born_timestamp)),
            "h": "0",
            "i": properties_of(message, context.address, self._config),
            "j": "0",
            "k": "false",
            "m": "false",
            "n": broker,
        }
        command = remoting_request(RequestCode.SEND_MESSAGE_V2, fields, message.body)
        return broker, context.link.call(broker, command, SEND_MS_MAX)

    def _queue(self, message: Message, groups: list[QueueGroup]) -> tuple[str, int]:
        """Choose a queue: by the message group, or by turns."""
        total = sum(group.write_queues for group in groups)
        if not total:
            raise ProxyError(Code.FORBIDDEN, "no writable queue")
        properties = message.system_properties
        key = properties.message_group or properties.lite_topic
        number = queue_for(key, total) if key else next(self._turn) % total
        for group in groups:
            if number < group.write_queues:
                return group.broker, number
            number -= group.write_queues
        raise AssertionError("the number is one of a queue")

    def _note(self, entry: SendResultEntry, message: Message, broker: str, answer: AnyCommand) -> None:
        """Write the result of a message."""
        code = _STORED.get(answer.code)  # type: ignore[call-overload]
        if code is None:
            raise BrokerError.of(answer.code, answer.remark, broker)
        ext = answer.ext
        entry.status.CopyFrom(status(code))
        entry.message_id = message.system_properties.message_id
        entry.offset = queue_offset = int(ext["queueOffset"])
        entry.recall_handle = ext.get("recallHandle", "")
        if sys_flag_of(message) & 4:
            place = decode_offset_id(ext["msgId"])
            entry.transaction_id = str(TransactionId(broker, queue_offset, place.physical_offset))
        else:
            entry.transaction_id = ext.get("transactionId", "")

    # --- the others ---

    async def recall(self, context: Context, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recall a message that waits for its delivery time."""
        check_topic(request.topic.name)
        topic = request.topic.name
        kind = type_of(await self._brokers.topic(topic))
        if kind not in _RECALLABLE:
            raise ProxyError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"recall is not supported for the topic type {kind}"
            )
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
