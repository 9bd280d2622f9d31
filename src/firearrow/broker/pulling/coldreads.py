"""Pulls of messages on the disk: threads fetch the messages, while sends go on.

Such a pull waits here until a thread has read its messages into memory (``store.residency``). Then it is handled like a
new one. Recent messages never get here.

Measured with sends of 128 bytes, one after another, beside a consumer that reads 160 MB of evicted files, on two cores
with a load of 13, in two runs each: p99 of a send was 52 and 422 ms when pulls read in the loop, 27 and 125 ms with
threads. The slowest took 811 ms, now 147. Without such a consumer p99 was 2 to 4 ms. The consumer is no slower: the
thread's reads are a read-ahead.

Source: RocketMQ's ``ColdDataPullRequestHoldService`` limits such pulls, by ``coldDataFlowControlEnable``; without it, a
thread of the pool waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from firearrow.errors import BrokerError
from firearrow.net.server import Finished, Peer
from firearrow.services import Scheduler, Service
from firearrow.store import FileRange, fetch
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand

THREADS: Final = 2  # a disk serves some reads at once; more would take turns
WAITING_MAX: Final = 10_000  # as RocketMQ's queue; about 10 MB of requests

Again = Callable[[Peer, AnyCommand], Finished]


class ColdReads(Service):
    """Pulls that wait for the disk. Without a ``scheduler`` there are none (`are_aside`)."""

    def __init__(self, scheduler: Scheduler | None) -> None:
        super().__init__("cold reads")
        self._scheduler = scheduler
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: dict[int, tuple[Peer, AnyCommand, Again]] = {}
        self._number = 0

    @property
    def are_aside(self) -> bool:
        """Tell whether threads fetch messages that are not in memory."""
        return self._threads is not None

    def __len__(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        """Prepare the threads, which start on demand."""
        if self._scheduler is not None:
            self._threads = ThreadPoolExecutor(THREADS, "cold reads")

    async def stop(self) -> None:
        """Answer all waiting pulls, with reads in this thread."""
        threads, self._threads = self._threads, None
        for number in list(self._waiting):
            self._go_on(number)
        if threads is not None:
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)

    def hold(self, peer: Peer, request: AnyCommand, stretches: Sequence[FileRange], again: Again) -> None:
        """Hold a pull until the stretches are in memory, then answer it by ``again``.

        Raises BrokerError if too many wait.
        """
        assert self._threads is not None, "pulls are held only if there are threads"
        assert self._scheduler is not None, "threads need a scheduler"
        if len(self._waiting) >= WAITING_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} pulls wait for the disk, start flow control for a while"
            )
        self._number += 1
        number, scheduler = self._number, self._scheduler
        self._waiting[number] = peer, request, again

        def work() -> None:
            fetch(stretches)
            scheduler.call_soon_threadsafe(lambda: self._go_on(number))

        self._threads.submit(work)

    def _go_on(self, number: int) -> None:
        held = self._waiting.pop(number, None)
        if held is None:
            return  # the stop has answered it
        peer, request, again = held
        peer.resume(request, again)
