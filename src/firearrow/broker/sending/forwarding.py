"""Forward the messages that an acting slave puts to another master of the cluster.

The log of a slave has the messages of its master's log, and no others. So due messages, popped ones that are
redelivered, and halves that wait for a decision are sent to a broker of another name that has their topic. That needs
``enableRemoteEscape``; without it they wait until their master is back.

A caller that puts a message does not wait for the other broker. `ForwardingWriter` begins to send the message and
raises `PutLater`. When there is an answer it calls ``moved``. The caller puts the message again, and now the put
succeeds, or raises a StoreError as it does for a full disk. So services put one message after the other in the same way
on a master and on a slave.

A message goes to the same queue of the same broker as the message before it, as long as that queue takes it. Java
sends each message to another queue, so messages of one queue lose their order.

Source: RocketMQ ``EscapeBridge``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.sending.puts import PutResult, Puts, Redirection, UnstoredMessage
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.errors import BrokerError, FirearrowError, MessageError, PutLater, StoreError
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.message import names, properties
from firearrow.message.sysflag import HOSTS_V6_MASK, TRANSACTION_PREPARED, transaction_type
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.server import Answer, Finished, Handler, Peer, Steps
from firearrow.net.tasks import Tasks
from firearrow.services import Service
from firearrow.steps import result_of
from firearrow.store import ConsumeQueue, MessageStore, NewMessage
from firearrow.wire.bodies import PERM_WRITE, Route
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendMessageV2

log: Final = Log(__name__)

SEND_SECONDS_MAX: Final = 3.0  # Java: EscapeBridge#SEND_TIMEOUT
ANSWER_SECONDS_MAX: Final = 2 * SEND_SECONDS_MAX
NOTED_MAX: Final = 10_000  # sent records about pops, so that a second put of one does nothing
IN_FLIGHT_MAX: Final = 64
"""Messages in flight, and finished ones whose result is not fetched."""
ROUTES_MAX: Final = 1000
_QUEUES_OF_NEW: Final = 8  # Java: BrokerOuterAPI#buildSendMessageRequestHeaderV2
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Codes of a broker that has stored the message; with some of them, less safely than configured."""
_WAITS_FOR_NOBODY: Final = {properties.WAIT_STORE: "false"}
_NOWHERE: Final = PutResult(0, 0, 0)


class _Key(NamedTuple):
    """Identity of a message that is put again; the properties that a broker adds may differ."""

    topic: str
    queue_id: int
    born_ms: int
    reconsume_times: int
    message: str | int  # its unique key, or a checksum of its body


