"""A remoting client that blocks, for workers that have no event loop.

One connection an address, requests matched by opaque, any number of them under way: ``begin`` sends
a request and returns at once, ``Pending.result`` waits for its answer. What waits for one answer
also takes in those to others, and writes what the socket had no room for, so neither side can stop
the other by not reading.

A connection that breaks fails what is under way on it, in words that name the address; the next
request opens it again. A client belongs to one thread.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from firearrow.clock import Clock, SystemClock
from firearrow.errors import BrokerError, ConfigError
from firearrow.net.address import host_and_port
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue, request
from firearrow.wire.connection import Connection
from firearrow.wire.frame import AnyCommand, encode_request
from firearrow.wire.signature import Credentials, sign

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 10.0
OPAQUE_MAX: Final = (1 << 31) - 1  # the binary header has 32 signed bits for it
RECEIVE_BYTES: Final = 256 * 1024
UNSENT_BYTES_MAX: Final = 8 << 20  # beyond it ``begin`` waits until the peer has taken some


@dataclass(frozen=True, slots=True)
class Tls:
    """How to encrypt. Without ``verify`` any certificate will do, as RocketMQ's clients have it."""

    ca_file: str | None = None  # None: the authorities that the system trusts
    certificate_file: str | None = None  # ours, for servers that want to know their clients
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files; ConfigError names the one that can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS authorities {self.ca_file}: {error}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            files = f"{self.certificate_file} with key {self.key_file or 'in the same file'}"
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
            except (OSError, ValueError) as error:
                raise ConfigError(f"TLS certificate {files}: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class Access:
    """How a client gets in: signed, encrypted, both or neither. It can be pickled."""

    credentials: Credentials | None = None
    tls: Tls | None = None


OPEN: Final = Access()


class Pending:
    """A request that is under way."""

    __slots__ = ("_answer", "_deadline", "_error", "_line", "_timeout_seconds")

    def __init__(self, line: _Line, deadline: float, timeout_seconds: float) -> None:
        self._line = line
        self._deadline = deadline
        self._timeout_seconds = timeout_seconds
        self._answer: AnyCommand | None = None
        self._error: OSError | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``result`` has nothing to wait for."""
        return self._answer is not None or self._error is not None

    def finish(self, answer: AnyCommand) -> None:
        """Note the answer."""
        self._answer = answer

    def fail(self, error: OSError) -> None:
        """Note that none will come."""
        self._error = error

    def answer(self) -> AnyCommand:
        """Wait for the answer, whatever its code.

        Raises ConnectionError when the connection breaks and TimeoutError when nothing comes in
        time; then the connection is closed, for its server may be gone without a word.
        """
        line = self._line
        while not self.is_done:
            if not line.pump(self._deadline):
                late = f"{line.address} did not answer in {self._timeout_seconds:g} s"
                line.close(f"closed, because {late}")
                self._error = TimeoutError(late)
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
            self._line.close("the server is stopping")
        raise BrokerError.lookup(answer.code)(answer.code, answer.remark or "", self._line.address)


class _Line:
    """One connection to a server."""

    def __init__(self, address: str, connection: socket.socket, clock: Clock) -> None:
        self.address = address
        self._socket: socket.socket | None = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._clock = clock
        self._wire = Connection()
        self._waiting: dict[int, Pending] = {}
        self._opaque = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def is_open(self) -> bool:
        """Whether requests can be sent, as far as one can know."""
        if self._socket is not None and not self._waiting:
            self._read()  # the server may have closed a connection that was idle
        return self._socket is not None

    def send(self, commands: Iterable[AnyCommand], timeout_seconds: float) -> list[Pending]:
        """Send requests in one go, under the next opaques; what the socket does not take waits."""
        deadline = self._clock.monotonic() + timeout_seconds
        frames: list[bytes] = []
        sent: list[Pending] = []
        for command in commands:
            self._opaque = self._opaque % OPAQUE_MAX + 1
            command.opaque = self._opaque
            frames.append(encode_request(command))
            pending = self._waiting[self._opaque] = Pending(self, deadline, timeout_seconds)
            sent.append(pending)
        data = b"".join(frames)
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)
        self._write()
        while self._unsent_bytes > UNSENT_BYTES_MAX:
            if not self.pump(deadline):
                self.close(f"it took nothing for {timeout_seconds:g} s")
        return sent

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
        for command in self._wire.receive(data):
            pending = self._waiting.pop(command.opaque, None) if command.is_response else None
            if pending is not None:  # else a server's request, or an answer that nobody wants
                pending.finish(command)
        if self._wire.violation is not None:
            self.close(self._wire.violation)

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
        for pending in self._waiting.values():
            pending.fail(ConnectionError(f"the connection to {self.address} is lost: {why}"))
        self._waiting.clear()


class BlockingClient:
    """Calls servers by address (``host:port``)."""

    def __init__(
        self,
        access: Access = OPEN,
        *,
        timeout_seconds: float = CALL_SECONDS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._credentials = access.credentials
        self._tls = None if access.tls is None else access.tls.context()
        self._clock = clock or SystemClock()
        self._lines: dict[str, _Line] = {}

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
        [pending] = self._line(address).send([command], timeout_seconds or self._timeout_seconds)
        return pending

    def begin_all(
        self, address: str, code: int, each: Iterable[Mapping[str, FieldValue]]
    ) -> list[Pending]:
        """Send requests of one kind in one go: as ``begin``, for less than a call of it each."""
        commands = [self._request(code, fields) for fields in each]
        return self._line(address).send(commands, self._timeout_seconds)

    def _request(
        self, code: int, fields: Mapping[str, FieldValue], body: bytes = b""
    ) -> AnyCommand:
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
        for line in self._lines.values():
            line.close("this side closed it")
        self._lines.clear()

    def _line(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None or not line.is_open():
            line = _Line(address, self._connect(address), self._clock)
            self._lines[address] = line
        return line

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
