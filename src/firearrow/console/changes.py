"""Log of changes made through the console: their users, times, values and outcomes, and the undo file of each.

A line of ``changes.jsonl`` is a JSON object. A change has two: one before it begins, which is durable before the first
request goes to a server, and one with its outcome. Undo files are below ``undo``. Only the user of the console may
read the directory: a configuration may have secrets.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.files import for_the_user_alone, sync_directory

KEPT_MAX: Final = 1000
"""Changes that are shown; the file has all of them."""
SECRETS: Final = ("password", "secret", "token")
HIDDEN: Final = "(hidden)"
BODY_CHARACTERS: Final = 200
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"


class LoggedChange(msgspec.Struct, kw_only=True, rename="camel"):
    """A change. ``state`` is ``begun``, ``done`` or ``failed``; ``undo`` is the name of its undo file."""

    id: str
    at: datetime
    user: str
    cluster: str
    operation: str
    values: dict[str, list[str]]
    state: str = BEGUN
    reason: str = ""
    undo: str | None = None


class ChangeLog:
    """Changes of a console, kept in a directory."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._undo: Final = directory / "undo"
        self._undo.mkdir(exist_ok=True, mode=0o700)
        self._path: Final = directory / "changes.jsonl"
        self._clock: Final = clock
        self._kept: dict[str, LoggedChange] = {}
        self.unreadable: int = 0
        """Lines that a killed process has not written to the end."""
        for change in self._read():
            self._keep(change)

    def begin(self, user: str, cluster: str, operation: str, values: Mapping[str, Sequence[str]]) -> LoggedChange:
        """Log the beginning of a change; the line is durable on return."""
        at = datetime.fromtimestamp(self._clock.now_ms() // 1000, UTC)
        shown = {name: [_without_secret(name, text) for text in texts] for name, texts in values.items()}
        change = LoggedChange(
            id=f"{at:%Y%m%dT%H%M%S}-{token_hex(4)}",
            at=at,
            user=user,
            cluster=cluster,
            operation=operation,
            values=shown,
        )
        self._write(change)
        return change

    def done(self, change: LoggedChange) -> None:
        """Log that a change is done."""
        self._end(change, DONE)

    def failed(self, change: LoggedChange, reason: str) -> None:
        """Log that a change has failed, at all or at some servers."""
        self._end(change, FAILED, reason)

    def _end(self, change: LoggedChange, state: str, reason: str = "") -> None:
        change.state, change.reason = state, reason
        change.undo = change.id if self.undo_file(change.id).exists() else None
        self._write(change)

    def undo_file(self, name: str) -> Path:
        """Give the undo file of a change by its id, which is no path."""
        return self._undo / f"{Path(name).name}.json"

    def newest(self) -> Iterator[LoggedChange]:
        """Give the last changes, the newest first."""
        return reversed(self._kept.values())

    def get(self, name: str) -> LoggedChange:
        """Give the change with an id; KeyError without it."""
        return self._kept[name]

    def _keep(self, change: LoggedChange) -> None:
        self._kept[change.id] = change
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def _read(self) -> Iterator[LoggedChange]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for line in deque(file, maxlen=2 * KEPT_MAX):
                try:
                    yield msgspec.json.decode(line, type=LoggedChange)
                except msgspec.DecodeError:
                    self.unreadable += 1

    def _write(self, change: LoggedChange) -> None:
        is_new = not self._path.exists()
        with open(self._path, "ab", opener=for_the_user_alone) as file:
            if file.tell() and not self._ends_with_line():
                file.write(b"\n")
            file.write(msgspec.json.encode(change) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self._path.parent)
        self._keep(change)

    def _ends_with_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _without_secret(name: str, text: str) -> str:
    if any(word in name for word in SECRETS):
        return HIDDEN
    return text if len(text) <= BODY_CHARACTERS else f"{text[:BODY_CHARACTERS]}…"
