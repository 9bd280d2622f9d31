"""Clients: their settings, their registration at brokers, and the stream for the proxy's requests to them.

A client begins with its settings on a `Telemetry` stream, and says every 10 s by `Heartbeat` that it is alive. It is
registered at brokers under its topics, as producer, or under its group, as consumer, by a separate link; some of its
heartbeats repeat that. So a broker knows it like a client that speaks remoting, and asks it by that link: the proxy
passes the question on by the stream. A client is forgotten, with its settings, after `NotifyClientTermination`, without
a heartbeat for two minutes, and when a broker ends its link. The end of the stream alone does not end a client.

Source: RocketMQ's ``ClientActivity``, ``GrpcClientSettingsManager``, ``GrpcClientChannel``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from firearrow.auth.model import Action
from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.logs import Log
from firearrow.message.record import decode_record
from firearrow.net.grpc import Call
from firearrow.net.replies import run
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Asked, Brokers, Link
from firearrow.proxy.calls import CallLimit, Context, failure, leave_turn
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
    ReceiveMessageRequest,
    Settings,
    Status,
    SubscriptionEntry,
    TelemetryCommand,
    ThreadStackTrace,
)
from firearrow.proxy.settings import LITE_BIND_TOPIC, check_bound, merged
from firearrow.proxy.statuses import ProxyError, status
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
from firearrow.wire.codes import LanguageCode, RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.grpc import Status as CallStatus

log: Final = Log(__name__)

QUESTIONS_MAX: Final = 1000  # of brokers to clients of one proxy, not answered yet
SWEEP_SECONDS: Final = 10.0  # between two looks for clients without heartbeats
TELEMETRY_BYTES_MAX: Final = 4 * 1024 * 1024  # of one command: a trace of all threads may be long
SETTINGS_BYTES_MAX: Final = 1024 * 1024
NAMES_MAX: Final = 10_000  # topics in one client's settings, as a broker takes in one request
CLIENT_BYTES: Final = 12 * 1024  # memory of a client and its link beside its settings, of which 9 KB were measured
BEAT_BYTES_MAX: Final = 512  # of a heartbeat that is remembered: it names a group
SETTINGS_PARTS: Final = 4  # memory for a byte of settings, with the tables of the broker
CLIENTS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Memory of all clients. Beyond it, clients that have lost their streams are forgotten, then new ones are refused."""
_PASSIVE: Final = (ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER)
_LITE: Final = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
_CONSUMERS: Final = (ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER, *_PASSIVE, ClientType.LITE_SIMPLE_CONSUMER)
_TYPE_NAMES: Final = {kind.value: kind.name for kind in ClientType}
_RESULTS: Final[dict[int, str]] = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
_TOLD: Final[dict[int, CallStatus]] = {
    Code.UNAUTHORIZED: CallStatus.PERMISSION_DENIED,
    Code.TOO_MANY_REQUESTS: CallStatus.RESOURCE_EXHAUSTED,
    Code.INVALID_CLIENT_PROPERTIES: CallStatus.INVALID_ARGUMENT,
}
"""Outcome of a stream behind the command that tells why its settings are refused."""
_ALIVE: Final = HeartbeatResponse(status=status(Code.OK))
_ALIVE_BYTES: Final = _ALIVE.SerializeToString()
_FROM_CLIENT: Final = "from gRPC client"


class _HasNonce(Protocol):
    """Command with a nonce, which its answer repeats."""

    nonce: str


