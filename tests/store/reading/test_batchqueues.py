"""Queues of batches without a broker: seen, verified, rebuilt, repaired."""

import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import numpy as np
import pytest

from firearrow.clock import SystemClock
from firearrow.config.table import take
from firearrow.store.batchqueue import MESSAGES_MAX, UNIT_BYTES, UNIT_DTYPE
from firearrow.store.config import StoreConfig
from firearrow.store.offline import (
    Action,
    Layout,
    Order,
    Selection,
    StoreView,
    apply,
    diff,
    find,
    plan,
    rebuild,
    salvage,
    stat,
    verify,
    why_not_deleted,
)
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.storage import Directory, Files, StoreFile
from tests.golden import expected, extract
from tests.store.offline.damage import golden_store
from tests.store.stores import contents

QUEUE = "batchconsumequeue/Bat/0"
FIRST = f"{QUEUE}/{0:020d}"
SECOND = f"{QUEUE}/{460:020d}"
QUEUE_OFFSET_AT = 28  # within a unit
Break = Callable[[Path], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return extract("batch-queues", tmp_path)


def write(root: Path, name: str, at: int, data: bytes) -> None:
    with (root / name).open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_store_of_the_original_is_sound(root: Path) -> None:
    before = contents(root)
    verdict = verify(Layout(root))
    assert verdict.findings == []
    assert (verdict.queues, verdict.records, verdict.skipped) == (2, 30, [])
    assert contents(root) == before


@pytest.mark.parametrize("stretch_bytes", [1 << 30, 3000])
def test_the_log_gives_the_bytes_of_the_original(root: Path, tmp_path: Path, stretch_bytes: int) -> None:
    made = rebuild(Layout(root), SystemClock(), Order(stretch_bytes=stretch_bytes), to=tmp_path / "made")
    assert (made.queues, made.records, made.left_out, made.stand_ins) == (2, 30, {}, 0)
    batches = contents(root / "batchconsumequeue")
    assert contents(tmp_path / "made/batchconsumequeue") == batches
    assert not list((tmp_path / "made").glob("consumequeue/*"))


def test_in_place_the_old_files_are_kept(root: Path) -> None:
    before = contents(root / "batchconsumequeue")
    write(root, FIRST, 0, b"\7")
    made = rebuild(Layout(root), SystemClock())
    assert contents(root / "batchconsumequeue") == before
    assert made.kept is not None
    assert (Path(made.kept) / FIRST).read_bytes()[0] == 7


def test_without_any_files_the_attribute_says_the_kind(root: Path) -> None:
    first, second = (root / FIRST).read_bytes(), (root / SECOND).read_bytes()
    shutil.rmtree(root / "batchconsumequeue")
    [finding, *_] = verify(Layout(root)).findings
    assert (finding.invariant, finding.topic, finding.times) == ("queue-entry-missing", "Bat", 45)
    made_as = StoreConfig(mapper_file_size_batch_consume_queue=len(first))
    rebuild(Layout(root, made_as=made_as), SystemClock())
    assert ((root / FIRST).read_bytes(), (root / SECOND).read_bytes()) == (first, second)
    assert verify(Layout(root)).findings == []


def test_queues_are_seen_message_by_message(root: Path) -> None:
    with StoreView(Layout(root)) as view:
        for queue_id in (0, 1):
            queue = view.queues["Bat", queue_id]
            shown = [m["physicalOffset"] for m in expected("batch-queues") if m["queueId"] == queue_id]
            assert (queue.is_there, queue.end, queue.span) == (True, len(shown), (0, len(shown)))
            assert queue.disk_bytes == 15 * 46
            data = queue.read(0, 100)
            assert [data[at : at + 8] for at in range(0, len(data), 20)] == [pack(">q", p) for p in shown]
            assert queue.read(44, 1)[:8] == (pack(">q", 16399) if queue_id == 0 else b"")
            assert list(queue.others([(0, 3)])) == [(3, len(shown))]
            every = [(n.tolist(), e["physical_offset"].tolist()) for n, e in queue.all()]
            assert [place for _, places in every for place in places] == sorted(set(shown))
            assert [shown[n] for numbers, _ in every for n in numbers] == sorted(set(shown))


def test_units_that_lead_back_give_no_entries_of_other_messages() -> None:
    units = np.zeros(5, UNIT_DTYPE)
    units["size"] = 100
    units["messages"] = 2
    units["physical_offset"] = range(0, 500, 100)
    units["queue_offset"] = 0, 2, 4, 1, 3
    units["messages"][4] = 5
    file = StoreFile("0", 0, units.nbytes)
    queue = BatchQueue(Files(Directory([file], []), lambda _: units.tobytes()))
    data = queue.read(1, 6)
    assert [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 20)] == [0, 100, 100, 200, 200]


@contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def test_what_a_unit_claims_takes_no_memory(root: Path) -> None:
    count = 20_000
    units = np.zeros(count, UNIT_DTYPE)
    units[["physical_offset", "size", "queue_offset", "messages"]] = (2308, 9, 7, MESSAGES_MAX)
    units["size"][5] = -1
    (root / SECOND).unlink()
    (root / FIRST).write_bytes(units.tobytes())
    with peak_below(10 * units.nbytes), StoreView(Layout(root)) as view:
        [(numbers, entries)] = view.queues["Bat", 0].all()
        assert len(numbers) == count - 1
        assert {*entries["size"].tolist()} == {9}


def test_a_repair_is_planned_whatever_a_queue_claims(root: Path) -> None:
    write(root, f"commitlog/{0:020d}", 2308, b"gone" * 3)
    (root / SECOND).unlink()
    (root / FIRST).write_bytes(np.random.default_rng(1).bytes(20_000 * UNIT_BYTES))
    with peak_below(64_000_000):
        steps = plan(Layout(root), jobs=1).steps
    written = [(step.action, step.position) for step in steps if "log" in (step.file or "")]
    assert written == [(Action.WRITE, 2308)]


def test_a_directory_without_files_hides_no_queue(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    (root / "batchconsumequeue/GoldenPlain/0").mkdir(parents=True)
    with StoreView(Layout(root)) as view:
        assert view.queues["GoldenPlain", 0].end == 158
    [finding] = verify(Layout(root)).findings
    assert (finding.invariant, finding.file) == ("queue-stray", "batchconsumequeue/GoldenPlain")
    apply(Layout(root), SystemClock())
    assert verify(Layout(root)).findings == []
    assert not (root / "batchconsumequeue/GoldenPlain").exists()


def test_what_it_holds(root: Path) -> None:
    found = stat(Layout(root))
    [topic] = found.topics
    assert (topic.topic, topic.records, topic.queue_bytes) == ("Bat", 30, 30 * 46)
    assert [(q.min_offset, q.max_offset, q.records) for q in topic.queues] == [(0, 45, 15), (0, 35, 15)]
    shutil.rmtree(root / "batchconsumequeue")
    [topic] = stat(Layout(root)).topics
    assert [(q.min_offset, q.max_offset) for q in topic.queues] == [(0, 45), (0, 35)]


def test_a_record_is_found_by_any_of_its_messages(root: Path) -> None:
    with StoreView(Layout(root)) as view:
        inner = next(find(view, Selection(topic="Bat", queue_from=5, queue_to=6)))
        last = Selection(queue_from=inner.queue_offset + 1)
        assert (last.holds(inner), last.holds(inner, 2)) == (False, True)
        for queue_from, queue_to, bases in [(5, 6, [4]), (3, 5, [1, 4]), (0, 1, [0]), (41, 99, [41])]:
            for queue_id in (0, None):  # by the queue, and by the log
                chosen = Selection(topic="Bat", queue_id=queue_id, queue_from=queue_from, queue_to=queue_to)
                found = [m.queue_offset for m in find(view, chosen) if m.queue_id == 0]
                assert found == bases


@pytest.mark.parametrize("step", [1, 7, 50_000])
def test_a_copy_is_the_same_and_a_loss_is_named(
    root: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firearrow.store.offline.difference._ENTRIES_A_STEP", step)
    other = tmp_path / "other"
    shutil.copytree(root, other)
    assert diff(Layout(root), Layout(other)).same
    write(other, SECOND, 46 * 4, bytes(46))
    [queue] = diff(Layout(root), Layout(other)).queues
    assert (queue.topic, queue.queue_id, queue.only_first, queue.only_second) == ("Bat", 0, 4, 0)


@pytest.mark.parametrize("step", [1, 7, 50_000])
def test_units_are_compared_whatever_they_claim(
    root: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firearrow.store.offline.difference._ENTRIES_A_STEP", step)
    other = tmp_path / "other"
    shutil.copytree(root, other)
    size = UNIT_DTYPE.itemsize
    last = np.frombuffer((root / SECOND).read_bytes(), UNIT_DTYPE)["size"].argmin() - 1
    write(other, SECOND, int(last) * size + QUEUE_OFFSET_AT, pack(">q", (1 << 63) - 9))
    write(other, FIRST, 8, pack(">i", 5))
    found = diff(Layout(root), Layout(other))
    [summary] = found.queues
    assert (summary.only_first, summary.only_second) == (0, 0)
    assert summary.different == sum(
        int(np.frombuffer((root / name).read_bytes(), UNIT_DTYPE)["messages"][row])
        for name, row in ((FIRST, 0), (SECOND, last))
    )
    [difference] = found.differences
    assert (difference.part, difference.queue_offset) == ("queue", 0)


def test_each_unit_that_no_record_accounts_for_is_told(root: Path) -> None:
    units = np.frombuffer(np.random.default_rng(3).bytes(1000 * UNIT_BYTES), UNIT_DTYPE).copy()
    for name in ("physical_offset", "size", "store_ms", "queue_offset", "messages"):
        units[name] &= np.iinfo(units[name].dtype).max
    (root / SECOND).unlink()
    (root / FIRST).write_bytes(units.tobytes())
    verdict = verify(Layout(root))
    assert {"queue-order", "queue-entry-missing"} <= {f.invariant for f in verdict.findings}
    assert sum(f.times for f in verdict.findings if f.invariant == "queue-beyond-log") >= 900


def test_retention_counts_messages(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "config/consumerOffset.json").write_text('{"offsetTable":{"Bat@golden":{0:3,1:35}}}')
    (root / "config/subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"golden":{}}}')
    config, _ = take(StoreConfig, {"storePathRootDir": str(root), "unconsumedPolicy": "warn"})
    [file] = why_not_deleted(config, SystemClock()).files
    assert [(row["queueId"], row["messages"]) for row in file.unconsumed] == [(0, 42)]
    assert caplog.messages == []
    (root / "config/topics.json").unlink()
    why_not_deleted(config, SystemClock())
    assert "queue.type=BatchCQ" in caplog.text


def rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


DAMAGES: dict[str, Break] = {
    "queue-file-size": lambda root: write(root, SECOND, 460, b"\0"),
    "queue-file-missing": lambda root: rename(root / SECOND, f"{920:020d}"),
    "queue-order": lambda root: write(root, FIRST, 46 + 28, pack(">q", 0)),
    "queue-tail": lambda root: write(root, SECOND, 46 * 7, b"\1"),
    "queue-entry-missing": lambda root: write(root, SECOND, 46, bytes(460 - 46)),
    "queue-entry-position": lambda root: write(root, FIRST, 46, pack(">q", 899)),
    "queue-entry-size": lambda root: write(root, FIRST, 46 + 8, pack(">i", 640)),
    "queue-entry-tag": lambda root: write(root, FIRST, 46 + 12, pack(">q", 1)),
    "queue-entry-time": lambda root: write(root, FIRST, 46 + 20, pack(">q", 1795242913406)),
    "queue-entry-messages": lambda root: write(root, FIRST, 46 + 36, pack(">h", 2)),
    "queue-entry-orphan": lambda root: write(
        root, SECOND, 46 * 5, pack(">qiqqqhii", 16500, 5, 0, 1795242913523, 45, 1, -1, 0)
    ),
    "queue-beyond-log": lambda root: write(
        root, SECOND, 46 * 5, pack(">qiqqqhii", 900_000, 5, 0, 1795242913523, 45, 1, -1, 0)
    ),
    "queue-stray": lambda root: (root / QUEUE / "notes").touch(),
}


@pytest.mark.parametrize("invariant", DAMAGES)
def test_each_damage_is_found_and_repaired(root: Path, invariant: str) -> None:
    before = contents(root / "batchconsumequeue")
    DAMAGES[invariant](root)
    found = verify(Layout(root)).findings
    assert invariant in {finding.invariant for finding in found}
    assert {finding.topic for finding in found} <= {"Bat", None}
    apply(Layout(root), SystemClock())
    assert verify(Layout(root)).findings == []
    assert contents(root / "batchconsumequeue") == before


def test_where_a_compacted_log_has_a_record_is_no_damage(root: Path) -> None:
    write(root, FIRST, 46 + 38, pack(">i", 77))
    assert verify(Layout(root)).findings == []


def test_lost_records_leave_a_hole_that_is_passed_over(root: Path) -> None:
    write(root, "commitlog/" + f"{0:020d}", 2308, b"gone" * 3)
    made = rebuild(Layout(root), SystemClock())
    assert (made.left_out, made.stand_ins) == ({}, 0)
    with StoreView(Layout(root)) as view:
        queue = view.queues["Bat", 0]
        assert (queue.read(3, 9)[:8], queue.read(4, 9)) == (pack(">q", 898), b"")
        assert queue.end == 45


def test_what_is_salvaged_keeps_its_offsets(root: Path, tmp_path: Path) -> None:
    log = f"commitlog/{0:020d}"
    made = salvage([root], tmp_path / "same", SystemClock())
    assert (made.renumbered, made.placeholders) == (0, 0)
    assert (tmp_path / "same" / log).read_bytes()[:20_000] == (root / log).read_bytes()[:20_000]
    written = contents(root / "batchconsumequeue")
    assert contents(tmp_path / "same/batchconsumequeue") == written
    write(root, log, 2308, b"gone" * 3)  # an inner batch of five, and then one that is single
    write(root, log, 3205, b"gone" * 3)
    made = salvage([root], tmp_path / "less", SystemClock())
    assert made.renumbered == 0
    found = verify(Layout(tmp_path / "less"))
    assert found.sound
    with StoreView(Layout(tmp_path / "less")) as view:
        assert [view.queues["Bat", queue_id].end for queue_id in (0, 1)] == [45, 35]


def test_a_damaged_record_is_covered_and_its_messages_are_passed_over(root: Path) -> None:
    write(root, f"commitlog/{0:020d}", 2308, b"gone" * 3)
    assert not verify(Layout(root)).sound
    apply(Layout(root), SystemClock())
    verdict = verify(Layout(root))
    assert {finding.invariant for finding in verdict.findings} <= {"record-queue-order"}
    with StoreView(Layout(root)) as view:
        queue = view.queues["Bat", 0]
        assert (queue.span, queue.read(9, 1)[:8]) == ((0, 45), pack(">q", 3464))
