"""What replication promises holds whatever happens, and the checker would see it if it did not.

``FIREARROW_REPLICATION_SEEDS`` says how many seeds are run.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from firearrow.replication.master import Master
from firearrow.replication.slave import Following
from tests.replication.simulation import Violation, simulate

SEEDS = int(os.environ.get("FIREARROW_REPLICATION_SEEDS", "200"))
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


@pytest.mark.parametrize("seed", [4672])
def test_log_that_begins_alike_confirms_nothing(seed: int) -> None:
    """A slave is ahead by 12 KiB when it compares, in small pieces: the first ones are the same."""
    assert simulate(seed).acknowledged


@pytest.mark.parametrize("seed", [18412])
def test_blank_that_lost_its_size_is_as_the_masters_again(seed: int) -> None:
    """The last bytes of a sector are lost, the first ones of the next one are not."""
    assert simulate(seed).acknowledged


@pytest.mark.parametrize("seed", [61468])
def test_log_that_is_empty_and_does_not_begin_at_0_confirms_nothing_before(seed: int) -> None:
    """All lose their power: the slave all that it had, the master as well, and goes on at 0."""
    assert simulate(seed).acknowledged


@pytest.mark.parametrize("seed", [59945])
def test_slave_that_is_killed_in_its_first_record_starts_again(seed: int) -> None:
    """It had got all of it but three bytes."""
    assert simulate(seed).acknowledged


@pytest.mark.parametrize("seed", [3027, 10576])
def test_queue_whose_beginning_the_power_took_repeats_no_message(seed: int) -> None:
    """A slave's log begins behind all that its queue has, and messages between them are lost."""
    assert simulate(seed).acknowledged


# --- what the checker is for: each of these makes one mistake ---


def begins_at_the_end(self: Following) -> int:
    """As RocketMQ's slave: what was lost and written again goes unseen."""
    return self._store.log_end_offset


def counts_all(self: Master, *_: Any) -> bool:
    """As RocketMQ's master: a slave that began behind a message, or twice the same one."""
    return True


def counts_nobody(self: Master, *_: Any) -> int:
    """Acknowledges what nobody has."""
    return self.store.log_end_offset


def appends_twice(self: Following, physical_offset: int, piece: memoryview) -> None:
    """Does not look at what is there."""
    self._store.put_raw(self._store.log_end_offset, piece)


@pytest.mark.parametrize(
    ("owner", "name", "mistake", "seed", "says"),
    [
        (Following, "_compared_from", begins_at_the_end, 58, "follows, its log is another log"),
        (Master, "_counts", counts_all, 9, "is acknowledged, of 2 only"),
        (Master, "copied_offset", counts_nobody, 3, "is acknowledged, of 2 only"),
        (Following, "_put", appends_twice, 0, "has another log than its master"),
    ],
    ids=["begins at the end", "counts all", "counts nobody", "appends twice"],
)
def test_a_mistake_is_seen(
    owner: type, name: str, mistake: object, seed: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(Violation, match=says):
        simulate(seed)
