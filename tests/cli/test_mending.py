"""`firearrow pipeline verify` and `rebuild`: their options, and what their tables say.

What executors do is done by this process here; `tests/spark/test_pipeline.py` has them at work.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from firearrow.cli import mending
from firearrow.cli.analyses import Run
from firearrow.cli.main import build_parser, main
from firearrow.cli.reports import Table
from firearrow.clock import SystemClock
from firearrow.errors import StoreError, StoreLocked
from firearrow.spark.jobs.reading import Reader
from firearrow.store.offline import Layout, Order, Rebuilt, Verdict, rebuild, verify
from tests import golden
from tests.store.offline.damage import (
    PLAIN,
    a_message,
    database_store,
    forget_last_entry,
    golden_store,
    in_record,
    write,
)
from tests.store.stores import opened

Report = Callable[[Run], list[Table]]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the work done without Spark."""

    def verdict_of(_: SparkSession, store: Layout) -> Verdict:
        return verify(store)

    def rebuilt(_: SparkSession, store: Layout, *, to: Path | None, order: Order) -> Rebuilt:
        return rebuild(store, SystemClock(), order, to=to)

    monkeypatch.setattr(mending, "verdict_of", verdict_of)
    monkeypatch.setattr(mending, "rebuilt", rebuilt)


