"""What the files of an archive look like inside."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import CorruptStore
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import CAN_BLOOM, partition_path, write_messages
from firearrow.spark.tables import MESSAGES
from tests.spark.origins import MemoryOrigin, Piece

A, B = Queue("T", "a", 0), Queue("T", "a", 1)


def written(tmp_path: Path, spans: dict[Queue, Span], scrambled: bool) -> pq.ParquetFile:
    origin = MemoryOrigin({q: Bound(*s) for q, s in spans.items()}, scrambled=scrambled)
    result = write_messages(origin.read(Piece(spans), MESSAGES), FilePlace(tmp_path), "name")
    (file,) = result.files
    assert sum(part.rows for part in result.queues) == file.rows
    return pq.ParquetFile(tmp_path / file.path)


@pytest.mark.parametrize("scrambled", [False, True])
def test_rows_come_sorted_whatever_order_they_are_read_in(tmp_path: Path, scrambled: bool) -> None:
    found = written(tmp_path, {A: Span(3, 400), B: Span(0, 350)}, scrambled).read()
    places = list(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))
    assert places == sorted(places)
    assert len(places) == 747
    assert found.schema.equals(MESSAGES)
    assert found["body"][397].as_py() == b"T/a/1/0"


def test_offsets_that_are_far_apart_come_sorted_too(tmp_path: Path) -> None:
    spans = {A: Span(0, 200), B: Span(0, 100)}
    origin = MemoryOrigin({q: Bound(*s) for q, s in spans.items()}, scrambled=True)
    at = MESSAGES.get_field_index("queueOffset")
    batches = (
        batch.set_column(at, MESSAGES.field(at), pc.shift_left(batch.column(at), 54))
        for batch in origin.read(Piece(spans), MESSAGES)
    )
    (file,) = write_messages(batches, FilePlace(tmp_path), "name").files
    found = pq.read_table(tmp_path / file.path, partitioning=None)
    places = list(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))
    assert places == [(q, n << 54) for q, count in ((0, 200), (1, 100)) for n in range(count)]


def test_a_file_that_can_not_be_saved_is_an_error(tmp_path: Path) -> None:
    origin = MemoryOrigin()
    spans = {Queue(topic, "a", 0): Span(0, 9) for topic in ("S", "T", "U")}
    day = "2024-10-04"
    (tmp_path / partition_path("T", day) / "name.parquet").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_messages(origin.read(Piece(spans), MESSAGES), FilePlace(tmp_path), "name")
    assert (tmp_path / partition_path("S", day) / "name.parquet").is_file()


def test_columns_are_stored_as_it_pays(tmp_path: Path) -> None:
    file = written(tmp_path, {A: Span(0, 1000)}, False)
    group = file.metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert [n for n, c in columns.items() if "RLE_DICTIONARY" in c.encodings] == ["topic"]
    assert "DELTA_BINARY_PACKED" in columns["queueOffset"].encodings
    assert (columns["queueOffset"].statistics.min, columns["queueOffset"].statistics.max) == (0, 999)
    assert columns["body"].statistics is None
    assert [sort.column_index for sort in group.sorting_columns] == [0, 2, 3]
    assert columns["queueOffset"].has_offset_index


def test_keys_and_ids_have_bloom_filters(tmp_path: Path) -> None:
    assert CAN_BLOOM
    group = written(tmp_path, {A: Span(0, 1000)}, False).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    filtered = [c.path_in_schema for c in columns if c.bloom_filter_offset is not None]
    assert filtered == ["msgId", "keys"]


def test_a_message_that_comes_twice_is_refused(tmp_path: Path) -> None:
    origin = MemoryOrigin()
    batches = [*origin.read(Piece({A: Span(0, 9)}), MESSAGES)]
    with pytest.raises(CorruptStore, match="queue 0 of topic 'T' on a: offset 0 occurs twice"):
        write_messages(iter(batches * 2), FilePlace(tmp_path), "name")
    assert list(tmp_path.rglob("*.parquet")) == []
    again = write_messages(iter(batches * 2), FilePlace(tmp_path), "name", unique=False)
    assert [part.rows for part in again.queues] == [18]


def test_nothing_is_no_file(tmp_path: Path) -> None:
    assert write_messages(iter(()), FilePlace(tmp_path), "name").files == ()


def test_topics_are_escaped() -> None:
    assert partition_path("%RETRY%a|b", "2026-11-21") == "topic=%25RETRY%25a%7Cb/dt=2026-11-21"
