"""Rates of a consumer by topic, as tools request them (307).

Events are counted in spans of ten seconds, kept for an hour. Rates are of the last minute: its last six spans,
including the current one.

Source: RocketMQ's ``ConsumerStatsManager``, ``StatsItem``, which takes samples by timers instead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from firearrow.wire.client_bodies import ConsumeStatus

SPAN_SECONDS: Final = 10
SPANS_OF_MINUTE: Final = 6
SPANS_OF_HOUR: Final = 360


class _TenSeconds:
    """Counts of ten seconds, up to ``ends``."""

    __slots__ = ("call_seconds", "calls", "consumed", "ends", "failed", "pull_seconds", "pulled", "pulls")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_seconds = self.call_seconds = 0.0


_NEVER: Final = _TenSeconds(-math.inf)


class ConsumeRates:
    """Counts of one consumer from ``began`` on; all times are seconds of one clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._last: dict[str, _TenSeconds] = {}
        self._spans: dict[str, deque[_TenSeconds]] = {}

    def pulled(self, topic: str, messages: int, began: float, now: float) -> None:
        """Count the messages of a pull or pop."""
        span = self._span(topic, now)
        span.pulls += 1
        span.pulled += messages
        span.pull_seconds += now - began

    def consumed(self, topic: str, messages: int, began: float, now: float, ok: bool) -> None:
        """Count a call of a handler; for single messages, one call each."""
        span = self._last.get(topic, _NEVER)
        if now >= span.ends:
            span = self._span(topic, now)
        span.calls += 1
        span.call_seconds += now - began
        if ok:
            span.consumed += messages
        else:
            span.failed += messages

    def _span(self, topic: str, now: float) -> _TenSeconds:
        span = self._last.get(topic, _NEVER)
        if now >= span.ends:
            span = self._last[topic] = _TenSeconds((now // SPAN_SECONDS + 1) * SPAN_SECONDS)
            self._spans.setdefault(topic, deque(maxlen=SPANS_OF_HOUR)).append(span)
        return span

    def status(self, topic: str, now: float) -> ConsumeStatus:
        """Rates of a topic."""
        begins = now // SPAN_SECONDS * SPAN_SECONDS  # of the current span
        kept = self._spans.get(topic, ())
        hour = [one for one in kept if one.ends > begins - (SPANS_OF_HOUR - 1) * SPAN_SECONDS]
        since = begins - (SPANS_OF_MINUTE - 1) * SPAN_SECONDS
        minute = [one for one in hour if one.ends > since]
        seconds = max(now - max(since, self._began), 1.0)
        calls = minute if any(one.calls for one in minute) else hour
        return ConsumeStatus(
            pull_rt=_mean_ms((one.pulls, one.pull_seconds) for one in minute),
            pull_tps=sum(one.pulled for one in minute) / seconds,
            consume_rt=_mean_ms((one.calls, one.call_seconds) for one in calls),
            consume_ok_tps=sum(one.consumed for one in minute) / seconds,
            consume_failed_tps=sum(one.failed for one in minute) / seconds,
            consume_failed_msgs=sum(one.failed for one in hour),
        )


def _mean_ms(timed: Iterable[tuple[int, float]]) -> float:
    count, seconds = 0, 0.0
    for times, took in timed:
        count += times
        seconds += took
    return 1000 * seconds / count if count else 0.0
