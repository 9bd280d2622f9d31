"""Books of pops in RocksDB: what is noted there, and what becomes of it when the key is changed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop.kvstore import KvRecord, KvStore
from firearrow.broker.pop.retries import Retries
from firearrow.broker.turns import LOOK_SECONDS_MAX, RETRY_SECONDS
from firearrow.database import Database
from firearrow.errors import DiskFull, MessageError
from firearrow.store import MessageStore
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import FieldValue
from tests.broker.kvpops import KV, records_in, sent, set_keys, switch
from tests.broker.pop.test_revive import RETRY, again, lives, passed, sent_and_popped
from tests.broker.popping import ack, ack_fields, pop, popped, revive_records
from tests.broker.serving import Caller, Serving, bodies, calling, kill, left_by_kill, serving, stored
from tests.golden import extract
from tests.store.stores import GOLDEN_SIZES


def offsets(served: Serving) -> list[int]:
    """The queue offsets of all records."""
    return [record.queue_offset for record in records_in(served)]


# --- what is noted ---


def test_a_pop_is_a_record_for_each_message_and_no_checkpoint(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        handle = taken[0][1]
        assert handle.revive_queue_id == 0
        assert records_in(served) == [
            KvRecord(pop_ms=handle.pop_ms, group="g", topic="T", queue_id=0, invisible_ms=60_000, queue_offset=number)
            for number in range(3)
        ]
        assert bodies(served, "rmq_sys_wheel_timer") == []
        assert served.broker.offsets.query("g", "T", 0) == 3
        assert await popped(caller) == []

    lives(tmp_path, main, **KV)


def test_what_is_acknowledged_is_removed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        assert (await ack(caller, taken[1][1])).code == 0
        assert offsets(served) == [0, 2, 3]
        body = (
            b'{"brokerName":"broker-a","acks":[{"c":"g","t":"T","r":"0","so":0,"q":0,"rq":0,'
            b'"pt":%d,"it":60000,"b":"DQ=="}]}' % taken[0][1].pop_ms
        )
        assert (await caller.call(200151, {}, body)).code == 0
        assert offsets(served) == []
        await passed(served, taken[0][1].visible_ms)
        assert RETRY not in served.broker.topics.table
        assert revive_records(served) == []

    lives(tmp_path, main, **KV)


def test_who_acknowledges_too_late_changes_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(1)  # else it might be from before the start
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await passed(served, handle.visible_ms)
        assert (await ack(caller, handle)).code == 0
        assert again(served) == [b"0"]
        [(_, handle)] = await popped(caller)
        assert (await ack(caller, handle)).code == 0
        assert offsets(served) == []
        await passed(served, handle.visible_ms)
        assert bodies(served, "rmq_sys_wheel_timer") + revive_records(served) == []

    lives(tmp_path, main, **KV)


@pytest.mark.parametrize("suspend", [False, True])
def test_what_is_popped_again_has_another_record(tmp_path: Path, suspend: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        handle = taken[0][1]
        await asyncio.sleep(1)
        fields = ack_fields(handle, invisibleTime=120_000, suspend=suspend)
        answer = await caller.call(200053, fields)
        changed_ms = int(answer.ext["popTime"])
        assert (answer.code, answer.ext["reviveQid"]) == (0, "0")
        first, second = records_in(served)
        assert (first.queue_offset, second.queue_offset) == (1, 0)
        assert (second.pop_ms, second.invisible_ms) == (changed_ms, 120_000)
        assert second.is_suspended is suspend
        assert (await ack(caller, handle)).code == 0  # the old handle means nothing any more
        new = handle._replace(pop_ms=changed_ms, invisible_ms=120_000, start_offset=0)
        assert offsets(served) == [1, 0]
        assert (await ack(caller, new)).code == 0
        assert offsets(served) == [1]

    lives(tmp_path, main, **KV)


def test_what_is_popped_again_for_the_same_time_is_not_lost(tmp_path: Path) -> None:
    """Java removes the new record by the key of the old one (apache/rocketmq#10276)."""

    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await asyncio.sleep(1)
        ahead_ms = handle.visible_ms - served.broker._clock.now_ms()
        step_ms = 2  # until the request is handled
        for invisible_ms in range(ahead_ms - step_ms, ahead_ms + 1):
            fields = ack_fields(handle, invisibleTime=invisible_ms)
            assert (await caller.call(200053, fields)).code == 0
        assert offsets(served)[0] == 0
        await passed(served, handle.visible_ms)
        assert set(again(served)) == {b"0"}

    lives(tmp_path, main, **KV)


def test_retried_messages_are_noted_by_their_own_topic(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await passed(served, handle.visible_ms)
        [(_, handle)] = await popped(caller)
        [record] = records_in(served)
        assert (record.topic, record.retry_flag, handle.origin) == (RETRY, 1, 1)
        assert (await ack(caller, handle)).code == 0
        assert records_in(served) == []

    lives(tmp_path, main, **KV)


def test_pops_in_order_have_no_records(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 2)
        taken = await popped(caller, order=True, queueId=0)
        assert [handle.revive_queue_id for _, handle in taken] == [999, 999]
        assert records_in(served) == []
        assert (await ack(caller, taken[0][1])).code == 0

    lives(tmp_path, main, **KV)


def test_a_handle_that_no_pop_gave_is_harmless(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 1)
        for pop_ms, code in ((-(1 << 62), 0), ((1 << 63) - 1, 13)):
            wrong = taken[0][1]._replace(pop_ms=pop_ms)
            assert (await ack(caller, wrong)).code == code
            fields = ack_fields(wrong, invisibleTime=5000)
            assert (await caller.call(200053, fields)).code == code
        body = (
            b'{"brokerName":"broker-a","acks":[{"c":"g","t":"T","r":"0","so":0,"q":%d,"rq":0,'
            b'"pt":1,"it":60000,"b":"AQ=="}]}' % (1 << 40)
        )
        assert (await caller.call(200151, {}, body)).code == 0
        assert offsets(served) == [0]

    lives(tmp_path, main, **KV)


# --- the disk ---


def test_an_acknowledgement_is_on_the_disk_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[int]] = []

    async def main(served: Serving, caller: Caller) -> None:
        def noted(store: KvStore) -> None:
            sync(store)
            synced.append([record.queue_offset for record in records_in(served)])

        taken = await sent_and_popped(served, caller, 2)
        monkeypatch.setattr(KvStore, "sync", noted)
        assert (await ack(caller, taken[0][1])).code == 0
        assert synced[-1] == [1]
        answer = await caller.call(200053, ack_fields(taken[1][1], invisibleTime=9000))
        assert answer.code == 0
        assert len(synced) >= 2

    sync = KvStore.sync
    calling(tmp_path, main, **KV)


def test_an_acknowledgement_that_is_not_on_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Database) -> None:
        raise OSError(5, "the disk is gone")

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Database, "sync", refuse)
            answer = await ack(caller, taken[0][1])
        assert (answer.code, "the disk is gone" in (answer.remark or "")) == (1, True)

    calling(tmp_path, main, **KV)


