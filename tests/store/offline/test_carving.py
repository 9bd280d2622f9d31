"""Everything sound is carved out of whatever is left, and makes a store again."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.clock import SystemClock
from firearrow.errors import StoreError
from firearrow.journal import Change, Journal
from firearrow.message.record import append_crc_property, encode_record, verify_crc_property
from firearrow.state import GROUPS, OFFSETS, TOPICS, stored_state
from firearrow.store.offline import Layout, apply, carved_messages, diff, salvage, verify
from firearrow.store.offline.view import parse_config
from tests.golden import extract
from tests.store.offline.damage import FILE_BYTES, golden_store, messages, write
from tests.store.stores import GOLDEN_SIZES, STORE_HOST, append, opened, settle
from tests.store.stores import messages as consumed


def test_a_sound_store_comes_out_byte_for_byte(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    made = salvage([root], tmp_path / "new", SystemClock())
    assert (made.records, made.placeholders, made.renumbered) == (952, 0, 0)
    assert verify(Layout(tmp_path / "new")).findings == []
    for path in (root / "commitlog").iterdir():
        assert (tmp_path / "new/commitlog" / path.name).read_bytes() == path.read_bytes()
    found = diff(Layout(root), Layout(tmp_path / "new"), logical=True)
    assert found.queues == []


def test_queue_offsets_stay_where_messages_are_lost(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    lost = messages(root)[390:410]
    base = lost[0].physical_offset // FILE_BYTES * FILE_BYTES
    size = lost[-1].physical_offset + lost[-1].store_size - lost[0].physical_offset
    write(root, f"commitlog/{base:020d}", lost[0].physical_offset - base, bytes(size))
    made = salvage([root], tmp_path / "new", SystemClock())
    assert (made.records, made.placeholders, made.renumbered) == (932, 20, 0)
    verdict = verify(Layout(tmp_path / "new"))
    assert verdict.findings == []
    found = diff(Layout(root.parent / "file-cq-clean"), Layout(tmp_path / "new"), logical=True)
    assert all((queue.only_first, queue.different) == (0, 0) for queue in found.queues)
    with opened(tmp_path / "new", **GOLDEN_SIZES) as store:
        offsets = [view.queue_offset for view in consumed(store, "GoldenPlain", 1)]
        assert offsets == list(range(158))


def test_what_is_in_databases_is_configured_in_files(tmp_path: Path) -> None:
    root = extract("rocksdb-cq-clean", tmp_path)
    parts = (TOPICS, GROUPS, OFFSETS)
    for part in parts:
        (root / "config" / part.file_name).unlink(missing_ok=True)
    salvage([root], tmp_path / "new", SystemClock(), file_bytes=FILE_BYTES)
    for part in parts:
        state = stored_state(root / "config", part)
        assert parse_config(tmp_path / "new/config" / part.file_name) == state


def test_what_a_journal_has_is_configured(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "config" / TOPICS.file_name
    before = stored_state(path.parent, TOPICS)
    new = {"dataVersion": {"counter": 99}, "topicConfigTable": {"Noted": {"perm": 6}}}
    Journal(path).append(Change(before["dataVersion"], new))
    salvage([root], tmp_path / "new", SystemClock())
    after = stored_state(tmp_path / "new/config", TOPICS)
    assert after["topicConfigTable"].keys() == before["topicConfigTable"].keys() | {"Noted"}


def test_loose_bytes_without_names_or_order(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    parts = [path.read_bytes() for path in sorted((root / "commitlog").iterdir())]
    image = tmp_path / "disk.img"
    noise = random.Random(7).randbytes(5000)
    image.write_bytes(noise + parts[2] + noise[:777] + parts[0] + b"\xda" + parts[1] + parts[0])
    made = salvage([image], tmp_path / "new", SystemClock(), file_bytes=FILE_BYTES)
    assert (made.records, made.contradictions) == (952, 0)
    assert made.duplicates == len([m for m in messages(root) if m.physical_offset < FILE_BYTES])
    found = diff(Layout(root), Layout(tmp_path / "new"), logical=True)
    assert found.queues == []


def test_what_a_repair_set_aside_is_found_again(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    chosen = messages(root)[500]
    base = chosen.physical_offset // FILE_BYTES * FILE_BYTES
    write(root, f"commitlog/{base:020d}", chosen.physical_offset - base + 28, b"\0\0\0\1" * 2)
    apply(Layout(root), SystemClock())
    carved = [m for m in carved_messages([root]) if m.unique_key == chosen.unique_key]
    assert [message.body for message in carved] == [chosen.body]


def test_a_crc_property_is_right_at_the_new_place(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    record = encode_record("T", b"body", b"A\x01b\x02", 0, 0, 7777, 0, 0, 1, STORE_HOST, 2, STORE_HOST)
    blob.write_bytes(b"..." + append_crc_property(record))
    salvage([blob], tmp_path / "new", SystemClock(), file_bytes=65_536)
    [found] = messages(tmp_path / "new")
    data = (tmp_path / "new/commitlog" / f"{0:020d}").read_bytes()[: found.store_size]
    assert found.physical_offset == 0
    assert verify_crc_property(data) is True
    assert verify(Layout(tmp_path / "new")).findings == []


def test_a_delivery_names_its_message_at_the_new_place(tmp_path: Path) -> None:
    """One of which the message is lost names none: there may be another one at its place."""
    blob = tmp_path / "blob"
    rest = 0, 0, 1, STORE_HOST, 2, STORE_HOST
    level = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    records = [
        encode_record("T", b"first", b"", 0, 0, 5000, *rest),
        encode_record("SCHEDULE_TOPIC_XXXX", b"waits", level, 0, 0, 6000, *rest),
        encode_record("T", b"waits", level, 0, 1, 7000, *rest, 0, 6000),
        encode_record("T", b"lost", level, 0, 2, 8000, *rest, 0, 5500),
    ]
    blob.write_bytes(b".".join(records))
    salvage([blob], tmp_path / "new", SystemClock(), file_bytes=65_536)
    found = messages(tmp_path / "new")
    assert [view.body for view in found] == [b"first", b"waits", b"waits", b"lost"]
    named = [view.prepared_transaction_offset for view in found]
    assert named == [0, 0, found[1].physical_offset, 0]


def test_what_is_refused(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    with pytest.raises(StoreError, match="is not empty"):
        salvage([root], root, SystemClock())
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no file to read"):
        salvage([tmp_path / "empty"], tmp_path / "new", SystemClock())


@settings(max_examples=30)
@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    noise=st.lists(st.binary(max_size=120), min_size=1, max_size=5),
    seed=st.integers(0, 1 << 30),
)
def test_every_record_between_any_bytes_is_found(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], noise: list[bytes], seed: int
) -> None:
    chance = random.Random(seed)
    records = []
    for number, body in enumerate(bodies):
        place = number, 1000 * number
        records.append(encode_record("T", body, b"", 0, *place, 0, 0, 1, STORE_HOST, 2, STORE_HOST))
    chance.shuffle(records)
    blob = tmp_path_factory.mktemp("carve") / "blob"
    blob.write_bytes(b"".join(chance.choice(noise) + record for record in records))
    assert [message.body for message in carved_messages([blob])] == bodies


def test_a_log_file_has_room_for_placeholders(tmp_path: Path) -> None:
    """A placeholder may be larger than all the messages that are left."""
    with opened(tmp_path / "store") as store:
        for _ in range(3):
            append(store, b"")
        settle(store)
    [file] = (tmp_path / "store/commitlog").iterdir()
    data = file.read_bytes()
    size = int.from_bytes(data[:4], "big")
    part = tmp_path / f"{0:020d}"
    part.write_bytes(data[:size] + bytes(size) + data[2 * size : 3 * size])
    made = salvage([part], tmp_path / "new", SystemClock(), file_bytes=100)
    assert (made.records, made.placeholders) == (2, 1)
    assert len({path.stat().st_size for path in (tmp_path / "new/commitlog").iterdir()}) == 1
    assert [message.queue_offset for message in messages(tmp_path / "new")] == [0, 1, 2]
