"""Pulls that wait for messages (upstream ``PullRequestHoldService``).

A pull that finds nothing is kept here, by queue, until a message that it wants arrives, its time is
over or its connection ends. An entry costs no task and no timer: arrivals look their queue up, and
two sweeps a second end those whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from firearrow.clock import Clock
from firearrow.net.server import Finished, Peer
from firearrow.services import Every, Scheduler, Service
from firearrow.store import MessageStore
from firearrow.wire.frame import AnyCommand

HELD_PULLS_MAX: Final = 200_000  # about 100 MB; beyond, a pull is answered at once
SWEEP_SECONDS: Final = 0.5
HELD_PULLS_OF_PEER_MAX: Final = (
    16_384  # a client has one for each of its queues; leaves room for all
)


Answer = Callable[[Peer, AnyCommand], Finished]


class HeldPull(NamedTuple):
    """A pull that waits for the queue to grow beyond ``queue_offset``; ``answer`` ends that."""

    peer: Peer
    request: AnyCommand
    answer: Answer
    queue_offset: int
    tag_codes: frozenset[int] | None
    deadline_seconds: float


class HeldPulls(Service):
    """All waiting pulls. The store is told whether there are any."""

    def __init__(
        self, store: MessageStore, clock: Clock, scheduler: Scheduler | None = None
    ) -> None:
        super().__init__("held pulls")
        self._store = store
        self._monotonic = clock.monotonic
        self._sweep = (
            None if scheduler is None else Every(self.name, SWEEP_SECONDS, self.expire, scheduler)
        )
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0
        self._of_peer: dict[Peer, int] = {}

    async def start(self) -> None:
        """End waits whose time is over, now and then."""
        if self._sweep is not None:
            await self._sweep.start()

    async def stop(self) -> None:
        """Answer all that wait."""
        if self._sweep is not None:
            await self._sweep.stop()
        self.release_all()

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """Keep a pull; False when there are too many, or too many of its peer."""
        of_peer = self._of_peer.get(pull.peer, 0)
        if self._count >= HELD_PULLS_MAX or of_peer >= HELD_PULLS_OF_PEER_MAX:
            return False
        self._of_peer[pull.peer] = of_peer + 1
        self._by_queue.setdefault((topic, queue_id), []).append(pull)
        self._count += 1
        if self._count == 1:
            self._store.watch()
        return True

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake the pulls for which there is something among the new entries of their queues, each
        given by its topic and id, the first of them and what follows the last."""
        if not self._by_queue:
            return
        for topic, queue_id, first_offset, max_offset in arrivals:
            waiting = self._by_queue.get((topic, queue_id))
            if waiting is not None:
                self._arrived(topic, queue_id, first_offset, max_offset, waiting)

    def _arrived(
        self,
        topic: str,
        queue_id: int,
        first_offset: int,
        max_offset: int,
        waiting: list[HeldPull],
    ) -> None:
        codes: set[int] | None = None
        stay: list[HeldPull] = []
        wake: list[HeldPull] = []
        for pull in waiting:
            if pull.tag_codes is not None and codes is None:
                codes = self._store.tag_codes(topic, queue_id, first_offset, max_offset)
            wanted = pull.tag_codes is None or not pull.tag_codes.isdisjoint(codes or ())
            (wake if wanted and max_offset > pull.queue_offset else stay).append(pull)
        self._keep((topic, queue_id), stay, wake)
        for pull in wake:
            pull.peer.resume(pull.request, pull.answer)

    def expire(self) -> None:
        """Run the pulls again whose time is over; drop those whose connection has ended."""
        now = self._monotonic()
        for key, waiting in list(self._by_queue.items()):
            over = [p for p in waiting if p.deadline_seconds <= now or not p.peer.is_open]
            if over:
                stay = [p for p in waiting if p.deadline_seconds > now and p.peer.is_open]
                self._keep(key, stay, over)
                for pull in over:
                    pull.peer.resume(pull.request, pull.answer)

    def release(self, topic: str, queue_id: int) -> None:
        """Run the pulls of a queue again: an offset was reset."""
        waiting = self._by_queue.get((topic, queue_id), [])
        self._keep((topic, queue_id), [], waiting)
        for pull in waiting:
            pull.peer.resume(pull.request, pull.answer)

    def release_all(self) -> None:
        """Run all again (the broker stops)."""
        everything = [pull for waiting in self._by_queue.values() for pull in waiting]
        self._by_queue.clear()
        self._of_peer.clear()
        if self._count:
            self._count = 0
            self._store.unwatch()
        for pull in everything:
            pull.peer.resume(pull.request, pull.answer)

    def _keep(self, key: tuple[str, int], stay: list[HeldPull], gone: list[HeldPull]) -> None:
        if gone and self._count == len(gone):
            self._store.unwatch()
        self._count -= len(gone)
        for pull in gone:
            left = self._of_peer[pull.peer] - 1
            if left:
                self._of_peer[pull.peer] = left
            else:
                del self._of_peer[pull.peer]
        if stay:
            self._by_queue[key] = stay
        else:
            self._by_queue.pop(key, None)