def test_what_can_not_be_noted_is_not_popped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Database, "write", refuse)
            answer = await pop(caller)
            assert (answer.code, "No space left" in (answer.remark or "")) == (1, True)
        assert [view.body for view, _ in await popped(caller)] == [b"0"]

    lives(tmp_path, main, **KV)


def test_offsets_are_written_when_what_they_rest_on_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []

    async def main(served: Serving, caller: Caller) -> None:
        await sent_and_popped(served, caller, 1)
        monkeypatch.setattr(KvStore, "sync", lambda store: synced.append(store.unsynced))
        served.broker.offsets.save()
        assert synced == [True]

    lives(tmp_path, main, **KV)


def test_messages_are_logged_if_the_key_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await ack(caller, handle)
        said = [getattr(line, "what", None) for line in caplog.records]
        assert [what for what in said if what] == ["popped", "acknowledged"]

    with caplog.at_level("INFO"):
        lives(tmp_path, main, **KV, pop_consumer_kv_service_log=True)


# --- switching ---


@pytest.mark.parametrize("buffered", [False, True])
def test_to_the_database_with_messages_in_hand(tmp_path: Path, buffered: bool) -> None:
    """What was popped before is acknowledged, or comes again, by the revive topics."""

    async def main(served: Serving, caller: Caller) -> None:
        await switch(caller, on=False)
        old = await sent_and_popped(served, caller, 2)
        await asyncio.sleep(1)
        await switch(caller, on=True)
        for number in (2, 3):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        new = await popped(caller)
        assert [view.body for view, _ in new] == [b"2", b"3"]
        assert offsets(served) == [2, 3]
        for taken in (old, new):
            assert (await ack(caller, taken[0][1])).code == 0
        assert offsets(served) == [3]
        await passed(served, new[0][1].visible_ms)
        assert sorted(again(served)) == [b"1", b"3"]
        await asyncio.sleep(200)
        assert len(again(served)) == 2
        assert served.broker.offsets.query("g", "T", 0) == 4

    lives(tmp_path, main, **KV, enable_pop_buffer_merge=buffered)


