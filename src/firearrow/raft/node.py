"""A node of a Raft group: its reaction to a message, a tick, or a proposed entry.

Roles change like this; a node that learns of a higher term becomes a follower in it::

    FOLLOWER ──nobody leads──▶ TRIAL ──a majority would──▶ CANDIDATE ──it does──▶ LEADER
        ▲                        │                            │                     │
        └────────────────────────┴──────somebody leads────────┴──no majority heard──┘

A trial costs no term: a node that hears no other node, while the others work, can't disturb them when it returns. A
node that hears a leader ignores candidates. A leader that has not heard a majority during a follower's timeout steps
down, so that no client waits for the answers of an isolated leader.

Two rules make entries last. First, a majority must have an entry before it is committed, and the leader must have made
it in its present term. An entry of an earlier term could still be replaced, though a majority has it (section 3.6.2 of
the thesis). Second, a node votes once in a term, and only for a candidate whose log does not end earlier than its own.

One message with entries is in flight to each follower; entries that arrive meanwhile go with the next. Nothing is sent
again before the next heartbeat is due, and the heartbeat is that message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from firearrow.errors import MessageError
from firearrow.raft.log import Log
from firearrow.raft.messages import (
    NOBODY,
    STEP_MAX,
    Append,
    Appended,
    AskVote,
    Install,
    LogEntry,
    Message,
    Saved,
    StateSnapshot,
    Vote,
)

MESSAGE_ENTRIES_MAX: Final = 256  # in one message: a few tens of KiB of a controller's events


class Role(Enum):
    """Role of a node in its group."""

    FOLLOWER = auto()
    TRIAL = auto()
    CANDIDATE = auto()
    LEADER = auto()


class Timing(NamedTuple):
    """Interval of a leader's heartbeats, and the silence after which a follower tries to replace it, in ticks.

    A follower waits up to twice that time, each time for another duration, so that few try at once.
    """

    heartbeat: int = 1
    election: int = 10


TIMING: Final = Timing()


class Ready(NamedTuple):
    """The owner's next actions, in this order."""

    saved: Saved | None
    """Data that must be on the disk before any other action."""
    messages: list[Message]
    """Messages to send; any of them may get lost, arrive late or twice."""
    snapshot: StateSnapshot | None
    """A state that replaces all applied entries."""
    committed: list[LogEntry]
    """Entries to apply to the state, each once and in this order."""


class _Follower:
    """A leader's knowledge of another node: the known match with its log ends at ``match``; the entry ``next`` is sent
    next."""

    __slots__ = ("is_awaited", "is_heard", "match", "next")

    def __init__(self, next_index: int) -> None:
        self.match = 0
        self.next = next_index
        self.is_awaited = False  # whether entries are in flight
        self.is_heard = True  # since the leader last counted


