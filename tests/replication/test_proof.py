"""Who wants to follow a broker with access control proves who it is, and gets nothing before."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.cli.main import main
from firearrow.clock import SystemClock
from firearrow.errors import RemoteProtocolError
from firearrow.replication.fetching import LogSource
from firearrow.replication.proof import ANSWER, HELLO, NOT_ASKED, Proof, ProofDemand
from firearrow.replication.stream import FRAME_HEAD, LogSender, report
from firearrow.replication.switching import READER
from firearrow.testing import loop
from firearrow.testing.fs import copy_whole
from firearrow.testing.loop import VirtualClock
from firearrow.wire.signature import Credentials
from tests.broker.controlled import Field, fielded
from tests.broker.replicated import caught_up, ha_address, replica, slave_of
from tests.broker.serving import Serving, send_fields, until
from tests.broker.signing import AUTHENTICATED, Signer
from tests.net.talker import talking

SECRETS = {"inner": "s", "other": "t"}
TRUE = Credentials("inner", "s")
INNER = {"inner_client_authentication_credentials": '{"accessKey":"inner","secretKey":"s"}', **AUTHENTICATED}
SYNC: dict[str, Any] = {"in_sync_replicas": 2, "slave_timeout": 500}
NOT_COPIED = 12


# --- the two sides, without a socket ---


def spoken(demand: ProofDemand, proof: Proof, cuts: list[int]) -> None:
    """Carry what they say, in pieces."""
    to_master, to_slave = HELLO, b""
    sizes = iter(cuts)
    while to_master or to_slave:
        size = next(sizes, 1000)
        piece, to_master = to_master[:size], to_master[size:]
        to_slave += demand.receive(piece)
        piece, to_slave = to_slave[:size], to_slave[size:]
        to_master += proof.receive(piece)


@given(st.lists(st.integers(1, 40)))
def test_both_prove_who_they_are_however_it_is_cut(cuts: list[int]) -> None:
    demand, proof = ProofDemand(SECRETS.get, b"c" * 16), Proof(TRUE, b"o" * 16)
    spoken(demand, proof, cuts)
    assert demand.is_met
    assert proof.is_done
    assert demand.rest == proof.rest == b""


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials("inner", "t"),
        Credentials("nobody", ""),
        Credentials("nobody", "s"),
        Credentials("other", "s"),
        Credentials("ü", "s"),
    ],
)
def test_who_does_not_know_the_secret_is_refused(credentials: Credentials) -> None:
    demand, proof = ProofDemand(SECRETS.get, b"c" * 16), Proof(credentials, b"o" * 16)
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        spoken(demand, proof, [])
    assert not demand.is_met


def test_a_proof_is_of_one_connection() -> None:
    first, proof = ProofDemand(SECRETS.get, b"c" * 16), Proof(TRUE, b"o" * 16)
    said = proof.receive(first.receive(HELLO))
    assert len(first.receive(said)) == 32
    again = ProofDemand(SECRETS.get, b"d" * 16)
    again.receive(HELLO)
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        again.receive(said)


def test_a_master_that_does_not_know_the_secret_is_not_followed() -> None:
    proof = Proof(TRUE, b"o" * 16)
    proof.receive(ANSWER + b"c" * 16)
    with pytest.raises(RemoteProtocolError, match="master does not prove"):
        proof.receive(bytes(32))


@pytest.mark.parametrize("said", [report(0), report(4096), READER.encode(), b"\x16\x03\x01", b"GET"])
def test_what_is_no_proof_is_refused_at_once(said: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="does not begin a proof"):
        ProofDemand(SECRETS.get, b"c" * 16).receive(said)


def test_a_log_is_no_challenge() -> None:
    with pytest.raises(RemoteProtocolError, match="asks for no proof"):
        Proof(TRUE, b"o" * 16).receive(FRAME_HEAD.pack(0, 0))
    repeated = FRAME_HEAD.pack(struct.unpack(">q", HELLO)[0], 0)  # RocketMQ's heartbeats
    with pytest.raises(RemoteProtocolError, match="asks for no proof"):
        Proof(TRUE, b"o" * 16).receive(repeated * 2)


def test_a_master_that_does_not_know_it_takes_the_hello_for_nothing() -> None:
    """RocketMQ's and ours of earlier days read it as a report: of no place of a log."""
    sending = LogSender(1024)
    assert not sending.receive(HELLO, 100)
    assert sending.next_offset is None
    assert struct.unpack(">q", HELLO)[0] < 0


