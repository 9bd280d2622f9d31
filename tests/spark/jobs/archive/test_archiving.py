"""An archive holds each message exactly once, whatever ends the process that writes it."""

from __future__ import annotations

import functools
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, CorruptStore, DataLost
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, Source, Summary, archive, follow, missing, source
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive, QueueRows
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.progress import ArchiveGap
from firearrow.spark.jobs.workers import local_workers
from firearrow.spark.offsets import Position
from tests.golden import expected, extract
from tests.spark import logs
from tests.spark.jobs.inline import Elsewhere, Inline, Killed, Mortal
from tests.spark.origins import DAY_MS, RECORD_BYTES, MemoryOrigin
from tests.store.stores import append, opened

A, B, RETRY = Queue("T", "a", 0), Queue("T", "a", 1), Queue("%RETRY%g", "b", 0)


def run(origin: MemoryOrigin, root: Path, settings: ArchiveSettings | None = None) -> Summary:
    return archive(Inline(), lambda: origin, Archive(root), settings)


def rows_of(root: Path) -> list[tuple[Queue, int]]:
    """What somebody sees who reads the Delta table."""
    if not DeltaTable.is_deltatable(str(root)):
        return []
    names = ["topic", "broker", "queueId", "queueOffset"]
    table = DeltaTable(str(root)).to_pyarrow_table(columns=names)
    columns = (table.column(name).to_pylist() for name in names)
    return [(Queue(t, b, q), offset) for t, b, q, offset in zip(*columns, strict=True)]


def every(origin: MemoryOrigin) -> list[tuple[Queue, int]]:
    return sorted(
        (queue, offset) for queue, bound in origin.held.items() for offset in range(bound.earliest, bound.latest)
    )


def test_what_is_there_is_archived_and_later_what_is_new(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(5, 2005), B: Bound(0, 0), RETRY: Bound(0, 7)})
    summary = run(origin, tmp_path)
    assert (summary.steps, summary.rows, summary.missing) == (1, 2007, 0)
    assert sorted(rows_of(tmp_path)) == every(origin)
    assert run(origin, tmp_path) == Summary()
    origin.held |= {A: Bound(1000, 2100), B: Bound(0, 3), Queue("U", "a", 3): Bound(4, 5)}
    assert run(origin, tmp_path).rows == 99
    assert set(every(origin)) < set(rows_of(tmp_path))
    assert max(Counter(rows_of(tmp_path)).values()) == 1


def test_messages_of_inner_batches_are_archived_one_by_one(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    opener, settings = source({"path": str(root), "maxOffsetsPerTrigger": "7"})
    summary = archive(Inline(), opener, Archive(tmp_path / "archive"), settings)
    assert (summary.rows, summary.missing) == (80, 0)
    table = DeltaTable(str(tmp_path / "archive")).to_pyarrow_table()
    columns = (table.column(name).to_pylist() for name in ("queueId", "queueOffset", "msgId"))
    assert sorted(zip(*columns, strict=True)) == sorted(
        (line["queueId"], line["queueOffset"], line["uniqKey"]) for line in expected("batch-queues")
    )


def test_altered_bodies_are_not_archived(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"12345678") for _ in range(3)])
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[88] ^= 1
    path.write_bytes(data)
    options = {"path": str(root), "brokerName": "a"}
    with pytest.raises(CorruptStore, match="at 0 of the log is damaged: its body has another CRC"):
        archive(Inline(), *from_options(options, tmp_path / "a"))
    lenient = {**options, "onCorrupt": "skip", "failOnDataLoss": "false"}
    summary = archive(Inline(), *from_options(lenient, tmp_path / "b"))
    assert (summary.rows, summary.missing) == (2, 1)
    unchecked = {**options, "VerifyCRC": "false"}
    assert archive(Inline(), *from_options(unchecked, tmp_path / "c")).rows == 3


def from_options(options: dict[str, str], to: Path) -> tuple[Source, Archive, ArchiveSettings]:
    opener, settings = source(options)
    return opener, Archive(to), settings


