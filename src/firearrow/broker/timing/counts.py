"""Counts of waiting messages by topic: ``timermetrics``.

The timer log counts by the hashes of topics (``TimerStore.pending``). The names come from arriving messages, existing
topics and the file, whose counts are not read.

Source: RocketMQ ``TimerMetrics``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import ConfigError
from firearrow.files import read_newest
from firearrow.message.names import java_hash
from firearrow.store import TimerStore
from firearrow.wire import fastjson
from firearrow.wire.bodies import Body, DataVersion

FILE_NAME: Final = "timermetrics"


class TimerMetric(Body, frozen=True):
    """Count of waiting messages of a topic, and the time of the count (ms)."""

    count: int = 0
    time_stamp: int = 0


class TimerMetrics(Body, frozen=True):
    """Content of the file, and body of request 61."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)


class TimerCounts:
    """Counts of ``timers`` by the names of their topics."""

    def __init__(self, timers: TimerStore, clock: Clock, directory: Path) -> None:
        self._timers = timers
        self._clock = clock
        self._path = directory / FILE_NAME
        self._version = DataVersion()
        self._names: dict[int, str] = {}

    def load(self, topics: Iterable[str]) -> None:
        """Learn the names of topics; a file that can't be read names none."""
        try:
            found = read_newest(self._path, _metrics_of)
        except (ConfigError, OSError):
            found = None
        if found is not None:
            self._version = found.value.data_version
            topics = (*found.value.timing_count, *topics)
        for topic in topics:
            self.note(java_hash(topic), topic)

    def follow(self, metrics: TimerMetrics) -> None:
        """Learn a master's topics; their messages are counted here."""
        for topic in metrics.timing_count:
            self.note(java_hash(topic), topic)

    def note(self, topic_hash: int, topic: str) -> None:
        """Note the topic of a waiting message."""
        self._names[topic_hash] = topic

    def metrics(self) -> TimerMetrics:
        """Return the counts of waiting messages, of topics with a known name."""
        now_ms = self._clock.now_ms()
        names = dict(self._names)
        return TimerMetrics(
            self._version,
            {
                names[topic_hash]: TimerMetric(count, now_ms)
                for topic_hash, count in dict(self._timers.pending).items()
                if topic_hash in names
            },
        )

    def content(self) -> bytes:
        """Return the bytes of the file."""
        self._version = self._version.next_version(self._clock.now_ms())
        return fastjson.dumps(self.metrics())


def _metrics_of(data: bytes) -> TimerMetrics:
    return fastjson.decode(data, TimerMetrics)
