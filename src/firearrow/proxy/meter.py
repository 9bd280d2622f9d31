"""Durations of calls by method and code, and rates of messages.

The code is the one inside the answer: for gRPC itself nearly every call succeeds. As for remoting (`net.meter`), equal
calls of a turn of the event loop are counted together until their answers leave.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Final, NamedTuple

from firearrow.clock import Clock, seconds_of
from firearrow.net.meter import BOUNDS_MS, Histogram
from firearrow.net.outgoing import Departures

CALL_BOUNDS_MS: Final = (*BOUNDS_MS, 10_000, 30_000)  # a receive waits for up to 20 s
CANCELLED: Final = -1
"""In place of a code: the client gave the call up."""
RATE_SECONDS: Final = 10


class CallKey(NamedTuple):
    """Labels of a call's duration; ``waited`` tells whether it waited for messages."""

    method: str
    code: int
    waited: bool


class CallMeter:
    """Keeps the histograms, and counts the calls that wait for messages."""

    def __init__(self, clock: Clock, departures: Departures) -> None:
        self._seconds = seconds_of(clock)
        self._departures = departures
        self._ended: dict[tuple[str, int, bool, int], int] = {}  # count of calls in the present turn, by time, too
        self._turn = 0
        self._known: dict[tuple[str, int, bool], Histogram] = {}  # a plain dict is read faster
        self.histograms: defaultdict[CallKey, Histogram] = defaultdict(lambda: Histogram(CALL_BOUNDS_MS))
        self.waiting: Counter[str] = Counter()
        """Count of calls that wait for messages, by method."""
        departures.call_last(self._end_turn)

    def count(self, method: str, code: int, received_ms: int) -> None:
        """Count a call that ends in the turn of its arrival, or that did not wait for messages."""
        self._count((method, code, False, received_ms))

    def begin(self, method: str) -> int:
        """Note a call that waits; return the present turn."""
        self.waiting[method] += 1
        self._plan()
        return self._turn

    def end(self, method: str, code: int, received_ms: int, begun: int) -> None:
        """Count a call that was left open in a turn. It has not waited if it ends with the answers of that turn."""
        self.waiting[method] -= 1
        self._count((method, code, self._turn - begun > 1, received_ms))

    def _count(self, key: tuple[str, int, bool, int]) -> None:
        ended = self._ended
        if key in ended:
            ended[key] += 1
        else:
            ended[key] = 1
            self._plan()

    def _plan(self) -> None:
        if not self._departures.is_planned:  # nearly always an answer has planned it already
            self._departures.plan()

    def _end_turn(self) -> None:
        self._turn += 1
        if not self._ended:
            return
        ended, self._ended = self._ended, {}
        now_ms = self._seconds() * 1000
        known = self._known
        for (method, code, waited, received_ms), number in ended.items():
            histogram = known.get((method, code, waited))
            if histogram is None:
                key = CallKey(method, code, waited)
                histogram = known[key] = self.histograms[key]
            if now_ms - received_ms < 1:  # nearly always
                histogram.counts[0] += number
            else:
                histogram.add(int(now_ms) - received_ms, number)


class Rate:
    """Count a second, over the last whole seconds."""

    __slots__ = ("_counts", "_present", "_second")

    def __init__(self) -> None:
        self._counts: deque[int] = deque([0] * RATE_SECONDS, RATE_SECONDS)  # of the seconds before the present one
        self._second = 0
        self._present = 0

    def add(self, count: int, now_ms: int) -> None:
        """Count things that happen now."""
        second = now_ms // 1000
        if second == self._second:
            self._present += count
        else:
            self._turn(second)
            self._present = count

    def _turn(self, second: int) -> None:
        """Begin a second; the seconds between have no count."""
        if second > self._second:
            self._counts.append(self._present)
            self._counts.extend([0] * min(second - self._second - 1, RATE_SECONDS))
        self._second = second
        self._present = 0

    def per_second(self, now_ms: int) -> float:
        """Return the rate of the last ten seconds, without the one that has begun."""
        second = now_ms // 1000
        if second != self._second:
            self._turn(second)
        return sum(self._counts) / RATE_SECONDS
