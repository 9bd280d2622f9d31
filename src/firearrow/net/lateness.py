"""Lateness of reads: the time that requests have waited before they are handled.

A server has one loop. While one call takes long in it (for example a write to a busy page cache), everything else
waits, mostly in the buffers of sockets, where the server can't see it. So the server watches a timer, not requests: a
read that finds the tick overdue by more than `Patience.least_ms` is a late one. A read pays one comparison for this,
and the first read behind a tick sets the timer again: without reads, nothing runs. asyncio reads sockets before it
makes calls whose time has come, uvloop does so after them. So for `AFTER_SECONDS` after an overdue tick, reads still
are late.

The kernel knows the least time that the requests of a late read have waited: the time since the last bytes of their
connection arrived. Where it does not report that time, the duration of the stall counts, in reads before the tick.

Source: RocketMQ's ``BrokerFastFailure``, which looks at the queues of its thread pools every 10 ms.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final

from firearrow.services import Scheduler
from firearrow.wire.codes import FLAG_RESPONSE
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

TICK_SECONDS: Final = 0.05  # a stall may be longer than measured by this
STALL_MS_MIN: Final = 2  # the loop's own turns take less
AFTER_SECONDS: Final = 0.001  # at least one look at all sockets
FOR_EVER: Final = 1 << 62
_TCP_INFO_BYTES: Final = 56
_LAST_RECEIVED_AT: Final = 52  # tcpi_last_data_recv of Linux's struct tcp_info, in ms


class Patience:
    """Limits on the waiting time and the count of requests; this class has none."""

    @property
    def least_ms(self) -> int:
        """Time in ms below which a waiting request is never refused."""
        return FOR_EVER

    def in_time(self) -> None:
        """Note that the loop is on time, when it is about to handle a read."""

    def held_up(self, stalled_ms: int) -> None:
        """Note that the loop was stalled since its last turn."""

    def refusal(self, code: int, waited_ms: int, stalled_ms: int) -> Response | None:
        """Return the refusal of a request that has waited for too long, None for any other.

        ``stalled_ms`` is the duration of the latest stall of the loop.
        """

    def enter(self, code: int, *, must: bool = False) -> Response | None:
        """Count a request that waits in the server from now on, or return a refusal if there are too many and it is not
        a ``must``.
        """

    def leave(self, code: int) -> None:
        """Count a request that no longer waits."""


class Lateness:
    """Detects late reads: reads later than ``late_at_ms``, by the clock of ``now_ms``.

    ``scheduler`` returns the loop, once it exists.
    """

    def __init__(self, patience: Patience, now_ms: Callable[[], int], scheduler: Callable[[], Scheduler]) -> None:
        self.patience = patience
        self.late_at_ms: int = 0  # the first read sets the timer
        self._now_ms = now_ms
        self._scheduler = scheduler
        self._due: float | None = None  # time of the next tick
        self._stalled_ms = 0  # stall that the last tick found, while reads still are late

    def stalled_ms(self) -> int:
        """Return the least duration of the latest stall; the loop is watched from now on.

        An administrator may have set the clock that decides which reads are late. The loop's clock is not affected.
        """
        if self._stalled_ms:
            return self._stalled_ms
        if self._due is None:
            self._plan()
            return 0
        return max(0, int((self._scheduler().time() - self._due) * 1000))

    def waited_ms(self, transport: asyncio.BaseTransport) -> int:
        """Return the least time that the latest read of a connection has waited."""
        stalled_ms = self.stalled_ms()
        if not stalled_ms:
            return 0
        unread_ms = _unread_ms(transport)
        if unread_ms is None:
            return 0 if self._stalled_ms else stalled_ms
        return min(stalled_ms, unread_ms)

    def divided(
        self, requests: Iterable[AnyCommand], waited_ms: int
    ) -> tuple[list[AnyCommand], list[tuple[AnyCommand, Response]]]:
        """Divide requests into those that are handled, and those that have waited for too long, with their refusals."""
        kept: list[AnyCommand] = []
        refused: list[tuple[AnyCommand, Response]] = []
        stalled_ms = self.stalled_ms()
        for request in requests:
            refusal = None
            if not request.flag & FLAG_RESPONSE:
                refusal = self.patience.refusal(request.code, waited_ms, stalled_ms)
            if refusal is None:
                kept.append(request)
            else:
                refused.append((request, refusal))
        return kept, refused

    def _plan(self) -> None:
        scheduler = self._scheduler()
        self._due = scheduler.time() + TICK_SECONDS
        patience_ms = self.patience.least_ms + int(TICK_SECONDS * 1000)
        self.late_at_ms = self._now_ms() + patience_ms
        self.patience.in_time()
        scheduler.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        stalled_ms = self.stalled_ms()
        if stalled_ms >= STALL_MS_MIN:
            self.patience.held_up(stalled_ms)
        if stalled_ms >= self.patience.least_ms:
            self._stalled_ms = stalled_ms
            self._scheduler().call_later(AFTER_SECONDS, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._stalled_ms = 0
        self._due = None
        self.late_at_ms = 0


def _unread_ms(transport: asyncio.BaseTransport) -> int | None:
    """Return the time since the last bytes of a connection arrived, None if the system does not report it."""
    connection = transport.get_extra_info("socket")
    if connection is None or not sys.platform.startswith("linux"):
        return None
    try:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # the connection has just ended
        return None
    if len(facts) < _TCP_INFO_BYTES:
        return None
    return int.from_bytes(facts[_LAST_RECEIVED_AT:_TCP_INFO_BYTES], sys.byteorder)
