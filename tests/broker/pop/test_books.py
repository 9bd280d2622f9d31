"""Checkpoints that stay in memory for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.model import MessageView
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.pop import Handle
from tests.broker.pop.test_revive import again, lives, passed, sent_and_popped
from tests.broker.popping import ack, popped
from tests.broker.serving import Caller, Serving, left_by_kill, stored

BUFFERED: dict[str, Any] = {"enable_pop_buffer_merge": True}
TIMER = "rmq_sys_wheel_timer"


def records(served: Serving) -> list[MessageView]:
    """What was written of pops."""
    return stored(served, TIMER)


def offset(served: Serving) -> int:
    """Where the group is in queue 0, for who asks."""
    return served.broker.offsets.query("g", "T", 0)


def test_what_is_acknowledged_soon_needs_no_record(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(2):
            [(_, first), (_, second)] = await sent_and_popped(served, caller, 2)
            at = first.queue_offset
            assert offset(served) == at
            await ack(caller, second)
            assert offset(served) == at
            assert await popped(caller) == []
            await ack(caller, first)
            assert offset(served) == at + 2
        await passed(served, first.visible_ms)
        assert records(served) == []
        assert "%RETRY%g_T" not in served.broker.topics.table

    lives(tmp_path, main, **BUFFERED)


def test_the_offset_passes_nothing_that_is_open(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(4):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        handles = [(await popped(caller, maxMsgNums=1))[0][1] for _ in range(4)]
        for at, reached in ((1, 0), (3, 0), (0, 2), (2, 4)):
            await ack(caller, handles[at])
            assert offset(served) == reached

    lives(tmp_path, main, **BUFFERED)


def test_what_is_open_for_long_is_written(tmp_path: Path) -> None:
    """With what was acknowledged; later acknowledgements are records."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        await ack(caller, taken[1][1])
        await asyncio.sleep(9)
        assert (records(served), offset(served)) == ([], 0)
        await asyncio.sleep(2)
        [written] = records(served)
        assert b'"bm":2' in written.body
        assert offset(served) == 4
        await ack(caller, taken[3][1])
        assert len(records(served)) == 2
        await passed(served, taken[0][1].visible_ms)
        assert again(served) == [b"0", b"2"]

    lives(tmp_path, main, **BUFFERED)


@pytest.mark.parametrize(("invisible_ms", "written"), [(4000, [1, 1]), (6000, [0, 1])])
def test_what_is_visible_soon_is_written_sooner(tmp_path: Path, invisible_ms: int, written: list[int]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1, invisibleTime=invisible_ms)
        assert len(records(served)) == written[0]
        await asyncio.sleep(invisible_ms / 1000 - 2.9)
        assert len(records(served)) == written[1]
        await passed(served, handle.visible_ms)
        assert again(served) == [b"0"]

    lives(tmp_path, main, **BUFFERED)


def test_all_bits_can_be_read_by_java(tmp_path: Path) -> None:
    """They are an int, which may be negative."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 32)
        await ack(caller, taken[31][1])
        await asyncio.sleep(11)
        [written] = records(served)
        assert b'"bm":-2147483648' in written.body
        await passed(served, taken[0][1].visible_ms)
        assert again(served) == [b"%d" % number for number in range(31)]

    lives(tmp_path, main, store={"mapped_file_size_consume_queue": 4000}, **BUFFERED)


def test_a_stop_writes_everything(tmp_path: Path) -> None:
    handles: list[Handle] = []

    async def first(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        handles.extend(handle for _, handle in taken)
        await ack(caller, handles[0])

    async def second(served: Serving, caller: Caller) -> None:
        assert len(records(served)) == 1
        assert offset(served) == 3
        assert await popped(caller) == []
        await passed(served, handles[0].visible_ms)
        assert again(served) == [b"1", b"2"]

    lives(tmp_path, first, second, **BUFFERED)


def test_after_a_kill_what_was_open_is_popped_again(tmp_path: Path) -> None:
    elsewhere = tmp_path / "left"

    async def first(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        await ack(caller, taken[0][1])
        await asyncio.sleep(6)  # offsets are written
        left_by_kill(tmp_path / "lives", elsewhere)

    async def second(served: Serving, caller: Caller) -> None:
        taken = await popped(caller)
        assert [view.body for view, _ in taken] == [b"0", b"1", b"2", b"3"]

    lives(tmp_path / "lives", first, **BUFFERED)
    lives(elsewhere, second, **BUFFERED)


def test_who_moves_a_group_is_obeyed(tmp_path: Path) -> None:
    """What is acknowledged later moves it nowhere else."""

    async def main(served: Serving, caller: Caller) -> None:
        offsets = served.broker.offsets
        taken = await sent_and_popped(served, caller, 3)
        offsets.commit("g", "T", 0, 2)
        assert [view.body for view, _ in await popped(caller)] == [b"2"]
        for _, handle in taken:
            await ack(caller, handle)
        assert offset(served) == 2
        offsets.reset("g", "T", 0, 1)
        assert [view.body for view, _ in await popped(caller)] == [b"1", b"2"]
        served.broker.store.delete_topic("T")
        served.broker.topics.delete("T")
        offsets.delete_topic("T")
        served.broker.topics.put(TopicConfig("T", 4, 4))
        await asyncio.sleep(11)
        assert offset(served) == -1

    lives(tmp_path, main, **BUFFERED)


def test_there_is_room_for_so_many(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(5):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        handles = [(await popped(caller, maxMsgNums=1))[0][1] for _ in range(5)]
        assert len(records(served)) == 3
        assert offset(served) == 0
        for at in (0, 1):
            await ack(caller, handles[at])
        assert offset(served) == 5
        assert len(records(served)) == 3

    lives(tmp_path, main, pop_ck_max_buffer_size=2, **BUFFERED)
    lives(tmp_path / "other", main, pop_ck_offset_max_queue_size=2, **BUFFERED)


def test_a_full_disk_keeps_what_is_open_in_memory(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        served.broker.store.log.refuse("no room")
        await asyncio.sleep(15)
        assert "no room" in served.broker.troubles["checkpoints of pops"]
        assert offset(served) == 0
        await ack(caller, taken[0][1])  # in memory
        served.broker.store.log.refuse(None)
        await asyncio.sleep(2)
        assert served.broker.troubles == {}
        assert (len(records(served)), offset(served)) == (1, 2)
        await passed(served, taken[0][1].visible_ms)
        assert again(served) == [b"1"]

    lives(tmp_path, main, store={"clean_resource_interval": 600_000}, **BUFFERED)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """What is kept then is written in its time."""

    async def main(served: Serving, caller: Caller) -> None:
        [(_, first)] = await sent_and_popped(served, caller, 1)
        answer = await caller.call(25, {}, b"enablePopBufferMerge=false")
        assert answer.code == 0
        await caller.sent(b"1")
        await served.dispatched()
        [(_, second)] = await popped(caller)
        assert len(records(served)) == 1
        await ack(caller, first)
        await ack(caller, second)
        assert (len(records(served)), offset(served)) == (2, 2)

    lives(tmp_path, main, **BUFFERED)


def test_at_rest_nothing_runs(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await ack(caller, handle)
        await asyncio.sleep(15)
        books = served.broker.popping.books
        assert not books._alarm.is_set
        assert (books._buffer, books._lines, books._deadlines) == ({}, {}, [])

    lives(tmp_path, main, **BUFFERED)
