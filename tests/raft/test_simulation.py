"""The promises of Raft hold whatever happens, and the checker would see it if they did not.

``FIREARROW_RAFT_SEEDS`` says how many seeds are run.
"""

from __future__ import annotations

import os

import pytest

from firearrow.raft import Append, AskVote, Node, Saved
from firearrow.raft.log import Log
from firearrow.raft.messages import NOBODY
from tests.raft.simulation import Violation, World, simulate

SEEDS = int(os.environ.get("FIREARROW_RAFT_SEEDS", "200"))
BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens(block: int) -> None:
    worlds = [simulate(seed) for seed in range(block, SEEDS, BLOCKS)]
    # Else it would be a quiet life that was looked at.
    assert sum(len(world.checker.leaders) for world in worlds) > 2 * len(worlds)
    assert sum(len(world.checker.agreed) for world in worlds) > 50 * len(worlds)


# --- what the checker is for: each of these makes one mistake ---


class VotesTwice(Node):
    """Votes for whoever asks."""

    def _on_ask_vote(self, message: AskVote) -> None:
        self._vote = self.leader = NOBODY
        super()._on_ask_vote(message)


class AnyLog(Log):
    def is_as_late(self, index: int, term: int) -> bool:
        return True


class ElectsTheForgetful(Node):
    """Does not look at the end of a candidate's log."""

    def _on_ask_vote(self, message: AskVote) -> None:
        self.log.__class__ = AnyLog
        super()._on_ask_vote(message)


class CommitsAlone(Node):
    """Waits for nobody."""

    def _commit_what_a_majority_has(self) -> None:
        self.committed = self.log.last_index


class TakesAnyPrevious(Node):
    """Takes entries without a look at what they follow on."""

    def _on_append(self, message: Append) -> None:
        if self.committed <= message.previous_index <= self.log.last_index:
            term = self.log.term_at(message.previous_index) or 0
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            message = Append(**fields | {"previous_term": term})
        super()._on_append(message)


class CutsOffWhatIsThere(Node):
    """Lets an old message take away what a later one has brought."""

    def _on_append(self, message: Append) -> None:
        previous = message.previous_index
        if previous >= self.committed and self.log.term_at(previous) == message.previous_term:
            kept = self.log.slice(self.log.snapshot.index + 1, previous)
            self.log = Log(kept, self.log.snapshot)
            self._saved_up_to = min(self._saved_up_to, previous)
        super()._on_append(message)


class CommitsWhatItLacks(Node):
    """Believes that it has whatever is agreed on."""

    def _on_append(self, message: Append) -> None:
        super()._on_append(message)
        self.committed = max(self.committed, min(message.committed, self.log.last_index))


class ForgetsVotes(World):
    """A vote alone is not worth a sync."""

    def has_synced(self, saved: Saved) -> bool:
        return bool(saved.entries)


class ForgetsEntries(World):
    """Entries are synced some other time."""

    def has_synced(self, saved: Saved) -> bool:
        return not saved.entries


def having(kind: type[Node]) -> type[World]:
    return type(kind.__name__, (World,), {"kind": kind})


@pytest.mark.parametrize(
    "world",
    [
        having(VotesTwice),
        having(ElectsTheForgetful),
        having(CommitsAlone),
        having(TakesAnyPrevious),
        having(CutsOffWhatIsThere),
        having(CommitsWhatItLacks),
        ForgetsVotes,
        ForgetsEntries,
    ],
)
def test_each_mistake_is_seen(world: type[World]) -> None:
    assert any(is_seen(seed, world) for seed in range(1000))


def is_seen(seed: int, world: type[World]) -> bool:
    try:
        simulate(seed, world)
    except Violation:
        return True
    return False
