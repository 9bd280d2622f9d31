"""An archive in an object store keeps what one in a directory keeps: a server of S3 shows it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event
from typing import Any
from urllib.request import Request, urlopen

import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.jobs.archive.archivedorigin import ArchivedOrigin
from firearrow.spark.jobs.archive.archiving import Summary, archive, require_apart, source
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.upkeep import expire
from firearrow.spark.jobs.resend.sources import ArchiveMessages
from firearrow.spark.options import parse
from tests.spark import logs
from tests.spark.jobs.archive.test_archivedorigin import read
from tests.spark.jobs.archive.test_archiving import every
from tests.spark.jobs.archive.test_delta import Meanwhile, fill, race
from tests.spark.jobs.archiver import forking
from tests.spark.jobs.inline import Inline, Killed
from tests.spark.origins import DAY_MS, MemoryOrigin

A, RETRY = Queue("T", "a", 0), Queue("%RETRY%g", "a", 0)
KILLS = 6
MIDNIGHT_MS = MemoryOrigin().base_ms + DAY_MS


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Host and port of a server that knows one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/bucket", method="PUT")).close()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def root(endpoint: str, request: pytest.FixtureRequest) -> str:
    """Give a URI of an archive that is a test's own, with all that it takes to get there."""
    more = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    name = request.node.name.translate({ord("["): "-", ord("]"): ""})
    return f"s3://key:secret@bucket/{name}?{more}"


def rows_of(root: str) -> list[tuple[Queue, int]]:
    place = FilePlace(root)
    table = DeltaTable(str(place), storage_options=place.delta_options).to_pyarrow_table()
    names = ("topic", "broker", "queueId", "queueOffset")
    columns = (table.column(name).to_pylist() for name in names)
    rows = zip(*columns, strict=True)
    return sorted((Queue(topic, broker, q), offset) for topic, broker, q, offset in rows)


def files_in(root: str) -> set[str]:
    from pyarrow.fs import FileSelector, FileType

    found = FilePlace(root).files.get_file_info(FileSelector("", recursive=True))
    files = [info.path for info in found if info.type == FileType.File]
    return {path for path in files if path.startswith("topic=")}


def test_messages_are_archived_joined_expired_and_read_again(root: str) -> None:
    origin = MemoryOrigin({A: Bound(0, 60), RETRY: Bound(0, 7)}, MIDNIGHT_MS - 30_000)
    held = Archive(root)
    assert fill(root, origin, 30).rows == 67
    assert fill(root, origin) == Summary()
    assert rows_of(root) == every(origin)
    done = compact(Inline(), held)
    assert done is not None
    assert len(held.load().files) == 3
    origin.held[A] = Bound(20, 90)
    table = ArchivedOrigin(parse({"path": "unused", "archive": root}), origin)
    assert read(table) == every(MemoryOrigin({A: Bound(0, 90), RETRY: Bound(0, 7)}))
    messages = ArchiveMessages.of(held)
    batches = pickle.loads(pickle.dumps(messages)).within({A: Span(10, 60)}).read(A, 40)
    assert [n for b in batches for n in b["queueOffset"].to_pylist()] == list(range(40, 60))
    assert expire(Inline(), held, "2024-10-05") != ()
    assert rows_of(root) == every(MemoryOrigin({A: Bound(30, 60)}))
    assert held.clean(kept_hours=0) == len(done.removed) + 2
    assert files_in(root) == held.load().files.keys()
    assert rows_of(root) == every(MemoryOrigin({A: Bound(30, 60)}))


def test_of_two_that_archive_the_same_one_counts(root: str) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    late = Meanwhile(lambda: fill(root, origin))
    assert archive(late, lambda: origin, Archive(root)).rows == 0
    assert rows_of(root) == every(origin)
    assert files_in(root) == Archive(root).load().files.keys()


def test_archivers_that_run_against_each_other(root: str) -> None:
    origin = MemoryOrigin({A: Bound(0, 120), RETRY: Bound(0, 40)})
    race(root, origin, 50, racers=2)
    assert rows_of(root) == every(origin)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_process_that_dies_at_its_commit_loses_and_repeats_nothing(
    root: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    commit = DeltaTable.create_write_transaction

    def dies(*args: Any, **named: Any) -> None:
        if is_after:
            commit(*args, **named)
        raise Killed

    for work in (lambda: fill(root, origin, 20), lambda: compact(Inline(), Archive(root))):
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", dies)
            with pytest.raises(Killed):
                work()
        fill(root, origin, 20)
        assert rows_of(root) == every(origin)
    left = files_in(root) - Archive(root).load().files.keys()
    assert Archive(root).clean(kept_hours=0) == len(left) > 0


@pytest.mark.slow
def test_processes_that_are_killed_lose_and_repeat_nothing(root: str, tmp_path: Path) -> None:
    random, store = Random(5), tmp_path / "store"
    sent = [logs.Sent(queue_id=number % 4) for number in range(12_000)]
    logs.write(store, sent, file_bytes=1 << 22)
    with forking(store, root, tmp_path / "archiver.log") as forks:
        kills = 0
        while kills < KILLS or not Archive(root).load().version:
            kills += 1
            pid = forks.start()
            # Longer and longer: on a busy machine a second and a half may be too short for a step.
            Event().wait(random.uniform(0.1, 1.5) * max(1, kills / KILLS))
            forks.kill(pid)
    opener, _ = source({"path": str(store), "subscribe": "T"})
    archive(Inline(), opener, Archive(root))
    assert [(queue.queue_id, offset) for queue, offset in rows_of(root)] == [
        (queue_id, offset) for queue_id in range(4) for offset in range(3000)
    ]


def test_the_environment_says_how_to_get_there(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    origin = MemoryOrigin({A: Bound(0, 20)})
    assert fill("s3a://bucket/by/environment", origin).rows == 20
    assert rows_of("s3://bucket/by/environment") == every(origin)


def test_a_bucket_that_is_not_there_is_one_sentence(root: str) -> None:
    with pytest.raises(FirearrowError, match=r"^archive s3://nowhere/x: [^\n\x1b]+$") as told:
        Archive(root.replace("bucket/", "nowhere/").replace("test_", "x?test_")).load()
    assert "secret" not in str(told.value)


def test_places_by_other_names(tmp_path: Path) -> None:
    uri = "s3://key:secret@bucket/a/b/?scheme=http"
    assert str(FilePlace(uri)) == "s3://bucket/a/b"
    assert FilePlace(uri).full("c/d") == "s3://bucket/a/b/c/d"
    assert str(FilePlace(f"file://{tmp_path}")) == str(tmp_path)
    require_apart(["store"], Archive(uri).place)
    with pytest.raises(ConfigError, match="one is within the other"):
        require_apart([str(tmp_path)], Archive(f"file://{tmp_path}/archive").place)
