"""What a repair leaves: messages that were sound, queue offsets, and a way back."""

import json
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import StoreLocked
from firearrow.store.offline import Action, Layout, apply, plan, verify
from tests.store.offline.damage import (
    FILE_BYTES,
    LOG_END,
    a_message,
    golden_store,
    in_record,
    messages,
    own_store,
    read,
    write,
)
from tests.store.stores import GOLDEN_SIZES, append, opened, settle
from tests.store.stores import messages as consumed


def test_a_damaged_stretch_costs_its_messages_and_no_other(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before = messages(root)
    hit = before[400:403]
    stretch = hit[0].physical_offset + 10, hit[-1].physical_offset + 200
    base = stretch[0] // FILE_BYTES * FILE_BYTES
    name, at = f"commitlog/{base:020d}", stretch[0] - base
    write(root, name, at, b"\xee" * (stretch[1] - stretch[0]))
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.sound
    after = {message.physical_offset: message for message in messages(root)}
    lost = {message.physical_offset for message in hit}
    for message in before:
        found = after[message.physical_offset]
        if message.physical_offset in lost:
            place = (found.topic, found.queue_id, found.queue_offset, found.store_size)
            assert place == (
                message.topic,
                message.queue_id,
                message.queue_offset,
                message.store_size,
            )
            assert "FIREARROW_LOST" in found.properties
        else:
            assert found == message


def test_a_start_after_an_unclean_end_loses_nothing_behind_a_mended_place(tmp_path: Path) -> None:
    """The reason for covering: what recovery would have cut off is there."""
    for mended in (False, True):
        root = golden_store(tmp_path / str(mended))
        message = a_message(root)
        in_record(root, message, 4, b"gone")
        if mended:
            apply(Layout(root), SystemClock())
        (root / "abort").write_text("1")
        (root / "checkpoint").unlink()  # so that the whole log is read
        with opened(root, **GOLDEN_SIZES) as store:
            assert store.log.end_offset == (LOG_END if mended else message.physical_offset)
            if mended:
                queue = consumed(store, message.topic, message.queue_id)
                assert [view.queue_offset for view in queue] == list(range(158))
                append(store, b"next", message.topic, message.queue_id)
                settle(store)
        if mended:
            assert verify(Layout(root)).sound


def test_what_was_replaced_is_kept(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 90, b"\0\0")
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    place = message.physical_offset - base
    before = read(root, f"commitlog/{base:020d}", place, message.store_size)
    outcome = apply(Layout(root), SystemClock())
    assert outcome.kept is not None
    kept = Path(outcome.kept)
    manifest = json.loads((kept / "manifest.json").read_text())
    entry = next(entry for entry in manifest["kept"] if "position" in entry)
    assert (entry["position"], entry["size"]) == (place, message.store_size)
    assert (kept / entry["kept_as"]).read_bytes() == before
    assert [step["action"] for step in manifest["steps"]] == [
        step.action.value for step in outcome.steps
    ]


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    planned = plan(Layout(root))
    assert [step.action for step in planned.steps] == [
        Action.WRITE,
        Action.REBUILD,
        Action.REBUILD,
    ]
    assert planned.does_something
    assert [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files


def test_nothing_is_mended_while_a_broker_runs(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    with opened(root), pytest.raises(StoreLocked):
        apply(Layout(root), SystemClock())


def test_a_sound_store_is_left_alone(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    outcome = apply(Layout(root), SystemClock())
    assert (outcome.kept, outcome.steps, outcome.left_out) == (None, [], {})


def test_several_faults_at_once(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone")
    in_record(root, messages(root)[-3], 88, b"\1\2\3")
    write(root, f"commitlog/{2 * FILE_BYTES:020d}", 68_337, b"torn record")
    (root / "consumequeue/GoldenOrder/0/00000000000000000000").unlink()
    (root / "commitlog/stray").write_bytes(b"")
    (root / "config/consumerOffset.json").write_bytes(b"")
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.sound, outcome.verdict.findings
    assert verify(Layout(root)).findings == []
