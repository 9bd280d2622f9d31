"""Pops in order: nobody gets further messages of a queue while somebody has some in hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.batch import encode_batch
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from firearrow.wire.command import FieldValue
from firearrow.wire.pop import Handle
from tests.broker.pop.test_revive import PATIENT, Main, lives
from tests.broker.popping import INVISIBLE_MS, ack, ack_fields, pop, popped
from tests.broker.serving import Caller, Serving, left_by_kill, send_fields, serving

COUNT = 8


async def make(served: Serving, caller: Caller, count: int = COUNT) -> None:
    """Send messages 0 to n-1 to queue 0."""
    for number in range(count):
        await caller.sent(b"%d" % number)
    await served.dispatched()


async def taken(caller: Caller, count: int = 3, **changed: FieldValue) -> dict[int, Handle]:
    """Pop some messages of queue 0 in order, and give their handles by their offsets."""
    fields: dict[str, FieldValue] = {"order": True, "queueId": 0, "maxMsgNums": count, **changed}
    found = await popped(caller, **fields)
    assert all(handle.is_ordered for _, handle in found)
    return {view.queue_offset: handle for view, handle in found}


async def counts(caller: Caller, **changed: FieldValue) -> str:
    """What the answer to such a pop says of how often its messages were popped before."""
    fields: dict[str, FieldValue] = {"order": True, "queueId": 0, "maxMsgNums": 3, **changed}
    answer = await pop(caller, **fields)
    assert answer.code == 0
    return str(answer.ext["orderCountInfo"])


def committed(served: Serving, queue_id: int = 0) -> int:
    return served.broker.offsets.query("g", "T", queue_id)


async def change(caller: Caller, handle: Handle, in_ms: int, **changed: FieldValue) -> dict[str, str]:
    """Have a message become visible in so many ms."""
    fields = ack_fields(handle, invisibleTime=in_ms, **changed)
    answer = await caller.call(200053, fields)
    assert answer.code == 0
    fields_of_answer: dict[str, str] = answer.ext
    return fields_of_answer


def alone(root: Path, main: Main, **options: Any) -> None:
    """Run a test with a broker in virtual time."""
    lives(root, main, **options)


def test_two_consumers_take_turns(tmp_path: Path) -> None:
    async def main(served: Serving, one: Caller) -> None:
        await make(served, one)
        async with served.caller() as other:
            handles = await taken(one)
            assert sorted(handles) == [0, 1, 2]
            assert await taken(other) == await taken(one) == {}
            for offset in (2, 0, 1):
                assert await taken(other) == {}
                assert (await ack(one, handles[offset])).code == 0
            assert committed(served) == 3
            assert sorted(await taken(other)) == [3, 4, 5]
            assert await taken(one) == {}

    alone(tmp_path, main)


def test_a_blocked_queue_does_not_block_others(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        for number in range(2):
            await caller.sent(b"%d" % number, queue_id=1)
        await served.dispatched()
        assert len(await taken(caller)) == 3
        found = await popped(caller, order=True)
        assert [view.queue_id for view, _ in found] == [1, 1]
        assert await popped(caller, order=True) == []

    alone(tmp_path, main)


def test_what_is_not_acknowledged_in_time_is_popped_again(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handles = await taken(caller)
        await ack(caller, handles[0])
        await ack(caller, handles[2])
        assert committed(served) == 1
        await asyncio.sleep(INVISIBLE_MS / 1000 - 0.01)
        assert await taken(caller) == {}
        await asyncio.sleep(0.02)
        assert await counts(caller) == "0 qo0%1 1;0 qo0%2 1;0 0 0"
        assert committed(served) == 1
        # What an earlier batch says has no effect: somebody else may have its messages.
        assert (await ack(caller, handles[1])).code == 0
        assert committed(served) == 1
        await asyncio.sleep(INVISIBLE_MS / 1000)
        assert await counts(caller, maxMsgNums=2) == "0 qo0%1 2;0 qo0%2 2;0 0 2"

    alone(tmp_path, main)


def test_an_attempt_may_be_repeated(tmp_path: Path) -> None:
    """Who did not get the answer asks again, and need not wait for the invisible time."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        first = await taken(caller, attemptId="x")
        assert await taken(caller, attemptId="y") == {}
        await asyncio.sleep(1)
        assert await counts(caller, attemptId="x") == "0 0 0"
        again = await taken(caller, attemptId="x")
        assert sorted(again) == [0, 1, 2]
        await ack(caller, first[0])
        assert committed(served) == 0
        await ack(caller, again[0])
        assert committed(served) == 1

    alone(tmp_path, main)


