"""Right bytes of damaged records of the log, where the rest of the store proves them.

A body has its CRC. A record is the sum of its parts and holds its place, and its queue's entry holds its size, topic,
queue and queue offset. So the store holds most fixed fields twice. A field that disagrees with all other sources gets
the one value that agrees with all of them: size, magic, physical offset, the kinds of hosts and of transaction, the
upper halves of ports, the length of body, topic or properties, the topic, queue id and queue offset. A body can't be
proved, nor fields that only the record has (times, flags, the content of properties).

An entry is believed if it is possible: its place in the queue's file is its queue offset. It may also be another
record's entry, in place of a lost message (a stand-in). So a record whose own entry exists is left as it is. Where a
queue's entry is damaged, too, the queue's neighbouring records prove the queue offset of the record between them.

Nothing is written here: ``Layout.corrections`` are the bytes to write, and a view of that layout shows the log as if
they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import product
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.message.names import is_lmq
from firearrow.message.properties import is_utf8
from firearrow.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, topic_field, verify_crc_property
from firearrow.message.sysflag import (
    BORN_HOST_V6,
    HOSTS_V6_MASK,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from firearrow.store.offline.numbering import Lost
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import Gap, walk
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QueueKey, StoredQueue, entry_at
from firearrow.store.reading.storage import Correction, StoreFile
from firearrow.store.reading.walk import RecordRun
from firearrow.store.scan import RECORDS_MAX, Columns, Ints, scan

_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_U16: Final = Struct(">H")
_SIZE_AND_MAGIC: Final = Struct(">ii")
_HOSTS: Final = (0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6_MASK)
_QUEUE_ID_AT: Final = 12
_PLACE_AT: Final = 20  # queue offset and physical offset
_SYS_FLAG_AT: Final = 36
_HEAD_BYTES: Final = 88  # with IPv4 hosts
_Span = tuple[int, int]


def proved(
    view: StoreView, gaps: Iterable[_Span] | None = None, disordered: AbstractSet[QueueKey] = frozenset()
) -> tuple[Correction, ...]:
    """The damaged records that can be proved, with their right bytes.

    ``gaps`` are the stretches of the log without records, if the caller knows them. Otherwise they are looked for, but
    only if a queue's entry does not fit its record. ``disordered`` are the queues that, for all that the caller knows,
    have offsets out of order in the log.
    """
    told = {claim.physical_offset: claim for claim in _suspects(view)}
    for claim in _out_of_order(view, disordered):
        told.setdefault(claim.physical_offset, claim)
    if gaps is None:
        if not told:
            return ()
        gaps = [(piece.physical_offset, piece.physical_end) for piece in walk(view) if isinstance(piece, Gap)]
    gaps = sorted(gaps)
    corrections: list[Correction] = []
    for gap in gaps:
        corrections += _in_gap(view, gap, told)
    for claim in told.values():
        if not any(start <= claim.physical_offset < end for start, end in gaps):
            corrections += _misplaced(view, claim)
    return tuple(sorted(corrections))


def _suspects(view: StoreView) -> Iterator[Lost]:
    """Claims of entries that do not hold for their records."""
    files = view.log.files
    bases = np.array([file.base for file in files], np.int64)
    ends = np.array([file.end for file in files], np.int64)
    for key, queue in view.queues.items() if files else ():
        for numbers, entries in queue.all():
            offsets = entries["physical_offset"].astype(np.int64)
            sizes = entries["size"].astype(np.int64)
            number = np.searchsorted(bases, offsets, side="right") - 1
            in_log = (number >= 0) & (offsets < ends[number]) & (sizes != PRE_BLANK_SIZE)
            there = in_log & (sizes >= RECORD_BYTES_MIN) & (offsets <= ends[number] - sizes)
            for row in np.flatnonzero(in_log & ~there & (offsets | sizes != 0)).tolist():
                yield from _sized_by_record(view, files[number[row]], key, int(numbers[row]), int(offsets[row]))
            for file in np.unique(number[there]).tolist():
                rows = np.flatnonzero(there & (number == file))
                for start in range(0, len(rows), RECORDS_MAX):
                    some = rows[start : start + RECORDS_MAX]
                    yield from _unlike(view, files[file], key, numbers[some], entries[some])


def _sized_by_record(
    view: StoreView, file: StoreFile, key: QueueKey, queue_offset: int, physical_offset: int
) -> Iterator[Lost]:
    """The queue offset of a record, from an entry of its queue with an impossible size.

    The entry leads to the exact begin of that record, so its physical offset is right.
    """
    at = physical_offset - file.base
    columns = scan(view.maps.of(file), at, file.size_bytes, 1)
    if not len(columns) or int(columns.queue_offset[0]) == queue_offset:
        return
    [topic] = columns.slices(columns.topic_start, columns.topic_size)
    if topic == key[0].encode() and int(columns.queue_id[0]) == key[1]:
        yield Lost(physical_offset, int(columns.size[0]), *key, queue_offset)


def _unlike(
    view: StoreView, file: StoreFile, key: QueueKey, numbers: Ints, entries: npt.NDArray[Any]
) -> Iterator[Lost]:
    buffer = view.maps.of(file)
    physical = entries["physical_offset"].astype(np.int64)
    columns = Columns(buffer, physical - file.base, len(buffer))
    good = columns.valid & ((columns.magic == MAGIC_V1) | (columns.magic == MAGIC_V2))
    good &= (columns.size == entries["size"]) & (columns.physical_offset == physical)
    good &= columns.ports_fit
    if _tells_the_place(view, key):
        kind = columns.sys_flag & TRANSACTION_MASK
        good &= (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
        good &= (columns.queue_id == key[1]) & (columns.queue_offset == numbers)
        topic = key[0].encode()
        texts = columns.slices(columns.topic_start, columns.topic_size)
        good &= np.fromiter((text == topic for text in texts), np.bool_, len(texts))
    for row in np.flatnonzero(~good).tolist():
        yield Lost(int(physical[row]), int(entries["size"][row]), *key, int(numbers[row]))


def _tells_the_place(view: StoreView, key: QueueKey) -> bool:
    """Tell whether the records of a queue's entries have the queue's name.

    Records of LMQs have their topic's name, and a queue of batches counts differently.
    """
    return not is_lmq(key[0]) and key[0] not in view.batch_topics


def _out_of_order(view: StoreView, keys: AbstractSet[QueueKey]) -> Iterator[Lost]:
    """Records whose queue offset does not fit between their neighbours'."""
    wanted = {key for key in keys if _tells_the_place(view, key)}
    if not wanted:
        return
    seen: dict[QueueKey, list[Lost]] = {key: [] for key in wanted}
    for piece in walk(view):
        if not isinstance(piece, RecordRun):
            continue
        columns = piece.columns
        topics, topic_number = columns.topics()
        names = [topic.decode("utf-8", "replace") for topic in topics]
        for key in wanted:
            if key[0] not in names:
                continue
            of_topic = topic_number == names.index(key[0])
            for row in np.flatnonzero(of_topic & (columns.queue_id == key[1])).tolist():
                place, size = int(columns.physical_offset[row]), int(columns.size[row])
                latest = seen[key]
                latest.append(Lost(place, size, *key, int(columns.queue_offset[row])))
                if len(latest) == 3:
                    before, at, behind = latest
                    number = before.queue_offset + 1
                    if behind.queue_offset == number + 1 and at.queue_offset != number:
                        yield at._replace(queue_offset=number)
                    del latest[0]


