"""What a repair leaves: messages that were sound, queue offsets, and a way back."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import StoreError, StoreLocked
from firearrow.journal import Change, Journal
from firearrow.state import TOPICS, stored_state
from firearrow.store.offline import Action, Layout, apply, plan, verify
from tests.store.offline.damage import (
    FILE_BYTES,
    LOG_END,
    PLAIN,
    a_message,
    database_store,
    golden_store,
    in_record,
    messages,
    own_store,
    read,
    write,
)
from tests.store.stores import GOLDEN_SIZES, abandon, append, make_store, opened, settle, small_config
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
            assert place == (message.topic, message.queue_id, message.queue_offset, message.store_size)
            assert "FIREARROW_LOST" in found.properties
        else:
            assert found == message


def test_a_start_after_an_unclean_end_loses_nothing_behind_a_repaired_place(tmp_path: Path) -> None:
    """The reason for covering: what recovery would have cut off is there."""
    for corrected in (False, True):
        root = golden_store(tmp_path / str(corrected))
        message = a_message(root)
        in_record(root, message, 4, b"gone" * 2)
        if corrected:
            apply(Layout(root), SystemClock())
        (root / "abort").write_text("1")
        (root / "checkpoint").unlink()  # so that the whole log is read
        with opened(root, **GOLDEN_SIZES) as store:
            assert store.log.end_offset == (LOG_END if corrected else message.physical_offset)
            if corrected:
                queue = consumed(store, message.topic, message.queue_id)
                assert [view.queue_offset for view in queue] == list(range(158))
                append(store, b"next", message.topic, message.queue_id)
                settle(store)
        if corrected:
            assert verify(Layout(root)).sound


@pytest.mark.parametrize(
    ("position", "data"),
    [
        (0, b"\0\1"),
        (4, b"\1\2\3\4"),
        (12, b"\7\7\7\7"),
        (20, b"\0\0\0\1"),
        (28, b"\0\0\0\1" * 2),
        (36, b"\0\0\0\x3c"),
        (84, b"\0\0\1\0"),
    ],
    ids=["size", "magic", "queue", "queue-offset", "physical-offset", "flags", "body-size"],
)
@pytest.mark.parametrize("store", [golden_store, database_store])
def test_a_field_that_the_rest_proves_is_restored(
    position: int, data: bytes, store: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = store(tmp_path)
    before = messages(root)
    in_record(root, a_message(root), position, data)
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.findings == []
    assert messages(root) == before
    assert outcome.steps[0].consequence == "none"


def test_an_entry_that_leads_nowhere_proves_nothing(tmp_path: Path) -> None:
    """A record that seems to begin its queue again, and damage in the queue's file behind it."""
    root = golden_store(tmp_path)
    before, message = messages(root), a_message(root)
    in_record(root, message, 20, bytes(8))
    write(root, PLAIN, 20 * (message.queue_offset + 1), pack(">qi", -1 << 60, 1000))
    assert apply(Layout(root), SystemClock()).verdict.findings == []
    assert messages(root) == before