def test_acknowledgements_that_are_refused_or_have_no_effect(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handles = await taken(caller)
        answer = await ack(caller, handles[0], offset=5)
        assert answer.code == 13
        assert "commit:5" in (answer.remark or "")
        assert (await ack(caller, handles[0], offset=9)).code == 208
        assert (await ack(caller, handles[0], queueId=4)).code == 13
        assert (await ack(caller, handles[0], topic="U")).code == 17
        assert committed(served) == 0
        for handle in handles.values():
            await ack(caller, handle)
        assert (await ack(caller, handles[1])).code == 0
        assert committed(served) == 3

    alone(tmp_path, main)


def test_an_acknowledgement_without_a_pop_commits_nothing(tmp_path: Path) -> None:
    """Java: it commits what follows, even a message that is yet to be sent."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        served.broker.offsets.commit("g", "T", 0, 3)
        await popped(caller, queueId=1)  # makes the group
        for offset, expected in ((5, 3), (8, 3), (3, 4), (4, 5)):
            handle = Handle(offset, 1, INVISIBLE_MS, 999, 0, "broker-a", 0, offset)
            assert (await ack(caller, handle)).code == 0
            assert committed(served) == expected
        served.broker.offsets.commit("g", "T", 0, 8)
        handle = Handle(8, 1, INVISIBLE_MS, 999, 0, "broker-a", 0, 8)
        assert (await ack(caller, handle)).code == 0
        assert committed(served) == 8

    alone(tmp_path, main)


def test_several_are_acknowledged_at_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handle = (await taken(caller))[0]
        batch = {
            "c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 999, "pt": handle.pop_ms,
            "it": INVISIBLE_MS, "b": "BQ==",
        }  # fmt: skip
        body = fastjson.dumps({"brokerName": "broker-a", "acks": [batch]})
        assert (await caller.call(200151, {}, body)).code == 0
        assert committed(served) == 1
        body = fastjson.dumps({"brokerName": "broker-a", "acks": [{**batch, "b": "Cg=="}]})
        assert (await caller.call(200151, {}, body)).code == 13  # 1 and 3, which was not popped
        assert committed(served) == 3

    alone(tmp_path, main)


def test_a_message_may_become_visible_at_another_time(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handles = await taken(caller)
        await asyncio.sleep(1)
        answer = await change(caller, handles[1], 120_000)
        assert answer == {
            "popTime": str(handles[1].pop_ms), "invisibleTime": "121000", "reviveQid": "999"
        }  # fmt: skip
        await asyncio.sleep(100)
        assert await taken(caller) == {}
        await change(caller, handles[1], 0)
        assert sorted(await taken(caller)) == [0, 1, 2]
        await change(caller, handles[1], 0)  # that of the earlier batch
        assert await taken(caller) == {}

    alone(tmp_path, main)


def test_a_reset_frees_a_queue(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handles = await taken(caller)
        served.broker.offsets.reset("g", "T", 0, 6)
        assert (await ack(caller, handles[0], offset=6)).code == 13
        assert sorted(await taken(caller)) == [6, 7]
        assert (await ack(caller, handles[1])).code == 0
        assert committed(served) == 6

    alone(tmp_path, main)


def test_a_deleted_group_has_nothing_in_hand(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        assert await taken(caller)
        assert (await caller.call(207, {"groupName": "g", "cleanOffset": True})).code == 0
        assert sorted(await taken(caller)) == [0, 1, 2]

    alone(tmp_path, main)


def test_a_restart_leaves_a_queue_blocked(tmp_path: Path) -> None:
    handles: dict[int, Handle] = {}

    async def before(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        handles.update(await taken(caller))
        await ack(caller, handles[1])

    async def behind(served: Serving, caller: Caller) -> None:
        assert await taken(caller) == {}
        await ack(caller, handles[0])
        assert committed(served) == 2
        await asyncio.sleep(INVISIBLE_MS / 1000)
        assert await counts(caller) == "0 qo0%2 1;0 0 0"

    lives(tmp_path, before, behind)


@pytest.mark.parametrize("seconds", [6, 11])
def test_a_kill_takes_no_message(tmp_path: Path, seconds: int) -> None:
    """Offsets are written every 5 s, batches every 10 s. Java: the acknowledgement of message 2
    commits 3, and 0 and 1 are never consumed, if the batch was not written."""

    async def run(clock: VirtualClock) -> None:
        options: dict[str, Any] = {"clock": clock, "background": False, **PATIENT}
        async with serving(tmp_path / "a", **options) as served, served.caller() as caller:
            await make(served, caller)
            handles = await taken(caller)
            await asyncio.sleep(seconds)
            left_by_kill(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b/config/consumerOffset.json").exists()
        assert (tmp_path / "b/config/consumerOrderInfo.json").exists() == (seconds > 10)
        async with serving(tmp_path / "b", **options) as served, served.caller() as caller:
            assert committed(served) == 0
            assert (await ack(caller, handles[2])).code == 0
            assert committed(served) == 0
            await asyncio.sleep(INVISIBLE_MS / 1000)
            assert sorted(await taken(caller)) == [0, 1, 2]

    loop.run(run)


def test_random_consumers_get_every_message_in_order(tmp_path: Path) -> None:
    """Whatever consumers do, a message comes again until it is acknowledged, and none before those
    of the queue before it are."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(served, caller, 40)
        chance = served.broker._chance
        done: list[int] = []
        while len(done) < 40:
            handles = await taken(caller, chance.randint(1, 5), attemptId=f"{chance.random()}")
            if not handles:
                await asyncio.sleep(7)
                continue
            first, *_ = handles
            assert first == (done[-1] + 1 if done else 0)
            failed = min([offset for offset in handles if chance.random() < 0.2], default=max(handles) + 1)
            acked = [offset for offset in handles if offset != failed]
            chance.shuffle(acked)
            for offset in acked:
                await ack(caller, handles[offset])
            done += range(first, failed)
            assert committed(served) == failed

    alone(tmp_path, main)


@pytest.mark.parametrize("init_mode", [0, 1])
def test_a_message_of_several_offsets_does_not_come_for_ever(tmp_path: Path, init_mode: int) -> None:
    """Java: its second offset is committed, and the same message is popped again and again."""

    async def main(served: Serving, caller: Caller) -> None:
        fields: dict[str, FieldValue] = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            "attributes": "+queue.type=BatchCQ",
        }  # fmt: skip
        assert (await caller.call(17, fields)).code == 0
        members = encode_batch([(0, b"a", b""), (0, b"b", b""), (0, b"c", b"")])
        for _ in range(2):
            sent = await caller.call(320, send_fields(m=True, i="UNIQ_KEY\x01U\x02"), members)
            assert sent.code == 0
        await served.dispatched()
        handles = await taken(caller, 6, initMode=init_mode)
        assert sorted(handles) == ([3] if init_mode else [0, 3])
        for handle in handles.values():
            assert (await ack(caller, handle)).code == 0
        assert committed(served) == 6
        assert await taken(caller) == {}
        await asyncio.sleep(INVISIBLE_MS / 1000 + 1)
        assert await taken(caller) == {}

    alone(tmp_path, main, init_pop_offset_by_check_msg_in_mem=False)


