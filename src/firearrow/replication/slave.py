"""The slave's side: it appends the bytes that its master sends.

The slave appends bytes as it reads them, without waiting for the end of a frame; dispatch is as usual. It then reports
the end of its log, once for each read. Any fault ends the connection, and the next one begins a second later (RocketMQ
waits for five). A slave that does not fit its master's log, or has no room, tries again and again without changing
anything.

A connection begins some 64 KiB before the end of the log (`LogEnd`). The bytes up to the end must equal the local ones,
except for a message that has lost its topic or properties on one side. A master that has lost the end of its log, by a
loss of power, soon has other messages in its place. Until all is compared, the slave reports no more than the start of
that part, because records of two logs may begin alike. Java: DefaultHAClient reports the end of its log, and from then
on has half of a record of the one and half of the other.

Source: RocketMQ's ``DefaultHAClient``.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from firearrow.clock import Clock
from firearrow.errors import FirearrowError, RemoteProtocolError, StoreError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.net.address import host_and_port
from firearrow.net.tasks import TaskService
from firearrow.replication.proof import OPEN, HaAccess
from firearrow.replication.stream import Mismatch, Receiving, report
from firearrow.services import Alarm
from firearrow.store import LogEnd, MessageStore
from firearrow.store.config import StoreConfig
from firearrow.wire.admin_bodies import HaClient, HaStatus

log: Final = Log(__name__)

RETRY_SECONDS: Final = 1.0
CONNECT_SECONDS_MAX: Final = 3.0
TICK_SECONDS: Final = 1.0


class Slave(TaskService):
    """Follower of the master at ``master_address``; while that is empty, it waits.

    ``connected`` fires for each new connection.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        access: HaAccess = OPEN,
    ) -> None:
        super().__init__("replication", loop)
        self._access = access
        self.store = store
        self.config = config
        self.clock = clock
        self.master_address: str = config.ha_master_address
        self.last_read_ms = self.last_write_ms = 0
        self.bytes_a_second = 0
        self._loop = loop
        self._named = asyncio.Event()
        self._following: MasterConnection | None = None
        self.connected: Event[None] = Event()
        self._trouble = "no connection yet"

    async def start(self) -> None:
        """Begin to follow."""
        if self.master_address:
            self._named.set()
        await super().start()

    async def stop(self) -> None:
        """Stop following."""
        await super().stop()
        if self._following is not None:
            self._following.close()

    @property
    def trouble(self) -> str | None:
        """The reason why the slave does not follow."""
        return super().trouble or self._trouble or None

    @property
    def is_following(self) -> bool:
        """Tell whether the master sends the log to this slave."""
        return not self._trouble

    def connection(self) -> MasterConnection:
        """Make the protocol of a new connection."""
        return MasterConnection(self, self._loop)

    @property
    def is_connected(self) -> bool:
        """Tell whether there is a connection to the master; the master may not have answered yet."""
        return self._following is not None

    def follow(self, address: str) -> None:
        """Follow the master with this address for slaves, instead of the present one."""
        if address != self.master_address:
            log.info("master is elsewhere", extra={"address": address})
            self.master_address = address
            if self._following is not None:
                self._following.close()
        if address:
            self._named.set()
        else:
            self._named.clear()

    async def _run(self) -> None:
        while True:
            await self._named.wait()
            try:
                host, port = host_and_port(self.master_address)
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    following = self.connection()
                    await self._access.connect(self._loop, following, host, port)
            except (OSError, FirearrowError) as error:
                self.fail(error)
            else:
                self._following = following
                self.connected(None)
                await following.ended.wait()
                self._following = None
            await asyncio.sleep(RETRY_SECONDS)

    def fail(self, reason: object) -> None:
        """Note the fault that prevents following, and log it if it is new."""
        text = str(reason) or type(reason).__name__
        if self._trouble != text:
            log.error(
                "slave does not follow its master: it tries again",
                extra={"address": self.master_address, "error": text},
            )
        self._trouble = text

    def well(self) -> None:
        """Note that the slave follows."""
        if self._trouble:
            log.info(
                "slave follows its master",
                extra={"address": self.master_address, "end_physical_offset": self.store.log_end_offset},
            )
        self._trouble = ""

    def status(self) -> HaStatus:
        """Return the answer to request 907."""
        end = self.store.log_end_offset
        rate = self.bytes_a_second
        client = HaClient(
            self.master_address or None,
            rate,
            end,
            self.last_read_ms,
            self.last_write_ms,
            self.store.checkpoint.master_flushed_offset,
        )
        return HaStatus(ha_client_runtime_info=client)


