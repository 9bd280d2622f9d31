"""A server with some gRPC methods, and a client of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from firearrow.clock import SystemClock
from firearrow.net.grpc import Call, GrpcLimits, Method
from firearrow.net.server import Answer, Peer, Server
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.grpc import CallFailed, Status

ECHO = 1  # of remoting
CALL_SECONDS_MAX = 20


def number_of(text: bytes, most: int) -> int:
    """Return the number that a request says, up to a limit."""
    if not text.isdigit() or len(text) > 9 or int(text) > most:
        raise CallFailed(Status.INVALID_ARGUMENT, f"{text!r} is no number up to {most}")
    return int(text)


class Service:
    """Methods of all kinds, and what became of their calls."""

    def __init__(self) -> None:
        self.held: list[Call] = []
        self.calls: list[Call] = []
        self.count = 0
        self.cancelled: list[Call] = []

    def methods(self) -> dict[bytes, Method]:
        """Return the methods by path."""
        unary = (self.echo, self.late, self.big, self.many, self.hold, self.fail, self.bug)
        streams = (self.chat, self.total)
        found = [Method(it.__name__, it) for it in unary] + [
            Method(it.__name__, it, takes_stream=True) for it in streams
        ]
        return {f"/test.Service/{it.name}".encode(): it for it in found}

    def _note(self, call: Call) -> None:
        self.calls.append(call)
        call.cancelled = lambda: self.cancelled.append(call)

    def echo(self, call: Call, message: bytes) -> bytes:
        """Answer with the request."""
        self.count += 1
        return message

    def late(self, call: Call, message: bytes) -> None:
        """Answer with the request, after some turns of the loop."""
        self._note(call)
        asyncio.get_running_loop().call_later(0.001, call.answer, message)

    def big(self, call: Call, message: bytes) -> bytes:
        """Answer with bytes of the length that the request says."""
        self.count += 1
        return bytes(number_of(message, 1 << 27))

    def many(self, call: Call, message: bytes) -> None:
        """Answer with as many messages as the request says, of as many bytes."""
        count, _, size = message.partition(b" ")
        padding = bytes(number_of(size or b"0", 1 << 24))
        for number in range(number_of(count, 1000)):
            call.send(b"%d" % number + padding)
        call.end()

    def hold(self, call: Call, message: bytes) -> None:
        """Never answer."""
        self._note(call)
        self.held.append(call)

    def fail(self, call: Call, message: bytes) -> bytes:
        """Fail with the request as message."""
        raise CallFailed(Status.PERMISSION_DENIED, message.decode(errors="replace"))

    def bug(self, call: Call, message: bytes) -> bytes:
        """Fail by an error that is not expected."""
        raise KeyError("a bug")

    def chat(self, call: Call, message: bytes) -> None:
        """Answer each message of a stream at once; some end it."""
        if call not in self.calls:
            self._note(call)
            call.ended = call.end
        if message == b"fail":
            raise CallFailed(Status.INVALID_ARGUMENT, "no more")
        if message == b"bye":
            call.end()
        else:
            call.send(b"re: " + message)

    def total(self, call: Call, message: bytes) -> None:
        """Answer with the number of bytes of all messages, behind the last one."""
        if call not in self.calls:
            self._note(call)
            self.count = 0
            call.ended = lambda: call.answer(b"%d" % self.count)
        self.count += len(message)


def echo_remoting(peer: Peer, request: AnyCommand) -> Answer:
    """Answer a request of remoting."""
    return Response(body=request.body)


@asynccontextmanager
async def grpc_serving(
    service: Service | None = None, limits: GrpcLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Server, int]]:
    """Start a server of remoting and of these methods at one port."""
    server = Server({ECHO: echo_remoting}, SystemClock(), **options)
    server.grpc_methods = (service or Service()).methods()
    server.grpc_limits = limits or GrpcLimits()
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


class Client:
    """A client by grpcio, whose calls block."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def call(self, name: str, message: bytes = b"", **options: Any) -> bytes:
        """Call a method with one request and one answer."""
        options.setdefault("timeout", CALL_SECONDS_MAX)
        answer: bytes = self.channel.unary_unary(f"/test.Service/{name}")(message, **options)
        return answer

    def begin(self, name: str, message: bytes = b"", **options: Any) -> Any:
        """Begin such a call."""
        return self.channel.unary_unary(f"/test.Service/{name}").future(message, **options)

    def answers(self, name: str, message: bytes = b"", **options: Any) -> Any:
        """Call a method with one request and several answers."""
        options.setdefault("timeout", CALL_SECONDS_MAX)
        return self.channel.unary_stream(f"/test.Service/{name}")(message, **options)

    def talk(self, name: str, messages: Iterator[bytes], **options: Any) -> Any:
        """Call a method with several requests and several answers."""
        options.setdefault("timeout", CALL_SECONDS_MAX)
        return self.channel.stream_stream(f"/test.Service/{name}")(messages, **options)


@contextmanager
def grpc_client(port: int, credentials: grpc.ChannelCredentials | None = None, **options: Any) -> Iterator[Client]:
    """Open a channel of its own connection, without limits for messages."""
    pairs = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}
    pairs |= {"grpc.use_local_subchannel_pool": 1, "grpc.enable_http_proxy": 0, "grpc.enable_retries": 0}
    pairs |= {name.replace("__", "."): value for name, value in options.items()}
    address, arguments = f"127.0.0.1:{port}", list(pairs.items())
    if credentials is None:
        channel = grpc.insecure_channel(address, arguments)
    else:
        channel = grpc.secure_channel(address, credentials, arguments)
    try:
        yield Client(channel)
    finally:
        channel.close()
