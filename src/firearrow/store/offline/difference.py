"""Compare two stores: a master with its slave, before with after, one broker's with another's.

By default the comparison is byte by byte: the log and each queue where both stores have them, index entries, checkpoint
and configuration. It names the first difference of each. ``logical`` compares messages by topic, queue and queue offset
instead, so that two stores may have them in different places. The sender's parts must be equal (body as stored,
properties, flag, birth); physical offsets, store times and the broker's address may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from firearrow.message.model import MessageView
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type
from firearrow.state import PARTS, has_database
from firearrow.store.batchqueue import UNIT_BYTES, UNIT_DTYPE
from firearrow.store.offline.compare import index_rows
from firearrow.store.offline.metadata import config_files
from firearrow.store.offline.pieces import OnProgress
from firearrow.store.offline.records import Selection, find
from firearrow.store.offline.view import Layout, StoreView, parse_config, stored_config
from firearrow.store.offline.walk import walk_file
from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import QueueKey, Span, StoredQueue, queue_range, without
from firearrow.store.reading.walk import RecordRun

_STEP_BYTES: Final = 1 << 20
_ENTRIES_A_STEP: Final = 50_000
LEFT, RIGHT, BOTH = "only in the first", "only in the second", "different"


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference: the part of the stores, the place, and both contents."""

    part: str
    kind: str
    what: str
    physical_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    file: str | None = None


class QueueSummary(msgspec.Struct, frozen=True):
    """Counts of a queue's messages that are only in one store, or differ."""

    topic: str
    queue_id: int
    only_first: int
    only_second: int
    different: int


class StoreComparison(msgspec.Struct, frozen=True):
    """The differences of two stores; ``log_compared`` is the stretch of the log that both have."""

    first: str
    second: str
    same: bool
    logical: bool
    log_compared: tuple[int, int]
    differences: list[Difference]
    queues: list[QueueSummary]


def diff(
    first: Layout, second: Layout, *, logical: bool = False, on_progress: OnProgress | None = None
) -> StoreComparison:
    """Compare two stores. Raises StoreError where one directory is no store."""
    with StoreView(first) as left, StoreView(second) as right:
        found: list[Difference] = []
        if logical:
            queues = _logical(left, right, found)
            stretch = (0, 0)
        else:
            stretch = _logs(left, right, found, on_progress)
            queues = _queues(left, right, found)
            _index(left, right, found)
            _checkpoint(left, right, found)
        _config(left, right, found)
        same = not found and not queues
        names = str(left.root), str(right.root)
        return StoreComparison(*names, same, logical, stretch, found, queues)


# --- the log ---


def log_end(view: StoreView) -> int:
    """The offset after the last record; only the last files are read."""
    for file in reversed(view.log.files):
        end = None
        for piece in walk_file(view, file):
            if isinstance(piece, RecordRun):
                end = file.base + piece.columns.end
        if end is not None:
            return end
    return view.log_start


def _logs(
    left: StoreView, right: StoreView, found: list[Difference], on_progress: OnProgress | None
) -> tuple[int, int]:
    ends = log_end(left), log_end(right)
    starts = left.log_start, right.log_start
    for name, values in (("begins", starts), ("ends", ends)):
        if values[0] != values[1]:
            kind = LEFT if (values[0] < values[1]) == (name == "begins") else RIGHT
            text = f"the first log {name} at {values[0]}, the second at {values[1]}"
            found.append(Difference("log", kind, text, physical_offset=min(values)))
    start, end = max(starts), min(ends)
    at = start
    while at < end:
        size = min(_STEP_BYTES, end - at)
        ours, theirs = _stretch(left, at, size), _stretch(right, at, size)
        if ours != theirs:
            found.append(_first_byte(left, right, at, ours, theirs))
            break
        at += size
        if on_progress is not None:
            on_progress(at - start, end - start)
    return start, max(end, start)


def _stretch(view: StoreView, physical_offset: int, size: int) -> bytes:
    """Bytes of the log across files; missing bytes are left out."""
    parts: list[bytes] = []
    end = physical_offset + size
    while physical_offset < end:
        file = view.log.find(physical_offset)
        if file is None:
            break
        upto = min(end, file.end)
        parts.append(view.log_bytes(physical_offset, upto - physical_offset))
        physical_offset = upto
    return b"".join(parts)


def _first_byte(left: StoreView, right: StoreView, start: int, ours: bytes, theirs: bytes) -> Difference:
    common = min(len(ours), len(theirs))
    pair = np.frombuffer(ours[:common], np.uint8), np.frombuffer(theirs[:common], np.uint8)
    unequal = np.flatnonzero(pair[0] != pair[1])
    assert len(unequal) or len(ours) != len(theirs), "otherwise the bytes are the same"
    at = start + (int(unequal[0]) if len(unequal) else common)
    words = [f"byte {at} differs"]
    for name, view in (("first", left), ("second", right)):
        record = _record_around(view, at)
        if record is None:
            words.append(f"in the {name} it is in no record")
        else:
            words.append(
                f"in the {name} it is byte {at - record.physical_offset} of the record at "
                f"{record.physical_offset} ({record.topic}-{record.queue_id}, queue offset "
                f"{record.queue_offset})"
            )
    return Difference("log", BOTH, "; ".join(words), physical_offset=at)


