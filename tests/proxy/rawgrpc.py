"""A client of the proxy that speaks in frames, for tests that must misbehave."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final, Self

from firearrow.wire.grpc import framed
from firearrow.wire.http2 import DATA, HEAD_BYTES, PREFACE
from tests.proxy.rpcs import SERVICE
from tests.wire import http2frames as h2
from tests.wire.http2frames import CLIENT_WINDOW_BYTES

SECONDS_MAX: Final = 60
WIDE = PREFACE + h2.settings(initial_window_size=2**31 - 1) + h2.window(0, 2**31 - 1 - CLIENT_WINDOW_BYTES)


def head(number: int, method: str, client_id: str, metadata: Mapping[str, str] | None = None) -> bytes:
    fields = {"x-mq-client-id": client_id, "x-mq-language": "CPP", "x-mq-client-version": "5.1.2", **(metadata or {})}
    path = (b":path", f"{SERVICE}/{method}".encode())
    pairs = [*h2.CALL[:2], path, *h2.CALL[3:], *((name.encode(), value.encode()) for name, value in fields.items())]
    return h2.headers(number, h2.block_of(pairs))


def whole(number: int, method: str, client_id: str, request: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    return head(number, method, client_id, metadata) + h2.data(number, framed(request.SerializeToString()), ends=True)


class Raw:
    """A connection that speaks in frames, and counts the answers by stream."""

    def __init__(self, address: str, hello: bytes = WIDE) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), SECONDS_MAX)
        self._rest = b""
        self.write(hello)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def messages(self, kind: Any, count: int) -> list[Any]:
        """Read until there are some messages, each in a frame of its own; return them."""
        found: list[Any] = []
        while len(found) < count:
            data = self._socket.recv(1 << 20)
            assert data, "the proxy has closed the connection"
            self._rest += data
            while len(self._rest) >= HEAD_BYTES:
                end = HEAD_BYTES + int.from_bytes(self._rest[:3])
                if len(self._rest) < end:
                    break
                if self._rest[3] == DATA:
                    found.append(kind.FromString(self._rest[HEAD_BYTES + 5 : end]))
                self._rest = self._rest[end:]
        return found

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
