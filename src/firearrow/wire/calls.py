"""Calls and their answers on one connection, in either direction, without socket and clock.

A request carries a number, its opaque, and its answer carries the same. ``PendingCalls`` numbers requests and keeps the
waiter of each until its answer arrives, its time is over or the connection is lost. ``ClientEnd`` is a client's end of
a connection without the socket: it reads received bytes, and answers the server's requests. A server has
``PendingCalls`` for its requests to clients.

Times are seconds of any clock that the caller has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from firearrow.errors import BrokerError
from firearrow.javanumbers import INT_MAX
from firearrow.wire.command import Response, not_supported
from firearrow.wire.frame import NO_HOT_DECODERS, AnyCommand, Connection, encode_request, encode_response

OPAQUE_MAX: Final = INT_MAX  # the binary header has 32 signed bits for it
CALLS_MAX: Final = 65_536  # some 400 bytes each, and the caller's own state

Answering = Callable[[AnyCommand], Response | None]
"""Handler of a request from the server: it returns the answer or None; a BrokerError refuses the request."""

NO_HANDLERS: Final[Mapping[int, Answering]] = {}


class AnswerWaiter(Protocol):
    """A waiter for an answer, such as an ``asyncio.Future``."""

    def done(self) -> bool:
        """Tell whether it no longer waits."""

    def set_result(self, answer: AnyCommand, /) -> object:
        """Take the answer."""

    def set_exception(self, error: OSError, /) -> object:
        """Take the error that came instead of an answer."""


W = TypeVar("W", bound=AnswerWaiter)


class _Call(msgspec.Struct, Generic[W], frozen=True):
    waiting: W
    deadline: float
    seconds: float


class PendingCalls(Generic[W]):
    """The calls to one peer that are not answered yet."""

    __slots__ = ("_address", "_calls", "_calls_max", "_opaque", "_why")

    def __init__(self, address: str, calls_max: int = CALLS_MAX, last_opaque: int = 0) -> None:
        assert 0 < calls_max < OPAQUE_MAX, "otherwise `one_way` might find no free number"
        assert 0 <= last_opaque <= OPAQUE_MAX
        self._address = address
        self._calls: dict[int, _Call[W]] = {}
        self._calls_max = calls_max
        self._opaque = last_opaque
        self._why: str | None = None  # the connection is lost

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def is_full(self) -> bool:
        """True if no other call can begin."""
        return len(self._calls) >= self._calls_max

    @property
    def next_deadline(self) -> float | None:
        """Return the time when the first call is overdue; it goes through all calls."""
        return min((call.deadline for call in self._calls.values()), default=None)

    def begin(self, command: AnyCommand, waiting: W, now: float, seconds: float) -> bytes:
        """Return the frame of a request that must be answered within some seconds.

        Raises ConnectionError when too many others wait or the connection is lost already. Raises LocalProtocolError
        when its fields do not fit a header.
        """
        if self._why is not None:
            raise self._lost(self._why)
        if self.is_full:
            raise ConnectionError(f"{len(self._calls)} calls to {self._address} wait for answers: that is the limit")
        frame = self.one_way(command)
        self._calls[command.opaque] = _Call(waiting, now + seconds, seconds)
        return frame

    def one_way(self, command: AnyCommand) -> bytes:
        """Return the frame of a request without a waiter."""
        opaque = self._opaque % OPAQUE_MAX + 1
        while opaque in self._calls:  # this call is still pending since the numbers began again
            opaque = opaque % OPAQUE_MAX + 1
        self._opaque = command.opaque = opaque
        return encode_request(command)

    def take(self, answer: AnyCommand) -> None:
        """Pass an answer to its waiter; drop it if there is none."""
        call = self._calls.pop(answer.opaque, None)
        if call is not None and not call.waiting.done():
            call.waiting.set_result(answer)

    def forget(self, command: AnyCommand) -> None:
        """Drop the answer to a request when it comes."""
        self._calls.pop(command.opaque, None)

    def expire(self, now: float) -> str | None:
        """End overdue calls by TimeoutError; return one sentence about them if there were any."""
        overdue = [opaque for opaque, call in self._calls.items() if call.deadline <= now]
        why = None
        for opaque in overdue:
            call = self._calls.pop(opaque)
            late = f"{self._address} did not answer in {call.seconds:g} s"
            why = why or late
            if not call.waiting.done():
                call.waiting.set_exception(TimeoutError(late))
        return why

    def end(self, why: str) -> None:
        """End all calls by ConnectionError, and refuse new ones: the connection is lost."""
        self._why = why
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.waiting.done():
                call.waiting.set_exception(self._lost(why))

    def _lost(self, why: str) -> ConnectionError:
        return ConnectionError(f"the connection to {self._address} is lost: {why}")


class ClientEnd(Generic[W]):
    """A client's end of a connection.

    ``handlers`` answer the server's requests by their code; any other request is refused.
    """

    def __init__(
        self, address: str, handlers: Mapping[int, Answering] = NO_HANDLERS, calls_max: int = CALLS_MAX
    ) -> None:
        self.calls: PendingCalls[W] = PendingCalls(address, calls_max)
        self._handlers = handlers
        self._wire = Connection(decoders=NO_HOT_DECODERS)

    @property
    def violation(self) -> str | None:
        """Reason why the connection can't be used any more, if the server broke the protocol."""
        return self._wire.violation

    def receive(self, data: bytes) -> bytes:
        """Take received bytes, and return the bytes to send: answers to the server's requests."""
        replies: list[bytes] = []
        for command in self._wire.receive(data):
            if command.is_response:
                self.calls.take(command)
            else:
                replies.append(self._reply(command))
        return b"".join(replies)

    def _reply(self, request: AnyCommand) -> bytes:
        handler = self._handlers.get(request.code)
        try:
            answer = not_supported(request.code) if handler is None else handler(request)
        except BrokerError as error:
            answer = Response(error.code, error.remark)
        if answer is None or request.is_oneway:
            return b""
        return encode_response(answer, request.opaque, request.binary)
