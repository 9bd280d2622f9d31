"""Extensions of queues, as the original broker wrote them."""

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from firearrow.message.names import SCHEDULE_TOPIC, tag_code
from firearrow.message.record import iter_records
from firearrow.store.extension import ADDRESS_MAX, Extension
from firearrow.store.offline import Layout, verify
from tests.golden import extract
from tests.store.stores import GOLDEN_SIZES, append, messages, opened, settle

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
            for view in iter_records(store.get("Ext", queue_id, at, 10, frozenset({tag_code(tag)})).records)
        ]
        assert set(found) == {tag}
        assert store.max_queue_offset("Ext", 0) == 51


def without_extension(root: Path) -> Path:
    rmtree(root / "consumequeue_ext")
    return root


@pytest.mark.parametrize("tag", TAGS)
def test_without_an_extension_messages_are_filtered_by_their_own_tags(tmp_path: Path, tag: str) -> None:
    root = without_extension(extract("extended-queues", tmp_path))
    with opened(root, mapped_file_size_commit_log=1 << 20) as store:
        wanted = frozenset({tag_code(tag)})
        found = [
            view.tags or ""
            for at in range(0, 50, 10)
            for view in iter_records(store.get("Ext", 0, at, 2, wanted).records)
        ]
        assert found == [tag] * 10


@pytest.mark.parametrize("keeps", [True, False])
def test_tag_codes_are_those_of_the_messages(tmp_path: Path, *, keeps: bool) -> None:
    """What waits for messages is woken by them, and administrators see them."""
    root = extract("extended-waiting", tmp_path)
    if not keeps:
        without_extension(root)
    with opened(root, **GOLDEN_SIZES) as store:
        tags = [tag_code(view.tags) for view in messages(store, "Ext", 0)]
        assert [entry.tag_code for entry in store.iterate_from("Ext", 0, 0)] == tags
        assert store.tag_codes("Ext", 0, 0, 3) == set(tags[:3])
        assert [store.tag_codes("Ext", 0, at, at + 1) for at in range(4)] == [{code} for code in tags[:4]]
        for level in (1, 18):
            delay_ms = store.delays.delay_ms(level)
            views = messages(store, SCHEDULE_TOPIC, level - 1)
            entries = list(store.iterate_from(SCHEDULE_TOPIC, level - 1, 0))
            assert len(views) == len(entries) > 0
            for view, entry in zip(views, entries, strict=True):
                due_ms = view.store_timestamp_ms + delay_ms
                assert entry.tag_code == due_ms if keeps else entry.tag_code <= ADDRESS_MAX


@pytest.mark.parametrize("kept", [48, 49, None])
def test_an_extension_goes_with_its_entries(tmp_path: Path, kept: int | None) -> None:
    """``kept`` is the first message of RocketMQ's that is left."""
    root = extract("extended-queues", tmp_path)
    directory = root / "consumequeue_ext/Ext/0"
    sizes: dict[str, Any] = {"mapped_file_size_consume_queue": 140}  # seven entries
    for queue in (root / "consumequeue/Ext").iterdir():
        files = sorted(queue.iterdir())
        whole = b"".join(path.read_bytes() for path in files)
        for path in files:
            path.unlink()
        for at in range(0, 1000, 140):
            (queue / f"{at:020d}").write_bytes(whole[at : at + 140])
    with opened(root, mapped_file_size_commit_log=1 << 20, **sizes) as store:
        for number in range(20):
            append(store, b"%d" % number, "Ext", properties={"TAGS": "new"})
        settle(store)
        before = sorted(path.name for path in directory.iterdir())
        assert len(before) == 2
        entries = list(store.iterate_from("Ext", 0, 0))
        start = entries[kept or -1].physical_offset
        for path in store.queues.delete_expired(start):
            path.unlink()
        after = sorted(path.name for path in directory.iterdir())
        assert after == ([] if kept is None else before[kept // 49 :])
        if kept is not None:
            assert [entry.tag_code for entry in store.iterate_from("Ext", 0, kept)] == [
                tag_code(view.tags) for view in messages(store, "Ext", 0, kept)
            ]


def test_an_extension_goes_with_its_topic(tmp_path: Path) -> None:
    root = extract("extended-waiting", tmp_path)
    with opened(root, **GOLDEN_SIZES) as store:
        for name in ("", "..", "Ext/../../config", "Ext"):
            store.delete_topic(name)
    assert (root / "config").is_dir()
    left = {path.name for path in (root / "consumequeue_ext").iterdir()}
    assert left == {SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"}


@pytest.mark.parametrize("position", [1, 980, 1000 + 20 * 49, 1 << 40])
def test_where_no_unit_begins_there_is_no_tag_code(tmp_path: Path, position: int) -> None:
    root = extract("extended-queues", tmp_path)
    extension = Extension(root / "consumequeue_ext/Ext/0")
    assert extension.tag_code(FIRST) == tag_code("标签")
    assert extension.tag_code(FIRST + position) is None


@pytest.mark.parametrize("name", ["extended-queues", "extended-waiting"])
def test_the_store_is_sound(tmp_path: Path, name: str) -> None:
    root = extract(name, tmp_path)
    assert verify(Layout(root)).findings == []
    assert verify(Layout(without_extension(root))).findings == []


def test_a_unit_that_says_another_tag_is_found(tmp_path: Path) -> None:
    root = extract("extended-queues", tmp_path)
    path = root / "consumequeue_ext/Ext/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2 + 20 * 3 + 7] ^= 1
    path.write_bytes(data)
    [finding] = verify(Layout(root)).findings
    assert (finding.invariant, finding.queue_id, finding.queue_offset) == ("queue-entry-tag", 0, 3)
    assert "in its extension" in finding.what
