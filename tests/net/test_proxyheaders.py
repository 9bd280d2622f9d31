"""Connections behind a load balancer, which names their clients by a header."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.config.tls import TlsKeys
from firearrow.errors import ConfigError
from firearrow.net.proxyheaders import networks_of
from firearrow.net.server import Server
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import DATA
from firearrow.wire.proxyheader import BINARY
from tests.broker.serving import until
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.grpcservice import ECHO, grpc_serving
from tests.net.http2talker import Http2Talker, path
from tests.net.talker import Talker, question, talking
from tests.wire import http2frames as h2
from tests.wire.http2frames import HELLO

TEXT = b"PROXY TCP4 203.0.113.7 192.0.2.1 40001 8081\r\n"
TEXT6 = b"PROXY TCP6 2001:db8::7 2001:db8::1 40001 8081\r\n"
BINARY4 = bytes.fromhex("0d0a0d0a000d0a515549540a2111000ccb007107c00002019c411f91")
CALL = HELLO + h2.headers(1, path("echo")) + h2.data(1, framed(b"x"), ends=True)


@asynccontextmanager
async def behind(*trusted: str, **options: Any) -> AsyncIterator[tuple[Server, Talker]]:
    """Serve gRPC and remoting, and open a connection."""
    async with grpc_serving(**options) as (server, port), talking(port) as talker:
        server.proxy_headers.trusted = networks_of(",".join(trusted))
        yield server, talker


async def grpc_address(server: Server, talker: Talker) -> str:
    """Wait for the answer to a call; return the address of its client."""
    talker_of_frames = Http2Talker(talker)
    assert await talker_of_frames.answer(1) == [b"x"]
    [peer] = server.grpc_peers
    return peer.address


@pytest.mark.parametrize(
    ("header", "address"), [(TEXT, "203.0.113.7:40001"), (TEXT6, "2001:db8::7:40001"), (BINARY4, "203.0.113.7:40001")]
)
def test_a_trusted_balancer_names_the_client(run: Run, header: bytes, address: str) -> None:
    async def main() -> None:
        async with behind("127.0.0.0/8") as (server, talker):
            talker.write(header + CALL)
            assert await grpc_address(server, talker) == address
            [peer] = server.grpc_peers
            assert peer.host_bytes[-4:] == (40_001).to_bytes(4)
        async with behind("10.0.0.0/8", "127.0.0.1") as (server, talker):
            talker.write(header)
            talker.ask(question(ECHO))
            assert (await talker.answer()).code == 0
            [remoting] = server.peers
            assert remoting.address == address
            assert remoting.ip == address.rpartition(":")[0]

    run(main())


def test_a_header_from_elsewhere_is_read_and_not_believed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        for _ in range(2):
            async with behind("10.0.0.0/8", "::1") as (server, talker):
                talker.write(BINARY4 + CALL)
                assert await grpc_address(server, talker) == talker.address

    run(main())
    assert [it["event"] for it in told(caplog)] == [
        "PROXY header is not believed: its sender is in no network of proxyProtocolTrustedNetworks"
    ] * 2  # one for each server


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", BINARY + b"\x20\x00\x00\x00"])
def test_a_balancers_own_connection_has_its_own_address(
    run: Run, header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with behind() as (server, talker):
            talker.write(header + CALL)
            assert await grpc_address(server, talker) == talker.address

    run(main())
    assert not caplog.records


@pytest.mark.parametrize("header", [TEXT, BINARY4])
def test_a_header_may_come_byte_by_byte(run: Run, header: bytes) -> None:
    async def main() -> None:
        async with behind("127.0.0.1") as (server, talker):
            for at in range(len(header)):
                talker.write(header[at : at + 1])
                await talker._writer.drain()
            talker.write(CALL)
            assert await grpc_address(server, talker) == "203.0.113.7:40001"

    run(main())


@pytest.mark.parametrize(
    "data",
    [b"PROXY TCP4 nowhere\r\n", BINARY + b"\x99\x00\x00\x00", TEXT + TEXT, TEXT + BINARY4, b"PROXY" + bytes(200)],
)
def test_a_malformed_or_second_header_ends_the_connection(
    run: Run, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with behind("127.0.0.1") as (server, talker):
            talker.write(data)
            assert await talker.end() == b""
            await until(lambda: not server.peers)

    run(main())
    assert [it["event"] for it in told(caplog)] == ["connection is closed"]


def test_a_connection_that_ends_within_its_header_is_forgotten(run: Run) -> None:
    async def main() -> None:
        for ends in (Talker.write_end, Talker.abort):
            async with behind("127.0.0.1") as (server, talker):
                talker.write(TEXT[:20])
                await until(lambda: bool(server.peers))
                ends(talker)
                await until(lambda: not server.peers)

    run(main())


def test_an_idle_connection_within_its_header_is_closed(run: Run) -> None:
    async def main() -> None:
        async with behind("127.0.0.1", idle_seconds_max=0.05) as (_, talker):
            talker.write(TEXT[:20])
            assert await talker.end() == b""

    run(main())


def test_tls_follows_the_header(run: Run, certificate: Path) -> None:
    """A header within TLS is none: the client of a balancer wrote it."""

    async def main() -> None:
        keys = TlsKeys(tls_server_mode="enforcing", tls_server_cert_path=str(certificate))
        for data in (CALL, TEXT + CALL):
            async with behind("127.0.0.1", tls=keys) as (server, talker):
                talker.write(TEXT)
                await talker._writer.start_tls(trusting(certificate), server_hostname="127.0.0.1")
                talker.write(data)
                if data == CALL:
                    assert await grpc_address(server, talker) == "203.0.113.7:40001"
                else:
                    frames = await talker.end()
                    assert DATA not in [frame.kind for frame in h2.frames_of(frames)]

    run(main())


def trusting(certificate: Path) -> Any:
    return ssl.create_default_context(cafile=certificate)


def test_without_grpc_there_are_no_headers(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with behind("127.0.0.1") as (server, talker):
            server.grpc_methods = {}
            talker.write(TEXT)
            assert await talker.end() == b""

    run(main())
    assert "above the limit" in str(told(caplog)[0]["reason"])


def test_networks() -> None:
    assert networks_of("") == ()
    assert [str(it) for it in networks_of(" 10.1.2.3/16; 192.0.2.7 ,fd00::/8")] == [
        "10.1.0.0/16",
        "192.0.2.7/32",
        "fd00::/8",
    ]
    for wrong in ("10.0.0.0/33", "nowhere", "1.2.3"):
        with pytest.raises(ConfigError, match="names no networks"):
            networks_of(wrong)
