"""History from Prometheus, beyond the hour that the console keeps: the same series, by queries of its HTTP API.

Each series of `firearrow.console.history` that brokers export has a query. Answers are kept for some seconds, so that
browsers that look on do not ask again with each sample.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from firearrow.clock import Clock
from firearrow.console.outgoing import answer_to, failure
from firearrow.errors import ConfigError, FirearrowError

SPANS: Final = {"6h": 6 * 3600, "1d": 24 * 3600, "7d": 7 * 24 * 3600, "30d": 30 * 24 * 3600}
"""Spans that a page offers, in seconds."""
POINTS: Final = 300
RATE_SECONDS_MIN: Final = 120
"""Shortest range of a rate: two scrapes of a minute each."""
KEPT_SECONDS: Final = 30.0
KEPT_MAX: Final = 200

Columns = list[list[float | None]]
Get = Callable[[str], bytes]


class NoHistory(FirearrowError):
    """Prometheus does not answer, or not as it should; the text is the reason."""


class _Series(msgspec.Struct):
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


def get(url: str) -> bytes:
    """Give the answer at a URL; raises OSError. An error of a query is JSON, too."""
    status, data = answer_to(url)
    if status not in (200, 400, 422):
        raise failure(url, status)
    return data


class Prometheus:
    """History of series at one address."""

    def __init__(self, url: str, clock: Clock, read: Get = get) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("--prometheus is no address of the form http://host:9090")
        self._url: Final = url.rstrip("/")
        self._clock = clock
        self._read = read
        self._kept: dict[tuple[str, str, tuple[str, ...]], tuple[float, asyncio.Task[Columns]]] = {}

    async def columns(self, names: Sequence[str], span: str, clusters: Sequence[str]) -> Columns:
        """Give times in seconds since 1970, then the values of each series at these times, None for a gap.

        Raises NoHistory with the reason.
        """
        key = (span, "|".join(clusters), tuple(names))
        now = self._clock.monotonic()
        self._kept = {at: it for at, it in self._kept.items() if now - it[0] < KEPT_SECONDS}
        if key not in self._kept:
            if len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = now, asyncio.create_task(self._asked(names, SPANS[span], clusters))
        return await asyncio.shield(self._kept[key][1])

    async def _asked(self, names: Sequence[str], seconds: int, clusters: Sequence[str]) -> Columns:
        end = self._clock.now_ms() // 1000
        step = seconds // POINTS
        times = [end - seconds + number * step for number in range(POINTS + 1)]
        found = [await self._series(query_of(name, step, clusters), times, step) for name in names]
        return [[float(at) for at in times], *found]

    async def _series(self, query: str, times: Sequence[int], step: int) -> list[float | None]:
        given = {"query": query, "start": times[0], "end": times[-1], "step": step}
        url = f"{self._url}/api/v1/query_range?{urlencode(given)}"
        try:
            answer = msgspec.json.decode(await asyncio.to_thread(self._read, url), type=_Answer)
            if answer.status != "success":
                raise ValueError(answer.error or answer.status)
            values = {round(at): float(text) for series in answer.data.result[:1] for at, text in series.values}
        except (OSError, ValueError, OverflowError) as error:
            raise NoHistory(f"Prometheus has no history: {_reason(error)}") from None
        return [value if (value := values.get(at)) is not None and isfinite(value) else None for at in times]


def _reason(error: Any) -> str:
    return str(getattr(error, "reason", "") or error)


def query_of(name: str, step: int, clusters: Sequence[str]) -> str:
    """Give the query of a series, of the brokers of some clusters or, without any, of all."""
    kind, _, subject = name.partition(" ")
    labels = {"topic": f"topic={json.dumps(subject)}", "group": f"consumer_group={json.dumps(subject)}"}
    matchers = [labels[kind]] if kind in labels else []
    if clusters:
        matchers.append(f"cluster=~{json.dumps('|'.join(map(_escaped, clusters)))}")
    chosen = f"{{{','.join(matchers)}}}"
    if kind in ("lag", "group"):
        return f"sum(rocketmq_consumer_lag_messages{chosen})"
    counter = "rocketmq_messages_out_total" if kind == "consuming" else "rocketmq_messages_in_total"
    return f"sum(rate({counter}{chosen}[{max(RATE_SECONDS_MIN, 4 * step)}s]))"


def _escaped(name: str) -> str:
    """Escape a name for a regular expression of RE2: a special character in brackets stands for itself."""
    return "".join(f"[{it}]" if it in ".+*?()|{}$" else f"\\{it}" if it in "[]^\\" else it for it in name)
