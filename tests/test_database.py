"""RocksDB databases: written entries are there, and errors are this project's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firearrow.database import DEFAULT, Database, FamilyOptions, MiB, Snapshot, families_of
from firearrow.errors import CorruptStore

FAMILIES = (FamilyOptions(DEFAULT, MiB, ("lz4", "zstd"), universal=True), FamilyOptions("other", MiB))


@contextmanager
def opened(path: Path, *, log_ahead: bool = False) -> Iterator[Database]:
    database = Database(path, FAMILIES, cache_bytes=MiB, open_files_max=64, log_ahead=log_ahead)
    try:
        yield database
    finally:
        database.close()


def test_rows_are_read_back_in_order(tmp_path: Path) -> None:
    rows = [(b"k%03d" % n, b"value %d" % n) for n in range(300)]
    with opened(tmp_path) as database:
        batch = database.batch()
        for key, value in reversed(rows):
            batch.put(DEFAULT, key, value)
        batch.put("other", b"k001", b"elsewhere")
        database.write(batch)
        for table in database.tables.values():
            table.flush()
    with opened(tmp_path) as database:
        table, other = database.tables[DEFAULT], database.tables["other"]
        assert list(table.rows()) == rows
        assert list(table.rows(b"k01")) == rows[10:20]
        assert table.some(b"k250", 10) == rows[250:260]
        assert table.some(b"k295", 10) == rows[295:]
        assert table.some(b"k250", 10, b"k255") == rows[250:255]
        assert table.some(b"k250", 3, b"k255") == rows[250:253]
        assert table.some(b"k250", 10, b"k250") == []
        assert (table.get(b"k007"), table.get(b"nothing")) == (b"value 7", None)
        assert list(other.rows()) == [(b"k001", b"elsewhere")]
        batch = database.batch()
        batch.delete_range(DEFAULT, b"k010", b"k290")
        batch.delete(DEFAULT, b"k000")
        database.write(batch)
        assert list(table.rows()) == rows[1:10] + rows[290:]
    assert families_of(tmp_path) == [DEFAULT, "other"]
    assert families_of(tmp_path / "nowhere") == []


def test_a_database_is_open_once(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(OSError, match="lock"), opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


def test_damage_is_named_with_its_place(tmp_path: Path) -> None:
    with opened(tmp_path) as database:
        batch = database.batch()
        batch.put(DEFAULT, b"key", b"value" * 1000)
        database.write(batch)
        database.tables[DEFAULT].flush()
    (table,) = tmp_path.glob("*.sst")
    data = bytearray(table.read_bytes())
    data[10] ^= 0xFF
    table.write_bytes(data)
    with opened(tmp_path) as database, pytest.raises(CorruptStore, match=str(tmp_path)):
        database.tables[DEFAULT].get(b"key")


def test_what_is_logged_ahead_needs_no_flush(tmp_path: Path) -> None:
    with opened(tmp_path, log_ahead=True) as database:
        batch = database.batch()
        batch.put("other", b"a", b"1")
        database.write(batch)
    with opened(tmp_path) as database:
        assert database.tables["other"].get(b"a") == b"1"


def test_a_snapshot_is_read_beside_the_writer_and_leaves_no_trace(tmp_path: Path) -> None:
    writer = Database(
        tmp_path,
        [FamilyOptions(DEFAULT, MiB), FamilyOptions("more", MiB)],
        cache_bytes=MiB,
        open_files_max=16,
        log_ahead=True,
    )
    batch = writer.batch()
    batch.put(DEFAULT, b"a", b"1")
    batch.put("more", b"b", b"2")
    writer.write(batch)
    before = sorted(path.name for path in tmp_path.iterdir())
    snapshot = Snapshot(tmp_path, (DEFAULT, "more", "absent"))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    batch = writer.batch()
    batch.put(DEFAULT, b"c", b"3")
    writer.write(batch)
    assert {name: list(table.rows()) for name, table in snapshot.tables.items()} == {
        DEFAULT: [(b"a", b"1")],
        "more": [(b"b", b"2")],
    }
    snapshot.close()
    writer.close()


def test_a_snapshot_of_what_is_damaged_says_so(tmp_path: Path) -> None:
    writer = Database(tmp_path, [FamilyOptions(DEFAULT, MiB)], cache_bytes=MiB, open_files_max=16, log_ahead=True)
    writer.close()
    for path in tmp_path.glob("MANIFEST-*"):
        path.write_bytes(b"garbage")
    with pytest.raises((CorruptStore, OSError), match=str(tmp_path)):
        Snapshot(tmp_path, (DEFAULT,))
