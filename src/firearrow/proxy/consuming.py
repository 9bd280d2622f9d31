"""Receiving: `ReceiveMessage`, `AckMessage`, `ChangeInvisibleDuration`, `ForwardMessageToDeadLetterQueue`.

A message is received by a pop. It is invisible to others until its handle expires, unless the client asks for renewal:
then the proxy extends the time (`proxy.renewal`) as long as the client lives.

Source: RocketMQ's ``ReceiveMessageActivity``, ``ConsumerProcessor``, ``AckMessageActivity``,
``ChangeInvisibleDurationActivity``, ``ForwardMessageToDLQActivity``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

from firearrow.client.pop.popcalls import PoppedHandles, times_of
from firearrow.client.queues import Queue
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.message.names import lite_queue
from firearrow.net.grpc import Call
from firearrow.net.replies import Reply, run
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import Context
from firearrow.proxy.clients import Client, Clients
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.delivery import message_of, records_in
from firearrow.proxy.handles import Receipt, Renewed, parse_receipt
from firearrow.proxy.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ClientType,
    Code,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Settings,
    Status,
    Subscription,
    Timestamp,
)
from firearrow.proxy.renewal import Renewal
from firearrow.proxy.settings import merged
from firearrow.proxy.statuses import ProxyError, status, status_of, status_of_all, status_of_answer
from firearrow.proxy.times import duration_ms, timestamp_of
from firearrow.proxy.validation import check_group, check_invisible_ms, check_topic
from firearrow.wire.client_bodies import tags_in
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import request as remoting_request
from firearrow.wire.command import typed_request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import ANY_QUEUE, TOPIC, Handle, parse_order_counts

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 32  # of one pop
EXPRESSION_CHARS_MAX: Final = 64 * 1024
ATTEMPT_CHARS_MAX: Final = 255
FROM_NOW: Final = 1  # of RocketMQ's ConsumeInitMode: a new group begins at the end
ACK_MS_MAX: Final = 3000
POP_MORE_MS: Final = 3000  # for the answer, beyond the broker's own waiting time
NACK_MS: Final = 1000
"""Invisible time of messages that were popped for a client that has given up."""
_NO_POLLING_TIME: Final = "The deadline time remaining is not enough for polling, please check network condition"
_POLLING_CODE_SINCE: Final = "5.0.3"
_NOTHING: Final = {
    ResponseCode.PULL_NOT_FOUND: (Code.MESSAGE_NOT_FOUND, "no new message"),
    ResponseCode.POLLING_TIMEOUT: (Code.MESSAGE_NOT_FOUND, "no new message"),
    ResponseCode.POLLING_FULL: (Code.TOO_MANY_REQUESTS, "polling full"),
}


class _Popped(NamedTuple):
    """A received message, its handle, and the count of its earlier deliveries."""

    view: MessageView
    receipt: Receipt
    attempts: int

    @property
    def message_id(self) -> str:
        """Id from its sender, or otherwise the address of its record."""
        return self.view.unique_key or self.view.offset_message_id


class Consuming:
    """Handlers of consumers' calls."""

    def __init__(self, brokers: Brokers, clients: Clients, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._clients = clients
        self._config = config
        self._clock = clock
        self._renewed = Renewed()
        self.renewal = Renewal(self._renewed, config, clock)
        self._turn = count()

    # --- ReceiveMessage ---

    async def receive(self, context: Context, request: ReceiveMessageRequest) -> None:
        """Receive messages of a topic, and send them: first a status, at last the time."""
        client = self._clients.of(context)
        topic, group = request.message_queue.topic, request.group
        settings = await self._settings(client, request)
        wait_ms = self._wait_ms(context, request, settings)
        check_topic(topic.name)
        check_group(group.name)
        renews = self._config.enable_proxy_auto_renew and request.auto_renew
        if renews:
            invisible_ms = self._config.default_invisible_time_mills
        else:
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible_ms(invisible_ms, self._config, self._config.min_invisible_time_mills_for_recv)
        _check_texts(request)
        broker = await self._broker(request)
        in_order = settings.subscription.fifo
        is_lite = client is not None and settings.client_type == ClientType.LITE_PUSH_CONSUMER
        if is_lite and client is not None:
            self._check_lite(client)
            command = self._pop_of_lite(context, request, invisible_ms, wait_ms, broker)
        else:
            command = self._pop(request, invisible_ms, wait_ms, in_order=in_order)
        answer = await context.link.call(broker, command, wait_ms + POP_MORE_MS)
        if answer.code:
            _send_nothing(context.call, answer, self._clock.now_ms())
            return
        if is_lite:
            popped = _popped_of_lite(answer, topic.name, broker)
        else:
            popped = _popped(answer, Queue(topic.name, broker, ANY_QUEUE), in_order=in_order)
        self._deliver(context, request, settings, popped, client if renews else None)

    async def _settings(self, client: Client | None, request: ReceiveMessageRequest) -> Settings:
        """Settings of a client. One that has not sent any, or not yet, receives by those of its group.

        Java: ReceiveMessageActivity fails. The Python client's simple consumer may receive before its settings arrive.
        """
        if client is not None:
            return client.settings
        if self._config.enable_proxy_auto_renew and request.auto_renew:
            raise ProxyError(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "cannot find client settings for this client: messages are renewed only for a client with a Telemetry "
                "stream",
            )
        check_group(request.group.name)
        settings = Settings(subscription=Subscription(group=request.group))
        return merged(settings, await self._brokers.group(request.group.name), self._config)

    def _pop(self, request: ReceiveMessageRequest, invisible_ms: int, wait_ms: int, *, in_order: bool) -> AnyCommand:
        expression = request.filter_expression
        header = PopMessage(
            consumer_group=request.group.name,
            topic=request.message_queue.topic.name,
            queue_id=ANY_QUEUE,
            max_msg_nums=min(request.batch_size, MESSAGES_MAX),
            invisible_time=invisible_ms,
            poll_time=wait_ms,
            born_time=self._clock.now_ms(),
            init_mode=FROM_NOW,
            exp_type="SQL92" if expression.type == FilterType.SQL else "TAG",
            exp=expression.expression or "*",
            order=in_order,
            attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
        )
        return typed_request(RequestCode.POP_MESSAGE, header)

    def _pop_of_lite(
        self, context: Context, request: ReceiveMessageRequest, invisible_ms: int, wait_ms: int, broker: str
    ) -> AnyCommand:
        fields = {
            "clientId": context.client_id,
            "consumerGroup": request.group.name,
            "topic": request.message_queue.topic.name,
            "maxMsgNum": str(min(request.batch_size, MESSAGES_MAX)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(wait_ms),
            "bornTime": str(self._clock.now_ms()),
            "bname": broker,
        }
        if request.HasField("attempt_id"):
            fields["attemptId"] = request.attempt_id
        return remoting_request(RequestCode.POP_LITE_MESSAGE, fields)

    def _check_lite(self, client: Client) -> None:
        """Refuse messages of lite topics to a client that can't be told about them, or that holds too many."""
        if client.stream is None:
            raise ProxyError(Code.BAD_REQUEST, f"The client [{client.client_id}] is disconnected.")
        held = len(client.held)
        if held > self._config.max_lite_renew_num_per_channel:
            raise ProxyError(
                Code.FORBIDDEN, f"The client [{client.client_id}] has too many unacked messages. Unacked count: {held}"
            )

    def _wait_ms(self, context: Context, request: ReceiveMessageRequest, settings: Settings) -> int:
        """Time that a receive waits for messages; ProxyError if its client does not wait for long enough."""
        remaining_ms = context.remaining_ms(self._clock.now_ms())
        least_ms = self._config.grpc_client_consumer_min_long_polling_timeout_millis
        most_ms = self._config.grpc_client_consumer_max_long_polling_timeout_millis
        if request.HasField("long_polling_timeout"):
            wanted_ms = duration_ms(request.long_polling_timeout)
        elif remaining_ms is None:
            wanted_ms = most_ms
        else:
            wanted_ms = int(remaining_ms) - duration_ms(settings.request_timeout) // 2
        wait_ms = min(max(wanted_ms, least_ms), most_ms)
        if remaining_ms is None or wait_ms <= remaining_ms:
            return wait_ms
        if remaining_ms >= least_ms:
            return int(remaining_ms)
        is_known = context.version >= _POLLING_CODE_SINCE
        raise ProxyError(Code.ILLEGAL_POLLING_TIME if is_known else Code.BAD_REQUEST, _NO_POLLING_TIME)

    async def _broker(self, request: ReceiveMessageRequest) -> str:
        """Name of the broker to receive from: the client's choice, or any."""
        names = await self._brokers.readable(request.message_queue.topic.name)
        if not names:
            raise ProxyError(Code.FORBIDDEN, "no readable queue")
        asked = request.message_queue.broker.name
        return asked if asked in names else names[next(self._turn) % len(names)]

    def _deliver(
        self,
        context: Context,
        request: ReceiveMessageRequest,
        settings: Settings,
        popped: list[_Popped],
        renewed_for: Client | None,
    ) -> None:
        """Send the messages that the client asked for; acknowledge or bury the others."""
        call = context.call
        if call.is_over:
            self._give_back(context, request, popped)
            return
        topic, group = request.message_queue.topic.name, request.group.name
        attempts_max = settings.backoff_policy.max_attempts
        wanted = _tags(request.filter_expression)
        taken: list[_Popped] = []
        for one in popped:
            if wanted is not None and one.view.properties.get(keys_of.TAGS, "") not in wanted:
                self._drop(context, one.receipt, group, topic)
            elif one.attempts >= attempts_max:
                self._bury(context, one, group, topic)
            else:
                taken.append(one)
        if not taken:
            _send_status(call, status(Code.MESSAGE_NOT_FOUND, "no match message"), self._clock.now_ms())
            return
        call.send(ReceiveMessageResponse(status=status(Code.OK)).SerializeToString())
        for one in taken:
            message = message_of(one.view, topic, one.attempts)
            message.system_properties.receipt_handle = str(one.receipt)
            call.send(ReceiveMessageResponse(message=message).SerializeToString())
            if renewed_for is not None:
                self.renewal.add(renewed_for, group, topic, one.receipt)
        _send_time(call, self._clock.now_ms())

    # --- acknowledgements ---

    async def ack(self, context: Context, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages, each with its result."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        topic, group = request.topic.name, request.group.name
        answer = AckMessageResponse()
        sent: list[tuple[AckMessageResultEntry, Receipt | None, Reply[AnyCommand] | None]] = []
        for entry in request.entries:
            result = answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            try:
                receipt = self._valid(group, topic, entry.receipt_handle)
            except ProxyError as error:
                result.status.CopyFrom(status_of(error))
                sent.append((result, None, None))
                continue
            fields = receipt.fields(group, topic)
            if entry.lite_topic:
                fields["liteTopic"] = entry.lite_topic
            command = remoting_request(RequestCode.ACK_MESSAGE, fields)
            sent.append((result, receipt, context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX)))
        for result, acked, reply in sent:
            if reply is not None and acked is not None:
                result.status.CopyFrom(await self._acknowledged(reply, group, topic, acked))
        codes = {Code(entry.status.code) for entry in answer.entries}
        answer.status.CopyFrom(status_of_all(codes, "ack message result is empty"))
        return answer

    async def _acknowledged(self, reply: Reply[AnyCommand], group: str, topic: str, receipt: Receipt) -> Status:
        try:
            answer = await reply
        except (ProxyError, OSError) as error:
            return status_of(error)
        if answer.code == ResponseCode.SUCCESS:
            self._done(group, topic, receipt)
            return status(Code.OK)
        if answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL):
            return status(Code.INTERNAL_SERVER_ERROR, "ack failed: status is abnormal")
        return status_of_answer(answer.code, answer.remark)

    async def change(
        self, context: Context, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Change the invisible time of a message, from now; the answer has its new handle."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        invisible_ms = duration_ms(request.invisible_duration)
        check_invisible_ms(invisible_ms, self._config)
        topic, group = request.topic.name, request.group.name
        receipt = self._valid(group, topic, request.receipt_handle)
        self.renewal.drop(group, topic, receipt)
        fields = receipt.fields(group, topic) | {"invisibleTime": str(invisible_ms)}
        if request.lite_topic:
            fields["liteTopic"] = request.lite_topic
        if request.suspend:
            fields["suspend"] = "true"
        command = remoting_request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        answer = await context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX)
        if answer.code:
            raise BrokerError.of(answer.code, answer.remark, receipt.handle.broker_name)
        changed = receipt.changed(answer.ext)
        self._renewed.note(group, topic, changed)
        return ChangeInvisibleDurationResponse(status=status(Code.OK), receipt_handle=str(changed))

    async def forward(
        self, context: Context, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Put a message into the dead letter queue of its group, and acknowledge it."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        topic, group = request.topic.name, request.group.name
        receipt = self._renewed.newest(group, topic, parse_receipt(request.receipt_handle))
        if receipt.log_offset is None:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        reply = context.link.call(
            receipt.handle.broker_name, _burial(receipt, group, topic, request.message_id), ACK_MS_MAX
        )
        answer = await reply
        if answer.code:
            raise BrokerError.of(answer.code, answer.remark, receipt.handle.broker_name)
        self._drop(context, receipt, group, topic)
        return ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))

    def _valid(self, group: str, topic: str, text: str) -> Receipt:
        """Newest handle of a message that is still invisible; ProxyError for any other."""
        receipt = self._renewed.newest(group, topic, parse_receipt(text))
        if receipt.handle.visible_ms <= self._clock.now_ms():
            self._done(group, topic, receipt)
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        return receipt

    def _done(self, group: str, topic: str, receipt: Receipt) -> None:
        self._renewed.forget(group, topic, receipt)
        self.renewal.drop(group, topic, receipt)

    # --- messages that are not delivered ---

    def _drop(self, context: Context, receipt: Receipt, group: str, topic: str) -> None:
        """Acknowledge a message without its client."""
        self._done(group, topic, receipt)
        command = remoting_request(RequestCode.ACK_MESSAGE, receipt.fields(group, topic))
        _ignored(context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX), "acknowledge")

    def _bury(self, context: Context, popped: _Popped, group: str, topic: str) -> None:
        """Put a message whose attempts are used up into the dead letter queue, then acknowledge it."""

        async def bury() -> None:
            receipt = popped.receipt
            command = _burial(receipt, group, topic, popped.message_id)
            answer = await context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX)
            if answer.code:
                raise BrokerError.of(answer.code, answer.remark, receipt.handle.broker_name)
            self._drop(context, receipt, group, topic)

        run(bury(), lambda _: None, lambda error: _log_failure("bury", error))

    def _give_back(self, context: Context, request: ReceiveMessageRequest, popped: Sequence[_Popped]) -> None:
        """Make messages visible soon, because their client does not wait for them any more."""
        for one in popped:
            fields = one.receipt.fields(request.group.name, request.message_queue.topic.name)
            command = remoting_request(
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields | {"invisibleTime": str(NACK_MS)}
            )
            _ignored(context.link.call(one.receipt.handle.broker_name, command, ACK_MS_MAX), "give back")


