"""Export of metrics, to a collector by OTLP or to the log.

The values come from `net.exposition`, gathered in the event loop, one family in a turn. A thread hands them to the
exporter of OpenTelemetry's SDK (the extra ``otel``), so a slow or absent collector delays nothing. Names are from
RocketMQ's instruments, and Prometheus adds the unit: ``rocketmq_rpc_latency`` in ``milliseconds``. All counts start
with the server or, in deltas, with the last successful export. So a collector gets the counts that it missed with the
next export.

Source: RocketMQ's ``BrokerMetricsManager``, ``ControllerMetricsManager``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from firearrow.clock import SystemClock
from firearrow.config.metrics import MetricsKeys
from firearrow.errors import MissingPackage
from firearrow.logs import Log
from firearrow.net.exposition import SCOPE, Family, Labels, Metrics, MetricSample, Value
from firearrow.net.meter import Histogram
from firearrow.net.tasks import TaskService

log: Final = Log(__name__)

NS_OF_MS: Final = 1_000_000
SAY_AGAIN_SECONDS: Final = 600.0  # between two log lines while a collector stays away
LAST_SECONDS_MAX: Final = 2.0  # for the last export, during a stop
_UNITS: Final = {"_milliseconds": "milliseconds", "_microseconds": "us", "_seconds": "seconds", "_bytes": "bytes"}
_OWN_UNITS: Final = ("_behind_bytes", "_cached_bytes")  # a name with such an ending contains its unit


class FamilyValues(NamedTuple):
    """Family with its values at one time."""

    family: Family
    samples: list[MetricSample]

    @property
    def name(self) -> str:
        """RocketMQ's name of the instrument, without its unit."""
        name, suffix = self.family.name, self._suffix
        return name.removesuffix(suffix) if suffix else name

    @property
    def unit(self) -> str:
        """The unit; empty for a count of things."""
        return _UNITS.get(self._suffix, "")

    @property
    def _suffix(self) -> str:
        name = self.family.name
        found = (suffix for suffix in _UNITS if name.endswith(suffix))
        return "" if name.endswith(_OWN_UNITS) else next(found, "")


Send = Callable[[Labels, Sequence[FamilyValues]], None]
"""Sends the gathered families with their common labels; raises OSError if it can't."""


