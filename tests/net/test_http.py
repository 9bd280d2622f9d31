"""The HTTP server, over real sockets: its answers, and its limits for peers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from firearrow.errors import CannotListen
from firearrow.net import http
from firearrow.net.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, Answer, HttpServer, Request, plain
from tests.broker.serving import until
from tests.net.conftest import Run
from tests.net.talker import WAIT_SECONDS_MAX

PIECES = 200
PIECE = bytes(64 * 1024)


class Pages:
    """Requests and their answers."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.made = 0

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        if request.path == "/long":
            return Answer(HTTPStatus.OK, self._pieces())
        if request.path == "/fails":
            raise ValueError("as it is meant to")
        if request.path == "/breaks":
            return Answer(HTTPStatus.OK, self._broken())
        return plain(HTTPStatus.OK, request.path)

    def _pieces(self) -> Iterator[bytes]:
        for _ in range(PIECES):
            self.made += 1
            yield PIECE

    def _broken(self) -> Iterator[bytes]:
        yield b"the first part"
        raise ValueError("as it is meant to")


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Pages, int, HttpServer]]:
    pages = Pages()
    server = HttpServer(pages.answer)
    port = await server.bind("127.0.0.1", 0)
    await server.serve()
    try:
        yield pages, port, server
    finally:
        server.close()


async def ask(port: int, data: bytes, *, end: bool = False) -> bytes:
    """Send bytes, and return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        writer.write(data)
        if end:
            writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until a connection is closed from the other side, without an answer."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        try:
            return not await reader.read()
        except ConnectionResetError:
            return True


def test_answers_a_get_and_closes(run: Run) -> None:
    async def main() -> None:
        async with serving() as (pages, port, server):
            found = await ask(port, b"GET /a?x=1&y=2%203 HTTP/1.1\r\nHost: h\r\n\r\n", end=True)
            assert found.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\nConnection: close\r\n" in found
            assert found.endswith(b"\r\n\r\n3\r\n/a\n\r\n0\r\n\r\n")
            assert (await ask(port, b"GET /c HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n/c\n")
            assert pages.asked[0] == Request("/a", {"x": "1", "y": "2 3"})
            assert (await ask(port, b"HEAD /a HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")
            assert not server.peers

    run(main())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /a HTTP/1.1\r\n\r\n", 405),
        (b"\x00\x00\x00\x10\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET //[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /?" + b"a=1&" * 100 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
        (b"GET /fails HTTP/1.1\r\n\r\n", 500),
    ],
)
def test_refuses_what_it_does_not_serve(run: Run, data: bytes, status: int) -> None:
    async def main() -> None:
        async with serving() as (_, port, _):
            assert (await ask(port, data)).startswith(b"HTTP/1.1 %d " % status)
            assert (await ask(port, b"GET /b HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    run(main())


def test_an_answer_that_breaks_is_no_whole_one(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port, _):
            found = await ask(port, b"GET /breaks HTTP/1.1\r\n\r\n")
            assert found.endswith(b"the first part\r\n")

    run(main())


def test_makes_no_more_of_an_answer_than_its_peer_reads(run: Run) -> None:
    async def main() -> None:
        async with serving() as (pages, port, _):
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", port))
                slow.sendall(b"GET /long HTTP/1.1\r\n\r\n")
                for _ in range(5 * PIECES):
                    await asyncio.sleep(0)
                assert 0 < pages.made < PIECES
                found = await ask(port, b"GET /long HTTP/1.1\r\n\r\n")  # other peers are served
                assert len(found) > PIECES * len(PIECE)

    run(main())


async def reading_nothing(port: int) -> socket.socket:
    """Return a connection that requests a long answer and reads nothing of it."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", port))
    slow.sendall(b"GET /long HTTP/1.1\r\n\r\n")
    return slow


def test_takes_so_many_connections_and_no_more(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port, server):
            busy = [await reading_nothing(port) for _ in range(CONNECTIONS_MAX)]
            try:
                await until(lambda: sum(peer.has_asked for peer in server.peers) == len(busy))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
                assert await closed(reader)
                writer.close()
            finally:
                for slow in busy:
                    slow.close()

    run(main())


def test_who_asks_nothing_keeps_nobody_out(run: Run) -> None:
    """With the maximum of connections, each new one closes the oldest."""

    async def main() -> None:
        async with serving() as (_, port, server):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
            try:
                await until(lambda: len(server.peers) == CONNECTIONS_MAX)
                for _ in range(3):
                    found = await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
                    assert found.startswith(b"HTTP/1.1 200 OK")
                assert await closed(idle[0][0])
                idle[-1][1].write(b"GET /a HTTP/1.0\r\n\r\n")
                assert (await idle[-1][0].read()).endswith(b"/a\n")
            finally:
                for _, open_one in idle:
                    open_one.close()

    run(main())


@pytest.mark.parametrize("name", ["SECONDS_MAX", "HEAD_SECONDS_MAX"])
def test_who_takes_no_part_is_closed_in_time(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(http, name, 0.05)
    is_asking = name == "SECONDS_MAX"

    async def main() -> None:
        async with serving() as (_, port, server):
            if is_asking:
                with await reading_nothing(port):
                    await until(lambda: bool(server.peers))
                    await until(lambda: not server.peers)
            else:
                assert await ask(port, b"GET /a HTTP") == b""

    run(main())


def test_a_port_in_use_is_said(run: Run) -> None:
    async def main() -> None:
        async with serving() as (pages, port, _):
            with pytest.raises(CannotListen) as caught:
                await HttpServer(pages.answer).bind("127.0.0.1", port)
            assert caught.value.filename == f"127.0.0.1:{port}"

    run(main())
