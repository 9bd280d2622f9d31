"""Clients: their settings, their registration at brokers, and the stream on which the proxy asks them.

A client begins with its settings on a `Telemetry` stream, and says every 10 s by `Heartbeat` that it is alive. It is
registered at brokers under its topics, as producer, or under its group, as consumer, by a link of its own. So a broker
knows it like a client that speaks remoting, and asks it by that link: the proxy passes the question on by the stream.
When the link ends the client is forgotten, with its settings: after `NotifyClientTermination`, or when a broker has
heard nothing for two minutes. The end of the stream alone does not end a client.

Source: RocketMQ's ``ClientActivity``, ``GrpcClientSettingsManager``, ``GrpcClientChannel``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from firearrow.auth.model import Action
from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.message.record import decode_record
from firearrow.net.grpc import Call
from firearrow.net.replies import run
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Asked, Brokers, Link
from firearrow.proxy.calls import Context, failure
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.delivery import message_of
from firearrow.proxy.handles import Place
from firearrow.proxy.messages import (
    ClientType,
    Code,
    FilterType,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    Settings,
    Status,
    SubscriptionEntry,
    TelemetryCommand,
    ThreadStackTrace,
)
from firearrow.proxy.settings import LITE_BIND_TOPIC, check_bound, merged
from firearrow.proxy.statuses import ProxyError, status, status_of
from firearrow.proxy.transactionids import TransactionId
from firearrow.proxy.validation import check_client_properties, check_filter, check_group, check_topic
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    ConsumerData,
    ConsumerRunningInfo,
    DirectResult,
    Heartbeat,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.grpc import Status as CallStatus

log = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 1000  # of brokers to clients of one proxy, not answered yet
_PASSIVE: Final = (ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER)
_LITE: Final = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
_CONSUMERS: Final = (ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER, *_PASSIVE, ClientType.LITE_SIMPLE_CONSUMER)
_TYPE_NAMES: Final = {kind.value: kind.name for kind in ClientType}
_RESULTS: Final[dict[int, str]] = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
_FROM_CLIENT: Final = "from gRPC client"


class _HasNonce(Protocol):
    """Command with a nonce, which its answer repeats."""

    nonce: str


class Client:
    """A client that has sent its settings; ``settings`` are the merged ones."""

    def __init__(self, client_id: str, settings: Settings, user: str | None) -> None:
        self.client_id = client_id
        self.settings = settings
        self.user = user
        self.settled_ms = 0
        """Time of its settings: a broker takes its subscriptions if they are newer than those of other clients."""
        self.link: Link | None = None
        self.address = ""
        """Address that the link has for brokers."""
        self.stream: Call | None = None
        self.version = ""
        self.language = ""
        self.held: set[Place] = set()
        """Places of messages that are renewed for it."""

    @property
    def is_consumer(self) -> bool:
        """Tell whether it consumes."""
        return self.settings.HasField("subscription")

    @property
    def is_lite(self) -> bool:
        """Tell whether it consumes lite topics."""
        return self.settings.client_type in _LITE

    @property
    def group(self) -> str:
        """Group of a consumer."""
        return self.settings.subscription.group.name

    @property
    def topics(self) -> list[str]:
        """Topics that it sends to, or has subscribed to."""
        if self.is_consumer:
            return [entry.topic.name for entry in self.settings.subscription.subscriptions]
        return [topic.name for topic in self.settings.publishing.topics]

    def heartbeat(self) -> Heartbeat:
        """Heartbeat that registers it at a broker. Its producer groups are the names of its topics, as in RocketMQ."""
        if not self.is_consumer:
            return Heartbeat(client_id=self.client_id, producer_data_set=[ProducerData(name) for name in self.topics])
        kind = self.settings.client_type
        data = ConsumerData(
            self.group,
            CONSUME_PASSIVELY if kind in _PASSIVE else CONSUME_ACTIVELY,
            "LITE_SELECTIVE" if kind in _LITE else "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
            [
                SubscriptionData(
                    entry.topic.name,
                    entry.expression.expression or "*",
                    self.settled_ms,
                    "SQL92" if entry.expression.type == FilterType.SQL else "TAG",
                )
                for entry in self.settings.subscription.subscriptions
            ],
        )
        return Heartbeat(client_id=self.client_id, consumer_data_set=[data])

    def send(self, command: TelemetryCommand) -> bool:
        """Send a command by the stream; tell whether there is one."""
        if self.stream is None or self.stream.is_over:
            return False
        self.stream.send(command.SerializeToString())
        return True


class _Question(NamedTuple):
    """Question of a broker that a client has not answered yet."""

    asked: Asked
    client: Client
    timer: asyncio.TimerHandle


_Key = tuple[str | None, str]


def _key_of(context: Context) -> _Key:
    return context.user, context.client_id


class Clients:
    """The clients of a proxy, by their users and ids: an id of another user is another client."""

    def __init__(self, brokers: Brokers, users: Users, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._users = users
        self._config = config
        self._clock = clock
        self._table: dict[_Key, Client] = {}
        self._questions: dict[str, _Question] = {}  # by nonce, the oldest first
        self.left: list[Callable[[Client], None]] = []
        """Called with a client that is forgotten."""
        self.stream_lost: list[Callable[[Client], None]] = []
        """Called with a client whose stream has broken."""

    def of(self, context: Context) -> Client | None:
        """Return the client of a call; None if it has no settings."""
        return self._table.get(_key_of(context))

    def all(self) -> Iterable[Client]:
        """Return all clients."""
        return self._table.values()

    # --- settings ---

    def telemetry(self, context: Context, command: TelemetryCommand, settled: Callable[[Call, int], None]) -> None:
        """Take a command of a client from its stream. ``settled`` is told the code of each answer to settings."""
        call = context.call
        kind = command.WhichOneof("command")
        if kind == "settings":

            def accept(settings: Settings) -> None:
                call.send(TelemetryCommand(status=status(Code.OK), settings=settings).SerializeToString())
                settled(call, Code.OK)

            def refuse(error: Exception) -> None:
                if isinstance(error, ProxyError) and error.code == Code.INVALID_CLIENT_PROPERTIES:
                    call.send(TelemetryCommand(status=status_of(error)).SerializeToString())  # it may send others
                _fail_stream(call, error)
                settled(call, status_of(error).code)

            run(self._settle(context, command.settings), accept, refuse)
        elif kind == "thread_stack_trace":
            self._answer_trace(command.thread_stack_trace, command.status)
        elif kind == "verify_message_result":
            self._answer_verified(command.verify_message_result.nonce, command.status)

    async def _settle(self, context: Context, settings: Settings) -> Settings:
        group = None
        check_client_properties(settings)
        if settings.HasField("publishing"):
            for topic in settings.publishing.topics:
                check_topic(topic.name)
                self._users.check_topic(context.user, context.address, topic.name, Action.PUB)
        elif settings.HasField("subscription"):
            check_group(settings.subscription.group.name)
            self._users.check_group(context.user, context.address, settings.subscription.group.name)
            for entry in settings.subscription.subscriptions:
                self._users.check_topic(context.user, context.address, entry.topic.name, Action.SUB)
                _check_filter(entry)
            group = await self._brokers.group(settings.subscription.group.name)
            _check_kind(settings, group)
        else:
            raise ProxyError(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
        client = self._entered(context, merged(settings, group, self._config))
        try:
            await self._register(client)
        except (ProxyError, BrokerError):
            self._forget(client)
            raise
        return client.settings

    def _entered(self, context: Context, settings: Settings) -> Client:
        """Enter a client with its settings, and its stream."""
        client = self._table.get(_key_of(context))
        if client is None:
            client = self._table[_key_of(context)] = Client(context.client_id, settings, context.user)
        client.settings = settings
        client.settled_ms = self._clock.now_ms()
        client.version = context.version
        client.language = context.language
        client.stream = context.call
        if client.address != context.address:
            old, client.link = client.link, self._opened(client, context)
            client.address = context.address
            if old is not None:
                old.close()
        return client

    def _opened(self, client: Client, context: Context) -> Link:
        def lost() -> None:
            if client.link is link:
                client.link = self._last_link(client) if client.held or client.is_lite else None
                self._forget(client)

        link = self._brokers.link(context.address, lambda asked: self._take(client, asked), lost)
        link.prove(client.user)
        return link

    def _last_link(self, client: Client) -> Link:
        """Open a link for a client whose link has ended: its messages must be given back, and its
        subscriptions to lite topics removed.
        """
        link = self._brokers.link(client.address, _unasked, lambda: None)
        link.prove(client.user)
        return link

    async def _register(self, client: Client) -> None:
        link = client.link
        if link is not None:
            await self._brokers.beat(link, client.heartbeat(), client.topics)

    def _forget(self, client: Client) -> None:
        key = client.user, client.client_id
        if self._table.get(key) is client:
            del self._table[key]
            for call in self.left:
                call(client)  # while it has its link
        link, client.link = client.link, None
        if link is not None:
            link.close()

    # --- calls ---

    def _own(self, context: Context) -> Client:
        """Return the client of a call; ProxyError if it has no settings."""
        client = self.of(context)
        if client is None:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return client

    async def heartbeat(self, context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
        """Note that a client is alive, and register it again."""
        client = self._own(context)
        if client.is_consumer:
            check_group(request.group.name)
        await self._register(client)
        return HeartbeatResponse(status=status(Code.OK))

    async def terminated(
        self, context: Context, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Forget a client that ends."""
        client = self._own(context)
        if client.is_consumer:
            check_group(request.group.name)
        self._forget(client)
        return NotifyClientTerminationResponse(status=status(Code.OK))

    # --- questions of brokers ---

    def _take(self, client: Client, asked: Asked) -> None:
        """Pass a question of a broker on; BrokerError if that is impossible."""
        code = asked.command.code
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            _recover(client, asked)
        elif code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self._ask_state(client, asked)
        elif code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            command = TelemetryCommand()
            command.verify_message_command.message.CopyFrom(message_of(decode_record(asked.command.body)))
            self._ask(client, asked, command, command.verify_message_command)
        elif code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            command = TelemetryCommand()
            command.notify_unsubscribe_lite_command.lite_topic = str(asked.command.ext.get("liteTopic", ""))
            client.send(command)
        elif not asked.command.is_oneway:
            raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"a gRPC client does not answer {code}")

    def _ask_state(self, client: Client, asked: Asked) -> None:
        if str(asked.command.ext.get("jstackEnable", "")).lower() != "true":
            asked.answer(Response(body=fastjson.dumps(_running_info(client))))
            return
        command = TelemetryCommand()
        self._ask(client, asked, command, command.print_thread_stack_trace_command)

    def _ask(self, client: Client, asked: Asked, command: TelemetryCommand, part: _HasNonce) -> None:
        nonce = part.nonce = secrets.token_hex(16)
        if not client.send(command):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"client {client.client_id} has no telemetry stream")
        if len(self._questions) >= QUESTIONS_MAX:
            self._give_up(next(iter(self._questions)), "too many requests to clients are pending")
        timeout = self._config.grpc_proxy_relay_request_timeout_in_seconds
        timer = asyncio.get_running_loop().call_later(timeout, self._give_up, nonce, "call remote timeout")
        self._questions[nonce] = _Question(asked, client, timer)

    def _answered(self, nonce: str) -> _Question | None:
        question = self._questions.pop(nonce, None)
        if question is not None:
            question.timer.cancel()
        return question

    def _give_up(self, nonce: str, reason: str) -> None:
        question = self._answered(nonce)
        if question is not None:
            question.asked.answer(Response(ResponseCode.SYSTEM_BUSY, reason))

    def _answer_trace(self, trace: ThreadStackTrace, outcome: Status) -> None:
        question = self._answered(trace.nonce)
        if question is None:
            return
        if outcome.code not in (Code.OK, Code.CODE_UNSPECIFIED):
            remark = f"client {question.client.client_id} has no stack trace: {outcome.code} {outcome.message}"
            question.asked.answer(Response(ResponseCode.SYSTEM_ERROR, remark))
            return
        info = _running_info(question.client, trace.thread_stack_trace)
        question.asked.answer(Response(body=fastjson.dumps(info)))

    def _answer_verified(self, nonce: str, outcome: Status) -> None:
        question = self._answered(nonce)
        if question is not None:
            found = _RESULTS.get(outcome.code, "CR_THROW_EXCEPTION")
            result = DirectResult(consume_result=found, remark=_FROM_CLIENT)
            question.asked.answer(Response(body=fastjson.dumps(result)))

    def stream_ended(self, context: Context, *, is_broken: bool) -> None:
        """Note that a client's stream has ended; the client stays until it says nothing more."""
        client = self.of(context)
        if client is None or client.stream is not context.call:
            return
        client.stream = None
        client.settings.ClearField("client_properties")  # they are the stream's
        for nonce in [nonce for nonce, question in self._questions.items() if question.client is client]:
            self._give_up(nonce, f"client {client.client_id} has ended its telemetry stream")
        if is_broken:
            for listener in self.stream_lost:
                listener(client)