class Exporting(TaskService):
    """Exports metrics at an interval, the first time after one and the last time at the stop.

    ``send`` runs in a thread. ``close`` ends the sender, also while it sends.
    """

    def __init__(
        self, seconds: float, metrics: Callable[[], Metrics], send: Send, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__("metrics")
        self._seconds = seconds
        self._metrics = metrics
        self._send = send
        self._close = close
        self._sending: asyncio.Future[None] | None = None
        self._trouble: str | None = None
        self._say_again_at = 0.0

    @property
    def trouble(self) -> str | None:
        """Reason why the last export failed."""
        return super().trouble or self._trouble

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self._export()

    async def stop(self) -> None:
        """Send the last values, if that is done soon; returns when no thread sends any more."""
        await super().stop()
        try:
            async with asyncio.timeout(LAST_SECONDS_MAX):
                if self._sending is not None:
                    await asyncio.wait([self._sending])
                await self._export()
        except TimeoutError:
            log.warning("last metrics are not sent", extra={"seconds": LAST_SECONDS_MAX})
        await asyncio.to_thread(self.close)
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def close(self) -> None:
        """End the sender at once."""
        self._close()

    async def _export(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            labels, found = await _gathered(self._metrics())
            self._sending = loop.run_in_executor(None, self._send, labels, found)
            await asyncio.shield(self._sending)
            self._trouble = None
        except OSError as error:
            self._trouble = f"{type(error).__name__}: {error}"
            now = loop.time()
            if now >= self._say_again_at:
                self._say_again_at = now + SAY_AGAIN_SECONDS
                log.warning("metrics are not sent", extra={"error": error})


async def _gathered(metrics: Metrics) -> tuple[Labels, list[FamilyValues]]:
    found: list[FamilyValues] = []
    for each in metrics.samples:
        if each is not None:
            family, samples = each
            found.append(FamilyValues(family, [_kept(sample) for sample in samples]))
        await asyncio.sleep(0)
    return metrics.labels, found


def _kept(sample: MetricSample) -> MetricSample:
    """Return an immutable copy of a sample."""
    value = sample.value
    if not isinstance(value, Histogram):
        return sample
    copy = Histogram(value.bounds)
    copy.counts, copy.sum = list(value.counts), value.sum
    return sample._replace(value=copy)


# --- in deltas ------------------------------------------------------------------------------


def in_deltas(send: Send) -> Send:
    """Return a sender of differences: counters and histograms since the last export that succeeded."""
    taken: dict[tuple[str, frozenset[tuple[str, object]]], Value] = {}

    def send_deltas(labels: Labels, found: Sequence[FamilyValues]) -> None:
        now = {
            (each.family.name, frozenset(sample.labels.items())): sample.value
            for each in found
            if each.family.kind != "gauge"
            for sample in each.samples
        }

        def delta(family: Family, sample: MetricSample) -> MetricSample:
            before = taken.get((family.name, frozenset(sample.labels.items())))
            return sample if before is None else sample._replace(value=_since(before, sample.value))

        deltas = [each._replace(samples=[delta(each.family, sample) for sample in each.samples]) for each in found]
        send(labels, deltas)
        taken.clear()
        taken.update(now)

    return send_deltas


def _since(before: Value, value: Value) -> Value:
    """Difference of two values; the whole value where the counter has begun again, as for a topic that was deleted and
    created.
    """
    if isinstance(value, Histogram) and isinstance(before, Histogram):
        counts = [now - then for now, then in zip(value.counts, before.counts, strict=True)]
        if min(counts) < 0:
            return value
        added = Histogram(value.bounds)
        added.counts, added.sum = counts, value.sum - before.sum
        return added
    assert not isinstance(value, Histogram), "a family has values of one kind"
    assert not isinstance(before, Histogram), "a family has values of one kind"
    return value - before if value >= before else value


# --- to the log -----------------------------------------------------------------------------


def log_them(labels: Labels, found: Sequence[FamilyValues]) -> None:
    """Write a log line for each metric that has values."""
    for each in found:
        values = [{**sample.labels, **_number_or_sum(sample.value)} for sample in each.samples]
        if values:
            log.info("metric", extra={"metric": each.name, "unit": each.unit, "labels": labels, "values": values})


def _number_or_sum(value: Value) -> Mapping[str, object]:
    if isinstance(value, Histogram):
        return {"count": value.count, "sum": value.sum, "counts": list(value.counts)}
    return {"value": value}


# --- by OTLP --------------------------------------------------------------------------------


def otlp_sender(keys: MetricsKeys) -> tuple[Send, Callable[[], None]]:
    """Return the sender to the collector of a configuration, and the function that ends it and its threads.

    ConfigError without the extra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
    except ImportError:
        raise MissingPackage("metricsExporterType=OTLP_GRPC needs", "OpenTelemetry's exporter", "otel") from None
    target = keys.metrics_grpc_exporter_target
    pairs = (pair.partition(":") for pair in keys.metrics_grpc_exporter_header.split(",") if pair)
    millis = keys.metric_grpc_exporter_time_out_in_mills
    exporter = OTLPMetricExporter(
        endpoint=target if target.startswith("http") else f"https://{target}",
        headers={name.strip().lower(): value.strip() for name, _, value in pairs},
        timeout=millis / 1000,
    )
    clock = SystemClock()
    began_ns = clock.now_ms() * NS_OF_MS

    def send(labels: Labels, found: Sequence[FamilyValues]) -> None:
        nonlocal began_ns
        now_ns = clock.now_ms() * NS_OF_MS
        span = _Span(began_ns, now_ns, in_delta=keys.metrics_in_delta)
        data = _metrics_data(labels, found, span)
        if exporter.export(data, timeout_millis=millis) is not MetricExportResult.SUCCESS:
            raise ConnectionError(f"the collector at {target} does not take them")
        if keys.metrics_in_delta:
            began_ns = now_ns

    return send, exporter.shutdown


class _Span(NamedTuple):
    """Interval of a count, and whether the count is only that of the interval."""

    began_ns: int
    now_ns: int
    in_delta: bool

    @property
    def temporality(self) -> Any:
        """The temporality in OpenTelemetry's terms."""
        from opentelemetry.sdk.metrics.export import AggregationTemporality as Temporality

        return Temporality.DELTA if self.in_delta else Temporality.CUMULATIVE


def _metrics_data(labels: Labels, found: Sequence[FamilyValues], span: _Span) -> Any:
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    common = {name: value for name, value in labels.items() if name != SCOPE}
    metrics = [
        export.Metric(each.name, each.family.help, each.unit, _data(each, common, span))
        for each in found
        if each.samples
    ]
    scope = export.ScopeMetrics(InstrumentationScope(str(labels.get(SCOPE, ""))), metrics, "")
    return export.MetricsData([export.ResourceMetrics(Resource.get_empty(), [scope], "")])


def _data(each: FamilyValues, common: Labels, span: _Span) -> Any:
    from opentelemetry.sdk.metrics import export

    if each.family.kind == "histogram":
        points = list(_spreads(each.samples, common, span))
        return export.Histogram(points, span.temporality)
    numbers = [
        export.NumberDataPoint(_attributes(common, sample), span.began_ns, span.now_ns, sample.value)
        for sample in each.samples
        if not isinstance(sample.value, Histogram)
    ]
    if each.family.kind == "counter":
        return export.Sum(numbers, span.temporality, is_monotonic=True)
    return export.Gauge(numbers)


def _spreads(samples: Sequence[MetricSample], common: Labels, span: _Span) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    for sample in samples:
        value = sample.value
        assert isinstance(value, Histogram), "its family is one of histograms"
        yield HistogramDataPoint(
            attributes=_attributes(common, sample),
            start_time_unix_nano=span.began_ns,
            time_unix_nano=span.now_ns,
            count=value.count,
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=[float(bound) for bound in value.bounds],
            min=0,
            max=0,
        )


def _attributes(common: Labels, sample: MetricSample) -> dict[str, Any]:
    return {**common, **sample.labels}
