"""What is noted in RocksDB is moved to the revive topics, and handles know where it is then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop.revivelog import ReviveLog
from firearrow.store import DiskFull
from tests.broker.kvpops import KV, records_in, sent, switch
from tests.broker.pop.test_revive import LATE_SECONDS, again, lives, sent_and_popped
from tests.broker.popping import ack, ack_fields, popped
from tests.broker.serving import Caller, Serving

ROLLBACK = 200056
SETTLED_SECONDS = 15


async def roll_back(caller: Caller) -> None:
    """Have all moved."""
    assert (await caller.call(ROLLBACK, {})).code == 0


def test_without_a_database_there_is_nothing_to_do(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await roll_back(caller)
        assert (await ack(caller, handle)).code == 0

    lives(tmp_path, main)


def test_what_was_popped_comes_again_by_the_revive_topics(tmp_path: Path) -> None:
    """Old handles acknowledge it, or have it visible at another time."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 6)
        suspended = ack_fields(taken[5][1], invisibleTime=60_000, suspend=True)
        assert (await caller.call(200053, suspended)).code == 0
        await asyncio.sleep(1)
        await roll_back(caller)
        assert records_in(served) == []
        await asyncio.sleep(SETTLED_SECONDS)
        store = served.broker.popping.database
        assert store is not None
        assert store.some(b"", 10) == []
        assert (await ack(caller, taken[1][1])).code == 0
        body = (
            b'{"brokerName":"broker-a","acks":[{"c":"g","t":"T","r":"0","so":0,"q":0,"rq":0,'
            b'"pt":%d,"it":60000,"b":"BA=="}]}' % taken[0][1].pop_ms
        )
        assert (await caller.call(200151, {}, body)).code == 0  # 2
        changed = ack_fields(taken[3][1], invisibleTime=300_000)
        assert (await caller.call(200053, changed)).code == 0
        await asyncio.sleep(60 + LATE_SECONDS)
        assert sorted(again(served)) == [b"0", b"4", b"5"]
        views = {view.body: view.reconsume_times for view in await caller.stored("%RETRY%g_T")}
        assert views == {b"0": 1, b"4": 1, b"5": 0}
        await asyncio.sleep(300)
        assert sorted(again(served)) == [b"0", b"3", b"4", b"5"]

    lives(tmp_path, main, **KV)


def test_what_is_popped_afterwards_is_noted_as_the_key_says(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        old = await sent_and_popped(served, caller, 1)
        await roll_back(caller)
        await asyncio.sleep(1)
        await caller.sent(b"1")
        await served.dispatched()
        new = await popped(caller)
        assert [record.queue_offset for record in records_in(served)] == [1]
        for taken in (old, new):
            assert (await ack(caller, taken[0][1])).code == 0
        assert records_in(served) == []
        await switch(caller, on=False)
        await caller.sent(b"2")
        await served.dispatched()
        await popped(caller)
        assert records_in(served) == []
        await asyncio.sleep(70)
        assert again(served) == [b"2"]

    lives(tmp_path, main, **KV)


def test_a_start_knows_what_was_moved(tmp_path: Path) -> None:
    async def moving(served: Serving, caller: Caller) -> None:
        taken[:] = await sent_and_popped(served, caller, 5)
        await roll_back(caller)

    async def main(served: Serving, caller: Caller) -> None:
        assert records_in(served) == []
        for number in (1, 4):
            assert (await ack(caller, taken[number][1])).code == 0
        await asyncio.sleep(70)
        assert sorted(again(served)) == [b"0", b"2", b"3"]

    taken: list[Any] = []
    lives(tmp_path, moving, **KV)
    lives(tmp_path, main)


def test_what_can_not_be_moved_is_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ReviveLog.put_checkpoint

    def refuse(revive_log: ReviveLog, checkpoint: Any, *rest: int) -> None:
        if checkpoint.start_offset == 3:
            raise DiskFull("no room")
        put(revive_log, checkpoint, *rest)

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 5)
        with monkeypatch.context() as patched:
            patched.setattr(ReviveLog, "put_checkpoint", refuse)
            answer = await caller.call(ROLLBACK, {})
            assert (answer.code != 0, "no room" in (answer.remark or "")) == (True, True)
        assert [record.queue_offset for record in records_in(served)] == [3, 4]
        for number in (0, 3):
            assert (await ack(caller, taken[number][1])).code == 0
        await asyncio.sleep(70)
        assert sorted(again(served)) == [b"1", b"2", b"4"]

    lives(tmp_path, main, **KV)


def test_many_are_moved_in_steps(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 200)
        while await popped(caller):
            pass
        assert len(records_in(served)) == 200
        await roll_back(caller)
        assert records_in(served) == []
        await asyncio.sleep(80)
        assert len(again(served)) == len(set(again(served))) == 200

    lives(tmp_path, main, **KV)