def _check_texts(request: ReceiveMessageRequest) -> None:
    """Refuse texts that are longer than a broker takes."""
    if len(request.filter_expression.expression) > EXPRESSION_CHARS_MAX:
        raise ProxyError(
            Code.ILLEGAL_FILTER_EXPRESSION, f"the filter expression is longer than {EXPRESSION_CHARS_MAX} characters"
        )
    if len(request.attempt_id) > ATTEMPT_CHARS_MAX:
        raise ProxyError(Code.BAD_REQUEST, f"the attempt id is longer than {ATTEMPT_CHARS_MAX} characters")


def _popped(answer: AnyCommand, queue: Queue, *, in_order: bool) -> list[_Popped]:
    """Read the messages of an answer to a pop."""
    ext = answer.ext
    handles = PoppedHandles(queue, int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), ext)
    counts = parse_order_counts(ext.get("orderCountInfo", "")) if in_order else {}
    found: list[_Popped] = []
    for view in records_in(answer.body):
        text = view.properties.get(keys_of.POP_CHECKPOINT) or handles.of(view)
        receipt = parse_receipt(f"{text} {view.physical_offset}")
        found.append(_Popped(view, receipt, times_of(view, counts) if counts else view.reconsume_times))
    return found


def _popped_of_lite(answer: AnyCommand, topic: str, broker: str) -> list[_Popped]:
    """Read the messages of an answer to a pop of lite topics: each lite topic has one queue, and offsets of its own."""
    ext = answer.ext
    times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
    counts = ext.get("orderCountInfo", "").split(";")
    found: list[_Popped] = []
    for number, view in enumerate(records_in(answer.body)):
        offset = view.offset_in(lite_queue(topic, view.properties.get(keys_of.LITE_TOPIC, "")))
        handle = Handle(offset, *times, TOPIC, broker, 0, offset)
        words = counts[number].split(" ") if number < len(counts) else []
        attempts = int(words[-1]) if len(words) == 3 else 0
        found.append(_Popped(view, Receipt(handle, view.physical_offset), attempts))
    return found


