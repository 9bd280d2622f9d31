"""Queues and index made from the log alone are those that the original broker wrote."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import CorruptStore, StoreError, StoreLocked
from firearrow.store import inventory
from firearrow.store.config import StoreConfig
from firearrow.store.offline import (
    Layout,
    Order,
    Planned,
    Rebuilt,
    StoreView,
    apply,
    plan,
    planned,
    rebuild,
    salvage,
    verify,
)
from tests import golden
from tests.store.offline.damage import (
    PLAIN,
    a_message,
    database_store,
    golden_store,
    in_record,
    messages,
    own_store,
    write,
)
from tests.store.stores import abandon, append, append_named, bodies, contents, make_store, opened, settle, small_config


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed"])
def test_the_bytes_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    made = rebuild(Layout(root), SystemClock(), to=tmp_path / "made")
    assert made.left_out == {}
    assert contents(tmp_path / "made/consumequeue") == contents(root / "consumequeue")
    indexes = contents(tmp_path / "made/index").values()  # their names are times of making
    assert list(indexes) == list(contents(root / "index").values())


@pytest.mark.parametrize(
    "order",
    [Order(stretch_bytes=5000), Order(stretch_bytes=70_001), Order(jobs=2, stretch_bytes=100_000)],
    ids=["small", "odd", "processes"],
)
def test_however_the_log_is_cut_the_bytes_are_the_same(order: Order, tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 4, b"gone" * 2)  # entries stand in for it
    rebuild(Layout(root), SystemClock(), Order(stretch_bytes=1 << 30), to=tmp_path / "whole")
    made = rebuild(Layout(root), SystemClock(), order, to=tmp_path / "made")
    assert made.stand_ins == 1
    assert contents(tmp_path / "made/consumequeue") == contents(tmp_path / "whole/consumequeue")
    indexes = contents(tmp_path / "made/index").values()
    assert list(indexes) == list(contents(tmp_path / "whole/index").values())


def test_a_queue_that_goes_back_and_on_within_a_stretch_is_left_out(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    lost = messages(root)[300]
    base = lost.physical_offset // (64 * 1024) * (64 * 1024)
    position = lost.physical_offset - base + 20
    write(root, f"commitlog/{base:020d}", position, (5000).to_bytes(8, "big"))
    shutil.rmtree(root / "consumequeue")  # which would prove another queue offset
    layout = Layout(root, made_as=small_config(root))
    made = rebuild(layout, SystemClock(), to=tmp_path / "made")
    assert made.left_out == {"T-0": "after 299 the log goes on with 5000"}
    assert not (tmp_path / "made/consumequeue/T/0").exists()


def test_many_queues_are_made_in_one_go(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        for number in range(200):
            append(store, b"%d" % number, "T", number % 100)
        settle(store)
    made = rebuild(Layout(root), SystemClock(), to=tmp_path / "made")
    assert made.left_out == {}
    assert contents(tmp_path / "made/consumequeue") == contents(root / "consumequeue")


def test_in_place_the_old_files_are_kept(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before = contents(root / "consumequeue")
    shutil.rmtree(root / "consumequeue/GoldenPlain")
    made = rebuild(Layout(root), SystemClock())
    assert contents(root / "consumequeue") == before
    assert made.kept is not None
    assert len(contents(Path(made.kept) / "consumequeue")) == len(before) - 4
    assert verify(Layout(root)).findings == []


def test_several_files_of_each_kind(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    rebuild(Layout(root), SystemClock(), to=tmp_path / "made")
    assert contents(tmp_path / "made/consumequeue") == contents(root / "consumequeue")
    assert list(contents(tmp_path / "made/index").values()) == list(contents(root / "index").values())


def test_a_deleted_first_log_file_gives_pre_blanks(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    (root / "commitlog" / f"{0:020d}").unlink()
    rebuild(Layout(root), SystemClock())
    verdict = verify(Layout(root))
    assert verdict.findings == []
    assert 0 < verdict.records < 600


def test_entries_stand_in_for_lost_messages(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 4, b"gone" * 2)
    made = rebuild(Layout(root), SystemClock())
    assert (made.left_out, made.stand_ins) == ({}, 1)
    found = [f for f in verify(Layout(root)).findings if f.invariant == "queue-stand-in"]
    assert [(f.topic, f.queue_offset) for f in found] == [(message.topic, message.queue_offset)]


def test_a_queue_whose_offsets_go_back_stays_as_it_is(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 20, bytes(7) + b"\5")
    write(root, PLAIN, 20 * message.queue_offset, bytes(20))  # which would prove another
    before = contents(root / "consumequeue")
    made = rebuild(Layout(root), SystemClock(), Order(index=False))
    assert list(made.left_out) == [f"{message.topic}-{message.queue_id}"]
    assert contents(root / "consumequeue") == before


def test_topics_that_were_deleted_do_not_come_back(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"GoldenBatch"', '"Other"'))
    shutil.rmtree(root / "consumequeue/GoldenBatch")
    rebuild(Layout(root), SystemClock())
    assert not (root / "consumequeue/GoldenBatch").exists()


def test_topics_of_the_system_are_made_though_they_are_not_configured(tmp_path: Path) -> None:
    root = database_store(tmp_path)
    timed = messages(root, topic="rmq_sys_wheel_timer")
    assert len(timed) == 6
    shutil.rmtree(root / "consumequeue")
    warned: list[str] = []
    made = rebuild(Layout(root), SystemClock(), Order(on_warning=warned.append))
    assert (made.left_out, made.unconfigured) == ({}, {})
    with StoreView(Layout(root)) as view:
        assert view.queues["rmq_sys_wheel_timer", 0].end == 6
    assert [text for text in warned if "RocksDB" in text] == [
        "storeType=defaultRocksDB is guessed: the database consumequeue is lost"
    ]
    assert made.warnings == warned
    assert verify(Layout(root)).findings == []


def test_repair_makes_a_lost_database_again(tmp_path: Path) -> None:
    root = database_store(tmp_path)
    shutil.rmtree(root / "consumequeue")
    assert apply(Layout(root), SystemClock()).verdict.findings == []
    assert (root / "consumequeue/CURRENT").exists()


def test_what_is_left_of_a_database_is_replaced_by_one(tmp_path: Path) -> None:
    root = database_store(tmp_path)
    shutil.rmtree(root / "config/topics")
    for name in ("subscriptionGroups", "consumerOffsets"):
        shutil.rmtree(root / "config" / name)
    (root / "consumequeue/CURRENT").unlink()
    rebuild(Layout(root), SystemClock(), Order(index=False))
    assert {path.name for path in (root / "consumequeue").iterdir() if path.is_dir()} == set()
    with StoreView(Layout(root)) as view:
        assert view.queues["GoldenOrder", 0].end > 0


def test_topics_that_are_taken_for_deleted_are_counted(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"GoldenBatch"', '"Other"'))
    count = len(messages(root, topic="GoldenBatch"))
    shutil.rmtree(root / "consumequeue/GoldenBatch")
    made = rebuild(Layout(root), SystemClock(), Order(index=False), to=tmp_path / "made")
    assert made.unconfigured == {"GoldenBatch": count}


def test_sizes_are_those_of_the_configuration(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before = contents(root / "consumequeue"), list(contents(root / "index").values())
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    made_as = StoreConfig(mapped_file_size_consume_queue=4000, max_hash_slot_num=2000, max_index_num=8000)
    made = rebuild(Layout(root, made_as=made_as), SystemClock())
    assert made.warnings == []
    assert (contents(root / "consumequeue"), list(contents(root / "index").values())) == before


def test_sizes_that_are_surely_others_are_not_guessed(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    shutil.rmtree(root / "consumequeue")
    before = contents(root)
    reason = (
        r"mappedFileSizeConsumeQueue=6000000\) can't be guessed for a broker that has CommitLog"
        r" files of 262144 bytes: its properties file is needed \(-c FILE\)"
    )
    for make in (rebuild, lambda layout, _: planned(layout), apply):
        with pytest.raises(StoreError, match=reason):
            make(Layout(root), SystemClock())
    shutil.rmtree(root / "index")
    with pytest.raises(StoreError, match=r"maxHashSlotNum=5000000, maxIndexNum=20000000\) can't"):
        rebuild(Layout(root), SystemClock(), Order(queues=False))
    after = {name: data for name, data in before.items() if not name.startswith("index/")}
    assert contents(root) == after


def test_sizes_are_guessed_where_nothing_speaks_against_the_defaults(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_commit_log=1 << 30) as store:
        append(store, b"body")
    shutil.rmtree(tmp_path / "consumequeue")
    warned: list[str] = []
    made = rebuild(Layout(tmp_path), SystemClock(), Order(index=False, on_warning=warned.append))
    assert made.warnings == warned
    [warning] = warned
    assert warning.startswith("mappedFileSizeConsumeQueue=6000000 is guessed, RocketMQ's default")
    [file] = contents(tmp_path / "consumequeue").values()
    assert len(file) == 6_000_000


@pytest.mark.parametrize(
    ("store", "kind", "reason"),
    [
        (golden_store, "defaultRocksDB", "are files, and the properties file says storeType"),
        (database_store, "default", "is a database of RocksDB, and the properties file says"),
    ],
)
def test_a_store_of_another_kind_than_configured_is_refused(
    store: Callable[[Path], Path], kind: Literal["default", "defaultRocksDB"], reason: str, tmp_path: Path
) -> None:
    layout = Layout(store(tmp_path), made_as=StoreConfig(store_type=kind))
    with pytest.raises(StoreError, match=reason):
        rebuild(layout, SystemClock())


def test_files_of_another_size_than_configured_are_told(tmp_path: Path) -> None:
    layout = Layout(golden_store(tmp_path), made_as=StoreConfig())
    made = rebuild(layout, SystemClock(), Order(index=False), to=tmp_path / "made")
    assert made.warnings == ["ConsumeQueue files have 4000 bytes, and are made with 6000000"]


def test_what_killed_runs_have_left_goes(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    (root / ".rebuild-20261121T034500Z/consumequeue/T/0").mkdir(parents=True)
    with opened(tmp_path / "own"):
        (tmp_path / "own/.rebuild-20261121T034500Z").mkdir()
        with pytest.raises(StoreLocked):
            rebuild(Layout(tmp_path / "own"), SystemClock())
    rebuild(Layout(root), SystemClock(), Order(index=False))
    assert not list(root.glob(".rebuild-*"))
    assert (tmp_path / "own/.rebuild-20261121T034500Z").is_dir()  # it may be in use


def test_what_would_be_made_is_told_beforehand(tmp_path: Path) -> None:
    root, to = golden_store(tmp_path), tmp_path / "made"
    before = contents(root)
    plan = planned(Layout(root), Order(index=False), to=to)
    assert plan == [Planned("consumequeue", "queues in files", str(to / "consumequeue"), 24)]
    assert [made.where for made in planned(Layout(root))] == [str(root / name) for name in ("consumequeue", "index")]
    assert contents(root) == before
    assert not to.exists()
    with opened(tmp_path / "own"), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        planned(Layout(tmp_path / "own"))


def test_what_is_refused(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    with pytest.raises(StoreError, match="exists already"):
        rebuild(Layout(root), SystemClock(), to=root)
    with opened(root), pytest.raises(StoreLocked):
        rebuild(Layout(root), SystemClock())
    with pytest.raises(StoreError, match="is not a directory"):
        rebuild(Layout(tmp_path / "nowhere"), SystemClock())
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="is not a store"):
        rebuild(Layout(tmp_path / "empty"), SystemClock())


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "absolute"])
def test_a_topic_of_the_log_names_no_directory_elsewhere(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    for at in ("x", "0", "abs", "store/0"):
        (tmp_path / at / "0").mkdir(parents=True)
        (tmp_path / at / "0/kept").write_bytes(b"kept")
    traps = {path: data for path, data in contents(tmp_path).items() if path.endswith("kept")}
    topic = str(tmp_path / "abs") if name == "absolute" else name
    with opened(root) as store:
        append(store, b"t")
        append_named(store, topic)
        append(store, b"u", "U")
        settle(store)

    def check(made: Rebuilt | None = None) -> None:
        if made is not None:
            assert list(made.left_out) == [f"{topic}-0"]
            assert "the name" in made.left_out[f"{topic}-0"]
        found = contents(tmp_path)
        assert {path: data for path, data in found.items() if path.endswith("kept")} == traps
        assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["T", "U"]
        findings = verify(Layout(root)).findings
        assert [(one.topic, one.times) for one in findings if one.invariant == "queue-name"] == [(topic, 1)]
        assert {one.invariant for one in findings} <= {"queue-name", "root-stray"}

    check()
    check(rebuild(Layout(root), SystemClock()))
    check(rebuild(Layout(root), SystemClock(), Order(only=frozenset({(topic, 0), ("T", 0)}))))
    check(rebuild(Layout(root), SystemClock(), to=tmp_path / "made"))
    assert sorted(path.name for path in (tmp_path / "made/consumequeue").iterdir()) == ["T", "U"]
    write(root, f"consumequeue/T/0/{0:020d}", 8, b"\0\0\0\1")  # not the record's size
    assert apply(Layout(root), SystemClock()).verdict.sound
    check()
    made = salvage([root], tmp_path / "new", SystemClock())
    assert (made.records, list(made.left_out)) == (3, [f"{topic}-0"])
    assert sorted(path.name for path in (tmp_path / "new/consumequeue").iterdir()) == ["T", "U"]
    # The log has nothing of such a queue, which is rebuilt all the same.
    with opened(tmp_path / "other") as store:
        append(store, b"t")
    rebuild(Layout(tmp_path / "other"), SystemClock(), Order(only=frozenset({(topic, 0)})))
    check()


# --- Repair and rebuild know the notes that a stop leaves for the next start ---


CLOSED, LEFT_OUT = "closed.json", "left-out-queues.tsv"


def test_verify_takes_them_for_no_strays(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    (root / LEFT_OUT).write_text("T\t0\t600\n")
    assert (root / CLOSED).exists()
    assert verify(Layout(root)).findings == []


def test_a_store_whose_log_lost_its_end_starts_after_a_repair(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    last = max((root / "commitlog").iterdir())
    last.unlink()
    with pytest.raises(CorruptStore, match=r"put [^ ]+ back"):
        make_store(root).open()
    assert plan(Layout(root)).steps[-1].file == CLOSED
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.sound, outcome.verdict.findings
    assert outcome.kept is not None
    assert Path(outcome.kept, CLOSED).exists()
    with opened(root) as store:
        assert store.max_queue_offset("T", 0) == store.queue("T", 0).next_offset == 600
    assert not (root / "quarantine").exists()


def test_what_a_repair_has_made_is_not_made_again_by_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = own_store(tmp_path)
    max((root / "consumequeue/T/0").iterdir()).unlink()
    min((root / "index").iterdir()).unlink()
    assert apply(Layout(root), SystemClock()).verdict.sound
    with opened(root) as store:
        assert len(bodies(store)) == 600
    assert "rebuilt" not in caplog.text


@pytest.mark.parametrize("order", [Order(), Order(index=False), Order(queues=False)])
def test_what_a_rebuild_has_made_is_not_made_again_by_the_start(
    tmp_path: Path, order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    root = own_store(tmp_path)
    before = inventory.load(root)
    assert before is not None
    made = rebuild(Layout(root), SystemClock(), order)
    noted = inventory.load(root)
    assert noted is not None
    assert noted.log == before.log
    assert noted.queues == ({"T": {}} if order.queues else before.queues)
    assert noted.index == ([] if order.index else before.index)
    assert made.kept is not None
    assert Path(made.kept, CLOSED).exists()
    with opened(root) as store:
        assert len(bodies(store)) == 600
    assert "rebuilt" not in caplog.text
    assert "left out" not in caplog.text


def test_a_rebuild_does_not_hide_that_the_log_lost_its_end(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    rebuild(Layout(root), SystemClock())
    with pytest.raises(CorruptStore, match=r"put [^ ]+ back"):
        make_store(root).open()


def left_out(root: Path) -> None:
    """A store that was killed while a queue could not be written."""
    store = make_store(root)
    store.open(background=False)
    (root / "consumequeue/A").parent.mkdir(exist_ok=True)
    (root / "consumequeue/A").write_text("")
    for number in range(50):
        append(store, b"%d" % number, "A")
        append(store, b"%d" % number, "B")
    settle(store)
    abandon(store)
    (root / "consumequeue/A").unlink()
    assert (root / LEFT_OUT).read_text() == "A\t0\t50\n"


def test_a_queue_that_was_left_out_is_made_by_a_rebuild(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left_out(tmp_path)
    kept = rebuild(Layout(tmp_path), SystemClock(), Order(only=frozenset({("A", 0)}))).kept
    assert not (tmp_path / LEFT_OUT).exists()
    assert kept is not None
    assert Path(kept, LEFT_OUT).read_text() == "A\t0\t50\n"
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == len(bodies(store, "B")) == 50
    assert "rebuilt" not in caplog.text


def test_a_queue_that_the_log_does_not_give_whole_stays_noted(tmp_path: Path) -> None:
    left_out(tmp_path)
    (tmp_path / LEFT_OUT).write_text("A\t0\t70\nB\t0\t50\n")
    rebuild(Layout(tmp_path), SystemClock(), Order(only=frozenset({("A", 0), ("B", 0)})))
    assert (tmp_path / LEFT_OUT).read_text() == "A\t0\t70\n"
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == 50
    assert not (tmp_path / LEFT_OUT).exists()


def test_a_repair_leaves_a_queue_that_is_only_behind_to_the_start(tmp_path: Path) -> None:
    left_out(tmp_path)
    (tmp_path / "commitlog/stray").write_text("")
    assert apply(Layout(tmp_path), SystemClock()).verdict.sound
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == len(bodies(store, "B")) == 50
