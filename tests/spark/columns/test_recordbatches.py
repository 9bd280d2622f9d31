"""From records to batches: what is chosen, where a batch ends, what becomes of damage."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.queues import Queue, Span
from firearrow.errors import CorruptStore
from firearrow.message.hosts import pack_host
from firearrow.message.record import encode_record
from firearrow.message.sysflag import COMPRESSED
from firearrow.spark.columns.recordbatches import Batches, Parts, PartTopics
from firearrow.spark.options import parse
from firearrow.spark.source.filters import NumberSet, PushedFilters
from firearrow.spark.tables import MESSAGES
from firearrow.store.scan import Columns, scan

HOST = pack_host(("10.0.0.1", 80))
BODY = pa.schema([MESSAGES.field("queueOffset"), MESSAGES.field("body")])
LEAN = pa.schema([MESSAGES.field("queueOffset")])


class Origin(NamedTuple):
    """Where the records are said to come from."""

    broker: str = "broker-t"
    root: str = "/store"


class Sent(NamedTuple):
    """A message; its queue offset is its number."""

    topic: str = "T"
    body: bytes = b"body"
    properties: bytes = b""
    queue_id: int = 0
    sys_flag: int = 0


def columns_of(sent: Sequence[Sent]) -> Columns:
    """Messages side by side, as a scan of the log has them."""
    data = b""
    for number, (topic, body, properties, queue_id, flag) in enumerate(sent):
        data += encode_record(topic, body, properties, queue_id, number, len(data), 0, flag, 1, HOST, 2 + number, HOST)
    return scan(data, 0, len(data))


def batches_of(
    sent: Sequence[Sent], schema: pa.Schema = BODY, narrow: PushedFilters | None = None, **options: str
) -> list[pa.RecordBatch]:
    columns = columns_of(sent)
    made = Batches(parse({"path": "/store", **options}), narrow or PushedFilters(), schema, Origin())
    return list(made.of_log(columns, 0))


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    found: list[int] = [n for batch in batches for n in batch["queueOffset"].to_pylist()]
    return found


TOPICS = ["a", "b", "ab", "eight888", "eight889", "标签", "t" * 130]


@given(st.lists(st.sampled_from(TOPICS), max_size=9), st.data())
def test_topics_are_told_apart_wherever_they_lie(names: list[str], data: st.DataObject) -> None:
    known = ["a", "eight888", "t" * 130, "标签"]
    columns = columns_of([Sent(name, body=b"") for name in names])
    number = data.draw(st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)))
    same = PartTopics(known).are(columns, np.array(number, np.int64)).tolist()
    assert same == [known[n] == name for n, name in zip(number, names, strict=True)]


def test_topics_have_columns_and_lmq_ones_are_known() -> None:
    topics = PartTopics(["%LMQ%a", "b"])
    assert topics.column(np.array([1, 0, 1])).to_pylist() == ["b", "%LMQ%a", "b"]
    assert topics.name(1) == "b"
    assert (topics.is_lmq.tolist(), topics.has_lmqs) == ([True, False], True)


def test_offsets_bound_only_parts_of_queues_of_batches() -> None:
    parts = Parts([("T", 0, 5, 9), ("T", 1, 5, 9)], [False, True])
    start, end = parts.span_of(np.array([0, 1]))
    assert (start.tolist(), end.tolist()) == ([0, 5], [1 << 62, 9])


@given(st.lists(st.integers(0, 4000), max_size=40), st.integers(1, 9000))
def test_a_batch_ends_before_it_has_too_many_bytes(sizes: list[int], most: int) -> None:
    sent = [Sent(body=bytes(size)) for size in sizes]
    stored = columns_of(sent).size.tolist()
    batches = batches_of(sent, batchBytes=str(most))
    assert offsets(batches) == list(range(len(sent)))
    assert all(batch.num_rows for batch in batches)
    if sum(stored) > 4 * most:  # less is made as one
        for batch in batches:
            assert batch.num_rows == 1 or sum(stored[n] for n in offsets([batch])) <= most


def test_rows_without_bodies_are_cheap() -> None:
    sent = [Sent(body=bytes(2000))] * 40
    assert len(batches_of(sent, batchBytes="4k")) == 40
    assert len(batches_of(sent, LEAN, batchBytes="4k")) == 2


def test_what_is_not_wanted_is_left_out() -> None:
    sent = [Sent(topic, queue_id=queue) for topic in ("T", "U", "V") for queue in (0, 1)]
    assert offsets(batches_of(sent, subscribe="T,V")) == [0, 1, 4, 5]
    assert offsets(batches_of(sent, assign='{"U":{"broker-t":[1]},"T":{"other":[0]}}')) == [3]
    assert offsets(batches_of(sent, narrow=PushedFilters(queue_id=NumberSet(1, 1)))) == [1, 3, 5]
    fourth = PushedFilters(queue_offset=NumberSet(some=frozenset({4})))
    assert offsets(batches_of(sent, narrow=fourth)) == [4]
    assert offsets(batches_of(sent, subscribe="W")) == []


def test_tags_and_keys_choose() -> None:
    sent = [
        Sent(properties=b"TAGS\x01A\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID0\x02"),
        Sent(properties=b"TAGS\x01B\x02KEYS\x01k2\x02"),
        Sent(properties=b"UNIQ_KEY\x01k3\x02"),
        Sent(),
    ]
    assert offsets(batches_of(sent, tags="A || B")) == [0, 1]
    assert offsets(batches_of(sent, keys="k2")) == [0, 1]
    assert offsets(batches_of(sent, keys="k1 ID0 k3")) == [0, 2]
    assert offsets(batches_of(sent, tags="B", keys="k1")) == []


def test_damaged_bodies_end_it_or_are_left_out() -> None:
    packed = zlib.compress(b"whole")
    bodies = [(b"body", 0), (packed[:5], COMPRESSED), (packed, COMPRESSED)]
    sent = [Sent(body=body, sys_flag=flag) for body, flag in bodies]
    place = columns_of(sent).physical_offset.tolist()[1]
    with pytest.raises(CorruptStore, match=f"/store: the message at {place} of the log is dam"):
        batches_of(sent)
    kept = batches_of(sent, onCorrupt="skip")
    assert [body for batch in kept for body in batch["body"].to_pylist()] == [b"body", b"whole"]
    assert offsets(batches_of(sent, decompress="false")) == [0, 1, 2]
    assert offsets(batches_of(sent, LEAN)) == [0, 1, 2]


def test_other_crcs_are_damage_where_they_are_looked_at() -> None:
    data = bytearray(columns_of([Sent(body=b"first"), Sent(body=b"second")]).buffer)
    data[data.index(b"second")] ^= 1
    columns = scan(bytes(data), 0, len(data))

    def read(**options: str) -> list[int]:
        made = Batches(parse({"path": "/store", **options}), PushedFilters(), BODY, Origin())
        return offsets(list(made.of_log(columns, 0)))

    assert read() == [0, 1]
    assert read(verifyCrc="true", onCorrupt="skip") == [0]
    with pytest.raises(CorruptStore, match="its body has another CRC"):
        read(verifyCrc="true")


def test_usual_records_of_a_queue_are_given_as_they_come() -> None:
    fields = pa.schema([*LEAN, MESSAGES.field("queueId")])
    options = parse({"nameServer": "n:1", "subscribe": "T"})
    made = Batches(options, PushedFilters(), fields, Origin())
    columns = columns_of([Sent()] * 4)
    found = list(made.of_queue(columns, Queue("T", "broker-t", 5), Span(1, 3)))
    assert offsets(found) == [0, 1, 2, 3]
    assert [batch["queueId"].to_pylist() for batch in found] == [[5] * 4]
