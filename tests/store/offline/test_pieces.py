"""However a store is cut into pieces, and whoever does them, the outcome is the same.

`test_verdict` shows it for each kind of damage.
"""

from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from firearrow.errors import StoreError
from firearrow.message.record import encode_record
from firearrow.store.config import StoreConfig
from firearrow.store.offline import Layout, StoreView, verify
from firearrow.store.offline.logcheck import check_stretch
from firearrow.store.offline.pieces import Processes, SharedView, Stretch, ThisProcess, stretches, work_on, workers_for
from tests.store.offline.damage import a_message, golden_store, in_record, messages, own_store
from tests.store.stores import BORN_HOST, STORE_HOST

FILE_BYTES = 64 * 1024


def test_times_are_compared_across_stretches(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    for base in (0, 64 * 1024):  # a time of zero bytes in each record but the first ones
        with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
            data = bytearray(file.read())
            at, number = 0, 0
            while (size := int.from_bytes(data[at : at + 4], "big")) and at + size < len(data):
                if number % 3 == 2:
                    data[at + 60 : at + 64] = bytes(4)
                at, number = at + size, number + 1
            file.seek(0)
            file.write(data)
    whole = verify(Layout(root))
    found = [f for f in whole.findings if f.invariant == "record-store-time"]
    assert sum(finding.times for finding in found) > 50
    for stretch_bytes in (1000, 5000):
        assert verify(Layout(root), stretch_bytes=stretch_bytes) == whole


def test_what_looks_like_a_record_in_a_body_misleads_nobody(tmp_path: Path) -> None:
    """A body holds a record that states its own place: a stretch that begins before it takes it."""
    root = own_store(tmp_path)
    whole = verify(Layout(root))
    eleventh = messages(root)[10].physical_offset
    at = eleventh + 100  # in its body
    record = encode_record("T", b"", b"", 0, 7, at, 0, 0, 1, BORN_HOST, 2, STORE_HOST)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(record)
    damaged = verify(Layout(root))
    assert damaged != whole
    for stretch_bytes in (at - 1, at, eleventh + 90):
        with StoreView(Layout(root)) as view:
            part = check_stretch(view, Stretch(0, stretch_bytes, FILE_BYTES, known=False))
        assert part is not None
        assert part.begin == at
        assert verify(Layout(root), stretch_bytes=stretch_bytes) == damaged


def test_several_processes(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    in_record(root, a_message(root), 88, b"\0")
    done: list[tuple[int, int]] = []
    verdict = verify(
        Layout(root, made_as=StoreConfig()),
        workers=Processes(2),
        stretch_bytes=30_000,
        on_progress=lambda at, total: done.append((at, total)),
    )
    assert verdict == verify(Layout(root))
    assert [at for at, _ in done] == sorted(at for at, _ in done)
    assert done[-1][0] == done[-1][1] == 3 * 262_144


def broken(view: StoreView, piece: int) -> int:
    if piece == 3:
        raise ValueError("three")
    return piece


@pytest.mark.parametrize("workers", [ThisProcess(), Processes(2)], ids=["here", "elsewhere"])
def test_what_a_piece_raises_comes_through(workers: Any, tmp_path: Path) -> None:
    with StoreView(Layout(golden_store(tmp_path))) as view:
        done = workers.work(view, broken, list(range(40)))
        assert [next(done) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(done)


def test_how_a_log_is_cut(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    (root / "commitlog" / f"{3 * 262_144:020d}").touch()
    with StoreView(Layout(root)) as view:
        cut = stretches(view, 200_000)
        assert cut[:2] == [Stretch(0, 0, 200_000, True), Stretch(0, 200_000, 262_144, False)]
        assert cut[-1] == Stretch(3 * 262_144, 0, 0, True)
        assert isinstance(workers_for(view, None), ThisProcess)
        assert workers_for(view, 3) == Processes(3)


def test_a_host_that_sees_another_store_does_no_piece(tmp_path: Path) -> None:
    root, other = golden_store(tmp_path / "one"), own_store(tmp_path / "two")
    with StoreView(Layout(root)) as view:
        shared = SharedView.of(view)
        pieces = stretches(view)
    report = work_on(shared, check_stretch, pieces[0])
    assert report is not None
    assert report.begin == 0
    elsewhere = shared._replace(layout=Layout(other))
    with pytest.raises(StoreError, match=rf"{other} on {gethostname()} is not the store to read"):
        work_on(elsewhere, check_stretch, pieces[0])
    nowhere = shared._replace(layout=Layout(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match=rf"nowhere is not a directory, on {gethostname()}$"):
        work_on(nowhere, check_stretch, pieces[0])
