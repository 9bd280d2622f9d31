"""Queues of batches, which only the original writes, stay as they are."""

from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import StoreError
from firearrow.store.offline import Layout, rebuild, verify
from firearrow.store.queuefiles import batch_topics
from tests.golden import extract
from tests.store.stores import make_store


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_a_store_with_queues_of_batches_is_not_opened(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    before = tree(root)
    assert batch_topics(root) == {"Bat"}
    with pytest.raises(StoreError, match=r"can't be served: topics Bat; nothing was changed"):
        make_store(root).open()
    assert {name: data for name, data in tree(root).items() if name != "lock"} == before


def test_the_tools_leave_them_alone(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    assert verify(Layout(root)).findings == []
    before = tree(root)
    rebuild(Layout(root), SystemClock())
    after = tree(root)
    assert not [name for name in after if name.startswith("consumequeue/")]
    assert {name for name in before if "batch" in name} == {
        name for name in after if "batch" in name
    }
