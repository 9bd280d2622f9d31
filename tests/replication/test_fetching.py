"""Bytes of a log are had from a broker that sends it to slaves, be it a master or a slave."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.net.address import host_and_port
from firearrow.net.listening import listen, port_of
from firearrow.replication import fetching
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.fetching import History, NoReplica, fetch
from firearrow.replication.master import Master
from firearrow.replication.switching import MASTER_HANDSHAKE, READER, Greeting, SwitchSending, report
from firearrow.replication.switchmaster import InSync, SwitchMaster
from firearrow.store import MessageStore
from firearrow.store.offline import Action, Layout, Replica, apply, diff, plan
from tests.broker.replicated import caught_up, ha_address, log_of, replica, slave_of
from tests.store.stores import KiB, append, opened


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


MASTER_EPOCHS = [Epoch(1, 0), Epoch(2, 900), Epoch(4, 3000)]
SLAVE_EPOCHS = [Epoch(1, 0), Epoch(2, 900), Epoch(3, 2500)]


@asynccontextmanager
async def controlled(root: Path, entries: list[Epoch], *, is_master: bool) -> AsyncIterator[tuple[str, MessageStore]]:
    """What sends the log of a broker in controller mode, and where."""
    loop, clock, epochs = asyncio.get_running_loop(), SystemClock(), Epochs(entries)
    with opened(root) as store:
        for number in range(50):
            append(store, b"%d " % number * 30)
        server = await listen(lambda: sender.connection(), "127.0.0.1", 0)
        for_readers = partial(SwitchSending, KiB, epochs, lambda: store.log_end_offset, for_readers=True)
        sender = (
            SwitchMaster(store, store.config, clock, loop, server, epochs, InSync(1, (), 1))
            if is_master
            else Master(store, store.config, clock, loop, server, for_readers)
        )
        await sender.start()
        try:
            yield f"127.0.0.1:{port_of(server)}", store
        finally:
            await sender.stop()


@pytest.mark.parametrize("is_master", [True, False])
def test_brokers_in_controller_mode_give_what_both_logs_have(tmp_path: Path, is_master: bool) -> None:
    async def main() -> None:
        async with controlled(tmp_path, MASTER_EPOCHS, is_master=is_master) as (address, store):
            log = store.log_bytes(0, store.log_end_offset)
            assert len(log) > 5000

            async def fetched(entries: list[Epoch], start: int, size: int) -> bytes:
                history = History(Epochs(entries), len(log) + 100)
                return await asyncio.to_thread(fetch, address, start, size, history)

            for start, size in ((0, 5), (890, 20), (2990, 20), (len(log) - 3, 9)):
                assert await fetched(MASTER_EPOCHS, start, size) == log[start : start + size]
            assert await fetched(SLAVE_EPOCHS, 2400, 1000) == log[2400:2500]
            for entries, end in ((SLAVE_EPOCHS, 2500), ([Epoch(7, 0)], 0)):
                with pytest.raises(NoReplica, match=f"and this one are the same up to {end} only"):
                    await fetched(entries, 2500, 10)
            assert await asyncio.to_thread(fetch, address, 1, 5) == b""  # asked as another broker

    asyncio.run(main())


def test_a_slave_in_controller_mode_is_followed_by_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        for entries, said, why in (
            (MASTER_EPOCHS, Greeting(3), "broker 3 wants to follow a broker that is slave"),
            ([], READER, "the log has no epoch yet"),
        ):
            async with controlled(tmp_path, entries, is_master=False) as (address, _):
                reader, writer = await asyncio.open_connection(*host_and_port(address))
                writer.write(said.encode() + report(1))
                assert len(await reader.read()) in {0, MASTER_HANDSHAKE.size}
                writer.close()
            assert why in str(vars(caplog.records[-1])["error"])

    asyncio.run(main())


def test_a_broker_with_a_fixed_role_is_asked_as_such(tmp_path: Path) -> None:
    """Whose store has epochs may have left the controller mode."""

    async def main() -> None:
        async with replica(tmp_path, SystemClock(), background=True) as master, master.caller() as caller:
            await caller.sent(b"one")
            _, log = log_of(master)
            history = History(Epochs(MASTER_EPOCHS), 5000)
            found = await asyncio.to_thread(fetch, ha_address(master), 1, 50, history)
            assert found == log[1:51]

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
def test_a_log_is_as_it_was_after_a_repair_from_the_other_one(tmp_path: Path, of_slave: bool) -> None:
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
            async with master.caller() as caller, slave_of(master, tmp_path / "s", clock, background=True) as slave:
                for number in range(50):
                    await caller.sent(b"%d " % number * 300)
                await caught_up(slave, master)
            if of_slave:
                await asyncio.to_thread(heal, ha_address(master))
        if not of_slave:
            keys = {"ha_master_address": "127.0.0.1:1"}
            async with replica(tmp_path / "s", clock, role="SLAVE", store=keys, background=True) as alone:
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
