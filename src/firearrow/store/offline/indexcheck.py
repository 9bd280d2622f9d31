"""Verifies the IndexFiles: header, slots and chains of each, their order, and the keys of the log.

The chains of a file follow from the hashes of its entries: each entry's predecessor is the one
before it in the same slot, and the slot holds the last. So all are checked by one stable sort.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from firearrow.store.index import HEADER
from firearrow.store.offline.compare import IndexRows, Key, index_geometry
from firearrow.store.offline.findings import Findings
from firearrow.store.offline.logcheck import FileReport
from firearrow.store.offline.view import StoreFile, StoreView


def check_index(view: StoreView, reports: list[FileReport], findings: Findings) -> None:
    """Verify all IndexFiles of a store."""
    for stray in view.index.strays:
        findings.add("index-stray", "is no IndexFile", file=f"index/{stray.name}")
    rows = [_check_file(view, file, findings) for file in view.index.files]
    opened = [file for file in rows if file is not None]
    _check_order(view, opened, findings)
    if opened:
        _check_keys(view, opened, reports, findings)
    elif any(report.index.key_count for report in reports):
        findings.add("index-behind-log", "there is no index: no key finds anything", file="index")


def _check_file(view: StoreView, file: StoreFile, findings: Findings) -> IndexRows | None:
    name = view.name_of(file.path)
    usual = view.index.file_size_bytes
    if not index_geometry(view, file)[0] or file.size_bytes != usual:
        text = f"the file has {file.size_bytes} bytes, others {usual}"
        if file.size_bytes == usual:
            text = f"{file.size_bytes} bytes are no four entries for each slot"
        findings.add("index-file-size", text, file=name)
        return None
    rows = IndexRows(view, file)
    used = int(np.count_nonzero(rows.slot_heads))
    if not 0 <= rows.count <= rows.capacity:
        text = f"the header counts {rows.count} entries, there is room for {rows.capacity}"
        findings.add("index-header", text, file=name, position=36)
    elif rows.used_slots != used and not view.live:
        text = f"the header counts {rows.used_slots} slots in use, there are {used}"
        findings.add("index-header", text, file=name, position=32)
    if not view.live:
        _check_ends(rows, name, findings)
        _check_chains(rows, name, findings)
    return rows


def _check_ends(rows: IndexRows, name: str, findings: Findings) -> None:
    """Compare the header's offsets with the first and the last entry."""
    if rows.taken <= 1:
        return
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    if (rows.begin_offset, rows.end_offset) != (first, last):
        text = (
            f"the header says that entries belong to records from {rows.begin_offset} to "
            f"{rows.end_offset}, they belong to {first} to {last}"
        )
        findings.add("index-header", text, file=name, position=16)
    if rows.begin_ms > rows.end_ms:
        text = f"the header says that keys begin at {rows.begin_ms} and end at {rows.end_ms}"
        findings.add("index-header", text, file=name, position=0)


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


def _check_order(view: StoreView, files: list[IndexRows], findings: Findings) -> None:
    for file in files:
        if file.taken > 1:
            for number in np.flatnonzero(np.diff(file.offsets) < 0)[:1].tolist():
                text = f"entry {number + 2} belongs to an earlier record than the one before it"
                at = file.entries_at + (number + 2) * 20
                findings.add("index-order", text, file=view.name_of(file.file.path), position=at)
    filled = [file for file in files if file.taken > 1]
    for before, file in pairwise(filled):
        if file.begin_ms < before.end_ms or file.offsets[0] < before.offsets[-1]:
            text = f"its keys are older than the last of {before.file.path.name}"
            findings.add("index-order", text, file=view.name_of(file.file.path), position=0)


def _check_keys(
    view: StoreView, files: list[IndexRows], reports: list[FileReport], findings: Findings
) -> None:
    index = [report.index for report in reports]
    filled = [file for file in files if file.taken > 1]
    outside = sum(part.outside_count for part in index)
    missing = sum(part.missing_count for part in index)
    if outside:
        begin = int(filled[0].offsets[0]) if filled else -1
        end = int(filled[-1].offsets[-1]) if filled else -1
        text = f"{outside} keys of the log's records lie outside of what the index spans"
        if filled:
            text += f": {begin} to {end}"
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
    for key in keys:
        times = 1 + count - len(keys) if key is keys[-1] else 1
        findings.add(
            invariant, f"{text.format(key.physical_offset)} (hash {key.hash})",
            physical_offset=key.physical_offset, times=times,
        )  # fmt: skip
