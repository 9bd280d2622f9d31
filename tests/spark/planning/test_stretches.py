"""Records are found from any place of a log, and nothing else is taken for one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.spark.planning import stretches
from firearrow.spark.planning.stores import Store
from firearrow.store.reading.walk import next_record
from tests.spark import logs, oracle
from tests.spark.source.test_files import by_place, read


def test_the_next_record_is_found_from_every_byte(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, logs.any_messages(3, 12))
    store = Store(str(root))
    (file, *_) = store.log.files
    starts = [row["commitLogOffset"] for row in oracle.log(root, "")]
    starts = [start for start in starts if start < file.end]
    for at in range(file.end):
        expected = next((start for start in starts if start >= at), None)
        assert next_record(store.storage, file, at, file.end) == expected


def test_records_inside_of_bodies_are_bodies(tmp_path: Path) -> None:
    """Log bytes that were sent as messages: what they say of their place is wrong."""
    logs.write(tmp_path / "a", [logs.Sent(body=b"x" * 40) for _ in range(20)])
    copied = (tmp_path / "a" / "commitlog" / f"{0:020d}").read_bytes()[:2800]
    root = tmp_path / "b"
    logs.write(root, [logs.Sent(body=copied) for _ in range(6)], 8192)
    for split in ("1", "100", "1k", "1m"):
        found = by_place(read(root, visibility="log", splitBytes=split))
        assert [row["body"] for row in found] == [copied] * 6


def test_a_record_that_is_forged_into_a_body_is_told(tmp_path: Path) -> None:
    """One that knows where it will be: a piece that begins inside of the body would find it."""
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"x" * 400)])
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    logs.write(tmp_path / "f", [logs.Sent(body=b"forged")])
    size = oracle.log(tmp_path / "f", "")[0]["storeSize"]
    forged = bytearray((tmp_path / "f" / "commitlog" / f"{0:020d}").read_bytes()[:size])
    at = 200
    forged[28:36] = at.to_bytes(8, "big")
    data[at : at + len(forged)] = forged
    path.write_bytes(data)
    assert len(read(root, visibility="log", splitBytes="1m")) == 1
    assert len(read(root)) == 1
    with pytest.raises(CorruptStore, match="but the next one begins at 200"):
        read(root, visibility="log", splitBytes="150")


@pytest.mark.parametrize("split", ["1", "300", "1m"])
def test_zeros_inside_of_a_log_are_damage(split: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=bytes([n]) * 50) for n in range(12)])
    size = oracle.log(root, "")[0]["storeSize"]
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[3 * size : 6 * size] = bytes(3 * size)
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=rf"at {3 * size} of the log"):
        read(root, visibility="log", splitBytes=split)
    found = by_place(read(root, visibility="log", splitBytes=split, onCorrupt="skip"))
    assert [row["body"][0] for row in found] == [0, 1, 2, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("visibility", ["log", "consumer"])
def test_of_records_written_at_once_the_first_may_be_seen_last(
    visibility: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent() for _ in range(6)])
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    path = root / "commitlog" / f"{0:020d}"
    whole, at = path.read_bytes(), oracle.log(root, "")[3]["commitLogOffset"]
    path.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    pauses: list[int] = []

    def pause() -> None:
        pauses.append(len(pauses))
        if len(pauses) == 3:
            path.write_bytes(whole)

    monkeypatch.setattr(stretches, "_pause", pause)
    assert len(read(root, visibility=visibility)) == 6
    assert len(pauses) == 3
