"""TLS at the port of a server, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.config.tls import TlsKeys
from firearrow.errors import ConfigError
from firearrow.net import tls
from firearrow.net.access import Access, Tls
from firearrow.net.client import Client
from firearrow.net.server import Answer, Peer, Server
from firearrow.net.tls import Contexts, access_of
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.net.certificates import make_certificate
from tests.net.conftest import Run
from tests.net.talker import WAIT_SECONDS_MAX, Talker, question, talking

ECHO = 1
LARGE = bytes(range(256)) * 8192  # 2 MiB: many records, and more than the socket takes at once


def echo(_: Peer, request: AnyCommand) -> Answer:
    return Response(body=request.body)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Server, int]]:
    idle = options.pop("idle_seconds_max", 120)
    server = Server({ECHO: echo}, SystemClock(), tls=TlsKeys(**options), idle_seconds_max=idle)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


def trusting(certificate: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    if own is not None:
        context.load_cert_chain(own)
    return context


@asynccontextmanager
async def encrypted(port: int, context: ssl.SSLContext) -> AsyncIterator[Talker]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield Talker(reader, writer)
    finally:
        writer.close()


def asked(number: int, body: bytes = b"") -> Any:
    command = question(ECHO, number)
    command.body = body
    return command


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why connections were closed, as the log says."""
    return [str(getattr(it, "reason", "")) for it in caplog.records if it.levelno > logging.INFO]


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_serves_who_encrypts(run: Run, certificate: Path, mode: str) -> None:
    async def main() -> None:
        keys = {"tls_server_mode": mode, "tls_server_cert_path": str(certificate)}
        async with (
            serving(**keys) as (server, port),
            encrypted(port, trusting(certificate)) as talker,
        ):
            talker.ask(asked(1, b"small"), asked(2, LARGE), asked(3))
            assert [(await talker.answer()).body for _ in range(3)] == [b"small", LARGE, b""]
            [peer] = server.peers
            assert peer.address == talker.address
            talker.write(b"\x7f\xff\xff\xff\0\0\0\0")  # a frame that is too large
            assert await talker.end() == b""

    run(main())


def test_plain_and_encrypted_at_one_port(run: Run, certificate: Path) -> None:
    async def main() -> None:
        async with (
            serving(tls_server_cert_path=str(certificate)) as (_, port),
            encrypted(port, trusting(certificate)) as first,
            talking(port) as second,
        ):
            for talker in (first, second):
                talker.ask(asked(1, b"x"))
                assert (await talker.answer()).body == b"x"

    run(main())


def test_the_client_of_ours_gets_in(run: Run, certificate: Path) -> None:
    async def main() -> None:
        keys = {"tls_server_mode": "enforcing", "tls_server_cert_path": str(certificate)}
        async with serving(**keys) as (_, port):
            client = Client(access=Access(tls=Tls(str(certificate))))
            assert (await client.call(f"127.0.0.1:{port}", ECHO, {}, LARGE)).body == LARGE
            await client.close()

    run(main())


def test_who_must_encrypt_and_does_not_is_closed(
    run: Run, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        keys = {"tls_server_mode": "enforcing", "tls_server_cert_path": str(certificate)}
        async with serving(**keys) as (_, port):
            for _ in range(3):
                async with talking(port) as talker:
                    talker.ask(asked(1, b"secret"))
                    assert await talker.end() == b""

    run(main())
    assert lines(caplog) == ["it does not encrypt, and tls.server.mode is enforcing"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tls_server_mode": "disabled"}, "it speaks TLS, and tls.server.mode is disabled"),
        ({}, "it speaks TLS, and there is no certificate (tls.server.certPath)"),
    ],
)
def test_who_encrypts_and_can_t_is_closed(
    run: Run,
    certificate: Path,
    caplog: pytest.LogCaptureFixture,
    keys: dict[str, str],
    why: str,
) -> None:
    async def main() -> None:
        async with serving(**keys) as (_, port):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with encrypted(port, trusting(certificate)):
                    pass
            async with talking(port) as talker:
                talker.ask(asked(1, b"x"))
                assert (await talker.answer()).body == b"x"

    run(main())
    assert lines(caplog) == [why]


