"""Carve messages out of damaged stores, loose log files or disk images, into a new store.

Carving tries every place where a record could begin: its magic, the sum of its parts and the CRC of its body must hold
(and its CRC property if it has one). It needs neither an index nor a file name. A record that is found twice counts
once, by its physical offset.

The new store differs from the old one in these points:

* records are written one after another in the order of their old physical offsets and get new ones:
  a log can't have gaps where records are lost. ``salvage-map.csv`` maps old offsets to new ones; a
  commit's reference to its half message follows.
* queue offsets stay, so that the consumers' offsets stay right: a placeholder replaces a lost
  message, as in ``repair``. Where more than ``HOLE_MAX`` in a row are missing, the queue goes on
  without them, that is with other queue offsets.
* nothing else of a message is changed; queues and index are built from the new log.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec
import numpy as np

from firearrow.clock import Clock
from firearrow.errors import FirearrowError, StoreError, naming
from firearrow.message.model import MessageView
from firearrow.message.record import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    crc32,
    crc_property,
    decode_record,
    encode_blank,
    verify_crc_property,
)
from firearrow.message.sysflag import (
    BORN_HOST_V6,
    INNER_BATCH,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from firearrow.state import PARTS
from firearrow.store.batchqueue import inner_count
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.config import StoreConfig
from firearrow.store.offline.metadata import config_files
from firearrow.store.offline.numbering import (
    HELD_PROPERTY_BYTES,
    HOLE_MAX,
    Lost,
    Stamp,
    fits_file,
    given,
    held_bytes,
    placeholder,
)
from firearrow.store.offline.pieces import OnProgress
from firearrow.store.offline.rebuilding import QUEUE_DIRECTORIES, Order, Sizes, build
from firearrow.store.offline.restoring import proved
from firearrow.store.offline.view import Layout, StoreView, parse_config, stored_config
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.storage import Correction, LocalStorage, Maps, StoreFile, corrections_by_path
from firearrow.store.reading.walk import find_record
from firearrow.store.scan import Buffer, Columns, Stop, scan
from firearrow.store.segments import NAME_DIGITS
from firearrow.wire import fastjson

MAP_NAME: Final = "salvage-map.csv"
_LOOPBACK: Final = bytes((127, 0, 0, 1, 0, 0, 0, 0))
_I64: Final = struct.Struct(">q")
_RECORD_MAX: Final = 64 * 1024 * 1024


class Found(NamedTuple):
    """A carved record: its own physical offset, and the place where it was found."""

    physical_offset: int
    source: int
    position: int
    size: int


class Salvaged(msgspec.Struct, frozen=True):
    """Result of a salvage. ``given_again`` names queues that will assign queue offsets twice."""

    to: str
    sources: int
    records: int
    duplicates: int
    contradictions: int
    placeholders: int
    renumbered: int
    log_bytes: int
    left_out: dict[str, str]
    given_again: list[str] = []


class Carver:
    """All sound records of some files.

    Of two different records with one physical offset, the record in a file of the right name counts, otherwise the one
    that was stored later.
    """

    def __init__(self, sources: list[Path], on_progress: OnProgress | None = None) -> None:
        self.sources: Final = [StoreFile(str(path), _base_of(path), path.stat().st_size) for path in files_of(sources)]
        self._maps = Maps(LocalStorage("."), _corrections_in(sources))
        self._on_progress = on_progress
        self.found: dict[int, Found] = {}
        self.duplicates: int = 0
        self.contradictions: int = 0

    def run(self) -> list[Found]:
        """Read all files; return the records in the order of their old offsets."""
        total = sum(file.size_bytes for file in self.sources)
        done = 0
        for number, file in enumerate(self.sources):
            for columns in carve(self._maps.of(file)):
                self._take(number, columns)
            done += file.size_bytes
            if self._on_progress is not None:
                self._on_progress(done, total)
        return [self.found[offset] for offset in sorted(self.found)]

    def _take(self, source: int, columns: Columns) -> None:
        rows = zip(columns.physical_offset.tolist(), columns.position.tolist(), columns.size.tolist(), strict=True)
        for physical, position, size in rows:
            fresh = Found(physical, source, position, size)
            known = self.found.get(physical)
            if known is None:
                self.found[physical] = fresh
            elif self.record(known) == self.record(fresh):
                self.duplicates += 1
            else:
                self.contradictions += 1
                self.found[physical] = max(known, fresh, key=self._credit)

    def _credit(self, found: Found) -> tuple[bool, int]:
        file = self.sources[found.source]
        in_place = file.base + found.position == found.physical_offset
        return in_place, self.message(found).store_timestamp_ms

    def record(self, found: Found) -> bytes:
        """The bytes of a record."""
        buffer = self._maps.of(self.sources[found.source])
        return bytes(buffer[found.position : found.position + found.size])

    def message(self, found: Found) -> MessageView:
        """A record, decoded."""
        return decode_record(self.record(found))

    def close(self) -> None:
        """Release the files."""
        self._maps.close()


def _stores(sources: list[Path]) -> Iterator[StoreView]:
    """The sources that are stores and whose queues can be read, each open as a view."""
    for source in sources:
        if (source / "commitlog").is_dir():
            with StoreView(Layout(source)) as view:
                try:
                    len(view.queues)
                except (FirearrowError, OSError):
                    continue
                yield view


def _corrections_in(sources: list[Path]) -> dict[str, list[Correction]]:
    """The right bytes of damaged records, where a store's queues prove them."""
    found: dict[str, list[Correction]] = {}
    for view in _stores(sources):
        for path, corrections in corrections_by_path(view.log.files, proved(view)).items():
            found[str(view.path_of(path))] = corrections
    return found


