"""Why files are still there."""

from pathlib import Path
from typing import Any

import pytest

from firearrow.database import DEFAULT, Database, Family
from firearrow.errors import CorruptStore
from firearrow.store.offline import why_not_deleted
from tests.broker.fakes import HandClock
from tests.golden import extract
from tests.store.stores import KiB, append, opened, settle, small_config
from tests.store.test_cleaner import HOUR_NOW, OTHER_HOURS, Disk
from tests.store.test_commitlog import wait_for_preparation
from tests.store.test_engine import tree

HOUR = 3600


def reasons(root: Path, *, hours: int, used: float = 0.1, **changed: Any) -> list[list[str]]:
    clock, disk = HandClock(), Disk()
    clock.seconds += hours * HOUR
    disk.used = used
    report = why_not_deleted(small_config(root, **changed), clock, disk)
    return [[reason["obstacle"] for reason in file.reasons] for file in report.files]


def test_a_file_that_is_only_ready_does_not_make_the_one_before_it_deletable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        append(store, bytes(40 * KiB))
        settle(store)
        wait_for_preparation()
        assert len(list((root / "commitlog").iterdir())) == 2
        assert reasons(root, hours=24 * 365, delete_when=NOW) == [LAST, LAST]


NOW = f"{HOUR_NOW:02d}"
LAST = ["last-file"]
CASES: list[tuple[int, float, dict[str, str], list[list[str]]]] = [
    (24, 0.1, {"delete_when": NOW}, [["reserved"], ["reserved"], LAST]),
    (24, 0.1, {"delete_when": OTHER_HOURS}, [["no-occasion", "reserved"]] * 2 + [LAST]),
    (96, 0.1, {"delete_when": NOW}, [[], [], LAST]),
    (96, 0.1, {"delete_when": OTHER_HOURS}, [["no-occasion"], ["no-occasion"], LAST]),
    (96, 0.8, {"delete_when": OTHER_HOURS}, [[], [], LAST]),
    (24, 0.9, {"delete_when": OTHER_HOURS}, [[], [], LAST]),
]


@pytest.mark.parametrize(("hours", "used", "changed", "expected"), CASES)
def test_each_file_has_its_reasons(
    tmp_path: Path, hours: int, used: float, changed: dict[str, str], expected: list[list[str]]
) -> None:
    root = extract("file-cq-clean", tmp_path)
    before = tree(root)
    assert reasons(root, hours=hours, used=used, **changed) == expected
    assert tree(root) == before


def test_groups_that_have_yet_to_consume_are_named(tmp_path: Path) -> None:
    root = extract("file-cq-clean", tmp_path)
    offsets = '{"offsetTable":{"GoldenPlain@golden_ok":{0:3},"GoldenPlain@deleted":{1:1}}}'
    (root / "config" / "consumerOffset.json").write_text(offsets)
    keep: dict[str, Any] = {"unconsumed_policy": "keep", "delete_when": NOW}
    assert reasons(root, hours=96, **keep)[0] == ["unconsumed"]
    assert reasons(root, hours=96, delete_when=NOW)[0] == []
    report = why_not_deleted(small_config(root, unconsumed_policy="keep"), HandClock(), Disk())
    waiting = report.files[0].unconsumed
    assert [(row["group"], row["topic"], row["queueId"]) for row in waiting] == [
        ("golden_ok", "GoldenPlain", queue_id) for queue_id in range(4)
    ]
    assert int(waiting[0]["messages"]) > 10
    assert int(waiting[1]["messages"]) > 10


def test_queues_and_offsets_in_databases_are_read(tmp_path: Path) -> None:
    root = extract("rocksdb-cq-clean", tmp_path)
    families = [Family(DEFAULT, 1 << 20), Family("kvDataVersion", 1 << 20)]
    offsets = Database(
        root / "config/consumerOffsets", families, cache_bytes=1 << 20, open_files_max=64, log_ahead=True
    )
    batch = offsets.batch()
    batch.put(DEFAULT, b"GoldenPlain@golden_ok", b'{"offsetTable":{"0":3}}')
    offsets.write(batch)
    offsets.close()
    before = tree(root)
    report = why_not_deleted(small_config(root, store_type="defaultRocksDB"), HandClock(), Disk())
    waiting = report.files[0].unconsumed
    assert {(row["group"], row["topic"]) for row in waiting} == {("golden_ok", "GoldenPlain")}
    assert tree(root) == before


def test_a_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CorruptStore, match="has no CommitLog file"):
        why_not_deleted(small_config(tmp_path), HandClock(), Disk())