def test_back_with_messages_in_hand(tmp_path: Path) -> None:
    """Records are acknowledged, popped again, or come again, as before."""

    async def main(served: Serving, caller: Caller) -> None:
        old = await sent_and_popped(served, caller, 4)
        await switch(caller, on=False)
        await caller.sent(b"4")
        await served.dispatched()
        new = await popped(caller)
        assert offsets(served) == [0, 1, 2, 3]
        assert (await ack(caller, old[0][1])).code == 0
        fields = ack_fields(old[1][1], invisibleTime=600_000)
        assert (await caller.call(200053, fields)).code == 0
        assert offsets(served) == [2, 3, 1]
        await passed(served, new[0][1].visible_ms)
        assert sorted(again(served)) == [b"2", b"3", b"4"]
        await asyncio.sleep(600)
        assert sorted(again(served)) == [b"1", b"2", b"3", b"4"]
        assert offsets(served) == []

    lives(tmp_path, main, **KV)


def test_a_start_without_the_keys_goes_on_with_what_is_in_the_database(tmp_path: Path) -> None:
    async def popping(served: Serving, caller: Caller) -> None:
        taken[:] = await sent_and_popped(served, caller, 3)

    async def main(served: Serving, caller: Caller) -> None:
        assert (await ack(caller, taken[1][1])).code == 0
        await caller.sent(b"3")
        await served.dispatched()
        [(_, handle)] = await popped(caller)
        assert (await ack(caller, handle)).code == 0
        await passed(served, handle.visible_ms)
        assert again(served) == [b"0", b"2"]

    taken: list[Any] = []
    lives(tmp_path, popping, **KV)
    lives(tmp_path, main)


