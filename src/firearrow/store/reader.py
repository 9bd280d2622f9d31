"""Reading the messages of a queue; ``firearrow.store.lookup`` finds them by time and key.

A pull returns stored records one after another, copied once from the mapped log. Records that are side by side are
copied as one piece. They are not sent from the map itself (`sendfile`, memoryviews). The pending bytes of a slow reader
would keep files that retention deletes, and a damaged record could not be left out. Damaged copies are left out
(``recordchecks``): the pull goes on after them.

Source: RocketMQ's ``DefaultMessageStore#getMessage``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from firearrow.message.record import RECORD_BYTES_MIN, SYS_FLAG_AT
from firearrow.store.batchqueue import UNIT_BYTES, BatchUnit, FileBatchQueue
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import StoreConfig
from firearrow.store.consumequeue import FileConsumeQueue
from firearrow.store.extension import ADDRESS_MAX, tag_code_behind
from firearrow.store.propertylooks import ChosenEntries, Looks, PropertyFilter, is_wanted
from firearrow.store.queues import ENTRY, ENTRY_BYTES, ConsumeQueue, ConsumeQueues
from firearrow.store.recordchecks import (
    AHEAD_BYTES,
    AHEAD_ENTRIES,
    PLAIN_MIN,
    Checked,
    Damaged,
    Fault,
    Places,
    are_plain,
    faults_of,
    plain_ahead,
)
from firearrow.store.residency import Fetch, FileRange, Resident, is_resident

_STORE_MS_AT: Final = 56
_PLACE_AT: Final = 28
_GONE_FILES_MAX: Final = 16  # limit of log files, just removed, after which a pull goes on
_COUNT_MAX: Final = 1024  # above every limit of one pull; clients may ask for any number
_CHECKED_MAX: Final = 4096  # limit of queues whose sound records are remembered

_NEEDED_BYTES: Final = AHEAD_BYTES + 256 * 1024  # a check begins among the records of a pull
FETCH_BYTES: Final = 2 * AHEAD_BYTES
"""Bytes that are fetched from the disk together: a consumer that catches up soon wants all of them."""
FETCH_BYTES_MAX: Final = 8 * FETCH_BYTES  # for one pull, whose records may be far apart
_OWN_BYTES_MAX: Final = 256 << 20
_OWN_MEMORY_SHARE: Final = 16
"""Divisor of the machine's memory: recent writes of that size are surely still in memory."""


class GetStatus(Enum):
    """Result of a pull (RocketMQ's ``GetMessageStatus``)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class GetResult(msgspec.Struct, frozen=True, gc=False):
    """``records`` are stored records of ``count`` messages; ``next_offset`` is the offset of the next pull."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


Wanted = frozenset[int] | PropertyFilter | None
"""The messages that a pull is for: of some tag codes, chosen by a filter, or all."""


