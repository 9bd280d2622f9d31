"""A remoting client that blocks, for workers that have no event loop.

One connection an address, any number of requests under way: ``begin`` sends one and returns at
once, ``Pending.result`` waits for its answer. What waits for one answer also takes in those to
others, and writes what the socket had no room for, so neither side can stop the other by not
reading.

A connection that breaks fails what is under way on it, in words that name the address; the next
request opens it again. A client belongs to one thread.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from firearrow.clock import Clock, SystemClock
from firearrow.errors import BrokerError
from firearrow.net.access import OPEN, Access
from firearrow.net.address import host_and_port
from firearrow.wire.calls import CALLS_MAX, Line
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue, request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import sign

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 10.0
RECEIVE_BYTES: Final = 256 * 1024
UNSENT_BYTES_MAX: Final = 8 << 20  # beyond it ``begin`` waits until the peer has taken some


class Pending:
    """A request that is under way."""

    __slots__ = ("_answer", "_connection", "_deadline", "_error")

    def __init__(self, connection: _Connection, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._answer: AnyCommand | None = None
        self._error: OSError | None = None

    def done(self) -> bool:
        """Whether ``result`` has nothing to wait for."""
        return self._answer is not None or self._error is not None

    def set_result(self, answer: AnyCommand) -> None:
        """Note the answer."""
        self._answer = answer

    def set_exception(self, error: OSError) -> None:
        """Note that none will come."""
        self._error = error

    def answer(self) -> AnyCommand:
        """Wait for the answer, with any code.

        Raises ConnectionError when the connection breaks and TimeoutError when nothing comes in
        time; then the connection is closed, for its server may be gone without a word.
        """
        while not self.done():
            if not self._connection.pump(self._deadline):
                self._connection.expire(self._deadline)
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def result(self) -> AnyCommand:
        """Wait for the answer; BrokerError (the class for its code) unless the code is 0."""
        answer = self.answer()
        if answer.code == 0:
            return answer
        if answer.code == ResponseCode.GO_AWAY:
            self._connection.close("the server is stopping")
        raise BrokerError.of(answer.code, answer.remark, self._connection.address)


class _Connection:
    """One connection to a server."""

    def __init__(self, address: str, connection: socket.socket, clock: Clock, calls_max: int) -> None:
        self.address = address
        self._socket: socket.socket | None = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._clock = clock
        self._line: Line[Pending] = Line(address, calls_max=calls_max)
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def is_open(self) -> bool:
        """Whether requests can be sent, as far as one can know."""
        if self._socket is not None and not self._line.calls:
            self._read()  # the server may have closed a connection that was idle
        return self._socket is not None

    def send(self, commands: Iterable[AnyCommand], timeout_seconds: float) -> list[Pending]:
        """Send requests in one go; what the socket does not take waits, as do more than can be
        under way."""
        now = self._clock.monotonic()
        deadline = now + timeout_seconds
        calls = self._line.calls
        frames: list[bytes] = []
        sent: list[Pending] = []
        for command in commands:
            if calls.is_full:
                self._queue(frames)
                late = f"it answered nothing for {timeout_seconds:g} s"
                self._pump_while(lambda: calls.is_full, deadline, late)
                frames.clear()
            pending = Pending(self, deadline)
            frames.append(calls.begin(command, pending, now, timeout_seconds))
            sent.append(pending)
        self._queue(frames)
        late = f"it took nothing for {timeout_seconds:g} s"
        self._pump_while(lambda: self._unsent_bytes > UNSENT_BYTES_MAX, deadline, late)
        return sent

    def _queue(self, frames: Iterable[bytes]) -> None:
        """Write frames, or keep what the socket does not take."""
        data = b"".join(frames)
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)
        self._write()

    def _pump_while(self, holds: Callable[[], bool], deadline: float, late: str) -> None:
        while holds():
            if not self.pump(deadline):
                self.close(late)

    def expire(self, deadline: float) -> None:
        """Close if an answer was due by then: the server may be gone without a word."""
        why = self._line.calls.expire(deadline)
        if why is not None:
            self.close(f"closed, because {why}")

    def pump(self, deadline: float) -> bool:
        """Read what comes and write what waits; False if neither was possible in time."""
        if self._socket is None:
            return True
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.modify(self._socket, wanted)
        left_ms = max(0.0, deadline - self._clock.monotonic()) * 1000
        if not self._poll.poll(left_ms):
            return False
        self._read()
        self._write()
        return True

    def _read(self) -> None:
        """Take in all that has come."""
        while self._socket is not None:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self.close(str(error))
                return
            if not data:
                self.close("the server closed the connection")
                return
            self._take(data)
            if len(data) < RECEIVE_BYTES and not self._encrypted:
                return  # that was all; TLS hands out one of its records at a time

    def _take(self, data: bytes) -> None:
        replies = self._line.receive(data)
        if replies:
            self._queue([replies])
        if self._line.violation is not None:
            self.close(self._line.violation)

    def _write(self) -> None:
        """Write as much as the socket takes."""
        unsent = self._unsent
        while unsent and self._socket is not None:
            try:
                sent = self._socket.send(unsent[0])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self.close(str(error))
                return
            self._unsent_bytes -= sent
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]

    def close(self, why: str) -> None:
        """Close, and fail what is under way."""
        connection, self._socket = self._socket, None
        if connection is None:
            return
        connection.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._line.calls.end(why)


class BlockingClient:
    """Calls servers by address (``host:port``).

    What is begun beyond ``calls_max`` on a connection waits until others are answered.
    """

    def __init__(
        self,
        access: Access = OPEN,
        *,
        timeout_seconds: float = CALL_SECONDS_MAX,
        calls_max: int = CALLS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._calls_max = calls_max
        self._credentials = access.credentials
        self._tls = None if access.tls is None else access.tls.context()
        self._clock = clock or SystemClock()
        self._connections: dict[str, _Connection] = {}

    def begin(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> Pending:
        """Send a request and give what will be its answer, by default in the client's time.

        Raises ConnectionError when the server can't be reached, ConfigError when the address is
        none.
        """
        command = self._request(code, fields, body)
        seconds = timeout_seconds or self._timeout_seconds
        [pending] = self._connection(address).send([command], seconds)
        return pending

    def begin_all(self, address: str, code: int, each: Iterable[Mapping[str, FieldValue]]) -> list[Pending]:
        """Send requests of one kind in one go: as ``begin``, for less than a call of it each."""
        commands = [self._request(code, fields) for fields in each]
        return self._connection(address).send(commands, self._timeout_seconds)

    def _request(self, code: int, fields: Mapping[str, FieldValue], body: bytes = b"") -> AnyCommand:
        command = request(code, fields, body)
        if self._credentials is not None:
            sign(command.ext, body, self._credentials)
        return command

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> AnyCommand:
        """Send a request and wait for its answer; raises as ``begin`` and ``Pending.result``."""
        return self.begin(address, code, fields, body, timeout_seconds=timeout_seconds).result()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close("this side closed it")
        self._connections.clear()

    def _connection(self, address: str) -> _Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open():
            opened = self._connect(address)
            connection = _Connection(address, opened, self._clock, self._calls_max)
            self._connections[address] = connection
        return connection

    def _connect(self, address: str) -> socket.socket:
        host, port = host_and_port(address)
        try:
            connection = socket.create_connection((host, port), CONNECT_SECONDS_MAX)
        except OSError as error:
            raise ConnectionError(f"{address} can't be reached: {error}") from None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=host)
            connection.setblocking(False)
        except OSError as error:
            connection.close()
            kind = "" if self._tls is None else " by TLS"
            raise ConnectionError(f"{address} can't be reached{kind}: {error}") from None
        return connection