class Client:
    """A client that has sent its settings; ``settings`` are the merged ones."""

    __slots__ = (
        *("address", "beat", "client_id", "heard", "held", "language", "link", "received_beat", "registered"),
        *("settings", "settled_ms", "size", "stream", "user", "version"),
    )

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
        """Name of its language by RocketMQ."""
        self.held: set[Place] = set()
        """Places of messages that are renewed for it."""
        self.heard: float = 0.0
        """Time of its last heartbeat or settings, in seconds."""
        self.registered: float = 0.0
        """Time when brokers last heard of it, in seconds."""
        self.received_beat: bytes | None = None
        self.beat: bytes | None = None
        """Bytes of its last heartbeat, unless they are long, and of the last one that was sound for its settings."""
        self.size = 0
        """Bytes of memory that it is counted with."""

    @property
    def key(self) -> _Key:
        """Its key in the table of clients."""
        return self.user, self.client_id

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
        self._register_seconds = min(brokers.register_seconds, config.channel_expired_timeout / 1000 / 2)
        self._table: dict[_Key, Client] = {}
        self._streamless: dict[_Key, Client] = {}  # in the order of their streams' ends
        self._size = 0
        self._sweep: asyncio.TimerHandle | None = None
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

    def telemetry(
        self, context: Context, command: TelemetryCommand, limit: CallLimit, answered: Callable[[Call, int], None]
    ) -> None:
        """Take a command of a client from its stream; its settings count as a pending call. ``answered`` gets the code
        of each answer to settings.
        """
        call = context.call

        def settled(settings: Settings) -> None:
            limit.pending -= 1
            call.send(TelemetryCommand(status=status(Code.OK), settings=settings).SerializeToString())
            answered(call, Code.OK)

        def failed(error: Exception) -> None:
            limit.pending -= 1
            answered(call, _fail_stream(call, error))

        kind = command.WhichOneof("command")
        if kind == "settings":
            limit.pending += 1
            run(self._settle(context, command.settings, call), settled, failed)
        elif kind == "thread_stack_trace":
            self._answer_trace(command.thread_stack_trace, command.status)
        elif kind == "verify_message_result":
            self._answer_verified(command.verify_message_result.nonce, command.status)

    async def presumed(self, context: Context, request: ReceiveMessageRequest) -> Client:
        """Enter the client of a receive as the push consumer that it must be, though it has sent no settings.

        After a restart of its proxy, the Python client sends them again within five minutes. Before, the
        proxy knows only its receives. Java: ReceiveMessageActivity fails.
        """
        group = await self._brokers.group(request.group.name)
        is_lite = group is not None and bool(group.attributes.get(LITE_BIND_TOPIC))
        settings = Settings(client_type=ClientType.LITE_PUSH_CONSUMER if is_lite else ClientType.PUSH_CONSUMER)
        settings.subscription.group.CopyFrom(request.group)
        settings.subscription.subscriptions.add(topic=request.message_queue.topic, expression=request.filter_expression)
        await self._settle(context, settings, None)
        return self._own(context)

    async def _settle(self, context: Context, settings: Settings, stream: Call | None) -> Settings:
        group = None
        check_client_properties(settings)
        _check_size(settings)
        if settings.HasField("publishing"):
            for number, topic in enumerate(settings.publishing.topics):
                await leave_turn(number)
                check_topic(topic.name)
                self._users.check_topic(context.user, context.address, topic.name, Action.PUB)
        elif settings.HasField("subscription"):
            check_group(settings.subscription.group.name)
            self._users.check_group(context.user, context.address, settings.subscription.group.name)
            for number, entry in enumerate(settings.subscription.subscriptions):
                await leave_turn(number)
                self._users.check_topic(context.user, context.address, entry.topic.name, Action.SUB)
                _check_filter(entry)
            group = await self._brokers.group(settings.subscription.group.name)
            _check_kind(settings, group)
        else:
            raise ProxyError(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
        client = self._entered(context, merged(settings, group, self._config), stream)
        try:
            await self._register(client)
        except (ProxyError, BrokerError):
            self._forget(client)
            raise
        self._note_heard(client, self._clock.monotonic())  # a busy broker may answer late, which is no silence
        return client.settings

    def _entered(self, context: Context, settings: Settings, stream: Call | None) -> Client:
        """Enter a client with its settings, and its stream, if it has one."""
        client = self._table.get(_key_of(context))
        if client is not None and stream is None:
            return client  # its settings have come meanwhile
        size = CLIENT_BYTES + SETTINGS_PARTS * settings.ByteSize()
        self._make_room(size, client)
        if client is None:
            client = self._table[_key_of(context)] = Client(context.client_id, settings, context.user)
        self._size += size - client.size
        client.size = size
        client.settings = settings
        client.settled_ms = self._clock.now_ms()
        client.version = context.version
        client.language = context.language if context.language in LanguageCode.__members__ else LanguageCode.OTHER.name
        client.stream = stream
        if client.address != context.address:
            old, client.link = client.link, self._opened(client, context)
            client.address = context.address
            if old is not None:
                old.close()
        self._streamless.pop(client.key, None)
        if stream is None:
            self._streamless[client.key] = client
        client.beat = None
        self._note_heard(client, self._clock.monotonic())
        if stream is not None and stream.is_over:  # the stream has ended while its settings were checked
            self.stream_ended(context, is_broken=True)
        return client

    def _make_room(self, size: int, client: Client | None) -> None:
        """Forget clients without a stream until there is room for another; ProxyError if that does not suffice."""
        known = 0 if client is None else client.size
        while self._size + size - known > CLIENTS_BYTES_MAX:
            oldest = next((it for it in self._streamless.values() if it is not client), None)
            if oldest is None:
                raise ProxyError(Code.TOO_MANY_REQUESTS, f"too many clients: {len(self._table)}")
            self._forget(oldest)

    def _note_heard(self, client: Client, now: float) -> None:
        client.heard = now
        if self._sweep is None:
            self._plan_sweep()

    def _plan_sweep(self) -> None:
        seconds = min(SWEEP_SECONDS, self._config.channel_expired_timeout / 1000)
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._forget_silent)

    def _forget_silent(self) -> None:
        """Forget clients without a heartbeat.

        Source: RocketMQ's ``ConsumerManager#scanNotActiveChannel``.
        """
        self._sweep = None
        limit = self._clock.monotonic() - self._config.channel_expired_timeout / 1000
        for client in [it for it in self._table.values() if it.heard <= limit]:
            log.info("client is forgotten: no heartbeat", extra={"client": client.client_id})
            self._forget(client)
        if self._table:
            self._plan_sweep()

    def stop(self) -> None:
        """Look for silent clients no more."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

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
        link, now = client.link, self._clock.monotonic()
        if link is not None:
            await self._brokers.beat(link, client.heartbeat(), client.topics, client.language)
            client.registered = now

    def _forget(self, client: Client) -> None:
        if self._table.get(client.key) is client:
            del self._table[client.key]
            self._streamless.pop(client.key, None)
            self._size -= client.size
            assert self._size >= 0, "clients are counted in and out alike"
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

    def alive(self, context: Context, data: bytes) -> bytes | None:
        """Note that a client is alive, by a heartbeat like its last one; None for another, or if it is time to register
        the client again.
        """
        client = self.of(context)
        if client is None:
            return None
        now = self._clock.monotonic()
        if data == client.beat and now - client.registered < self._register_seconds:
            self._note_heard(client, now)
            return _ALIVE_BYTES
        client.received_beat = data if len(data) <= BEAT_BYTES_MAX else None
        return None

    async def heartbeat(self, context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
        """Note that a client is alive, and register it again if it is time; `alive` has the usual heartbeats."""
        client = self._own(context)
        if client.is_consumer:
            check_group(request.group.name)
        client.beat = client.received_beat
        now = self._clock.monotonic()
        self._note_heard(client, now)
        if now - client.registered >= self._register_seconds:
            await self._register(client)
        return _ALIVE

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
        self._streamless[client.key] = client
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


def _check_size(settings: Settings) -> None:
    """Refuse settings that would take much memory or time."""
    size = settings.ByteSize()
    if size > SETTINGS_BYTES_MAX:
        raise ProxyError(Code.BAD_REQUEST, f"settings of {size} bytes are above the limit of {SETTINGS_BYTES_MAX}")
    count = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    if count > NAMES_MAX:
        raise ProxyError(Code.BAD_REQUEST, f"settings with {count} topics are above the limit of {NAMES_MAX}")


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


def _fail_stream(call: Call, error: Exception) -> int:
    """End a stream whose settings are refused, and return their code.

    Most clients read the code of a command. Java's client reads only that the stream fails.
    Java: GrpcMessagingApplication#telemetry ends the stream by OK behind such a command, and Java's client waits for
    its settings for six seconds.

    Source: RocketMQ's ``ClientActivity#processTelemetryException``.
    """
    found = failure(call, error)
    told = _TOLD.get(found.code)
    if told is not None:
        call.send(TelemetryCommand(status=found).SerializeToString())
        call.fail(told, found.message)
        return found.code
    text = f"process client telemetryCommand failed. {found.message}"
    is_clients = isinstance(error, ProxyError) and Code.BAD_REQUEST <= error.code < Code.INTERNAL_ERROR
    call.fail(CallStatus.INVALID_ARGUMENT if is_clients else CallStatus.INTERNAL, text)
    return found.code


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
    """State of a consumer, in the parts that a proxy knows."""
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
