"""An archive and what is not archived yet are one table: no message twice, none missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.message.names import is_system_topic
from firearrow.spark.jobs.archive.archivedorigin import ArchivedOrigin
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, archive, source
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.upkeep import expire
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import batch_spans
from firearrow.spark.tables import MESSAGES, PROPERTIES_MAP
from tests.golden import expected, extract
from tests.loglines import told
from tests.spark.jobs.inline import Inline
from tests.spark.origins import DAY_MS, MemoryOrigin

A, B, C = Queue("T", "a", 0), Queue("T", "a", 1), Queue("U", "b", 0)
EXAMPLES = settings.default.max_examples // 2 if settings.default else 50
NEXT_DAY = 10  # the offset that is of it
PLACE = pa.schema([MESSAGES.field(n) for n in ("topic", "broker", "queueId", "queueOffset")])


def archived(root: Path, live: MemoryOrigin, **options: str) -> ArchivedOrigin:
    return ArchivedOrigin(parse({"path": "unused", "archive": str(root)} | options), live)


def step(live: MemoryOrigin, root: Path, rows_max: int | None = None) -> None:
    """Archive all that is there; or a step, of so many messages."""

    def enough(_: object) -> None:
        if rows_max is not None:
            raise InterruptedError

    settings = ArchiveSettings(step_rows_max=rows_max)
    with suppress(InterruptedError):
        archive(Inline(), lambda: live, Archive(root), settings, on_step=enough)


def places(batches: Iterable[pa.RecordBatch]) -> list[tuple[Queue, int]]:
    rows = pa.Table.from_batches(batches, PLACE).to_pylist()
    return sorted((Queue(*list(row.values())[:3]), row["queueOffset"]) for row in rows)


def read(origin: ArchivedOrigin) -> list[tuple[Queue, int]]:
    """What a batch reads of all queues."""
    tasks = origin.partitions(batch_spans(origin, origin.options))
    return places(batch for task in tasks for batch in origin.read(task, PLACE))


def every(spans: Mapping[Queue, Bound]) -> list[tuple[Queue, int]]:
    return sorted((q, n) for q, b in spans.items() for n in range(b.earliest, b.latest))


def test_messages_come_from_the_archive_as_far_as_it_has_them(tmp_path: Path) -> None:
    live = MemoryOrigin({A: Bound(5, 2005), B: Bound(0, 10)}, scrambled=True)
    step(live, tmp_path)
    live.held = {A: Bound(1500, 3000), C: Bound(0, 7)}  # B is gone, C is new
    origin = archived(tmp_path, live)
    assert origin.bounds() == {A: Bound(5, 3000), B: Bound(0, 10), C: Bound(0, 7)}
    assert read(origin) == every(origin.bounds())
    live.missing = {A: set(range(2005))}  # what is archived is not read from there
    assert read(origin) == every(origin.bounds())
    del live.held[C]
    only = archived(tmp_path, live, subscribe="T")
    assert read(only) == every({A: Bound(5, 3000), B: Bound(0, 10)})


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_whatever_goes_on_each_message_is_there_once(data: st.DataObject) -> None:
    """Messages come, are archived in steps, deleted once they are, expire, and files are joined."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        base_ms = MemoryOrigin().base_ms - NEXT_DAY * 1000
        live = MemoryOrigin(dict.fromkeys((A, B, C), Bound(0, 3)), base_ms, split_rows=7)
        step(live, root)
        expired = dict.fromkeys((A, B, C), 0)
        for _ in range(data.draw(st.integers(1, 6))):
            match data.draw(st.sampled_from(["send", "archive", "delete", "expire", "compact"])):
                case "send":
                    queue = data.draw(st.sampled_from([A, B, C]))
                    bound = live.held[queue]
                    latest = bound.latest + data.draw(st.integers(1, 30))
                    live.held[queue] = Bound(bound.earliest, latest)
                case "archive":
                    step(live, root, data.draw(st.integers(1, 20)))
                case "delete":
                    ends = Archive(root).load().offsets
                    queue = data.draw(st.sampled_from(sorted(ends)))
                    bound = live.held[queue]
                    earliest = data.draw(st.integers(bound.earliest, ends[queue]))
                    live.held[queue] = Bound(earliest, bound.latest)
                case "expire":
                    expire(Inline(), Archive(root), "2024-10-04")
                    ends = Archive(root).load().offsets
                    expired = {q: max(expired[q], min(ends[q], NEXT_DAY)) for q in ends}
                case _:
                    compact(Inline(), Archive(root))
        everything = {queue: Bound(expired[queue], b.latest) for queue, b in live.held.items()}
        origin = archived(root, live)
        assert read(origin) == every(everything)
        spans = {
            queue: Span(*sorted((data.draw(ends), data.draw(ends))))
            for queue, bound in everything.items()
            for ends in [st.integers(0, bound.latest)]
        }
        tasks = origin.partitions(spans)
        if data.draw(st.booleans()):
            compact(Inline(), Archive(root))
            expire(Inline(), Archive(root), "2024-10-04")
        found = places(batch for task in tasks for batch in origin.read(task, PLACE))
        wanted = {q: Bound(max(span.start, expired[q]), span.end) for q, span in spans.items()}
        assert found == every(wanted)


