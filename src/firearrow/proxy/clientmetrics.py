"""Metrics that clients measure and push by OpenTelemetry's protocol (OTLP) to the proxy's own port.

Clients do so with ``metricCollectorMode=proxy``. The broker's exposition shows their series beside its own, until their
client is gone. A client may push anything, so there are limits: known names and labels, a client that has sent its
settings, counts of series of one client and of all clients, the size of a request. A point beyond a limit is refused;
the answer counts such points and names the first reason.

Source: the clients' ``HistogramEnum``, ``GaugeEnum`` and ``MetricLabels``; OTLP's specification.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from firearrow.logs import Log
from firearrow.net.exposition import Family, MetricSample, Value
from firearrow.net.grpc import Call, Method
from firearrow.net.meter import KEYS_MAX, Histogram
from firearrow.proxy import otlpmessages as otlp
from firearrow.proxy.calls import Context, Door
from firearrow.proxy.clients import Client, Clients
from firearrow.proxy.descriptors import parsed
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError
from firearrow.wire.grpc import CallFailed, Status

log: Final = Log(__name__)

SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
METHOD: Final = "Export"
REQUEST_BYTES_MAX: Final = 512 * 1024
SERIES_MAX: Final = 1000  # of one client: a consumer has six for each topic
LABEL_CHARS_MAX: Final = 255
BOUNDS_MAX: Final = 32
COUNT_MAX: Final = 2**53  # further numbers are no whole ones for a reader of the metrics

_DELTA: Final = otlp.AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_GROUP: Final = ("topic", "client_id", "consumer_group")
FAMILIES: Final = {
    family.name: family
    for family in (
        Family(
            "rocketmq_send_cost_time",
            "histogram",
            "How long sends of clients take, in ms",
            ("topic", "client_id", "invocation_status"),
        ),
        Family("rocketmq_delivery_latency", "histogram", "Time from a message's delivery to its client, in ms", _GROUP),
        Family("rocketmq_await_time", "histogram", "Time that messages wait in consumers, in ms", _GROUP),
        Family(
            "rocketmq_process_time",
            "histogram",
            "How long consumers work on messages, in ms",
            (*_GROUP, "invocation_status"),
        ),
        Family("rocketmq_consumer_cached_messages", "gauge", "Messages that wait in consumers", _GROUP),
        Family("rocketmq_consumer_cached_bytes", "gauge", "Bytes of the bodies of these", _GROUP),
    )
}

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""Name and labels of a series."""


class _Rejection(Exception):
    """A point is not taken; the message is the reason."""