def run(report: Report, *arguments: object) -> dict[str, Table]:
    job = report.__name__.removeprefix("report_")
    options = build_parser().parse_args(["pipeline", job, *map(str, arguments)])
    tables = report(Run(cast("SparkSession", None), cast("Reader", None), options, 0))
    return {table.title: table for table in tables}


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("job", ["verify", "rebuild"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: --path"),
        (["--path", "a", "--path", "b"], "argument --path: may be given only once"),
        (["--path", "s3://bucket/store"], "'s3://bucket/store' is not a directory on this machine"),
        (["--path", ""], "'' is not a directory on this machine"),
        (["--path", "a", "--option", "subscribe=Orders"], "unrecognized arguments: --option"),
        (["--path", "a", "--now", "2026-11-21T06:30:00"], "unrecognized arguments: --now"),
        (["--name-server", "127.0.0.1:1", "--path", "a"], "unrecognized arguments: --name-server"),
    ],
)
def test_only_what_is_read_is_taken(
    job: str, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["pipeline", job, *arguments])
    assert error.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_verdict(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    found = run(mending.report_verify, "--path", root)
    assert found["Verdict"].rows == [["sound", 952, 3, 24, 1, 2941]]
    assert found["Findings"].rows == []
    message = a_message(root)
    in_record(root, message, 88, b"\0")
    found = run(mending.report_verify, "--path", root)
    assert found["Verdict"].values("store") == ["damaged"]
    expected = verify(Layout(root)).findings
    assert found["Findings"].values("invariant") == [finding.invariant for finding in expected]
    assert found["Findings"].values("severity") == [finding.severity.value for finding in expected]
    assert message.physical_offset in found["Findings"].values("commitLogOffset")


def test_a_verdict_says_what_a_start_is_to_dispatch(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    assert run(mending.report_verify, "--path", root)["Verdict"].note == ""
    forget_last_entry(root)
    assert run(mending.report_verify, "--path", root)["Verdict"].note == (
        "1 messages of the log are behind where the queues end: a start dispatches them"
    )


def test_the_broker_s_file_says_where_the_log_is(tmp_path: Path) -> None:
    root, log = golden_store(tmp_path), tmp_path / "log"
    (root / "commitlog").rename(log)
    settings = write_settings(root, f"storePathCommitLog={log}\n")
    found = run(mending.report_verify, "--path", root, "-c", settings)
    assert found["Verdict"].rows == [["sound", 952, 3, 24, 1, 2941]]


def test_what_was_made_and_what_was_left_out(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 20, bytes(7) + b"\5")
    write(root, PLAIN, 20 * message.queue_offset, bytes(20))
    made = tmp_path / "made"
    found = run(mending.report_rebuild, "--path", root, "--to", made, "--only", "queues")
    (row,) = found["Rebuilt"].rows
    assert row[0] == 952
    assert row[2:] == [0, 0, str(made), None]
    assert not (made / "index").exists()
    assert found["Left out"].values("queue") == [f"{message.topic}-{message.queue_id}"]


def _database_named_otherwise(place: Path) -> Path:
    root = database_store(place)
    (root / "consumequeue").rename(root / "consumequeue_rocksdb")
    return root


def _without_database(place: Path) -> Path:
    root = database_store(place)
    shutil.rmtree(root / "consumequeue")
    return root


def _beside_an_empty_database(place: Path) -> Path:
    root = golden_store(place)
    (root / "consumequeue_rocksdb").mkdir()
    return root


def _batches(place: Path) -> Path:
    return golden.extract("batch-queues", place)


def _without_batches(place: Path) -> Path:
    root = _batches(place)
    shutil.rmtree(root / "batchconsumequeue")
    write_settings(root, "storeType=default\n")
    return root


def write_settings(root: Path, text: str) -> Path:
    """The broker's file, beside its store."""
    path = Path(f"{root}.conf")
    path.write_text(text)
    return path


FILES = {"consumequeue": "queues in files"}
BATCHES = {**FILES, "batchconsumequeue": "queues of batches"}
INDEX = {"index": "IndexFiles"}


@pytest.mark.parametrize(
    ("store", "queues"),
    [
        (golden_store, FILES),
        (database_store, {"consumequeue": "queues in RocksDB"}),
        (_database_named_otherwise, {"consumequeue_rocksdb": "queues in RocksDB"}),
        (_without_database, {"consumequeue": "queues in RocksDB"}),
        (_beside_an_empty_database, FILES),
        (_batches, BATCHES),
        (_without_batches, BATCHES),
    ],
)
def test_a_dry_run_says_what_is_made(
    store: Callable[[Path], Path], queues: dict[str, str], tmp_path: Path
) -> None:
    root, made = store(tmp_path), tmp_path / "made"
    before, directories = files(root), queues | INDEX
    settings = Path(f"{root}.conf")
    place: tuple[object, ...] = ("--path", root)
    place += ("-c", settings) if settings.exists() else ()
    found = run(mending.report_rebuild, *place, "--dry-run")["Would be rebuilt"]
    assert dict(zip(found.values("directory"), found.values("what"), strict=True)) == directories
    assert found.values("where") == [str(root / name) for name in directories]
    assert found.values("filesNow") == [
        sum(path.startswith(f"{name}/") for path in before) for name in directories
    ]
    arguments = (*place, "--to", made)
    found = run(mending.report_rebuild, *arguments, "--dry-run")["Would be rebuilt"]
    assert found.values("where") == [str(made / name) for name in directories]
    assert not made.exists()
    assert files(root) == before
    run(mending.report_rebuild, *arguments)
    unused = {"consumequeue"} if queues is BATCHES else set()  # its log is of queues of batches
    assert {path.name for path in made.iterdir()} == directories.keys() - unused
    assert (made / next(iter(queues)) / "CURRENT").exists() == ("RocksDB" in str(queues))


def test_the_broker_s_file_says_of_which_kind_and_size_files_are(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"GoldenBatch"', '"Other"'))
    shutil.rmtree(root / "consumequeue")
    settings = write_settings(root, "mappedFileSizeConsumeQueue=2000\nstoreType=default\n")
    found = run(mending.report_rebuild, "--path", root, "-c", settings, "--only", "queues")
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} == {2000}
    [[topic, reason]] = found["Left out"].rows
    assert topic == "GoldenBatch"
    assert "not configured: taken for deleted" in str(reason)


@pytest.mark.parametrize(
    ("only", "what"), [("queues", "queues in RocksDB"), ("index", "IndexFiles")]
)
def test_a_dry_run_of_one_of_the_two(only: str, what: str, tmp_path: Path) -> None:
    arguments = ("--path", database_store(tmp_path), "--only", only, "--dry-run")
    found = run(mending.report_rebuild, *arguments)["Would be rebuilt"]
    assert found.values("what") == [what]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_dry_run_refuses_what_a_run_refuses(dry: tuple[str, ...], tmp_path: Path) -> None:
    def refused(error: type[StoreError], reason: str, *arguments: object) -> None:
        with pytest.raises(error, match=reason):
            run(mending.report_rebuild, *arguments, *dry)

    refused(StoreError, "is not a directory", "--path", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused(StoreError, "is not a store", "--path", tmp_path / "empty")
    root = golden_store(tmp_path)
    refused(StoreError, "exists already", "--path", root, "--to", root)
    with opened(tmp_path / "own"):
        refused(StoreLocked, "own is ", "--path", tmp_path / "own")
