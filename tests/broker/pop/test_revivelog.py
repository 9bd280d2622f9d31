"""What is written of pops, byte by byte, and what of it need not wait for its time."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop import revivelog
from firearrow.errors import BrokerError, MessageError
from firearrow.message.names import TIMER_TOPIC
from firearrow.store.timers import TimerStore
from firearrow.wire.command import FieldValue
from firearrow.wire.pop import Handle
from firearrow.wire.poprecords import Acknowledgement, PopCheckpoint, encode
from tests.broker.pop.test_revive import RETRY, lives
from tests.broker.popping import INVISIBLE_MS, REVIVE_TOPIC, ack, popped, revive_records
from tests.broker.serving import Caller, Serving, in_virtual_time, left_by_kill, stored

WHEEL_SECONDS = 0.3  # after which everything is on the timer's wheel
DUE_SECONDS = INVISIBLE_MS / 1000 + 2


async def sent(served: Serving, caller: Caller, count: int) -> None:
    """Send so many messages to queue 0 of T."""
    for number in range(count):
        await caller.sent(b"%d" % number)
    await served.dispatched()


def waiting(served: Serving) -> list[tuple[bytes, dict[str, str]]]:
    """Bodies and properties of the records in the timer's queue."""
    return [(view.body, view.properties) for view in stored(served, TIMER_TOPIC)]


def on_wheel(served: Serving) -> int:
    """How many units wait."""
    return sum(served.broker.timing.store.pending.values())


def test_records_are_those_of_rocketmq(tmp_path: Path) -> None:
    """As a broker of version 5.5.0 writes them, in the order of its properties."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 3)
        (_, first), *_ = await popped(caller)
        await ack(caller, first._replace(queue_offset=2), offset=2)
        pop_ms, queue_id = first.pop_ms, first.revive_queue_id
        due_ms = pop_ms + INVISIBLE_MS
        checkpoint, acknowledgement = waiting(served)
        assert checkpoint[0] == (
            b'{"bm":0,"bn":"broker-a","c":"g","d":[0,1,2],"it":60000,"n":3,"pt":%d,"q":0,'
            b'"reviveTime":%d,"ro":0,"so":0,"sp":false,"t":"T"}' % (pop_ms, due_ms)
        )
        assert acknowledgement[0] == (b'{"ao":2,"bn":"broker-a","c":"g","pt":%d,"q":0,"so":0,"t":"T"}' % pop_ms)
        for (_, found), tag, place, deliver_ms in (
            (checkpoint, "ck", 0, due_ms - 1000),
            (acknowledgement, "ack", 2, due_ms),
        ):
            assert list(found.items()) == [
                ("REAL_TOPIC", REVIVE_TOPIC),
                ("TIMER_DELIVER_MS", str(deliver_ms)),
                ("UNIQ_KEY", f"T@0@{place}@g@{pop_ms}@broker-a@{tag}"),
                ("TAGS", tag),
                ("TIMER_OUT_MS", str((deliver_ms - 1) // 1000 * 1000)),
                ("REAL_QID", str(queue_id)),
            ]

    in_virtual_time(tmp_path, main)


def test_bodies_are_those_of_a_real_broker() -> None:
    """Taken from the log of one."""
    popped_ms = 1_795_425_965_796
    checkpoint = PopCheckpoint(
        broker_name="broker-a", group="g", deltas=[0, 1, 2], invisible_ms=10_000, count=3,
        pop_ms=popped_ms, queue_id=0, visible_ms=popped_ms + 10_000, start_offset=3, topic="T",
    )  # fmt: skip
    assert encode(checkpoint) == (
        b'{"bm":0,"bn":"broker-a","c":"g","d":[0,1,2],"it":10000,"n":3,"pt":1795425965796,"q":0,'
        b'"reviveTime":1795425975796,"ro":0,"so":3,"sp":false,"t":"T"}'
    )
    assert checkpoint.unique_key() == "T@0@3@g@1795425965796@broker-a@ck"
    several = Acknowledgement(
        queue_offsets=[1, 2], broker_name="broker-a", group="g", pop_ms=1_795_425_965_536,
        queue_id=0, start_offset=0, topic="T",
    )  # fmt: skip
    assert encode(several) == (b'{"ao":-1,"aol":[1,2],"bn":"broker-a","c":"g","pt":1795425965536,"q":0,"so":0,"t":"T"}')
    assert several.unique_key() == "T@0@-1@g@1795425965536@broker-a@ack"


def test_what_is_formatted_in_parts_is_the_record(tmp_path: Path) -> None:
    """Of one acknowledgement after another, in a batch with an odd name."""
    odd = Handle(7, 5, 6, 3, 1, 'b"%d\\é', 4, -1)
    batch = revivelog.PopBatch((odd.head, "%g%", "%RETRY%g_T", 4), odd)
    for queue_offset in (0, 9, 10**18):
        record = batch.acknowledgement(queue_offset)
        form = batch.acknowledgement(0).format()
        digits = b"%d" % queue_offset
        assert form.body(digits) == encode(record)
        assert form.key_before + digits + form.key_behind == record.unique_key().encode()


def test_what_is_acknowledged_at_once_stays_off_the_wheel(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 5)
        taken = await popped(caller)
        for _, handle in taken:
            await ack(caller, handle)
        assert len(waiting(served)) == 6
        await asyncio.sleep(WHEEL_SECONDS)
        assert on_wheel(served) == 0
        assert served.broker.timing.store.progress.queue_offset == 6
        await asyncio.sleep(DUE_SECONDS)
        assert revive_records(served) == []
        assert await popped(caller) == []

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("late", [False, True])
def test_all_of_a_batch_goes_on_it_if_one_is_open(tmp_path: Path, late: bool) -> None:
    """Also where the last one is acknowledged when the checkpoint is on it already."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 3)
        *others, (_, last) = await popped(caller)
        for _, handle in others:
            await ack(caller, handle)
        await asyncio.sleep(WHEEL_SECONDS)
        assert on_wheel(served) == 3
        if late:
            await ack(caller, last)
        await asyncio.sleep(WHEEL_SECONDS)
        assert on_wheel(served) == 3 + late
        await asyncio.sleep(DUE_SECONDS)
        tags = [view.tags for view in revive_records(served)]
        assert sorted(map(str, tags)) == ["ack"] * (2 + late) + ["ck"]

    in_virtual_time(tmp_path, main)