class ClientMetrics:
    """Series of clients, by client id. With ``shows`` False they are taken and forgotten, since nobody reads them."""

    def __init__(self, clients: Clients, *, shows: bool) -> None:
        self._clients = clients
        self._shows = shows
        self._series: dict[str, dict[str, dict[Labels, Value]]] = {name: {} for name in FAMILIES}  # then by client
        self._counts: dict[str, int] = {}  # of a client's series
        self._owners: dict[str, Client] = {}  # the same id of another user is another client
        self._count = 0
        clients.left.append(self._forget)
        if not shows:
            log.warning("metrics of clients are not shown: metricsExporterType is DISABLE")

    def __len__(self) -> int:
        """Count of series."""
        return self._count

    def methods(self, door: Door) -> Mapping[bytes, Method]:
        """Methods by their paths."""

        def handle(call: Call, data: bytes) -> bytes:
            try:
                answer = self._export(door.open(call), data)
            except ProxyError as error:
                raise CallFailed(Status.PERMISSION_DENIED, error.message) from None
            if door.meter is not None:
                door.meter.count(METHOD, Code.OK, call.received_ms)
            return answer

        return {f"/{SERVICE}/{METHOD}".encode(): Method(METHOD, handle)}

    def samples(self) -> Iterator[tuple[Family, Iterable[MetricSample]]]:
        """Yield the families with the present series."""
        for name, family in FAMILIES.items():
            yield family, self._samples_of(name)

    def _samples_of(self, name: str) -> Iterator[MetricSample]:
        for series in list(self._series[name].values()):
            for labels, value in list(series.items()):
                yield MetricSample(dict(labels), value)

    def _forget(self, client: Client) -> None:
        client_id = client.client_id
        if self._owners.get(client_id) is client:
            del self._owners[client_id]
            self._count -= self._counts.pop(client_id, 0)
            for series in self._series.values():
                series.pop(client_id, None)

    # --- pushes ---

    def _export(self, context: Context, data: bytes) -> bytes:
        if len(data) > REQUEST_BYTES_MAX:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, f"metrics have more than {REQUEST_BYTES_MAX} bytes")
        request = parsed(otlp.ExportMetricsServiceRequest, data)
        rejected, reason = 0, ""
        for resource in request.resource_metrics if self._shows else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for fault in self._take(context, metric):
                        rejected, reason = rejected + 1, reason or fault
        answer = otlp.ExportMetricsServiceResponse()
        if rejected:
            answer.partial_success.rejected_data_points = rejected
            answer.partial_success.error_message = reason
        return answer.SerializeToString()

    def _take(self, context: Context, metric: otlp.Metric) -> Iterator[str]:
        """Take the points of a metric; yield the reason for each that is rejected."""
        family = FAMILIES.get(metric.name)
        kind = metric.WhichOneof("data")
        if kind == "histogram":
            is_delta = metric.histogram.aggregation_temporality == _DELTA
            for histogram in metric.histogram.data_points:
                try:
                    of, key = self._place(context, family, "histogram", histogram.attributes)
                    self._put(of, key, _histogram(histogram), adds=is_delta)
                except _Rejection as fault:
                    yield str(fault)
        elif kind is not None:
            for point in metric.gauge.data_points if kind == "gauge" else metric.sum.data_points:
                try:
                    of, key = self._place(context, family, "gauge", point.attributes)
                    self._put(of, key, _number(point), adds=False)
                except _Rejection as fault:
                    yield str(fault)

    def _place(
        self, context: Context, family: Family | None, kind: str, attributes: Iterable[otlp.KeyValue]
    ) -> tuple[Client, Key]:
        """Return client and key of a point. A client's own id counts, whatever its labels say."""
        if family is None or family.kind != kind:
            raise _Rejection("the metric is none of RocketMQ's clients")
        found = {it.key: it.value.string_value for it in attributes if it.key in family.labels}
        client_id = context.client_id or found.get("client_id", "")
        client = self._clients.of(msgspec.structs.replace(context, client_id=client_id))
        if client is None:
            raise _Rejection("the client has sent no settings")
        found["client_id"] = client_id
        for value in found.values():
            if len(value) > LABEL_CHARS_MAX or not value.isprintable():
                raise _Rejection(f"a label has more than {LABEL_CHARS_MAX} characters, or one that is not printable")
        return client, (family.name, tuple((label, found[label]) for label in family.labels if label in found))

    def _put(self, client: Client, key: Key, value: Value, *, adds: bool) -> None:
        name, labels = key
        client_id = client.client_id
        if self._owners.setdefault(client_id, client) is not client:
            raise _Rejection("another user's client has the same id")
        known = self._series[name].get(client_id, {}).get(labels)
        if known is None:
            count = self._counts.get(client_id, 0)
            if count >= SERIES_MAX or self._count >= KEYS_MAX:
                raise _Rejection("there are too many series")
            self._counts[client_id] = count + 1
            self._count += 1
        elif adds and isinstance(known, Histogram) and isinstance(value, Histogram) and known.bounds == value.bounds:
            value = _sum(known, value)
        self._series[name].setdefault(client_id, {})[labels] = value


def _number(point: otlp.NumberDataPoint) -> int | float:
    value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    if not math.isfinite(value):
        raise _Rejection("a value is no number")
    return value


def _histogram(point: otlp.HistogramDataPoint) -> Histogram:
    if len(point.explicit_bounds) > BOUNDS_MAX or len(point.bucket_counts) != len(point.explicit_bounds) + 1:
        raise _Rejection(f"a histogram has more than {BOUNDS_MAX} bounds, or not a count for each")
    found = Histogram(list(point.explicit_bounds))
    found.counts = list(point.bucket_counts)
    found.sum = point.sum
    if not all(map(math.isfinite, (*found.bounds, found.sum))) or max(found.counts) > COUNT_MAX:
        raise _Rejection("a value is no number, or too large")
    if any(low >= high for low, high in pairwise(found.bounds)):
        raise _Rejection("the bounds of a histogram do not ascend")
    return found


def _sum(known: Histogram, more: Histogram) -> Histogram:
    found = Histogram(known.bounds)
    found.counts = [min(count + other, COUNT_MAX) for count, other in zip(known.counts, more.counts, strict=True)]
    found.sum = known.sum + more.sum
    return found if math.isfinite(found.sum) else more
