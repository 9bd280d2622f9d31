"""Histograms of the time that requests take, counted by the turn of the event loop, not by the request.

Nearly every request is answered in the turn that has read it, and all answers of a turn leave at its end. So the
requests of a turn took equally long, and are counted by their codes until it ends. A request with another end (refused,
without an answer, answered later) is counted separately.

Source: RocketMQ's ``RemotingMetricsManager``, ``NettyRemotingAbstract#writeResponse``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from firearrow.clock import Clock, seconds_of
from firearrow.net.outgoing import Departures
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
OPEN_MAX: Final = 4096
"""Limit on the open requests noted for one peer. Beyond it all are forgotten, and only the time of their last part is
counted.
"""
OTHER: Final = -1
"""Stands for all unknown codes."""
_WAITING: Final = frozenset(
    map(
        int,
        (
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.POP_MESSAGE,
            RequestCode.POP_LITE_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.NOTIFICATION,
        ),
    )
)
_KNOWN: Final = frozenset(map(int, RequestCode))


class Histogram:
    """Counts values by bounds: a value counts for the first bound that is not below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, ``count`` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Count of the values."""
        return sum(self.counts)


class RpcKey(NamedTuple):
    """Labels of a request's time; ``waited`` tells whether it waited for messages."""

    code: int
    response_code: int
    waited: bool
    is_oneway: bool


class RpcMeter:
    """Keeps the histograms. Counts are collected until the turn ends: then ``departures`` call back."""

    def __init__(self, clock: Clock, departures: Departures) -> None:
        self._seconds = seconds_of(clock)
        self._departures = departures
        self._code, self._number = OTHER, 0  # the first code of the present turn, and its count
        self._counts: list[int] = []  # bucket counts of that code
        self._others: dict[int, int] = {}  # count of requests in the turn, by any other code
        self._usual: dict[int, Histogram] = {}  # histograms of requests answered in their turn, by code
        self.histograms: defaultdict[RpcKey, Histogram] = defaultdict(lambda: Histogram(BOUNDS_MS))
        self._since_ms = 0
        departures.call_last(self._end_turn)

    def count(self, code: int, number: int, since_ms: int) -> None:
        """Count successful answers to requests of a code that arrived at a time."""
        if not self._number:
            if code != self._code:
                self._code, self._counts = code, self._usual_of(code).counts
            self._number, self._since_ms = number, since_ms
            if not self._departures.is_planned:  # nearly always an answer has planned it already
                self._departures.plan()
        elif code == self._code:
            self._number += number
        else:
            self._others[code] = self._others.get(code, 0) + number

    def _usual_of(self, code: int) -> Histogram:
        usual = self._usual.get(code)
        if usual is None:
            usual = self._usual[code] = self.histograms[RpcKey(code, 0, False, False)]
        return usual

    def _end_turn(self) -> None:
        """Count the answers of a turn, which leave now."""
        number = self._number
        if number:
            self._number = 0
            took_ms = self._seconds() * 1000 - self._since_ms
            if took_ms < 1 and not self._others:  # nearly always
                self._counts[0] += number
            else:
                self._add_all(number, int(took_ms))

    def _add_all(self, number: int, took_ms: int) -> None:
        place = bisect_left(BOUNDS_MS, took_ms)
        for code, times in ((self._code, number), *self._others.items()):
            usual = self._usual_of(code)
            usual.counts[place] += times
            usual.sum += max(took_ms, 0) * times
        self._others.clear()

    def note(
        self, request: AnyCommand, answer: Response | bytes | None, open_since: dict[int, int], received_ms: int
    ) -> None:
        """Note a request that is answered separately, or left open (None).

        ``open_since`` of its peer holds open requests by opaque. The last read of the peer was at ``received_ms``.
        """
        oneway = request.is_oneway
        if answer is None and not oneway:
            if len(open_since) >= OPEN_MAX:
                open_since.clear()
            open_since[request.opaque] = received_ms
            return
        opened_ms = open_since.pop(request.opaque, None)
        since_ms = received_ms if opened_ms is None else opened_ms
        code = request.code if request.code in _KNOWN else OTHER
        waited = opened_ms is not None and code in _WAITING
        response_code = answer.code if isinstance(answer, Response) else 0
        key = RpcKey(code, response_code, waited, oneway)
        self.histograms[key].add(max(0, int(self._seconds() * 1000) - since_ms))


# --- Counts and histograms by labels ---
#
# Clients choose the names in requests, so the count of keys has a limit; beyond it nothing is counted.


KEYS_MAX: Final = 50_000  # of one family, as RocketMQ's metricsOtelCardinalityLimit

K = TypeVar("K", bound=Hashable)


class Counts(Generic[K]):
    """Counts by keys. Keys beyond a limit are not counted."""

    def __init__(self) -> None:
        self.of: dict[K, int] = {}

    def add(self, key: K, count: int = 1) -> None:
        """Add to the count of a key."""
        known = self.of.get(key)
        if known is not None:
            self.of[key] = known + count
        elif len(self.of) < KEYS_MAX:
            self.of[key] = count


class Histograms(Generic[K]):
    """Histograms by keys, with the limit of `Counts`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.of: dict[K, Histogram] = {}

    def add(self, key: K, value: float) -> None:
        """Add a value to the histogram of a key."""
        found = self.of.get(key)
        if found is None:
            if len(self.of) >= KEYS_MAX:
                return
            found = self.of[key] = Histogram(self._bounds)
        found.add(value)
