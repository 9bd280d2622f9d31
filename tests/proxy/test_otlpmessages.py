"""Metrics from OpenTelemetry's own classes are read."""

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.metrics.v1 import metrics_pb2 as theirs

from firearrow.proxy import otlpmessages as m


def test_gauges_sums_and_histograms_are_read() -> None:
    sent = service.ExportMetricsServiceRequest()
    resource = sent.resource_metrics.add()
    metrics = resource.scope_metrics.add().metrics
    metrics.add(name="cached", gauge=theirs.Gauge(data_points=[theirs.NumberDataPoint(as_int=-3, time_unix_nano=7)]))
    metrics.add(name="sent", sum=theirs.Sum(data_points=[theirs.NumberDataPoint(as_double=0.5)], is_monotonic=True))
    bucket = theirs.HistogramDataPoint(count=3, sum=4.5, bucket_counts=[1, 2], explicit_bounds=[10])
    metrics.add(name="took", histogram=theirs.Histogram(data_points=[bucket]))
    attribute = metrics[2].histogram.data_points[0].attributes.add(key="topic")
    attribute.value.string_value = "orders"
    metrics.add(name="other", summary=theirs.Summary())

    (received,) = m.ExportMetricsServiceRequest.FromString(sent.SerializeToString()).resource_metrics
    cached, count, took, other = received.scope_metrics[0].metrics
    assert (cached.gauge.data_points[0].as_int, cached.gauge.data_points[0].time_unix_nano) == (-3, 7)
    assert (count.sum.data_points[0].as_double, count.sum.is_monotonic) == (0.5, True)
    (point,) = took.histogram.data_points
    assert (point.count, point.sum, list(point.bucket_counts), list(point.explicit_bounds)) == (3, 4.5, [1, 2], [10])
    assert [(it.key, it.value.string_value) for it in point.attributes] == [("topic", "orders")]
    assert (other.name, other.WhichOneof("data")) == ("other", None)