def files_of(sources: list[Path]) -> list[Path]:
    """The given files; of a directory the files of its CommitLog, and the ones that were set aside."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            log = source / "commitlog"
            files += sorted((log if log.is_dir() else source).iterdir())
            files += sorted(source.glob(".repair-*/*.bytes"))
            files += sorted(source.glob("quarantine/commitlog-*"))
        else:
            files.append(source)
    found = [path for path in files if path.is_file() and path.stat().st_size]
    if not found:
        raise StoreError(f"there is no file to read in {', '.join(map(str, sources))}")
    return found


def _base_of(path: Path) -> int:
    name = path.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) == NAME_DIGITS else -1


def carve(data: Buffer) -> Iterator[Columns]:
    """The sound records of some bytes, wherever they begin."""
    at: int | None = 0
    while at is not None:
        at = find_record(data, at, len(data), None)
        while at is not None:
            columns = scan(data, at, len(data))
            sound = _sound(columns)
            if len(sound):
                yield sound
            if columns.stop is not Stop.FULL:
                at = columns.end
                break
            at = columns.end


def _sound(columns: Columns) -> Columns:
    """The records with readable text and the right CRC of their body."""
    good = columns.body_crc_holds()
    topics, number = columns.topics()
    readable = np.array([_is_name(topic) for topic in topics], np.bool_)
    good &= readable[number] & (columns.physical_offset >= 0) & (columns.size <= _RECORD_MAX)
    for row in np.flatnonzero(columns.properties_size >= CRC_PROPERTY_BYTES).tolist():
        end = int(columns.properties_start[row] + columns.properties_size[row])
        if bytes(columns.buffer[end - CRC_PROPERTY_BYTES : end]).startswith(b"__CRC32#"):
            start = int(columns.position[row])
            record = bytes(columns.buffer[start : start + int(columns.size[row])])
            good[row] &= verify_crc_property(record) is True
    if good.all():
        return columns
    return Columns(columns.buffer, columns.position[good], columns.end)


def _is_name(topic: bytes) -> bool:
    try:
        return bool(topic.decode())
    except UnicodeDecodeError:
        return False


def carved_messages(sources: list[Path], on_progress: OnProgress | None = None) -> Iterator[MessageView]:
    """The messages that can be carved, in the order of their old offsets."""
    carver = Carver(sources, on_progress)
    try:
        for found in carver.run():
            yield carver.message(found)
    finally:
        carver.close()


class _LogWriter:
    """Writer of records, one after another, into log files of one size."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self.file_bytes = file_bytes
        self.offset = 0
        directory.mkdir(parents=True)
        self._file = self._create(0)

    def _create(self, base: int) -> IO[bytes]:
        file = (self._directory / f"{base:0{NAME_DIGITS}d}").open("wb")
        file.truncate(self.file_bytes)
        return file

    def place(self, size: int) -> int:
        """Offset of the next record of a size; begins the next file if it must."""
        assert size + BLANK_BYTES <= self.file_bytes, "an empty file has room for the record and a blank"
        room = self.file_bytes - self.offset % self.file_bytes
        if size + BLANK_BYTES > room:
            with naming(self._file.name):
                self._file.write(encode_blank(room))
            self._finish()
            self.offset += room
            self._file = self._create(self.offset)
        return self.offset

    def write(self, record: bytes) -> None:
        """Write the record for the offset that ``place`` returned."""
        room = self.file_bytes - self.offset % self.file_bytes
        assert len(record) + BLANK_BYTES <= room, "the record has its place"
        with naming(self._file.name):
            self._file.write(record)
        self.offset += len(record)

    def _finish(self) -> None:
        with naming(self._file.name), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write everything to the disk."""
        self._finish()


class _Rewriter:
    """Gives records their new physical offsets and keeps queue offsets consecutive."""

    def __init__(self, log: _LogWriter) -> None:
        self._log = log
        self._next: dict[QueueKey, tuple[int, int]] = {}  # old and new queue offset
        self.moved: dict[int, int] = {}
        self.placeholders = 0
        self.renumbered = 0
        self.last_ms = 0
        self.last_offset = 0

    def put(self, record: bytes, message: MessageView) -> int:
        """Write a record; return its new physical offset."""
        number = message.queue_offset
        kind = message.sys_flag & TRANSACTION_MASK
        if kind in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            number = self._number(message)
        at = self._log.place(len(record))
        data = bytearray(record)
        data[20:36] = _I64.pack(number) + _I64.pack(at)
        named = message.prepared_transaction_offset  # offset of its half, or of the delayed message
        moved = self.moved.get(named, named if kind else 0) if named or kind else 0
        if moved != named:
            hosts = message.sys_flag
            v6 = (hosts & BORN_HOST_V6 != 0) + (hosts & STORE_HOST_V6 != 0)
            data[76 + 12 * v6 : 84 + 12 * v6] = _I64.pack(moved)
        rewritten = _with_crc(bytes(data))
        assert len(rewritten) == len(record), "a record keeps its size"
        self._log.write(rewritten)
        self.moved[message.physical_offset] = at
        self.last_ms, self.last_offset = message.store_timestamp_ms, at
        return at

    def _number(self, message: MessageView) -> int:
        """The queue offset of a message, after placeholders for the messages lost before it."""
        key = message.topic, message.queue_id
        old, new = self._next.get(key, (message.queue_offset, message.queue_offset))
        held = inner_count(message.properties, message.sys_flag)
        missing = message.queue_offset - old
        if 0 < missing <= HOLE_MAX:
            for _ in range(missing):
                self._hold(key, new, message.store_timestamp_ms)
                new += 1
        elif missing < 0 and message.queue_offset == 0:
            new = 0  # the topic was made again
        if message.sys_flag & INNER_BATCH:  # the batch holds its queue offset, and may leave a hole
            new = max(new, message.queue_offset)
        self.renumbered += new != message.queue_offset
        self._next[key] = message.queue_offset + held, new + held
        return new

    def hold_given(self, view: StoreView) -> list[str]:
        """Hold the last queue offsets of an old store's queues whose messages were not found.

        Return the queues that have too many of them.
        """
        ends = {key: old for key, (old, _) in self._next.items()}
        left: list[str] = []
        for one in given(view, ends, gone=frozenset(view.queues), believe_groups=True):
            key = one.topic, one.queue_id
            _, number = self._next.get(key, (0, one.to_hold.start))
            if not one.can_be_held or not fits_file(one.topic, self._log.file_bytes):
                left.append(str(one))
                continue
            for _ in one.to_hold:
                self._hold(key, number, self.last_ms or 1)
                number += 1
            self._next[key] = one.end, number
        return left

    def _hold(self, key: QueueKey, number: int, store_ms: int) -> None:
        size = held_bytes(key[0])
        at = self._log.place(size)
        record = placeholder(Lost(at, size, *key, number), Stamp(store_ms, _LOOPBACK))
        assert record is not None, "its size has room for the property"
        self._log.write(record)
        self.placeholders += 1


def _with_crc(record: bytes) -> bytes:
    """A record whose CRC property, if it has one, is right again."""
    if verify_crc_property(record) is None:
        return record
    covered = record[:-CRC_PROPERTY_BYTES]
    return covered + crc_property(crc32(covered) & 0x7FFFFFFF)


def salvage(
    sources: list[Path],
    to: Path,
    clock: Clock,
    *,
    file_bytes: int | None = None,
    queue_file_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Salvaged:
    """Carve records and make a new store of them. ``to`` must not exist, or be empty.

    The sizes of files are the sources' sizes where these are known, otherwise RocketMQ's own.
    """
    if to.exists() and any(to.iterdir()):
        raise StoreError(f"{to} is not empty")
    carver = Carver(sources, on_progress)
    try:
        found = carver.run()
        largest = max((record.size for record in found), default=0)
        size = file_bytes or _usual_size(carver.sources)
        size = max(size, largest + HELD_PROPERTY_BYTES + BLANK_BYTES)  # for the placeholder of any found topic
        log = _LogWriter(to / "commitlog", size)
        rewriter = _Rewriter(log)
        _rewrite(carver, found, rewriter, to / MAP_NAME)
        again = [text for view in _stores(sources) for text in rewriter.hold_given(view)]
        log.close()
        assert len(rewriter.moved) == len(found), "each record has one new place"
    finally:
        carver.close()
    _copy_config(sources, to)
    with StoreView(Layout(to)) as view:
        sizes = _sizes(view, sources, queue_file_bytes)
        made = build(view, clock, to, Order(sizes=sizes))
    last_ms = rewriter.last_ms
    checkpoint = Checkpoint(last_ms, last_ms, last_ms, 0, 0, rewriter.last_offset)
    checkpoint.save(to / "checkpoint")
    return Salvaged(
        str(to),
        len(carver.sources),
        len(found),
        carver.duplicates,
        carver.contradictions,
        rewriter.placeholders,
        rewriter.renumbered,
        log.offset,
        made.left_out,
        again,
    )


def _rewrite(carver: Carver, found: list[Found], rewriter: _Rewriter, map_path: Path) -> None:
    with naming(map_path), map_path.open("w", encoding="utf-8") as lines:
        lines.write("old_physical_offset,new_physical_offset,source,position\n")
        for place in found:
            at = rewriter.put(carver.record(place), carver.message(place))
            source = carver.sources[place.source].name
            lines.write(f"{place.physical_offset},{at},{source},{place.position}\n")


def _usual_size(sources: list[StoreFile]) -> int:
    named = [file.size_bytes for file in sources if file.base >= 0]
    default = StoreConfig().mapped_file_size_commit_log
    return max(set(named), key=named.count, default=default)


def _sizes(view: StoreView, sources: list[Path], queue_file_bytes: int | None) -> Sizes:
    """The sizes in the first source that is a store."""
    for source in sources:
        if any((source / name).is_dir() for name in (*QUEUE_DIRECTORIES, "index")):
            with StoreView(Layout(source)) as old:
                return Sizes.of(old, queue_file_bytes)
    return Sizes.of(view, queue_file_bytes)


def _copy_config(sources: list[Path], to: Path) -> None:
    """Copy the readable configuration, each file from the first store that has it.

    The broker's state includes the content of databases, journals and earlier contents.
    """
    (to / "config").mkdir(parents=True, exist_ok=True)
    for source in sources:
        for name, part in PARTS.items():
            target, state = to / "config" / name, stored_config(source / "config", part)
            in_file = parse_config(source / "config" / name)
            if isinstance(state, dict) and not target.exists():
                content = state if isinstance(in_file, str) else in_file | state
                if content and content != in_file:
                    target.write_bytes(fastjson.dumps(content, pretty=True))
        for path in config_files(source / "config"):
            target = to / "config" / path.name
            if not target.exists() and not isinstance(parse_config(path), str):
                shutil.copy2(path, target)
