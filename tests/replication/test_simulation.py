"""What replication promises holds whatever happens, and the checker would see it if it did not.

``FIREARROW_REPLICATION_SEEDS`` says how many seeds are run.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from firearrow.replication.master import Master
from firearrow.replication.slave import MasterConnection
from firearrow.store import mending
from firearrow.store.commitlog import CommitLog
from tests.replication.simulation import Violation, simulate

SEEDS = int(os.environ.get("FIREARROW_REPLICATION_SEEDS", "120"))
BLOCKS = 4


@pytest.mark.timeout(60 + SEEDS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens(block: int) -> None:
    counts: Counter[str] = Counter()
    acknowledged = lost = 0
    for seed in range(block, SEEDS, BLOCKS):
        world = simulate(seed)
        counts += world.counts
        acknowledged += len(world.acknowledged)
        lost += world.lost
    # Else it would be a quiet life that was looked at.
    assert len(counts) == 11
    assert acknowledged > 20 * SEEDS / BLOCKS
    assert lost > 0


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3027, id="a queue of which the log has nothing"),
        pytest.param(10576, id="a queue of which the log has nothing, again"),
        pytest.param(4672, id="a slave that is ahead, and a log that begins as its own"),
        pytest.param(61468, id="a slave that has lost all but where its log ended"),
        pytest.param(59945, id="a slave that is killed three bytes before its first record ends"),
        pytest.param(18412, id="a blank that loses its size"),
        pytest.param(133, id="a loss of power after a kill, before entries are on the disk again"),
    ],
)
def test_what_seeds_have_found(seed: int) -> None:
    assert simulate(seed).acknowledged


# --- what the checker is for: each of these makes one mistake ---


def begins_at_the_end(log: CommitLog) -> int:
    """As RocketMQ's slave: what was lost and written again goes unseen."""
    return log.end_offset


def counts_all(self: Master, *_: Any) -> bool:
    """As RocketMQ's master: a slave that began behind a message, or twice the same one."""
    return True


def counts_nobody(self: Master, *_: Any) -> int:
    """Acknowledges what nobody has."""
    return self.store.log_end_offset


def appends_twice(self: MasterConnection, physical_offset: int, piece: memoryview) -> None:
    """Does not look at what is there."""
    self._store.put_raw(self._store.log_end_offset, piece)


@pytest.mark.parametrize(
    ("owner", "name", "mistake", "seed", "says"),
    [
        (mending, "_start_of_end", begins_at_the_end, 58, "follows, its log is another one"),
        (Master, "_counts", counts_all, 9, "is acknowledged, of 2 only"),
        (Master, "copied_offset", counts_nobody, 3, "is acknowledged, of 2 only"),
        (MasterConnection, "_put", appends_twice, 0, "has another log than its master"),
    ],
    ids=["begins at the end", "counts all", "counts nobody", "appends twice"],
)
def test_a_mistake_is_seen(
    owner: object, name: str, mistake: object, seed: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(Violation, match=says):
        simulate(seed)