def test_the_key_can_not_be_set_where_the_database_is_not_open(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        answer = await set_keys(caller, popConsumerKVServiceEnable="true")
        assert answer.code != 0
        assert "popConsumerKVServiceInit=true" in (answer.remark or "")
        fields: dict[str, FieldValue] = {}
        assert b"popConsumerKVServiceEnable=false" in (await caller.call(26, fields)).body

    calling(tmp_path, main)


# --- What is noted in RocksDB as popped comes again: when, where, and after whatever happened ---


LATE_SECONDS = 0.3  # a step of the count, and what is done then
SETTLED_SECONDS = 15  # until the disk has what came again, and the records are removed


async def due(served: Serving, visible_ms: int) -> None:
    """Let time pass until what was popped must have come again."""
    ahead_ms = visible_ms - served.broker._clock.now_ms()
    await asyncio.sleep(max(ahead_ms, 0) / 1000 + LATE_SECONDS)


def put(served: Serving, *records: KvRecord) -> None:
    """Write records as another broker would."""
    store = served.broker.popping.database
    assert store is not None
    store.put(records)


def record(served: Serving, queue_offset: int, **changed: Any) -> KvRecord:
    """A record that is due in a second."""
    fields: dict[str, Any] = {
        "pop_ms": served.broker._clock.now_ms(), "group": "g", "topic": "T", "queue_id": 0,
        "invisible_ms": 1000, "queue_offset": queue_offset,
    }  # fmt: skip
    return KvRecord(**fields | changed)


# --- what comes again ---


def test_what_is_not_acknowledged_comes_again_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        for at in (0, 2):
            await ack(caller, taken[at][1])
        view, handle = taken[1]
        await asyncio.sleep(59)
        assert RETRY not in served.broker.topics.table
        await due(served, handle.visible_ms)
        first, second = stored(served, RETRY)
        assert [first.body, second.body] == [b"1", b"3"]
        assert 0 <= first.store_timestamp_ms - handle.visible_ms <= 300
        assert first.reconsume_times == 1
        assert first.properties == view.properties | {
            "1ST_POP_TIME": str(handle.pop_ms), "ORIGIN_GROUP": "g"
        }  # fmt: skip
        assert served.broker.topics.table[RETRY].write_queue_nums == 1
        await asyncio.sleep(600)
        assert len(again(served)) == 2
        assert records_in(served) == []

    lives(tmp_path, main, **KV)


def test_it_comes_again_until_it_is_acknowledged(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        first_ms = handle.pop_ms
        for times in (1, 2, 3):
            await due(served, handle.visible_ms)
            [(view, handle)] = await popped(caller)
            assert view.reconsume_times == times
            assert view.properties["1ST_POP_TIME"] == str(first_ms)
        await ack(caller, handle)
        await asyncio.sleep(100)
        assert again(served) == [b"0"] * 3
        assert await popped(caller) == []

    lives(tmp_path, main, **KV)


def test_what_is_set_aside_has_not_failed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent_and_popped(served, caller, 1)
        put(served, record(served, 0, is_suspended=True))
        await asyncio.sleep(11)
        [view] = stored(served, RETRY)
        assert view.reconsume_times == 0

    lives(tmp_path, main, **KV)


def test_very_many_of_one_time_come_in_turns(tmp_path: Path) -> None:
    """Some in each turn, and a page after the other."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, 320)
        count = 0
        while taken := await popped(caller):
            count += len(taken)
        assert count == 320
        await asyncio.sleep(70)
        assert sorted(again(served)) == sorted(b"%d" % number for number in range(320))

    keys = {"pop_revive_max_return_size_per_read": 50, "pop_revive_concurrency": 7}
    lives(tmp_path, main, **KV, **keys)


# --- what can't come again ---


@contextmanager
def _refusing(patch: pytest.MonkeyPatch, error: Exception, times: int = 1 << 30) -> Iterator[list[int]]:
    """Have puts of retries refused so often."""
    refused: list[int] = []
    put_one = Retries.put

    def refuse(retries: Retries, target: Any, queue_offset: int, now_ms: int) -> None:
        if queue_offset == 0 and len(refused) < times:
            refused.append(now_ms)
            raise error
        put_one(retries, target, queue_offset, now_ms)

    with patch.context() as patched:
        patched.setattr(Retries, "put", refuse)
        yield refused


def test_one_that_can_not_come_again_is_tried_later_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        with _refusing(monkeypatch, MessageError("unreadable"), 2) as refused:
            await due(served, taken[0][1].visible_ms)
            assert again(served) == [b"1"]
            [waits] = records_in(served)
            assert (waits.queue_offset, waits.attempt_times) == (0, 1)
            assert waits.pop_ms == taken[0][1].pop_ms
            await asyncio.sleep(60)
        assert again(served) == [b"1", b"0"]
        first, second = refused
        assert 10_000 <= second - first <= 10_500
        assert stored(served, RETRY)[1].store_timestamp_ms - second >= 30_000
        assert [view.reconsume_times for view in stored(served, RETRY)] == [1, 1]

    lives(tmp_path, main, **KV)


def test_one_is_given_up_after_as_many_times_as_the_key_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent_and_popped(served, caller, 1)
        with _refusing(monkeypatch, MessageError("unreadable")) as refused:
            await asyncio.sleep(3600)
        assert len(refused) == 4
        await asyncio.sleep(SETTLED_SECONDS)
        assert records_in(served) == []
        assert RETRY not in served.broker.topics.table or again(served) == []

    lives(tmp_path, main, **KV, pop_revive_max_attempt_times=3)
    assert "is given up" in {getattr(line, "outcome", None) for line in caplog.records}


def test_a_full_disk_loses_nothing_and_counts_as_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        with _refusing(monkeypatch, DiskFull("no room")):
            await due(served, taken[0][1].visible_ms)
            assert served.broker.troubles == {"popped messages in RocksDB": "no room"}
            assert again(served) == []
            assert [record.attempt_times for record in records_in(served)] == [0, 0]
        await asyncio.sleep(RETRY_SECONDS + LATE_SECONDS)
        assert again(served) == [b"0", b"1"]
        assert served.broker.troubles == {}

    lives(tmp_path, main, **KV)


def test_a_damaged_record_brings_its_message_and_keeps_none_back(tmp_path: Path) -> None:
    """Java ends there, and nothing comes again any more (apache/rocketmq#10658)."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        store = served.broker.popping.database
        assert store is not None
        batch = store._database.batch()
        first = records_in(served)[0]
        batch.put("popState", first.key, b'{"popTime":')
        batch.put("popState", first.key[:8] + b"rubbish", b"{}")
        store._database.write(batch)
        await due(served, taken[0][1].visible_ms)
        assert again(served) == [b"0", b"1", b"2"]

    lives(tmp_path, main, **KV)


@pytest.mark.parametrize("skips", [True, False])
def test_messages_of_a_group_that_is_gone(tmp_path: Path, skips: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent_and_popped(served, caller, 1)
        assert (await set_keys(caller, autoCreateSubscriptionGroup="false")).code == 0
        served.broker.groups.delete("g")
        await asyncio.sleep(70 + SETTLED_SECONDS)
        if skips:
            assert RETRY not in served.broker.topics.table
        else:
            assert again(served) == [b"0"]
        assert records_in(served) == []

    lives(tmp_path, main, **KV, pop_revive_skip_if_group_absent=skips)


def test_messages_that_are_gone_do_not_come_again(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent_and_popped(served, caller, 1)
        put(served, record(served, 7), record(served, 0, topic="U"))
        await asyncio.sleep(11)
        assert len(records_in(served)) == 1
        await asyncio.sleep(70)
        assert again(served) == [b"0"]

    lives(tmp_path, main, **KV)


# --- after whatever happened ---


def test_a_record_goes_when_the_log_has_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loss of power might take both."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 1)
        with monkeypatch.context() as patched:
            patched.setattr(MessageStore, "flushed_offset", 0)
            await due(served, taken[0][1].visible_ms)
            await asyncio.sleep(60)
            assert again(served) == [b"0"]
            left_by_kill(tmp_path / "store", tmp_path / "killed")
        await asyncio.sleep(SETTLED_SECONDS)
        left_by_kill(tmp_path / "store", tmp_path / "later")

    async def killed(served: Serving, _: Caller) -> None:
        await asyncio.sleep(LATE_SECONDS)
        assert again(served) == [b"0", b"0"]

    async def later(served: Serving, _: Caller) -> None:
        await asyncio.sleep(LATE_SECONDS)
        assert again(served) == [b"0"]

    async def run(clock: VirtualClock) -> None:
        for name, test in (("store", main), ("killed", killed), ("later", later)):
            async with (
                serving(tmp_path / name, clock=clock, background=False, **KV) as served,
                served.caller() as caller,
            ):
                await test(served, caller)

    loop.run(run)


@pytest.mark.parametrize("acknowledged", [0, 1, 3])
def test_a_kill_loses_neither_messages_nor_acknowledgements(tmp_path: Path, acknowledged: int) -> None:
    async def run(clock: VirtualClock) -> None:
        serving_it = serving(tmp_path / "store", clock=clock, background=False, **KV)
        served = await serving_it.__aenter__()
        async with served.caller() as caller:
            taken = await sent_and_popped(served, caller, 3)
            for _, handle in taken[:acknowledged]:
                assert (await ack(caller, handle)).code == 0
        left_by_kill(tmp_path / "store", tmp_path / "killed")
        kill(served.broker)

    async def after(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(61)
        expected = [b"%d" % number for number in range(acknowledged, 3)]
        assert (again(served) if expected else []) == expected
        taken = await popped(caller)
        while more := await popped(caller):
            taken += more
        assert {view.body for view, _ in taken} >= set(expected)

    loop.run(run)
    lives(tmp_path / "killed", after, **KV)


def test_what_the_original_popped_comes_again(tmp_path: Path) -> None:
    """By the records that it wrote; what was acknowledged does not, and all else can be."""
    root = extract("popped-kv", tmp_path)
    shutil.rmtree(root / "index")

    async def main(served: Serving, caller: Caller) -> None:
        first = records_in(served)[0]
        assert await popped(caller) == []
        fields: dict[str, FieldValue] = {
            "consumerGroup": "g", "topic": "T", "queueId": 1, "offset": 1,
            "extraInfo": f"0 {first.pop_ms} 3600000 0 0 broker-a 1 1",
        }  # fmt: skip
        assert (await caller.call(200051, fields)).code == 0
        clock = served.broker._clock
        assert isinstance(clock, VirtualClock)
        clock.start_ms += first.visible_ms - clock.now_ms()  # it was two days before
        await asyncio.sleep(LOOK_SECONDS_MAX + LATE_SECONDS)
        assert again(served) == [b"m1", b"m4", b"m5"]
        await due(served, first.visible_ms + 3_600_000 + 1000)
        assert again(served) == [b"m1", b"m4", b"m5", b"m2"]
        assert [view.reconsume_times for view in stored(served, RETRY)] == [1, 1, 1, 0]

    lives(root, main, store={**GOLDEN_SIZES, "mapped_file_size_commit_log": 65_536})