# --- brokers ---


def test_brokers_that_controllers_decide_of_prove_it_as_well(tmp_path: Path) -> None:
    """In each role that they come to have."""

    async def main(field: Field) -> None:
        master = await field.master()
        await master.stop()
        second = await field.master(but=master)
        await master.start()
        await field.in_sync(2)
        assert (await field.master()) is second
        async with talking(second.port) as talker:
            root = Signer(second.serving, talker, False)
            assert (await root.call(3003, {"username": "inner"})).code == 0
        await field.in_sync(1)  # also who came to its role by an election lets go of a slave

    fielded(tmp_path, 2, main, **INNER)


@asynccontextmanager
async def pair(
    root: Path, clock: VirtualClock, of_slave: dict[str, Any], **of_master: Any
) -> AsyncIterator[tuple[Serving, Serving, Signer]]:
    """A master that waits for its slave, which has other keys, and who sends to it."""
    async with (
        replica(root / "m", clock, role="SYNC_MASTER", store=SYNC, **of_master) as master,
        talking(master.port) as talker,
        slave_of(master, root / "s", clock, **of_slave) as slave,
    ):
        yield master, slave, Signer(master, talker, False)


async def code_of_send(sender: Signer) -> int:
    return int((await sender.call(310, send_fields(), b"body")).code)


def test_a_slave_with_the_credentials_follows_and_counts(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, INNER, **INNER) as (master, slave, sender):
            await until(lambda: slave.broker.replicas.is_following)
            assert await code_of_send(sender) == 0
            await caught_up(slave, master)

    loop.run(main)


def test_a_slave_is_let_go_with_its_user(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, INNER, **INNER) as (master, slave, sender):
            await until(lambda: slave.broker.replicas.is_following)
            other = {"password": "another secret", "userType": "Super"}
            for code, body in ((3002, other), (3002, {**other, "password": "s"}), (3003, {})):
                changed = await sender.call(code, {"username": "inner"}, json.dumps(body).encode())
                assert changed.code == 0
                is_known = body.get("password") == "s"
                await asyncio.sleep(10)
                assert slave.broker.replicas.is_following is is_known
                assert bool(master.broker.replicas.slave_hosts()) is is_known

    loop.run(main)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_stranger_gets_nothing_and_acknowledges_nothing(tmp_path: Path, is_allowed: bool) -> None:
    """One that echoes what it gets makes a send count as copied, by nobody, where RocketMQ's are
    allowed."""

    async def echo(port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = 1
        try:
            while True:
                writer.write(report(at))
                got = await reader.readexactly(FRAME_HEAD.size)
                start, size = FRAME_HEAD.unpack(got)
                await reader.readexactly(size)
                at = max(start + size, 1)
        except (OSError, EOFError):
            writer.close()
        return at > 1

    async def main(clock: VirtualClock) -> None:
        keys = {**INNER, "ha_allow_unauthenticated": is_allowed}
        async with (
            replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC, **keys) as master,
            talking(master.port) as talker,
        ):
            sender = Signer(master, talker, False)
            assert await code_of_send(sender) == NOT_COPIED  # there is something to echo
            echoing = asyncio.ensure_future(echo(master.broker.settings.store.ha_listen_port))
            await asyncio.sleep(1)
            assert await code_of_send(sender) == (0 if is_allowed else NOT_COPIED)
            assert bool(master.broker.replicas.slave_hosts()) is is_allowed
        assert await echoing is is_allowed

    loop.run(main)


@pytest.mark.parametrize(
    ("of_slave", "why"),
    [
        ({}, "master has closed the connection"),
        (AUTHENTICATED, "no innerClientAuthenticationCredentials here"),
        (
            {**INNER, "inner_client_authentication_credentials": '{"accessKey":"x","secretKey":"s"}'},
            "does not take the proof",
        ),
    ],
)
def test_a_slave_without_a_proof_is_told_why(tmp_path: Path, of_slave: dict[str, Any], why: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, of_slave, **INNER) as (_, slave, sender):
            assert await code_of_send(sender) == NOT_COPIED
            assert slave.broker.replicas.slave is not None
            assert why in (slave.broker.replicas.slave.trouble or "")

    loop.run(main)