class Node:
    """One of ``members``; it begins as a follower with the state that it ``saved`` before.

    ``draw(n)`` returns a random number below n. The owner calls ``tick`` at a fixed interval, ``receive`` for each
    message, and after any call ``take``.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        saved: Saved,
        draw: Callable[[int], int],
        timing: Timing = TIMING,
        message_entries_max: int = MESSAGE_ENTRIES_MAX,
    ) -> None:
        assert name in members, "a node is one of its group"
        self.name = name
        self.role: Role = Role.FOLLOWER
        self.term: int = saved.term
        self.leader: str = NOBODY
        self.log: Log = Log(saved.entries, saved.snapshot)
        self.committed: int = self.log.snapshot.index
        self._vote = saved.vote
        self._others = [member for member in members if member != name]
        self._majority = len(members) // 2 + 1
        self._draw = draw
        self._timing = timing
        self._message_entries_max = message_entries_max
        self._silent_ticks = 0  # of a leader: since it last counted the nodes that it hears
        self._patience_ticks = 0
        self._beat_ticks = 0
        self._votes: dict[str, bool] = {}
        self._followers: dict[str, _Follower] = {}
        # The results that `take` has already returned.
        self._applied = self.committed
        self._saved_up_to = self.log.last_index
        self._saved_term = saved.term, saved.vote
        self._installed: StateSnapshot | None = None
        self._outbox: list[Message] = []
        self._follow(self.term, NOBODY)

    @property
    def is_leader(self) -> bool:
        """True if entries must be proposed to this node."""
        return self.role is Role.LEADER

    # --- input and output ---

    def tick(self) -> None:
        """Count one interval of time; all intervals are equal."""
        self._silent_ticks += 1
        if self.role is Role.LEADER:
            self._tick_leader()
        elif self._silent_ticks >= self._patience_ticks:
            self._stand(is_trial=True)

    def propose(self, data: bytes) -> int | None:
        """Add an entry to the log; return its index, None if another node leads.

        The entry is committed once it is among ``Ready.committed``, with the present term of the node. An entry of
        another term in its place means that this one is lost.
        """
        if self.role is not Role.LEADER:
            return None
        self.log.append(LogEntry(self.log.last_index + 1, self.term, data))
        self._commit_what_a_majority_has()
        for name, follower in self._followers.items():
            if not follower.is_awaited:
                self._send_entries(name, follower)
        return self.log.last_index

    def check(self, message: Message) -> None:
        """Raise MessageError for a message that no node of the group can have sent.

        Otherwise its term or its state would be kept, and passed on, for good.
        """
        if message.term - self.term > STEP_MAX:
            raise MessageError(f"{message.term} is too far ahead of {self.term}", "term")
        is_leaders = isinstance(message, Append | Install)
        if is_leaders and message.term == self.term and self.role is Role.LEADER:
            raise MessageError(f"{self.name} leads term {self.term} itself", "sender")
        if isinstance(message, Install):
            if message.snapshot.index - self.committed > STEP_MAX:
                why = f"{message.snapshot.index} is too far ahead of {self.committed}"
                raise MessageError(why, "snapshot")
        elif isinstance(message, Append) and message.term >= self.term:
            for entry in message.entries:
                if entry.index > self.committed:
                    break
                if self.log.term_at(entry.index) not in (None, entry.term):
                    raise MessageError("another one is agreed on", f"entry {entry.index}")

    def receive(self, message: Message) -> None:
        """Take a message of another node, which `check` accepts."""
        if message.term > self.term:
            if isinstance(message, AskVote) and self._hears_a_leader():
                return
            if not _is_of_trial(message):
                is_leader = isinstance(message, Append | Install)
                self._follow(message.term, message.sender if is_leader else NOBODY)
        elif message.term < self.term:
            self._answer_outdated(message)
            return
        match message:
            case Append():
                self._on_append(message)
            case Appended():
                self._on_appended(message)
            case AskVote():
                self._on_ask_vote(message)
            case Vote():
                self._on_vote(message)
            case Install():
                self._on_install(message)

    def take(self) -> Ready:
        """Return the actions since the last call, see `Ready`; the node assumes that the owner does them."""
        saved = self._unsaved()
        messages, self._outbox = self._outbox, []
        snapshot, self._installed = self._installed, None
        assert self._applied <= self.committed <= self.log.last_index
        committed = self.log.slice(self._applied + 1, self.committed)
        self._applied = self.committed
        return Ready(saved, messages, snapshot, committed)

    def compact(self, data: bytes) -> Saved:
        """Replace all applied entries by the resulting state; return the complete state to save.

        Call it only between a ``take`` whose entries are on the disk and applied, and any other call.
        """
        term = self.log.term_at(self._applied)
        assert term is not None, "what was applied last is in the log, or is its snapshot"
        self.log.compact(StateSnapshot(self._applied, term, data))
        entries = self.log.slice(self._applied + 1, self.log.last_index)
        return Saved(self.term, self._vote, entries, self.log.snapshot)

    def _unsaved(self) -> Saved | None:
        first = self._saved_up_to + 1
        entries = self.log.slice(max(first, self.log.snapshot.index + 1), self.log.last_index)
        if not entries and not self._installed and self._saved_term == (self.term, self._vote):
            return None
        self._saved_up_to = self.log.last_index
        self._saved_term = self.term, self._vote
        return Saved(self.term, self._vote, entries, self._installed)

    # --- elections ---

    def _follow(self, term: int, leader: str) -> None:
        assert term >= self.term, "terms never fall"
        if term != self.term:
            self.term, self._vote = term, NOBODY
        self.role, self.leader = Role.FOLLOWER, leader
        self._followers.clear()
        self._wait_again()

    def _wait_again(self) -> None:
        self._silent_ticks = 0
        self._patience_ticks = self._timing.election + self._draw(self._timing.election)

    def _hears_a_leader(self) -> bool:
        return self.leader != NOBODY and self._silent_ticks < self._timing.election

    def _stand(self, *, is_trial: bool) -> None:
        """Ask all other nodes for their votes."""
        self.role, self.leader = Role.TRIAL if is_trial else Role.CANDIDATE, NOBODY
        if not is_trial:
            self.term, self._vote = self.term + 1, self.name
        self._wait_again()
        self._votes = {self.name: True}
        for other in self._others:
            self._outbox.append(
                AskVote(
                    sender=self.name,
                    to=other,
                    term=self.term + is_trial,
                    last_index=self.log.last_index,
                    last_term=self.log.last_term,
                    is_trial=is_trial,
                )
            )
        self._count_votes()

    def _on_ask_vote(self, message: AskVote) -> None:
        is_free = self._vote == message.sender or (self._vote == NOBODY and self.leader == NOBODY)
        is_granted = (is_free or self._is_later_trial(message)) and self.log.is_as_late(
            message.last_index, message.last_term
        )
        if is_granted and not message.is_trial:
            self._vote = message.sender
            self._wait_again()
        self._outbox.append(
            Vote(
                sender=self.name,
                to=message.sender,
                term=message.term if is_granted else self.term,
                is_granted=is_granted,
                is_trial=message.is_trial,
            )
        )

    def _is_later_trial(self, message: AskVote) -> bool:
        return message.is_trial and message.term > self.term

    def _on_vote(self, message: Vote) -> None:
        asked = Role.TRIAL if message.is_trial else Role.CANDIDATE
        if self.role is asked and message.term - self.term == (message.is_trial and message.is_granted):
            self._votes[message.sender] = message.is_granted
            self._count_votes()

    def _count_votes(self) -> None:
        granted = sum(self._votes.values())
        if granted >= self._majority:
            if self.role is Role.TRIAL:
                self._stand(is_trial=False)
            else:
                self._lead()
        elif len(self._votes) - granted >= self._majority:
            self._follow(self.term, NOBODY)

    def _lead(self) -> None:
        assert self.role is Role.CANDIDATE
        assert self._vote == self.name, "a candidate votes for itself"
        self.role, self.leader = Role.LEADER, self.name
        self._silent_ticks = self._beat_ticks = 0
        next_index = self.log.last_index + 1
        self._followers = {other: _Follower(next_index) for other in self._others}
        self.propose(b"")  # it also commits the entries that earlier leaders left

    # --- as a leader ---

    def _tick_leader(self) -> None:
        if self._silent_ticks >= self._timing.election:
            self._silent_ticks = 0
            heard = sum(follower.is_heard for follower in self._followers.values())
            if heard + 1 < self._majority:
                self._follow(self.term, NOBODY)
                return
            for follower in self._followers.values():
                follower.is_heard = False
        self._beat_ticks += 1
        if self._beat_ticks >= self._timing.heartbeat:
            self._beat_ticks = 0
            for name, follower in self._followers.items():
                self._send_entries(name, follower)

    def _send_entries(self, name: str, follower: _Follower) -> None:
        previous_term = self.log.term_at(follower.next - 1)
        if previous_term is None:  # the state is small enough to be sent with each heartbeat
            self._outbox.append(Install(sender=self.name, to=name, term=self.term, snapshot=self.log.snapshot))
            follower.is_awaited = True
            return
        last = min(self.log.last_index, follower.next + self._message_entries_max - 1)
        entries = self.log.slice(follower.next, last)
        follower.is_awaited = bool(entries)
        self._outbox.append(
            Append(
                sender=self.name,
                to=name,
                term=self.term,
                previous_index=follower.next - 1,
                previous_term=previous_term,
                entries=entries,
                committed=self.committed,
            )
        )

    def _on_appended(self, message: Appended) -> None:
        follower = self._followers.get(message.sender)
        if follower is None:  # it is no leader any more, or the sender is no member
            return
        follower.is_heard = True
        if message.index > self.log.last_index:
            return  # no node has more of this term than its leader
        if message.is_refused:
            if message.index != follower.next - 1:
                return  # the answer to an earlier message
            likely = self.log.likely_match(message.hint_index, message.hint_term)
            follower.next = max(min(likely, follower.next - 2), follower.match) + 1
        elif message.index > follower.match:
            follower.match = message.index
            follower.next = max(follower.next, message.index + 1)
            self._commit_what_a_majority_has()
        else:
            return  # it was only heard, or that is known
        assert follower.match < follower.next <= self.log.last_index + 1
        follower.is_awaited = False
        if message.is_refused or follower.next <= self.log.last_index:
            self._send_entries(message.sender, follower)

    def _commit_what_a_majority_has(self) -> None:
        ends = [follower.match for follower in self._followers.values()]
        ends.append(self.log.last_index)
        ends.sort(reverse=True)
        index = ends[self._majority - 1]
        if index > self.committed and self.log.term_at(index) == self.term:
            self.committed = index

    # --- as a follower ---

    def _hear(self, leader: str) -> None:
        assert self.role is not Role.LEADER, "a term has one leader"
        self.role, self.leader = Role.FOLLOWER, leader
        self._silent_ticks = 0

    def _on_append(self, message: Append) -> None:
        self._hear(message.sender)
        previous = message.previous_index
        if previous < self.committed:  # committed entries are the same everywhere
            self._answer_append(message, self.committed)
        elif self.log.term_at(previous) != message.previous_term:
            hint = self.log.likely_match(previous, message.previous_term)
            self._answer_append(message, previous, hint)
        else:
            fresh = self.log.merge(message.entries, self.committed)
            if fresh is not None:
                self._saved_up_to = min(self._saved_up_to, fresh - 1)
            last = previous + len(message.entries)
            self.committed = max(self.committed, min(message.committed, last))
            self._answer_append(message, last)

    def _on_install(self, message: Install) -> None:
        self._hear(message.sender)
        snapshot = message.snapshot
        if snapshot.index > self.committed:
            if self.log.term_at(snapshot.index) == snapshot.term:
                self.committed = snapshot.index  # the entries are here already
            else:
                self.log.restart(snapshot)
                self.committed = self._applied = self._saved_up_to = snapshot.index
                self._installed = snapshot
        self._answer_append(message, self.committed)

    def _answer_append(self, message: Message, index: int, hint: int | None = None) -> None:
        self._outbox.append(
            Appended(
                sender=self.name,
                to=message.sender,
                term=self.term,
                index=index,
                is_refused=hint is not None,
                hint_index=hint or 0,
                hint_term=(self.log.term_at(hint) or 0) if hint else 0,
            )
        )

    def _answer_outdated(self, message: Message) -> None:
        """Tell a sender the term that it has missed, if it would otherwise ask again for ever."""
        if isinstance(message, Append | Install):
            self._answer_append(message, 0, 0)
        elif isinstance(message, AskVote) and message.is_trial:
            self._outbox.append(
                Vote(sender=self.name, to=message.sender, term=self.term, is_granted=False, is_trial=True)
            )


def _is_of_trial(message: Message) -> bool:
    """Tell whether the term of a message is a trial's, which no node has entered yet."""
    if isinstance(message, AskVote):
        return message.is_trial
    return isinstance(message, Vote) and message.is_trial and message.is_granted
