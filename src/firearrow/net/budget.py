"""One limit on the memory that the peers of a server use: unfinished requests, unread answers, and data that handlers
keep of requests (groups, subscriptions, registrations). Each kind of data has a separate limit, too.

Nothing is counted for a message. ``room_bytes`` decreases by each read that ends within a request and by each write.
When it is used up, the budget looks at all peers, which gives back the bytes that have left since. A look takes some
time for each peer, so it makes room for an eighth of the limit, or closes peers until there is that much.

=============  =====================================================================================
held           what happens
=============  =====================================================================================
up to 1/2      nothing
above          memory is tight. A peer within a large request waits: nothing is read from it. One
               after the other may go on, as many as fit. It has `PATIENCE_SECONDS` to finish; a
               peer that leaves answers unread has as long to read some of them. If it does not,
               it is closed.
7/8            the greediest are closed, until it is less
=============  =====================================================================================

A limit for each connection was not enough: 150 peers that stopped within a frame of 16 MiB held 2.1 GB. Counting each
message's bytes in and out would cost every message, for the sake of few peers.

So the held bytes stay below the limit, except for the bytes of one read. Peers with small requests are not hindered,
and a peer within a large one gets its turn. Each turn ends, and if no peer can have one, the greediest is closed. While
memory is not tight, no timer runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.machine import memory_bytes
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

MiB: Final = 1024 * 1024
MEMORY_PARTS: Final = 4  # share of the memory for requests and answers; the page cache needs most
LIMIT_BYTES_MIN: Final = 64 * MiB  # four of the largest requests
KEPT_BYTES_MAX: Final = 16 * MiB  # for one peer; a client with 10,000 subscriptions needs a third
LARGE_BYTES: Final = 64 * 1024  # of an unfinished request, or of unread answers
PATIENCE_SECONDS: Final = 5.0  # a client with 50 Mbit/s sends a whole frame of 16 MiB in 3 s
LOOK_SECONDS: Final = 0.25  # between looks while memory is tight


class Holder(Protocol):
    """A peer as the budget sees it (``net.server.Peer`` is one)."""

    address: str
    kept_bytes: int
    """Bytes that handlers keep of its requests; `Budget.keep` alone changes the count."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of a request that is incomplete."""
        ...

    @property
    def missing_bytes(self) -> int:
        """Bytes that this request still lacks."""
        ...

    @property
    def requests_begun(self) -> int:
        """Count of requests begun, which distinguishes an unfinished request from the next one."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the peer has not taken yet, and of its requests that wait for that."""
        ...

    def hold(self, *, waits: bool) -> None:
        """Pause reading from the peer, or resume it."""
        ...

    def drop(self, reason: str) -> None:
        """Close the connection and release everything that it holds."""
        ...