# --- bytes that are no record ---


def _in_gap(view: StoreView, gap: _Span, told: dict[int, Lost]) -> Iterator[Correction]:
    """The records of a gap: where entries lead to, and side by side from the certain begin of a record."""
    at, end = gap
    places = sorted(place for place in told if at <= place < end)
    while at < end:
        data = _restored(view, at, end, told.get(at))
        if data is not None:
            assert at + len(data) <= end, "the record lies in the gap"
            if data != view.log_bytes(at, len(data)):  # equal: the record was being written when the broker ended
                yield Correction(at, data)
            at += len(data)
            continue
        beyond = [place for place in places if place > at]
        if not beyond:
            return
        at = beyond[0]


def _restored(view: StoreView, at: int, end: int, claim: Lost | None) -> bytes | None:
    """The only possible record at a place; None without one."""
    stored = view.log_bytes(at, end - at)
    if claim is not None:
        sizes = [claim.size]
        claim = claim if _tells_the_place(view, (claim.topic, claim.queue_id)) else None
    else:
        stated = int.from_bytes(stored[:4], "big", signed=True)
        sizes = [stated, end - at] if stated != end - at else [stated]
    for size in sizes:
        if not RECORD_BYTES_MIN <= size <= len(stored):
            continue
        found = _candidates(stored[:size], at, claim)
        if len(found) == 1:
            return found.pop()
    return None