def test_an_archive_that_grows_while_bounds_are_asked_for(tmp_path: Path) -> None:
    live = MemoryOrigin({A: Bound(0, 10)})
    step(live, tmp_path)

    class Growing(MemoryOrigin):
        def bounds(self) -> Mapping[Queue, Bound]:
            before = dict(self.held)
            if before[A].latest < 40:
                self.held[A] = Bound(before[A].latest, before[A].latest + 10)
                step(MemoryOrigin({A: Bound(0, self.held[A].latest)}), tmp_path)
            return before

    origin = archived(tmp_path, Growing({A: Bound(5, 20)}))
    assert origin.bounds()[A] == Bound(0, 40)
    assert read(origin) == every({A: Bound(0, 40)})


def test_a_queue_that_was_made_again_is_an_error(tmp_path: Path) -> None:
    live = MemoryOrigin({A: Bound(0, 100)})
    step(live, tmp_path)
    live.held = {A: Bound(0, 3)}
    with pytest.raises(DataLost, match=r"queue 0 of topic 'T' on a ends at 3.*created again"):
        archived(tmp_path, live).bounds()


def test_what_was_deleted_before_it_was_archived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = MemoryOrigin({A: Bound(0, 100)})
    step(live, tmp_path)
    live.held = {A: Bound(130, 150)}
    with pytest.raises(DataLost, match="offsets 100 to 130, deleted, and the archive ends at 100"):
        read(archived(tmp_path, live))
    held = {A: Bound(0, 100)}, {A: Bound(130, 150)}
    found = read(archived(tmp_path, live, failOnDataLoss="false"))
    assert found == [*every(held[0]), *every(held[1])]
    assert [line["queue_offset"] for line in told(caplog)] == [100]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"tags": "t1"}, range(1, 60, 3)),
        ({"keys": "k7 ID0-41 nothing"}, [7, 41]),
        ({"tags": "t0||t2", "keys": "k7 k8 k50"}, [8, 50]),
    ],
)
def test_tags_and_keys(tmp_path: Path, options: dict[str, str], offsets: Iterable[int]) -> None:
    live = MemoryOrigin({A: Bound(0, 40)})
    step(live, tmp_path)
    live.held = {A: Bound(40, 60)}
    origin = archived(tmp_path, live, **options)
    archive_tasks = origin.partitions({A: Span(0, 40)})
    found = places(batch for task in archive_tasks for batch in origin.read(task, PLACE))
    assert found == [(A, offset) for offset in offsets if offset < 40]


def test_any_columns(tmp_path: Path) -> None:
    live = MemoryOrigin({A: Bound(0, 9)})
    step(live, tmp_path)
    origin = archived(tmp_path, live, batchBytes="1k")
    [task] = origin.partitions({A: Span(2, 7)})
    asked = pa.schema([("properties", PROPERTIES_MAP), MESSAGES.field("body")])
    rows = pa.Table.from_batches(origin.read(task, asked), asked).to_pylist()
    assert [dict(row["properties"]) for row in rows] == [{"TAGS": f"t{n % 3}", "KEYS": f"k{n}"} for n in range(2, 7)]
    assert [row["body"] for row in rows] == [b"T/a/0/%d" % n for n in range(2, 7)]
    assert sum(batch.num_rows for batch in origin.read(task, pa.schema([]))) == 5


def test_places_by_time(tmp_path: Path) -> None:
    live = MemoryOrigin({A: Bound(0, 100)})
    step(live, tmp_path, 30)
    step(live, tmp_path)
    live.held = {A: Bound(90, 200)}
    origin = archived(tmp_path, live)
    assert origin.bounds()[A] == Bound(0, 200)
    compact(Inline(), Archive(tmp_path))
    for offset in (0, 1, 29, 30, 31, 99, 100, 199):
        at_ms = live.base_ms + offset * 1000
        assert origin.offset_at(A, at_ms) == offset
        assert origin.offset_at(A, at_ms - 999) == offset
    assert origin.offset_at(A, live.base_ms + DAY_MS) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"table": "topics"}, "an archive has messages, but no table='topics'"),
        ({"visibility": "log"}, "an archive has only messages that consumers see, not visibility=log"),
        ({"archive": "/nowhere"}, "/nowhere is no archive"),
        ({"subscribe": "Unknown"}, "topic 'Unknown' is neither in the source nor in archive"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, str], complaint: str) -> None:
    live = MemoryOrigin({A: Bound(0, 1)})
    step(live, tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        archived(tmp_path, live, **options).bounds()


def test_an_archive_is_not_archived(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be archived"):
        source({"path": str(tmp_path), "archive": str(tmp_path / "archive")})


def test_a_store_and_its_archive_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    store, root = extract("file-cq-clean", tmp_path), tmp_path / "archive"
    opener, settings = source({"path": str(store), "maxOffsetsPerTrigger": "300"})
    with suppress(InterruptedError):
        archive(Inline(), opener, Archive(root), settings, on_step=_Stop().second)
    reader = spark.read.format("rocketmq").option("systemTopics", "true").option("archive", str(root))
    rows = reader.load(str(store)).select("msgId", "topic", "queueId", "queueOffset").collect()
    alone = spark.read.format("rocketmq").option("systemTopics", "true").load(str(store)).select("msgId").collect()
    assert Counter(row.msgId for row in rows) == Counter(row.msgId for row in alone)
    assert len(rows) >= len(expected("file-cq-clean"))
    of_users = spark.read.format("rocketmq").option("archive", str(root)).load(str(store)).select("msgId", "topic")
    assert Counter(of_users.collect()) == Counter(
        (row.msgId, row.topic) for row in rows if not is_system_topic(row.topic)
    )


class _Stop:
    """Ends an archive after its second step."""

    def __init__(self) -> None:
        self.steps = 0

    def second(self, _: object) -> None:
        self.steps += 1
        if self.steps == 2:
            raise InterruptedError
