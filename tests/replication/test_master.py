"""What a master sends in the turns of its event loop."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from firearrow.replication.master import SILENT_SECONDS, SLAVES_MAX, Master, SlaveConnection
from firearrow.replication.stream import FRAME_HEAD, report
from firearrow.store import MessageStore
from tests.broker.fakes import HandClock, HandScheduler
from tests.store.stores import KiB, make_store

TURN_SECONDS = 0.004
BATCHES_BYTES = 232 * KiB  # of the log: what batches of 32 make in a turn, from 32 in flight
START = 1  # a slave that begins there has all that is before


class Socket(asyncio.Transport):
    """Counts the bytes of the log that it is given."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__()
        self.sent_bytes = 0
        self.host = host
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.host, 4711)

    def abort(self) -> None:
        self.is_aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        self.sent_bytes += sum(len(data) for data in list_of_data if len(data) != FRAME_HEAD.size)


def led(root: Path, scheduler: HandScheduler) -> tuple[MessageStore, SlaveConnection, Socket]:
    """A log of a byte, and the connection of a slave that has this."""
    store = make_store(root, broker_role="SLAVE", mapped_file_size_commit_log=16 * 1024 * KiB)
    store.open(background=False)
    store.put_raw(0, b"x")
    loop = cast(asyncio.AbstractEventLoop, scheduler)
    master = Master(store, store.config, scheduler.clock, loop, None)
    connection, socket = master.connection(), Socket()
    connection.connection_made(socket)
    connection.data_received(report(START))
    return store, connection, socket


def test_a_slave_that_was_held_up_catches_up_while_batches_come(tmp_path: Path) -> None:
    scheduler = HandScheduler(HandClock())
    store, connection, socket = led(tmp_path, scheduler)

    def turn() -> int:
        """A turn in which batches come; gives how much the slave was not sent at its end."""
        scheduler.turn()
        store.put_raw(store.log_end_offset, bytes(BATCHES_BYTES))
        scheduler.clock.seconds += TURN_SECONDS
        return store.log_end_offset - START - socket.sent_bytes

    assert max(turn() for _ in range(10)) < 4 * BATCHES_BYTES
    connection.pause_writing()
    assert max(turn() for _ in range(8)) > 8 * BATCHES_BYTES
    connection.resume_writing()
    assert min(turn() for _ in range(12)) < 2 * BATCHES_BYTES
    store.close()


@pytest.mark.parametrize(("bytes_a_ms", "looks"), [(4 * KiB, 20), (64 * KiB, 25), (128 * KiB, 50), (512 * KiB, 100)])
def test_the_log_is_looked_at_more_often_the_faster_it_grows(tmp_path: Path, bytes_a_ms: int, looks: int) -> None:
    """Every 5 ms and every 256 KiB, but at most once a millisecond."""
    scheduler = HandScheduler(HandClock())
    store, _, socket = led(tmp_path, scheduler)

    def sent() -> int:
        """How often something was sent in 100 ms."""
        times = 0
        for _ in range(100):
            before = socket.sent_bytes
            store.put_raw(store.log_end_offset, bytes(bytes_a_ms))
            scheduler.clock.seconds += 0.001_001  # never before an alarm, by what is rounded
            scheduler.turn()  # rings
            scheduler.turn()  # sends
            times += socket.sent_bytes > before
        return times

    sent()
    assert abs(sent() - looks) <= 2
    store.close()


def came(master: Master, host: str) -> tuple[SlaveConnection, Socket]:
    """Give a connection that is new and has said nothing."""
    connection, socket = master.connection(), Socket(host)
    connection.connection_made(socket)
    return connection, socket


def test_who_says_nothing_keeps_no_slave_out(tmp_path: Path) -> None:
    """Of those, the host with most makes room; who follows stays, and is refused nothing."""
    scheduler = HandScheduler(HandClock())
    store, follower, _ = led(tmp_path, scheduler)
    master = follower._master
    quiet, _ = came(master, "10.0.0.2")  # a slave of RocketMQ says nothing for 5 s
    strangers = [came(master, "10.6.6.6") for _ in range(3 * SLAVES_MAX)]
    assert len(master.slaves) == SLAVES_MAX
    assert follower in master.slaves
    assert quiet in master.slaves
    assert [socket.is_aborted for _, socket in strangers[-4:]] == [False] * 4
    slave, socket = came(master, "10.0.0.3")
    slave.data_received(report(START))
    assert slave in master.following
    scheduler.run(1)
    scheduler.clock.seconds += SILENT_SECONDS
    for connection in (follower, slave):
        connection.data_received(report(START))
    scheduler.run(2)
    assert master.slaves == [follower, slave]
    assert not socket.is_aborted
    store.close()


def test_slaves_that_follow_have_a_number(tmp_path: Path) -> None:
    store, follower, _ = led(tmp_path, HandScheduler(HandClock()))
    master = follower._master
    for number in range(1, SLAVES_MAX):
        slave, _ = came(master, f"10.0.1.{number}")
        slave.data_received(report(START))
    _, socket = came(master, "10.0.2.1")
    assert socket.is_aborted
    assert len(master.following) == SLAVES_MAX
    store.close()
