"""Decides which CommitLog files may be deleted, and gives the reasons against the others.

A file is deleted when three things hold: there is an occasion, it is its turn, and nothing protects it.

- occasion: the hour is one of ``deleteWhen``, a disk is fuller than ``diskMaxUsedSpaceRatio``, or an administrator
  asked for it;
- turn: files are deleted oldest first, and the last one never; a file that stays keeps all later ones;
- protection: its last message is younger than ``fileReservedTime``, unless the disk is fuller than
  ``diskSpaceCleanForciblyRatio``; it is not on the disk or not in the queues yet; or, with ``unconsumedPolicy=keep``, a
  group has yet to consume some of it.

The age of a file comes from the messages. The file system's time would make a copy or a restored backup new again. The
file's last message is not younger than the first of the next file. Clocks may be set: a time in the future is replaced
by that of the next file, and a file is not older than its own first message.

``firearrow.store.cleaner`` carries out these decisions, and `why_not_deleted` reports them for a store, open or not.
Source of the rules: RocketMQ's ``DefaultMessageStore.CleanCommitLogService``,
``MappedFileQueue#deleteExpiredFileByTime``; Java takes the age from the file's modification time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, Protocol

from firearrow.clock import HOUR_MS
from firearrow.message.names import topic_and_group
from firearrow.state import table_of
from firearrow.store.config import StoreConfig, forced_percent, warning_percent
from firearrow.store.scan import scan
from firearrow.store.segments import Segment

_GROUPS_TOLD: Final = 3  # limit of groups in one sentence that still need a file


class CountableQueue(Protocol):
    """A queue whose messages can be counted; see ``ConsumeQueue``."""

    @property
    def max_offset(self) -> int:
        """First queue offset that does not exist yet."""

    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first entry whose record is at or after a physical offset."""


FindQueue = Callable[[str, int], CountableQueue | None]


class Consumed(NamedTuple):
    """Position of a consumer group in a queue: ``queue_offset`` is the first message that it has yet to consume."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int


def committed_offsets(content: Mapping[str, Any]) -> Iterator[Consumed]:
    """Committed offsets of groups, from a file of offsets."""
    lmq = {key: {0: offset} for key, offset in table_of(content, "lmqOffsetTable").items()}
    for key, queues in (table_of(content, "offsetTable") | lmq).items():
        topic, group = topic_and_group(key)
        for queue_id, queue_offset in queues.items() if isinstance(queues, dict) else ():
            yield Consumed(group, topic, int(queue_id), int(queue_offset))


def group_progress(
    committed: Iterable[tuple[str, Mapping[int, int]]],
    is_group: Callable[[str], bool],
    queue_count: Callable[[str], int],
) -> Iterator[Consumed]:
    """Progress of each group in each queue of the topics that it has committed offsets in.

    ``committed`` has the offsets under ``topic@group``. A queue without a committed offset of the group counts as
    unread. The offsets of deleted groups do not count.
    """
    for key, queues in committed:
        topic, group = topic_and_group(key)
        if is_group(group):
            for queue_id in sorted(queues.keys() | range(queue_count(topic))):
                yield Consumed(group, topic, queue_id, queues.get(queue_id, 0))


class Unconsumed(NamedTuple):
    """Number of a queue's messages in some file of the log that a group has yet to consume."""

    group: str
    topic: str
    queue_id: int
    messages: int


class Pressure(IntEnum):
    """Pressure of the fuller disk, by the thresholds of the configuration."""

    NONE = 0
    CLEAN = 1
    """Files whose time is over are deleted at any hour."""
    FORCED = 2
    """The oldest files are deleted whatever their age, unless that is switched off."""
    FULL = 3
    """Sends are refused, too."""


class Obstacle(StrEnum):
    """Reason that keeps a file from being deleted."""

    LAST_FILE = "last-file"
    NO_OCCASION = "no-occasion"
    RESERVED = "reserved"
    IN_USE = "in-use"
    UNCONSUMED = "unconsumed"
    OLDER_STAYS = "older-stays"


class Reason(NamedTuple):
    """An obstacle, and a sentence about it with its figures."""

    obstacle: Obstacle
    text: str


class FileVerdict(NamedTuple):
    """Verdict on a CommitLog file: it may be deleted now if there is no reason against it.

    ``last_ms`` is the time of its last message (of its last write, for the last file).
    """

    segment: Segment
    last_ms: int
    reasons: list[Reason]
    unconsumed: list[Unconsumed]


class Circumstances(NamedTuple):
    """Circumstances of a round beside the files. ``log_used`` and ``queues_used`` are shares of the disks. The log is
    on the disk and in the queues up to ``settled_offset``.
    """

    now_ms: int
    log_used: float
    queues_used: float
    settled_offset: int
    on_request: bool = False

    @property
    def used(self) -> float:
        """Used share of the fuller disk."""
        return max(self.log_used, self.queues_used)


def pressure_of(config: StoreConfig, used: float) -> Pressure:
    """Pressure of a disk by its used share."""
    percent = round(used * 100)
    if percent > warning_percent(config):
        return Pressure.FULL
    if percent > forced_percent(config):
        return Pressure.FORCED
    return Pressure.CLEAN if percent > config.disk_max_used_space_ratio else Pressure.NONE


