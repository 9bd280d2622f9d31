"""The master's side: it sends the log to every slave that connects.

A slave gets the missing bytes from the files of the log, in the same way whether it is far behind or not. Dispatch
calls ``wake`` for new messages, because the first message after an idle time wakes dispatch; sends that wait for slaves
call it too. While messages arrive that are not dispatched, the log is checked again every few milliseconds. So an
append does nothing for slaves, and no message costs a task, a future or a call. A slow slave gets no more than its
socket takes, and the master serves the others meanwhile.

RocketMQ has two threads for each slave; one of them looks every 100 ms or when a message was put. Source: RocketMQ's
``DefaultHAService``, ``DefaultHAConnection``, ``GroupTransferService``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from firearrow.clock import Clock
from firearrow.errors import RemoteProtocolError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.net.address import remote_of
from firearrow.replication.stream import LogSender
from firearrow.services import Alarm, Service
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.admin_bodies import HaConnection, HaStatus

log: Final = Log(__name__)

SLAVES_MAX: Final = 64
"""Limit of slaves' connections; each may hold `UNSENT_BYTES_MAX` unsent. Java: no limit."""
SILENT_SECONDS: Final = 20.0
"""A connection without a report in this time is no slave: RocketMQ's slaves report within 5 s."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
TURN_BYTES: Final = 512 * 1024
"""Limit for one slave in one turn of the event loop: some 100 µs.

It is twice the bytes that batches append in a turn. Otherwise a slave that was held up would not catch up before they
end.
"""
LOOK_SECONDS: Final = 0.005
LOOK_SECONDS_LEAST: Final = 0.001
LOOK_BYTES: Final = 256 * 1024
"""Aim for the bytes that arrive between two looks at a log that grows fast.

