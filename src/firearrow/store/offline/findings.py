"""The rules that a sound store keeps, as a table, and the findings where one is broken.

Each row of ``INVARIANTS`` is one rule that verification checks; the documentation shows the same table. A finding names
its row, the place, and the content there.

========= ======================================================================================
severity  meaning
========= ======================================================================================
damage    messages are lost, unreachable or wrong, or would become so: the verdict is "damaged"
warning   no message is affected yet, but something is not as a broker leaves it
note      expected after an unclean end, or a limit of the check itself; the next start repairs it
========= ======================================================================================
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class Severity(Enum):
    """Weight of a finding."""

    DAMAGE = "damage"
    WARNING = "warning"
    NOTE = "note"


class Repair(Enum):
    """Reaction of ``repair`` to a finding."""

    TILE = "the damaged bytes are set aside and replaced by placeholder records"
    ALTERED = "nothing, as brokers serve it; with --cover-damaged-bodies a placeholder replaces it"
    EXTEND = "the file gets its full size; a blank record fills the missing part"
    CUT = "the end of the log is cut there"
    QUEUE = "the queue is rebuilt from the log"
    INDEX = "the index is rebuilt from the log"
    CONFIG = "the newest copy that can be read takes its place"
    QUARANTINE = "the file is moved out of the way"
    CHECKPOINT = "the checkpoint is written again from the log"
    OFFSET = "nothing; the group starts at the nearest message that exists"
    TIMER = "the timer's files are set aside; a broker rebuilds them from the timer topic"
    RESTORE = "the value that the rest of the store proves is written"
    START = "nothing; the next start repairs it"
    NONE = "nothing; you must decide"


class Invariant(msgspec.Struct, frozen=True):
    """One row: the rule in a sound store, the sentence where it is broken, the severity, the affected users, and the
    way out.
    """

    id: str
    holds: str
    broken: str
    severity: Severity
    affects: str
    repair: Repair


_DAMAGE, _WARNING, _NOTE = Severity.DAMAGE, Severity.WARNING, Severity.NOTE
# fmt: off
_ROWS: Final = [
    Invariant(
        "log-file-size", "all CommitLog files have one size",
        "a CommitLog file has a different size from the others", _DAMAGE,
        "a broker does not start; the missing part of a shorter file is lost", Repair.EXTEND,
    ),
    Invariant(
        "log-file-missing", "each CommitLog file starts where the one before ends",
        "a CommitLog file is missing", _DAMAGE,
        "every message of the missing file is lost; a broker does not start", Repair.EXTEND,
    ),
    Invariant(
        "log-stray-file", "the CommitLog directory holds nothing but its files",
        "the CommitLog directory holds something that is not a CommitLog file", _WARNING,
        "RocketMQ may refuse to start", Repair.QUARANTINE,
    ),
    Invariant(
        "log-file-end", "a CommitLog file with a successor ends with a blank",
        "a CommitLog file with a successor does not end with a blank", _DAMAGE,
        "a start stops reading there and cuts off the rest", Repair.TILE,
    ),
    Invariant(
        "record-frame", "a record has a magic, and its parts add up to its size",
        "bytes of the log are not a record", _DAMAGE,
        "the messages there are lost; an unclean start cuts off all that follow", Repair.TILE,
    ),
    Invariant(
        "record-position", "a record is at the physical offset that it states",
        "a record is not at the physical offset that it states", _DAMAGE,
        "an old record takes the place of a message; an unclean start cuts off all that follow",
        Repair.TILE,
    ),
    Invariant(
        "record-body-crc", "a body has the CRC that its record states",
        "a body does not have the CRC that its record states", _DAMAGE,
        "consumers get an altered body; a start of RocketMQ that reads it cuts off all that follow",
        Repair.ALTERED,
    ),
    Invariant(
        "record-crc-property", "a record with a CRC property agrees with it",
        "a record does not agree with its CRC property", _DAMAGE,
        "some byte of the message is altered", Repair.ALTERED,
    ),
    Invariant(
        "record-store-time", "store times never decrease along the log",
        "a record has an earlier store time than the one before it", _WARNING,
        "searches by time may miss messages", Repair.NONE,
    ),
    Invariant(
        "record-topic", "a topic is not empty and is UTF-8",
        "a topic is empty or not UTF-8", _DAMAGE,
        "nobody can consume the message", Repair.TILE,
    ),
    Invariant(
        "record-properties", "properties are UTF-8 pairs of names and values",
        "properties are not UTF-8 pairs of names and values", _WARNING,
        "clients skip the pair or show another text", Repair.NONE,
    ),
    Invariant(
        "record-flags", "the system flag has known bits; inner batches state their content",
        "a system flag is unknown, or an inner batch does not say what it holds",
        _WARNING, "clients may not understand the message", Repair.NONE,
    ),
    Invariant(
        "record-hosts", "the hosts of a record have ports up to 65535",
        "a host of a record has a port above 65535", _DAMAGE,
        "clients can't decode the message; a broker does not hand it out", Repair.RESTORE,
    ),
    Invariant(
        "record-transaction", "a commit or rollback points back to its half message",
        "a commit or rollback does not point back to a half message", _WARNING,
        "the transaction can't be traced to its half message", Repair.NONE,
    ),
    Invariant(
        "record-queue-order", "queue offsets in the log are consecutive per queue",
        "queue offsets in the log are not consecutive", _WARNING,
        "messages are lost, or a queue can't be rebuilt from the log", Repair.NONE,
    ),
    Invariant(
        "log-tail", "nothing is written after the last record",
        "something is written after the last record", _DAMAGE,
        "a start cuts it off; what could not be read there is lost", Repair.CUT,
    ),
    Invariant(
        "queue-file-size", "all files of a queue have one size, of whole entries",
        "a queue's file has a different size from the others, or a broken entry", _DAMAGE,
        "the queue can't be opened", Repair.QUEUE,
    ),
    Invariant(
        "queue-file-missing", "each file of a queue starts where the one before ends",
        "a queue's file is missing", _DAMAGE,
        "the queue can't be opened", Repair.QUEUE,
    ),
    Invariant(
        "queue-order", "records and messages are in ascending order along a queue",
        "records or messages are not in ascending order along a queue", _DAMAGE,
        "consumers get messages twice, or never; searches fail", Repair.QUEUE,
    ),
    Invariant(
        "queue-pre-blank", "entries before a queue's first message are pre-blank",
        "an entry before a queue's first message is not pre-blank", _DAMAGE,
        "the queue's first offset is wrong", Repair.QUEUE,
    ),
    Invariant(
        "queue-tail", "a queue's file is zero after its last entry",
        "a queue's file is not zero after its last entry", _DAMAGE,
        "the end of the queue is found at the wrong place", Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-missing", "each record for consumers has its entry",
        "a record for consumers has no entry", _DAMAGE,
        "consumers never see the message", Repair.QUEUE,
    ),
    Invariant(
        "queue-behind-log", "queues reach the end of the log",
        "a queue does not reach the end of the log", _NOTE,
        "none: missing entries are written at the next start", Repair.START,
    ),
    Invariant(
        "queue-entry-position", "an entry points to the record with its queue offset",
        "an entry does not point to the record with its queue offset", _DAMAGE,
        "consumers get a wrong message, or none", Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-size", "an entry has its record's size",
        "an entry has a different size from its record", _DAMAGE,
        "consumers get a truncated message, or none", Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-tag", "an entry has the code of its record's tag",
        "an entry has a different tag code from its record", _DAMAGE,
        "a tag filter passes the message to the wrong consumers, or withholds it",
        Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-time", "an entry with a store time has that of its record",
        "an entry has a different store time from its record", _DAMAGE,
        "searches by time miss the message", Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-messages",
        "an entry of a queue of batches has the number of messages of its record",
        "an entry of a queue of batches has a wrong number of messages",
        _DAMAGE, "messages are skipped or delivered twice, and new ones get wrong queue offsets",
        Repair.QUEUE,
    ),
    Invariant(
        "queue-entry-orphan", "each entry points to a record of its queue",
        "an entry points to no record of its queue", _DAMAGE,
        "consumers of the queue come to a message that does not exist", Repair.QUEUE,
    ),
    Invariant(
        "queue-stand-in", "each entry has its own message",
        "an entry has the next message instead of its own", _WARNING,
        "a message was lost: its consumers get the next one instead", Repair.NONE,
    ),
    Invariant(
        "queue-beyond-log", "no entry points beyond the end of the log",
        "an entry points beyond the end of the log", _DAMAGE,
        "consumers wait for a message that does not exist", Repair.QUEUE,
    ),
    Invariant(
        "queue-row", "a database's rows about queues agree with its entries",
        "a row about a queue does not agree with the entries", _DAMAGE,
        "messages are not found, or new ones get a queue offset that is in use", Repair.QUEUE,
    ),
    Invariant(
        "queue-stray", "the consumequeue directories hold queues and nothing else",
        "a consumequeue directory holds something that is not a queue", _WARNING,
        "none", Repair.QUARANTINE,
    ),
    Invariant(
        "queue-name", "the name of a topic in the log can be a directory's",
        "the name of a topic in the log can't be a directory's", _WARNING,
        "no files of such a queue are made: nobody can consume its messages", Repair.NONE,
    ),
    Invariant(
        "queue-kind", "topics with queue.type=BatchCQ have no queues of the usual kind",
        "a topic with queue.type=BatchCQ has queues of the usual kind", _DAMAGE,
        "RocketMQ does not start", Repair.QUARANTINE,
    ),
    Invariant(
        "config-queue-type", "a topic with queues of batches has queue.type=BatchCQ",
        "a topic with queues of batches lacks queue.type=BatchCQ", _WARNING,
        "RocketMQ does not start before the topic has the attribute", Repair.NONE,
    ),
    Invariant(
        "index-file-size",
        "all IndexFiles have one size, which fits their number of slots and entries",
        "an IndexFile does not have the size of its slots and entries",
        _DAMAGE, "the file can't be opened: its keys find nothing", Repair.INDEX,
    ),
    Invariant(
        "index-header", "an IndexFile's header counts its slots and entries",
        "an IndexFile's header miscounts its slots or entries", _DAMAGE,
        "keys find nothing, or wrong messages", Repair.INDEX,
    ),
    Invariant(
        "index-chain", "chains of an IndexFile are whole and lead to older entries",
        "a chain of an IndexFile is broken", _DAMAGE,
        "keys find nothing, or a search does not end", Repair.INDEX,
    ),
    Invariant(
        "index-entry", "an index entry has the hash of a key of its record",
        "an index entry does not have the hash of a key of its record", _DAMAGE,
        "keys find a wrong message", Repair.INDEX,
    ),
    Invariant(
        "index-entry-time", "an index entry has the store time of its record",
        "an index entry has a different store time from its record", _DAMAGE,
        "queries by key and time miss the message", Repair.INDEX,
    ),
    Invariant(
        "index-key-missing", "each key of the log's records is in the index",
        "a key of a record is not in the index", _DAMAGE,
        "the message can't be found by this key", Repair.INDEX,
    ),
    Invariant(
        "index-behind-log", "the index reaches from the log's start to its end",
        "the index does not reach from the log's start to its end", _NOTE,
        "keys of the messages outside find nothing", Repair.START,
    ),
    Invariant(
        "index-order", "IndexFiles follow each other in time and offset",
        "IndexFiles do not follow each other in time and offset", _DAMAGE,
        "queries read the wrong files", Repair.INDEX,
    ),
    Invariant(
        "index-stray", "the index directory holds IndexFiles and nothing else",
        "the index directory holds something that is not an IndexFile", _WARNING,
        "RocketMQ may refuse to start", Repair.QUARANTINE,
    ),
    Invariant(
        "checkpoint-size", "the checkpoint has 4096 bytes, zero after its fields",
        "the checkpoint is missing, does not have 4096 bytes, or is not zero after its fields",
        _DAMAGE,
        "an unclean start reads the whole log", Repair.CHECKPOINT,
    ),
    Invariant(
        "checkpoint-time", "the checkpoint's times are not later than the last record's",
        "a time of the checkpoint is later than the last record's",
        _DAMAGE, "an unclean start may leave messages unreachable", Repair.CHECKPOINT,
    ),
    Invariant(
        "checkpoint-offset", "the checkpoint's offsets are within the log",
        "an offset of the checkpoint is outside the log", _DAMAGE,
        "an unclean start may leave messages unreachable", Repair.CHECKPOINT,
    ),
    Invariant(
        "store-closed", "there is no abort file",
        "there is an abort file", _NOTE,
        "the next start takes longer: the last broker was killed, or still runs",
        Repair.START,
    ),
    Invariant(
        "config-readable", "each configuration file can be read",
        "a configuration file can't be read", _DAMAGE,
        "topics, offsets or groups in it are lost unless there is a readable copy", Repair.CONFIG,
    ),
    Invariant(
        "config-backup", "each .bak of a configuration file can be read",
        "the .bak of a configuration file can't be read", _WARNING,
        "there is no backup copy", Repair.NONE,
    ),
    Invariant(
        "config-topic", "each topic with messages for consumers is configured",
        "a topic with messages for consumers is not configured", _WARNING,
        "clients find no route to its messages; this is normal for a deleted topic", Repair.NONE,
    ),
    Invariant(
        "config-offset", "consumer offsets are within their queues",
        "a consumer offset is outside its queue", _WARNING,
        "the group misses messages that were deleted, or waits for its offset to be reached",
        Repair.OFFSET,
    ),
    Invariant(
        "config-delay-offset", "delay offsets are within the queues of their levels",
        "a delay offset is outside its level's queue", _WARNING,
        "delayed messages are delivered again, or late", Repair.OFFSET,
    ),
    Invariant(
        "timer-check", "timercheck has 4096 bytes and offsets within its files",
        "timercheck does not have 4096 bytes, or has offsets outside its files", _DAMAGE,
        "timed messages are delivered late, twice or never", Repair.TIMER,
    ),
    Invariant(
        "timer-wheel-size", "the timer wheel has a slot for each second of 14 days",
        "the timer wheel does not have a slot for each second of 14 days", _DAMAGE,
        "timed messages are not delivered", Repair.TIMER,
    ),
    Invariant(
        "timer-file", "timer log files have one size and follow each other",
        "timer log files differ in size or do not follow each other", _DAMAGE,
        "timed messages are not delivered", Repair.TIMER,
    ),
    Invariant(
        "timer-unit", "units of the timer log are whole and point into the CommitLog",
        "a unit of the timer log is broken or points outside the CommitLog", _DAMAGE,
        "timed messages after it are not delivered", Repair.TIMER,
    ),
    Invariant(
        "timer-chain", "a unit's predecessor is an earlier unit",
        "a unit's predecessor is not an earlier unit", _DAMAGE,
        "timed messages of one second are not delivered", Repair.TIMER,
    ),
    Invariant(
        "timer-wheel-slot", "a slot of the wheel points to units of the timer log",
        "a slot of the wheel does not point to units of the timer log", _DAMAGE,
        "timed messages of one second are not delivered", Repair.TIMER,
    ),
    Invariant(
        "root-stray", "the store directory holds nothing unknown",
        "the store directory holds something unknown", _NOTE,
        "none", Repair.NONE,
    ),
]
# fmt: on


INVARIANTS: Final = {row.id: row for row in _ROWS}
assert len(INVARIANTS) == len(_ROWS), "each rule has its own name"
FINDINGS_PER_PLACE_MAX: Final = 20  # further findings of a kind in one file are only counted


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broken rule.

    ``file`` is relative to the store, ``position`` a byte in it; ``physical_offset`` a byte in the log. ``times``
    counts further findings of the kind in the file that are not listed.
    """

    invariant: str
    what: str
    severity: Severity
    file: str | None = None
    position: int | None = None
    physical_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    times: int = 1

    def place(self) -> str:
        """The place for people: file and byte, queue and its offset; ends with a space."""
        words = [self.file or ""]
        if self.position is not None:
            words.append(f"byte {self.position}")
        if self.physical_offset is not None:
            words.append(f"log offset {self.physical_offset}")
        if self.topic is not None:
            words.append(self.topic + ("" if self.queue_id is None else f"-{self.queue_id}"))
        if self.queue_offset is not None:
            words.append(f"queue offset {self.queue_offset}")
        return ", ".join(word for word in words if word) + ": "

    def others(self) -> str:
        """The number of further findings of its kind, for people."""
        return f" (and {self.times - 1} more)" if self.times > 1 else ""