@pytest.mark.parametrize("size", [0, -5, 1 << 30])
def test_an_entry_without_its_size_still_proves_a_queue_offset(size: int, tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before, message = messages(root), a_message(root)
    in_record(root, message, 20, bytes(8))
    write(root, PLAIN, 20 * message.queue_offset + 8, pack(">i", size))
    assert apply(Layout(root), SystemClock()).verdict.findings == []
    assert messages(root) == before


def test_neighbours_in_the_log_prove_a_queue_offset_where_no_entry_does(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before, message = messages(root), a_message(root)
    in_record(root, message, 20, b"\x7b")
    write(root, PLAIN, 20 * message.queue_offset, b"\x3b" * 64)
    assert apply(Layout(root), SystemClock()).verdict.findings == []
    assert messages(root) == before


def test_a_topic_that_its_queue_proves_is_restored(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before, message = messages(root), a_message(root)
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    place = message.physical_offset - base
    data = read(root, f"commitlog/{base:020d}", place, message.store_size)
    in_record(root, message, data.index(b"\x0bGoldenPlain") + 3, b"x")
    assert apply(Layout(root), SystemClock()).verdict.findings == []
    assert messages(root) == before


ALTERED = {"body": (90, b"\0\0"), "crc": (8, b"\1\2\3\4")}


@pytest.mark.parametrize("way", ALTERED)
@pytest.mark.parametrize("store", [golden_store, database_store])
def test_a_message_with_altered_bytes_can_still_be_read(
    way: str, store: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = store(tmp_path)
    in_record(root, a_message(root), *ALTERED[way])
    before, message = messages(root), a_message(root)
    outcome = apply(Layout(root), SystemClock())
    assert messages(root) == before
    assert outcome.kept is None
    [step] = outcome.steps
    assert step.action is Action.LEAVE
    keys = " ".join(message.keys)
    assert step.what.startswith(f"GoldenPlain-0, queue offset 60, keys {keys}: its bytes")
    assert not outcome.verdict.sound


@pytest.mark.parametrize(("position", "data"), [(12, b"\7\7\7\7"), (36, b"\0\0\0\4")])
def test_altered_bytes_in_what_seems_another_queue_can_still_be_read(
    position: int, data: bytes, tmp_path: Path
) -> None:
    """Brokers find them by their entry; a queue that is built again has to find them, too."""
    root = golden_store(tmp_path)
    in_record(root, a_message(root), *ALTERED["body"])
    before, message = messages(root), a_message(root)
    in_record(root, message, position, data)
    apply(Layout(root), SystemClock())
    assert messages(root) == before


def test_who_serves_a_message_with_altered_bytes_is_told(tmp_path: Path) -> None:
    """Firearrow withholds what clients could not decompress."""
    root = golden_store(tmp_path)
    packed = next(one for one in messages(root) if one.sys_flag & 1)
    for message in (packed, a_message(root)):
        in_record(root, message, *ALTERED["crc"])
    told = [step.what for step in plan(Layout(root)).steps]
    assert sum("brokers serve it" in text for text in told) == 1
    assert sum("RocketMQ serves it" in text for text in told) == 1


def test_a_message_with_altered_bytes_is_covered_when_told(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), *ALTERED["body"])
    assert apply(Layout(root), SystemClock(), cover_bodies=True).verdict.findings == []
    assert "FIREARROW_LOST" in a_message(root).properties


def test_altered_bytes_that_its_queue_contradicts_are_covered(tmp_path: Path) -> None:
    """Where its entry tells another queue offset, no broker serves it."""
    root = golden_store(tmp_path)
    in_record(root, a_message(root), *ALTERED["body"])
    in_record(root, a_message(root), 20, b"\0\0\0\1")
    assert apply(Layout(root), SystemClock()).verdict.sound
    assert "FIREARROW_LOST" in a_message(root).properties


def test_an_unclean_start_keeps_what_is_behind_altered_bytes(tmp_path: Path) -> None:
    """Also where repair has to write the checkpoint again, that said when they were on the disk."""
    root = golden_store(tmp_path)
    in_record(root, a_message(root), *ALTERED["body"])
    write(root, "checkpoint", 0, (1 << 50).to_bytes(8, "big"))
    (root / "abort").write_text("1")
    apply(Layout(root), SystemClock())
    with opened(root, **GOLDEN_SIZES) as store:
        assert store.log.end_offset == LOG_END
        assert len(consumed(store, "GoldenPlain", 0)) == 158


@pytest.mark.parametrize(
    ("file", "unclean", "known", "is_read"),
    [(2, False, None, True), (0, False, None, False), (0, True, None, False), (0, True, 0, True)],
)
def test_what_a_start_of_rocketmq_does_is_told(
    file: int, unclean: bool, known: int | None, is_read: bool, tmp_path: Path
) -> None:
    """RocketMQ 5.5.0 was started on these four stores: two were cut off at the altered record."""
    root = golden_store(tmp_path)
    within = range(file * FILE_BYTES, (file + 1) * FILE_BYTES)
    message = next(one for one in messages(root) if one.body and one.physical_offset in within)
    in_record(root, message, 88, b"\0")
    if unclean:
        (root / "abort").write_text("1")
    if known is not None:
        write(root, "checkpoint", 0, bytes(48))
    told = [step.consequence for step in plan(Layout(root)).steps if step.action is Action.LEAVE]
    assert "the next start of RocketMQ cuts the log off there" in told[0] or not is_read
    assert "the next start of RocketMQ does not read it" in told[0] or is_read


def lost_end(root: Path, *, kind: str = "default", queue_lost: bool = False, sound: int = 0) -> None:
    """Make a store whose last message, after some sound ones, is damaged, and a group that has
    consumed it."""
    with opened(root, store_type=kind) as store:
        for _ in range(sound):
            append(store, b"before")
        at = append(store, b"body")
        settle(store)
    (root / "config").mkdir(exist_ok=True)
    (root / "config/consumerOffset.json").write_text('{"offsetTable":{"T@group":{"0":1}}}')
    (root / "config/topics.json").write_text('{"topicConfigTable":{"T":{"topicName":"T"}}}')
    write(root, f"commitlog/{0:020d}", at + 88, b"lost")
    write(root, f"commitlog/{0:020d}", at + 4, b"lost")
    if queue_lost:
        shutil.rmtree(root / "consumequeue/T")


@pytest.mark.parametrize(("kind", "queue_lost"), [("default", False), ("default", True), ("defaultRocksDB", False)])
def test_a_queue_offset_is_not_given_twice(kind: str, queue_lost: bool, tmp_path: Path) -> None:
    lost_end(tmp_path, kind=kind, queue_lost=queue_lost)
    # no file tells their size when they are lost
    made_as = small_config(tmp_path) if queue_lost else None
    layout = Layout(tmp_path, made_as=made_as)
    step = next(step for step in plan(Layout(tmp_path)).steps if "T-0" in step.what)
    assert "queue T-0 would give 0 again, group group is at 1" in step.what
    assert apply(layout, SystemClock()).verdict.sound
    with opened(tmp_path, store_type=kind) as store:
        append(store, b"next")
        settle(store)
        found = consumed(store)
    assert [(view.queue_offset, view.body) for view in found] == [(0, b""), (1, b"next")]
    assert found[0].properties.keys() == {"FIREARROW_LOST"}


@pytest.mark.parametrize("before", [0, 1])
def test_how_many_queue_offsets_can_be_held(before: int, tmp_path: Path) -> None:
    """One placeholder is enough where none of the queue's messages is left."""
    lost_end(tmp_path, sound=before)
    config = tmp_path / "config/consumerOffset.json"
    config.write_text('{"offsetTable":{"T@group":{"0":1000000}}}')
    again = f"queue T-0 would give {before} to 999999 again, group group is at 1000000"
    planned = plan(Layout(tmp_path))
    assert planned.given_again == [again] * before
    if before:
        with pytest.raises(StoreError, match=again):
            apply(Layout(tmp_path), SystemClock())
        assert not list(tmp_path.glob(".repair*"))
        assert apply(Layout(tmp_path), SystemClock(), give_again=True).kept is not None
    else:
        apply(Layout(tmp_path), SystemClock())
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 0) == (before or 1_000_000)


def test_a_file_that_is_missing_at_the_end_holds_its_queue_offsets(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    assert apply(Layout(root), SystemClock()).verdict.sound
    with opened(root) as store:
        assert store.max_queue_offset("T", 0) == 600


def test_what_was_replaced_is_kept(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 90, b"\0\0")
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    place = message.physical_offset - base
    before = read(root, f"commitlog/{base:020d}", place, message.store_size)
    outcome = apply(Layout(root), SystemClock(), cover_bodies=True)
    assert outcome.kept is not None
    kept = Path(outcome.kept)
    manifest = json.loads((kept / "manifest.json").read_text())
    entry = next(entry for entry in manifest["kept"] if "position" in entry)
    assert (entry["position"], entry["size"]) == (place, message.store_size)
    assert (kept / entry["kept_as"]).read_bytes() == before
    assert [step["action"] for step in manifest["steps"]] == [step.action.value for step in outcome.steps]


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone" * 2)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    planned = plan(Layout(root))
    assert [step.action for step in planned.steps] == [Action.WRITE, Action.REBUILD, Action.REBUILD]
    assert planned.does_something
    assert [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files


def test_nothing_is_repaired_while_a_broker_runs(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    with opened(root), pytest.raises(StoreLocked):
        apply(Layout(root), SystemClock())


def test_a_sound_store_is_left_alone(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    outcome = apply(Layout(root), SystemClock())
    assert (outcome.kept, outcome.steps, outcome.left_out) == (None, [], {})


def test_several_faults_at_once(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone" * 2)
    in_record(root, messages(root)[-3], 88, b"\1\2\3")
    write(root, f"commitlog/{2 * FILE_BYTES:020d}", 68_337, b"torn record")
    (root / "consumequeue/GoldenOrder/0/00000000000000000000").unlink()
    (root / "commitlog/stray").write_bytes(b"")
    (root / "config/consumerOffset.json").write_bytes(b"")
    outcome = apply(Layout(root), SystemClock(), cover_bodies=True)
    assert outcome.verdict.sound, outcome.verdict.findings
    assert verify(Layout(root)).findings == []


def test_a_journal_counts_behind_a_copy_that_is_put_in_place(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "config" / TOPICS.file_name
    shutil.copy(path, f"{path}.bak")
    path.write_bytes(b"{")
    new = {"dataVersion": {"counter": 1 << 40}, "topicConfigTable": {"Noted": {"perm": 6}}}
    Journal(path).append(Change({"counter": (1 << 40) - 1}, new))
    before = stored_state(path.parent, TOPICS)
    assert "Noted" in before["topicConfigTable"]
    apply(Layout(root), SystemClock())
    assert stored_state(path.parent, TOPICS) == before
    assert "config-readable" not in {finding.invariant for finding in verify(Layout(root)).findings}


def test_a_repair_needs_no_asserts(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone" * 30)
    program = (
        "import sys; from pathlib import Path; from firearrow.clock import SystemClock\n"
        "from firearrow.store.offline import Layout, apply\n"
        "sys.exit(not apply(Layout(Path(sys.argv[1])), SystemClock()).verdict.sound)"
    )
    subprocess.run([sys.executable, "-O", "-c", program, str(root)], check=True)


def test_bytes_that_two_steps_replace_are_kept_twice(tmp_path: Path) -> None:
    """A torn end is cut, and a placeholder then stands at the same position."""
    lost_end(tmp_path, sound=1)
    name = f"commitlog/{0:020d}"
    torn = read(tmp_path, name, 98, 96)
    assert b"lost" in torn
    outcome = apply(Layout(tmp_path), SystemClock())
    assert outcome.verdict.sound
    assert [step.position for step in outcome.steps[:2]] == [98, 98]
    kept = [path.read_bytes()[:96] for path in Path(outcome.kept or "").glob("*.bytes")]
    assert sorted(kept) == [bytes(96), torn]


@pytest.mark.parametrize("size", [0, 30, 100])
def test_a_log_file_without_room_for_a_placeholder(size: int, tmp_path: Path) -> None:
    lost_end(tmp_path, sound=1)
    path = tmp_path / f"commitlog/{0:020d}"
    path.write_bytes(path.read_bytes()[:size])
    [again] = plan(Layout(tmp_path)).given_again
    assert again.startswith("queue T-0 would give ")
    apply(Layout(tmp_path), SystemClock(), give_again=True)
    assert [one.stat().st_size for one in path.parent.iterdir()] == [size]


def test_placeholders_in_an_empty_file_give_it_its_size(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    max((root / "commitlog").iterdir()).write_bytes(b"")
    assert apply(Layout(root), SystemClock()).verdict.sound
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {64 * 1024}


def test_a_record_that_was_being_written_is_cut(tmp_path: Path) -> None:
    """It is whole but for zeros at the end of its properties: nothing proves other bytes."""
    store = make_store(tmp_path)
    store.open()
    append(store, b"before")
    at = append(store, b"body", properties={"TAGS": "x" * 20})
    settle(store)
    end = store.log.end_offset
    abandon(store)
    write(tmp_path, f"commitlog/{0:020d}", end - 8, bytes(8))
    outcome = apply(Layout(tmp_path), SystemClock())
    assert outcome.verdict.sound
    assert (outcome.steps[0].action, outcome.steps[0].position) == (Action.CUT, at)
    assert [message.body for message in messages(tmp_path)] == [b"before", b""]


@pytest.mark.parametrize(
    ("stray", "damage"),
    [
        ("index/notes", lambda root: next((root / "index").iterdir()).unlink()),
        ("consumequeue/T/0/notes", lambda root: (root / f"consumequeue/T/0/{400:020d}").unlink()),
    ],
    ids=["index", "queue"],
)
def test_a_stray_beside_files_that_are_built_again(stray: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    root = own_store(tmp_path)
    damage(root)
    (root / stray).write_bytes(b"?")
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.findings == []
    assert (Path(outcome.kept or "") / stray).read_bytes() == b"?"


def test_damage_where_a_file_has_a_wrong_name_is_named(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    at = a_message(root).physical_offset
    in_record(root, a_message(root), 4, b"gone" * 30)
    (root / f"commitlog/{100:020d}").touch()
    [step] = [step for step in plan(Layout(root)).steps if step.action is Action.LEAVE]
    assert step.what.startswith(f"the log's bytes {at} to ")
    assert not apply(Layout(root), SystemClock()).verdict.sound


def test_a_checkpoint_without_a_log_vouches_for_nothing(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    shutil.rmtree(root / "commitlog")
    assert "checkpoint" in [step.file for step in plan(Layout(root)).steps]
    apply(Layout(root), SystemClock(), give_again=True)
    found = {finding.invariant for finding in verify(Layout(root)).findings}
    assert not {"checkpoint-time", "checkpoint-offset"} & found
