"""`firearrow store rebuild`: what is to be made, where, and what is left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.cli.main import main
from tests import golden
from tests.store.offline.damage import PLAIN, a_message, database_store, golden_store, in_record, write
from tests.store.stores import contents, opened

Capture = pytest.CaptureFixture[str]


def rebuild(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main(["store", "rebuild", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def plan(capsys: Capture, *arguments: object) -> list[dict[str, object]]:
    code, out, _ = rebuild(capsys, *arguments, "--dry-run", "--json")
    assert code == 0
    found: list[dict[str, object]] = json.loads(out)["wouldRebuild"]
    return found


def test_what_was_made_and_what_was_left_out(tmp_path: Path, capsys: Capture) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 20, bytes(7) + b"\5")
    write(root, PLAIN, 20 * message.queue_offset, bytes(20))
    made = tmp_path / "made"
    code, out, _ = rebuild(capsys, root, "--to", made, "--only", "queues", "--json")
    found = json.loads(out)
    assert code == 1
    assert [found[name] for name in ("records", "index_files", "stand_ins")] == [952, 0, 0]
    assert (found["where"], found["kept"]) == (str(made), None)
    assert not (made / "index").exists()
    assert list(found["left_out"]) == [f"{message.topic}-{message.queue_id}"]


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
    store: Callable[[Path], Path], queues: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    root, made = store(tmp_path), tmp_path / "made"
    before, directories = contents(root), queues | INDEX
    settings = Path(f"{root}.conf")
    place: tuple[object, ...] = (root, "-c", settings) if settings.exists() else (root,)

    def planned(below: Path) -> list[dict[str, object]]:
        return [
            {
                "directory": name,
                "what": what,
                "where": str(below / name),
                "files_now": sum(path.startswith(f"{name}/") for path in before),
            }
            for name, what in directories.items()
        ]

    assert plan(capsys, *place) == planned(root)
    place = (*place, "--to", made)
    assert plan(capsys, *place) == planned(made)
    assert not made.exists()
    assert contents(root) == before
    assert rebuild(capsys, *place)[0] == 0
    unused = {"consumequeue"} if queues is BATCHES else set()  # its log is of queues of batches
    assert {path.name for path in made.iterdir()} == directories.keys() - unused
    assert (made / next(iter(queues)) / "CURRENT").exists() == ("RocksDB" in str(queues))


def test_the_broker_s_file_says_of_which_kind_and_size_files_are(tmp_path: Path, capsys: Capture) -> None:
    root = golden_store(tmp_path)
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"GoldenBatch"', '"Other"'))
    shutil.rmtree(root / "consumequeue")
    settings = write_settings(root, "mappedFileSizeConsumeQueue=2000\nstoreType=default\n")
    _, out, _ = rebuild(capsys, root, "-c", settings, "--only", "queues")
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} == {2000}
    assert "topic GoldenBatch is not configured: taken for deleted, " in out


@pytest.mark.parametrize(("only", "what"), [("queues", "queues in RocksDB"), ("index", "IndexFiles")])
def test_a_dry_run_of_one_of_the_two(only: str, what: str, tmp_path: Path, capsys: Capture) -> None:
    root = database_store(tmp_path)
    assert [made["what"] for made in plan(capsys, root, "--only", only)] == [what]
    code, out, _ = rebuild(capsys, root, "--only", only, "--dry-run")
    assert (code, f": {what}, in place of " in out) == (0, True)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_dry_run_refuses_what_a_run_refuses(dry: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    def refused(reason: str, *arguments: object) -> None:
        code, out, err = rebuild(capsys, *arguments, *dry)
        assert (code, out) == (2, "")
        assert reason in err

    refused("is not a directory", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused("is not a store", tmp_path / "empty")
    root = golden_store(tmp_path)
    refused("exists already", root, "--to", root)
    with opened(tmp_path / "own"):
        refused("own is ", tmp_path / "own")