Single sends at full rate bring less in 5 ms, so they pay nothing. The median lag of batches fell from 1.0 to 0.4 MB.
"""
TICK_SECONDS: Final = 1.0
STOP_SECONDS: Final = 3.0
"""Time that a stop waits for slaves to receive the last messages."""


class Master(Service):
    """Sender of the log to slaves; ``config`` has the intervals and limits.

    ``server``, which `listen` returns, must make its connections by `connection`; without a server no slave can
    connect. ``sending`` makes the state of a new connection. ``joined`` fires when a slave begins to follow, ``acked``
    when a slave has more of the log than before, ``refused`` when a slave has another log. ``unfit_hosts`` are the
    hosts of such slaves.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        server: asyncio.Server | None,
        sending: Callable[[], LogSender] | None = None,
    ) -> None:
        super().__init__("replication")
        self.sending: Callable[[], LogSender] = sending or partial(LogSender, config.mapped_file_size_commit_log)
        self.store = store
        self.config = config
        self.clock = clock
        self.acked: Event[None] = Event()
        self.joined: Event[None] = Event()
        self.refused: Event[None] = Event()
        self.unfit_hosts: set[str] = set()
        self.slaves: list[SlaveConnection] = []
        self._loop = loop
        self._server = server
        self._is_planned = False
        self._look = Alarm(loop, self.wake)
        self._look_seconds = LOOK_SECONDS
        self._looked_to = 0  # end of the log at the last look
        self._tick = Alarm(loop, self._beat)
        self._tick_seconds = min(TICK_SECONDS, config.ha_send_heartbeat_interval / 1000)
        self._said: set[str] = set()
        self.stop_seconds = STOP_SECONDS
        self._hosts: dict[str, _Host] = {}
        self._turns = 0  # count of connections since the start

    def connection(self) -> SlaveConnection:
        """Make the protocol of a new connection."""
        return SlaveConnection(self)

    @property
    def trouble(self) -> str | None:
        """The reason why no slave can connect."""
        return None if self._server is not None else "its port is taken: no slave can connect"

    async def start(self) -> None:
        """Accept slaves."""
        if self._server is not None:
            await self._server.start_serving()

    async def stop(self) -> None:
        """Wait until slaves have the last messages, a few seconds at most, and close their connections."""
        end = self._loop.time() + self.stop_seconds
        while self._loop.time() < end and any(it.is_behind for it in self.slaves):
            self.wake()
            await asyncio.sleep(LOOK_SECONDS)
        self._look.cancel()
        self._tick.cancel()
        if self._server is not None:
            self._server.close()
        for slave in tuple(self.slaves):
            slave.close()
        assert not self.slaves, "a closed connection has left"
        self._server = None

    # --- sending ---

    def wake(self) -> None:
        """Send new bytes soon."""
        if self.slaves and not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        assert self._is_planned, "one turn at a time is planned"
        self._is_planned = False
        more = False
        for slave in tuple(self.slaves):
            more = slave.send() or more
        if more:
            self.wake()
        elif self.store.dispatching.has_undispatched:
            self._look_soon()

    def _look_soon(self) -> None:
        end = self.store.log_end_offset
        seconds = self._look_seconds * LOOK_BYTES / max(end - self._looked_to, 1)
        self._looked_to = end
        self._look_seconds = min(max(seconds, LOOK_SECONDS_LEAST), LOOK_SECONDS)
        self._look.set_earlier(self._look_seconds)

    def send_in(self, seconds: float) -> None:
        """Send bytes later that exceed a slave's present rate limit."""
        self._look.set_earlier(seconds)

    def _beat(self) -> None:
        for slave in tuple(self.slaves):
            slave.beat()
        if self.slaves:
            self._tick.set(self._tick_seconds)

    # --- slaves that connect and leave ---

    def came(self, slave: SlaveConnection) -> None:
        """Add a slave that has connected."""
        assert slave not in self.slaves
        assert len(self.slaves) < SLAVES_MAX, "there was room"
        self.slaves.append(slave)
        self._turns += 1
        if len(self._hosts) >= SLAVES_MAX:
            there = {it.host for it in self.slaves}
            self._hosts = {host: known for host, known in self._hosts.items() if host in there}
        self._hosts.setdefault(slave.host, _Host()).newest = self._turns
        self.store.dispatching.woken = self.wake
        if not self._tick.is_set:
            self._tick.set(self._tick_seconds)

    def makes_room(self) -> bool:
        """Close one silent connection if there are too many; return False if all have reported.

        It is the oldest silent one of the host with the most of them. So a host that connects again and again costs no
        slave its connection.
        """
        if len(self.slaves) < SLAVES_MAX:
            return True
        silent = [it for it in self.slaves if it.sending.next_offset is None]
        if not silent:
            return False
        by_host = Counter(it.host for it in silent)
        most = max(by_host.values())
        next(it for it in silent if by_host[it.host] == most).close()
        return True

    def went(self, slave: SlaveConnection) -> None:
        """Remove a slave that has left."""
        if slave in self.slaves:
            self.slaves.remove(slave)
        if not self.slaves:  # then a message costs nothing more
            self.store.dispatching.woken = None

    def is_news(self, what: str, address: str) -> bool:
        """Tell whether this fault of a slave was not logged before for its host."""
        key = f"{what} {address.rpartition(':')[0]}"
        if key in self._said or len(self._said) >= SLAVES_MAX:
            return False
        self._said.add(key)
        return True

    def refuse(self, slave: SlaveConnection) -> None:
        """Note that a slave has another log."""
        if len(self.unfit_hosts) < SLAVES_MAX:
            self.unfit_hosts.add(slave.address.rpartition(":")[0])
        self.refused(None)

    def began(self, slave: SlaveConnection) -> None:
        """Note a slave's first report, which confirms nothing, however often it is repeated.

        A slave that compares knows only later, when it has received all of that, whether its bytes are of this log.
        """
        host = self._hosts[slave.host]
        host.begins_at = max(host.begins_at, slave.sending.began_at)
        self.joined(None)

    def reported(self, slave: SlaveConnection) -> None:
        """Note a slave's report of bytes that it was sent."""
        slave.reported_in = self._turns
        self.acked(None)

    # --- slaves' progress ---

    def copied_offset(self, count: int, first_offset: int) -> int:
        """Return the physical offset that ``count`` slaves have reached; 0 if there are fewer slaves.

        The caller waits for the bytes from ``first_offset`` on. Java: GroupTransferService counts connections, also
        several of one slave, and those that began behind the bytes in question.
        """
        assert count >= 0
        if not count:
            return self.store.log_end_offset
        acked = [it.sending.acked for it in self.slaves if self._counts(it, first_offset)]
        acked.sort(reverse=True)
        return max(acked[count - 1], 0) if len(acked) >= count else 0

    def _counts(self, slave: SlaveConnection, first_offset: int) -> bool:
        """Tell whether a slave is connected, has received bytes, and was not empty when the message was put.

        A newer connection of the same host may be the same slave's.
        """
        host, sending = self._hosts[slave.host], slave.sending
        has_got = sending.acked > sending.said_first
        return has_got and slave.reported_in >= host.newest and first_offset > host.begins_at

    @property
    def following(self) -> list[SlaveConnection]:
        """The slaves that have reported their offset."""
        return [it for it in self.slaves if it.sending.acked >= 0]

    def is_in_sync(self, slave: SlaveConnection) -> bool:
        """Tell whether a slave has nearly all of the log."""
        gap = self.store.log_end_offset - slave.sending.acked
        return gap < self.config.ha_max_gap_not_in_sync

    def status(self) -> HaStatus:
        """Return the answer to request 907."""
        end = self.store.log_end_offset
        known = self.following
        found = [
            HaConnection(
                it.address,
                it.sending.acked,
                end - it.sending.acked,
                self.is_in_sync(it),
                it.bytes_a_second,
                it.sending.next_offset or 0,
            )
            for it in known
        ]
        return HaStatus(True, end, sum(it.in_sync for it in found), found)


