"""Exported metrics: those of a collector, those in the log, and an absent collector."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc

from firearrow.config.metrics import MetricsKeys
from firearrow.errors import ConfigError
from firearrow.net import exporting
from firearrow.net.exporting import Exporting, in_deltas, log_them, otlp_sender
from firearrow.net.exposition import Family, Metrics, MetricSample
from firearrow.net.meter import Histogram
from firearrow.services import Service
from tests.broker.serving import Caller, Serving, calling, until
from tests.loglines import events, told
from tests.net.conftest import Run

SECONDS_MAX = 20
DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA
SENT, TOOK, DEPTH, EMPTY = (
    Family("rocketmq_messages_in_total", "counter", "Messages", ("topic",)),
    Family("rocketmq_rpc_latency_milliseconds", "histogram", "Took", ("code",)),
    Family("rocketmq_storage_flush_behind_bytes", "gauge", "Not on the disk"),
    Family("rocketmq_half_messages", "gauge", "Open"),
)
LABELS = {"cluster": "C", "otel_scope_name": "broker-meter"}


class Collector(service_grpc.MetricsServiceServicer):
    """Keeps the received metrics."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[dict[str, str], Any]] = queue.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.port = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.got.put((dict(context.invocation_metadata()), request))
        assert self.may_answer.wait(SECONDS_MAX)
        return service.ExportMetricsServiceResponse()

    async def next(self) -> tuple[dict[str, str], dict[str, Any], str]:
        """Wait for the next export: headers, metrics by name, and the scope."""
        headers, request = await asyncio.to_thread(self.got.get, timeout=SECONDS_MAX)
        [resource] = request.resource_metrics
        [scope] = resource.scope_metrics
        return headers, {metric.name: metric for metric in scope.metrics}, scope.scope.name


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Start a collector on a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    add: Any = service_grpc.add_MetricsServiceServicer_to_server  # which has no types
    add(collector, server)
    collector.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def keys(port: int, **others: Any) -> MetricsKeys:
    return MetricsKeys(
        metrics_exporter_type="OTLP_GRPC",
        metrics_grpc_exporter_target=f"http://127.0.0.1:{port}",
        metrics_grpc_exporter_header="Tenant:shop,x-key: word",
        **{"metric_grpc_exporter_time_out_in_mills": 1000, **others},
    )


def metrics() -> Metrics:
    took = Histogram((1, 5))
    for value in (0, 3, 100):
        took.add(value)
    samples: list[tuple[Family, list[MetricSample]] | None] = [
        (SENT, [MetricSample({"topic": "T"}, 3), MetricSample({"topic": "U"}, 4)]),
        None,
        (TOOK, [MetricSample({"code": "send", "waited": False}, took)]),
        (DEPTH, [MetricSample({}, 7)]),
        (EMPTY, []),
    ]
    return Metrics(iter(samples), LABELS)


@asynccontextmanager
async def running(service_: Service) -> AsyncIterator[None]:
    await service_.start()
    try:
        yield
    finally:
        await service_.stop()


def attributes(point: Any) -> dict[str, Any]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in point.attributes}


def test_a_collector_gets_all_with_rocketmqs_names_and_units(run: Run) -> None:
    async def main() -> None:
        with collecting() as collector:
            async with running(Exporting(0.01, metrics, *otlp_sender(keys(collector.port)))):
                headers, found, scope = await collector.next()
                await collector.next()  # and again
        assert (headers["tenant"], headers["x-key"], scope) == ("shop", "word", "broker-meter")
        sent = found["rocketmq_messages_in_total"]
        assert (sent.description, sent.unit, sent.sum.is_monotonic) == ("Messages", "", True)
        points = [(attributes(it), it.as_int) for it in sent.sum.data_points]
        assert points == [({"cluster": "C", "topic": "T"}, 3), ({"cluster": "C", "topic": "U"}, 4)]
        took = found["rocketmq_rpc_latency"]
        [spread] = took.histogram.data_points
        assert took.unit == "milliseconds"
        assert attributes(spread) == {"cluster": "C", "code": "send", "waited": False}
        assert (spread.count, spread.sum) == (3, 103)
        assert (list(spread.bucket_counts), list(spread.explicit_bounds)) == ([1, 1, 1], [1, 5])
        assert 0 < spread.start_time_unix_nano <= spread.time_unix_nano
        depth = found["rocketmq_storage_flush_behind_bytes"]
        assert (depth.unit, depth.gauge.data_points[0].as_int) == ("", 7)
        assert "rocketmq_half_messages" not in found

    run(main())


