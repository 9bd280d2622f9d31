"""Flipped bits and cut files in the CommitLog of one of two brokers, which have the same messages.

``FIREARROW_DAMAGE_SEEDS`` is how many such stores are tried.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from firearrow.errors import StoreError
from firearrow.message.names import tag_code
from firearrow.message.properties import encode
from firearrow.store.offline import Layout, diff, verify
from firearrow.testing.loop import VirtualLoop
from tests.broker.world import scratch
from tests.replication.simulation import Node, World, simulate
from tests.store.stores import KiB, append, bodies, opened

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
        assert all(it == other[len(other) - len(it) :] for it, other in zip(ours, theirs, strict=True))
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


PROPERTIES = {"TAGS": "A", "KEYS": "k1", "city": "Bergen"}


class Torn(Damaged):
    """A pair, one of which has lost the end of its last message, which was sent with a tag."""

    damage: Callable[[bytes], bytes]
    of_master = False
    body_bytes = 50
    is_unclean = False
    is_healed = False
    why: str | None = None

    async def run(self) -> None:
        self.copies = self.role["in_sync_replicas"] = 2
        self.keys["mapped_file_size_commit_log"] = 1024 * KiB
        del self.slaves[1:]
        [slave] = self.slaves
        for node in (self.master, slave):
            await node.start()
        await asyncio.sleep(1)
        for number in range(4):
            body = b"%d" % number * self.body_bytes
            append(self.master.store, body, properties=PROPERTIES, now_ms=self.clock.now_ms())
        self.ends.append(self.master.store.log_end_offset)
        await asyncio.sleep(SETTLED_SECONDS)
        sound = self.master.log(0, self.ends[0])
        for node in (slave, self.master):
            await node.stop()
        self._tear(self.master if self.of_master else slave)
        for node in (self.master, slave):
            await node.start()
        await asyncio.sleep(SETTLED_SECONDS)
        await self._send()
        await asyncio.sleep(SETTLED_SECONDS)
        self.is_healed = bool(self.sent) and self.acknowledged == self.sent
        self.why = slave.side.trouble
        if not self.is_healed:
            for node in (slave, self.master):
                await node.stop()
            return
        assert slave.log(0, self.ends[0]) == sound
        [entries] = [slave.store.queue("T", 0)]
        code = tag_code("A")
        assert [entries.entry(number)[2] for number in range(4)] == [code] * 4
        for node in (slave, self.master):
            await node.stop()

    def _tear(self, node: Node) -> None:
        path = max((node.root / "commitlog").iterdir())
        data = bytearray(path.read_bytes())
        at = data.rindex(b"TAGS")
        text = bytes(data[at : at + len(encode(PROPERTIES))])
        torn = self.damage(text)
        assert torn != text
        assert len(torn) == len(text)
        data[at : at + len(text)] = torn
        path.write_bytes(data)
        if self.is_unclean:
            (node.root / "abort").touch()
            for name in ("settled", "closed.json"):
                (node.root / name).unlink(missing_ok=True)


def torn(damage: Callable[[bytes], bytes], **more: object) -> Torn:
    return cast(Torn, simulate(1, type("", (Torn,), {"damage": staticmethod(damage), **more})))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"is_unclean": True},
        {"body_bytes": 100_000},
        {"body_bytes": 100_000, "is_unclean": True},
        {"of_master": True},
        {"of_master": True, "body_bytes": 100_000},
    ],
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-10] + bytes(10),
        lambda text: bytes(len(text)),
        lambda text: b"\xff" * len(text),
        lambda text: text.replace(b"\1", b"="),
    ],
)
def test_a_last_message_that_is_torn_behind_its_body_is_whole_again(
    damage: Callable[[bytes], bytes], more: dict[str, object]
) -> None:
    """A slave has it from its master; or keeps what is sound, and a SYNC_MASTER goes on."""
    world = torn(damage, **more)
    assert world.is_healed, world.why


def test_who_is_right_is_not_guessed() -> None:
    """Two texts that may both have been sent."""
    world = torn(lambda text: text.replace(b"Bergen", b"Borgen"))
    assert not world.is_healed
    assert "nothing says which is right" in (world.why or "")
