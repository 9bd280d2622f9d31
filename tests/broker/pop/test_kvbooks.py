"""Books of pops in RocksDB: what is noted there, and what becomes of it when the key is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop.kvrecords import KvRecord
from firearrow.broker.pop.kvstore import KvStore
from firearrow.database import Database
from firearrow.wire.command import FieldValue
from tests.broker.kvpops import KV, records_in, sent, set_keys, switch
from tests.broker.pop.test_revive import RETRY, again, lives, passed, sent_and_popped
from tests.broker.popping import ack, ack_fields, pop, popped, revive_records
from tests.broker.serving import Caller, Serving, bodies, calling


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
