"""Metrics that clients push to an embedded broker, and their place in its scrape."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from firearrow.proxy import messages as m
from firearrow.proxy import otlpmessages as otlp
from firearrow.proxy.clientmetrics import LABEL_CHARS_MAX, REQUEST_BYTES_MAX, SERIES_MAX
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests import scrapes
from tests.proxy.rpcs import Rpcs, settings_of_consumer, settings_of_producer

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
COST, CACHED = "rocketmq_send_cost_time", "rocketmq_consumer_cached_messages"
DELTA, CUMULATIVE = 1, 2
ON: dict[str, Any] = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0, "metricCollectorMode": "proxy"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True, **ON) as found:
        found.create_topic("orders")
        yield found


@pytest.fixture
def rpcs(cluster: BlockingCluster) -> Iterator[Rpcs]:
    """A producer."""
    with Rpcs(cluster.brokers[0].grpc) as found:
        found.begin(settings_of_producer("orders"))
        yield found
        found.NotifyClientTermination(m.NotifyClientTerminationRequest())


def scraped(cluster: BlockingCluster) -> Mapping[str, scrapes.Scraped]:
    port = cluster.brokers[0].server.operations.port
    return scrapes.parse(asyncio.run(scrapes.get(port))[1])


def push(
    cluster: BlockingCluster, metadata: Mapping[str, str], *metrics: otlp.Metric
) -> otlp.ExportMetricsPartialSuccess:
    request = otlp.ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add(metrics=metrics)
    with grpc.insecure_channel(cluster.brokers[0].grpc) as channel:
        call = channel.unary_unary(EXPORT, None, otlp.ExportMetricsServiceResponse.FromString)
        answer = call(request.SerializeToString(), timeout=20, metadata=list(metadata.items()))
    success: otlp.ExportMetricsPartialSuccess = answer.partial_success
    return success


def attributes(**labels: str) -> list[otlp.KeyValue]:
    return [otlp.KeyValue(key=key, value=otlp.AnyValue(string_value=text)) for key, text in labels.items()]


def cost(counts: list[int], status: str = "success", *, total: float = 7, **fields: Any) -> otlp.Metric:
    metric = otlp.Metric(name=fields.get("name", COST))
    metric.histogram.aggregation_temporality = fields.get("temporality", CUMULATIVE)
    metric.histogram.data_points.add(
        attributes=attributes(topic="orders", invocation_status=status),
        explicit_bounds=[1, 5],
        bucket_counts=counts,
        sum=total,
    )
    return metric


def cached(value: float, **labels: str) -> otlp.Metric:
    metric = otlp.Metric(name=CACHED)
    metric.gauge.data_points.add(attributes=attributes(**labels), as_double=value)
    return metric


def test_clients_are_told_to_push_to_the_proxy(cluster: BlockingCluster) -> None:
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        settings = settings_of_producer("orders")
        settings.access_point.addresses.add(host="broker", port=8081)
        _, merged = rpcs.begin(settings)
        assert merged.metric.on
        assert merged.metric.endpoints == settings.access_point


def test_series_of_opentelemetrys_own_exporter_are_shown_until_the_client_is_gone(cluster: BlockingCluster) -> None:
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        rpcs.begin(settings_of_consumer("g", "orders", kind=m.ClientType.PUSH_CONSUMER))
        exporter = OTLPMetricExporter(
            endpoint=cluster.brokers[0].grpc, insecure=True, headers=tuple(rpcs.metadata.items())
        )
        provider = MeterProvider([PeriodicExportingMetricReader(exporter)], shutdown_on_exit=False)
        meter = provider.get_meter("rocketmq")
        labels = {"topic": "orders", "consumer_group": "g", "client_id": rpcs.client_id}
        process = meter.create_histogram("rocketmq_process_time", explicit_bucket_boundaries_advisory=[1, 5, 10, 100])
        for took in (0.5, 3, 4, 1000):
            process.record(took, labels | {"invocation_status": "success"})
        meter.create_counter("rocketmq_other").add(1, labels)
        assert provider.force_flush()
        provider.shutdown()
        found = scraped(cluster)["rocketmq_process_time"]
        assert found.bounds == ["1.0", "5.0", "10.0", "100.0", "+Inf"]
        counts = [found.value(**labels, invocation_status="success", le=bound) for bound in found.bounds]
        assert counts == [1, 3, 3, 3, 4]
        rpcs.NotifyClientTermination(m.NotifyClientTerminationRequest(group=m.Resource(name="g")))
    assert "rocketmq_process_time" not in scraped(cluster)
    metrics = cluster.brokers[0].proxy.service.client_metrics
    assert metrics is not None
    assert len(metrics) == 0


def test_cumulative_points_replace_and_deltas_add(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    for temporality, sums in ((CUMULATIVE, (4, 4)), (DELTA, (4, 8))):
        status = str(temporality)
        for expected in sums:
            metric = cost([1, 2, 1], status, temporality=temporality)
            assert not push(cluster, rpcs.metadata, metric).rejected_data_points
            assert scraped(cluster)[COST].value(invocation_status=status, le="+Inf") == expected


def test_a_gauge_shows_the_last_value(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    for value in (5, 3.0):
        assert not push(cluster, rpcs.metadata, cached(value, topic="orders", consumer_group="g")).rejected_data_points
        assert scraped(cluster)[CACHED].value(topic="orders", consumer_group="g", client_id=rpcs.client_id) == value


def test_a_client_without_its_id_in_the_header_is_known_by_its_label(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    assert not push(cluster, {}, cached(5, topic="t", client_id=rpcs.client_id)).rejected_data_points
    assert scraped(cluster)[CACHED].value(client_id=rpcs.client_id) == 5
    assert push(cluster, {}, cached(5, topic="t", client_id="nobody")).rejected_data_points == 1
    assert push(cluster, {}, cached(5, topic="t")).error_message == "the client has sent no settings"


def test_a_client_pushes_in_its_own_name_only(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    assert not push(cluster, rpcs.metadata, cached(5, topic="t", client_id="another")).rejected_data_points
    assert scraped(cluster)[CACHED].value(topic="t", client_id=rpcs.client_id) == 5


def other_name() -> otlp.Metric:
    return cost([1, 2, 1], name="rocketmq_messages_in_total")


def wrong_kind() -> otlp.Metric:
    metric = cached(5, topic="t")
    metric.name = COST
    return metric


def no_bounds() -> otlp.Metric:
    metric = cost([1])
    metric.histogram.data_points[0].ClearField("bucket_counts")
    return metric


def backwards() -> otlp.Metric:
    metric = cost([1, 2, 1])
    metric.histogram.data_points[0].explicit_bounds[:] = [5, 1]
    return metric


@pytest.mark.parametrize(
    "metric",
    [
        other_name(),
        wrong_kind(),
        no_bounds(),
        backwards(),
        cost([1, 2]),
        cost([1, 2, 1, 4]),
        cost([1] * 1000),
        cost([1, 2, 2**63]),
        cost([1, 2, 1], total=math.nan),
        cost([1, 2, 1], "x" * (LABEL_CHARS_MAX + 1)),
        cost([1, 2, 1], "a\nb"),
        cached(math.inf, topic="t"),
        cached(math.nan, topic="t"),
    ],
)
def test_a_bad_point_is_rejected_and_the_others_are_taken(
    cluster: BlockingCluster, rpcs: Rpcs, metric: otlp.Metric
) -> None:
    before = scraped(cluster).keys()
    answer = push(cluster, rpcs.metadata, metric, cached(1, topic="good"))
    assert answer.rejected_data_points == 1
    assert answer.error_message
    families = scraped(cluster)
    assert families[CACHED].value(topic="good") == 1
    assert families.keys() - before <= {CACHED}


def test_a_client_has_a_limit_of_series(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    metric = otlp.Metric(name=CACHED)
    for number in range(SERIES_MAX + 5):
        metric.gauge.data_points.add(attributes=attributes(topic=f"t{number}"), as_int=1)
    answer = push(cluster, rpcs.metadata, metric)
    assert (answer.rejected_data_points, answer.error_message) == (5, "there are too many series")
    assert not push(cluster, rpcs.metadata, cached(2, topic="t0")).rejected_data_points, "a known series goes on"


def test_a_large_push_is_refused(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    metric = cached(1, topic="t" * REQUEST_BYTES_MAX)
    with pytest.raises(grpc.RpcError) as caught:
        push(cluster, rpcs.metadata, metric)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bytes_that_are_no_push_are_refused(cluster: BlockingCluster) -> None:
    with grpc.insecure_channel(cluster.brokers[0].grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(EXPORT)(b"\x0a\xff", timeout=20)
    assert caught.value.code() == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("mode", ["off", "proxy"])
def test_without_metrics_pushes_are_refused_or_forgotten(mode: str) -> None:
    with EmbeddedCluster(grpc=True, metricCollectorMode=mode) as cluster:
        if mode == "off":
            with pytest.raises(grpc.RpcError) as caught:
                push(cluster, {}, cached(1, topic="t"))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        else:
            assert not push(cluster, {}, cached(1, topic="t")).rejected_data_points
