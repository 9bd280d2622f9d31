"""Metrics of a proxy: a table of families.

RocketMQ's proxy has ``rocketmq_proxy_up`` alone. The other families are Firearrow's own: one histogram has
the rate, the errors and the duration of each RPC, with the code inside the answer as a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from firearrow.net.exposition import (
    TARGET,
    Family,
    Labels,
    MetricPart,
    Metrics,
    MetricSample,
    Samples,
    common_labels,
    keyed,
)
from firearrow.net.server import Server
from firearrow.proxy.clientmetrics import FAMILIES
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import ClientType, Code
from firearrow.proxy.meter import CANCELLED, CallKey, CallMeter
from firearrow.proxy.service import Service

GRPC: Final = {"protocol_type": "grpc"}
_FROM_TYPES: Final = {value.value: value.name.lower() for value in ClientType}


class Sources(NamedTuple):
    """Sources of the metrics; ``mode`` is the proxy's, local or cluster."""

    service: Service
    meter: CallMeter
    server: Server
    mode: str


class ProxyMetricRow(NamedTuple):
    """Family, and the function that reads its values."""

    family: Family
    read: Callable[[Sources], Iterable[MetricSample]]


@cache
def _code_names() -> dict[int, str]:
    return {CANCELLED: "cancelled", **{code.value: code.name.lower() for code in Code}}


def _call(_: Sources, key: CallKey) -> Labels:
    name = _code_names().get(key.code, str(key.code))
    return {**GRPC, "method": key.method, "response_code": name, "is_long_polling": key.waited}


def _up(sources: Sources) -> Iterator[MetricSample]:
    yield MetricSample({"proxy_mode": sources.mode}, 1)


def _connections(sources: Sources) -> Iterator[MetricSample]:
    yield MetricSample(GRPC, len(sources.server.grpc_peers))


def _streams(sources: Sources) -> Iterator[MetricSample]:
    yield MetricSample({}, sum(client.stream is not None for client in sources.service.clients.all()))


def _clients(sources: Sources) -> Iterator[MetricSample]:
    kinds = Counter(client.settings.client_type for client in sources.service.clients.all())
    for kind, count in kinds.items():
        yield MetricSample({"client_type": _FROM_TYPES.get(kind, "other")}, count)


def _renewed(sources: Sources) -> Iterator[MetricSample]:
    yield MetricSample({}, len(sources.service.consuming.renewal))


ROWS: Final = (
    ProxyMetricRow(Family("rocketmq_proxy_up", "gauge", "1 while the proxy serves", ("proxy_mode",)), _up),
    ProxyMetricRow(
        Family(
            "rocketmq_proxy_rpc_latency_milliseconds",
            "histogram",
            "How long calls take",
            (*GRPC, "method", "response_code", "is_long_polling"),
        ),
        keyed(lambda it: it.meter.histograms, _call),
    ),
    ProxyMetricRow(
        Family("rocketmq_proxy_pending_receives", "gauge", "Calls that wait for messages", ("method",)),
        keyed(lambda it: it.meter.waiting, lambda _, method: {"method": method}),
    ),
    ProxyMetricRow(Family("rocketmq_proxy_connections", "gauge", "Connections of clients", tuple(GRPC)), _connections),
    ProxyMetricRow(Family("rocketmq_proxy_telemetry_streams", "gauge", "Clients with a telemetry stream"), _streams),
    ProxyMetricRow(Family("rocketmq_proxy_clients", "gauge", "Clients with settings", ("client_type",)), _clients),
    ProxyMetricRow(
        Family("rocketmq_proxy_renewed_messages", "gauge", "Messages whose invisible time is extended"), _renewed
    ),
)


def part_of(sources: Sources) -> MetricPart:
    """Return the metrics of a proxy, and those that its clients push, for a server that shows them."""
    of_clients = sources.service.client_metrics

    def samples() -> Iterator[tuple[Family, Iterable[MetricSample]]]:
        for row in ROWS:
            yield row.family, row.read(sources)
        if of_clients is not None:
            yield from of_clients.samples()

    return MetricPart([*(row.family for row in ROWS), *FAMILIES.values()], samples)


def metrics_of(sources: Sources, config: ProxyConfig) -> Metrics:
    """Return the metrics of a proxy that stands alone, with the labels that RocketMQ's has."""
    part = part_of(sources)

    def samples() -> Samples:
        yield from part.samples()
        yield TARGET, [MetricSample({}, 1)]

    labels = common_labels(
        config.metrics_label,
        part.families,
        in_delta=config.metrics_in_delta,
        cluster=config.proxy_cluster_name,
        node_id=config.proxy_name,
        node_type="proxy",
        otel_scope_name="broker-meter",
    )
    return Metrics(samples(), labels)
