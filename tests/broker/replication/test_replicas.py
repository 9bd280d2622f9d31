"""A master and its slaves as brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.errors import CannotListen, ConfigError
from firearrow.message.batch import encode_batch
from firearrow.replication.stream import FRAME_HEAD, report
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from tests.broker.fakes import HandClock
from tests.broker.replicated import caught_up, ha_address, ha_status, log_of, replica, slave_of
from tests.broker.serving import SUBSCRIPTION, SUSPEND, bodies, left_by_kill, seconds, send_fields, serving, until
from tests.loglines import events
from tests.net.listener import listening
from tests.store.stores import KINDS, KiB, small_config

FILE_BYTES = 64 * KiB
Main = Callable[[VirtualClock], Coroutine[Any, Any, None]]


def test_what_a_master_gets_its_slave_has_and_gives(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            master.caller() as to_master,
            slave_of(master, tmp_path / "s", clock, slave_read_enable=True) as slave,
            slave.caller() as to_slave,
        ):
            for number in range(200):
                await to_master.sent(b"%d " % number * 200, queue_id=number % 2)
            await caught_up(slave, master)
            assert bodies(slave) == bodies(master)
            ours, theirs = await ha_status(to_master), await ha_status(to_slave)
            end = master.broker.store.log_end_offset
            [connection] = ours.ha_connection_info
            assert ours.master
            assert (ours.master_commit_log_max_offset, ours.in_sync_slave_nums) == (end, 1)
            assert (connection.slave_ack_offset, connection.transfer_from_where) == (end, end)
            assert (connection.diff, connection.in_sync) == (0, True)
            client = theirs.ha_client_runtime_info
            assert not theirs.master
            assert (client.max_offset, client.master_addr) == (end, ha_address(master))
            assert 0 < client.last_read_timestamp <= clock.now_ms()

    loop.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slave_that_comes_late_begins_with_the_last_file_and_goes_on_after_stops(tmp_path: Path, kind: str) -> None:
    store = {"store_type": kind}

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, store=store) as master, master.caller() as caller:
            for number in range(100):
                await caller.sent(b"%d " % number * 500)
            for turn in range(3):
                async with slave_of(master, tmp_path / "s", clock, store=store) as slave:
                    await caught_up(slave, master)
                    start, _ = log_of(slave)
                    assert start in range(FILE_BYTES, 10 * FILE_BYTES, FILE_BYTES)
                    first = slave.broker.store.min_queue_offset("T", 0)
                    assert 0 < first < 100
                    assert bodies(slave) == bodies(master)[first:]
                for number in range(30):
                    await caller.sent(b"%d/%d " % (turn, number) * 500)

    loop.run(main)


def test_a_master_that_stops_gives_its_slave_the_last_message_and_finds_it_again(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock) as master, master.caller() as caller:
            port, ha_port = master.port, master.broker.settings.store.ha_listen_port
            slave_context = slave_of(master, tmp_path / "s", clock)
            slave = await slave_context.__aenter__()
            await caller.sent(b"a")
            await until(lambda: slave.broker.replicas.has_master)
            await caller.sent(b"last")
        assert bodies(slave) == [b"a", b"last"]
        await until(lambda: "replication" in slave.broker.troubles)
        keys = {"ha_listen_port": ha_port}
        async with replica(tmp_path / "m", clock, port=port, store=keys) as master, master.caller() as caller:
            await caller.sent(b"again")
            await caught_up(slave, master)
            assert bodies(slave) == [b"a", b"last", b"again"]
            assert "replication" not in slave.broker.troubles
            await slave_context.__aexit__(None, None, None)

    loop.run(main)


def test_a_slave_that_is_ahead_says_so_once_and_nothing_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            master.caller() as caller,
            replica(tmp_path / "other", clock) as other,
            other.caller() as to_other,
        ):
            for number in range(10):
                await to_other.sent(b"%d" % number)
            async with slave_of(other, tmp_path / "s", clock) as slave:
                await caught_up(slave, other)
            _, before = log_of(other)
            await caller.sent(b"mine")
            caplog.clear()
            async with slave_of(master, tmp_path / "s", clock) as slave:
                await asyncio.sleep(35)
                assert log_of(slave)[1] == before
                assert bodies(slave) == [b"%d" % number for number in range(10)]
                assert "replication" in slave.broker.troubles
                said = events(caplog, logging.ERROR)
                assert said == ["slave does not follow its master: it tries again"]
                assert "the master's log is another one between 1 and" in caplog.text

    loop.run(main)


def test_who_is_silent_is_given_up_and_heartbeats_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            master.caller() as caller,
            slave_of(master, tmp_path / "s", clock) as slave,
        ):
            await caller.sent(b"a")
            await caught_up(slave, master)
            caplog.clear()
            running = asyncio.get_running_loop()
            port = master.broker.settings.store.ha_listen_port
            closed = asyncio.Event()

            class Silent(asyncio.Protocol):
                def connection_lost(self, error: Exception | None) -> None:
                    closed.set()

            await running.create_connection(Silent, "127.0.0.1", port)
            began = running.time()
            await closed.wait()
            assert 20 <= running.time() - began < 23
            await asyncio.sleep(120)
            assert slave.broker.replicas.has_master
            assert events(caplog, logging.ERROR) == []

    loop.run(main)


def test_a_slave_takes_nothing_from_clients(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            slave_of(master, tmp_path / "s", clock) as slave,
            slave.caller() as caller,
        ):
            answer = await caller.send(b"x")
            assert (answer.code, (answer.remark or "").startswith("[REJECTREQUEST]")) == (2, True)
            answer = await caller.pull()
            assert (answer.code, (answer.remark or "").startswith("[REJECTREQUEST]")) == (2, True)
            answer = await caller.call(215, {"topic": "T"})
            assert answer.code == 1
            assert "Can't modify topic or subscription group from slave broker" in str(answer.remark)
            answer = await caller.call(37, {
                "producerGroup": "p", "tranStateTableOffset": 0, "commitLogOffset": 0,
                "commitOrRollback": 8, "fromTransactionCheck": False,
            })  # fmt: skip
            assert answer.code == 11
            answer = await caller.call(222, {
                "topic": "T", "group": "g", "timestamp": -1, "isForce": True
            })  # fmt: skip
            assert (answer.code, answer.remark) == (1, "Can not reset offset in slave broker")
            assert slave.broker.store.log_end_offset == 0

    loop.run(main)


@pytest.mark.parametrize(
    ("role", "number", "says"), [("SLAVE", 0, "needs a brokerId above 0"), ("SYNC_MASTER", 2, "needs brokerRole=SLAVE")]
)
def test_a_role_that_does_not_fit_its_number(tmp_path: Path, role: str, number: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Broker(BrokerConfig(broker_id=number), small_config(tmp_path, broker_role=role), HandClock())


def test_nobody_acts_for_a_master_that_controllers_choose(tmp_path: Path) -> None:
    both = BrokerConfig(enable_controller_mode=True, controller_addr="127.0.0.1:9878", enable_slave_acting_master=True)
    with pytest.raises(ConfigError, match="no slave acts for one"):
        Broker(both, small_config(tmp_path), HandClock())


def test_a_port_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks for slaves gets the port or no broker; others can do without."""

    async def main(clock: VirtualClock) -> None:
        running = asyncio.get_running_loop()
        await running.create_server(asyncio.Protocol, "127.0.0.1", 15001)
        async with replica(tmp_path / "a", clock, port=15000) as master, master.caller() as caller:
            await caller.sent(b"x")
            assert "replication" in master.broker.troubles
        assert "slaves can't connect" in caplog.text
        with pytest.raises(CannotListen):
            async with replica(tmp_path / "b", clock, store={"ha_listen_port": 15001}):
                pass
        with pytest.raises(CannotListen):
            async with replica(tmp_path / "c", clock, role="SYNC_MASTER", port=15000):
                pass
        async with replica(tmp_path / "b", clock, port=16000) as master:
            assert master.broker.settings.store.ha_listen_port == 16001

    loop.run(main)


