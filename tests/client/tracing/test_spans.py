"""Spans of OpenTelemetry: a message carries the context of its send to its consumer."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from firearrow.client import Message, Producer
from firearrow.client.tracing.spans import Spans
from firearrow.errors import ConfigError, SendFailed
from tests.client.cluster import Cluster, clustered


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was recorded; the provider is the process's for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def test_a_consumer_goes_on_with_the_trace_of_the_send(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="shop", spans=True) as shop:
            receipt = await shop.send("orders", b"body", tag="paid", key="o-17")
            [view] = cluster.all_stored("orders")
            assert view.properties["traceparent"].startswith("00-")
            with Spans(session, "billing").processing(Message.received(view, "a")):
                pass
            sent, processed = exporter.get_finished_spans()
            assert (sent.name, sent.kind) == ("send orders", SpanKind.PRODUCER)
            assert (processed.name, processed.kind) == ("process orders", SpanKind.CONSUMER)
            assert processed.parent is not None
            assert sent.context is not None
            assert processed.parent.span_id == sent.context.span_id
            found: dict[str, Any] = dict(sent.attributes or {})
            assert found["messaging.system"] == "rocketmq"
            assert found["messaging.message.id"] == receipt.message_id
            assert found["messaging.message.body.size"] == 4
            assert found["messaging.rocketmq.message.tag"] == "paid"
            assert found["messaging.rocketmq.message.keys"] == ("o-17",)
            found = dict(processed.attributes or {})
            assert found["messaging.consumer.group.name"] == "billing"

    clustered(tmp_path, main)


def test_batches_and_failures(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="shop", spans=True) as shop:
            await shop.send_batch("orders", [b"1", b"23"])
            assert all("traceparent" in it.properties for it in cluster.all_stored("orders"))
            await cluster.stop_broker("a")
            with pytest.raises(SendFailed):
                await shop.send("orders", b"x")
            batch, failed = exporter.get_finished_spans()
            found: dict[str, Any] = dict(batch.attributes or {})
            assert found["messaging.batch.message_count"] == 2
            assert found["messaging.message.body.size"] == 3
            assert not failed.status.is_ok
            assert "SendFailed" in (failed.status.description or "")

    clustered(tmp_path, main)


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"firearrow\[otel\]"):
        Producer("127.0.0.1:1", group="g", ip="127.0.0.1", spans=True)
