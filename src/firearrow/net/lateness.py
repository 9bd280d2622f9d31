"""Whether requests have waited for long before they are handled.

A server has one loop. While one thing takes long in it (a write to a page cache that is busy, say),
all else waits, most of it where the server can't see it: in the buffers of sockets. So a timer is
watched, and no request: a read that finds the tick overdue by more than `Patience.least_ms` is a
late one. A read pays one comparison for this, and the first one behind a tick sets the timer again:
where nothing is read, nothing runs. asyncio reads sockets before it makes calls whose time has
come, uvloop does so behind them: so a tick that is overdue is followed by `AFTER_SECONDS` in which
reads still are late.

How long the requests of a late read have waited at least is what the kernel knows: the time since
the last bytes of their connection came. Where it does not say so, it is how long the loop was held
up, in reads before the tick.

Source: upstream ``BrokerFastFailure``, which looks at the queues of its thread pools every 10 ms.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Final

from firearrow.services import Scheduler
from firearrow.wire.command import Response

TICK_SECONDS: Final = 0.05  # by so much a stall may be longer than it seems
STALL_MS_MIN: Final = 2  # the loop's own turns take less
AFTER_SECONDS: Final = 0.001  # at least one look at all sockets
FOR_EVER: Final = 1 << 62
_TCP_INFO_BYTES: Final = 56
_LAST_RECEIVED_AT: Final = 52  # tcpi_last_data_recv of Linux's struct tcp_info, in ms


class Patience:
    """How long requests may wait, and how many; in this one any number, for ever."""

    @property
    def least_ms(self) -> int:
        """No request is refused that has waited for less."""
        return FOR_EVER

    def in_time(self) -> None:
        """Note that the loop comes round as it should, where it is about to handle what it read."""

    def held_up(self, stalled_ms: int) -> None:
        """Note that the loop was held up for so long since it came round last."""

    def refusal(self, code: int, waited_ms: int, stalled_ms: int) -> Response | None:
        """Give the answer to a request that has waited for too long; None if it has not.

        ``stalled_ms`` is for how long the loop was held up just now.
        """

    def enter(self, code: int, *, must: bool = False) -> Response | None:
        """Count a request that waits in the server from now on; or give the answer to one too many,
        unless it ``must`` wait."""

    def leave(self, code: int) -> None:
        """A request that has waited does so no longer."""


class Lateness:
    """Tells reads that are late: those later than ``late_at_ms``, by the clock of ``now_ms``.

    ``scheduler`` gives the loop, once it is there.
    """

    def __init__(self, patience: Patience, now_ms: Callable[[], int], scheduler: Callable[[], Scheduler]) -> None:
        self.patience = patience
        self.late_at_ms = 0  # the first read sets the timer
        self._now_ms = now_ms
        self._scheduler = scheduler
        self._due: float | None = None  # when the next tick is to come
        self._stalled_ms = 0  # what the tick found that came last, while reads still are late

    def stalled_ms(self) -> int:
        """For how long the loop was held up just now, at least; it is watched from now on.

        The clock that says which reads are late may have been set. The loop's was not.
        """
        if self._stalled_ms:
            return self._stalled_ms
        if self._due is None:
            self._plan()
            return 0
        return max(0, int((self._scheduler().time() - self._due) * 1000))

    def waited_ms(self, transport: asyncio.BaseTransport) -> int:
        """How long what was read from a connection just now has waited, at least."""
        stalled_ms = self.stalled_ms()
        if not stalled_ms:
            return 0
        unread_ms = _unread_ms(transport)
        if unread_ms is None:
            return 0 if self._stalled_ms else stalled_ms
        return min(stalled_ms, unread_ms)

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
    """For how long the last bytes of a connection have been here, None if nobody knows."""
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