def test_a_master_without_access_control_is_followed_only_where_that_is_allowed(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path / "1", clock, INNER) as (_, slave, _):
            await asyncio.sleep(10)
            assert slave.broker.replicas.slave is not None
            assert slave.broker.replicas.slave.trouble == NOT_ASKED
        allowed = {**INNER, "ha_allow_unauthenticated": True}
        async with pair(tmp_path / "2", clock, allowed) as (_, slave, sender):
            await until(lambda: slave.broker.replicas.is_following)
            assert await code_of_send(sender) == 0
        async with pair(tmp_path / "3", clock, {}, **allowed) as (_, slave, sender):
            await until(lambda: slave.broker.replicas.is_following)
            assert await code_of_send(sender) == 0

    loop.run(main)


def test_strangers_do_not_keep_slaves_out(tmp_path: Path) -> None:
    """Idle connections have their time, and the oldest goes for one more."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC, **INNER) as master:
            port = master.broker.settings.store.ha_listen_port
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
            async with slave_of(master, tmp_path / "s", clock, **INNER) as slave:
                await until(lambda: slave.broker.replicas.is_following)
            for reader, writer in idle:
                assert await reader.read() == b""
                writer.close()

    loop.run(main)


def test_who_encrypts_only_follows_and_is_followed_so(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where certificates of clients are asked for, that is asked of slaves, too."""
    monkeypatch.setattr("firearrow.replication.fetching.SILENCE_SECONDS_MAX", 0.3)
    keys: dict[str, Any] = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": str(certificate),
        "tls_client_trust_cert_path": str(certificate),
        "tls_client_auth_server": True,
        "tls_server_need_client_auth": "require",
        "tls_server_trust_cert_path": str(certificate),
    }
    own: dict[str, Any] = {"tls_client_cert_path": str(certificate)}

    async def main() -> None:
        clock = SystemClock()
        async with (
            replica(tmp_path / "m", clock, background=True, **keys, **INNER) as master,
            slave_of(master, tmp_path / "s", clock, background=True, **keys, **own, **INNER) as slave,
        ):
            async with asyncio.timeout(20):
                await until(lambda: slave.broker.replicas.is_following)
            place = ha_address(master)
            assert await asyncio.to_thread(LogSource(place).fetch, 1, 10) == b""
            found = slave.broker.replicas.source_of_log()
            assert found is not None
            master.broker.store.put(master.broker.store.queue("T", 0), b"body", b"", 0, 0, 0, bytes(8), 0, 0)
            end = master.broker.store.log_end_offset
            data = await asyncio.to_thread(found.fetch, 0, end)
            assert data == master.broker.store.log_bytes(0, end)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "is_known", "does_help"), [(INNER, True, True), (INNER, False, False), ({}, True, True), ({}, False, True)]
)
def test_a_repair_asks_as_who_one_is(
    tmp_path: Path,
    keys: dict[str, Any],
    is_known: bool,
    does_help: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"ACCESS_KEY": "inner", "SECRET_KEY": "s"}.items():
        if is_known:
            monkeypatch.setenv(f"FIREARROW_{name}", value)
    monkeypatch.setattr("firearrow.replication.proof.PROOF_SECONDS_MAX", 0.3)

    async def run() -> None:
        async with (
            replica(tmp_path / "m", SystemClock(), background=True, **keys) as master,
            talking(master.port) as talker,
        ):
            assert await code_of_send(Signer(master, talker, False)) == 0
            await master.dispatched()
            master.broker.store.flush_log()
            copy_whole(tmp_path / "m", tmp_path / "copy")
            path = tmp_path / "copy" / "commitlog" / f"{0:020d}"
            path.write_bytes(path.read_bytes().replace(b"body", b"bodx", 1))
            command = ["store", "repair", str(tmp_path / "copy"), "--from", ha_address(master)]
            await asyncio.to_thread(main, [*command, "--apply"])
            assert (b"body" in path.read_bytes()) is does_help, capsys.readouterr().out

    asyncio.run(run())
