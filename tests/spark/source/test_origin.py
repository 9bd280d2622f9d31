"""How large messages are, as limits of bytes count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.client.queues import Bound, Queue, Span
from firearrow.spark.offsets import limit_bytes, row_count
from firearrow.spark.options import parse
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.origin import UNKNOWN_BYTES
from tests import golden

RECORDS_BYTES = {name: sum(m["storeSize"] for m in golden.expected(name)) for name in golden.golden_names} | {
    "batch-queues": 17_438
}  # there Java's client gives no size: the sum of the sizes in its units


@pytest.mark.parametrize(("name", "records_bytes"), RECORDS_BYTES.items())
def test_messages_of_a_store_take_the_bytes_of_their_records(name: str, records_bytes: int, tmp_path: Path) -> None:
    origin = FileOrigin(parse({"path": str(golden.extract(name, tmp_path)), "systemTopics": "true"}))
    spans = {queue: Span(*ends_of(bound)) for queue, bound in origin.bounds().items()}
    sizes = origin.row_bytes(spans)
    whole = sum(sizes[queue] * (span.end - span.start) for queue, span in spans.items())
    assert whole == pytest.approx(records_bytes)
    assert limit_bytes(spans, records_bytes + 1, sizes) == spans
    half = row_count(limit_bytes(spans, records_bytes // 2, sizes))
    assert half == pytest.approx(row_count(spans) / 2, abs=1)


def ends_of(bound: Bound) -> tuple[int, int]:
    return bound.earliest, bound.latest


def test_a_span_without_messages_has_any_size(tmp_path: Path) -> None:
    origin = FileOrigin(parse({"path": str(golden.extract("batch-queues", tmp_path))}))
    (broker,) = origin.stores
    spans = {Queue("Bat", broker, 0): Span(45, 50), Queue("nowhere", broker, 0): Span(0, 3)}
    assert origin.row_bytes(spans) == dict.fromkeys(spans, UNKNOWN_BYTES)