def unconsumed_in(segment: Segment, progress: Iterable[Consumed], find: FindQueue) -> list[Unconsumed]:
    """The messages of a file of the log that groups have yet to consume."""
    found = []
    for group, topic, queue_id, queue_offset in progress:
        queue = find(topic, queue_id)
        if queue is None or queue_offset >= queue.max_offset:
            continue
        first = max(queue_offset, queue.first_at_or_after(segment.base))
        count = queue.first_at_or_after(segment.end) - first
        if count > 0:
            found.append(Unconsumed(group, topic, queue_id, count))
    return found


def retention_verdicts(
    files: Sequence[Segment],
    config: StoreConfig,
    circumstances: Circumstances,
    unconsumed: Callable[[Segment], list[Unconsumed]],
) -> Iterator[FileVerdict]:
    """Verdicts on the files of a log, oldest first.

    ``unconsumed`` is called for each file that is looked at.
    """
    last = _last_with_messages(files)
    stays: Segment | None = None
    for number, segment in enumerate(files):
        last_ms = _last_ms(segment, files[number + 1 : last + 1], circumstances.now_ms)
        waiting = unconsumed(segment)
        reasons = reasons_to_stay(segment.end, last_ms, waiting, config, circumstances)
        if number > last:
            reasons = [Reason(Obstacle.LAST_FILE, "it is ready for the messages to come")]
        elif number == last:
            reasons = [Reason(Obstacle.LAST_FILE, "it is the last file with messages")]
        elif stays is not None and not reasons:
            text = f"files go oldest first, and {stays.path.name} stays"
            reasons = [Reason(Obstacle.OLDER_STAYS, text)]
        if reasons and stays is None:
            stays = segment
        yield FileVerdict(segment, last_ms, reasons, waiting)


def reasons_to_stay(
    end: int, last_ms: int, unconsumed: list[Unconsumed], config: StoreConfig, circumstances: Circumstances
) -> list[Reason]:
    """Reasons against the deletion of the oldest file of a log, unless it is the last one.

    ``end`` is the physical offset behind the file, ``last_ms`` the time of its last message.
    """
    occasion = _reason_to_wait(config, circumstances)
    return [*([occasion] if occasion else []), *_protections(end, last_ms, unconsumed, config, circumstances)]


def _reason_to_wait(config: StoreConfig, circumstances: Circumstances) -> Reason | None:
    """Reason why nothing is deleted at present; None if there is an occasion."""
    hour = datetime.fromtimestamp(circumstances.now_ms / 1000, UTC).astimezone().hour
    if (
        hour in map(int, config.delete_when.split(";"))
        or circumstances.on_request
        or pressure_of(config, circumstances.used) > Pressure.NONE
    ):
        return None
    return Reason(
        Obstacle.NO_OCCASION,
        f"files are deleted in the hours deleteWhen={config.delete_when} (it is {hour:02d}), on "
        f"request, or when more than {config.disk_max_used_space_ratio} % of the disk are used "
        f"({circumstances.used:.0%})",
    )


def _protections(
    end: int, last_ms: int, unconsumed: list[Unconsumed], config: StoreConfig, circumstances: Circumstances
) -> Iterator[Reason]:
    forced = config.clean_file_forcibly_enable and pressure_of(config, circumstances.used) >= Pressure.FORCED
    age_hours = (circumstances.now_ms - last_ms) / HOUR_MS
    if age_hours < config.file_reserved_time and not forced:
        text = f"its last message is {age_hours:.1f} h old, fileReservedTime keeps it for {config.file_reserved_time} h"
        yield Reason(Obstacle.RESERVED, text)
    if end > circumstances.settled_offset:
        yield Reason(Obstacle.IN_USE, "it is not wholly on the disk and in the queues yet")
    if unconsumed and config.unconsumed_policy == "keep":
        yield Reason(Obstacle.UNCONSUMED, f"unconsumedPolicy=keep, and {unconsumed_text(unconsumed)}")


def unconsumed_text(unconsumed: Sequence[Unconsumed]) -> str:
    """The groups that have yet to consume messages, with their numbers, largest first, as a clause."""
    assert unconsumed, "the clause names a group"
    sums: dict[tuple[str, str], int] = {}
    for group, topic, _, messages in unconsumed:
        sums[group, topic] = sums.get((group, topic), 0) + messages
    most = sorted(sums, key=lambda key: (-sums[key], key))
    texts = [f"group {group} has {sums[group, topic]} of {topic}" for group, topic in most]
    more = len(texts) - _GROUPS_TOLD
    texts[_GROUPS_TOLD:] = [f"{more} more of the kind"] if more > 0 else []
    return f"{', '.join(texts)} to consume"


def _last_with_messages(files: Sequence[Segment]) -> int:
    """Index of the last file that has a message, -1 for none; a prepared file may follow it."""
    numbers = range(len(files) - 1, -1, -1)
    return next((number for number in numbers if _first_ms(files[number]) is not None), -1)


def _first_ms(segment: Segment) -> int | None:
    """Store time of a file's first message; None without one."""
    first = scan(segment.map, 0, segment.size_bytes, 1)
    if not len(first) or int(first.physical_offset[0]) != segment.base:
        return None
    return int(first.store_ms[0])


def _last_ms(segment: Segment, later: Sequence[Segment], now_ms: int) -> int:
    """Store time of a file's last message: from the next files, or from the file's own time."""
    times = (_first_ms(file) for file in later)
    last_ms = next((ms for ms in times if ms is not None and ms <= now_ms), None)
    if last_ms is None:
        return segment.path.stat().st_mtime_ns // 1_000_000
    first_ms = _first_ms(segment) or 0
    return max(first_ms, last_ms) if first_ms <= now_ms else last_ms
