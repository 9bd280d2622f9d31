"""A master and its slave that lose their power at one moment, under a steady load.

``FIREARROW_REPLICA_POWER_SEEDS`` is how often. What is lost with ASYNC_FLUSH is measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import cast

import pytest

from firearrow.testing.loop import VirtualLoop
from tests.broker.world import scratch
from tests.replication.simulation import FILE_BYTES, Node, Sent, World
from tests.store.stores import messages, opened

SEEDS = int(os.environ.get("FIREARROW_REPLICA_POWER_SEEDS", "2"))
EACH_SECONDS = 0.002
MESSAGES = 600
FLUSH_SECONDS = 0.5  # flushIntervalCommitLog


class Steady(World):
    """A SYNC_MASTER that gets a message each 2 ms until the power fails."""

    def __init__(self, seed: int, *rest: object, is_flushed: bool) -> None:
        super().__init__(seed, *rest)  # type: ignore[arg-type]
        self.copies = self.role["in_sync_replicas"] = 2
        self.role["slave_timeout"] = 10_000
        self.is_flushed = is_flushed
        self.keys["flush_disk_type"] = "SYNC_FLUSH" if is_flushed else "ASYNC_FLUSH"
        self.network.delay_seconds_max = 0.0005
        del self.slaves[1:]

    async def run_until_failure(self, *, both: bool) -> int:
        """Give how many acknowledged messages neither broker has left."""
        [slave] = self.slaves
        for node in (self.master, slave):
            await node.start()
        await asyncio.sleep(1)
        for _ in range(self.chance.randrange(MESSAGES // 2, MESSAGES)):
            self._put()
            await asyncio.sleep(EACH_SECONDS)
        self.master.lose_power()
        if both:
            slave.lose_power()
        else:
            await slave.stop()
        found = self._left(self.master) | self._left(slave)
        return sum(sent.number not in found for sent in self.acknowledged)

    def _left(self, node: Node) -> set[int]:
        with opened(node.root, background=False, mapped_file_size_commit_log=FILE_BYTES) as store:
            views = [view for queue_id in range(2) for view in messages(store, "T", queue_id)]
        return {int(view.body.split(b" ")[0]) for view in views}


def lost(seed: int, *, is_flushed: bool, both: bool) -> tuple[int, list[Sent]]:
    """How many are lost, and what was acknowledged."""
    directory = scratch()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = cast(VirtualLoop, runner.get_loop())
            world = Steady(seed, directory, loop, is_flushed=is_flushed)
            return runner.run(world.run_until_failure(both=both)), world.acknowledged
    finally:
        shutil.rmtree(directory)


@pytest.mark.timeout(60 + 5 * SEEDS)
@pytest.mark.parametrize(("is_flushed", "both"), [(True, True), (False, False)], ids=["SYNC_FLUSH", "one of two"])
def test_nothing_is_lost(is_flushed: bool, both: bool) -> None:
    for seed in range(SEEDS):
        count, acknowledged = lost(seed, is_flushed=is_flushed, both=both)
        assert count == 0, f"seed {seed}"
        assert len(acknowledged) > 200


@pytest.mark.timeout(60 + 5 * SEEDS)
def test_what_is_lost_when_both_lose_power_and_none_flushes_at_once() -> None:
    """The messages since the last flush at most, which is half a second."""
    found = []
    for seed in range(SEEDS):
        count, acknowledged = lost(seed, is_flushed=False, both=True)
        assert len(acknowledged) > 200
        found.append(count)
    assert max(found) <= FLUSH_SECONDS / EACH_SECONDS + 5
    assert sum(found) > 0
