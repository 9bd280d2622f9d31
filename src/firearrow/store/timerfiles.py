"""The timer's files: ``config/timercheck``, ``timerwheel`` and ``timerlog``.

A unit of the timer log, 52 bytes, big-endian:

====== ==== =========================================================
offset size field
====== ==== =========================================================
0      4    size, 52
4      8    position of the unit before it in the same slot, -1 first
12     4    bits: 1 always, 2 roll, 4 delete
16     8    time of writing, ms
24     4    ms from then until it is due
28     8    physical offset of the timer record
36     4    its size
40     4    hash of its real topic
44     8    reserved
====== ==== =========================================================

A slot of the wheel, 32 bytes: i64 its second (ms / 1000), i64 first and i64 last position in the timer log, i32 number
of units (minus one for each that deletes), i32 zero. Where a unit does not fit, a file ends with i32 remaining size,
i64 0, i32 0xCBD43194. ``timercheck`` begins with i64 ms of the second that will be delivered next, i64 position of the
end of the durable timer log, i64 queue offset in ``rmq_sys_wheel_timer`` behind the messages on the wheel, i64 the same
for a slave's master, and i64 state version, i64 time in ms and i64 counter of a data version.

Source: RocketMQ's ``TimerLog``, ``TimerWheel``, ``TimerCheckpoint``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

CHECK_BYTES: Final = 4096
CHECK: Final = struct.Struct(">7q")
UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
SLOT: Final = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("number", ">i4"), ("magic", ">i4")])
WHEEL_SLOTS: Final = 7 * 86_400 * 2
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
NORMAL: Final = 1  # bits of a unit
ROLL: Final = 2
DELETE: Final = 4

UNIT_STRUCT: Final = struct.Struct(">iqiqiqiiq")
assert UNIT_STRUCT.size == UNIT.itemsize, "columns and single units have one format"


class OnWheel(NamedTuple):
    """Messages that a stopped timer has not delivered.

    ``messages`` is the number of messages on the wheel, without the recalled ones. ``chains`` are the last positions in
    the timer log of the slots that have them, each with the first position of its slot. ``newest`` is the last position
    of all slots, -1 if none was ever filled. ``queue_offset`` is approximately the end of the messages that were put on
    the wheel.
    """

    messages: int
    chains: list[tuple[int, int]]
    newest: int
    queue_offset: int


class Unit(NamedTuple):
    """A unit of the timer log: the place of its record, and the hash of the message's real topic."""

    physical_offset: int
    topic_hash: int
    deletes: bool


def on_wheel(root: Path) -> OnWheel | None:
    """Read the wheel of a store without a running timer; None if there is no whole wheel."""
    try:
        check = (root / "config" / "timercheck").read_bytes()
        slots: npt.NDArray[Any] = np.memmap(root / "timerwheel", SLOT, "r")
    except (OSError, ValueError):  # ValueError: an empty file, or half a slot
        return None
    if len(check) < CHECK.size:
        return None
    read_ms, _, queue_offset, *_ = CHECK.unpack_from(check)
    used = slots[np.flatnonzero((slots["time"] > 0) & (slots["last"] >= 0))]
    waiting = used[(used["time"] >= read_ms // 1000) & (used["number"] > 0)]
    return OnWheel(
        int(waiting["number"].sum(dtype=np.int64)),
        list(zip(waiting["last"].tolist(), waiting["first"].tolist(), strict=True)),
        int(used["last"].max(initial=-1)),
        queue_offset,
    )


class TimerLog:
    """The timer log of a store, for reads of single units."""

    def __init__(self, root: Path) -> None:
        paths = [path for path in root.glob("timerlog/*") if path.name.isdecimal()]
        self._files = {
            int(path.name): np.memmap(path, np.uint8, "r") for path in paths if path.is_file() and path.stat().st_size
        }
        self._file_bytes = max(map(len, self._files.values()), default=1)

    def unit(self, position: int) -> tuple[Unit, int] | None:
        """The unit at a position, and the position of the one before it in its slot; None where there is no unit."""
        at = position % self._file_bytes
        file = self._files.get(position - at)
        data = b"" if file is None else file[at : at + UNIT_STRUCT.size].tobytes()
        if len(data) < UNIT_STRUCT.size:
            return None
        size, previous, magic, _, _, physical_offset, _, topic_hash, _ = UNIT_STRUCT.unpack(data)
        if size != UNIT_STRUCT.size:
            return None
        return Unit(physical_offset, topic_hash, bool(magic & DELETE)), previous

    def chain(self, last: int, first: int) -> Iterator[Unit]:
        """The units of a slot, the newest first."""
        position, after = last, last + 1
        while first <= position < after and (found := self.unit(position)) is not None:
            yield found[0]
            position, after = found[1], position
