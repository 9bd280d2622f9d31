"""A store's messages are the same to a broker, to the offline tools and to Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.record import iter_records
from firearrow.store.offline import Layout, Selection, StoreView, find
from tests import golden
from tests.spark import logs
from tests.spark.test_files import read
from tests.store.stores import GOLDEN_SIZES, opened

Row = tuple[str, int, int]
"""Topic, queue id and physical offset of a record that a queue leads to."""

MEBIBYTE = {
    "mapped_file_size_commit_log": 1 << 20,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
STORES = {
    **dict.fromkeys(("file-cq-clean", "file-cq-killed", "waiting"), GOLDEN_SIZES),
    "rocksdb-cq-clean": GOLDEN_SIZES | {"store_type": "defaultRocksDB"},
    "light-rocksdb": MEBIBYTE | {"store_type": "defaultRocksDB"},
    **dict.fromkeys(("extended-queues", "light-file"), MEBIBYTE),
    "batch-queues": MEBIBYTE | {"enable_multi_dispatch": False},
}


def seen_by_tools(root: Path) -> set[Row]:
    with StoreView(Layout(root)) as view:
        return {
            (topic, queue_id, message.physical_offset)
            for topic, queue_id in list(view.queues)
            for message in find(view, Selection(topic=topic, queue_id=queue_id))
        }


def seen_by_spark(root: Path) -> set[Row]:
    with StoreView(Layout(root)) as view:
        keys = list(view.queues)
    return {
        (topic, queue_id, row["commitLogOffset"])
        for topic, queue_id in keys
        for row in read(root, assign=json.dumps({topic: {logs.BROKER: [queue_id]}}))
    }


def seen_by_a_broker(root: Path, options: dict[str, Any]) -> set[Row]:
    """What pulls give; the store is a running broker's afterwards."""
    with StoreView(Layout(root)) as view:
        keys = list(view.queues)
    found: set[Row] = set()
    with opened(root, **options) as store:
        for topic, queue_id in keys:
            at, end = store.min_queue_offset(topic, queue_id), -1
            while at != end:
                end, pulled = at, store.get(topic, queue_id, at, 32)
                places = (record.physical_offset for record in iter_records(pulled.records))
                found |= {(topic, queue_id, place) for place in places}
                at = max(at, pulled.next_offset)
    return found


@pytest.mark.parametrize("name", STORES)
def test_all_see_the_same_messages_in_a_store_of_the_original(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    by_tools, by_spark = seen_by_tools(root), seen_by_spark(root)
    assert by_tools == by_spark
    assert len(by_tools) >= 30
    assert by_tools == seen_by_a_broker(root, dict(STORES[name]))
