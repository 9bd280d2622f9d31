"""Verify the IndexFiles: header, slots and chains of each, their order, and the keys of the log.

The chains of a file follow from the hashes of its entries: each entry's predecessor is the previous entry of the same
slot, and the slot holds the last. This holds if every predecessor is an earlier entry of the slot, none is the
predecessor of two, and the number of entries without one equals the number of slots in use. One pass over the entries
checks that. The entries are sorted only to name a fault.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from firearrow.store.index import HEADER
from firearrow.store.offline.compare import Key, index_rows
from firearrow.store.offline.findings import Finding, Findings
from firearrow.store.offline.logcheck import FileReport
from firearrow.store.offline.view import StoreView
from firearrow.store.reading.index import IndexRows
from firearrow.store.reading.storage import StoreFile

_STEP: Final = 1 << 20  # entries that are checked together: some 50 MB


class IndexLook(NamedTuple):
    """Result for one IndexFile alone: its findings, and the begin and end of its entries.

    ``opened`` says that its size is right, ``taken`` is the number of its entries, the unused one included.
    """

    name: str
    findings: list[Finding]
    opened: bool = False
    taken: int = 0
    times_ms: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (-1, -1)


def check_index(view: StoreView, looks: list[IndexLook], reports: list[FileReport], findings: Findings) -> None:
    """Verify the IndexFiles of a store together; ``looks`` has the results for each, in order."""
    for stray in view.index.strays:
        findings.add("index-stray", "is no IndexFile", file=stray)
    for look in looks:
        findings.extend(look.findings)
    opened = [look for look in looks if look.opened]
    _check_order(opened, findings)
    if opened:
        _check_keys(view, opened, reports, findings)
    elif any(report.index.key_count for report in reports):
        findings.add("index-behind-log", "there is no index: no key finds anything", file="index")


def look_at_index(view: StoreView, name: str) -> IndexLook:
    """Verify one IndexFile alone."""
    file = next((file for file in view.index.files if file.name == name), None)
    found = Findings()
    rows = None if file is None else _check_file(view, file, found)
    shown = f"index/{name}"
    if rows is None:
        return IndexLook(shown, found.all())
    if rows.taken <= 1:
        return IndexLook(shown, found.all(), opened=True, taken=rows.taken)
    times_ms = rows.begin_ms, rows.end_ms
    return IndexLook(shown, found.all(), True, rows.taken, times_ms, rows.span)


def _check_file(view: StoreView, file: StoreFile, findings: Findings) -> IndexRows | None:
    name = file.path
    usual = view.index.file_size_bytes
    rows = index_rows(view, file)
    if rows is None or file.size_bytes != usual:
        text = f"the file has {file.size_bytes} bytes, others {usual}"
        if file.size_bytes == usual:
            text = f"{file.size_bytes} bytes are no four entries for each slot"
        findings.add("index-file-size", text, file=name)
        return None
    used = int(np.count_nonzero(rows.slot_heads))
    if not 0 <= rows.count <= rows.capacity:
        text = f"the header counts {rows.count} entries, there is room for {rows.capacity}"
        findings.add("index-header", text, file=name, position=36)
    elif rows.used_slots != used and not view.live:
        text = f"the header counts {rows.used_slots} slots in use, there are {used}"
        findings.add("index-header", text, file=name, position=32)
    if not view.live:
        _check_ends(rows, name, findings)
        if not _chains_hold(rows):
            _check_chains(rows, name, findings)
    if rows.taken > 1:
        offsets = rows.rows["physical_offset"]
        for number in np.flatnonzero(offsets[1:] < offsets[:-1])[:1].tolist():
            text = f"entry {number + 2} belongs to an earlier record than the one before it"
            at = rows.entries_at + (number + 2) * 20
            findings.add("index-order", text, file=name, position=at)
    return rows


def _check_ends(rows: IndexRows, name: str, findings: Findings) -> None:
    """Compare the header's offsets with the first and the last entry."""
    if rows.taken <= 1:
        return
    first, last = rows.span
    if (rows.begin_offset, rows.end_offset) != (first, last):
        text = (
            f"the header says that entries belong to records from {rows.begin_offset} to "
            f"{rows.end_offset}, they belong to {first} to {last}"
        )
        findings.add("index-header", text, file=name, position=16)
    if rows.begin_ms > rows.end_ms:
        text = f"the header says that keys begin at {rows.begin_ms} and end at {rows.end_ms}"
        findings.add("index-header", text, file=name, position=0)


