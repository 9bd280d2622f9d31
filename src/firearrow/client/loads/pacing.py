"""Repeat an operation, with a number in flight or per second, until the plan ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from firearrow.errors import ConfigError, FirearrowError

IN_FLIGHT_MAX: Final = 4096
COUNT_MAX: Final = 1_000_000_000
SECONDS_MAX: Final = 24 * 3600.0
REASONS_MAX: Final = 5  # different failures to count
AFTER_FAILURE_SECONDS: Final = 0.01  # otherwise a dead broker causes a busy loop


# Histogram of durations, in bounded memory: each value is stored with an error of less than 1 %.
#
# A bucket is as wide as 1/128 of the smallest value in it, so values from a microsecond to an hour need a few thousand
# buckets at most. The idea is that of HdrHistogram (http://hdrhistogram.org).


_BITS: Final = 8  # each value below 256 has a separate bucket
_MASK: Final = (1 << _BITS) - 1


class LatencyHistogram:
    """Counts of values, whole numbers of 0 or more (here: microseconds)."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count: int = 0
        self.total: int = 0
        self.max: int = 0

    def add(self, value: int) -> None:
        """Count a value; a negative one, after a step of the clock, counts as 0."""
        value = max(value, 0)
        bucket = _bucket(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.max = max(self.max, value)

    @property
    def mean(self) -> float:
        """Mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def at(self, share: float) -> int:
        """Value that a share of all values (0 to 1) does not exceed; 0 without values."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_last_in(bucket), self.max)
        return self.max


def _bucket(value: int) -> int:
    shift = max(0, value.bit_length() - _BITS)
    return shift << _BITS | value >> shift


def _last_in(bucket: int) -> int:
    shift = bucket >> _BITS
    return ((bucket & _MASK) + 1 << shift) - 1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Amount of a load: it ends after ``seconds``, or earlier after ``count`` operations. With ``per_second`` each
    operation has a start time, and its duration counts from then on. So a server that stalls is not measured less
    often. Raises ConfigError for impossible values."""

    seconds: float = 10.0
    count: int | None = None
    in_flight: int = 64
    per_second: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= SECONDS_MAX:
            raise ConfigError(f"a load of {self.seconds:g} s: allowed is up to a day")
        if self.count is not None and not 1 <= self.count <= COUNT_MAX:
            raise ConfigError(f"a load of {self.count}: allowed is 1 to {COUNT_MAX}")
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(f"{self.in_flight} in flight: allowed is 1 to {IN_FLIGHT_MAX}")
        if self.per_second is not None and not 0 < self.per_second < float("inf"):
            raise ConfigError(f"{self.per_second:g} per second: must be more than 0")


@dataclass(slots=True)
class LoadResult:
    """Result of a load; ``took`` is in microseconds, ``reasons`` say why operations failed."""

    seconds: float = 0.0
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    took: LatencyHistogram = field(default_factory=LatencyHistogram)
    reasons: dict[str, int] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        """Count a failure."""
        self.failed += 1
        reason = f"{type(error).__name__}: {error}"
        if reason in self.reasons or len(self.reasons) < REASONS_MAX:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


async def run(
    plan: LoadPlan, one: Callable[[int], Awaitable[int]], ended: Callable[[], bool] = lambda: False
) -> LoadResult:
    """Run an operation by the plan, and measure it; ``one`` gets a number and returns its count of messages.

    Failures (OSError, FirearrowError) are counted. Operations in flight at the end are cancelled and not counted.
    ``ended`` returns True if there is no more work.
    """
    pacing = _Pacer(plan, one, ended)
    try:
        async with asyncio.timeout(plan.seconds), asyncio.TaskGroup() as tasks:
            for _ in range(plan.in_flight):
                tasks.create_task(pacing.work())
    except TimeoutError:  # the plan's end: errors of ``one`` are counted
        pass
    return pacing.result()


class _Pacer:
    def __init__(self, plan: LoadPlan, one: Callable[[int], Awaitable[int]], ended: Callable[[], bool]) -> None:
        self._plan = plan
        self._one = one
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._next = 0
        self._measured = LoadResult()

    def result(self) -> LoadResult:
        self._measured.seconds = self._loop.time() - self._begin
        return self._measured

    async def work(self) -> None:
        count, per_second, time = self._plan.count, self._plan.per_second, self._loop.time
        measured = self._measured
        while not self._ended() and (count is None or self._next < count):
            number = self._next
            self._next += 1
            began = time()
            if per_second is not None:
                due = self._begin + number / per_second
                if due > began:
                    await asyncio.sleep(due - began)
                began = due
            try:
                messages = await self._one(number)
            except (OSError, FirearrowError) as error:
                measured.fail(error)
                await asyncio.sleep(AFTER_FAILURE_SECONDS)
                continue
            if messages:
                measured.took.add(round(1e6 * (time() - began)))
                measured.messages += messages
