"""Pulls and offsets: `PullMessage`, `UpdateOffset`, `GetOffset`, `QueryOffset`.

A pull consumer reads a queue from an offset that it decides, and keeps its progress at the broker. RocketMQ's proxy
does not serve these four calls.

Source: ``service.proto`` of rocketmq-apis, RocketMQ's ``PullMessageProcessor``, ``ConsumerManageProcessor``.
"""

from __future__ import annotations

from typing import Final

from firearrow.errors import BrokerError
from firearrow.net.grpc import Call
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import Context
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.delivery import message_of, records_in
from firearrow.proxy.messages import (
    Code,
    FilterType,
    GetOffsetRequest,
    GetOffsetResponse,
    MessageQueue,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    QueryOffsetResponse,
    Status,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from firearrow.proxy.statuses import ProxyError, status
from firearrow.proxy.times import duration_ms, time_ms
from firearrow.proxy.validation import check_filter, check_group, check_topic
from firearrow.proxy.waits import Waits
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import request as remoting_request
from firearrow.wire.frame import AnyCommand

MESSAGES_MAX: Final = 32
CALL_MS_MAX: Final = 3000
WAITS, SUBSCRIBES = 2, 4
"""Flags of a pull: it waits for messages, and it has an expression."""
_NOTHING: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_OFFSET_CODES: Final = {
    QueryOffsetPolicy.BEGINNING: RequestCode.GET_MIN_OFFSET,
    QueryOffsetPolicy.END: RequestCode.GET_MAX_OFFSET,
    QueryOffsetPolicy.TIMESTAMP: RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}


class Offsets:
    """Handlers of pulls and offsets."""

    def __init__(self, brokers: Brokers, config: ProxyConfig) -> None:
        self._brokers = brokers
        self._config = config
        self.waits: Final = Waits()

    async def pull(self, context: Context, request: PullMessageRequest) -> Code:
        """Send the messages of a queue from an offset on: first a status, at last the next offset. Return the code."""
        queue = _checked(request.message_queue)
        check_group(request.group.name)
        wait_ms = min(
            duration_ms(request.long_polling_timeout), self._config.grpc_client_consumer_max_long_polling_timeout_millis
        )
        if request.batch_size < 0:
            raise ProxyError(Code.BAD_REQUEST, f"batch size {request.batch_size} is below 0")
        expression = request.filter_expression
        check_filter(expression)
        fields = {
            **_fields(queue),
            "consumerGroup": request.group.name,
            "queueOffset": str(request.offset),
            "maxMsgNums": str(min(request.batch_size or MESSAGES_MAX, MESSAGES_MAX)),
            "sysFlag": str(SUBSCRIBES | (WAITS if wait_ms > 0 else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(max(wait_ms, 0)),
            "subscription": expression.expression or "*",
            "subVersion": "0",
            "expressionType": "SQL92" if expression.type == FilterType.SQL else "TAG",
        }
        command = remoting_request(RequestCode.PULL_MESSAGE, fields)
        answer = await self.waits.answer(context, queue.broker.name, command, wait_ms + CALL_MS_MAX)
        call = context.call
        if answer.code == ResponseCode.SUCCESS:
            code = Code.OK
            call.send(PullMessageResponse(status=status(code)).SerializeToString())
            for view in records_in(answer.body):
                message = message_of(view, queue.topic.name)
                call.send(PullMessageResponse(message=message).SerializeToString())
        elif answer.code in _NOTHING:
            code = Code.MESSAGE_NOT_FOUND
            nothing = status(code, "no new message")
            call.send(PullMessageResponse(status=nothing).SerializeToString())
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            code = Code.ILLEGAL_OFFSET
            moved = status(code, f"offset {request.offset} is not in the queue")
            call.send(PullMessageResponse(status=moved).SerializeToString())
        else:
            raise BrokerError.of(answer.code, answer.remark, queue.broker.name)
        next_offset = int(answer.ext.get("nextBeginOffset", request.offset))
        call.send(PullMessageResponse(next_offset=next_offset).SerializeToString())
        return code

    async def update(self, context: Context, request: UpdateOffsetRequest) -> UpdateOffsetResponse:
        """Note how far a group has consumed a queue: the offset of its next message."""
        queue = _checked(request.message_queue)
        check_group(request.group.name)
        if request.offset < 0:
            raise ProxyError(Code.ILLEGAL_OFFSET, f"offset {request.offset} is below 0")
        fields = {**_fields(queue), "consumerGroup": request.group.name, "commitOffset": str(request.offset)}
        await _number(context, queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return UpdateOffsetResponse(status=status(Code.OK))

    async def get(self, context: Context, request: GetOffsetRequest) -> GetOffsetResponse:
        """Return how far a group has consumed a queue."""
        queue = _checked(request.message_queue)
        check_group(request.group.name)
        fields = {**_fields(queue), "consumerGroup": request.group.name, "setZeroIfNotFound": "false"}
        answer = await _answer(context, queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise ProxyError(Code.OFFSET_NOT_FOUND, f"group {request.group.name} has no offset in the queue")
        return GetOffsetResponse(status=status(Code.OK), offset=_offset_of(answer, queue))

    async def query(self, context: Context, request: QueryOffsetRequest) -> QueryOffsetResponse:
        """Return the first offset of a queue, the one behind its last message, or that of a time."""
        queue = _checked(request.message_queue)
        code = _OFFSET_CODES.get(request.query_offset_policy)  # type: ignore[call-overload]
        if code is None:
            raise ProxyError(Code.BAD_REQUEST, f"query offset policy {request.query_offset_policy} is not known")
        fields = _fields(queue)
        if code is RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            fields["timestamp"] = str(time_ms(request.timestamp))
        offset = await _number(context, queue, code, fields)
        await self._brokers.readable(queue.topic.name)  # a broker says 0 for a topic that it does not have
        return QueryOffsetResponse(status=status(Code.OK), offset=offset)


def fail_pull(call: Call, outcome: Status) -> None:
    """Send the answer to a pull that failed."""
    call.send(PullMessageResponse(status=outcome).SerializeToString())
    call.end()


def _checked(queue: MessageQueue) -> MessageQueue:
    check_topic(queue.topic.name)
    if not queue.broker.name:
        raise ProxyError(Code.BAD_REQUEST, "the message queue has no broker")
    return queue


def _fields(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic.name, "queueId": str(queue.id), "bname": queue.broker.name}


async def _answer(
    context: Context, queue: MessageQueue, code: RequestCode, fields: dict[str, str], timeout_ms: int = CALL_MS_MAX
) -> AnyCommand:
    return await context.link.call(queue.broker.name, remoting_request(code, fields), timeout_ms)


async def _number(context: Context, queue: MessageQueue, code: RequestCode, fields: dict[str, str]) -> int:
    return _offset_of(await _answer(context, queue, code, fields), queue)


def _offset_of(answer: AnyCommand, queue: MessageQueue) -> int:
    if answer.code:
        raise BrokerError.of(answer.code, answer.remark, queue.broker.name)
    return int(answer.ext.get("offset", 0))
