"""Lag of streaming queries behind the log, queue by queue.

::

    listener = LagListener()
    spark.streams.addListener(listener)
    ...
    listener.lag("my query")      # {Queue("orders", "broker-a", 0): 17, ...}
    listener.prometheus()         # the same as text, for a scraper

After each step, Spark calls a listener with the end offsets of the step and the latest offsets of the log. Their
difference is the lag. It costs the brokers nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from firearrow.client.queues import Queue
from firearrow.errors import ConfigError
from firearrow.spark import offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

_METRIC = "firearrow_stream_lag_messages"


class QueueLag(NamedTuple):
    """Number of messages of a queue that a query has not read yet."""

    queue: Queue
    messages: int


class LagListener(StreamingQueryListener):
    """Lag of every query that reads RocketMQ; any thread may read it.

    ``on_lag`` is called after each step, in Spark's thread, with the query's name (its id, if it has no name) and its
    lags.
    """

    def __init__(self, on_lag: Callable[[str, list[QueueLag]], None] | None = None) -> None:
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._lags: dict[str, dict[Queue, int]] = {}
        self._names: dict[str, str] = {}

    def lag(self, query: str) -> dict[Queue, int]:
        """Return the lag of a query after its last step; empty if there was none."""
        with self._lock:
            return dict(self._lags.get(query, {}))

    def queries(self) -> list[str]:
        """Name the queries that run and have made a step."""
        with self._lock:
            return sorted(self._lags)

    def prometheus(self) -> str:
        """Return all lags in Prometheus' text format."""
        lines = [
            f"# HELP {_METRIC} Messages of a queue that a streaming query has not read yet.",
            f"# TYPE {_METRIC} gauge",
        ]
        with self._lock:
            for query, lags in sorted(self._lags.items()):
                for queue, messages in sorted(lags.items()):
                    labels = {
                        "query": query,
                        "topic": queue.topic,
                        "broker": queue.broker,
                        "queue": str(queue.queue_id),
                    }
                    shown = ",".join(
                        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items()
                    )
                    lines.append(f"{_METRIC}{{{shown}}} {messages}")
        return "\n".join(lines) + "\n"

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query has no lag before its first step."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the offsets of a step."""
        progress = event.progress
        name = progress.name or str(progress.id)
        lags: dict[Queue, int] = {}
        for source in progress.sources:
            lags |= _lags_of(source)
        if not lags:
            return
        with self._lock:
            self._lags[name] = lags
            self._names[str(progress.runId)] = name
        if self._on_lag is not None:
            self._on_lag(name, [QueueLag(*item) for item in sorted(lags.items())])

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: the lag has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        with self._lock:
            name = self._names.pop(str(event.runId), None)
            if name is not None:
                self._lags.pop(name, None)


def _lags_of(source: Any) -> dict[Queue, int]:
    """Return the lag in a source's progress; empty for sources of other formats."""
    try:
        end = offsets.parse_checkpoint(source.endOffset, "end offset")
        latest = offsets.parse_checkpoint(source.latestOffset, "latest offset")
    except ConfigError:
        return {}
    return offsets.lag(end, latest)