class _Message(NamedTuple):
    """Message in flight to another broker."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_ms: int
    reconsume_times: int

    @property
    def key(self) -> _Key:
        """Identity of the message."""
        known = self.properties.get(properties.UNIQUE_KEY) or crc32(self.body)
        return _Key(self.topic, self.queue_id, self.born_ms, self.reconsume_times, known)


class _Master(NamedTuple):
    """Another master that has a topic, with its number of queues."""

    address: str
    broker_name: str
    queue_nums: int


class _RemoteQueue(NamedTuple):
    """Queue of another broker, the destination of a message."""

    address: str
    broker_name: str
    queue_id: int


class ForwardingWriter(Puts, Service):
    """Put messages into other brokers; its stop as a service ends the sends in flight."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        clock: Clock,
        chance: Random,
        redirections: Sequence[Redirection],
        events: Events,
        settings: Settings,
        routes: TopicRoutes,
        access: Access = OPEN,
    ) -> None:
        Puts.__init__(self, store, topics, clock, chance, redirections, events)
        Service.__init__(self, "escape")
        self._settings = settings
        self._routes = routes
        self._monotonic = clock.monotonic
        self._client = Client(access=access)
        self._known: dict[str, tuple[Route | None, float]] = {}
        self._failures = 0
        self._results: dict[_Key, str | None] = {}  # the error, "" after a success, None while in flight
        self._tasks = Tasks()
        self._noted: dict[_Key, None] = {}
        self._waiting = Tasks()  # answers that wait for sends in flight
        self._has_moved = asyncio.Event()
        self._trouble: str | None = None

    async def stop(self) -> None:
        """Send nothing more."""
        await self._waiting.close()
        await self._tasks.close()
        await self._client.close()

    @property
    def trouble(self) -> str | None:
        """Reason why the last message could not be sent."""
        return self._trouble

    async def settled(self) -> bool:
        """Wait until no send is in flight; return False if none was."""
        return await self._tasks.settled()

    # --- puts ---

    def put_waiting(
        self, queue: ConsumeQueue, body: bytes, stored: bytes, waits: WaitsElsewhere | None, now_ms: int
    ) -> int:
        """Send a record about a pop to another broker, where it waits for its time.

        Raises the errors of `put_again`. A record that was sent is known for a while, so it may be put once more.
        """
        found = properties.parse(stored)
        topic = found.pop(properties.REAL_TOPIC, queue.topic)
        queue_id = _number(found.pop(properties.REAL_QUEUE_ID, str(queue.queue_id)))
        found.pop(properties.TIMER_OUT_MS, None)
        unique = f"{found.get(properties.UNIQUE_KEY, '')}@{crc32(body)}"
        key = _Key(topic, queue_id, 0, 0, unique)
        if key not in self._noted:
            self._put_away(_Message(topic, queue_id, body, found, 0, 0, now_ms, 0), key)
            if len(self._noted) >= NOTED_MAX:
                del self._noted[next(iter(self._noted))]
            self._noted[key] = None
        return -1

    def put_again(self, message: NewMessage, now_ms: int) -> None:
        """Send a message to another broker.

        Raises PutLater until that broker has answered, and StoreError if the message can't be put there now.
        """
        queue, body, stored, flag, sys_flag, born_ms, _, times, _ = message
        found = properties.parse(stored)
        _wait_no_more(found)
        self._put_away(_Message(queue.topic, queue.queue_id, body, found, flag, sys_flag, born_ms, times))

    def _add(self, draft: UnstoredMessage, queue: ConsumeQueue, now_ms: int) -> PutResult:
        found = properties.parse(draft.stored) | draft.properties
        topic, queue_id = draft.topic, draft.queue_id
        if topic == names.TIMER_TOPIC:  # it rolls: at the other broker its wait begins again
            topic = found.pop(properties.REAL_TOPIC, "")
            queue_id = _number(found.pop(properties.REAL_QUEUE_ID, ""))
            due_ms = _number(found.pop(properties.TIMER_OUT_MS, "")) + 1
            for name in properties.DELIVERY_TIMES:
                found.pop(name, None)
            found[properties.TIMER_DELIVER_MS] = str(due_ms)
            found.pop(properties.DELAY_LEVEL, None)
        elif transaction_type(draft.sys_flag) != TRANSACTION_PREPARED:
            _wait_no_more(found)
        self._put_away(
            _Message(
                topic, queue_id, draft.body, found, draft.flag, draft.sys_flag, draft.born_ms, draft.reconsume_times
            )
        )
        return _NOWHERE

    def _put_away(self, message: _Message, known: _Key | None = None) -> None:
        if not self._settings.broker.enable_remote_escape:
            raise StoreError(
                "messages wait for their master: only with enableRemoteEscape=true a slave that "
                "acts for it sends them to another one"
            )
        key = known or message.key
        if key in self._results:
            failure = self._results[key]
            if failure is None:
                raise PutLater("the message is in flight to another broker")
            del self._results[key]
            if failure:
                raise StoreError(failure)
            return
        if len(self._results) >= IN_FLIGHT_MAX:
            done = next((it for it, why in self._results.items() if why is not None), None)
            if done is None:
                raise StoreError("too many messages are in flight to other brokers")
            del self._results[done]
        self._results[key] = None
        self._tasks.begin(self._send(key, message), "a message to another broker")
        raise PutLater("the message is in flight to another broker")

    # --- requests that put messages ---

    def run_again(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers that run again until the messages that they put are at another broker.

        They must be idempotent.
        """
        return {code: self._run_again(handler) for code, handler in handlers.items()}

    def _run_again(self, handler: Handler) -> Handler:
        def handle(peer: Peer, request: AnyCommand) -> Answer:
            try:
                answer = handler(peer, request)
            except PutLater:
                return hold(peer, request)
            return in_steps(peer, request, answer) if isinstance(answer, Generator) else answer

        def in_steps(peer: Peer, request: AnyCommand, steps: Steps) -> Steps:
            try:
                return (yield from steps)
            except PutLater:
                return hold(peer, request)

        def hold(peer: Peer, request: AnyCommand) -> Finished:
            peer.owed += 1
            self._waiting.begin(self._answer(peer, request, handler), "an answer")
            return None

        return handle

    async def _answer(self, peer: Peer, request: AnyCommand, handler: Handler) -> None:
        """Run a handler until it raises no PutLater, and reply."""
        answer: Finished = Response(ResponseCode.SERVICE_NOT_AVAILABLE, "no other master has noted it in time")
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while True:
                    moved = self._has_moved
                    try:
                        answer = _finished(handler(peer, request))
                        break
                    except PutLater:
                        await moved.wait()
        except TimeoutError:
            pass
        except BrokerError as error:
            answer = Response(error.code, error.remark)
        except (StoreError, MessageError) as error:
            answer = Response(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        finally:
            peer.owed -= 1
            if answer is not None:
                peer.reply(request, answer)

    # --- sends ---

    async def _send(self, key: _Key, message: _Message) -> None:
        failure = "it was not sent"
        try:
            target = await self._target(message)
            answer = await self._client.answer(
                target.address,
                RequestCode.SEND_MESSAGE_V2,
                self._fields(message, target),
                message.body,
                timeout_seconds=SEND_SECONDS_MAX,
            )
            if answer.code not in _STORED:
                raise BrokerError.of(answer.code, answer.remark, target.address)
            failure = ""
        except (OSError, FirearrowError) as error:
            failure = str(error) or type(error).__name__
            self._known.pop(message.topic, None)
            self._failures += 1
        finally:
            if failure and self._trouble is None:
                log.warning(
                    "message can't be forwarded to another broker, and is retried",
                    extra={"topic": message.topic, "error": failure},
                )
            self._trouble = failure or None
            self._results[key] = failure
            moved, self._has_moved = self._has_moved, asyncio.Event()
            moved.set()
        asyncio.get_running_loop().call_soon(self.moved, None)

    def _fields(self, message: _Message, target: _RemoteQueue) -> dict[str, str | int | bool]:
        broker = self._settings.broker
        own = f"InnerProducerGroup_{broker.broker_name}_{broker.broker_id}"
        header = SendMessageV2(
            producer_group=message.properties.get(properties.PRODUCER_GROUP) or own,
            topic=message.topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=_QUEUES_OF_NEW,
            queue_id=target.queue_id,
            sys_flag=message.sys_flag & ~HOSTS_V6_MASK,
            born_timestamp=message.born_ms,
            flag=message.flag,
            properties=properties.encode(message.properties | _WAITS_FOR_NOBODY).decode(),
            reconsume_times=message.reconsume_times,
            broker_name=target.broker_name,
        )
        fields = msgspec.to_builtins(header)
        return {name: value for name, value in fields.items() if value is not None}

    async def _target(self, message: _Message) -> _RemoteQueue:
        """Return a queue of another broker; BrokerError if no other one has the topic."""
        own = self._settings.broker.broker_name
        masters = _elsewhere(await self._route(message.topic), own)
        if not masters and names.is_retry(message.topic):  # a broker creates it for the first message
            anywhere = _elsewhere(await self._route(names.AUTO_CREATE_TOPIC), own)
            masters = [master._replace(queue_nums=1) for master in anywhere]
        if not masters:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"no other master has the topic {message.topic}")
        master = masters[(message.queue_id + self._failures) % len(masters)]
        return _RemoteQueue(master.address, master.broker_name, message.queue_id % master.queue_nums)

    async def _route(self, topic: str) -> Route | None:
        """Return the route of a topic, some seconds old at most."""
        age_max = self._settings.broker.load_balance_poll_name_server_interval / 1000
        now = self._monotonic()
        if topic in self._known and now - self._known[topic][1] < age_max:
            return self._known[topic][0]
        route = await self._routes.route(topic)
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        if route is not None:
            self._known[topic] = route, now
        return route


def _finished(answer: Answer) -> Finished:
    """Run an answer in steps to its end."""
    return result_of(answer) if isinstance(answer, Generator) else answer


def _wait_no_more(found: dict[str, str]) -> None:
    """Remove the properties that would make the other broker delay a message again."""
    for name in (properties.DELAY_LEVEL, *properties.DELIVERY_TIMES):
        found.pop(name, None)


def _elsewhere(route: Route | None, own: str) -> list[_Master]:
    """Return the writable masters of a route, without the one of the broker name ``own``."""
    if route is None:
        return []
    masters = {it.broker_name: it.broker_addrs.get(0) for it in route.broker_datas}
    found = []
    for queues in sorted(route.queue_datas, key=lambda it: it.broker_name):
        address = masters.get(queues.broker_name)
        if address and queues.broker_name != own and queues.perm & PERM_WRITE:
            count = max(queues.write_queue_nums, 1)
            found.append(_Master(address, queues.broker_name, count))
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
