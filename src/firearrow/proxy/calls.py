"""Calls of clients: the client of each, and its answer.

A handler is a coroutine that gets a `Context` and the request's message, and returns the answer's message. It runs
without a task (`net.replies`). Whatever goes wrong becomes a status inside the answer, as RocketMQ's clients expect;
gRPC's own statuses are left to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.net.grpc import Call, GrpcPeer, Method
from firearrow.net.replies import Reply, Running, run
from firearrow.proxy.brokers import Link
from firearrow.proxy.messages import Code, Status
from firearrow.proxy.meter import CANCELLED, CallMeter
from firearrow.proxy.statuses import ProxyError, status_of

log: Final = Log(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CLIENT_ID_CHARS_MAX: Final = 255  # a broker keeps no longer one
TURN_PARTS: Final = 64  # of a request, handled in one turn; each may take some 30 µs
REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Of a request without messages: a longer one would take long to read. RocketMQ has only the limit of all requests."""

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound="Answered")


class Answered(Protocol):
    """Message of an answer, which has a status."""

    @property
    def status(self) -> Status: ...

    def SerializeToString(self) -> bytes: ...


class Context(msgspec.Struct, frozen=True):
    """One call and its client. ``link_of`` returns the link to brokers of a connection. ``user`` is the proved user,
    None if none is asked for.
    """

    call: Call
    client_id: str
    link_of: Callable[[GrpcPeer], Link]
    user: str | None = None

    @property
    def link(self) -> Link:
        """Link to brokers of the connection that it came by. Many connections never need one."""
        return self.link_of(self.call.peer).for_call(self.user)

    @property
    def address(self) -> str:
        """Address of the client, ``ip:port``."""
        return self.call.peer.address

    @property
    def language(self) -> str:
        """Language of the client by its own word, maybe empty."""
        return text_of(self.call.fields, b"x-mq-language")

    @property
    def version(self) -> str:
        """Version of the client by its own word, maybe empty."""
        return text_of(self.call.fields, b"x-mq-client-version")

    def remaining_ms(self, now_ms: int) -> float | None:
        """Time until the client gives the call up; None if it never does."""
        timeout_ms = self.call.timeout_ms
        return None if timeout_ms is None else timeout_ms - (now_ms - self.call.received_ms)


