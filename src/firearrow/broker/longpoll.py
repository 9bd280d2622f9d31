"""Pulls that wait for messages (upstream ``PullRequestHoldService``).

A pull that finds nothing is kept here, by queue, until a message that it wants arrives, its time is
over or its connection ends. An entry costs no task and no timer: arrivals look their queue up, and
one sweep a second ends those whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from firearrow.net.server import Peer
from firearrow.store import MessageStore
from firearrow.wire.frame import AnyCommand

HELD_PULLS_MAX: Final = 200_000  # about 100 MB; beyond, a pull is answered at once


class HeldPull(NamedTuple):
    """A pull that waits for the queue to grow beyond ``queue_offset``."""

    peer: Peer
    request: AnyCommand
    queue_offset: int
    tag_codes: frozenset[int] | None
    deadline_seconds: float


Resume = Callable[[Peer, AnyCommand], None]


def _nothing() -> None:
    """What ``on_first`` does before anybody cares."""


class HeldPulls:
    """All waiting pulls; ``resume`` runs one of them again.

    ``on_first`` is called when a pull begins to wait and none did before.
    """

    def __init__(self, store: MessageStore, resume: Resume, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._resume = resume
        self._monotonic = monotonic
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0
        self.on_first: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """Keep a pull; False when there are too many."""
        if self._count >= HELD_PULLS_MAX:
            return False
        self._by_queue.setdefault((topic, queue_id), []).append(pull)
        self._count += 1
        if self._count == 1:
            self.on_first()
        return True

    def arrived(self, topic: str, queue_id: int, first_offset: int, max_offset: int) -> None:
        """Wake the pulls of a queue for which there is something among the new entries."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        codes: set[int] | None = None
        stay: list[HeldPull] = []
        wake: list[HeldPull] = []
        for pull in waiting:
            if pull.tag_codes is not None and codes is None:
                codes = {
                    self._store.tag_code_at(topic, queue_id, offset)
                    for offset in range(first_offset, max_offset)
                }
            wanted = pull.tag_codes is None or not pull.tag_codes.isdisjoint(codes or ())
            (wake if wanted and max_offset > pull.queue_offset else stay).append(pull)
        self._keep((topic, queue_id), stay, len(wake))
        for pull in wake:
            self._resume(pull.peer, pull.request)

    def expire(self) -> None:
        """Run the pulls again whose time is over."""
        now = self._monotonic()
        for key, waiting in list(self._by_queue.items()):
            over = [pull for pull in waiting if pull.deadline_seconds <= now]
            if over:
                self._keep(
                    key, [pull for pull in waiting if pull.deadline_seconds > now], len(over)
                )
                for pull in over:
                    self._resume(pull.peer, pull.request)

    def forget(self, peer: Peer) -> None:
        """Drop the pulls of a connection that has ended."""
        for key, waiting in list(self._by_queue.items()):
            stay = [pull for pull in waiting if pull.peer is not peer]
            if len(stay) < len(waiting):
                self._keep(key, stay, len(waiting) - len(stay))

    def release_all(self) -> None:
        """Run all again (the broker stops)."""
        everything = [pull for waiting in self._by_queue.values() for pull in waiting]
        self._by_queue.clear()
        self._count = 0
        for pull in everything:
            self._resume(pull.peer, pull.request)

    def _keep(self, key: tuple[str, int], stay: list[HeldPull], gone: int) -> None:
        self._count -= gone
        if stay:
            self._by_queue[key] = stay
        else:
            self._by_queue.pop(key, None)