def _unasked(asked: Asked) -> None:
    """Take no request of a broker."""


def _check_filter(entry: SubscriptionEntry) -> None:
    """Refuse an expression that is no list of tags, and none at all for SQL."""
    try:
        check_filter(entry.expression)
    except ProxyError:
        raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, "expression format is not correct") from None


def _check_kind(settings: Settings, group: SubscriptionGroupConfig | None) -> None:
    """Refuse consumers of lite topics in a group without them, and others in a group with them.

    Source: RocketMQ's ``ClientProcessor#validateLiteMode``.
    """
    subscription = settings.subscription
    name = subscription.group.name
    if settings.client_type not in _CONSUMERS:
        kind = _TYPE_NAMES.get(settings.client_type, str(settings.client_type))
        raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, f"Client type is not consumer, type: {kind}")
    if group is None:
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    parent = group.attributes.get(LITE_BIND_TOPIC)
    if settings.client_type not in _LITE:
        if parent:
            raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {name}")
        return
    if not parent:
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {name}")
    if subscription.subscriptions:
        check_bound(name, parent, subscription.subscriptions[0].topic.name)


def _fail_stream(call: Call, error: Exception) -> None:
    """End a stream whose settings are refused.

    Source: RocketMQ's ``ClientActivity#processTelemetryException``.
    """
    found = failure(call, error)
    if found.code == Code.UNAUTHORIZED:
        call.send(TelemetryCommand(status=found).SerializeToString())
        call.end()
        return
    text = f"process client telemetryCommand failed. {found.message}"
    is_clients = isinstance(error, ProxyError) and Code.BAD_REQUEST <= error.code < Code.INTERNAL_ERROR
    call.fail(CallStatus.INVALID_ARGUMENT if is_clients else CallStatus.INTERNAL, text)


