"""Journals: the changes of a state since its JSON file was written, in files beside it.

Writing ``topics.json`` for each of ten thousand new topics takes longer and longer. So a change is a line at the end of
``topics.json.journal.1``, and the JSON file follows later. Just before that, the next change begins a new journal, with
the next number. Once the JSON file is durable, the earlier journals are removed. A broker that was stopped cleanly
leaves none, and RocketMQ does not look at them.

====== ==== ========================================================
offset size field
====== ==== ========================================================
0      8    CRC-32 of the text behind the space, hexadecimal
8      1    a space
9      n    a change, JSON without newlines
9 + n  1    a newline
====== ==== ========================================================

A change has the data version that it comes ``after``. Under ``new`` it has the next data version and all new values; of
a table only the entries that have changed. Under ``gone`` it has, by table, the deleted entries. A line counts only if
it comes after the data version that was read until now. So lines whose changes the JSON file already contains are
skipped. All lines are skipped if another program has written that file since. Worked example::

    1cb88a52 {"after":{"counter":1},"new":{"dataVersion":{"counter":2},"t":{"a":7}},"gone":{}}
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from firearrow.errors import MessageError
from firearrow.files import FILE_MODE, StoredPath, is_thrown_away, make_directory, sync_directory
from firearrow.logs import Log
from firearrow.wire import fastjson

log: Final = Log(__name__)

Content = dict[str, Any]
NOTHING: Final[dict[str, Any]] = {}
VERSION: Final = "dataVersion"
_CRC_CHARACTERS: Final = 8
_encode: Final = msgspec.json.Encoder().encode  # a fifth of the time that ``fastjson`` takes


class Change(NamedTuple):
    """Change of a state since the data version ``after``."""

    after: Any
    new: Mapping[str, Any]
    gone: Mapping[str, Collection[str]] = NOTHING


class Journal:
    """Changes of the state in one JSON file, at ``path``.

    `sync` may be called in any thread, `drop` in the thread that has written the JSON file, one at a time. All other
    methods belong to one thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._file: int | None = None
        self._end = 0
        self._paths: list[Path] = []  # with changes that the JSON file lacks
        self._covered: list[Path] = []  # with changes that the JSON file in progress has
        self._unnamed = False
        self._pending = b""

    def resume(self) -> None:
        """Go on after the existing files, which are removed together with the new ones."""
        self._paths += [self._path.with_name(file.name) for file in _files_of(self._path)]
        assert self._file is None, "resume comes before the first change"
        if self._paths:
            self._number = int(self._paths[-1].suffix[1:])

    def append(self, change: Change, *, must: bool = True) -> None:
        """Append a change; on return it outlives the process.

        Raises OSError when the disk fails. Without ``must``, the next append writes the change in that case.
        """
        fields = {"after": change.after, "new": change.new, "gone": change.gone}
        try:
            text = _encode(fields)
        except TypeError:  # a field unknown to this release has objects as keys
            text = fastjson.dumps(fields)
        assert b"\n" not in text, "a change is one line"
        lines = b"%s%08x %s\n" % (self._pending, crc32(text), text)
        try:
            self._write(lines)
        except OSError as error:
            if must:
                raise
            log.error("file can't be written: the write is retried", extra={"path": self._path, "error": error})
            self._pending = lines
        else:
            self._pending = b""

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            self._number += 1
            path = self._path.with_name(f"{self._path.name}.journal.{self._number}")
            make_directory(path.parent)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            self._paths.append(path)
            self._end = 0
            self._unnamed = True
        written = 0
        while written < len(lines):  # if the disk refuses the rest, the next line overwrites this one
            written += os.pwrite(self._file, lines[written:], self._end + written)
        self._end += written

    def sync(self) -> None:
        """Return once all changes appended before the call are durable; OSError if the disk fails."""
        # The list is taken before the first sync: a file made meanwhile is for the next call.
        paths, unnamed, self._unnamed = (*self._covered, *self._paths), self._unnamed, False
        try:
            for path in paths:
                _sync(path)
            if unnamed:
                sync_directory(self._path.parent)
        except OSError:
            self._unnamed = self._unnamed or unnamed
            raise

    def cut(self) -> None:
        """Begin a new file: the present state will be written now."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._covered += self._paths
        self._paths = []
        self._pending = b""

    def drop(self) -> None:
        """Remove the journals whose changes are in the JSON file, which is durable now.

        If power fails before the removal is durable, the journals come back and are skipped: their lines don't follow
        the JSON file.
        """
        for path in self._covered:
            path.unlink(missing_ok=True)
        self._covered = []


# --- reading ---


def changes_beside(path: StoredPath) -> list[Content]:
    """Changes in all journals of a JSON file.

    Beside a running broker, read them before the JSON file: it may then be newer than the journals, but lacks none of
    their changes.
    """
    changes: list[Content] = []
    for file in _files_of(path):
        try:
            changes += _changes_of(file.read_bytes())
        except FileNotFoundError:  # the JSON file has its changes meanwhile
            continue
    return changes


def _files_of(path: StoredPath) -> list[StoredPath]:
    """Journals of a JSON file, in order."""
    prefix = f"{path.name}.journal."
    found = {file.name.removeprefix(prefix): file for file in path.parent.glob(f"{prefix}*")}
    return [found[number] for number in sorted(filter(str.isdecimal, found), key=int)]


def _changes_of(data: bytes) -> Iterator[Content]:
    """Sound lines of a file, up to the first that is not: a crash may leave a part of a line."""
    for line in data.splitlines():
        stated, text = line[:_CRC_CHARACTERS], line[_CRC_CHARACTERS + 1 :]
        if stated != b"%08x" % crc32(text):
            return
        try:
            yield fastjson.loads(text)
        except MessageError:
            return


def bring_up_to_date(
    path: StoredPath, content: Content, changes: Sequence[Content], tables: Collection[str], *, current: bool = True
) -> bool:
    """Apply the changes that the content of a JSON file lacks; return True if there were any.

    ``tables`` are the fields with entries. Content that is not ``current`` is an earlier one, in place of an unreadable
    file. Changes between it and the journal may be lost: then the changes of the journal count nevertheless.
    """
    made = 0
    for change in changes:
        version, then = content.get(VERSION), change["new"].get(VERSION)
        if not content or change["after"] == version or (not current and _numbers(then) > _numbers(version)):
            _make(content, change, tables)
            made += 1
    last = changes[-1]["new"].get(VERSION) if changes else None
    if made:
        log.info("changes are taken from the journal", extra={"path": path, "count": made})
    elif _numbers(last) > _numbers(content.get(VERSION)):
        log.warning(
            "another program has written the file since the end of its journal, whose changes do not count",
            extra={"path": path},
        )
    return bool(made)


def _make(content: Content, change: Content, tables: Collection[str]) -> None:
    for field, value in change["new"].items():
        if field in tables:
            content.setdefault(field, {}).update(value)
        else:
            content[field] = value
    for table, keys in change["gone"].items():
        for key in keys:
            content.get(table, {}).pop(key, None)


def _numbers(version: Any) -> tuple[int, ...]:
    """Numbers that distinguish data versions, the counter first."""
    named = version or {}
    return tuple(named.get(name) or 0 for name in ("counter", "timestamp", "stateVersion"))


def _sync(path: Path) -> None:
    if is_thrown_away(path):
        return
    # By a separate descriptor: `cut`, in another thread, closes the one for writing.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # the JSON file is durable meanwhile, with all changes
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
