"""What consumers commit is where the next master will be, a second later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firearrow.broker.replication import statefeed
from firearrow.testing import loop
from firearrow.testing.fs import copy_whole
from firearrow.testing.loop import VirtualClock
from tests.broker.controlled import Field, fielded
from tests.broker.replicated import replica
from tests.broker.replication.test_statefeed import (
    AT_ONCE_SECONDS,
    done,
    has_offset,
    killed,
    make_group,
    reset_offset,
    told_slave,
)
from tests.broker.serving import Caller, until


async def commit(caller: Caller, queue_id: int, queue_offset: int) -> None:
    """Commit an offset of group g in topic T."""
    fields = {"consumerGroup": "g", "topic": "T", "queueId": queue_id, "commitOffset": queue_offset}
    await done(caller, 15, fields)


async def commit_beyond_the_log(caller: Caller) -> None:
    """Send three messages to queue 0, and commit what a master has that had sent five."""
    await make_group(caller)
    for number in range(3):
        await caller.sent(b"%d" % number)
    await commit(caller, 0, 5)
    await commit(caller, 1, 0)


def test_what_groups_have_committed_is_at_the_next_master_after_a_second(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        old = await field.master()
        async with old.serving.caller() as caller:
            await make_group(caller)
            for number in range(5):
                await caller.sent(b"%d" % number)
            await asyncio.sleep(3)  # nothing has moved
            await commit(caller, 0, 2)
            await commit(caller, 0, 3)
            await asyncio.sleep(statefeed.MOVED_SECONDS + AT_ONCE_SECONDS)
        new = await killed(field, old)
        assert new.broker.offsets.query("g", "T", 0) == 3

    fielded(tmp_path, 2, main)


def test_very_many_moves_are_told_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statefeed, "MOVED_MAX", 2)

    async def main(clock: VirtualClock) -> None:
        async with told_slave(tmp_path, clock) as (master, slave, caller):
            await make_group(caller)
            await caller.sent(b"0")
            rounds = slave.broker.replication.sync.rounds
            for queue_id in range(4):
                await commit(caller, queue_id, 7)
            offsets = slave.broker.offsets
            await until(lambda: len(offsets.queues("g", "T")) > 0)
            assert len(offsets.queues("g", "T")) == 2
            await until(lambda: len(offsets.queues("g", "T")) > 2)
            master.broker.offsets.commit("g", "T", 0, 8)
            master.broker.offsets.delete_group("g")
            await until(lambda: not offsets.queues("g", "T"))
            await asyncio.sleep(2 * statefeed.MOVED_SECONDS)
            assert not offsets.queues("g", "T")
            await reset_offset(caller)
            await until(lambda: has_offset(slave))
            assert slave.broker.replication.sync.rounds == rounds, "all of it was asked for instead"

    loop.run(main)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_slave_that_becomes_master_leaves_no_group_behind_the_end_of_its_log(
    tmp_path: Path, *, is_killed: bool
) -> None:
    """Else new messages come to places that the group has passed."""
    left = tmp_path / "left"

    async def main(clock: VirtualClock) -> None:
        async with told_slave(tmp_path, clock) as (_, slave, caller):
            await commit_beyond_the_log(caller)
            await slave.dispatched()
            await until(lambda: slave.broker.offsets.queues("g", "T") == {0: 5, 1: 0})
            await slave.broker.replication.sync.ask_all()  # which has them written
            if is_killed:
                copy_whole(tmp_path / "s", left)
        if not is_killed:
            copy_whole(tmp_path / "s", left)
        async with replica(left, clock) as served:
            assert served.broker.offsets.queues("g", "T") == {0: 3, 1: 0}

    loop.run(main)