class PullReader:
    """Answers pulls."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        config: StoreConfig,
        memory_bytes: int,
        damaged: Damaged,
        monotonic: Callable[[], float],
    ) -> None:
        self._log = commit_log
        self._damaged = damaged
        self._check_crc = config.check_crc_on_read
        share = memory_bytes // _OWN_MEMORY_SHARE
        self._own_bytes = 0 if config.check_crc_on_read else min(share, _OWN_BYTES_MAX)
        self._looks = Looks(commit_log.segments)
        self._resident = Resident(monotonic)
        self._queues = queues
        self._recent_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        self._recent_limits = (
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
        )
        self._old_limits = (config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk)
        self._checked: dict[ConsumeQueue, Checked] = {}
        self._filter_bytes = config.max_filter_message_size
        self._filter_entries = config.max_filter_message_size // ENTRY_BYTES

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        wanted: Wanted = None,
        only_resident: bool = False,
    ) -> GetResult:
        """Up to ``count_max`` wanted messages from a queue offset on.

        With ``only_resident`` raises `Fetch` if they are not in memory.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        status = _status_of(queue_offset, lowest, highest)
        if status is not GetStatus.FOUND:
            corrected = _corrected(status, queue_offset, lowest, highest)
            return GetResult(status, corrected, lowest, highest)
        result = self._read(queue, queue_offset, count_max, wanted, lowest, only_resident)
        tries = _GONE_FILES_MAX
        while result.status is GetStatus.MESSAGE_WAS_REMOVING and result.next_offset < highest:
            if not tries:
                break
            tries -= 1
            result = self._read(queue, result.next_offset, count_max, wanted, lowest, False)
        return result

    def _read(
        self, queue: ConsumeQueue, queue_offset: int, count_max: int, wanted: Wanted, lowest: int, only_resident: bool
    ) -> GetResult:
        """Messages from an offset on that the queue has; ``lowest`` is its first."""
        count_max = max(1, min(count_max, _COUNT_MAX))
        if isinstance(queue, FileBatchQueue):
            return self._read_batches(queue, queue_offset, count_max, wanted)
        tag_codes = wanted if isinstance(wanted, frozenset) else None
        chosen = None if isinstance(wanted, frozenset) else wanted
        found = None
        if chosen is not None:
            found = self._looks.known(queue, queue_offset, chosen, self._counts(count_max))
            if found is not None and self._may_go_out(queue, queue_offset, found):
                return _result_of(queue, lowest, found)
        numbers: Sequence[int]
        if found is None:
            entry_nums = count_max if wanted is None else max(self._filter_entries, count_max)
            entries = queue.read(queue_offset, entry_nums)
            if not entries:
                following = queue.gap_end(queue_offset)
                return GetResult(GetStatus.OFFSET_FOUND_NULL, following, lowest, queue.max_offset)
            following = queue_offset + len(entries) // ENTRY_BYTES
            numbers = range(queue_offset, following)
        else:
            numbers, entries, following, _ = found
        is_sound = int.from_bytes(entries[:8], "big") >= self._own_from()
        if only_resident and not is_sound:
            most = min(count_max, self._recent_limits[0]) if chosen is None else len(numbers)
            is_sound = self._check_resident(queue, numbers, entries, tag_codes, most)
        if chosen is not None and found is None:
            found = self._looks.wanted_entries(queue, entries, queue_offset, chosen, self._counts(count_max))
            if self._may_go_out(queue, queue_offset, found):
                return _result_of(queue, lowest, found)
            numbers, entries, following, _ = found
        if tag_codes is None and entries:
            result = self._collect_all(queue, numbers, entries, following, lowest, is_sound)
            if result is not None:
                return result
        numbered = zip(numbers, ENTRY.iter_unpack(entries), strict=True)
        return self._collect(queue, numbered, following, count_max, tag_codes)

    def _may_go_out(self, queue: ConsumeQueue, queue_offset: int, found: ChosenEntries) -> bool:
        """Tell whether a look has copied the records, and they are known to be sound and few enough."""
        records, first = found.records, found.entries[:8]
        if not records or records[_PLACE_AT : _PLACE_AT + 8] != first:
            return False
        if len(records) > min(self._recent_limits[1], self._old_limits[1]):
            return False
        if int.from_bytes(first, "big") >= self._own_from():
            return True
        checked = self._checked.get(queue)
        return checked is not None and checked.has(queue_offset, found.following)

    def _counts(self, count_max: int) -> Callable[[int], int]:
        """Function that returns the largest number of messages of a pull whose last message is at a physical offset."""
        recent_from = self._recent_from()
        recent, old = min(count_max, self._recent_limits[0]), min(count_max, self._old_limits[0])
        return lambda physical: recent if physical >= recent_from else old

    def _collect_all(
        self, queue: ConsumeQueue, numbers: Sequence[int], entries: bytes, following: int, lowest: int, is_sound: bool
    ) -> GetResult | None:
        """Copy the records of all entries, if they are sound, in one file and within the limits; ``following`` is the
        next offset then. With ``is_sound`` they are not checked: this process wrote them, or they were checked.
        """
        queue_offset, first = numbers[0], int.from_bytes(entries[:8], "big")
        recent_from = self._recent_from()
        recent = first >= recent_from
        sound = is_sound or self._are_checked(queue, queue_offset, numbers[-1] + 1)
        most, most_bytes = self._recent_limits if recent else self._old_limits
        behind = entries[most * ENTRY_BYTES : most * ENTRY_BYTES + 8]
        if not recent and int.from_bytes(behind, "big") >= recent_from:
            return None  # after that offset more may be taken
        if most < len(numbers):
            following = numbers[most]
            numbers, entries = numbers[:most], entries[: most * ENTRY_BYTES]
        count = len(numbers)
        fields = _struct_of(count).unpack(entries)
        positions, sizes = fields[0::3], fields[1::3]
        start, end, total = positions[0], positions[-1] + sizes[-1], sum(sizes)
        segment = self._log.segments.find(start)
        if segment is None or end > segment.end or total > most_bytes:
            return None
        if min(sizes) < RECORD_BYTES_MIN:
            return None
        mapped, base = segment.map, segment.base
        if end - start == total:  # side by side
            records = mapped[start - base : end - base]
        else:
            records = b"".join(
                [mapped[(at := position - base) : at + size] for position, size in zip(positions, sizes, strict=True)]
            )
        if len(records) != total:
            return None
        if not sound or records[_PLACE_AT : _PLACE_AT + 8] != entries[:8]:
            if numbers[-1] - queue_offset >= count:
                return None  # some between them are not wanted
            if not self._are_plain(records, entries, queue_offset, queue):
                places = Places(positions, sizes, tuple(numbers))
                if faults_of(records, places, queue, check_crc=self._check_crc):
                    return None
            self._found_sound(queue, queue_offset, numbers[-1] + 1)
        return GetResult(GetStatus.FOUND, following, lowest, queue.max_offset, records, count)

    def _check_resident(
        self, queue: ConsumeQueue, numbers: Sequence[int], entries: bytes, codes: frozenset[int] | None, most: int
    ) -> bool:
        """Raise `Fetch` unless the records that a pull will touch, and those that are checked with them, are in memory.
        These are the records of the first ``most`` entries, or of the ones that have tag codes. Tell whether they were
        found sound before.
        """
        checked = self._checked.get(queue)
        is_sound = checked is not None and checked.has(numbers[0], numbers[-1] + 1)
        if self._is_resident_as_a_whole(entries, is_sound):
            return is_sound
        places = [
            (physical, size) for physical, size, code in ENTRY.iter_unpack(entries) if codes is None or code in codes
        ][:most]
        missing: list[FileRange] = []
        covered = 0
        for physical, size in places:
            if physical + size <= covered:
                continue
            segment = self._log.segments.find(physical)
            if segment is None or size <= 0:
                continue
            start = physical - segment.base
            last = min(segment.size_bytes, self._log.end_offset - segment.base)
            end = min(start + _NEEDED_BYTES, last)
            if start < end and not is_resident(segment.map, start, end):
                end = min(start + FETCH_BYTES, last)
                missing.append(FileRange(segment.path, start, end))
            covered = segment.base + end
            if len(missing) * FETCH_BYTES >= FETCH_BYTES_MAX:
                break
        if missing:
            raise Fetch(missing)
        return is_sound

    def _is_resident_as_a_whole(self, entries: bytes, is_sound: bool) -> bool:
        """Tell whether everything from the first to the last record of entries is in memory, if they are near each
        other.

        This avoids a walk over the entries. The walk makes a pull of old messages half as expensive again, and costs a
        pull by a filter, with its hundreds of entries, more than everything else. For sound records the bytes after
        them are not checked, which is a tenth of the pop of a single message.
        """
        first = int.from_bytes(entries[:8], "big")
        last, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
        end_of_last = last + size
        if not first <= last or end_of_last - first > _NEEDED_BYTES:
            return False
        if is_sound:
            end = end_of_last
            if self._resident.knows(first, end):
                return True
        else:
            end = first + _NEEDED_BYTES
        segment = self._log.segments.find(first)
        if segment is None:
            return False
        end = min(end, segment.end, self._log.end_offset)
        return end_of_last <= end and self._resident.has(segment, first, end)

    def _are_plain(self, records: bytes, entries: bytes, queue_offset: int, queue: ConsumeQueue) -> bool:
        """Tell whether many records are sound; False also in doubt."""
        if self._check_crc or len(entries) < PLAIN_MIN * ENTRY_BYTES:
            return False
        return are_plain(records, entries, queue_offset, queue)

    def _are_checked(self, queue: ConsumeQueue, queue_offset: int, following: int) -> bool:
        """Tell whether the records from an offset to before another were found sound, or are now. A check includes the
        following records, which a consumer wants next.
        """
        checked = self._checked.get(queue)
        if checked is None:
            checked = self._checked_of(queue)
        elif checked.has(queue_offset, following):
            return True
        if queue_offset in checked.vain:
            return False
        self._check_ahead(queue, checked, checked.end_of(queue_offset))
        return checked.has(queue_offset, following)

    def _check_ahead(self, queue: ConsumeQueue, checked: Checked, queue_offset: int) -> None:
        # Rows of a database would cost more than the check.
        if self._check_crc or not isinstance(queue, FileConsumeQueue):
            return
        entries = queue.read(queue_offset, AHEAD_ENTRIES)
        segment = self._log.segments.find(int.from_bytes(entries[:8], "big"))
        if segment is None:
            return
        count, sound = plain_ahead(segment.map, segment.base, entries, queue_offset, queue)
        if sound:
            checked.add(queue_offset, queue_offset + count)
        else:
            checked.vain = range(queue_offset, queue_offset + count)

    def _found_sound(self, queue: ConsumeQueue, queue_offset: int, following: int) -> None:
        if not self._check_crc:
            self._checked_of(queue).add(queue_offset, following)

    def _checked_of(self, queue: ConsumeQueue) -> Checked:
        checked = self._checked.get(queue)
        if checked is None:
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            checked = self._checked[queue] = Checked()
        return checked

    def forget_checked(self) -> None:
        """Check records again before they are sent, even those that were checked."""
        self._checked.clear()
        self._looks.forget()

    def _collect(
        self,
        queue: ConsumeQueue,
        numbered: Iterable[tuple[int, tuple[int, int, int]]],
        following: int,
        count_max: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        """Copy the records of matching entries, within the limits of one pull; if no limit ends it, ``following`` is
        the next offset.
        """
        copies: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        total = base = limit = 0
        recent_from = self._recent_from()
        for at, (physical, size, code) in numbered:
            if tag_codes is not None and code not in tag_codes:
                if code > ADDRESS_MAX:
                    continue
                behind = tag_code_behind(queue, self._log, code, physical)
                # A message with an unknown tag may be sent: consumers compare tags themselves.
                if behind is not None and behind not in tag_codes:
                    continue
            most, most_bytes = self._recent_limits if physical >= recent_from else self._old_limits
            if copies and (len(copies) >= min(most, count_max) or total + size > most_bytes):
                following = at
                break
            if not base <= physical < limit:
                segment = self._log.segments.find(physical)
                if segment is None and self._leads_nowhere(queue, at, physical):
                    continue
                if segment is None:
                    if not copies:
                        return self._gone(queue, at, physical)
                    following = at
                    break
                base, limit, mapped = segment.base, segment.end, segment.map
            start = physical - base
            if size < RECORD_BYTES_MIN or physical + size > limit:
                why = f"its entry says that it has {size} bytes"
                self._note(queue, at, physical, Fault(why))
                continue
            copies.append(mapped[start : start + size])
            places.append((physical, size, at))
            total += size
        kept, passed = self._sound(queue, copies, places)
        if passed < len(places):
            following = places[passed][2]
        records = b"".join([copies[number] for number in kept])
        return self._result(queue, following, records, len(kept))

    def _sound(
        self, queue: ConsumeQueue, copies: list[bytes], places: list[tuple[int, int, int]]
    ) -> tuple[Sequence[int], int]:
        """The records that are sent together, and the number of processed records.

        A record that frames but can't be decoded by clients is sent alone.
        """
        everything = range(len(copies))
        if not copies:
            return everything, 0
        first, *_ = places[0]
        queue_offset, following = places[0][2], places[-1][2] + 1
        sound = first >= self._own_from() or self._are_checked(queue, queue_offset, following)
        if sound and first == int.from_bytes(copies[0][_PLACE_AT : _PLACE_AT + 8], "big"):
            return everything, len(copies)
        columns = Places(*zip(*places, strict=True))
        faults = faults_of(b"".join(copies), columns, queue, check_crc=self._check_crc)
        if not faults and following - queue_offset == len(places):
            self._found_sound(queue, queue_offset, following)
        kept: list[int] = []
        for number in everything if faults else ():
            physical, size, queue_offset = places[number]
            fault = faults.get(number)
            if fault is None:
                kept.append(number)
                continue
            self._note(queue, queue_offset, physical, fault, size)
            if fault.frames:
                return (kept, number) if kept else ([number], number + 1)
        return (kept if faults else everything), len(copies)

    def _leads_nowhere(self, queue: ConsumeQueue, queue_offset: int, physical: int) -> bool:
        """Tell whether an entry is damaged, and not the entry of a record which has expired."""
        if 0 <= physical < self._log.end_offset:
            return False
        self._note(queue, queue_offset, physical, Fault("the log ends before it"))
        return True

    def _note(self, queue: ConsumeQueue, queue_offset: int, physical: int, fault: Fault, size: int = 0) -> None:
        place = f"queue {queue.topic}-{queue.queue_id}, queue offset {queue_offset}"
        self._damaged.note(physical, place, fault, size)

    def _result(self, queue: ConsumeQueue, following: int, records: bytes, count: int) -> GetResult:
        lowest, highest = queue.min_offset, queue.max_offset
        status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, following, lowest, highest, records, count)

    def _read_batches(self, queue: FileBatchQueue, queue_offset: int, count_max: int, wanted: Wanted) -> GetResult:
        """Copy records, where the first may begin before the offset: clients unwrap them.

        Limits count messages; the first record is returned whatever its number of messages. The tag code of an inner
        batch is that of the record, which usually has no tag. So a consumer that wants tags gets none of its messages,
        as in RocketMQ.
        """
        copies: list[bytes] = []
        units: list[BatchUnit] = []
        total = messages = 0
        following, recent_from = queue_offset, self._recent_from()
        last = queue_offset + max(-(-self._filter_bytes // UNIT_BYTES), count_max)
        tag_codes = wanted if isinstance(wanted, frozenset) else None
        chosen = None if isinstance(wanted, frozenset) else wanted
        for unit in queue.units_from(queue_offset):
            recent = unit.physical_offset >= recent_from
            most, most_bytes = self._recent_limits if recent else self._old_limits
            full = messages >= most or messages + unit.messages > count_max
            if copies and (full or total + unit.size > most_bytes):
                break
            if following > queue_offset and unit.queue_offset >= last:
                break
            if tag_codes is None or unit.tag_code in tag_codes:
                record = self._record(queue, unit)
                if record is None:
                    if copies:
                        break
                    return self._gone(queue, unit.end - 1, unit.physical_offset)
                if record and (chosen is None or is_wanted(record, chosen)):
                    copies.append(record)
                    units.append(unit)
                    total += unit.size
                    messages += unit.messages
            following = unit.end
        places = [(unit.physical_offset, unit.size, unit.queue_offset) for unit in units]
        kept, passed = self._sound(queue, copies, places)
        if passed < len(units):
            following = units[passed].queue_offset
        records = b"".join([copies[number] for number in kept])
        return self._result(queue, following, records, sum([units[n].messages for n in kept]))

    def _record(self, queue: FileBatchQueue, unit: BatchUnit) -> bytes | None:
        """The record of a unit; None if it has expired, empty if the unit is damaged."""
        physical, size = unit.physical_offset, unit.size
        if self._leads_nowhere(queue, unit.queue_offset, physical):
            return b""
        if size < RECORD_BYTES_MIN:
            why = f"its entry says that it has {size} bytes"
            self._note(queue, unit.queue_offset, physical, Fault(why))
            return b""
        return self._log.record(physical, size)

    def _recent_from(self) -> int:
        """Start of the log's recent part: a pull takes fewer messages from before it.

        Java: DefaultMessageStore#isTheBatchFull checks that for each message.
        """
        return self._log.end_offset - self._recent_bytes

    def _own_from(self) -> int:
        """Physical offset of the first record that is not checked; entries after its entry refer to later ones."""
        return max(self._log.own_from, self._log.end_offset - self._own_bytes)

    def _gone(self, queue: ConsumeQueue, queue_offset: int, physical: int) -> GetResult:
        """Result for an entry whose record was deleted with its file: the next pull goes on after that file."""
        file_bytes = self._log.segments.file_size_bytes
        following = queue.first_at_or_after(physical - physical % file_bytes + file_bytes)
        lowest, highest = queue.min_offset, queue.max_offset
        following = max(following, queue_offset + 1)
        return GetResult(GetStatus.MESSAGE_WAS_REMOVING, following, lowest, highest)

    def store_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Store time of a message in a queue, -1 if it is not there."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        stored_ms = queue.stored_ms(queue_offset)
        if stored_ms is not None:
            return stored_ms
        physical, _, _ = queue.entry(queue_offset)
        head = self._log.record(physical, 76)
        if head is None:
            return -1
        at = _STORE_MS_AT + (12 if head[SYS_FLAG_AT + 3] & 0x10 else 0)
        return int.from_bytes(head[at : at + 8], "big")


def _result_of(queue: ConsumeQueue, lowest: int, found: ChosenEntries) -> GetResult:
    """The result with the records that a look has copied."""
    numbers, _, following, records = found
    highest, count = queue.max_offset, len(numbers)
    return GetResult(GetStatus.FOUND, following, lowest, highest, records, count)


def tag_codes(queue: ConsumeQueue, queue_offset: int, end: int, log: CommitLog) -> set[int]:
    """The tag codes of a queue's entries from an offset to before another; a record's counts once, whatever its number
    of messages.
    """
    if end - queue_offset == 1:
        physical, _, code = queue.entry(queue_offset)
        return {code} if code > ADDRESS_MAX else _behind(queue, log, [(physical, code)])
    if isinstance(queue, FileBatchQueue):
        last = min(queue.number_of(end - 1), queue.numbers.stop - 1)
        numbers = range(queue.number_of(queue_offset), last + 1)
        return {queue.unit(number).tag_code for number in numbers}
    codes: set[int] = set()
    while queue_offset < end and (entries := queue.read(queue_offset, end - queue_offset)):
        some = {code for _, _, code in ENTRY.iter_unpack(entries)}
        if min(some) <= ADDRESS_MAX:
            places = [(physical, code) for physical, _, code in ENTRY.iter_unpack(entries)]
            some = _behind(queue, log, places)
        codes |= some
        queue_offset += len(entries) // ENTRY_BYTES
    return codes


def _behind(queue: ConsumeQueue, log: CommitLog, places: Iterable[tuple[int, int]]) -> set[int]:
    """The tag codes of entries; some entries have an address in place of one."""
    known = (tag_code_behind(queue, log, code, physical) if code <= ADDRESS_MAX else code for physical, code in places)
    return {code for code in known if code is not None}


@lru_cache(maxsize=64)
def _struct_of(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def _status_of(queue_offset: int, lowest: int, highest: int) -> GetStatus:
    if lowest <= queue_offset < highest:
        return GetStatus.FOUND
    if highest == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE
    if queue_offset < lowest:
        return GetStatus.OFFSET_TOO_SMALL
    if queue_offset == highest:
        return GetStatus.OFFSET_OVERFLOW_ONE
    return GetStatus.OFFSET_OVERFLOW_BADLY


def _corrected(status: GetStatus, queue_offset: int, lowest: int, highest: int) -> int:
    """Next offset of a consumer with an impossible offset."""
    if status is GetStatus.OFFSET_TOO_SMALL:
        return lowest
    if status is GetStatus.OFFSET_OVERFLOW_BADLY:
        return highest
    return queue_offset if status is GetStatus.OFFSET_OVERFLOW_ONE else 0