def _burial(receipt: Receipt, group: str, topic: str, message_id: str) -> AnyCommand:
    """Request that puts a message into the dead letter queue of a group."""
    fields = {
        "group": group,
        "offset": str(receipt.log_offset),
        "delayLevel": "-1",
        "maxReconsumeTimes": "0",
        "originMsgId": message_id,
        "originTopic": receipt.fields(group, topic)["topic"],
        "unitMode": "false",
        "bname": receipt.handle.broker_name,
    }
    return remoting_request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def _ignored(reply: Reply[AnyCommand], what: str) -> None:
    """Log the failure of a request that nobody waits for; its message is delivered again."""

    async def wait() -> None:
        answer = await reply
        if answer.code:
            raise BrokerError.of(answer.code, answer.remark)

    run(wait(), lambda _: None, lambda error: _log_failure(what, error))


def _log_failure(what: str, error: Exception) -> None:
    log.warning("message is not settled: it is delivered again", extra={"wanted": what, "error": error})


def _tags(expression: FilterExpression) -> frozenset[str] | None:
    """Tags that a client wants; None for all, and for expressions that the broker evaluates."""
    if expression.type == FilterType.SQL:
        return None
    found = tags_in(expression.expression)
    return None if found is None else frozenset(found)


def fail_receive(call: Call, outcome: Status) -> None:
    """Send the answer to a receive that failed."""
    call.send(ReceiveMessageResponse(status=outcome).SerializeToString())
    stamp = Timestamp()
    stamp.GetCurrentTime()
    call.send(ReceiveMessageResponse(delivery_timestamp=stamp).SerializeToString())
    call.end()


def _send_nothing(call: Call, answer: AnyCommand, now_ms: int) -> None:
    found = _NOTHING.get(answer.code)  # type: ignore[call-overload]
    if found is None:
        raise BrokerError.of(answer.code, answer.remark)
    _send_status(call, status(*found), now_ms)


def _send_status(call: Call, outcome: Status, now_ms: int) -> None:
    call.send(ReceiveMessageResponse(status=outcome).SerializeToString())
    _send_time(call, now_ms)


def _send_time(call: Call, now_ms: int) -> None:
    stamp = timestamp_of(now_ms)
    call.send(ReceiveMessageResponse(delivery_timestamp=stamp).SerializeToString())
