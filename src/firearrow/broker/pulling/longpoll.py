"""Pulls that wait for messages (RocketMQ's ``PullRequestHoldService``).

A pull without messages waits here, by queue, until a matching message arrives, its time is over or its connection ends.
An entry costs no task and no timer: arrivals look their queue up, and sweeps, at most two a second, end expired
entries. Without expired entries there are no sweeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import Final, NamedTuple

from firearrow.clock import Clock
from firearrow.net.server import ConnectionClosed, Finished, Peer, WaitEnded
from firearrow.services import Alarm, Scheduler, Service
from firearrow.store import GetStatus, MessageStore, Wanted
from firearrow.wire.frame import AnyCommand

HELD_PULLS_MAX: Final = 200_000  # about 100 MB; beyond, a pull is answered at once
SWEEP_SECONDS: Final = 0.5  # between two sweeps
OVER_SECONDS: Final = 0.001  # behind a deadline, when every clock has passed it
EXPIRED_MAX: Final = 128  # waits that are ended in one turn, and at least one queue's; some ms
HELD_PULLS_OF_PEER_MAX: Final = 16_384  # a client has one for each of its queues; this leaves room for other clients
FILTER_CHARS_MAX: Final = 4 << 20
"""Limit of the characters of the expressions of all waiting pulls, without sharing; at most about 200 MB."""
LOOKS_MAX: Final = 4  # pulls by filters in one turn of the event loop; each takes up to some ms
WAIT_MS_MAX: Final = 3_600_000  # clients wait for 15 to 30 s; an hour is practically unlimited

Answer = Callable[[Peer, AnyCommand], Finished]


def lighten(request: AnyCommand, header: object) -> None:
    """Drop the data of a waiting request except its header: a client may put anything there."""
    request.body = b""
    request.remark = None
    request.ext = header


class HeldPull(NamedTuple):
    """A pull that waits for the queue to grow beyond ``queue_offset``; ``answer`` ends that."""

    peer: Peer
    request: AnyCommand
    answer: Answer
    queue_offset: int
    wanted: Wanted
    deadline_seconds: float


class HeldPulls(Service):
    """All waiting pulls. The store knows whether there are any."""

    def __init__(self, store: MessageStore, clock: Clock, scheduler: Scheduler | None = None) -> None:
        super().__init__("held pulls")
        self._store = store
        self._monotonic = clock.monotonic
        self._sweep = None if scheduler is None else Alarm(scheduler, self.expire)
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0
        self._of_peer: dict[Peer, int] = {}
        self._scheduler = scheduler
        # Pulls by filters that have new messages to look at.
        self._unseen: dict[int, HeldPull] = {}
        self._looks: deque[tuple[HeldPull, str, int, int]] = deque()
        self._looking = False  # True if a look is planned
        self._filter_chars = 0

    async def stop(self) -> None:
        """Answer all waiting pulls."""
        self.release_all()
        if self._sweep is not None:
            self._sweep.cancel()

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """Hold a pull; False when there are too many, or too many of its peer."""
        of_peer = self._of_peer.get(pull.peer, 0)
        if self._count >= HELD_PULLS_MAX or of_peer >= HELD_PULLS_OF_PEER_MAX:
            return False
        chars = self._filter_chars + _filter_chars_of(pull)
        if chars > FILTER_CHARS_MAX:
            return False
        self._filter_chars = chars
        self._of_peer[pull.peer] = of_peer + 1
        self._by_queue.setdefault((topic, queue_id), []).append(pull)
        self._count += 1
        if self._count == 1:
            self._store.watch()
        if self._sweep is not None:
            self._sweep_by(pull.deadline_seconds, self._monotonic())
        return True

    def closed(self, closed: ConnectionClosed) -> None:
        """Drop the waiting pulls of a closed connection soon."""
        if self._sweep is not None and closed.peer in self._of_peer:
            self._sweep.set_earlier(SWEEP_SECONDS)

    def wait_ended(self, ended: WaitEnded) -> None:
        """Answer a pull whose client waits no longer."""
        key = getattr(ended.request.ext, "topic", ""), getattr(ended.request.ext, "queue_id", -1)
        waiting = self._by_queue.get(key, ())
        over = [pull for pull in waiting if pull.request is ended.request]
        if over:
            self._keep(key, [pull for pull in waiting if pull.request is not ended.request], over)
            for pull in over:
                pull.peer.resume(pull.request, pull.answer)

    def _sweep_by(self, deadline: float, now: float) -> None:
        assert self._sweep is not None
        self._sweep.set_earlier(max(deadline - now + OVER_SECONDS, SWEEP_SECONDS))

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake the pulls for new entries of their queues, each given by topic, queue id, its first entry and the end of
        the last.
        """
        if not self._by_queue:
            return
        for topic, queue_id, first_offset, max_offset in arrivals:
            waiting = self._by_queue.get((topic, queue_id))
            if waiting is not None:
                self._arrived(topic, queue_id, first_offset, max_offset, waiting)

    def _arrived(self, topic: str, queue_id: int, first_offset: int, max_offset: int, waiting: list[HeldPull]) -> None:
        codes: set[int] | None = None
        stay: list[HeldPull] = []
        wake: list[HeldPull] = []
        for pull in waiting:
            tags = pull.wanted
            if tags is not None:
                if not isinstance(tags, frozenset):
                    if max_offset > pull.queue_offset:
                        self._look_later(pull, topic, queue_id, first_offset)
                    stay.append(pull)
                    continue
                if codes is None:
                    codes = self._store.tag_codes(topic, queue_id, first_offset, max_offset)
            wanted = tags is None or not tags.isdisjoint(codes or ())
            (wake if wanted and max_offset > pull.queue_offset else stay).append(pull)
        self._keep((topic, queue_id), stay, wake)
        for pull in wake:
            pull.peer.resume(pull.request, pull.answer)
        if self._looks:
            self._plan_look()

    def _look_later(self, pull: HeldPull, topic: str, queue_id: int, first_offset: int) -> None:
        """Plan a look at new messages for a pull by a filter; a look in progress goes on."""
        if id(pull) not in self._unseen:
            self._unseen[id(pull)] = pull
            self._looks.append((pull, topic, queue_id, max(first_offset, pull.queue_offset)))

    def _plan_look(self) -> None:
        if self._looks and not self._looking:
            self._looking = True
            if self._scheduler is None:
                self._look()
            else:
                self._scheduler.call_soon(self._look)

    def _look(self) -> None:
        """Look at new messages for some of the pulls by filters, in their order, and for the others in a later turn:
        the cost depends on the clients, which may be thousands.
        """
        self._looking = False
        for _ in range(min(len(self._looks), LOOKS_MAX)):
            pull, topic, queue_id, queue_offset = self._looks.popleft()
            if self._unseen.get(id(pull)) is not pull:
                continue
            result = self._store.get(topic, queue_id, queue_offset, 1, pull.wanted)
            if result.status is GetStatus.NO_MATCHED_MESSAGE:
                if result.next_offset < result.max_offset:
                    self._looks.append((pull, topic, queue_id, result.next_offset))
                else:
                    del self._unseen[id(pull)]
                continue
            waiting = self._by_queue[topic, queue_id]
            self._keep((topic, queue_id), [held for held in waiting if held is not pull], [pull])
            pull.peer.resume(pull.request, pull.answer)
        self._plan_look()

    def expire(self) -> None:
        """Answer the pulls whose time is over; drop those whose connection has ended.

        A turn of the loop handles some, the next one others: thousands may have come together.
        """
        now, soonest = self._monotonic(), inf
        left = EXPIRED_MAX
        for key, waiting in list(self._by_queue.items()):
            if left <= 0 and self._scheduler is not None:
                self._scheduler.call_soon(self.expire)
                return
            over = [p for p in waiting if p.deadline_seconds <= now or not p.peer.is_open]
            left -= len(over)
            stay = waiting
            if over:
                stay = [p for p in waiting if p.deadline_seconds > now and p.peer.is_open]
                self._keep(key, stay, over)
                for pull in over:
                    pull.peer.resume(pull.request, pull.answer)
            soonest = min(soonest, min((p.deadline_seconds for p in stay), default=inf))
        if self._sweep is not None and soonest < inf:
            self._sweep_by(soonest, now)

    def release(self, topic: str, queue_id: int) -> None:
        """Answer the pulls of a queue: an offset was reset."""
        waiting = self._by_queue.get((topic, queue_id), [])
        self._keep((topic, queue_id), [], waiting)
        for pull in waiting:
            pull.peer.resume(pull.request, pull.answer)

    def reviewed(self) -> Iterator[Callable[[], None]]:
        """Yield calls that refuse the pulls whose senders have lost their permission."""
        for key in list(self._by_queue):
            yield partial(self._review, key)

    def _review(self, key: tuple[str, int]) -> None:
        stay: list[HeldPull] = []
        gone: list[HeldPull] = []
        for pull in self._by_queue.get(key, ()):
            refusal = pull.peer.refusal_now(pull.request)
            if refusal is None:
                stay.append(pull)
            else:
                gone.append(pull)
                pull.peer.reply(pull.request, refusal)
        if gone:
            self._keep(key, stay, gone)

    def release_all(self) -> None:
        """Answer all pulls (the broker stops)."""
        everything = [pull for waiting in self._by_queue.values() for pull in waiting]
        self._by_queue.clear()
        self._of_peer.clear()
        self._unseen.clear()
        self._filter_chars = 0
        self._looks.clear()
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
        if self._filter_chars:
            for pull in gone:
                self._filter_chars -= _filter_chars_of(pull)
                self._unseen.pop(id(pull), None)
        if stay:
            self._by_queue[key] = stay
        else:
            self._by_queue.pop(key, None)


def _filter_chars_of(pull: HeldPull) -> int:
    wanted = pull.wanted
    return 0 if wanted is None or isinstance(wanted, frozenset) else wanted.chars
