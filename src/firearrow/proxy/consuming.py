"""Receiving: `ReceiveMessage`, `AckMessage`, `ChangeInvisibleDuration`, `ForwardMessageToDeadLetterQueue`.

A message is received by a pop. It is invisible to others until its handle expires, unless the client asks for renewal:
then the proxy extends the time (`proxy.renewal`) as long as the client lives.

Source: RocketMQ's ``ReceiveMessageActivity``, ``ConsumerProcessor``, ``AckMessageActivity``,
``ChangeInvisibleDurationActivity``, ``ForwardMessageToDLQActivity``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import count
from typing import Final

import msgspec

from firearrow.client.pop.popcalls import PoppedHandles, times_of
from firearrow.client.queues import Queue
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.message.names import lite_queue
from firearrow.net.grpc import Call
from firearrow.net.replies import Reply, run
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import Context, leave_turn
from firearrow.proxy.clients import Client, Clients
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.delivery import fill_message, records_in
from firearrow.proxy.handles import Receipt, Renewed, parse_receipt
from firearrow.proxy.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
    Timestamp,
)
from firearrow.proxy.meter import Rate
from firearrow.proxy.renewal import Renewal
from firearrow.proxy.statuses import ProxyError, status, status_of, status_of_all, status_of_answer
from firearrow.proxy.times import duration_ms, set_time
from firearrow.proxy.validation import check_filter, check_group, check_invisible_ms, check_topic
from firearrow.proxy.waits import Waits
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import BatchAckBody, SubscriptionGroupConfig, tags_in
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import request as remoting_request
from firearrow.wire.command import typed_request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import ANY_QUEUE, TOPIC, Handle, batch_acks, origin_topic, parse_order_counts

log: Final = Log(__name__)

MESSAGES_MAX: Final = 32  # of one pop
EXPRESSION_CHARS_MAX: Final = 64 * 1024
ATTEMPT_CHARS_MAX: Final = 255
FROM_NOW: Final = 1  # of RocketMQ's ConsumeInitMode: a new group begins at the end
ACK_MS_MAX: Final = 3000
POP_MORE_MS: Final = 3000  # for the answer, beyond the broker's own waiting time
BATCH_BITS_MAX: Final = 4096  # from the first offset of a pop to that of its message
NACK_MS: Final = 1000
"""Invisible time of messages that were popped for a client that has given up."""
_NO_POLLING_TIME: Final = "The deadline time remaining is not enough for polling, please check network condition"
_POLLING_CODE_SINCE: Final = "5.0.3"
_NOTHING: Final[dict[int, tuple[Code, str]]] = {
    ResponseCode.PULL_NOT_FOUND: (Code.MESSAGE_NOT_FOUND, "no new message"),
    ResponseCode.POLLING_TIMEOUT: (Code.MESSAGE_NOT_FOUND, "no new message"),
    ResponseCode.POLLING_FULL: (Code.TOO_MANY_REQUESTS, "polling full"),
}


class _Popped(msgspec.Struct, frozen=True, gc=False):
    """A received message, the text of its handle, and the count of its earlier deliveries."""

    view: MessageView
    handle: str
    attempts: int

    @property
    def receipt(self) -> Receipt:
        """Handle of the message; most messages need its text only."""
        return parse_receipt(self.handle)

    @property
    def message_id(self) -> str:
        """Id from its sender, or otherwise the address of its record."""
        return self.view.unique_key or self.view.offset_message_id


class _Acked(msgspec.Struct, frozen=True):
    """A message to acknowledge, and the place of the result; without ``reply`` the request is for several messages."""

    result: AckMessageResultEntry
    receipt: Receipt
    reply: Reply[AnyCommand] | None = None


class Consuming:
    """Handlers of consumers' calls."""

    def __init__(self, brokers: Brokers, users: Users, clients: Clients, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._users = users
        self._clients = clients
        self._config = config
        self._clock = clock
        self._renewed = Renewed()
        self.renewal: Final = Renewal(self._renewed, config, clock)
        self.waits: Final = Waits()
        self._turn = count()
        self.received: Final = Rate()
        """Messages that clients received."""

    # --- ReceiveMessage ---

    async def receive(self, context: Context, request: ReceiveMessageRequest) -> Code:
        """Receive messages of a topic, and send them: first a status, at last the time. Return the status' code."""
        client = self._clients.of(context)
        queue = request.message_queue
        topic, group = queue.topic.name, request.group.name
        renews = self._config.enable_proxy_auto_renew and request.auto_renew
        check_topic(topic)
        check_group(group)
        if client is None and renews:
            client = await self._clients.presumed(context, request)
        wait_ms = self._wait_ms(context, request, client)
        if renews:
            invisible_ms = self._config.default_invisible_time_mills
        else:
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible_ms(invisible_ms, self._config, self._config.min_invisible_time_mills_for_recv)
        expression = request.filter_expression
        check_filter(expression)
        _check_limits(request, expression)
        broker = await self._broker(topic, queue.broker.name)
        self._users.check_group(context.user, context.address, group)  # the next line may make the group
        config = await self._brokers.group(group) or SubscriptionGroupConfig()
        in_order = config.consume_message_orderly
        is_lite = client is not None and client.is_lite
        if is_lite and client is not None:
            self._check_lite(client)
            command = self._pop_of_lite(context, request, invisible_ms, wait_ms, broker)
        else:
            command = self._pop(request, topic, group, expression, invisible_ms, wait_ms, in_order=in_order)
        answer = await self.waits.answer(context, broker, command, wait_ms + POP_MORE_MS)
        if answer.code:
            return _send_nothing(context.call, answer, self._clock.now_ms())
        if is_lite:
            popped = _popped_of_lite(answer, topic, broker)
        else:
            popped = _popped(answer, Queue(topic, broker, ANY_QUEUE), in_order=in_order)
        if context.call.is_over:
            self._give_back(context, group, topic, popped)
            return Code.MESSAGE_NOT_FOUND
        if renews and (client is None or client.link is None):
            self._give_back(context, group, topic, popped)
            text = f"The client [{context.client_id}] is disconnected."
            _send_status(context.call, status(Code.MESSAGE_NOT_FOUND, text), self._clock.now_ms())
            return Code.MESSAGE_NOT_FOUND
        wanted = _tags(expression)
        return self._deliver(
            context, topic, group, wanted, config.retry_max_times + 1, popped, client if renews else None
        )

    def _pop(
        self,
        request: ReceiveMessageRequest,
        topic: str,
        group: str,
        expression: FilterExpression,
        invisible_ms: int,
        wait_ms: int,
        *,
        in_order: bool,
    ) -> AnyCommand:
        header = PopMessage(
            consumer_group=group,
            topic=topic,
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
        """Refuse messages of lite topics to a client that holds too many.

        Java: ReceiveMessageActivity refuses them to a client whose stream is lost, too. Its subscriptions are gone, but
        clients renew them, the Python client long before its stream.
        """
        held = len(client.held)
        if held > self._config.max_lite_renew_num_per_channel:
            raise ProxyError(
                Code.FORBIDDEN, f"The client [{client.client_id}] has too many unacked messages. Unacked count: {held}"
            )

    def _wait_ms(self, context: Context, request: ReceiveMessageRequest, client: Client | None) -> int:
        """Time that a receive waits for messages; ProxyError if its client does not wait for long enough."""
        remaining_ms = context.remaining_ms(self._clock.now_ms())
        least_ms = self._config.grpc_client_consumer_min_long_polling_timeout_millis
        most_ms = self._config.grpc_client_consumer_max_long_polling_timeout_millis
        if request.HasField("long_polling_timeout"):
            wanted_ms = duration_ms(request.long_polling_timeout)
        elif remaining_ms is None:
            wanted_ms = most_ms
        else:
            timeout_ms = 0 if client is None else duration_ms(client.settings.request_timeout)
            wanted_ms = int(remaining_ms) - timeout_ms // 2
        wait_ms = min(max(wanted_ms, least_ms), most_ms)
        if remaining_ms is None or wait_ms <= remaining_ms:
            return wait_ms
        if remaining_ms >= least_ms:
            return int(remaining_ms)
        is_known = context.version >= _POLLING_CODE_SINCE
        raise ProxyError(Code.ILLEGAL_POLLING_TIME if is_known else Code.BAD_REQUEST, _NO_POLLING_TIME)

    async def _broker(self, topic: str, asked: str) -> str:
        """Name of the broker to receive from: the client's choice, or any."""
        names = await self._brokers.readable(topic)
        if not names:
            raise ProxyError(Code.FORBIDDEN, "no readable queue")
        return asked if asked in names else names[next(self._turn) % len(names)]

    def _deliver(
        self,
        context: Context,
        topic: str,
        group: str,
        wanted: Container[str] | None,
        attempts_max: int,
        popped: list[_Popped],
        renewed_for: Client | None,
    ) -> Code:
        """Send the messages with the wanted tags; acknowledge or bury the others. Return the code."""
        call = context.call
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
            return Code.MESSAGE_NOT_FOUND
        parts = [_FOUND]
        if renewed_for is not None:  # those of others come when their invisible time ends
            receipts = [one.receipt for one in taken]
            call.lost = lambda: self.renewal.give_back(group, topic, receipts)
        for one in taken:
            part = ReceiveMessageResponse()
            fill_message(part.message, one.view, topic, one.attempts)
            part.message.system_properties.receipt_handle = one.handle
            parts.append(part.SerializeToString())
            if renewed_for is not None:
                self.renewal.add(renewed_for, group, topic, one.receipt, one.attempts)
        now_ms = self._clock.now_ms()
        parts.append(_time_part(now_ms))
        call.answer_all(parts)
        self.received.add(len(taken), now_ms)
        return Code.OK

    # --- acknowledgements ---

    async def ack(self, context: Context, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages, each with its result."""
        topic, group = request.topic.name, request.group.name
        check_topic(topic)
        check_group(group)
        link = context.link
        answer = AckMessageResponse()
        sent: list[_Acked] = []
        together: dict[str, list[_Acked]] = {}  # by brokers
        for number, entry in enumerate(request.entries):
            await leave_turn(number)
            text, lite_topic = entry.receipt_handle, entry.lite_topic
            result = answer.entries.add()  # fields by name would take three times as long
            result.message_id, result.receipt_handle = entry.message_id, text
            try:
                receipt = self._known(group, topic, text, lite_topic)
                if receipt is None:
                    receipt = await self._valid(context, group, topic, text, lite_topic)
            except ProxyError as error:
                result.status.CopyFrom(status_of(error))
                continue
            broker = receipt.handle.broker_name
            if self._config.enable_batch_ack and not lite_topic and is_batchable(receipt.handle):
                together.setdefault(broker, []).append(_Acked(result, receipt))
                continue
            command = typed_request(RequestCode.ACK_MESSAGE, receipt.header(group, topic))
            sent.append(_Acked(result, receipt, link.call(broker, command, ACK_MS_MAX)))
        for acked in sent:
            assert acked.reply is not None, "each has its request"
            acked.result.status.CopyFrom(await self._acknowledged(acked.reply, group, topic, acked.receipt))
        for broker, some in together.items():
            outcome = await self._acknowledged_together(context, broker, group, topic, some)
            for acked in some:
                acked.result.status.CopyFrom(outcome)
        codes = {entry.status.code for entry in answer.entries}
        answer.status.CopyFrom(status_of_all(codes, "ack message result is empty"))
        return answer

    async def _acknowledged_together(
        self, context: Context, broker: str, group: str, topic: str, some: Sequence[_Acked]
    ) -> Status:
        body = BatchAckBody(broker, batch_acks(group, topic, [acked.receipt.handle for acked in some]))
        command = remoting_request(RequestCode.BATCH_ACK_MESSAGE, {"bname": broker}, fastjson.dumps(body))
        try:
            answer = await context.link.call(broker, command, ACK_MS_MAX)
        except (ProxyError, OSError) as error:
            return status_of(_about_handle(error))
        if not answer.code:
            for acked in some:
                self._done(group, topic, acked.receipt)
        return _status_of_ack(answer)

    async def _acknowledged(self, reply: Reply[AnyCommand], group: str, topic: str, receipt: Receipt) -> Status:
        try:
            answer = await reply
        except (ProxyError, OSError) as error:
            return status_of(_about_handle(error))
        if not answer.code:
            self._done(group, topic, receipt)
        return _status_of_ack(answer)

    async def change(
        self, context: Context, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Change the invisible time of a message, from now; the answer has its new handle."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        invisible_ms = duration_ms(request.invisible_duration)
        check_invisible_ms(invisible_ms, self._config)
        topic, group = request.topic.name, request.group.name
        receipt = await self._valid(context, group, topic, request.receipt_handle, request.lite_topic)
        self.renewal.drop(group, topic, receipt)
        command = receipt.change(group, topic, invisible_ms, is_suspended=request.suspend)
        answer = await _answer(context, receipt, command)
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
        receipt = await self._newest(context, group, topic, request.receipt_handle, request.lite_topic)
        if receipt.log_offset is None:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        await _answer(context, receipt, _burial(receipt, group, topic, request.message_id))
        self._drop(context, receipt, group, topic)
        return ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))

    async def _newest(self, context: Context, group: str, topic: str, text: str, lite_topic: str) -> Receipt:
        """Newest handle of a message, after a renewal in progress; ProxyError for a text that is none."""
        receipt = parse_receipt(text, lite_topic)
        if self.renewal.in_progress:
            await self.renewal.settled(group, topic, receipt)
        receipt = self._renewed.newest(group, topic, receipt)
        if self._may_be_old(receipt) and not self.renewal.has(group, topic, receipt):
            receipt = await self._newest_of_broker(context, group, topic, receipt)
        return receipt

    def _may_be_old(self, receipt: Receipt) -> bool:
        """Tell whether another proxy may have renewed a message: the time of its handle is over, or about to be."""
        handle, config = receipt.handle, self._config
        is_for_renewal = handle.invisible_ms == config.default_invisible_time_mills
        ahead_ms = config.renew_ahead_time_millis if is_for_renewal else 0
        return handle.visible_ms - ahead_ms <= self._clock.now_ms()

    async def _newest_of_broker(self, context: Context, group: str, topic: str, receipt: Receipt) -> Receipt:
        """Ask the broker of a message for its newest handle; the known one if there is none, or no answer."""
        command = typed_request(RequestCode.NEWEST_HANDLE, receipt.header(group, topic))
        try:
            answer = await context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX)
        except (ProxyError, OSError):
            return receipt
        return receipt if answer.code else receipt.changed(answer.ext)

    async def _valid(self, context: Context, group: str, topic: str, text: str, lite_topic: str) -> Receipt:
        """Newest handle of a message that is still invisible; ProxyError for any other."""
        receipt = await self._newest(context, group, topic, text, lite_topic)
        if receipt.handle.visible_ms <= self._clock.now_ms():
            self._done(group, topic, receipt)
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        return receipt

    def _known(self, group: str, topic: str, text: str, lite_topic: str) -> Receipt | None:
        """Result of `_valid` if it would not wait, otherwise None. This saves two coroutines for most messages."""
        if self.renewal.in_progress:
            return None
        receipt = self._renewed.newest(group, topic, parse_receipt(text, lite_topic))
        return None if self._may_be_old(receipt) else receipt

    def _done(self, group: str, topic: str, receipt: Receipt) -> None:
        self._renewed.forget(group, topic, receipt)
        self.renewal.drop(group, topic, receipt)

    # --- messages that are not delivered ---

    def _drop(self, context: Context, receipt: Receipt, group: str, topic: str) -> None:
        """Acknowledge a message without its client."""
        self._done(group, topic, receipt)
        command = typed_request(RequestCode.ACK_MESSAGE, receipt.header(group, topic))
        _ignored(context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX), "acknowledge")

    def _bury(self, context: Context, popped: _Popped, group: str, topic: str) -> None:
        """Put a message whose attempts are used up into the dead letter queue, then acknowledge it."""

        async def bury() -> None:
            receipt = popped.receipt
            await _answer(context, receipt, _burial(receipt, group, topic, popped.message_id))
            self._drop(context, receipt, group, topic)

        run(bury(), lambda _: None, lambda error: _log_failure("bury", error))

    def _give_back(self, context: Context, group: str, topic: str, popped: Sequence[_Popped]) -> None:
        """Make messages visible soon, because their client does not wait for them any more.

        Java: ReceiveMessageResponseStreamWriter counts it as an attempt.
        """
        for one in popped:
            receipt = one.receipt
            command = receipt.change(group, topic, NACK_MS, is_suspended=True)
            _ignored(context.link.call(receipt.handle.broker_name, command, ACK_MS_MAX), "give back")


async def _answer(context: Context, receipt: Receipt, command: AnyCommand) -> AnyCommand:
    """Ask the broker of a receipt about its message; BrokerError if it refuses, ProxyError if there is none."""
    broker = receipt.handle.broker_name
    try:
        answer = await context.link.call(broker, command, ACK_MS_MAX)
    except ProxyError as error:
        raise _about_handle(error) from None
    if answer.code:
        raise BrokerError.of(answer.code, answer.remark, broker)
    return answer


def _about_handle(error: ProxyError | OSError) -> ProxyError | OSError:
    """Return the error for a handle: an unknown broker makes it invalid."""
    if isinstance(error, ProxyError) and error.code == Code.BAD_REQUEST:
        return ProxyError(Code.INVALID_RECEIPT_HANDLE, error.message)
    return error


def is_batchable(handle: Handle) -> bool:
    """Tell whether a handle may stand in a request that acknowledges several messages, as a bit of its pop.

    A client can name any offset, and each would be a bit.
    """
    return not handle.is_ordered and 0 <= handle.queue_offset - handle.start_offset < BATCH_BITS_MAX


def _status_of_ack(answer: AnyCommand) -> Status:
    if not answer.code:
        return status(Code.OK)
    if answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL):
        return status(Code.INTERNAL_SERVER_ERROR, "ack failed: status is abnormal")
    return status_of_answer(answer.code, answer.remark)


def _check_limits(request: ReceiveMessageRequest, expression: FilterExpression) -> None:
    """Refuse texts that are longer than a broker takes, and a wish for no message.

    Java: PopMessageProcessor lets a client wait in vain that wants no message.
    """
    if request.batch_size < 1:
        raise ProxyError(Code.BAD_REQUEST, f"batch size {request.batch_size} is below 1")
    if len(expression.expression) > EXPRESSION_CHARS_MAX:
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
        attempts = times_of(view, counts) if counts else view.reconsume_times
        found.append(_Popped(view, f"{text} {view.physical_offset}", attempts))
    return found


def _popped_of_lite(answer: AnyCommand, topic: str, broker: str) -> list[_Popped]:
    """Read the messages of an answer to a pop of lite topics: each lite topic has one queue, and its own offsets."""
    ext = answer.ext
    times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
    counts = ext.get("orderCountInfo", "").split(";")
    found: list[_Popped] = []
    for number, view in enumerate(records_in(answer.body)):
        lite_topic = view.properties.get(keys_of.LITE_TOPIC, "")
        offset = view.offset_in(lite_queue(topic, lite_topic))
        handle = Handle(offset, *times, TOPIC, broker, 0, offset)
        words = counts[number].split(" ") if number < len(counts) else []
        attempts = int(words[-1]) if len(words) == 3 else 0
        found.append(_Popped(view, f"{handle} {view.physical_offset} {lite_topic}", attempts))
    return found


def _burial(receipt: Receipt, group: str, topic: str, message_id: str) -> AnyCommand:
    """Request that puts a message into the dead letter queue of a group."""
    fields = {
        "group": group,
        "offset": str(receipt.log_offset),
        "delayLevel": "-1",
        "maxReconsumeTimes": "0",
        "originMsgId": message_id,
        "originTopic": origin_topic(topic, group, receipt.handle.origin),
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
    tags = tags_in(expression.expression)
    return frozenset(tags) if tags else None


def fail_receive(call: Call, outcome: Status) -> None:
    """Send the answer to a receive that failed."""
    stamp = Timestamp()
    stamp.GetCurrentTime()
    parts = ReceiveMessageResponse(status=outcome), ReceiveMessageResponse(delivery_timestamp=stamp)
    call.answer_all(part.SerializeToString() for part in parts)


def _send_nothing(call: Call, answer: AnyCommand, now_ms: int) -> Code:
    found = _NOTHING.get(answer.code)
    if found is None:
        raise BrokerError.of(answer.code, answer.remark)
    _send_status(call, status(*found), now_ms)
    return found[0]


def _send_status(call: Call, outcome: Status, now_ms: int) -> None:
    call.answer_all((ReceiveMessageResponse(status=outcome).SerializeToString(), _time_part(now_ms)))


def _time_part(now_ms: int) -> bytes:
    """Last part of an answer."""
    part = ReceiveMessageResponse()
    set_time(part.delivery_timestamp, now_ms)
    return part.SerializeToString()


_FOUND: Final = ReceiveMessageResponse(status=status(Code.OK)).SerializeToString()
"""First part of an answer with messages."""