def _record_around(view: StoreView, physical_offset: int) -> MessageView | None:
    file = view.log.find(physical_offset)
    if file is None:
        return None
    for piece in walk_file(view, file):
        if isinstance(piece, RecordRun) and file.base + piece.columns.end > physical_offset:
            columns = piece.columns
            row = int(columns.physical_offset.searchsorted(physical_offset, side="right")) - 1
            if row < 0:
                return None
            place = int(columns.physical_offset[row])
            chosen = Selection(physical_from=place, physical_to=place + 1)
            return next(find(view, chosen), None)
    return None


# --- queues, index, checkpoint, configuration ---


def _queues(left: StoreView, right: StoreView, found: list[Difference]) -> list[QueueSummary]:
    summaries: list[QueueSummary] = []
    for key in sorted({*left.queues, *right.queues}):
        summary = _queue(left, right, key, found)
        if summary is not None:
            summaries.append(summary)
    return summaries


def _queue(left: StoreView, right: StoreView, key: QueueKey, found: list[Difference]) -> QueueSummary | None:
    our, their = left.queues.get(key), right.queues.get(key)
    if isinstance(our, BatchQueue) or isinstance(their, BatchQueue):
        return _batch_queue(left, right, key, found)
    ours, theirs = queue_range(our, left.log_start), queue_range(their, right.log_start)
    low, high = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    different = 0
    for numbers in _steps(low, high):
        at, count = numbers.start, len(numbers)
        mine, other = _entries(our, at, count), _entries(their, at, count)
        rows = (mine != other).any(axis=1)
        if rows.any() and not different:
            row = int(np.argmax(rows))
            text = f"{_entry(mine[row].tobytes())} against {_entry(other[row].tobytes())}"
            place = (*key, at + row)
            found.append(Difference("queue", BOTH, text, None, *place))
        different += int(rows.sum())
    only = _only(ours, theirs), _only(theirs, ours)
    return QueueSummary(*key, *only, different) if any((*only, different)) else None


def _batch_queue(left: StoreView, right: StoreView, key: QueueKey, found: list[Difference]) -> QueueSummary | None:
    """Compare units where both files have one: the messages that a unit claims to hold may be anything."""
    ours, theirs = _unit_numbers(left, key), _unit_numbers(right, key)
    low, high = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    different = 0
    for numbers in _steps(low, high):
        mine, other = _units(left, key, numbers), _units(right, key, numbers)
        rows = np.flatnonzero(mine != other)
        if len(rows) and not different:
            unit = mine[rows[0]]
            text = f"{_unit(unit)} against {_unit(other[rows[0]])}"
            found.append(Difference("queue", BOTH, text, None, *key, int(unit["queue_offset"])))
        different += _messages_of(mine[rows])
    both = [(low, high)] if low < high else []
    only = [
        sum(
            _messages_of(_units(view, key, numbers)) for stretch in without(*span, both) for numbers in _steps(*stretch)
        )
        for view, span in ((left, ours), (right, theirs))
    ]
    return QueueSummary(*key, only[0], only[1], different) if any((*only, different)) else None


def _unit_numbers(view: StoreView, key: QueueKey) -> Span:
    """The first unit of a queue whose record the log may still hold, and the end of all units."""
    queue = view.queues.get(key)
    if not isinstance(queue, BatchQueue):
        return 0, 0
    return queue.number_at_or_after(view.log_start), queue.numbers.stop


def _steps(start: int, end: int) -> Iterator[range]:
    for at in range(start, end, _ENTRIES_A_STEP):
        yield range(at, min(at + _ENTRIES_A_STEP, end))


def _units(view: StoreView, key: QueueKey, numbers: range) -> npt.NDArray[Any]:
    """Some units of a queue, zeros where a file is missing."""
    queue = view.queues[key]
    assert isinstance(queue, BatchQueue)
    data = queue.unit_bytes(numbers.start, len(numbers))
    return np.frombuffer(data.ljust(len(numbers) * UNIT_BYTES, b"\0"), UNIT_DTYPE)


def _messages_of(units: npt.NDArray[Any]) -> int:
    """Count the messages of units, at least one for each."""
    return int(np.maximum(units["messages"], 1).sum())


def _unit(unit: npt.NDArray[Any]) -> str:
    names = "queue_offset", "messages", "physical_offset", "size", "tag_code"
    return "(" + ", ".join(str(unit[name]) for name in names) + ")"


def _entries(queue: StoredQueue | None, queue_offset: int, count: int) -> npt.NDArray[np.uint8]:
    """The common part of entries in files and in databases, a row each; zeros where one is missing."""
    found = np.zeros((count, ENTRY_BYTES), np.uint8)
    at = 0
    while queue is not None and at < count:
        data = queue.read(queue_offset + at, count - at)
        whole = len(data) // queue.entry_bytes * queue.entry_bytes  # a file may be cut within an entry
        rows = np.frombuffer(data, np.uint8, whole).reshape(-1, queue.entry_bytes)[:, :ENTRY_BYTES]
        assert at + len(rows) <= count, "a queue reads no more entries than requested"
        found[at : at + len(rows)] = rows
        at += len(rows) + 1
    return found