# --- who waits for a queue that is not free ---


async def waiting(served: Serving, caller: Caller, **changed: FieldValue) -> asyncio.Task[Any]:
    """Pop in order, for as long as it takes."""
    fields: dict[str, FieldValue] = {
        "order": True, "queueId": 0, "maxMsgNums": 3, "pollTime": 14_000_000,
        "bornTime": served.broker._clock.now_ms(), **changed,
    }  # fmt: skip
    task = asyncio.create_task(pop(caller, **fields))
    await asyncio.sleep(1)
    assert not task.done()
    return task


async def given(served: Serving, task: asyncio.Task[Any]) -> tuple[list[int], int]:
    """The offsets that are given at last, and when: in seconds from now."""
    now_ms = served.broker._clock.now_ms()
    answer = await asyncio.wait_for(task, 14_000)
    assert answer.code == 0
    listed = answer.ext["msgOffsetInfo"].split(" ")[2]
    return list(map(int, listed.split(","))), (int(answer.ext["popTime"]) - now_ms) // 1000


@pytest.mark.parametrize("queue_id", [0, -1])
def test_who_waits_is_woken_by_the_last_acknowledgement(tmp_path: Path, queue_id: int) -> None:
    async def main(served: Serving, one: Caller) -> None:
        await make(served, one)
        async with served.caller() as other:
            handles = await taken(one)
            task = await waiting(served, other, queueId=queue_id)
            await one.sent(b"8")
            for offset in (1, 0, 2):
                await asyncio.sleep(1)
                assert not task.done()
                await ack(one, handles[offset])
            assert await given(served, task) == ([3, 4, 5], 0)

    alone(tmp_path, main)