def test_in_deltas_a_collector_gets_what_came_since_it_took_the_last(run: Run) -> None:
    took, sent = Histogram((1, 5)), 0

    def counted() -> Metrics:
        samples: list[tuple[Family, list[MetricSample]] | None] = [
            (SENT, [MetricSample({"topic": "T"}, sent)]),
            (TOOK, [MetricSample({"code": "send"}, took)]),
            (DEPTH, [MetricSample({}, 7)]),
        ]
        return Metrics(iter(samples), LABELS)

    def told(found: dict[str, Any]) -> tuple[int, list[int], float, int]:
        number, spread = (found["rocketmq_messages_in_total"].sum, found["rocketmq_rpc_latency"].histogram)
        assert {number.aggregation_temporality, spread.aggregation_temporality} == {DELTA}
        [point], [of_spread] = number.data_points, spread.data_points
        [depth] = found["rocketmq_storage_flush_behind_bytes"].gauge.data_points
        assert of_spread.start_time_unix_nano == point.start_time_unix_nano
        starts.append((point.start_time_unix_nano, point.time_unix_nano))
        return point.as_int, list(of_spread.bucket_counts), of_spread.sum, depth.as_int

    starts: list[tuple[int, int]] = []

    async def main() -> None:
        nonlocal sent
        with collecting() as collector:
            send, close = otlp_sender(keys(collector.port, metrics_in_delta=True))
            exporting_ = Exporting(0.01, counted, in_deltas(send), close)
            sent = 3
            took.add(0)
            async with running(exporting_):
                assert told((await collector.next())[1]) == (3, [1, 0, 0], 0, 7)
                assert told((await collector.next())[1]) == (0, [0, 0, 0], 0, 7)
                collector.may_answer.clear()  # no thread takes the next export
                sent = 5
                took.add(100, 2)
                await until(lambda: exporting_.trouble is not None)
                while not collector.got.empty():
                    collector.got.get()
                collector.may_answer.set()
                after = [told((await collector.next())[1]) for _ in range(3)]
                assert (2, [0, 0, 2], 200, 7) in after
                assert after[-1] == (0, [0, 0, 0], 0, 7)
                sent = 1  # the counters were made again
                while (begun := told((await collector.next())[1]))[0] == 0:
                    pass
                assert begun[0] == 1
        assert starts[1][0] == starts[0][1]

    run(main())


def test_a_slow_collector_keeps_nobody_waiting(run: Run) -> None:
    async def main() -> None:
        with collecting() as collector:
            collector.may_answer.clear()
            exporting_ = Exporting(0.01, metrics, *otlp_sender(keys(collector.port)))
            async with running(exporting_):
                await collector.next()
                for _ in range(100):  # turns of the loop, meanwhile
                    await asyncio.sleep(0)
                assert collector.got.empty()
                collector.may_answer.set()
                await collector.next()

    run(main())


def test_a_stop_sends_what_came_since_the_last_time_and_leaves_no_channel(run: Run) -> None:
    async def main() -> None:
        with collecting() as collector:
            send, close = otlp_sender(keys(collector.port))
            async with running(Exporting(3600, metrics, send, close)):
                assert collector.got.empty()
            _, found, _ = await collector.next()
            assert "rocketmq_messages_in_total" in found
            with pytest.raises(OSError, match="does not take them"):  # it is shut down
                await asyncio.to_thread(send, LABELS, [])

    run(main())


def test_a_stop_waits_for_a_slow_collector_only_so_long(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The export in progress ends with the stop, even if the collector has not answered."""
    monkeypatch.setattr(exporting, "LAST_SECONDS_MAX", 0.05)
    caplog.set_level(logging.WARNING, logger="firearrow")
    patient = {"metric_grpc_exporter_time_out_in_mills": 600_000}

    async def main() -> None:
        with collecting() as collector:
            collector.may_answer.clear()
            slow = keys(collector.port, **patient)
            async with running(Exporting(0.01, metrics, *otlp_sender(slow))):
                await collector.next()
            assert events(caplog)[0] == "last metrics are not sent"
            collector.may_answer.set()

    run(main())


def test_that_a_collector_is_away_is_said_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="firearrow")

    async def main() -> None:
        with collecting() as collector:
            port = collector.port
        exporting_ = Exporting(0.01, metrics, *otlp_sender(keys(port)))
        async with running(exporting_):
            await until(lambda: exporting_.trouble is not None)
            assert "does not take them" in str(exporting_.trouble)
            with collecting(port) as collector:
                await collector.next()
                await until(lambda: exporting_.trouble is None)

    run(main())
    assert events(caplog).count("metrics are not sent") == 1


def test_the_log_gets_a_line_for_each_metric(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with running(Exporting(0.01, metrics, log_them)):
            await until(lambda: len(caplog.records) >= 3)

    run(main())
    lines = told(caplog)
    assert [line["metric"] for line in lines[:3]] == [
        "rocketmq_messages_in_total", "rocketmq_rpc_latency",
        "rocketmq_storage_flush_behind_bytes",
    ]  # fmt: skip
    assert lines[0]["values"] == [{"topic": "T", "value": 3}, {"topic": "U", "value": 4}]
    assert lines[0]["labels"] == LABELS
    took = {"code": "send", "waited": False, "count": 3, "sum": 103, "counts": [1, 1, 1]}
    assert lines[1]["values"] == [took]
    assert lines[1]["unit"] == "milliseconds"


def test_a_broker_sends_what_it_has(tmp_path: Path) -> None:
    with collecting() as collector:

        async def main(served: Serving, caller: Caller) -> None:
            await caller.sent()
            assert served.broker.operations.port == 0
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    _, found, _ = await collector.next()
                    topics: list[Any] = []
                    if "rocketmq_messages_in_total" in found:
                        topics = list(found["rocketmq_messages_in_total"].sum.data_points)
                    if any(attributes(it)["topic"] == "T" for it in topics):
                        break
            assert attributes(topics[0])["cluster"] == "C"
            assert found["rocketmq_rpc_latency"].histogram.data_points

        others: dict[str, Any] = {
            "metrics_exporter_type": "OTLP_GRPC",
            "metrics_grpc_exporter_target": f"http://127.0.0.1:{collector.port}",
            "metric_grpc_exporter_interval_in_mills": 20,
        }
        calling(tmp_path, main, **others)


def test_what_can_not_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="OTLP_GRPC needs metricsGrpcExporterTarget"):
        MetricsKeys(metrics_exporter_type="OTLP_GRPC")
    module = "opentelemetry.exporter.otlp.proto.grpc.metric_exporter"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"firearrow\[otel\]"):
        otlp_sender(keys(1))
