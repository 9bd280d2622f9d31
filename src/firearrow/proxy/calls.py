"""Calls of clients: the client of each, and its answer.

A handler is a coroutine that gets a `Context` and the request's message, and returns the answer's message. It runs
without a task (`net.replies`). Whatever goes wrong becomes a status inside the answer, as RocketMQ's clients expect;
gRPC's own statuses are left to the transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from firearrow.errors import BrokerError
from firearrow.net.grpc import Call, Method
from firearrow.net.replies import Run, Running, run
from firearrow.proxy.brokers import Link
from firearrow.proxy.messages import Code, Status
from firearrow.proxy.meter import CANCELLED, CallMeter
from firearrow.proxy.statuses import ProxyError, status_of

log = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CLIENT_ID_CHARS_MAX: Final = 255  # a broker keeps no longer one

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound="Answered")


class Answered(Protocol):
    """Message of an answer, which has a status."""

    @property
    def status(self) -> Status: ...

    def SerializeToString(self) -> bytes: ...


class Context(NamedTuple):
    """One call: its client, and the link to brokers of the connection that it came by."""

    call: Call
    client_id: str
    link: Link
    user: str | None = None
    """The proved user, None if none is asked for."""

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


def client_id_of(call: Call) -> str:
    """Return the id of the client that makes a call; ProxyError without one.

    Source: RocketMQ's ``GrpcMessagingApplication#validateContext``.
    """
    client_id = text_of(call.fields, b"x-mq-client-id")
    if not client_id.strip():
        raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        raise ProxyError(Code.CLIENT_ID_REQUIRED, f"client id is longer than {CLIENT_ID_CHARS_MAX} characters")
    return client_id


def read(kind: type[Request], data: bytes) -> Request:
    """Read a message; ProxyError if the bytes are none."""
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
    serve: Callable[[Context, Request], Running[Answer]],
) -> Method:
    """Make the method of a call with one request and one answer."""
    opening, meter = door

    def handle(call: Call, data: bytes) -> bytes | None:
        def failed(error: Exception) -> None:
            done(answer(status=failure(call, error)))

        def done(message: Answer) -> None:
            call.answer(message.SerializeToString())
            if meter is not None:
                meter.count(name, message.status.code, call.received_ms)

        try:
            coroutine = serve(opening(call), read(request, data))
        except ProxyError as error:
            done(answer(status=status_of(error)))
            return None
        running = run(coroutine, done, failed)
        if not call.is_over:
            call.cancelled = running.cancel if meter is None else partial(_given_up, running, meter, call)
        return None

    return Method(name, handle)


def _given_up(running: Run[Any], meter: CallMeter, call: Call) -> None:
    running.cancel()
    meter.count(call.method.name, CANCELLED, call.received_ms)


def streaming(
    name: str,
    request: type[Request],
    door: Door,
    serve: Callable[[Context, Request], Running[int]],
    fail: Callable[[Call, Status], None],
) -> Method:
    """Make the method of a call with one request and an answer of several messages, which ``serve`` sends.

    It goes on when the client has given the call up: the messages of a late pop are made visible again. ``serve``
    returns the code of its answer. ``fail`` sends the answer to a call that failed, and ends it.
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
            coroutine = serve(opening(call), read(request, data))
        except ProxyError as error:
            failed(error)
            return None
        run(coroutine, done, failed)
        if meter is not None and not is_over:
            begun = meter.begin(name)
        return None

    return Method(name, handle)


def table_of(methods: list[Method], service: str = SERVICE) -> dict[bytes, Method]:
    """Return methods by their paths."""
    return {f"/{service}/{method.name}".encode(): method for method in methods}