def test_who_waits_is_woken_when_the_messages_are_visible_again(tmp_path: Path) -> None:
    async def main(served: Serving, one: Caller) -> None:
        await make(served, one)
        async with served.caller() as other:
            handles = await taken(one)
            await ack(one, handles[0])
            task = await waiting(served, other)
            assert await given(served, task) == ([1, 2, 3], INVISIBLE_MS // 1000 - 1)

    alone(tmp_path, main)


@pytest.mark.parametrize(("in_ms", "seconds"), [(0, 0), (5_000, 5), (120_000, 120)])
def test_who_waits_is_woken_at_the_time_that_was_named_last(tmp_path: Path, in_ms: int, seconds: int) -> None:
    async def main(served: Serving, one: Caller) -> None:
        await make(served, one)
        async with served.caller() as other:
            [handle] = (await taken(one, 1)).values()
            task = await waiting(served, other)
            await change(one, handle, in_ms)
            assert await given(served, task) == ([0, 1, 2], seconds)

    alone(tmp_path, main)


def test_who_waits_after_a_restart_is_woken_in_time(tmp_path: Path) -> None:
    async def before(served: Serving, caller: Caller) -> None:
        await make(served, caller)
        assert await taken(caller)

    async def behind(served: Serving, caller: Caller) -> None:
        task = await waiting(served, caller)
        offsets, seconds = await given(served, task)
        assert offsets == [0, 1, 2]
        assert INVISIBLE_MS // 1000 - 5 < seconds < INVISIBLE_MS // 1000

    lives(tmp_path, before, behind)


def test_who_waits_is_woken_by_a_reset(tmp_path: Path) -> None:
    async def main(served: Serving, one: Caller) -> None:
        await make(served, one)
        async with served.caller() as other:
            assert await taken(one)
            task = await waiting(served, other)
            fields: dict[str, FieldValue] = {
                "topic": "T", "group": "g", "timestamp": 0, "isForce": True
            }  # fmt: skip
            assert (await one.call(222, fields)).code == 0
            assert await given(served, task) == ([0, 1, 2], 0)

    alone(tmp_path, main)
