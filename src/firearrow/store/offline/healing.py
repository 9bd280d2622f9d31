"""Right bytes for damaged parts of the log, from a replica of the log.

Logs of a master and its slaves are the same byte by byte. So a replica is asked for the damaged bytes, with some bytes
around them. If these differ, its log is another one and none of its bytes are taken. The answer must be whole records,
side by side, at their own physical offsets, with right checksums, and their places in queues must not belong to other
sound records. Otherwise the log stays as it is: the replica may be damaged there, too.

Nothing is written here. As with the proofs of ``restoring``, a ``Layout`` reads the right bytes in place of the stored
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from firearrow.errors import FirearrowError
from firearrow.message.record import BLANK_BYTES, verify_crc_property
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.store.offline.records import read
from firearrow.store.offline.verdict import Evidence, Verdict
from firearrow.store.offline.view import StoreView
from firearrow.store.reading.entries import entry_at
from firearrow.store.reading.storage import Correction
from firearrow.store.reading.walk import BLANK_MAGIC
from firearrow.store.scan import Columns, scan

AROUND_BYTES: Final = 4096
"""Bytes before and after a damaged stretch that must be the same in both logs."""

_DAMAGED_TOO: Final = "its bytes are damaged, too"


class Replica(NamedTuple):
    """Another broker with the same log.

    ``fetch`` gives a number of bytes of it from a physical offset on, fewer if it ends before; it raises FirearrowError
    or OSError.
    """

    name: str
    fetch: Callable[[int, int], bytes]


class DamagedStretch(NamedTuple):
    """Damaged bytes of the log; where no record of this log follows, any whole records will do."""

    start: int
    end: int
    is_tail: bool = False


class Refused(NamedTuple):
    """A stretch that a replica can't heal."""

    stretch: DamagedStretch
    why: str


class Healed(NamedTuple):
    """The replica's bytes for damaged stretches, and the stretches that it can't heal."""

    corrections: tuple[Correction, ...] = ()
    refused: tuple[Refused, ...] = ()


def damaged(view: StoreView, verdict: Verdict, evidence: Evidence) -> list[DamagedStretch]:
    """The damaged stretches of a log that begin and end with records, in order."""
    found = [(gap.start, gap.end, False) for gap in evidence.log.gaps]
    found += [(gap.start, gap.end, True) for gap in evidence.log.tail]
    for report in evidence.reports:
        found += [(at, at + size, False) for at, size in report.bad_records | report.altered]
    for finding in verdict.findings:
        at = finding.physical_offset
        message = None if at is None else read(view, at)
        if message is not None:  # also for a note: an odd record may be damaged
            at = message.physical_offset
            found.append((at, at + message.store_size, False))
    joined: list[DamagedStretch] = []
    for start, end, is_tail in sorted(found):
        if joined and start < joined[-1].end:
            last = joined.pop()
            start, end, is_tail = last.start, max(end, last.end), is_tail or last.is_tail
        joined.append(DamagedStretch(start, end, is_tail))
    return joined


def healed(view: StoreView, stretches: Sequence[DamagedStretch], log_end: int, replica: Replica) -> Healed:
    """Ask a replica for damaged stretches of a log that ends at ``log_end``."""
    corrections: list[Correction] = []
    refused: list[Refused] = []
    for number, stretch in enumerate(stretches):
        floor = stretches[number - 1].end if number else 0
        assert floor <= stretch.start, "the stretches come in order"
        later = (it.start for it in stretches[number + 1 : number + 2])
        ceiling = stretch.end if stretch.is_tail else max(next(later, log_end), stretch.end)
        try:
            data = _sound(view, stretch, (floor, ceiling), replica)
        except (OSError, FirearrowError) as error:
            refused.append(Refused(stretch, str(error)))
            continue
        assert len(data) <= stretch.end - stretch.start, "only damaged bytes are replaced"
        if data != view.log_bytes(stretch.start, len(data)):
            corrections.append(Correction(stretch.start, data))
    return Healed(tuple(corrections), tuple(refused))


class _Useless(FirearrowError):
    """The bytes of a replica can't be used."""


def _sound(view: StoreView, stretch: DamagedStretch, room: tuple[int, int], replica: Replica) -> bytes:
    """The bytes of a replica for the stretch; raises _Useless with the reason.

    ``room`` is the sound part of the log around it.
    """
    file = view.log.find(stretch.start)
    if file is None or file.end < stretch.end:
        raise _Useless("two files of the log are named as if they had these bytes")
    first = max(stretch.start - AROUND_BYTES, file.base, room[0])
    last = min(stretch.end + AROUND_BYTES, file.end, room[1])
    assert first <= stretch.start < stretch.end <= last, "the stretch is among the requested bytes"
    data = replica.fetch(first, last - first)
    before, behind = stretch.start - first, stretch.end - first
    if data[:before] != view.log_bytes(first, before):
        raise _Useless("its log is another one there")
    if len(data) < last - first and not stretch.is_tail:
        raise _Useless(f"its log ends at {first + len(data)}")
    if data[behind:] != view.log_bytes(stretch.end, last - stretch.end)[: len(data[behind:])]:
        raise _Useless("its log is another one there")
    body = data[before:behind]
    whole = _whole(view, stretch.start, body, file.end)
    if not whole or (whole < len(body) and not stretch.is_tail):
        raise _Useless(_DAMAGED_TOO)
    return body[:whole]


def _whole(view: StoreView, physical_offset: int, data: bytes, file_end: int) -> int:
    """Count the bytes from the begin on that are sound records, and the blank that ends a file."""
    at = 0
    while at < len(data):
        columns = scan(data, at, len(data))
        for row in _sound_rows(view, columns, physical_offset, data):
            at = int(columns.position[row] + columns.size[row])
        if at != columns.end or not len(columns):
            break
    left = len(data) - at
    is_last = left >= BLANK_BYTES and physical_offset + len(data) == file_end
    if is_last and data[at : at + 8] == left.to_bytes(4, "big") + BLANK_MAGIC:
        return len(data)
    return at


def _sound_rows(view: StoreView, columns: Columns, physical_offset: int, data: bytes) -> Iterator[int]:
    """The records before the first one that is not sound."""
    topics = columns.slices(columns.topic_start, columns.topic_size)
    crc_holds = columns.body_crc_holds()
    for row in range(len(columns)):
        at, size = int(columns.position[row]), int(columns.size[row])
        is_there = int(columns.physical_offset[row]) == physical_offset + at
        if not is_there or not crc_holds[row] or not columns.ports_fit[row]:
            return
        if verify_crc_property(data[at : at + size]) is False:
            return
        kind = int(columns.sys_flag[row]) & TRANSACTION_MASK
        place = int(columns.queue_id[row]), int(columns.queue_offset[row])
        topic = topics[row].decode("utf-8", "replace")
        is_queued = kind in (TRANSACTION_NONE, TRANSACTION_COMMIT)
        if is_queued and _is_of_another(view, topic, *place, (physical_offset + at, size)):
            return
        yield row


def _is_of_another(view: StoreView, topic: str, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
    """Tell whether another, sound record has that place in a queue."""
    queue = view.queues.get((topic, queue_id))
    if queue is None or topic in view.batch_topics:
        return False
    entry = entry_at(queue, queue_offset)[:2]
    if entry == place or entry[0] < 0:
        return False
    other = read(view, entry[0])
    told = (topic, queue_id, queue_offset)
    return other is not None and (other.topic, other.queue_id, other.queue_offset) == told


def joined(*several: Iterable[Correction]) -> tuple[Correction, ...]:
    """Corrections of one log, in order."""
    return tuple(sorted(one for some in several for one in some))