@dataclass
class _Host:
    """State of one host: the number of its newest connection, and the latest start of its slaves' logs."""

    newest: int = 0
    begins_at: int = 0


class SlaveConnection(asyncio.Protocol):
    """The connection of one slave."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._store = master.store
        self._config = master.config
        self._monotonic = master.clock.monotonic
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._heard_at = self._wrote_at = self._monotonic()
        self._window_at, self._window_bytes = self._heard_at, 0
        self._bytes = 0
        self._bytes_at = self._heard_at
        self.bytes_a_second: int = 0
        self.address: str = ""
        self.host: str = ""
        self.reported_in = 0  # count of the master's connections at that time
        self.sending: LogSender = master.sending()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the slave, or refuse it if there are too many."""
        self._transport = connected = cast(asyncio.Transport, transport)
        self.address, _ = remote_of(connected.get_extra_info("peername"))
        self.host = self.address.rpartition(":")[0]
        if not self._master.makes_room():
            if self._master.is_news("many", self.address):
                log.error("slave is refused: there are too many", extra={"address": self.address})
            connected.abort()
            return
        connected.set_write_buffer_limits(UNSENT_BYTES_MAX)
        self._master.came(self)

    def data_received(self, data: bytes) -> None:
        """Take the slave's report of the end of its log."""
        self._heard_at = self._monotonic()
        sending, is_first = self.sending, self.sending.next_offset is None
        try:
            reports = sending.receive(data, self._store.log_end_offset, self._store.log_start_offset)
        except RemoteProtocolError as error:
            if self._master.is_news("other", self.address):
                log.error(
                    "slave does not fit: its log is another one, or it is ahead",
                    extra={"address": self.address, "error": error},
                )
            self.close()
            self._master.refuse(self)
            return
        reply = sending.take_reply()
        if reply and self._transport is not None:
            self._transport.write(reply)
        if not reports:
            return
        assert sending.next_offset is not None, "a report has the next offset"
        if is_first:
            self._master.unfit_hosts.discard(self.address.rpartition(":")[0])
            log.info("slave follows", extra={"address": self.address, "physical_offset": sending.next_offset})
            self._master.began(self)
            self._master.wake()
            return
        self._master.reported(self)

    def pause_writing(self) -> None:
        """Pause, because the slave does not read any faster."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on, because the slave has read its bytes."""
        self._is_paused = False
        self._master.wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the slave has left."""
        if self in self._master.slaves:
            log.warning("slave is gone", extra={"address": self.address, "error": error})
        self._transport = None
        self._master.went(self)

    # --- called by the master ---

    @property
    def is_behind(self) -> bool:
        """Tell whether the slave follows and lacks bytes that this log has."""
        at = self.sending.next_offset
        lacks = self.sending.acked < self._store.log_end_offset
        return at is not None and at >= self._store.log_start_offset and lacks

    def send(self) -> bool:
        """Send the bytes for this turn; return True if there are more for the next."""
        sending, transport = self.sending, self._transport
        if sending.next_offset is None or self._is_paused or transport is None:
            return False
        room = wanted = min(self._allowance(), TURN_BYTES)
        parts: list[bytes] = []
        while room > 0:
            most = min(self._config.ha_transfer_batch_size, room, sending.room)
            data = self._store.log_bytes(sending.next_offset, most)
            if not data:
                break
            parts += sending.frame(data)
            room -= len(data)
        if parts:
            assert 0 <= room < wanted, "a turn sends at most its allowance"
            self._wrote_at = self._monotonic()
            self._window_bytes += wanted - room
            self._bytes += wanted - room
            transport.writelines(parts)
        elif sending.next_offset < self._store.log_start_offset:
            self._say_deleted(sending.next_offset)
        return room <= 0 < wanted

    def _say_deleted(self, physical_offset: int) -> None:
        if self._master.is_news("deleted", self.address):
            log.error(
                "slave lacks messages that are deleted here: set it up again",
                extra={
                    "address": self.address,
                    "physical_offset": physical_offset,
                    "start_physical_offset": self._store.log_start_offset,
                },
            )

    def _allowance(self) -> int:
        """Return the count of bytes that the slave may get now."""
        if not self._config.ha_flow_control_enable:
            return TURN_BYTES
        now = self._monotonic()
        if now >= self._window_at + 1:
            self._window_at, self._window_bytes = now, 0
        left = self._config.max_ha_transfer_byte_in_second - self._window_bytes
        if left <= 0:
            self._master.send_in(self._window_at + 1 - now)
        return left

    def beat(self) -> None:
        """Send a heartbeat if it is due, or close a silent connection; called about once a second."""
        now, config = self._monotonic(), self._config
        if now > self._bytes_at:
            self.bytes_a_second = int(self._bytes / (now - self._bytes_at))
            self._bytes, self._bytes_at = 0, now
        silent_seconds = config.ha_housekeeping_interval / 1000
        if self.sending.next_offset is None:
            silent_seconds = min(silent_seconds, SILENT_SECONDS)
        if now - self._heard_at > silent_seconds:
            log.warning("slave is given up: it is silent", extra={"address": self.address})
            self._master.went(self)
            self.close()
        elif now - self._wrote_at >= config.ha_send_heartbeat_interval / 1000:
            self.tell()

    def tell(self) -> None:
        """Send a heartbeat, unless the slave can't get one now."""
        if self.sending.next_offset is None or self._transport is None or self._is_paused:
            return
        self._wrote_at = self._monotonic()
        self._transport.writelines(self.sending.frame(b""))

    def close(self) -> None:
        """End the connection."""
        self._master.went(self)
        if self._transport is not None:
            self._transport.abort()
