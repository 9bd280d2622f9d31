"""Throughput of a broker: counters, and their rates over time.

The hot path adds to plain integers: the store to a topic's `PutCounters`, pulls to a group's counters
(`BrokerStats.got`). A periodic call, `BrokerStats.sample`, notes the sums; rates are differences of notes. The broker's
totals are computed from the parts on request.

Source: RocketMQ's ``BrokerStatsManager``, ``StatsItem``, ``BrokerStats``, ``StoreStatsService``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Final, Literal, NamedTuple

from firearrow.broker.events import GroupDeleted
from firearrow.broker.metrics.tally import Tally
from firearrow.clock import Clock
from firearrow.message.names import is_system_topic
from firearrow.store import PutCounters
from firearrow.wire.client_bodies import BrokerStatsData, StatsSnapshot

SAMPLE_SECONDS: Final = 10.0  # period of `BrokerStats.sample`

_MINUTE: Final = 6  # samples
_TEN_MINUTES: Final = 60
_HOUR: Final = 360
_DAY_HOURS: Final = 24
_STEP_COUNTERS: Final = 2000  # in a step of a sample: about 2 ms

Measure = Literal["messages", "size"]


class GroupCounters:
    """Messages of a topic that a group got, and bytes of their records."""

    __slots__ = ("get_bytes", "get_count")

    def __init__(self) -> None:
        self.get_count: int = 0
        self.get_bytes: int = 0


class CallSnapshot(NamedTuple):
    """Value of a counter, and its time."""

    at_ms: int
    messages: int
    size: int


class Series:
    """Snapshots of one counter: ten seconds apart for the last minute (or for ``samples``), ten minutes apart for the
    last hour, an hour apart for the last day.
    """

    __slots__ = ("_days", "_hours", "_minutes")

    def __init__(self, now_ms: int, samples: int = _MINUTE) -> None:
        start = CallSnapshot(now_ms, 0, 0)
        self._minutes: deque[CallSnapshot] = deque([start], samples + 1)
        self._hours: deque[CallSnapshot] = deque([start], _MINUTE + 1)
        self._days: deque[CallSnapshot] = deque([start], _DAY_HOURS + 1)

    def append(self, snapshot: CallSnapshot, tick: int) -> None:
        """Keep a snapshot; ``tick`` numbers the samples."""
        self._minutes.append(snapshot)
        if tick % _TEN_MINUTES == 0:
            self._hours.append(snapshot)
        if tick % _HOUR == 0:
            self._days.append(snapshot)

    def is_idle(self) -> bool:
        """Tell whether the counter has not changed for a day."""
        return len(self._days) > _DAY_HOURS and self._days[0].messages == self._minutes[-1].messages

    def per_second(self, samples: int) -> float:
        """Return the count a second over the last ``samples``, 0 before the first."""
        return _snapshot(list(self._minutes)[-samples - 1 :], "messages").tps

    def rates(self) -> tuple[float, float, float]:
        """Return the counts a second over ten seconds, a minute and ten minutes."""
        return self.per_second(1), self.per_second(_MINUTE), self.per_second(_TEN_MINUTES)

    def view(self, measure: Measure) -> BrokerStatsData:
        """Return the last minute, hour and day."""
        minute = list(self._minutes)[-_MINUTE - 1 :]
        return BrokerStatsData(
            _snapshot(minute, measure), _snapshot(self._hours, measure), _snapshot(self._days, measure)
        )


def _snapshot(notes: Sequence[CallSnapshot], measure: Measure) -> StatsSnapshot:
    first, last = notes[0], notes[-1]
    total = getattr(last, measure) - getattr(first, measure)
    seconds = (last.at_ms - first.at_ms) / 1000
    count = last.messages - first.messages
    return StatsSnapshot(total, total / seconds if seconds > 0 else 0.0, total / count if count > 0 else 0.0)


class DayTotals(NamedTuple):
    """Messages until the midnight before yesterday, until the last midnight, and until now."""

    yesterday_morning: int
    today_morning: int
    now: int


# Names of the counters in request 315, with their keys and measures.
_NAMES: Final[dict[str, tuple[str, Measure]]] = {
    "TOPIC_PUT_NUMS": ("topics", "messages"),
    "TOPIC_PUT_SIZE": ("topics", "size"),
    "GROUP_GET_NUMS": ("groups", "messages"),
    "GROUP_GET_SIZE": ("groups", "size"),
    "SNDBCK_PUT_NUMS": ("failures", "messages"),
    "BROKER_PUT_NUMS": ("puts", "messages"),
    "BROKER_GET_NUMS": ("gets", "messages"),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("user puts", "messages"),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("user gets", "messages"),
}


class Stalls:
    """Distribution of the stalls of the event loop, by a put or by something else.

    No clock is read for a put: it takes microseconds, unless it stalls the loop. Then the loop's next tick is late by
    that time (`firearrow.net.lateness`), and the log has grown.
    """

    BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)

    def __init__(self) -> None:
        self.by_puts: Final = [0] * (len(self.BOUNDS_MS) + 1)
        self.put_ms_max: int = 0
        self.other_ms_max: int = 0

    def add(self, stalled_ms: int, *, by_put: bool) -> None:
        """Count a stall."""
        if by_put:
            self.by_puts[bisect_right(self.BOUNDS_MS, stalled_ms)] += 1
            self.put_ms_max = max(self.put_ms_max, stalled_ms)
        else:
            self.other_ms_max = max(self.other_ms_max, stalled_ms)

    def put_times(self, puts: int) -> list[int]:
        """Return the counts of puts by their time: about 0 ms, up to 10 ms, up to 50 ms, ..."""
        return [max(0, puts - sum(self.by_puts)), *self.by_puts[1:]]

    def put_percentile_ms(self, puts: int, share: float) -> float:
        """Return the time in ms within which a share of the puts was done."""
        left = puts * (1 - share)
        for bound_ms, count in zip(
            reversed((*self.BOUNDS_MS, self.put_ms_max)), reversed(self.put_times(puts)), strict=True
        ):
            left -= count
            if left < 0:
                return float(min(bound_ms, self.put_ms_max))
        return 0.0


class BrokerStats:
    """All counters of a broker; ``cluster`` is the name of its totals in requests.

    ``is_system`` tells the broker's own topics, which do not count in the totals of a day. ``tally`` counts for metrics
    alone, None without metrics.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: str,
        is_system: Callable[[str], bool] = is_system_topic,
        tally: Tally | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        self.tally = tally
        self.stalls: Final = stalls or Stalls()
        self._clock = clock
        self._is_system = is_system
        self._tick = 0
        self._sampling: Iterator[None] | None = None
        self.boot_ms: Final = clock.now_ms()
        self.pulls_found: int = 0
        self.pulls_missed = 0
        self._topics: dict[str, PutCounters] = {}
        self._groups: dict[str, GroupCounters] = {}
        self._failures: dict[str, int] = {}
        self._system_puts: dict[str, PutCounters] = {}
        self._system_gets: dict[str, GroupCounters] = {}
        self._deleted_system_puts = self._deleted_system_gets = 0
        self._deleted_puts = (0, 0)
        self._get_count = 0
        self._get_bytes = 0
        self.puts: Final = Series(self.boot_ms, _TEN_MINUTES)
        self.gets: Final = Series(self.boot_ms, _TEN_MINUTES)
        self.found: Final = Series(self.boot_ms, _TEN_MINUTES)
        self.missed: Final = Series(self.boot_ms, _TEN_MINUTES)
        self._series: dict[str, dict[str, Series]] = {
            "topics": {},
            "groups": {},
            "failures": {},
            "puts": {cluster: self.puts},
            "gets": {cluster: self.gets},
            "user puts": {cluster: Series(self.boot_ms)},
            "user gets": {cluster: Series(self.boot_ms)},
        }
        self._cluster = cluster
        self._day = _day_of(self.boot_ms)
        self._put_mornings = (0, 0)
        self._get_mornings = (0, 0)

    def topic(self, topic: str) -> PutCounters:
        """Return the counters of a topic, which the store keeps and adds to until it is deleted."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = PutCounters()
            if self._is_system(topic):
                self._system_puts[topic] = counters
            self._series["topics"][topic] = Series(self._clock.now_ms())
        return counters

    def got(self, group: str, topic: str, count: int, size: int) -> None:
        """Count a pull that returned messages of a topic to a group, with ``size`` bytes of records."""
        key = f"{topic}@{group}"
        counters = self._groups.get(key)
        if counters is None:
            counters = self._groups[key] = GroupCounters()
            if self._is_system(topic):
                self._system_gets[key] = counters
            self._series["groups"][key] = Series(self._clock.now_ms())
        counters.get_count += count
        counters.get_bytes += size
        self._get_count += count
        self._get_bytes += size
        self.pulls_found += 1

    def sent_back(self, group: str, topic: str, count: int = 1) -> None:
        """Count messages of a topic that a group failed to consume."""
        key = f"{topic}@{group}"
        if key not in self._failures:
            self._series["failures"][key] = Series(self._clock.now_ms())
        self._failures[key] = self._failures.get(key, 0) + count

    def put_sum(self) -> tuple[int, int]:
        """Return the count of messages put since the start, and the bytes of their records."""
        topics = self._topics.values()
        count, size = self._deleted_puts
        return (
            count + sum(counters.put_count for counters in topics),
            size + sum(counters.put_bytes for counters in topics),
        )

    def topic_counters(self) -> list[tuple[str, PutCounters]]:
        """Return the counters of all topics with messages."""
        return list(self._topics.items())

    def group_counters(self) -> list[tuple[str, GroupCounters]]:
        """Return the counters of all ``topic@group`` with messages."""
        return list(self._groups.items())

    def topic_put_tps(self, topic: str) -> float:
        """Return the messages a second that a topic received over the last minute."""
        series = self._series["topics"].get(topic)
        return 0.0 if series is None else series.per_second(_MINUTE)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return the messages a second that a group got of a topic over the last minute."""
        series = self._series["groups"].get(f"{topic}@{group}")
        return 0.0 if series is None else series.per_second(_MINUTE)

    def view(self, stats_name: str, key: str) -> BrokerStatsData | None:
        """Return the counter of a request 315, None if there is no such counter.

        The key is a topic, ``topic@group``, or the cluster.
        """
        if stats_name not in _NAMES:
            return None
        kind, measure = _NAMES[stats_name]
        series = self._series[kind].get(key)
        return None if series is None else series.view(measure)

    def sample(self) -> None:
        """Note all sums; must be called every `SAMPLE_SECONDS`."""
        for _ in self._sample_in_steps():
            pass

    def sample_step(self) -> float:
        """Note some of the sums, and return the seconds until the next step: with ten thousand topics a sample takes 20
        ms.
        """
        if self._sampling is None:
            self._sampling = self._sample_in_steps()
        for _ in self._sampling:
            return 0.0
        self._sampling = None
        return SAMPLE_SECONDS

    def _sample_in_steps(self) -> Iterator[None]:
        self._tick += 1
        now_ms, tick = self._clock.now_ms(), self._tick
        puts = self.put_sum()
        self.puts.append(CallSnapshot(now_ms, *puts), tick)
        self.gets.append(CallSnapshot(now_ms, self._get_count, self._get_bytes), tick)
        self.found.append(CallSnapshot(now_ms, self.pulls_found, 0), tick)
        self.missed.append(CallSnapshot(now_ms, self.pulls_missed, 0), tick)
        user_puts, user_gets = self._user_put_count(), self._user_get_count()
        self._series["user puts"][self._cluster].append(CallSnapshot(now_ms, user_puts, 0), tick)
        self._series["user gets"][self._cluster].append(CallSnapshot(now_ms, user_gets, 0), tick)
        self._turn_day(now_ms, user_puts, user_gets)
        topics, groups = self._series["topics"], self._series["groups"]
        for number, (topic, put) in enumerate(list(self._topics.items()), 1):
            if topic in topics:  # the topic may have been deleted since the last step
                topics[topic].append(CallSnapshot(now_ms, put.put_count, put.put_bytes), tick)
            if number % _STEP_COUNTERS == 0:
                yield
        for number, (key, got) in enumerate(list(self._groups.items()), 1):
            if key in groups:
                groups[key].append(CallSnapshot(now_ms, got.get_count, got.get_bytes), tick)
                if groups[key].is_idle():
                    self._delete_group_key(key)
            if number % _STEP_COUNTERS == 0:
                yield
        failures = self._series["failures"]
        for number, (key, count) in enumerate(list(self._failures.items()), 1):
            if key in failures:
                failures[key].append(CallSnapshot(now_ms, count, 0), tick)
                if failures[key].is_idle():
                    self._delete_failures(key)
            if number % _STEP_COUNTERS == 0:
                yield

    def put_totals(self) -> DayTotals:
        """Return the messages put, without the broker's own topics."""
        return DayTotals(*self._put_mornings, self._user_put_count())

    def get_totals(self) -> DayTotals:
        """Return the messages got, without the broker's own topics."""
        return DayTotals(*self._get_mornings, self._user_get_count())

    def _user_put_count(self) -> int:
        system = sum(counters.put_count for counters in self._system_puts.values())
        return self.put_sum()[0] - system - self._deleted_system_puts

    def _user_get_count(self) -> int:
        system = sum(counters.get_count for counters in self._system_gets.values())
        return self._get_count - system - self._deleted_system_gets

    def delete_topic(self, topic: str) -> None:
        """Remove the counters of a topic; the broker's totals keep its counts."""
        counters = self._topics.pop(topic, None)
        if self.tally is not None:
            self.tally.forget_topic(topic)
        if counters is not None:
            del self._series["topics"][topic]
            count, size = self._deleted_puts
            self._deleted_puts = (count + counters.put_count, size + counters.put_bytes)
            if self._system_puts.pop(topic, None) is not None:
                self._deleted_system_puts += counters.put_count
        self._forget(lambda key: key.startswith(f"{topic}@"))

    def group_gone(self, gone: GroupDeleted) -> None:
        """Remove the counters of a group that is deleted."""
        self._forget(lambda key: key.endswith(f"@{gone.group}"))

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        """Remove the counters of some topics and groups."""
        for key in filter(is_gone, list(self._groups)):
            self._delete_group_key(key)
        for key in filter(is_gone, list(self._failures)):
            self._delete_failures(key)

    def _delete_group_key(self, key: str) -> None:
        del self._groups[key]
        del self._series["groups"][key]
        system = self._system_gets.pop(key, None)
        if system is not None:
            self._deleted_system_gets += system.get_count

    def _delete_failures(self, key: str) -> None:
        del self._failures[key]
        del self._series["failures"][key]

    def _turn_day(self, now_ms: int, put_count: int, get_count: int) -> None:
        today = _day_of(now_ms)
        if today != self._day:
            self._day = today
            self._put_mornings = (self._put_mornings[1], put_count)
            self._get_mornings = (self._get_mornings[1], get_count)


def _day_of(now_ms: int) -> date:
    """Return the day in the broker's time zone."""
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().date()
