"""Flipped bits and cut files in the CommitLog of one of two brokers, which have the same messages.

``FIREARROW_DAMAGE_SEEDS`` is how many such stores are tried.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from typing import cast

import pytest

from firearrow.errors import StoreError
from firearrow.store.offline import Layout, diff, verify
from firearrow.testing.loop import VirtualLoop
from tests.broker.world import scratch
from tests.replication.simulation import Node, World
from tests.store.stores import bodies, opened

SEEDS = int(os.environ.get("FIREARROW_DAMAGE_SEEDS", "20"))
SENDS = 12
SETTLED_SECONDS = 5.0


class Damaged(World):
    """A pair in which nothing happens but that one of the two logs is damaged."""

    async def run(self) -> None:
        self.copies = self.role["in_sync_replicas"] = 2
        self.role["slave_timeout"] = 10_000
        self.is_flushed, self.keys["flush_disk_type"] = True, "SYNC_FLUSH"
        del self.slaves[1:]
        [slave] = self.slaves
        for node in (self.master, slave):
            await node.start()
        await asyncio.sleep(1)
        await self._send_all()
        for node in (slave, self.master):
            await node.stop()
        if self.chance.random() < 0.5:
            self.counts[await self._with_slave_damaged(slave)] += 1
        else:
            self.counts[self._with_master_damaged(slave)] += 1

    async def _send_all(self) -> None:
        for _ in range(SENDS):
            await self._send()
        await asyncio.sleep(SETTLED_SECONDS)
        assert self.acknowledged == self.sent, "two have all, and their disks"

    def _damage(self, node: Node) -> None:
        """Flip some bits that are next to each other, or cut a file."""
        chance = self.chance
        path = chance.choice(sorted((node.root / "commitlog").iterdir()))
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[at] ^= chance.randrange(1, 256)
        else:
            del data[at:]
        path.write_bytes(data)
        if chance.random() < 0.5:  # the machine had lost its power
            (node.root / "abort").touch()
            (node.root / "settled").unlink(missing_ok=True)

    async def _with_slave_damaged(self, slave: Node) -> str:
        """It refuses to start, has again what it lacks, or verification or comparison finds it."""
        self._damage(slave)
        await self.master.start()
        try:
            await slave.start()
        except StoreError:
            return "slave: refused"
        lacks = self.master.store.log_end_offset - slave.store.log_end_offset
        await asyncio.sleep(30)
        start, end = slave.log_start, slave.store.log_end_offset
        is_same = slave.log(start, end) == self.master.log(start, end)
        if is_same:
            assert end == self.master.store.log_end_offset
        for node in (slave, self.master):
            await node.stop()
        if is_same:
            return "slave: copied again" if lacks else "slave: harmless"
        if not verify(Layout(slave.root)).sound:
            return "slave: for verification to find"
        # A field of a head that nothing vouches for, or what fills a file.
        assert not diff(Layout(self.master.root), Layout(slave.root)).same
        ours, theirs = self._content(slave), self._content(self.master)
        assert all(
            it == other[len(other) - len(it) :] for it, other in zip(ours, theirs, strict=True)
        )
        return "slave: for a comparison to find"

    def _with_master_damaged(self, slave: Node) -> str:
        """Whatever becomes of it, the slave is a master with all that was acknowledged."""
        before = self._content(self.master)
        assert self._content(slave) == before
        self._damage(self.master)
        try:
            found = self._content(self.master)
        except StoreError:
            found = None
        assert self._content(slave) == before
        if found is None:
            return "master: refused"
        if found == before:
            return "master: harmless"
        if any(ours != theirs[: len(ours)] for ours, theirs in zip(found, before, strict=True)):
            assert not verify(Layout(self.master.root)).sound
            return "master: for verification to find"
        return "master: shorter"

    def _content(self, node: Node) -> list[list[bytes]]:
        """What a broker without replication would give of a store."""
        sizes = {key: self.keys[key] for key in ("mapped_file_size_commit_log",)}
        with opened(node.root, background=False, **sizes) as store:
            return [bodies(store, queue_id=queue_id) for queue_id in range(2)]


@pytest.mark.timeout(60 + SEEDS)
def test_damage_to_one_of_two_logs_loses_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        directory = scratch()
        try:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                world = Damaged(seed, directory, cast(VirtualLoop, runner.get_loop()))
                runner.run(world.run())
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            shutil.rmtree(directory)
        counts += world.counts
    assert counts["slave: refused"] + counts["slave: copied again"] > 0
    assert counts["master: refused"] + counts["master: shorter"] > 0
