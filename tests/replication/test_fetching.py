"""Bytes of a log are had from a broker that sends it to slaves, be it a master or a slave."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.replication import fetching
from firearrow.replication.fetching import NoReplica, fetch
from firearrow.store.offline import Action, Layout, Replica, apply, diff, plan
from tests.broker.replicated import caught_up, ha_address, log_of, replica, slave_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SILENCE_SECONDS_MAX", 0.3)


def test_both_give_any_bytes_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SystemClock()
        async with (
            replica(tmp_path / "m", clock, background=True) as master,
            master.caller() as caller,
            slave_of(master, tmp_path / "s", clock, background=True) as slave,
        ):
            for number in range(50):
                await caller.sent(b"%d " % number * 3000)
            await caught_up(slave, master)
            _, log = log_of(master)
            for place in (ha_address(master), ha_address(slave)):
                for start, size in ((0, 5), (1, 7), (60_000, 20_000), (len(log) - 3, 9), (0, 1)):
                    found = await asyncio.to_thread(fetch, place, start, size)
                    assert found == log[start : start + size]
                assert await asyncio.to_thread(fetch, place, len(log) + 1, 9) == b""

    asyncio.run(main())


def test_who_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(NoReplica, match=f"{address}: Connection refused"):
        fetch(address, 1, 1)


def test_who_speaks_another_protocol_is_named() -> None:
    def answer(listening: socket.socket) -> None:
        line, _ = listening.accept()
        with line:
            line.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")

    with socket.create_server(("127.0.0.1", 0)) as there:
        address = f"127.0.0.1:{there.getsockname()[1]}"
        threading.Thread(target=answer, args=(there,)).start()
        with pytest.raises(NoReplica, match=f"{address}: no frame of a log has "):
            fetch(address, 1, 1)


@pytest.mark.parametrize("of_slave", [False, True])
def test_a_log_is_as_it_was_after_a_repair_from_the_other_one(
    tmp_path: Path, of_slave: bool
) -> None:
    """Bits flip in the log of one of both, while it is stopped."""
    hurt, sound = (tmp_path / "s", tmp_path / "m") if of_slave else (tmp_path / "m", tmp_path / "s")

    def heal(address: str) -> None:
        for position in (700, 9_000, 40_000, 40_900):
            flip(hurt / "commitlog" / f"{0:020d}", position)
        source = Replica(address, lambda at, size: fetch(address, at, size))
        steps = plan(Layout(hurt), replica=source).steps
        assert [step.action for step in steps[:3]] == [Action.WRITE] * 3
        assert apply(Layout(hurt), SystemClock(), replica=source).verdict.sound

    async def main() -> None:
        clock = SystemClock()
        async with replica(tmp_path / "m", clock, background=True) as master:
            async with (
                master.caller() as caller,
                slave_of(master, tmp_path / "s", clock, background=True) as slave,
            ):
                for number in range(50):
                    await caller.sent(b"%d " % number * 300)
                await caught_up(slave, master)
            if of_slave:
                await asyncio.to_thread(heal, ha_address(master))
        if not of_slave:
            keys = {"ha_master_address": "127.0.0.1:1"}
            async with replica(
                tmp_path / "s", clock, role="SLAVE", store=keys, background=True
            ) as alone:
                await asyncio.to_thread(heal, ha_address(alone))
        assert log_bytes(hurt) == log_bytes(sound)
        found = diff(Layout(hurt), Layout(sound)).differences
        # What else a slave has of its master comes once a minute.
        assert [it for it in found if not (it.file or "").endswith(".json")] == []

    asyncio.run(main())


def log_bytes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
