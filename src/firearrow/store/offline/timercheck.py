"""Verifies the timer's files: ``config/timercheck``, ``timerwheel`` and ``timerlog``.

Their formats are in ``firearrow.store.timerfiles``.
Source: upstream ``TimerLog``, ``TimerWheel``, ``TimerCheckpoint``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.offline.findings import Findings
from firearrow.store.offline.view import StoreView
from firearrow.store.reading.storage import Directory, StoreFile, list_files
from firearrow.store.scan import Ints
from firearrow.store.timerfiles import BLANK_MAGIC, CHECK, CHECK_BYTES, SLOT, UNIT, WHEEL_SLOTS

_MAGICS: Final = (1, 3, 5, 7)
_BLANK: Final = BLANK_MAGIC.to_bytes(4, "big", signed=True)


def check_timer(view: StoreView, log_end: int, findings: Findings) -> bool:
    """Verify the timer's files against each other and the log; return whether there are any."""
    directory = list_files(view.storage, "timerlog")
    wheel = view.root / "timerwheel"
    if not directory.files and not wheel.exists():
        return False
    positions, due_ms, end = _check_units(view, directory, log_end, findings)
    if not view.live:
        _check_wheel(view, positions, due_ms, directory, findings)
        _check_timercheck(view, end, findings)
    return True


def _check_units(view: StoreView, directory: Directory, log_end: int, findings: Findings) -> tuple[Ints, Ints, int]:
    """Positions of all sound units, when they are due (ms), and the position behind the last."""
    positions: list[Ints] = [np.empty(0, np.int64)]
    due_ms: list[Ints] = [np.empty(0, np.int64)]
    end = directory.files[0].base if directory.files else 0
    files = directory.files
    for before, file in zip([None, *files], files, strict=False):
        name = file.path
        if file.size_bytes != directory.file_size_bytes or file.size_bytes < UNIT.itemsize:
            text = f"the file has {file.size_bytes} bytes, others {directory.file_size_bytes}"
            findings.add("timer-file", text, file=name)
            continue
        if before is not None and before.end != file.base:
            text = f"the file before it ends at {before.end}"
            findings.add("timer-file", text, file=name)
        units = _units(view, file, name, findings)
        places = file.base + np.arange(len(units), dtype=np.int64) * UNIT.itemsize
        _check_links(view, file, units, places, files[0].base, log_end, findings)
        positions.append(places)
        due_ms.append(units["written_ms"].astype(np.int64) + units["delay_ms"])
        if len(units):
            end = int(places[-1]) + UNIT.itemsize
    return np.concatenate(positions), np.concatenate(due_ms), end


def _units(view: StoreView, file: StoreFile, name: str, findings: Findings) -> npt.NDArray[Any]:
    """The units of a file up to its end; what ends them otherwise is a finding."""
    buffer = view.maps.of(file)
    units: npt.NDArray[Any] = np.frombuffer(buffer, UNIT, len(buffer) // UNIT.itemsize)
    sound = (units["size"] == UNIT.itemsize) & np.isin(units["magic"], _MAGICS)
    count = len(units) if sound.all() else int(np.argmin(sound))
    at = count * UNIT.itemsize
    head = bytes(buffer[at : at + 16])
    blank = head[12:16] == _BLANK and int.from_bytes(head[:4], "big") == len(buffer) - at
    if head.strip(b"\0") and not blank and not view.live:
        text = "the bytes there are no unit, and those behind are not read"
        findings.add("timer-unit", text, file=name, position=at)
    return units[:count]


def _check_links(
    view: StoreView,
    file: StoreFile,
    units: npt.NDArray[Any],
    places: Ints,
    start: int,
    log_end: int,
    findings: Findings,
) -> None:
    name = file.path
    offsets = units["physical_offset"].astype(np.int64)
    if not view.live:
        for number in np.flatnonzero((offsets < 0) | (offsets >= log_end)).tolist():
            text = f"its record is said to be at {offsets[number]}, the log ends at {log_end}"
            position = int(places[number]) - file.base
            findings.add("timer-unit", text, file=name, position=position)
    previous = units["previous"].astype(np.int64)
    odd = (previous != -1) & ((previous >= places) | (previous < 0))
    within = (previous >= start) & ~odd
    odd |= within & (previous % file.size_bytes % UNIT.itemsize != 0)
    for number in np.flatnonzero(odd).tolist():
        text = f"the unit before it is said to be at {previous[number]}"
        findings.add("timer-chain", text, file=name, position=int(places[number]) - file.base)


def _check_wheel(view: StoreView, positions: Ints, due_ms: Ints, directory: Directory, findings: Findings) -> None:
    path = view.root / "timerwheel"
    try:
        size = path.stat().st_size
    except OSError:
        findings.add("timer-wheel-size", "there is no wheel", file="timerwheel")
        return
    if size != WHEEL_SLOTS * SLOT.itemsize:
        text = f"has {size} bytes, not {WHEEL_SLOTS * SLOT.itemsize}"
        findings.add("timer-wheel-size", text, file="timerwheel")
        return
    wheel: npt.NDArray[Any] = np.frombuffer(view.maps.of(StoreFile("timerwheel", 0, size)), SLOT)
    used = np.flatnonzero(wheel["time"])  # nearly all of a million slots are blank
    slots = wheel[used]
    of_units = (slots["time"] > 0) & (slots["last"] >= 0) & (slots["number"] > 0)
    used, slots = used[of_units], slots[of_units]
    start = directory.files[0].base if directory.files else 0
    last = slots["last"].astype(np.int64)
    first = slots["first"].astype(np.int64)
    row = positions.searchsorted(last)
    row_in = np.minimum(row, max(len(positions) - 1, 0))
    there = np.zeros(len(used), np.bool_)
    if len(positions):
        same_second = due_ms[row_in] // 1000 == slots["time"].astype(np.int64)
        there = (positions[row_in] == last) & same_second
    there |= last < start  # units of that time were deleted
    for number in np.flatnonzero(~there | (first > last)).tolist():
        text = f"its last unit is said to be at {last[number]}, where none of its second is"
        position = int(used[number]) * SLOT.itemsize
        findings.add("timer-wheel-slot", text, file="timerwheel", position=position)


def _check_timercheck(view: StoreView, end: int, findings: Findings) -> None:
    path = view.root / "config" / "timercheck"
    try:
        data = path.read_bytes()
    except OSError:
        findings.add("timer-check", "there is no timercheck", file="config/timercheck")
        return
    if len(data) != CHECK_BYTES:
        text = f"has {len(data)} bytes, not {CHECK_BYTES}"
        findings.add("timer-check", text, file="config/timercheck")
        return
    read_ms, flushed, queue_offset, *_ = CHECK.unpack_from(data)
    if min(read_ms, flushed, queue_offset) < 0 or flushed > end:
        text = f"says that the timer log is on the disk up to {flushed}, it ends at {end}"
        findings.add("timer-check", text, file="config/timercheck", position=8)