@pytest.mark.parametrize("more", [0, 200])
def test_a_slave_of_a_master_that_lost_the_end_of_its_log_follows_no_other(
    tmp_path: Path, more: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Be the log of the master shorter, or longer again by other messages."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock) as master, master.caller() as caller:
            for number in range(100):
                await caller.sent(b"%d " % number * 500)
            async with slave_of(master, tmp_path / "s", clock) as slave:
                await caught_up(slave, master)
                left_by_kill(tmp_path / "m", tmp_path / "old")
                for number in range(20):
                    await caller.sent(b"lost %d " % number * 100)
                await caught_up(slave, master)
        async with replica(tmp_path / "old", clock) as master, master.caller() as caller:
            for number in range(more):
                await caller.sent(b"other %d " % number * 100)
            async with slave_of(master, tmp_path / "s", clock) as slave:
                before = log_of(slave)
                await asyncio.sleep(30)
                assert log_of(slave) == before
                assert "replication" in slave.broker.troubles
                said = caplog.text
                assert ("the master's log is another one between" in said) == (more > 0)
                assert ("the log goes on to" in said) == (more == 0)

    loop.run(main)


def test_a_slave_reports_no_more_than_where_it_began_until_all_is_compared(tmp_path: Path) -> None:
    """The beginning may be the same in two logs that are not."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "s", clock) as before, before.caller() as caller:
            await caller.sent(b"a" * 100)
            await caller.sent(b"b" * 100)
            start, log = log_of(before)
        assert start == 0
        said: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said.append(int.from_bytes(await reader.readexactly(8)))
            [begin] = said
            frame = FRAME_HEAD.pack(begin, len(log) - begin) + log[begin:]
            for at in range(0, len(frame), 40):
                writer.write(frame[at : at + 40])
                await asyncio.sleep(2)  # it reports each 5 s meanwhile
            while data := await reader.read(8):
                said.append(int.from_bytes(data))

        async with listening(serve) as port:
            keys = {"ha_master_address": f"127.0.0.1:{port}", "ha_send_heartbeat_interval": 5000}
            async with replica(tmp_path / "s", clock, role="SLAVE", store=keys):
                await asyncio.sleep(35)
        assert said[-1] == len(log)
        assert said.count(1) > 3
        assert {*said} == {1, len(log)}

    loop.run(main)


# --- SYNC_MASTER ---

SYNC = {"in_sync_replicas": 2}


def test_a_sync_master_answers_what_its_slave_has(tmp_path: Path) -> None:
    """So the slave has all that was answered, at any moment."""

    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC) as master,
            slave_of(master, tmp_path / "s", clock) as slave,
        ):

            async def send(number: int) -> None:
                async with master.caller() as caller:
                    for count in range(20):
                        fields = await caller.sent(b"%d/%d" % (number, count))
                        offset = int(fields["msgId"][16:], 16)
                        assert slave.broker.store.log_end_offset > offset

            await asyncio.gather(*map(send, range(40)))
            await caught_up(slave, master)
            async with master.caller() as caller:
                answer = await caller.call(320, send_fields(), encode_batch([(0, b"a", b""), (0, b"b", b"")]))
                assert answer.code == 0
                assert slave.broker.store.log_end_offset == master.broker.store.log_end_offset

    loop.run(main)


def test_an_empty_slave_confirms_nothing_that_it_has_not_got(tmp_path: Path) -> None:
    """It begins with the last file: who waits with a message in an earlier one is told so."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC) as master, AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(master.caller()) for _ in range(40)]
            sends = [
                asyncio.ensure_future(caller.send(b"%d " % number * 2000)) for number, caller in enumerate(callers)
            ]
            await until(lambda: master.broker.store.log_end_offset > 2 * FILE_BYTES)
            async with slave_of(master, tmp_path / "s", clock) as slave:
                answers = await asyncio.gather(*sends)
                await caught_up(slave, master)
                start, _ = log_of(slave)
                assert start >= FILE_BYTES
                confirmed = [int(it.ext["msgId"][16:], 16) for it in answers if it.code == 0]
                assert all(offset >= start for offset in confirmed)
                assert {it.code for it in answers} == {0, 12}
                assert (await callers[0].send(b"next")).code == 0

    loop.run(main)


def test_a_log_that_begins_with_a_later_file_confirms_nothing_before_it(tmp_path: Path) -> None:
    """As of a slave that has lost all that it had, but for where the next message goes."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC) as master, AsyncExitStack() as stack:
            store, running = master.broker.store, asyncio.get_running_loop()
            port = master.broker.settings.store.ha_listen_port
            callers = [await stack.enter_async_context(master.caller()) for _ in range(40)]
            sends = [
                asyncio.ensure_future(caller.send(b"%d " % number * 2000)) for number, caller in enumerate(callers)
            ]
            await until(lambda: store.log_end_offset > 2 * FILE_BYTES)
            slave, _ = await running.create_connection(asyncio.Protocol, "127.0.0.1", port)
            slave.write(report(FILE_BYTES))
            await asyncio.sleep(0.1)
            slave.write(report(store.log_end_offset))
            answers = await asyncio.gather(*sends)
            confirmed = [int(it.ext["msgId"][16:], 16) for it in answers if it.code == 0]
            assert confirmed
            assert all(offset >= FILE_BYTES for offset in confirmed)
            assert {it.code for it in answers} == {0, 12}

    loop.run(main)


def test_what_a_slave_says_first_confirms_nothing(tmp_path: Path) -> None:
    """However often it says so: it may be another log that is as long."""

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=SYNC) as master, master.caller() as caller:
            store, running = master.broker.store, asyncio.get_running_loop()
            port = master.broker.settings.store.ha_listen_port
            sending = asyncio.ensure_future(caller.send(b"a"))
            await until(lambda: store.log_end_offset > 0)
            slave, _ = await running.create_connection(asyncio.Protocol, "127.0.0.1", port)
            for _ in range(3):
                slave.write(report(store.log_end_offset))
                await asyncio.sleep(0.1)
            assert (await sending).code == 12
            before = store.log_end_offset
            sending = asyncio.ensure_future(caller.send(b"b"))
            await until(lambda: store.log_end_offset > before)
            await asyncio.sleep(0.1)
            slave.write(report(store.log_end_offset))
            assert (await sending).code == 0

    loop.run(main)


def test_connections_of_one_slave_count_as_one(tmp_path: Path) -> None:
    """The master hears of the end of a connection later than of the next one."""

    async def main(clock: VirtualClock) -> None:
        keys = {"in_sync_replicas": 3}
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=keys) as master, master.caller() as caller:
            running = asyncio.get_running_loop()
            port = master.broker.settings.store.ha_listen_port
            first, _ = await running.create_connection(asyncio.Protocol, "127.0.0.1", port)
            first.write(report(0))
            sending = asyncio.ensure_future(caller.send(b"a"))
            await until(lambda: master.broker.store.log_end_offset > 0)
            first.write(report(master.broker.store.log_end_offset))
            await asyncio.sleep(0.1)
            second, _ = await running.create_connection(asyncio.Protocol, "127.0.0.1", port)
            second.write(report(master.broker.store.log_end_offset))
            assert (await sending).code == 12
            sending = asyncio.ensure_future(caller.send(b"b"))
            await asyncio.sleep(0.1)
            for connection in (first, second):
                connection.write(report(master.broker.store.log_end_offset))
            assert (await sending).code == 0, "two that both report are two"

    loop.run(main)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_without_a_slave_the_sender_is_told_and_the_message_stays(tmp_path: Path, flush: str, binary: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        keys = {**SYNC, "flush_disk_type": flush}
        async with (
            replica(tmp_path / "m", clock, role="SYNC_MASTER", store=keys) as master,
            master.caller(binary=binary) as caller,
        ):
            began = seconds()
            answer = await caller.send(b"a")
            assert (answer.code, answer.ext["queueOffset"]) == (12, "0")
            assert 3 <= seconds() - began < 3.2
            waits = "TAGS\x01A\x02UNIQ_KEY\x01U1\x02WAIT\x01false\x02"
            await caller.sent(b"b", i=waits)
            assert seconds() - began < 3.2
            assert bodies(master) == [b"a", b"b"]
            async with slave_of(master, tmp_path / "s", clock) as slave:
                await caller.sent(b"c")
                assert bodies(slave) == [b"a", b"b", b"c"]

    loop.run(main)


def test_a_sync_master_that_wants_no_copies_waits_for_none(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER") as master, master.caller() as caller:
            await caller.sent(b"a")
            assert seconds() < 1

    loop.run(main)


def test_as_many_slaves_as_are_wanted_must_have_a_message(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock, role="SYNC_MASTER", store={"in_sync_replicas": 3}) as master,
            master.caller() as caller,
            slave_of(master, tmp_path / "s", clock) as first,
        ):
            assert (await caller.send(b"a")).code == 12
            async with slave_of(master, tmp_path / "t", clock) as second:
                await caller.sent(b"b")
                assert bodies(first) == bodies(second) == [b"a", b"b"]

    loop.run(main)


# --- consumers ---


def test_consumers_of_a_slave_are_sent_to_the_master_while_that_is_there(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(replica(tmp_path / "m", clock, slave_read_enable=True))
            to_master = await stack.enter_async_context(master.caller())
            async with (
                slave_of(master, tmp_path / "s", clock, slave_read_enable=True) as slave,
                slave.caller() as caller,
            ):
                slave.broker.topics.create("T", 1)
                await to_master.sent(b"a")
                await caught_up(slave, master)
                found = await caller.pull(0)
                assert (found.code, found.ext["suggestWhichBrokerId"]) == (0, "0")
                nothing = await caller.pull(1, sysFlag=SUBSCRIPTION | SUSPEND)
                assert (nothing.code, nothing.ext["suggestWhichBrokerId"]) == (20, "0")
                moved = await caller.pull(7)
                assert (moved.code, moved.ext["nextBeginOffset"]) == (20, "7")
                await stack.aclose()
                await until(lambda: not slave.broker.replicas.has_master)
                waits = {"sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": 5000}
                began = seconds()
                assert (await caller.pull(1, **waits)).code == 19
                assert seconds() - began >= 5

    loop.run(main)


def test_who_is_far_behind_is_sent_to_a_slave(tmp_path: Path) -> None:
    keys = {"access_message_in_memory_max_ratio": 0}

    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path, clock, slave_read_enable=True, store=keys) as master,
            master.caller() as caller,
            master.caller(binary=True) as other,
        ):
            for number in range(3):
                await caller.sent(b"%d" % number)
            for each in (caller, other):
                found = await each.pull(0)
                assert (found.code, found.ext["suggestWhichBrokerId"]) == (0, "1")

    loop.run(main)


def test_a_slave_is_sent_no_more_in_a_second_than_it_may_be(tmp_path: Path) -> None:
    keys = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 50_000}

    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock, store=keys) as master,
            master.caller() as caller,
            slave_of(master, tmp_path / "s", clock) as slave,
        ):
            await asyncio.sleep(6)  # a heartbeat has come
            assert slave.broker.replicas.has_master
            began = seconds()
            for _ in range(20):
                await caller.sent(bytes(10_000))
            await caught_up(slave, master)
            assert 3 <= seconds() - began < 6

    loop.run(main)


def test_that_slaves_are_left_alone_is_said(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(mode: str, *, is_allowed: bool) -> None:
        keys: dict[str, Any] = {
            "tls_server_mode": mode,
            "tls_server_cert_path": str(certificate),
            "ha_allow_unauthenticated": is_allowed,
        }
        async with serving(tmp_path / f"{mode}{is_allowed}", **keys):
            pass

    for mode, is_allowed in (("permissive", True), ("enforcing", False), ("enforcing", True)):
        caplog.clear()
        asyncio.run(start(mode, is_allowed=is_allowed))
        said = [it for it in caplog.messages if it.startswith("slaves prove nothing")]
        assert len(said) == (mode == "enforcing" and is_allowed)
