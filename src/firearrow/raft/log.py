"""The log of a node in memory: a snapshot, and the entries behind it."""

from __future__ import annotations

from collections.abc import Sequence

from firearrow.raft.messages import NO_SNAPSHOT, LogEntry, StateSnapshot


class Log:
    """Entries by index, from the first behind ``snapshot`` to ``last_index``."""

    def __init__(self, entries: Sequence[LogEntry] = (), snapshot: StateSnapshot | None = None) -> None:
        self.snapshot: StateSnapshot = snapshot or NO_SNAPSHOT
        self._entries = [entry for entry in entries if entry.index > self.snapshot.index]

    @property
    def last_index(self) -> int:
        """The index of the last entry, or of the snapshot if no entry follows."""
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry, or of the snapshot if no entry follows."""
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None if it is in the snapshot, or not in the log yet."""
        behind = index - self.snapshot.index
        if behind == 0:
            return self.snapshot.term
        return self._entries[behind - 1].term if 0 < behind <= len(self._entries) else None

    def slice(self, first: int, last: int) -> list[LogEntry]:
        """Return the entries from ``first`` to ``last``, both included."""
        assert first > self.snapshot.index, "what is in the snapshot is no entry any more"
        return self._entries[first - self.snapshot.index - 1 : max(last - self.snapshot.index, 0)]

    def append(self, entry: LogEntry) -> None:
        """Add an entry."""
        assert entry.index == self.last_index + 1, "entries are added without a gap"
        assert entry.term >= self.last_term, "terms never fall"
        self._entries.append(entry)

    def merge(self, entries: Sequence[LogEntry], committed: int) -> int | None:
        """Take a leader's entries, and drop conflicting entries behind ``committed``.

        Returns the index of the first new entry, None if there was no new one. An entry that the log has already stays,
        and so do the entries behind it: an old message must not remove the entries of a later one.
        """
        fresh = next((it for it in entries if self.term_at(it.index) != it.term), None)
        if fresh is None:
            return None
        assert fresh.index > committed, "what was agreed on does not change"
        del self._entries[fresh.index - self.snapshot.index - 1 :]
        for entry in entries[fresh.index - entries[0].index :]:
            self.append(entry)
        return fresh.index

    def is_as_late(self, index: int, term: int) -> bool:
        """Tell whether a log with this end must contain every entry of this log that may be committed."""
        return (term, index) >= (self.last_term, self.last_index)

    def likely_match(self, index: int, term: int) -> int:
        """Return the last entry up to ``index`` of no later term: entries behind it can't match."""
        index = min(index, self.last_index)
        while index > self.snapshot.index and (self.term_at(index) or 0) > term:
            index -= 1
        return index

    def compact(self, snapshot: StateSnapshot) -> None:
        """Replace the entries that a snapshot covers by it; entries behind it stay."""
        assert self.snapshot.index <= snapshot.index <= self.last_index, "it is of this log"
        self._entries = self.slice(snapshot.index + 1, self.last_index)
        self.snapshot = snapshot

    def restart(self, snapshot: StateSnapshot) -> None:
        """Replace the whole log by a snapshot."""
        assert snapshot.index > self.snapshot.index, "a snapshot of a later state"
        self._entries = []
        self.snapshot = snapshot
