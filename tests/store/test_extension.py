"""Extensions of queues, as the original broker wrote them."""

from pathlib import Path

import pytest

from firearrow.message.names import tag_code
from firearrow.message.record import iter_records
from firearrow.store.extension import ADDRESS_MAX, Extension
from firearrow.store.offline import Layout, verify
from tests.golden import extract
from tests.store.stores import append, messages, opened, settle

FIRST = -(1 << 63)
TAGS = ("", "标签", "Tag2", "Tag3", "Tag4")


def test_the_address_of_each_entry_leads_to_its_tag_code(tmp_path: Path) -> None:
    root = extract("extended-queues", tmp_path)
    with opened(root, mapped_file_size_commit_log=1 << 20) as store:
        for queue_id in (0, 1):
            extension = Extension(root / "consumequeue_ext/Ext" / str(queue_id))
            queue = store.queue("Ext", queue_id)
            views = messages(store, "Ext", queue_id)
            assert len(views) == 50
            for view in views:
                _, _, address = queue.entry(view.queue_offset)
                assert address <= ADDRESS_MAX
                assert extension.tag_code(address) == tag_code(view.tags)


@pytest.mark.parametrize("tag", TAGS[1:])
def test_such_messages_are_filtered(tmp_path: Path, tag: str) -> None:
    root = extract("extended-queues", tmp_path)
    with opened(root, mapped_file_size_commit_log=1 << 20) as store:
        append(store, b"after", "Ext", properties={"TAGS": tag})
        settle(store)
        found = [
            view.tags
            for queue_id in (0, 1)
            for at in range(0, 60, 10)
            for view in iter_records(
                store.get("Ext", queue_id, at, 10, frozenset({tag_code(tag)})).records
            )
        ]
        assert set(found) == {tag}
        assert store.max_queue_offset("Ext", 0) == 51


def test_without_its_extension_a_message_goes_out(tmp_path: Path) -> None:
    root = extract("extended-queues", tmp_path)
    for path in (root / "consumequeue_ext").rglob("0*"):
        if path.is_file():
            path.unlink()
    with opened(root, mapped_file_size_commit_log=1 << 20) as store:
        assert store.get("Ext", 0, 0, 8, frozenset({tag_code("Tag2")})).count == 8


@pytest.mark.parametrize("position", [1, 980, 1000 + 20 * 49, 1 << 40])
def test_where_no_unit_begins_there_is_no_tag_code(tmp_path: Path, position: int) -> None:
    root = extract("extended-queues", tmp_path)
    extension = Extension(root / "consumequeue_ext/Ext/0")
    assert extension.tag_code(FIRST) == tag_code("标签")
    assert extension.tag_code(FIRST + position) is None


def test_the_store_is_sound(tmp_path: Path) -> None:
    assert verify(Layout(extract("extended-queues", tmp_path))).findings == []


def test_a_unit_that_says_another_tag_is_found(tmp_path: Path) -> None:
    root = extract("extended-queues", tmp_path)
    path = root / "consumequeue_ext/Ext/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2 + 20 * 3 + 7] ^= 1
    path.write_bytes(data)
    [finding] = verify(Layout(root)).findings
    assert (finding.invariant, finding.queue_id, finding.queue_offset) == ("queue-entry-tag", 0, 3)
    assert "in its extension" in finding.what