class Findings:
    """Collects findings, of each kind and file only as many as a person can read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], list[Finding]] = {}
        self._more: dict[tuple[str, str | None], int] = {}

    def add(
        self,
        invariant: str,
        what: str,
        *,
        file: str | None = None,
        position: int | None = None,
        physical_offset: int | None = None,
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
        severity: Severity | None = None,
        times: int = 1,
    ) -> None:
        """Add a finding; its severity is the invariant's unless another one is given."""
        assert times > 0, "what was not found is not counted"
        assert position is None or position >= 0, "a position is in the file"
        finding = Finding(
            invariant,
            what,
            severity or INVARIANTS[invariant].severity,
            file,
            position,
            physical_offset,
            topic,
            queue_id,
            queue_offset,
            times,
        )
        self._keep(finding)

    def _keep(self, finding: Finding) -> None:
        place = finding.invariant, finding.file
        listed = self._found.setdefault(place, [])
        if len(listed) < FINDINGS_PER_PLACE_MAX:
            listed.append(finding)
        else:
            self._more[place] = self._more.get(place, 0) + finding.times

    def extend(self, findings: list[Finding]) -> None:
        """Add the findings of another check."""
        for finding in findings:
            self._keep(finding)

    def all(self) -> list[Finding]:
        """The findings in the order of the table; the last of a long list stands for the rest."""
        order = list(INVARIANTS)
        found: list[Finding] = []
        for place in sorted(self._found, key=lambda place: (order.index(place[0]), place[1] or "")):
            listed = list(self._found[place])
            more = self._more.get(place, 0)
            if more:
                assert len(listed) == FINDINGS_PER_PLACE_MAX, "findings are only counted where the list is full"
                listed[-1] = msgspec.structs.replace(listed[-1], times=listed[-1].times + more)
            found += listed
        return found