def _recover(client: Client, asked: Asked) -> None:
    """Ask a producer for the decision about a message whose transaction is open."""
    try:
        view = decode_record(asked.command.body)
    except MessageError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message: {error}") from None
    ext = asked.command.ext
    place = int(ext.get("tranStateTableOffset", 0)), int(ext.get("commitLogOffset", 0))
    command = TelemetryCommand()
    part = command.recover_orphaned_transaction_command
    part.message.CopyFrom(message_of(view))
    part.transaction_id = str(TransactionId(asked.broker, *place))
    if not client.send(command):
        log.info("producer has no stream for a check", extra={"client": client.client_id})


def _running_info(client: Client, trace: str | None = None) -> ConsumerRunningInfo:
    """State of a consumer as far as a proxy knows it."""
    settings = client.settings
    kind = CONSUME_PASSIVELY if settings.client_type in _PASSIVE else CONSUME_ACTIVELY
    properties = {
        **settings.client_properties,
        "PROP_CONSUME_TYPE": kind,
        "PROP_CONSUMEORDERLY": str(settings.subscription.fifo).lower(),
        "PROP_CLIENT_VERSION": client.version,
        "PROP_NAMESERVER_ADDR": "",
    }
    subscriptions = client.heartbeat().consumer_data_set
    found = subscriptions[0].subscription_data_set if subscriptions else []
    return ConsumerRunningInfo(properties=properties, subscription_set=found, jstack=trace)
