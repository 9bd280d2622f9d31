"""TLS at the port of a server, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.config.tls import TlsKeys
from firearrow.errors import ConfigError
from firearrow.net import tls
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.net.encryption import Tls
from firearrow.net.selfsigned import self_signed
from firearrow.net.server import Answer, Peer, Server
from firearrow.net.tls import TlsContexts, access_of
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.broker.serving import until
from tests.loglines import events
from tests.net.certificates import make_certificate
from tests.net.conftest import Run
from tests.net.talker import WAIT_SECONDS_MAX, encrypted, question, talking

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


def asked(number: int, body: bytes = b"") -> Any:
    command = question(ECHO, number)
    command.body = body
    return command


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reasons for closed connections from the log."""
    return [str(getattr(it, "reason", "")) for it in caplog.records if it.levelno > logging.INFO]


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_serves_who_encrypts(run: Run, certificate: Path, mode: str) -> None:
    async def main() -> None:
        keys = {"tls_server_mode": mode, "tls_server_cert_path": str(certificate)}
        async with serving(**keys) as (server, port), encrypted(port, trusting(certificate)) as talker:
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


def test_who_must_encrypt_and_does_not_is_closed(run: Run, certificate: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        ({"tls_server_mode": "disabled"}, "it begins TLS, and tls.server.mode is disabled"),
        ({}, "it begins TLS, and there is no certificate (tls.server.certPath)"),
    ],
)
def test_who_encrypts_and_can_t_is_closed(
    run: Run, certificate: Path, caplog: pytest.LogCaptureFixture, keys: dict[str, str], why: str
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


def test_a_bad_handshake_is_a_line_in_the_log(run: Run, certificate: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    contexts = TlsContexts(TlsKeys(tls_server_cert_path=str(shown)))
    first = contexts.current(10.0)
    assert contexts.current(11.0) is first
    shown.write_text(certificate.read_text())
    assert contexts.current(11.5) is first  # the files are not looked at again that soon
    second = contexts.current(12.0)
    assert second is not first
    shown.write_text("no certificate")
    assert contexts.current(14.0) is second
    shown.unlink()
    assert contexts.current(16.0) is second
    assert events(caplog) == ["certificate is read again", *["certificate is not read again"] * 2]


def test_an_idle_connection_is_closed(run: Run, certificate: Path) -> None:
    async def main() -> None:
        keys = {"tls_server_cert_path": str(certificate), "idle_seconds_max": 0.1}
        async with serving(**keys) as (_, port), encrypted(port, trusting(certificate)) as talker:
            assert await talker.end() == b""

    run(main())


def test_what_can_t_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"enforcing needs tls\.server\.certPath"):
        TlsKeys(tls_server_mode="enforcing")
    with pytest.raises(ConfigError, match=r"needs tls\.server\.trustCertPath"):
        TlsKeys(tls_server_need_client_auth="optional")
    with pytest.raises(ConfigError, match=r"^TLS certificate /nowhere: "):
        TlsContexts(TlsKeys(tls_server_cert_path="/nowhere"))
    with pytest.raises(ConfigError, match=r"^TLS authorities /nowhere: "):
        access_of(TlsKeys(tls_enable=True, tls_client_trust_cert_path="/nowhere"))


def make_locked_key(directory: Path) -> tuple[Path, Path]:
    """Make a certificate whose key, in a separate file, has the password ``pass:word``."""
    made, locked = make_certificate(directory, "made"), directory / "locked.pem"
    command = "openssl pkey -aes256 -passout pass:pass:word"
    subprocess.run([*command.split(), "-in", made, "-out", locked], check=True, capture_output=True)
    return made.with_suffix(".crt"), locked


def test_a_key_may_have_a_password(run: Run, tmp_path: Path) -> None:
    shown, locked = make_locked_key(tmp_path)
    keys: dict[str, Any] = {"tls_server_cert_path": str(shown), "tls_server_key_path": str(locked)}
    with pytest.raises(ConfigError, match=r"its key has a password$"):
        TlsContexts(TlsKeys(**keys))
    with pytest.raises(ConfigError, match=r"its key has another password than that$") as caught:
        TlsContexts(TlsKeys(**keys, tls_server_key_password="guessed"))
    assert "guessed" not in str(caught.value)
    own: dict[str, Any] = {"tls_enable": True, "tls_client_cert_path": str(shown)}
    own |= {"tls_client_key_path": str(locked)}
    with pytest.raises(ConfigError, match=r"its key has a password$"):
        access_of(TlsKeys(**own))
    access = access_of(TlsKeys(**own, tls_client_key_password="pass:word"))

    async def main() -> None:
        keys["tls_server_need_client_auth"] = "require"
        keys["tls_server_trust_cert_path"] = str(shown)
        async with serving(**keys, tls_server_key_password="pass:word") as (_, port):
            client = Client(access=access)
            answer = await client.call(f"127.0.0.1:{port}", ECHO, {}, LARGE)
            assert answer.body == LARGE
            await client.close()

    run(main())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_for_trials_a_server_makes_its_certificate(run: Run, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(tls_server_mode=mode, tls_test_mode_enable=True) as (_, port):
            client = Client(access=Access(tls=Tls(verify=False)))
            answer = await client.call(f"127.0.0.1:{port}", ECHO, {}, b"x")
            assert answer.body == b"x"
            await client.close()
            verifying = Client(access=Access(tls=Tls()))
            with pytest.raises(OSError, match="certificate verify failed"):
                await verifying.call(f"127.0.0.1:{port}", ECHO, {}, b"x")
            await verifying.close()

    run(main())
    assert "certificate is made for this run only: clients can't verify it" in events(caplog)


def test_a_certificate_of_ones_own_comes_first(certificate: Path) -> None:
    """Java: while the test mode is on, TlsHelper ignores the files."""
    keys = TlsKeys(tls_test_mode_enable=True, tls_server_cert_path=str(certificate))
    assert TlsContexts(keys)._own == ""


def test_no_two_are_alike_and_openssl_takes_each(tmp_path: Path) -> None:
    made = {self_signed() for _ in range(5)}
    assert len(made) == 5
    for number, pem in enumerate(made):
        path = tmp_path / f"{number}.pem"
        path.write_text(pem)
        checked = subprocess.run(["openssl", "verify", "-CAfile", path, path], check=True, capture_output=True)
        assert b"OK" in checked.stdout
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)


OLDER = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
NEWER = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("protocols", "ciphers", "version", "cipher"),
    [
        ("", "", "TLSv1.3", ""),
        ("TLSv1.2", "", "TLSv1.2", ""),
        ("TLSv1.3, TLSv1.2", "", "TLSv1.3", ""),
        ("TLSv1.3", "", "TLSv1.3", ""),
        ("", OLDER, "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("", f"{OLDER}, {NEWER}", "TLSv1.3", ""),
        ("TLSv1.2", f"{OLDER},TLS_AES_128_GCM_SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("", "ECDHE-ECDSA-CHACHA20-POLY1305", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ],
)
def test_versions_and_ciphers_are_chosen(
    run: Run, certificate: Path, protocols: str, ciphers: str, version: str, cipher: str
) -> None:
    async def main() -> None:
        keys = {"tls_protocols": protocols, "tls_ciphers": ciphers}
        async with serving(tls_server_cert_path=str(certificate), **keys) as (_, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificate))
            found = writer.get_extra_info("ssl_object")
            assert found.version() == version
            assert not cipher or found.cipher()[0] == cipher
            writer.close()

    run(main())
    tls_keys = TlsKeys(tls_enable=True, tls_protocols=protocols, tls_ciphers=ciphers)
    access = access_of(tls_keys)
    assert access.tls is not None
    assert access.tls.context().maximum_version.name == version.replace(".", "_")


def test_who_speaks_no_version_of_these_is_closed(
    run: Run, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        context = trusting(certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        keys = {"tls_server_cert_path": str(certificate), "tls_protocols": "TLSv1.3"}
        async with serving(**keys) as (_, port):
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection("127.0.0.1", port, ssl=context)

    run(main())
    assert lines(caplog) == ["the handshake failed: unsupported protocol"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tls_protocols": "TLSv1.1"}, "'TLSv1.1' is not supported, TLSv1.2 and TLSv1.3 are"),
        ({"tls_ciphers": "TLS_RSA_WITH_NULL_SHA"}, "there is no cipher 'TLS_RSA_WITH_NULL_SHA'"),
        ({"tls_ciphers": "TLS_DH_anon_WITH_AES_128_CBC_SHA"}, "there is no cipher"),
        ({"tls_ciphers": "ALL"}, "there is no cipher 'ALL'"),
        ({"tls_ciphers": "TLS_AES_128_GCM_SHA256"}, "the ciphers of TLSv1.3 are all available or none"),
        ({"tls_ciphers": OLDER, "tls_protocols": "TLSv1.3"}, "there is none for TLSv1.3"),
    ],
)
def test_what_can_not_be_spoken_is_refused(certificate: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        TlsContexts(TlsKeys(tls_server_cert_path=str(certificate), **keys))


def hello(context: ssl.SSLContext) -> bytes:
    """Return the beginning of a handshake."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_handshakes_have_a_number_and_count(run: Run, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room for a new one, and its memory is no longer counted."""
    monkeypatch.setattr(tls, "HANDSHAKES_MAX", 3)

    async def main() -> None:
        context = trusting(certificate)
        async with serving(tls_server_cert_path=str(certificate)) as (server, port):
            halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            for _, writer in halves:
                writer.write(hello(context))
            for reader, _ in halves[:2]:
                await closed(reader)
            await until(lambda: len(server.peers) == 3)
            assert {peer.kept_bytes for peer in server.peers} == {tls.HANDSHAKE_BYTES}
            async with encrypted(port, context) as talker:
                talker.ask(asked(1, b"x"))
                assert (await talker.answer()).body == b"x"
            await until(lambda: len(server.peers) == 2)
            assert len(server.door.under_way) == 2
            for _, writer in halves:
                writer.close()
            await until(lambda: not server.peers)
            assert not server.door.under_way

    run(main())


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other side closes a connection."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()


def test_many_handshakes_do_not_take_a_turn_together(
    run: Run, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a millisecond; between some of them other peers get their answers."""
    turns: list[int] = []
    whole = tls.Pipe.go_on

    async def main() -> None:
        turn = 0

        def go_on(pipe: tls.Pipe) -> None:
            turns.append(turn)
            whole(pipe)

        monkeypatch.setattr(tls.Pipe, "go_on", go_on)
        first = hello(trusting(certificate))
        async with serving(tls_server_cert_path=str(certificate)) as (_, port):
            halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in halves:
                writer.write(first)
            while len(turns) < len(halves):
                await asyncio.sleep(0)
                turn += 1
            for _, writer in halves:
                writer.close()

    run(main())
    # A turn of the test may see the ends of two.
    assert max(Counter(turns).values()) <= 2 * tls.TURN_HANDSHAKES
