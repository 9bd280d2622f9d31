"""To look at a store changes nothing in it, also beside a broker that writes."""

import os
from pathlib import Path

import pytest

from firearrow.store.offline import Layout, Selection, StoreView, find, plan, stat, verify
from firearrow.store.offline.compare import index_rows
from firearrow.store.reading import storage as mapped
from firearrow.store.reading.storage import LocalStorage, StoreFile
from tests.store.offline.damage import golden_store, own_store
from tests.store.stores import append, opened, settle


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    root = golden_store(tmp_path)

    def state() -> list[tuple[str, int, int]]:
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*"))]

    before = state()
    layout = Layout(root)
    verify(layout)
    stat(layout)
    plan(layout)
    with StoreView(layout) as view:
        assert len(list(find(view, Selection()))) == 952
    assert state() == before


def test_beside_a_running_broker(tmp_path: Path) -> None:
    """What it has not dispatched or flushed yet is no damage, and its lock stays."""
    root = own_store(tmp_path)
    with opened(root) as store:
        for number in range(50):
            append(store, b"fresh", queue_id=number % 3, properties={"UNIQ_KEY": f"F{number}"})
        settle(store)
        append(store, b"not dispatched", properties={"UNIQ_KEY": "late"})
        verdict = verify(Layout(root))
        assert verdict.live
        assert verdict.sound, verdict.findings
        assert verdict.records == 651
        assert stat(Layout(root)).state == "in use"
        assert verify(Layout(root)).live  # the look before has not released the lock
    assert not verify(Layout(root)).live


def test_a_log_in_several_directories(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    other = tmp_path / "second disk"
    other.mkdir()
    files = sorted((root / "commitlog").iterdir())
    for path in files[1::2]:
        path.rename(other / path.name)
    layout = Layout.of(root, f"{root / 'commitlog'},{other}")
    verdict = verify(layout)
    assert verdict.findings == []
    assert (verdict.records, verdict.log_files) == (600, len(files))
    assert not verify(Layout(root)).sound


def test_several_processes_give_the_same_verdict(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    assert verify(Layout(root), jobs=2) == verify(Layout(root), jobs=1)


def test_where_a_file_is_zero_to_its_end(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    path = tmp_path / "00000000000000000000"
    path.touch()
    os.truncate(path, 6_000_000)
    assert storage.data_end(StoreFile(path.name, 0, 6_000_000)) == 0
    with path.open("r+b") as file:
        file.seek(3_000_000)
        file.write(b"x")
    assert 3_000_001 <= storage.data_end(StoreFile(path.name, 0, 6_000_000)) < 3_200_000
    assert storage.data_end(StoreFile("gone", 0, 100)) == 0


def test_more_files_than_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_MAPS_MAX", 2)
    root = own_store(tmp_path)
    assert len(list((root / "index").iterdir())) > 3
    verdict = verify(Layout(root), jobs=1)
    assert verdict.sound, verdict.findings
    with StoreView(Layout(root)) as view:
        found = [index_rows(view, file) for file in view.index.files]
        rows = [one for one in found if one is not None]
        assert len(rows) == len(found)
        assert [len(one.rows) for one in rows] == [one.taken - 1 for one in rows]
        assert all(one.slot_heads.any() for one in rows)