def test_files_are_by_topic_and_day_and_sorted(tmp_path: Path) -> None:
    held = {A: Bound(0, 1000), RETRY: Bound(0, 5)}
    midnight_nears = MemoryOrigin().base_ms + DAY_MS - 700_000  # T's queue sees midnight at offset 700
    origin = MemoryOrigin(held, base_ms=midnight_nears, split_rows=500, scrambled=True)
    run(origin, tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert [re.sub("-[0-9a-f]{16}[.]", ".", path) for path in found] == [
        "topic=%25RETRY%25g/dt=2024-10-04/000000000001-00000.parquet",
        "topic=T/dt=2024-10-04/000000000001-00001.parquet",
        "topic=T/dt=2024-10-04/000000000001-00002.parquet",
        "topic=T/dt=2024-10-05/000000000001-00002.parquet",
    ]
    assert found == list(Archive(tmp_path).load().files)
    assert sorted(rows_of(tmp_path)) == every(origin)
    late = pq.read_table(tmp_path / found[-1], partitioning=None)["queueOffset"]
    assert late.to_pylist() == list(range(700, 1000))


def test_the_table_says_what_a_file_holds(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 3), B: Bound(7, 9)})
    run(origin, tmp_path)
    state = Archive(tmp_path).load()
    assert (state.first, state.offsets) == ({A: 0, B: 7}, {A: 3, B: 9})
    first, second = state.files.values()
    assert (first.rows, first.day, first.topic) == (3, "2024-10-04", "T")
    assert first.stored_max_ms - first.stored_min_ms == 2000
    assert (tmp_path / first.path).stat().st_size == first.size_bytes
    assert (second.broker_min, second.broker_max) == ("a", "a")
    assert (second.queue_min, second.queue_max) == (1, 1)
    assert (second.offset_min, second.offset_max) == (7, 8)
    assert second.may_hold(B, Span(8, 20))
    assert not second.may_hold(B, Span(9, 20))
    assert not second.may_hold(A)
    files = DeltaTable(str(tmp_path)).get_add_actions(flatten=True)
    assert pa.table(files)["min.storeTimestamp"].to_pylist()[0].microsecond == 0


def test_a_large_backlog_is_several_steps(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50), B: Bound(0, 50)})
    steps: list[int] = []
    settings = ArchiveSettings(step_rows_max=60)
    archive(
        Inline(), lambda: origin, Archive(tmp_path), settings,
        on_step=lambda step: steps.append(sum(file.rows for file in step.added)),
    )  # fmt: skip
    assert steps == [60, 40]
    origin.held[A] = Bound(0, 100)
    assert run(origin, tmp_path, ArchiveSettings(step_bytes_max=20 * RECORD_BYTES)).steps == 3
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_queues_begin_where_they_are_told_to(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50), B: Bound(0, 50)})
    starting = Position.of("startingOffsets", '{"T": {"a": {"0": 48}}}')
    assert run(origin, tmp_path, ArchiveSettings(starting=starting)).rows == 52


def test_brokers_are_told_what_need_not_be_kept(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    run(origin, tmp_path, ArchiveSettings(step_rows_max=30))
    assert origin.committed == {}
    origin.held[A] = Bound(0, 60)
    run(origin, tmp_path, ArchiveSettings(commit_offsets=True))
    assert origin.committed == {A: 60}


# --- losses ---


def test_retention_that_was_faster_is_an_error_or_a_gap_on_record(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 10)})
    run(origin, tmp_path)
    origin.held[A] = Bound(15, 20)
    with pytest.raises(DataLost, match="offsets 10 to 15, the queue now begins at 15"):
        run(origin, tmp_path)
    summary = run(origin, tmp_path, ArchiveSettings(fail_on_data_loss=False))
    assert (summary.rows, summary.missing) == (5, 5)
    assert Archive(tmp_path).load().progress.gaps == [ArchiveGap(*A, 10, 15, 5)]


def test_a_gap_is_recorded_once_even_if_nothing_is_left(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 10)})
    run(origin, tmp_path)
    origin.held[A] = Bound(15, 15)
    lenient = ArchiveSettings(fail_on_data_loss=False)
    assert run(origin, tmp_path, lenient) == Summary(steps=1, missing=5)
    assert run(origin, tmp_path, lenient) == Summary()


def test_a_queue_that_began_again_is_archived_from_its_beginning(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(5, 10)})
    run(origin, tmp_path)
    lenient = ArchiveSettings(fail_on_data_loss=False)
    origin.held[A] = Bound(0, 0)
    assert run(origin, tmp_path, lenient) == Summary()
    origin.held[A] = Bound(0, 4)
    assert run(origin, tmp_path, lenient).rows == 4
    assert Archive(tmp_path).load().first == {A: 0}
    assert run(origin, tmp_path) == Summary()


def test_messages_that_vanish_while_they_are_read_are_noticed(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 10), B: Bound(0, 3)}, missing={A: {0, 1, 2}})
    with pytest.raises(DataLost, match="queue 0 of topic 'T' on a: 3 of offsets 0 to 10"):
        run(origin, tmp_path)
    assert Archive(tmp_path).load().version == 0
    assert list(tmp_path.rglob("*.parquet")) == []
    summary = run(origin, tmp_path, ArchiveSettings(fail_on_data_loss=False))
    assert (summary.rows, summary.missing) == (10, 3)


