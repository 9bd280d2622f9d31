"""Turns of the event loop: work that does not fit into one goes on in later ones, one connection after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

TURN_MS: Final = 4  # for one peer, while others wait
TURN_CHECK_REPLIES: Final = 8  # each may have made a topic, which takes 0.25 ms


class Planned(Protocol):
    """A connection with work for a later turn."""

    def go_on(self, began_ms: int) -> None:
        """Continue the work until the turn is over."""
        ...


class Turns:
    """The connections of a server that wait for a turn. ``now_ms`` is the clock of store times."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop], now_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._planned: deque[Planned] = deque()
        self._begun_ms = 0  # time when a request in steps last began in its read
        self._next_turn: asyncio.Handle | None = None
        self._takes_turn = False

    def is_over(self, began_ms: int) -> bool:
        """Tell whether a peer that began at a time must go on in another turn.

        It gets only one request at a time while other peers wait for their turn.
        """
        if self._planned and not self._takes_turn:
            return True
        # By the clock of store times, which each read has already taken for its messages.
        return not 0 <= self._now_ms() - began_ms < TURN_MS  # if the clock is set back, it is over

    def begins_at_once(self, now_ms: int) -> bool:
        """Tell whether a request that takes steps may begin in the read that brought it.

        The limit is the time of a turn: a thousand heartbeats at once leave messages their turns.
        """
        if self._planned or 0 <= now_ms - self._begun_ms < TURN_MS:
            return False
        self._begun_ms = now_ms
        return True

    def plan(self, peer: Planned) -> None:
        """Let a peer go on in a later turn (called by the peer)."""
        self._planned.append(peer)
        if self._next_turn is None:
            self._next_turn = self._loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Let the waiting peers go on, one after another, until the turn is over."""
        assert not self._takes_turn, "turns are not taken within turns"
        self._next_turn = None
        began_ms = self._now_ms()
        self._takes_turn = True
        while self._planned:
            self._planned.popleft().go_on(began_ms)  # an unfinished peer is the last one again
            if self.is_over(began_ms):
                break
        self._takes_turn = False
        if self._planned and self._next_turn is None:
            self._next_turn = self._loop().call_soon(self._take_turn)