def _candidates(stored: bytes, at: int, claim: Lost | None) -> set[bytes]:
    """The consistent records that differ least from the stored bytes."""
    flags = int.from_bytes(stored[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big", signed=True)
    hosts = flags & HOSTS_V6_MASK
    for kinds in ((hosts,), tuple(other for other in _HOSTS if other != hosts)):
        found: set[bytes] = set()
        for magic, kind in product((MAGIC_V1, MAGIC_V2), kinds):
            record = bytearray(stored)
            _SIZE_AND_MAGIC.pack_into(record, 0, len(stored), magic)
            _I64.pack_into(record, _PLACE_AT + 8, at)
            _I32.pack_into(record, _SYS_FLAG_AT, flags & ~HOSTS_V6_MASK | kind)
            _put_ports(record, kind)
            if claim is not None:
                _put_place(record, claim)
            parts = _with_other_parts(record, magic, kind, claim)
            found |= {bytes(one) for one in parts if _agrees(one, claim)}
        if found:
            assert all(len(one) == len(stored) for one in found), "a record keeps its size"
            return found
    return set()


def _put_place(record: bytearray, claim: Lost) -> None:
    """Give a record the queue and queue offset of its entry; then it is for consumers."""
    _I32.pack_into(record, _QUEUE_ID_AT, claim.queue_id)
    _I64.pack_into(record, _PLACE_AT, claim.queue_offset)
    flags = int.from_bytes(record[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big", signed=True)
    if flags & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return
    v6 = (flags & BORN_HOST_V6 != 0) + (flags & STORE_HOST_V6 != 0)
    of_half = any(record[76 + 12 * v6 : 84 + 12 * v6])  # only a commit holds the place of its half
    kind = TRANSACTION_COMMIT if of_half else TRANSACTION_NONE
    _I32.pack_into(record, _SYS_FLAG_AT, flags & ~TRANSACTION_MASK | kind)


def _put_ports(record: bytearray, hosts: int) -> None:
    """Make the upper halves of both ports zero, as they always are."""
    born = 12 * (hosts & BORN_HOST_V6 != 0)
    stored = 12 * (hosts & STORE_HOST_V6 != 0)
    for at in (52 + born, 68 + born + stored):
        record[at : at + 2] = bytes(2)


def _with_other_parts(record: bytearray, magic: int, hosts: int, claim: Lost | None) -> Iterator[bytearray]:
    """A record as it is, and with another length of a part or another topic."""
    yield record
    if claim is None or not any(record[40:64]):  # without times and hosts the record was never written
        return
    text = topic_field(claim.topic)[1]
    if (magic == MAGIC_V2) != (topic_field(claim.topic)[0] == MAGIC_V2):
        return
    start = _HEAD_BYTES + 12 * ((hosts & BORN_HOST_V6 != 0) + (hosts & STORE_HOST_V6 != 0))
    body_size = int.from_bytes(record[start - 4 : start], "big", signed=True)
    topic_at = start + body_size
    rest_at = topic_at + len(text)
    if body_size >= 0 and rest_at + 2 <= len(record):
        yield record[:topic_at] + text + record[rest_at:]
        other = bytearray(record)
        if len(record) - rest_at - 2 <= 0x7FFF:
            _U16.pack_into(other, rest_at, len(record) - rest_at - 2)
            yield other
    at = record.find(text, start)
    while at >= 0:
        other = bytearray(record)
        _I32.pack_into(other, start - 4, at - start)
        yield other
        at = record.find(text, at + 1)


def _agrees(record: bytearray, claim: Lost | None) -> bool:
    """Tell whether a record is consistent: its parts add up, its texts and checksums hold, and it has its entry's
    topic.
    """
    data = bytes(record)
    columns = scan(data, 0, len(data), 1)
    if not len(columns) or columns.end != len(data):
        return False
    [topic] = columns.slices(columns.topic_start, columns.topic_size)
    if not topic or not is_utf8(topic) or not columns.body_crc_holds()[0]:
        return False
    if claim is not None and topic != claim.topic.encode():
        return False
    return verify_crc_property(data) is not False


# --- records with another place than theirs ---


def _misplaced(view: StoreView, claim: Lost) -> Iterator[Correction]:
    """A record that is sound but for its stated place in a queue."""
    stored = view.log_bytes(claim.physical_offset, claim.size)
    if not _tells_the_place(view, (claim.topic, claim.queue_id)):
        return
    columns = scan(stored, 0, len(stored), 1)
    if not len(columns) or columns.end != len(stored):
        return
    if int(columns.physical_offset[0]) != claim.physical_offset or _has_entry(view, claim, columns):
        return
    if _stands_in(view, claim, columns):
        return
    found = _candidates(stored, claim.physical_offset, claim) or _served(stored, columns, claim)
    if len(found) == 1 and stored not in found:
        yield Correction(claim.physical_offset, found.pop())


def _served(stored: bytes, columns: Columns, claim: Lost) -> set[bytes]:
    """A record with an altered body that a broker still finds by its entry, with the entry's place.

    Brokers check topic and queue offset when they read, but dispatch checks the whole place.
    """
    [topic] = columns.slices(columns.topic_start, columns.topic_size)
    if topic != claim.topic.encode() or int(columns.queue_offset[0]) != claim.queue_offset:
        return set()
    record = bytearray(stored)
    _put_place(record, claim)
    return {bytes(record)}


def _stands_in(view: StoreView, claim: Lost, columns: Columns) -> bool:
    """Tell whether the entry may be another message's, or out of order.

    Its neighbours are not on both sides of it then, or it is the entry of a later message whose own is damaged.
    """
    queue = view.queues[claim.topic, claim.queue_id]
    here = claim.physical_offset
    for step in (-1, 1):
        there, size, _ = entry_at(queue, claim.queue_offset + step)
        if not 0 < size < PRE_BLANK_SIZE or view.log.find(there) is None:
            continue  # the neighbour's entry is damaged
        if (there - here) * step <= 0:
            return True
    number = int(columns.queue_offset[0])
    if int(columns.queue_id[0]) != claim.queue_id or number <= claim.queue_offset:
        return False
    return entry_at(queue, number - 1)[0] == here >= entry_at(queue, number)[0]


def _has_entry(view: StoreView, claim: Lost, columns: Columns) -> bool:
    """Tell whether a record states another place where the queue has its entry.

    Then the entry that claims it is a stand-in, or damaged.
    """
    [topic] = columns.slices(columns.topic_start, columns.topic_size)
    key = topic.decode("utf-8", "replace"), int(columns.queue_id[0])
    queue: StoredQueue | None = view.queues.get(key)
    number = int(columns.queue_offset[0])
    if queue is None or number < 0 or (*key, number) == claim[2:]:
        return False
    return entry_at(queue, number)[:2] == (int(columns.physical_offset[0]), int(columns.size[0]))
