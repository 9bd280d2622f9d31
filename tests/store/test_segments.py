"""Fixed-size files as one address space."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore
from firearrow.store import segments as segments_module
from firearrow.store.segments import MappedFiles, Segments, maps_max, zero_after
from tests.loglines import told

SIZE = 8192


def filled(directory: Path, count: int, first: int = 0) -> Segments:
    """Files of which each byte is the number of its file, from 1 on."""
    segments = Segments(directory, SIZE)
    for number in range(count):
        segment = segments.create(first + number * SIZE)
        segment.map[:] = bytes([number + 1]) * SIZE
        segments.attach(segment)
    return segments


def test_names_are_offsets_of_twenty_digits(tmp_path: Path) -> None:
    segments = filled(tmp_path, 3, 2 * SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000016384",
        "00000000000000024576",
        "00000000000000032768",
    ]
    assert (segments.first_offset, segments.end_offset) == (2 * SIZE, 5 * SIZE)
    segments.close()


def test_a_new_file_is_zero(tmp_path: Path) -> None:
    segments = Segments(tmp_path, SIZE)
    segments.attach(segments.create(0))
    assert segments.path_of(0).read_bytes() == bytes(SIZE)
    segments.close()


def test_each_byte_is_found_in_its_file(tmp_path: Path) -> None:
    segments = filled(tmp_path, 3, SIZE)
    places = {0: None, SIZE - 1: None, SIZE: 1, 2 * SIZE - 1: 1, 2 * SIZE: 2, 4 * SIZE - 1: 3}
    for offset, number in {**places, 4 * SIZE: None, -1: None}.items():
        segment = segments.find(offset)
        assert (segment and segment.map[offset - segment.base]) == number
    segments.close()
    assert segments.find(SIZE) is None


def test_it_is_loaded_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path, 3, SIZE).close()
    segments = Segments(tmp_path, SIZE)
    segments.load()
    assert [(segment.base, segment.end) for segment in segments.files] == [
        (n * SIZE, (n + 1) * SIZE) for n in (1, 2, 3)
    ]
    assert [segment.map[0] for segment in segments.files] == [1, 2, 3]
    segments.close()


def test_what_is_no_part_of_it_is_left_alone_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 1).close()
    (tmp_path / "readme").write_bytes(b"hello")
    segments = Segments(tmp_path, SIZE)
    with caplog.at_level(logging.WARNING):
        segments.load()
    assert [segment.base for segment in segments.files] == [0]
    assert told(caplog) == [
        {
            "event": "file is ignored: its name has another number of digits",
            "path": str(tmp_path / "readme"),
            "digits": 20,
        }
    ]
    assert (tmp_path / "readme").read_bytes() == b"hello"
    segments.close()


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_of_another_size_is_refused_rather_than_forgotten(tmp_path: Path, number: int) -> None:
    filled(tmp_path, number + 1).close()
    (tmp_path / f"{0:020d}").write_bytes(b"short")
    segments = Segments(tmp_path, SIZE)
    with pytest.raises(CorruptStore, match="has 5 bytes, files here are configured to have 8192"):
        segments.load()
    segments.close()


def test_a_last_file_that_was_cut_short_is_lengthened(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    (tmp_path / f"{SIZE:020d}").write_bytes(b"short")
    segments = Segments(tmp_path, SIZE)
    segments.load()
    assert segments.files[-1].map[:] == b"short" + bytes(SIZE - 5)
    segments.close()


def test_a_file_that_can_not_start_there_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 2).close()
    stray = tmp_path / f"{SIZE + 7:020d}"
    stray.write_bytes(b"stray")
    segments = Segments(tmp_path, SIZE)
    segments.load()
    assert [segment.base for segment in segments.files] == [0, SIZE]
    event = "file is ignored: no file of this size starts there"
    assert told(caplog) == [{"event": event, "path": str(stray)}]
    assert stray.read_bytes() == b"stray"
    segments.close()


def test_empty_last_files_of_a_crash_are_deleted(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    for number in (1, 2):
        (tmp_path / f"{number * SIZE:020d}").touch()
    segments = Segments(tmp_path, SIZE)
    segments.load()
    assert [segment.base for segment in segments.files] == [0]
    segments.attach(segments.create(SIZE))
    segments.close()


def test_a_gap_is_refused_by_its_name(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    (tmp_path / f"{SIZE:020d}").unlink()
    segments = Segments(tmp_path, SIZE)
    with pytest.raises(CorruptStore, match="00000000000000008192"):
        segments.load()
    segments.close()


@given(cut=st.integers(0, 4 * SIZE))
def test_a_cut_leaves_zeros_and_no_later_file(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    directory = tmp_path_factory.mktemp("cut")
    segments = filled(directory, 3)
    before = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    segments.cut(cut)
    after = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    kept = before[:cut]
    assert after == kept + bytes(-len(kept) % SIZE)
    segments.close()


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, SIZE - 1])
def test_all_behind_a_place_becomes_zero(tmp_path: Path, at: int) -> None:
    segments = Segments(tmp_path, SIZE)
    segment = segments.create(0)
    segment.map[:] = b"x" * SIZE
    zero_after(segment, at)
    assert segment.map[:] == b"x" * at + bytes(SIZE - at)
    segments.attach(segment)
    segments.close()


def test_what_is_read_is_not_taken_for_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reads ahead, and says of that, too, that it is data."""
    mebibyte = 1 << 20
    segments = Segments(tmp_path, 8 * mebibyte)
    segment = segments.create(0)
    segments.attach(segment)
    for at in (0, 3 * mebibyte, 6 * mebibyte):
        segment.map[at] = 1
    asked = []

    def seek(fd: int, at: int, how: int) -> int:
        asked.append(at)
        return lseek(fd, at, how)

    lseek = os.lseek
    monkeypatch.setattr(os, "lseek", seek)
    found = segments.data(0)
    first = next(found)
    before = len(asked)
    assert [at for _, at, _ in (first, *found)] == [0, 3 * mebibyte, 6 * mebibyte]
    assert len(asked) == before > 0
    segments.close()