def _entry(data: bytes) -> str:
    physical, size, tag = ENTRY.unpack(data)
    return f"({physical}, {size}, {tag})"


def _only(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Count the queue offsets of one range that the other has not."""
    common = max(min(one[1], other[1]) - max(one[0], other[0]), 0)
    return one[1] - one[0] - common


def _index(left: StoreView, right: StoreView, found: list[Difference]) -> None:
    ours, theirs = _index_keys(left), _index_keys(right)
    if ours.shape == theirs.shape and bool((ours == theirs).all()):
        return
    count = min(len(ours), len(theirs))
    rows = np.flatnonzero((ours[:count] != theirs[:count]).any(axis=1))
    assert len(rows) or len(ours) != len(theirs), "otherwise both have the same entries"
    row = int(rows[0]) if len(rows) else count
    text = f"the first has {len(ours)} entries, the second {len(theirs)}; entry {row + 1} differs"
    offset = int((ours if row < len(ours) else theirs)[row][1])
    found.append(Difference("index", BOTH, text, physical_offset=offset))


def _index_keys(view: StoreView) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Hash and physical offset of all entries, across files."""
    files = [index_rows(view, file) for file in view.index.files]
    columns = [np.stack((rows.hashes, rows.offsets), axis=1) for rows in files if rows is not None]
    return np.concatenate([np.empty((0, 2), np.int64), *columns])


def _checkpoint(left: StoreView, right: StoreView, found: list[Difference]) -> None:
    ours, theirs = left.checkpoint, right.checkpoint
    for name in type(ours).__slots__:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            found.append(Difference("checkpoint", BOTH, f"{name}: {mine} against {other}"))


def _config(left: StoreView, right: StoreView, found: list[Difference]) -> None:
    sides = [_configured(view.root / "config") for view in (left, right)]
    for name in sorted({*sides[0], *sides[1]}):
        mine, other = (side.get(name) for side in sides)
        if mine is None or other is None:
            kind = LEFT if other is None else RIGHT
            found.append(Difference("config", kind, "the file", file=name))
            continue
        for path, text in _values(mine, other, ""):
            found.append(Difference("config", BOTH, f"{path}: {text}", file=name))


def _configured(directory: Path) -> dict[str, dict[str, Any] | str]:
    """Content of each configuration file, or of the database in its place, with its journal."""
    found = {path.name: parse_config(path) for path in config_files(directory)}
    for name, part in PARTS.items():
        if name in found or has_database(directory, part):
            state = stored_config(directory, part)
            found[name] = found.get(name, state) if isinstance(state, str) else state
    return found


def _values(mine: object, other: object, path: str) -> Iterator[tuple[str, str]]:
    """The paths where two values differ; versions of the data do not count."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in sorted({*mine, *other}, key=str):
            if key != "dataVersion":
                inner = f"{path}.{key}" if path else str(key)
                yield from _values(mine.get(key), other.get(key), inner)
    elif mine != other:
        yield path, f"{mine!r} against {other!r}"


# --- by content ---


def _logical(left: StoreView, right: StoreView, found: list[Difference]) -> list[QueueSummary]:
    counts: dict[QueueKey, list[int]] = {}
    ours = _digests(left)
    for key, queue_offset, digest in _messages(right):
        known = ours.get(key, {}).pop(queue_offset, None)
        if known == digest:
            continue
        column = 1 if known is None else 2
        kind = RIGHT if known is None else BOTH
        _note(found, counts.setdefault(key, [0, 0, 0]), column, kind, key, queue_offset)
    for key, rest in ours.items():
        for queue_offset in sorted(rest):
            _note(found, counts.setdefault(key, [0, 0, 0]), 0, LEFT, key, queue_offset)
    return [QueueSummary(*key, *numbers) for key, numbers in sorted(counts.items())]


def _note(
    found: list[Difference], numbers: list[int], column: int, kind: str, key: QueueKey, queue_offset: int
) -> None:
    """Count a difference, and name the first of its kind in a queue."""
    if not numbers[column]:
        found.append(Difference("message", kind, "a message", None, *key, queue_offset))
    numbers[column] += 1


def _digests(view: StoreView) -> dict[QueueKey, dict[int, bytes]]:
    found: dict[QueueKey, dict[int, bytes]] = {}
    for key, queue_offset, digest in _messages(view):
        found.setdefault(key, {})[queue_offset] = digest
    return found


def _messages(view: StoreView) -> Iterator[tuple[QueueKey, int, bytes]]:
    """Every message that consumers see, with a digest of the sender's parts."""
    for message in find(view, Selection()):
        if transaction_type(message.sys_flag) in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            given = (
                message.body,
                sorted(message.properties.items()),
                message.flag,
                message.sys_flag,
                message.born_timestamp_ms,
                message.born_host,
                message.reconsume_times,
            )
            digest = hashlib.blake2b(repr(given).encode(), digest_size=16).digest()
            yield (message.topic, message.queue_id), message.queue_offset, digest