class Budget:
    """Limit on the bytes that all ``holders`` together hold; 0 is a part of the memory.

    ``later`` calls a function after some seconds. ``now`` returns the present time in seconds.
    """

    def __init__(
        self,
        limit_bytes: int,
        holders: Collection[Holder],
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.limit_bytes: Final = max(limit_bytes or memory_bytes() // MEMORY_PARTS, LIMIT_BYTES_MIN)
        self.room_bytes: int = self.limit_bytes // 8
        self._tight_bytes = self.limit_bytes // 2
        self._full_bytes = self.limit_bytes // 8 * 7
        self._kept_bytes_max = kept_bytes_max
        self._holders = holders
        self._now = now
        self._later = later
        self._is_tight = False
        self._waiting: dict[Holder, None] = {}  # in the order of the begin of their waits
        self._turns: dict[Holder, tuple[int, float]] = {}  # the request of each turn, and the end of the turn
        self._unread: dict[Holder, tuple[int, float]] = {}  # the unread bytes, and since when they have not decreased

    def took(self, holder: Holder, size: int) -> None:
        """A read of ``size`` bytes ended within a request."""
        self.room_bytes -= size
        if self._is_tight and holder.unfinished_bytes > LARGE_BYTES and not self._has_turn(holder):
            self._wait(holder)
        if self.room_bytes < 0:
            self.look()

    def gave(self, size: int) -> None:
        """Answers of ``size`` bytes were written."""
        self.room_bytes -= size
        if self.room_bytes < 0:
            self.look()

    def keep(self, holder: Holder, size: int) -> None:
        """Count bytes that handlers keep of a peer's requests, or release (below 0).

        Raises BrokerError for more than one peer may have. No peer is closed at once: the next answer that leaves
        triggers a look.
        """
        if size > 0 and holder.kept_bytes + size > self._kept_bytes_max:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"what is kept for {holder.address} would be {holder.kept_bytes + size} bytes, "
                f"the limit is {self._kept_bytes_max}",
            )
        holder.kept_bytes += size
        self.room_bytes -= max(size, 0)
        assert holder.kept_bytes >= 0, "bytes are counted in and out alike"

    def look(self) -> None:
        """Add up what all peers hold, and hold, close or release peers accordingly."""
        held = {h: h.unfinished_bytes + h.unread_bytes + h.kept_bytes for h in self._holders}
        total = sum(held.values())
        if total > self._tight_bytes:
            self._tighten(total)
            total -= self._close_late(held)
            total -= self._close_greediest(held, total - self._full_bytes)
            total -= self._give_turns(held, total)
        elif self._is_tight:
            self._relax(total)
        assert total >= 0, "a closed peer gives back its bytes once"
        self.room_bytes = self.limit_bytes - total
        if not self._is_tight:
            # The next look comes when half of the limit may be held, but never after less than an
            # eighth: a look takes time for each peer.
            self.room_bytes = max(self._tight_bytes - total, self.limit_bytes // 8)
        assert self.room_bytes >= self.limit_bytes // 8, "a look makes room, or closes peers until there is some"

    def _has_turn(self, holder: Holder) -> bool:
        request, _ = self._turns.get(holder, (-1, 0.0))
        return request == holder.requests_begun

    def _wait(self, holder: Holder) -> None:
        assert self._is_tight, "no peer waits while there is room"
        if holder not in self._waiting:
            self._turns.pop(holder, None)
            self._waiting[holder] = None
            holder.hold(waits=True)

    def _tighten(self, total: int) -> None:
        if not self._is_tight:
            self._is_tight = True
            log.warning(
                "memory for requests is tight: large requests wait",
                extra={"held_bytes": total, "limit_bytes": self.limit_bytes},
            )
            for holder in self._holders:
                if holder.unfinished_bytes > LARGE_BYTES:
                    self._wait(holder)
            self._plan()

    def _relax(self, total: int) -> None:
        self._is_tight = False
        log.info("memory for requests is not tight any more", extra={"held_bytes": total})
        waiting = list(self._waiting)
        self._waiting.clear()
        self._turns.clear()
        self._unread.clear()
        for holder in waiting:
            holder.hold(waits=False)

    def _plan(self) -> None:
        self._later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        if self._is_tight:
            self.look()
        if self._is_tight:
            self._plan()

    def _close_late(self, held: dict[Holder, int]) -> int:
        """Close peers that did not finish in their turn or read nothing; return the bytes that they held."""
        now = self._now()
        for gone in (self._waiting.keys() | self._turns.keys() | self._unread.keys()) - held.keys():
            self._forget(gone)
        freed = 0
        for holder, (_, until) in list(self._turns.items()):
            if holder.unfinished_bytes <= LARGE_BYTES or not self._has_turn(holder):
                del self._turns[holder]
            elif until <= now:
                freed += self._drop(holder, held, "its request is incomplete after its turn")
        return freed + self._close_unread(held, now)

    def _close_unread(self, held: dict[Holder, int], now: float) -> int:
        freed = 0
        for holder in list(held):
            unread = holder.unread_bytes
            before, since = self._unread.get(holder, (unread, now))
            if unread <= LARGE_BYTES:
                self._unread.pop(holder, None)
            elif unread < before:
                self._unread[holder] = (unread, now)
            elif since + PATIENCE_SECONDS <= now:
                freed += self._drop(holder, held, f"it leaves {unread} bytes of answers unread")
            else:
                self._unread[holder] = (unread, since)
        return freed

    def _close_greediest(self, held: dict[Holder, int], size: int) -> int:
        """Close the peers that hold most, until ``size`` bytes are free; return the bytes that they held."""
        freed = 0
        if size > 0:
            for holder in sorted(held, key=held.__getitem__, reverse=True):
                freed += self._drop(holder, held, f"it holds {held[holder]} bytes")
                if freed >= size:
                    break
        return freed

    def _give_turns(self, held: dict[Holder, int], total: int) -> int:
        """Let as many peers go on as fit, the longest waiting first; return the bytes freed for that."""
        free = self._full_bytes - total
        free -= sum(holder.missing_bytes for holder in self._turns)
        freed = 0
        until = self._now() + PATIENCE_SECONDS
        for holder in list(self._waiting):
            # With a turn under way, room will come: each turn ends. Without one no peer could go on, so room is made.
            # This rules out a deadlock.
            if holder.missing_bytes > free and not self._turns:
                made = self._close_greediest(held, holder.missing_bytes - free)
                free += made
                freed += made
            if holder not in self._waiting:
                continue  # the peer was itself the greediest
            if holder.missing_bytes > free:
                break
            free -= holder.missing_bytes
            assert free >= 0, "turns fit into the limit"
            del self._waiting[holder]
            self._turns[holder] = (holder.requests_begun, until)
            holder.hold(waits=False)
        return freed

    def _drop(self, holder: Holder, held: dict[Holder, int], why: str) -> int:
        self._forget(holder)
        holder.drop(f"memory for requests is short, and {why}")
        return held.pop(holder)

    def _forget(self, holder: Holder) -> None:
        self._waiting.pop(holder, None)
        self._turns.pop(holder, None)
        self._unread.pop(holder, None)