def part(first: int, last: int) -> QueueRows:
    return QueueRows(*A, first, last, last - first + 1)


def test_a_directory_that_a_worker_has_for_itself_is_no_archive(tmp_path: Path) -> None:
    origin, place = MemoryOrigin({A: Bound(0, 10)}), Archive(tmp_path / "archive")
    alone = Elsewhere("place", FilePlace(tmp_path / "alone"))
    with pytest.raises(
        ConfigError,
        match=rf"^{gethostname()} has written {tmp_path}/archive/topic=T/dt=\S+\.parquet, but it "
        r"can't be seen on \S+: a directory must be the same for all workers",
    ):
        archive(alone, lambda: origin, place)
    assert rows_of(tmp_path / "archive") == []
    assert run(origin, tmp_path / "archive").rows == 10


@pytest.mark.parametrize(
    ("spoiled", "has"),
    [
        (lambda data: data[:-1], r"\d+ bytes and no footer"),
        (lambda data: data[:-8] + bytes(8), r"\d+ bytes and no footer"),
        (lambda data: b"", "0 bytes and no footer"),
    ],
)
def test_a_file_that_is_not_what_a_worker_has_written_is_not_committed(
    spoiled: Callable[[bytes], bytes], has: str, tmp_path: Path
) -> None:
    def spoil() -> None:
        [path] = tmp_path.rglob("*.parquet")
        path.write_bytes(spoiled(path.read_bytes()))

    workers = Elsewhere("place", FilePlace(tmp_path), spoil)
    with pytest.raises(CorruptStore, match=rf"parquet has {has}, but \S+ has written \d+ bytes and"):
        archive(workers, lambda: MemoryOrigin({A: Bound(0, 10)}), Archive(tmp_path))
    assert rows_of(tmp_path) == []
    assert list(tmp_path.rglob("*.parquet")) == []


def test_parts_that_make_no_whole_are_refused() -> None:
    assert missing({A: Span(0, 10)}, [part(5, 9), part(0, 4)]) == []
    assert missing({A: Span(0, 10)}, [part(5, 9)]) == [ArchiveGap(*A, 0, 10, 5)]
    with pytest.raises(CorruptStore, match="two tasks have read the same"):
        missing({A: Span(0, 10)}, [part(0, 5), part(5, 9)])
    with pytest.raises(CorruptStore, match="instead of Span"):
        missing({A: Span(0, 10)}, [part(5, 10)])


# --- ends of the process ---


def test_a_process_that_dies_anywhere_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = MemoryOrigin({A: Bound(0, 10), B: Bound(0, 5)}, split_rows=4)
    mortal = Mortal(monkeypatch)
    deaths = 0
    for operations in range(200):
        mortal.left = operations
        try:
            run(origin, tmp_path, ArchiveSettings(step_rows_max=12))
        except Killed:
            deaths += 1
            mortal.left = -1
            seen = Counter(rows_of(tmp_path))
            assert not seen or max(seen.values()) == 1
            origin.held[A] = Bound(0, origin.held[A].latest + 7)
        else:
            break
    assert 20 < deaths < 199
    mortal.left = -1
    run(origin, tmp_path)
    assert sorted(rows_of(tmp_path)) == every(origin)
    kept = Archive(tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("topic=*/*/*.parquet")}
    left = written - set(kept.load().files)
    assert len(left) == kept.clean(kept_hours=0) > 0
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_processes_of_this_machine_can_do_it(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 3000), B: Bound(0, 10)})
    with local_workers(2) as workers:
        summary = archive(workers, functools.partial(_give, origin), Archive(tmp_path))
    assert summary.rows == 3010
    assert sorted(rows_of(tmp_path)) == every(origin)


def _give(origin: MemoryOrigin) -> MemoryOrigin:
    return origin


# --- following ---


class Growing(MemoryOrigin):
    """Gets messages with each look, until it is enough."""

    def grow_until(self, stop: Event) -> Growing:
        self.stop = stop
        return self

    def bounds(self) -> dict[Queue, Bound]:
        now = dict(self.held)
        self.held[A] = Bound(0, now[A].latest + 10)
        if now[A].latest >= 50:
            self.stop.set()
        return now


def test_following_archives_what_comes_until_it_is_stopped(tmp_path: Path) -> None:
    stop = Event()
    origin = Growing({A: Bound(0, 0)}).grow_until(stop)
    summary = follow(Inline(), lambda: origin, Archive(tmp_path), stop=stop, interval_seconds=0.001)
    assert (summary.steps, summary.rows) == (5, 50)


