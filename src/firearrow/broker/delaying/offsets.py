"""Progress of each delay level (RocketMQ's ``ScheduleMessageService``).

``config/delayOffset.json`` has by level the queue offset of the next message to be delivered::

    {
        "dataVersion":{"counter":3,"stateVersion":0,"timestamp":1795210212360},
        "offsetTable":{1:44,3:7}
    }

RocketMQ writes this file every ten seconds, whatever is on the disk. So after a kill its broker repeats later
deliveries; and after a loss of power it leaves out messages that count as delivered in the file, but whose deliveries
the log has lost. Here a journal beside the file (``journal``) has each step of deliveries, with the end of the log
behind those that are not flushed yet::

    "deliveredTable":{"1":[46,81920]}

Up to queue offset 46 level 1 is delivered, if the log reaches 81920. The file's own ``offsetTable`` has only deliveries
that are surely on the disk. While there are later ones, the file has the other table, too, which RocketMQ ignores. A
clean stop leaves the file as RocketMQ would.

A slave gets the progress from its master, whose log may be longer. It counts when the slave's log is as long: otherwise
the last deliveries of the master would never be repeated if they were lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from firearrow.broker.state.persistence import StateFile, typed, unknown_fields
from firearrow.broker.state.rows import storage_of
from firearrow.clock import Clock
from firearrow.errors import DiskFull
from firearrow.files import GENERATIONS
from firearrow.journal import Change
from firearrow.state import DELAYS
from firearrow.wire.bodies import DataVersion

FILE_NAME: Final = DELAYS.file_name
STEPS_MAX: Final = 1000
"""Steps of deliveries that count one by one until the log is on the disk; further ones count as one with the last of
them. At 200 steps a second, they last five seconds."""

TOLD_MAX: Final = 100  # answers of a master that wait for the log; further ones replace the last

_DELIVERED: Final = "deliveredTable"
_KNOWN: Final = ("dataVersion", _DELIVERED, "offsetTable")

_Offsets = dict[int, int]


class _MasterProgress(NamedTuple):
    """Progress of a master, and the end of its log then or later."""

    offsets: _Offsets
    version: DataVersion
    log_end: int


class DelayOffsets:
    """Next message of each level. ``table`` may be read directly."""

    def __init__(self, clock: Clock, store_root: Path | None = None, generations: int = GENERATIONS) -> None:
        self.table: _Offsets = {}
        self.data_version: DataVersion = DataVersion(timestamp=clock.now_ms())
        self._clock = clock
        self._flushed: _Offsets = {}  # deliveries that are surely in the log on the disk
        self._steps: deque[tuple[int, _Offsets]] = deque()  # end of the log, and the progress then
        self._told: list[_MasterProgress] = []
        self._ends: dict[int, int] = {}  # by level, end of the log after its last delivery
        self._unknown: dict[str, Any] = {}
        storage = storage_of(store_root, DELAYS, in_database=False, generations=generations)
        self.file: Final = StateFile(storage, self.content)

    def note(self, offsets: Mapping[int, int], log_end: int, flushed_offset: int) -> None:
        """Note the present progress of levels, and the end of the log behind their deliveries.

        ``flushed_offset`` is the end of the log on the disk. If the disk refuses the note, deliveries go on: the next
        note has all of this one.
        """
        self.table.update(offsets)
        self._ends.update(dict.fromkeys(offsets, log_end))
        if len(self._steps) < STEPS_MAX:
            self._steps.append((log_end, dict(offsets)))
        else:
            self._steps[-1][1].update(offsets)
            self._steps[-1] = (log_end, self._steps[-1][1])
        self.settle(flushed_offset)
        version = self.data_version.next_version(self._clock.now_ms())
        try:
            tables = {"offsetTable": self._flushed, _DELIVERED: self._delivered()}
            self.file.keep(Change(self.data_version, {"dataVersion": version, **tables}))
        except DiskFull:  # it was logged, and the next entry must follow on the last one in the journal
            self.file.behind = True
        else:
            self.data_version = version

    def settle(self, flushed_offset: int) -> None:
        """Settle the steps that ended at or before an offset of the log, and the last progress of a master before
        it."""
        while self._told and self._told[0].log_end <= flushed_offset:
            offsets, version, _ = self._told.pop(0)
            if (offsets, version) != (self._flushed, self.data_version):
                self.table, self._flushed = dict(offsets), offsets
                self.data_version = version
                self.file.behind = True
        steps = self._steps
        while steps and steps[0][0] <= flushed_offset:
            self._flushed.update(steps.popleft()[1])
            self.file.behind = True
        if not steps:
            self._ends.clear()

    @property
    def is_settled(self) -> bool:
        """Return whether all deliveries are settled."""
        return not self._steps and not self._told

    def load(self, log_end: int) -> None:
        """Read the file, without deliveries behind the end of the log.

        Raise ConfigError if it can't be read.
        """
        raw = self.file.read()
        if not raw:
            return
        where = f"{FILE_NAME}: "
        self.table = typed(raw.get("offsetTable") or {}, _Offsets, where + "offsetTable")
        delivered = raw.get(_DELIVERED) or {}
        for level, (queue_offset, end) in typed(delivered, dict[int, tuple[int, int]], where + _DELIVERED).items():
            if end <= log_end:
                self.table[level] = max(queue_offset, self.table.get(level, 0))
        self._flushed = dict(self.table)
        self.data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        self._unknown = unknown_fields(raw, _KNOWN)
        self.file.behind = self.file.behind or bool(delivered)

    def settled(self) -> Mapping[str, Any]:
        """Return the settled progress, for slaves (45)."""
        return {"dataVersion": self.data_version, "offsetTable": dict(sorted(self._flushed.items()))}

    def follow(self, offsets: Mapping[int, int], version: DataVersion, log_end: int) -> None:
        """Take a master's progress once this log is flushed up to ``log_end``, the end of the master's; at once where
        it is behind."""
        same_log = [told for told in self._told if told.log_end <= log_end]
        self._told = same_log[: TOLD_MAX - 1]
        self._told.append(_MasterProgress(dict(offsets), version, log_end))
        for level, queue_offset in offsets.items():
            if queue_offset < self.table.get(level, 0):
                self.correct(level, queue_offset)

    def take_back(self, offsets: Mapping[int, int], version: DataVersion) -> None:
        """Take a slave's progress where it is ahead."""
        for level, queue_offset in offsets.items():
            if queue_offset > self.table.get(level, 0):
                self.table[level] = self._flushed[level] = queue_offset
                self.file.behind = True
        if version.is_later_than(self.data_version):
            self.data_version = version
            self.file.behind = True

    def lead(self) -> None:
        """Mark this table as later than that of an absent master, whose progress in a longer log is void now."""
        self._told.clear()
        self.data_version = self.data_version.leading(self._clock.now_ms())
        self.file.behind = True

    def correct(self, level: int, queue_offset: int) -> None:
        """Move a level to another offset: its present one is not in the log."""
        self.table[level] = self._flushed[level] = queue_offset
        self.file.behind = True

    def content(self) -> Mapping[str, Any]:
        """Return the content of the file, which does not change any more."""
        own: dict[str, Any] = {"dataVersion": self.data_version, "offsetTable": dict(sorted(self._flushed.items()))}
        if self._steps:
            own[_DELIVERED] = self._delivered()
        return dict(sorted((own | self._unknown).items()))

    def save(self) -> None:
        """Write the file if it has changed since the last time."""
        self.file.save()

    def close(self) -> None:
        """Close the file; unsaved changes are lost."""
        self.file.close()

    def _delivered(self) -> dict[str, tuple[int, int]]:
        return {str(level): (self.table[level], end) for level, end in sorted(self._ends.items())}