def text_of(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Return a header field as text, empty if there is none."""
    return fields.get(name, b"").decode("utf-8", "replace")


class Door(NamedTuple):
    """Entry of all calls.

    ``open`` returns the context of a call. It raises ProxyError for a call that is refused whatever it asks: it proves
    no user, or it names no client. ``meter`` measures the calls, if metrics are wanted.
    """

    open: Callable[[Call], Context]
    meter: CallMeter | None = None


class CallLimit:
    """Limit on the pending calls of one kind."""

    __slots__ = ("calls_max", "pending")

    def __init__(self, calls_max: int) -> None:
        self.calls_max: Final = calls_max
        self.pending: int = 0

    @property
    def has_room(self) -> bool:
        """Tell whether one more call may be pending."""
        return self.pending < self.calls_max

    def check(self) -> None:
        """Raise ProxyError unless one more call may be pending."""
        if not self.has_room:
            raise ProxyError(Code.TOO_MANY_REQUESTS, "flow limit")


def client_id_of(call: Call) -> str:
    """Return the id of the client that makes a call; ProxyError without one.

    Source: RocketMQ's ``GrpcMessagingApplication#validateContext``.
    """
    field = call.fields.get(b"x-mq-client-id", b"")
    peer = call.peer
    if peer.named is not None and peer.named[0] == field:
        return peer.named[1]
    client_id = field.decode("utf-8", "replace")
    if not client_id.strip():
        raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        raise ProxyError(Code.CLIENT_ID_REQUIRED, f"client id is longer than {CLIENT_ID_CHARS_MAX} characters")
    peer.named = field, client_id
    return client_id


def read(kind: type[Request], data: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> Request:
    """Read a message; ProxyError if the bytes are none, or too many."""
    if len(data) > bytes_max:
        raise ProxyError(Code.BAD_REQUEST, f"a request of {len(data)} bytes is above the limit of {bytes_max}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProxyError(Code.BAD_REQUEST, f"the request is no {kind.__name__}: {error}") from None


def failure(call: Call, error: Exception) -> Status:
    """Return the status for an error; one that no peer can cause is logged."""
    if not isinstance(error, (ProxyError, BrokerError, OSError, TimeoutError)):
        log.error("call failed", extra={"method": call.method.name, "address": call.peer.address}, exc_info=error)
    return status_of(error)


def unary(
    name: str,
    request: type[Request],
    answer: Callable[..., Answer],
    door: Door,
    limit: CallLimit,
    serve: Callable[[Context, Request], Running[Answer] | bytes],
    *,
    bytes_max: int = REQUEST_BYTES_MAX,
    echoed: str = "",
    at_once: Callable[[Context, bytes], bytes | None] | None = None,
) -> Method:
    """Make the method of a call with one request and one answer.

    ``at_once`` may answer a request that it knows by its bytes, with success. ``serve`` answers the others by a
    coroutine, or at once by the bytes of an answer that is a success. Beyond the limit, the answer repeats the
    request's field ``echoed``: a client keeps the handle of an answer.
    """
    opening, meter = door

    def count(code: int, call: Call) -> None:
        if meter is not None:
            meter.count(name, code, call.received_ms)

    def handle(call: Call, data: bytes) -> bytes | None:
        message: Request | None = None
        try:
            context = opening(call)
            known = at_once(context, data) if at_once is not None and limit.has_room else None
            if known is not None:
                count(Code.OK, call)
                return known
            message = read(request, data, bytes_max)
            limit.check()
            served = serve(context, message)
        except ProxyError as error:
            kept = {} if message is None or not echoed else {echoed: getattr(message, echoed)}
            count(error.code, call)
            return answer(status=status_of(error), **kept).SerializeToString()
        if isinstance(served, bytes):
            count(Code.OK, call)
            return served
        _answer_later(call, served, answer, limit, count)
        return None

    return Method(name, handle)


def _answer_later(
    call: Call,
    serving: Running[Answer],
    answer: Callable[..., Answer],
    limit: CallLimit,
    count: Callable[[int, Call], None],
) -> None:
    """Answer a call when its coroutine ends; in the meantime the call is pending."""

    def failed(error: Exception) -> None:
        done(answer(status=failure(call, error)))

    def done(message: Answer) -> None:
        limit.pending -= 1
        call.answer(message.SerializeToString())
        count(message.status.code, call)

    def cancelled() -> None:
        limit.pending -= 1
        running.cancel()
        count(CANCELLED, call)

    limit.pending += 1
    running = run(serving, done, failed)
    if not call.is_over:
        call.cancelled = cancelled


def streaming(
    name: str,
    request: type[Request],
    door: Door,
    limit: CallLimit,
    serve: Callable[[Context, Request], Running[int]],
    fail: Callable[[Call, Status], None],
) -> Method:
    """Make the method of a call with one request and an answer of several messages, which ``serve`` sends.

    The call does not count as pending, since it may wait for messages for long. It goes on when the client has given
    the call up: the messages of a late pop are made visible again. ``serve`` returns the code of its answer. ``fail``
    sends the answer to a call that failed, and ends it.
    """
    opening, meter = door

    def handle(call: Call, data: bytes) -> bytes | None:
        begun: int | None = None
        is_over = False

        def count(code: int) -> None:
            nonlocal is_over
            is_over = True
            if meter is None:
                return
            if begun is None:
                meter.count(name, code, call.received_ms)
            else:
                meter.end(name, code, call.received_ms, begun)

        def failed(error: Exception) -> None:
            outcome = failure(call, error)
            fail(call, outcome)
            count(outcome.code)

        def done(code: int) -> None:
            call.end()
            count(code)

        try:
            context = opening(call)
            message = read(request, data)
            limit.check()
        except ProxyError as error:
            failed(error)
            return None
        run(serve(context, message), done, failed)
        if meter is not None and not is_over:
            begun = meter.begin(name)
        return None

    return Method(name, handle)


async def leave_turn(number: int) -> None:
    """Leave the event loop to others from time to time: behind part ``number`` of a request, if it is its turn."""
    if number % TURN_PARTS == TURN_PARTS - 1:
        reply: Reply[None] = Reply()
        asyncio.get_running_loop().call_soon(reply.set_result, None)
        await reply


def table_of(methods: list[Method], service: str = SERVICE) -> dict[bytes, Method]:
    """Return methods by their paths."""
    return {f"/{service}/{method.name}".encode(): method for method in methods}