def test_following_from_the_end_begins_there(tmp_path: Path) -> None:
    stop = Event()
    origin = Growing({A: Bound(0, 20)}).grow_until(stop)
    settings = ArchiveSettings(starting=Position.of("startingOffsets", "latest"))
    summary = follow(Inline(), lambda: origin, Archive(tmp_path), settings, stop=stop, interval_seconds=0.001)
    assert summary.rows == 30


# --- options ---


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tags": "a"}, "option tags: an archive contains whole queues"),
        ({"keys": "a"}, "option keys: an archive contains whole queues"),
        ({"endingTimestamp": "0"}, "option endingTimestamp=0: a stream has no end"),
        ({"visibility": "log"}, "an archive contains the messages that consumers see"),
        ({"table": "topics"}, "a stream reads messages only"),
        ({"commitOffsets": "true"}, "only brokers keep offsets"),
    ],
)
def test_options_that_leave_messages_out_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        source({"path": "x"} | options)


def test_options_say_how_it_is_archived() -> None:
    opener, settings = source(
        {"path": "x", "maxOffsetsPerTrigger": "7", "failOnDataLoss": "false",
         "maxBytesPerTrigger": "1m", "startingTimestamp": "2026-11-18T00:00Z"}
    )  # fmt: skip
    assert callable(opener)
    assert (settings.step_rows_max, settings.step_bytes_max) == (7, 1 << 20)
    assert settings.fail_on_data_loss is False
    assert settings.starting.timestamp_ms == 1_794_960_000_000


def _store(root: Path, broker: str, start_ms: int, *, count: int = 20) -> dict[str, str]:
    """The options for a store of a broker's, with some messages."""
    with opened(root) as store:
        for number in range(count):
            append(store, b"%d" % number, now_ms=start_ms + number)
    return {"path": str(root), "brokerName": broker}


def _archived(options: dict[str, str], root: Path) -> Summary:
    opener, settings = source(options)
    return archive(Inline(), opener, Archive(root), settings)


def test_an_archive_is_of_one_store_of_a_broker(tmp_path: Path) -> None:
    first = _store(tmp_path / "first", "a", 1_795_000_000_000)
    other = _store(tmp_path / "other", "a", 1_795_000_000_001, count=40)
    place = tmp_path / "archive"
    assert _archived(first, place).rows == 20
    before = Archive(place).load()
    with pytest.raises(ConfigError, match="archive is of another store of broker 'a': at ") as told:
        _archived(other, place)
    assert "of its log there is no message stored 2026-11-18 1" in str(told.value)
    assert Archive(place).load() == before
    assert _archived({**other, "brokerName": "b"}, place).rows == 40
    shutil.copytree(first["path"], tmp_path / "copied")
    _store(tmp_path / "copied", "a", 1_795_000_001_000)  # what goes on is still the same
    assert _archived({**first, "path": str(tmp_path / "copied")}, place).rows == 20
    compact(Inline(), Archive(place))
    with pytest.raises(ConfigError, match="is of another store of broker 'a'"):
        _archived(other, place)


def test_a_store_is_known_though_it_has_deleted_what_is_archived(tmp_path: Path) -> None:
    options = _store(tmp_path / "store", "a", 1_795_000_000_000, count=600)
    assert _archived(options, tmp_path / "archive").rows == 600
    _store(tmp_path / "store", "a", 1_795_000_100_000, count=1000)
    assert _archived(options, tmp_path / "archive").rows == 1000
    files = sorted((tmp_path / "store/commitlog").iterdir())
    assert len(files) > 2
    for file in files[:-1]:
        file.unlink()
    assert _archived(options, tmp_path / "archive").rows == 0


def test_a_log_that_has_lost_its_end_is_no_other_but_told(tmp_path: Path) -> None:
    options = _store(tmp_path / "store", "a", 1_795_000_000_000)
    place = tmp_path / "archive"
    _archived(options, place)
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    _store(tmp_path / "store", "a", 1_795_000_001_000)
    _archived(options, place)
    _store(tmp_path / "before", "a", 1_795_000_002_000, count=30)
    options["path"] = str(tmp_path / "before")
    with pytest.raises(DataLost, match="the store of broker 'a' has lost messages that archive"):
        _archived(options, place)
    assert _archived({**options, "failOnDataLoss": "false"}, place).rows == 10


def test_archive_and_store_lie_apart(tmp_path: Path) -> None:
    options = _store(tmp_path / "store", "a", 1_795_000_000_000)
    before = sorted((tmp_path / "store").rglob("*"))
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for place in (".", "store", "store/archive", "link/archive"):
        with pytest.raises(ConfigError, match="one is within the other"):
            _archived(options, tmp_path / place)
    assert sorted((tmp_path / "store").rglob("*")) == before
