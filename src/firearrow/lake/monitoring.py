"""Pages of the service that fills tables: health, metrics and the state of each table.

============  ==========================================================================
``/healthz``  200: the process runs
``/readyz``   200 if all tables are fresh; 503 with a line for each one that is not
``/metrics``  metrics of each table, for Prometheus
``/varz``     JSON: the state of each table
============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Final

from firearrow.client.session.portal import LoopThread
from firearrow.clock import Clock, SystemClock
from firearrow.lake.filling import TableStatus
from firearrow.net.exposition import CONTENT_TYPE, Family, Metrics, MetricSample, pieces
from firearrow.net.http import Answer, HttpServer, Request, plain
from firearrow.net.operations import json_of

Statuses = Callable[[], Iterable[TableStatus]]

_LABELS: Final = ("table", "topic")
_LAG: Final = Family("firearrow_table_lag_seconds", "gauge", "Age of the newest complete state of a table", _LABELS)
_TARGET: Final = Family("firearrow_table_lag_target_seconds", "gauge", "Lag that a table may have", _LABELS)
_STOPPED: Final = Family("firearrow_table_stopped", "gauge", "1 if a table can't go on", _LABELS)
_COUNTS: Final = {
    "steps": Family("firearrow_table_commits_total", "counter", "Commits with messages", _LABELS),
    "rows": Family("firearrow_table_rows_total", "counter", "Rows that were written", _LABELS),
    "files": Family("firearrow_table_files_total", "counter", "Files that were written", _LABELS),
    "size_bytes": Family("firearrow_table_bytes_total", "counter", "Bytes of the files that were written", _LABELS),
    "undecoded": Family("firearrow_table_undecoded_total", "counter", "Messages that did not decode", _LABELS),
}


def lag_seconds(status: TableStatus, now_ms: int) -> float | None:
    """Return the age of the newest complete state of a table; None if there was none yet."""
    return None if status.fresh_ms is None else (now_ms - status.fresh_ms) / 1000


def reasons(statuses: Iterable[TableStatus], now_ms: int) -> list[str]:
    """Return a sentence for each table that is not fresh."""
    found = []
    for status in statuses:
        lag = lag_seconds(status, now_ms)
        if status.trouble:
            found.append(f"{status.name}: {status.trouble}")
        elif lag is None:
            found.append(f"{status.name}: not filled yet")
        elif lag > status.lag_seconds:
            found.append(f"{status.name}: {lag:.0f} s behind, {status.lag_seconds:g} s are allowed")
    return found


def metrics(statuses: Iterable[TableStatus], now_ms: int) -> Metrics:
    """Return the metrics of tables."""
    them = list(statuses)

    def samples() -> Iterator[tuple[Family, Iterable[MetricSample]]]:
        lags = [(labels_of(status), lag_seconds(status, now_ms)) for status in them]
        yield _LAG, [MetricSample(labels, lag) for labels, lag in lags if lag is not None]
        yield _TARGET, [MetricSample(labels_of(status), status.lag_seconds) for status in them]
        yield _STOPPED, [MetricSample(labels_of(status), int(bool(status.trouble))) for status in them]
        for name, family in _COUNTS.items():
            yield family, [MetricSample(labels_of(status), getattr(status, name)) for status in them]

    return Metrics(samples(), {})


def labels_of(status: TableStatus) -> Mapping[str, object]:
    """Return the labels of a table."""
    return {"table": status.name, "topic": status.topic}


@contextmanager
def serving(
    statuses: Statuses, host: str, port: int, clock: Clock | None = None, *, trouble: Callable[[], str] = lambda: ""
) -> Iterator[int]:
    """Serve the pages on a thread during a block, and give the port; CannotListen if that fails.

    ``trouble`` returns why the topics are not known, an empty text if they are.
    """
    time = clock or SystemClock()

    def ready(_: Request) -> Answer:
        found = [*filter(None, [trouble()]), *reasons(statuses(), time.now_ms())]
        if found:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(found))
        return plain(HTTPStatus.OK, "ok")

    def various(_: Request) -> Answer:
        now_ms = time.now_ms()
        return json_of([{**asdict(status), "lag": lag_seconds(status, now_ms)} for status in statuses()])

    pages: dict[str, Callable[[Request], Answer]] = {
        "/healthz": lambda _: plain(HTTPStatus.OK, "ok"),
        "/readyz": ready,
        "/metrics": lambda _: Answer(HTTPStatus.OK, pieces(metrics(statuses(), time.now_ms())), CONTENT_TYPE),
        "/varz": various,
    }

    def answer(request: Request) -> Answer:
        page = pages.get(request.path)
        return plain(HTTPStatus.NOT_FOUND, f"the pages are {', '.join(pages)}") if page is None else page(request)

    server = HttpServer(answer)
    thread = LoopThread("firearrow lake")

    async def started() -> int:
        found = await server.bind(host, port)
        await server.serve()
        return found

    async def ended() -> None:
        server.close()

    try:
        yield thread.run(started())
    finally:
        thread.close(ended)
