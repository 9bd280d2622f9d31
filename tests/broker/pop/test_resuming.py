"""Where a group that pops goes on after the broker was killed before it wrote the offsets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.broker.pop.test_revive import RETRY, lives
from tests.broker.popping import ack, popped
from tests.broker.serving import Caller, Serving, left_by_kill, stored

AGAIN_SECONDS = 75  # after a minute, of a clock that begins anew in each life


async def bodies(caller: Caller, **changed: Any) -> list[bytes]:
    return [view.body for view, _ in await popped(caller, **changed)]


async def send(caller: Caller, *bodies: bytes) -> None:
    for body in bodies:
        tag = body[:1].decode()
        await caller.sent(body, i=f"TAGS\x01{tag}\x02UNIQ_KEY\x01U{body.decode()}\x02")
    await caller.stored()


@pytest.mark.parametrize("offsets_are_written", [False, True])
def test_what_was_popped_before_a_kill_stays_invisible(tmp_path: Path, *, offsets_are_written: bool) -> None:
    async def before(_: Serving, caller: Caller) -> None:
        await send(caller, b"A0", b"A1", b"A2", b"A3")
        if offsets_are_written:
            assert await bodies(caller, maxMsgNums=1) == [b"A0"]
            await asyncio.sleep(6)
        handle = (await popped(caller, maxMsgNums=2))[0][1]
        assert (await ack(caller, handle)).code == 0
        assert len(await bodies(caller, maxMsgNums=1)) == 1
        left_by_kill(tmp_path / "store", tmp_path / "killed")

    async def after(served: Serving, caller: Caller) -> None:
        assert await bodies(caller) == ([] if offsets_are_written else [b"A3"])
        await asyncio.sleep(AGAIN_SECONDS)
        again = {view.body for view in stored(served, RETRY)}
        expected = {b"A0", b"A2", b"A3"} if offsets_are_written else {b"A1", b"A2", b"A3"}
        assert again == expected

    lives(tmp_path / "store", before)
    lives(tmp_path / "killed", after)


def test_what_a_filter_passes_between_is_passed(tmp_path: Path) -> None:
    async def before(_: Serving, caller: Caller) -> None:
        await send(caller, b"B0", b"A1", b"B2", b"A3", b"A4")
        assert await bodies(caller, exp="A", maxMsgNums=2) == [b"A1", b"A3"]
        left_by_kill(tmp_path / "store", tmp_path / "killed")

    async def after(_: Serving, caller: Caller) -> None:
        assert await bodies(caller) == [b"A4"]

    lives(tmp_path / "store", before)
    lives(tmp_path / "killed", after)


def test_pops_that_are_in_memory_only_come_again(tmp_path: Path) -> None:
    """No message is passed that nothing in the store is about."""

    async def before(_: Serving, caller: Caller) -> None:
        await send(caller, b"A0", b"A1", b"A2")
        assert await bodies(caller, maxMsgNums=1) == [b"A0"]
        await caller.call(25, {}, b"enablePopBufferMerge=true")
        assert await bodies(caller, maxMsgNums=1) == [b"A1"]
        await caller.call(25, {}, b"enablePopBufferMerge=false")
        assert await bodies(caller, maxMsgNums=1) == [b"A2"]
        left_by_kill(tmp_path / "store", tmp_path / "killed")

    async def after(_: Serving, caller: Caller) -> None:
        assert await bodies(caller) == [b"A1", b"A2"]

    lives(tmp_path / "store", before)
    lives(tmp_path / "killed", after)


def test_a_group_that_was_moved_stays_there(tmp_path: Path) -> None:
    async def before(served: Serving, caller: Caller) -> None:
        await send(caller, b"A0", b"A1", b"A2")
        assert len(await bodies(caller, maxMsgNums=2)) == 2
        served.broker.offsets.commit("g", "T", 0, 1)
        await asyncio.sleep(6)
        left_by_kill(tmp_path / "store", tmp_path / "killed")

    async def after(_: Serving, caller: Caller) -> None:
        assert await bodies(caller) == [b"A1", b"A2"]

    lives(tmp_path / "store", before)
    lives(tmp_path / "killed", after)