def _chains_hold(rows: IndexRows) -> bool:
    """Tell whether all chains follow from the hashes."""
    slot_of = np.zeros(rows.taken, np.int32)
    is_before = np.zeros(rows.taken, np.bool_)
    newest = np.zeros(rows.slots, np.int32)
    chains = 0
    for start in range(1, rows.taken, _STEP):
        entries = rows.rows[start - 1 : start - 1 + _STEP]
        numbers = np.arange(start, start + len(entries), dtype=np.int32)
        previous = entries["previous"].astype(np.int32)
        if (previous < 0).any() or (previous >= numbers).any():
            return False
        slots = slot_of[numbers] = entries["hash"].astype(np.int32) % rows.slots
        newest[slots] = numbers
        known = previous[previous > 0]
        if (slot_of[known] != slots[previous > 0]).any():
            return False
        is_before[known] = True
        chains += len(numbers) - len(known)
    links = max(rows.taken - 1, 0) - chains
    assert links >= 0, "each chain has an entry"
    return (
        int(np.count_nonzero(is_before)) == links
        and int(np.count_nonzero(newest)) == chains
        and bool((newest == rows.slot_heads).all())
    )


def _check_chains(rows: IndexRows, name: str, findings: Findings) -> None:
    count = rows.taken - 1
    slots = rows.hashes % rows.slots
    order = slots.argsort(kind="stable")
    expected = np.zeros(count, np.int64)
    if count > 1:
        same = slots[order[1:]] == slots[order[:-1]]
        expected[order[1:]] = np.where(same, order[:-1] + 1, 0)
    previous = rows.rows["previous"].astype(np.int64)
    heads = np.zeros(rows.slots, np.int64)
    heads[slots[order]] = order + 1
    for number in np.flatnonzero(previous != expected).tolist():
        text = f"entry {number + 1} leads to {previous[number]}, before it is {expected[number]}"
        at = rows.entries_at + (number + 1) * 20 + 16
        findings.add("index-chain", text, file=name, position=at)
    for slot in np.flatnonzero(rows.slot_heads != heads).tolist():
        text = f"slot {slot} holds {int(rows.slot_heads[slot])}, its newest entry is {heads[slot]}"
        findings.add("index-chain", text, file=name, position=HEADER.size + 4 * slot)


def _check_order(looks: list[IndexLook], findings: Findings) -> None:
    for before, look in pairwise(look for look in looks if look.taken > 1):
        if look.times_ms[0] < before.times_ms[1] or look.offsets[0] < before.offsets[1]:
            text = f"its keys are older than the last of {before.name.removeprefix('index/')}"
            findings.add("index-order", text, file=look.name, position=0)


def _check_keys(view: StoreView, looks: list[IndexLook], reports: list[FileReport], findings: Findings) -> None:
    index = [report.index for report in reports]
    filled = [look for look in looks if look.taken > 1]
    outside = sum(part.outside_count for part in index)
    missing = sum(part.missing_count for part in index)
    if outside:
        text = f"{outside} keys of the log's records are outside of the index's span"
        if filled:
            text += f": {filled[0].offsets[0]} to {filled[-1].offsets[1]}"
        kind = "index-behind-log" if not view.clean or view.live else "index-key-missing"
        findings.add(kind, text, times=outside)
    _list_keys(
        "index-key-missing", "a key of the record at {} is in no IndexFile",
        [key for part in index for key in part.missing], missing, findings,
    )  # fmt: skip
    _list_keys(
        "index-entry", "an entry for the record at {} has the hash of none of its keys",
        [key for part in index for key in part.foreign],
        sum(part.foreign_count for part in index), findings,
    )  # fmt: skip
    _list_keys(
        "index-entry-time", "an entry for the record at {} has another time than the record",
        [key for part in index for key in part.late],
        sum(part.late_count for part in index), findings,
    )  # fmt: skip


def _list_keys(invariant: str, text: str, keys: list[Key], count: int, findings: Findings) -> None:
    assert count >= len(keys), "listed keys are counted, too"
    for key in keys:
        times = 1 + count - len(keys) if key is keys[-1] else 1
        findings.add(
            invariant, f"{text.format(key.physical_offset)} (hash {key.hash})",
            physical_offset=key.physical_offset, times=times,
        )  # fmt: skip