def test_batches_beside_each_other_are_told_apart(tmp_path: Path) -> None:
    """Three pops, of which the second stays open: its records go on the wheel, and no others."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 6)
        batches = [await popped(caller, maxMsgNums=2) for _ in range(3)]
        for number, batch in enumerate(batches):
            for _, handle in batch[number == 1 :]:
                await ack(caller, handle)
        await asyncio.sleep(WHEEL_SECONDS)
        assert on_wheel(served) == 2
        await asyncio.sleep(DUE_SECONDS)
        assert sorted(str(view.tags) for view in revive_records(served)) == ["ack", "ck"]
        assert [view.body for view, _ in await popped(caller)] == [b"2"]

    in_virtual_time(tmp_path, main)


def test_a_message_that_was_set_aside_and_consumed_stays_off_it(tmp_path: Path) -> None:
    """200053 is another pop of one message, and acknowledges it of the first."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 1)
        [(_, handle)] = await popped(caller)
        fields: dict[str, FieldValue] = {
            "consumerGroup": "g", "topic": "T", "queueId": 0, "extraInfo": str(handle),
            "offset": 0, "invisibleTime": 30_000,
        }  # fmt: skip
        answer = await caller.call(200053, fields)
        again = handle._replace(
            pop_ms=int(answer.ext["popTime"]),
            invisible_ms=int(answer.ext["invisibleTime"]),
            revive_queue_id=int(answer.ext["reviveQid"]),
        )
        await ack(caller, again)
        await asyncio.sleep(WHEEL_SECONDS)
        assert (len(waiting(served)), on_wheel(served)) == (4, 0)

    in_virtual_time(tmp_path, main)


def test_batches_are_kept_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are forgotten are noted in the usual way."""
    monkeypatch.setattr(revivelog, "BATCHES_MAX", 2)

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 8)
        taken = [(await popped(caller, maxMsgNums=1))[0][1] for _ in range(8)]
        kept = served.broker.popping.books.revive_log
        assert len(kept._batches) + len(kept._older) <= 4
        for handle in taken:
            assert (await ack(caller, handle)).code == 0
            assert len(kept._batches) + len(kept._older) <= 4
        await asyncio.sleep(WHEEL_SECONDS + DUE_SECONDS)
        assert await popped(caller) == []

    in_virtual_time(tmp_path, main)


def test_no_more_are_spared_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.store.timers.SPARED_MAX", 2)
    timers = TimerStore(tmp_path, 1024, 1000)
    timers.spare([3, 4])
    timers.spare([5])
    assert timers.spared == {3, 4}
    assert timers.pass_spared() == 0
    timers.pass_over(2)
    assert (timers.pass_spared(), timers.progress.queue_offset, timers.spared) == (2, 5, set())


def test_a_revive_queue_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """Nothing is written then, and no group moves on."""

    async def main(served: Serving, caller: Caller) -> None:
        books = served.broker.popping.books
        kept = books.revive_log
        checkpoint = PopCheckpoint(
            group="g", invisible_ms=1000, count=1, pop_ms=1, queue_id=0, start_offset=0, topic="T"
        )
        for queue_id in (-1, 8, 999):
            with pytest.raises(BrokerError, match=re.escape(f"reviveQid[{queue_id}] is illegal")):
                books.note_pop(checkpoint, queue_id, 1, 1)
        assert (waiting(served), books.offset("g", "T", 0)) == ([], -1)
        ended = Acknowledgement(group="g", pop_ms=1, queue_id=0, start_offset=0, topic="T")
        assert kept.put_acknowledgement(ended, 7, 1, 1) == -1  # its time is over
        assert [view.queue_id for view in stored(served, REVIVE_TOPIC, 7)] == [7]
        for text in ("", "1 2 3", "x" * 2000, "0 1 2 3 0 a\1b 0 0"):
            with pytest.raises(MessageError):
                kept.batch(text, "g", "T", 0)
        assert kept._batches == {}

    in_virtual_time(tmp_path, main)


# --- Where a group that pops goes on after the broker was killed before it wrote the offsets ---


AGAIN_SECONDS = 75  # after a minute, of a clock that begins again in each life


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