def test_blocks_are_reserved_in_steps(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 3 * SIZE, reserve_step_bytes=SIZE)
    segment = segments.create(0)
    segments.attach(segment)
    assert segment.reserved_bytes == 4096
    assert segment.path.stat().st_blocks * 512 == 4096
    segments.reserve(segment, 4097)
    assert segment.reserved_bytes == SIZE
    segments.reserve(segment, SIZE + 1)
    assert segment.reserved_bytes == 2 * SIZE
    segments.reserve(segment, 3 * SIZE)
    assert segment.reserved_bytes == 3 * SIZE
    assert segment.path.stat().st_blocks * 512 >= 3 * SIZE
    segments.close()


def mapped(path: Path) -> int:
    """How many maps there are of files below a directory."""
    return Path("/proc/self/maps").read_text().count(f"{path}/")


def test_late_files_are_mapped_while_they_are_used_and_no_more_than_may_be(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    segments = Segments(tmp_path, SIZE, maps=MappedFiles(2))
    segments.load()
    assert [segment.head(2) for segment in segments.files] == [b"\1\1", b"\2\2", b"\3\3"]
    assert mapped(tmp_path) == 0
    for _ in range(2):
        for number, segment in enumerate(segments.files):
            segment.map[number] = 7
            assert mapped(tmp_path) <= 2
    assert [segment.map[:4] for segment in segments.files] == [b"\7\1\1\1", b"\2\7\2\2", b"\3\3\7\3"]
    first = segments.files[0]
    segments.close()
    assert mapped(tmp_path) == 0
    with pytest.raises(ValueError, match="closed"):
        first.map[0]


def test_a_late_file_that_was_made_is_mapped(tmp_path: Path) -> None:
    segments = Segments(tmp_path, SIZE, 4096, maps=MappedFiles(1))
    for base in (0, SIZE):
        segments.attach(segments.create(base))
        assert mapped(tmp_path) == 1
    segments.shift()
    assert (mapped(tmp_path), segments.files[0].head(1)) == (1, b"\0")
    segments.close()


def test_half_of_the_maps_or_descriptors_of_a_process_are_for_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "descriptors_max", lambda: 100)
    for has_descriptor, most in ((True, 50), (False, maps_of_linux() // 2)):
        monkeypatch.setattr(segments_module, "MAP_HAS_DESCRIPTOR", has_descriptor)
        assert maps_max() == most


def maps_of_linux() -> int:
    return int(Path("/proc/sys/vm/max_map_count").read_text())