def test_a_bad_handshake_is_a_line_in_the_log(
    run: Run, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tls_server_cert_path=str(certificate)) as (_, port):
            async with talking(port) as talker:
                talker.write(b"\x16\x03\x01\x00\x05hello" + bytes(100))
                await talker.end()
            untrusting = ssl.create_default_context()
            with pytest.raises(ssl.SSLCertVerificationError):
                async with encrypted(port, untrusting):
                    pass

    run(main())
    [why] = lines(caplog)
    assert why.startswith("the handshake failed: ")
    assert not any(record.exc_info for record in caplog.records)


def test_a_hello_may_come_byte_by_byte(run: Run, certificate: Path) -> None:
    async def main() -> None:
        async with serving(tls_server_cert_path=str(certificate)) as (_, port):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            ours = trusting(certificate).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while True:
                    try:
                        ours.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        for number in outgoing.read():
                            writer.write(bytes([number]))
                            await writer.drain()
                            await asyncio.sleep(0)
                        incoming.write(await reader.read(65536))
            writer.close()

    run(main())


def test_who_does_not_end_a_handshake_is_closed(
    run: Run, certificate: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS_MAX", 0.05)

    async def main() -> None:
        async with serving(tls_server_cert_path=str(certificate)) as (server, port):
            async with talking(port) as talker:
                talker.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
                assert await talker.end() == b""
            assert not server.peers

    run(main())
    assert lines(caplog) == ["no handshake within 0.05 s"]


def test_clients_show_certificates(
    run: Run, certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, strange = (make_certificate(tmp_path, name) for name in ("own", "strange"))

    async def main() -> None:
        keys = {
            "tls_server_cert_path": str(certificate),
            "tls_server_need_client_auth": "require",
            "tls_server_trust_cert_path": str(own.with_suffix(".crt")),
        }
        async with serving(**keys) as (_, port):
            async with encrypted(port, trusting(certificate, own)) as talker:
                talker.ask(asked(1, b"x"))
                assert (await talker.answer()).body == b"x"
            for wrong in (None, strange):
                async with encrypted(port, trusting(certificate, wrong)) as talker:
                    talker.ask(asked(1, b"x"))
                    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                        await talker.answer()

    run(main())
    [why] = lines(caplog)
    assert why.startswith("the handshake failed: ")


def test_a_new_certificate_is_shown_without_a_restart(
    certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shown = make_certificate(tmp_path, "shown")
    contexts = Contexts(TlsKeys(tls_server_cert_path=str(shown)))
    first = contexts.current(10.0)
    assert contexts.current(11.0) is first
    shown.write_text(certificate.read_text())
    assert contexts.current(11.5) is first  # it is not looked at so soon
    second = contexts.current(12.0)
    assert second is not first
    shown.write_text("no certificate")
    assert contexts.current(14.0) is second
    shown.unlink()
    assert contexts.current(16.0) is second
    events = [record.message for record in caplog.records]
    assert events == ["certificate is read again", *["certificate is not read again"] * 2]


def test_an_idle_connection_is_closed(run: Run, certificate: Path) -> None:
    async def main() -> None:
        keys = {"tls_server_cert_path": str(certificate), "idle_seconds_max": 0.1}
        async with (
            serving(**keys) as (_, port),
            encrypted(port, trusting(certificate)) as talker,
        ):
            assert await talker.end() == b""

    run(main())


def test_what_can_t_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"enforcing needs tls\.server\.certPath"):
        TlsKeys(tls_server_mode="enforcing")
    with pytest.raises(ConfigError, match=r"needs tls\.server\.trustCertPath"):
        TlsKeys(tls_server_need_client_auth="optional")
    with pytest.raises(ConfigError, match=r"^TLS certificate /nowhere: "):
        Contexts(TlsKeys(tls_server_cert_path="/nowhere"))
    with pytest.raises(ConfigError, match=r"^TLS authorities /nowhere: "):
        access_of(TlsKeys(tls_enable=True, tls_client_trust_cert_path="/nowhere"))
    locked = tmp_path / "locked.pem"
    command = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -aes256"
    subprocess.run(
        [*command.split(), "-pass", "pass:word", "-out", locked], check=True, capture_output=True
    )
    made = make_certificate(tmp_path, "made")
    keys = TlsKeys(
        tls_server_cert_path=str(made.with_suffix(".crt")), tls_server_key_path=str(locked)
    )
    with pytest.raises(ConfigError, match="its key has a password"):
        Contexts(keys)