class MasterConnection(asyncio.Protocol):
    """One connection to the master; ``ended`` is set when it is over."""

    def __init__(self, slave: Slave, loop: asyncio.AbstractEventLoop) -> None:
        self._slave = slave
        self._store = slave.store
        self._clock = slave.clock
        self._transport: asyncio.Transport | None = None
        self._receiving = Receiving(0)
        self._own_end = LogEnd(slave.store.log)
        self._tick = Alarm(loop, self._beat)
        heartbeat = slave.config.ha_send_heartbeat_interval / 1000
        self._tick_seconds = min(TICK_SECONDS, heartbeat)
        self._heartbeat_seconds = heartbeat
        self._silence_seconds_max = slave.config.ha_housekeeping_interval / 1000
        self._heard_at = self._said_at = self._bytes_at = self._clock.monotonic()
        self._moved_at = self._heard_at
        self._has_heard = False
        self._bytes = 0
        self.ended: Final = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report to the master, which begins to send then."""
        assert self._transport is None, "it is the protocol of one connection"
        self._transport = cast(asyncio.Transport, transport)
        self._begin()
        self._tick.set(self._tick_seconds)

    def data_received(self, data: bytes) -> None:
        """Append the bytes that the master sends."""
        if self.ended.is_set() or self._transport is None:
            return
        slave = self._slave
        self._heard_at, self._has_heard = self._clock.monotonic(), True
        slave.last_read_ms = self._clock.now_ms()
        before = self._end_there
        try:
            self._take(data)
        except (OSError, RemoteProtocolError, StoreError) as error:
            slave.fail(error)
            self.close()
            return
        if self.ended.is_set():
            return
        assert self._end_there >= before, "the bytes of the master continue the log"
        if not self._is_ahead:
            slave.well()
        if self._end_there != before:
            self._moved_at = self._heard_at
            self._bytes += len(data)
            self._report()

    def _begin(self) -> None:
        """Report the end of the log, first of all on a connection."""
        self._own_end = LogEnd(self._store.log)
        self._receiving = Receiving(self._own_end.start)
        self._report()

    def _take(self, data: bytes) -> None:
        """Append the bytes that the master sends. Raises RemoteProtocolError or StoreError."""
        for at, piece in self._receiving.receive(data):
            self._put(at, piece)

    @property
    def _end_there(self) -> int:
        """End of the bytes that the master has sent, a physical offset."""
        return self._receiving.end_offset

    @property
    def _is_ahead(self) -> bool:
        """Tell whether the local log goes on behind the bytes that the master has sent."""
        return self._end_there < self._store.log_end_offset

    def _put(self, physical_offset: int, piece: memoryview) -> None:
        """Append the new part of a piece; raises Mismatch if the log has other bytes in its place."""
        store = self._store
        known = max(store.log_end_offset - physical_offset, 0)
        if known:
            why = self._own_end.take(piece[:known])
            if why is not None:
                raise Mismatch(f"the master's log is {why}")
            if self._own_end.same_to == store.log_end_offset:
                store.dispatching.limit_to(None)
        if piece[known:]:
            store.put_raw(physical_offset + known, piece[known:])

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the master has left."""
        if not self.ended.is_set():
            self._slave.fail(error or "the master has closed the connection")
        self._end()

    def _report(self) -> None:
        assert self._transport is not None, "it is connected"
        self._said_at = self._clock.monotonic()
        self._slave.last_write_ms = self._clock.now_ms()
        self._transport.write(self._said())

    def _said(self) -> bytes:
        """Return the report about the log, which is repeated."""
        return report(self._own_end.start if self._is_ahead else self._end_there)

    def _beat(self) -> None:
        now = self._clock.monotonic()
        if now > self._bytes_at:
            self._slave.bytes_a_second = int(self._bytes / (now - self._bytes_at))
            self._bytes, self._bytes_at = 0, now
        stuck = self._is_ahead and now - self._moved_at > self._heartbeat_seconds
        if stuck or now - self._heard_at > self._silence_seconds_max:
            self._slave.fail(
                f"the log goes on to {self._store.log_end_offset} here, the master's ends at {self._end_there}"
                if stuck and self._has_heard
                else "the master is silent"
            )
            self.close()
            return
        if now - self._said_at >= self._heartbeat_seconds:
            self._report()
        self._tick.set(self._tick_seconds)

    def _end(self) -> None:
        self._tick.cancel()
        self._transport = None
        self.ended.set()

    def close(self) -> None:
        """End the connection."""
        transport = self._transport
        self._end()
        if transport is not None:
            transport.abort()
