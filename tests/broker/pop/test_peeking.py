"""Peeks: what a group would get next, and that it is not taken."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop import peeking
from firearrow.message.names import pop_retry_topic
from firearrow.message.record import iter_records
from firearrow.wire.command import Command, FieldValue
from tests.broker.popping import ack_fields, messages_of, pop, pop_fields, popped
from tests.broker.serving import Caller, Serving, in_virtual_time, seconds, until


async def peek(caller: Caller, **changed: FieldValue) -> Command[Any]:
    """Peek at topic T for group g."""
    fields: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": 32}
    return await caller.call(200052, fields | changed)


def bodies_of(answer: Command[Any]) -> list[bytes]:
    assert (answer.code, answer.remark) == (0, "FOUND")
    return [view.body for view in iter_records(answer.body)]


def test_a_peek_takes_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(4):
            await caller.sent(b"%d" % number, queue_id=number % 2)
        for _ in range(2):
            answer = await peek(caller)
            assert sorted(bodies_of(answer)) == [b"0", b"1", b"2", b"3"]
            times = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
            assert answer.ext == times | {"restNum": "4"}
        assert served.broker.offsets.topics_of("g") == set()
        assert bodies_of(await peek(caller, queueId=1)) == [b"1", b"3"]
        answer = await peek(caller, queueId=1, maxMsgNums=1)
        assert (bodies_of(answer), answer.ext["restNum"]) == ([b"1"], "2")
        assert len(await popped(caller, queueId=1)) == 2
        assert bodies_of(await peek(caller)) == [b"0", b"2"]

    in_virtual_time(tmp_path, main)


def test_nothing_to_peek_at(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"a")
        await popped(caller)
        for changed in ({}, {"queueId": 3}, {"consumerGroup": "h", "maxMsgNums": 0}):
            answer = await peek(caller, **changed)
            assert (answer.code, answer.remark, answer.body) == (19, "NO_MESSAGE_IN_QUEUE", b"")
            assert answer.ext["restNum"] == ("1" if changed.get("consumerGroup") else "0")

    in_virtual_time(tmp_path, main)


def test_retried_messages_are_first_or_last(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"own")
        await caller.sent(b"retried", topic=pop_retry_topic("T", "g"))
        firsts = [bodies_of(await peek(caller, maxMsgNums=1))[0] for _ in range(60)]
        assert set(firsts) == {b"own", b"retried"}
        assert firsts.count(b"own") > firsts.count(b"retried")
        assert sorted(bodies_of(await peek(caller, queueId=0))) == [b"own", b"retried"]

    in_virtual_time(tmp_path, main)


def test_an_offset_that_the_queue_has_not_is_corrected(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"a")
        served.broker.offsets.commit("g", "T", 0, 77)
        assert (await peek(caller)).code == 19
        assert served.broker.offsets.query("g", "T", 0) == 77

    in_virtual_time(tmp_path, main)


def test_one_answer_is_not_of_all_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "BYTES_MAX", 1000)

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(4):
            await caller.sent(bytes(600), queue_id=number)
        answer = await peek(caller)
        assert len(bodies_of(answer)) == 2
        assert answer.ext["restNum"] == "4"

    in_virtual_time(tmp_path, main)


# --- Pops that wait, notifications, and how many wait: on a broker, in virtual time ---


POLL_MS = 10_000


def waiting_fields(served: Serving, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of a pop that waits."""
    now_ms = served.broker._clock.now_ms()
    return pop_fields(pollTime=POLL_MS, bornTime=now_ms) | changed


def notification_fields(served: Serving, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 200054."""
    now_ms = served.broker._clock.now_ms()
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": "T", "queueId": -1, "pollTime": POLL_MS, "bornTime": now_ms,
    }  # fmt: skip
    return fields | changed


async def holding(served: Serving, count: int) -> None:
    await until(lambda: len(served.broker.popping.held) == count)


async def made(served: Serving, caller: Caller) -> None:
    """Have a topic without messages for the group."""
    await caller.sent(b"first")
    await popped(caller)


def said(answer: Command[Any]) -> tuple[str, str]:
    assert answer.code == 0, answer
    return answer.ext["hasMsg"], answer.ext["pollingFull"]


def test_a_waiting_pop_is_answered_by_a_send(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            consumer.tell(200050, waiting_fields(served))
            await holding(served, 1)
            await asyncio.sleep(3)
            before = seconds()
            await caller.sent(b"second")
            [(view, _)] = messages_of(await consumer.talker.answer())
            assert view.body == b"second"
            assert seconds() - before < 0.01
            assert len(served.broker.popping.held) == 0

    in_virtual_time(tmp_path, main)


def test_a_pop_waits_until_its_time(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        before = seconds()
        answer = await caller.call(200050, waiting_fields(served))
        assert (answer.code, answer.ext["restNum"]) == (210, "0")
        assert 9.95 <= seconds() - before < 9.98
        answer = await caller.call(200050, waiting_fields(served, bornTime=0, pollTime=1000))
        assert answer.code == 210
        assert 10.89 <= seconds() - before < 10.95

    in_virtual_time(tmp_path, main)


def test_a_pop_that_comes_too_late(tmp_path: Path) -> None:
    """Clients read the fields of any answer with code 210."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"first")
        for ago_ms, code in ((POLL_MS + 501, 210), (POLL_MS + 499, 0)):
            born_ms = served.broker._clock.now_ms() - ago_ms
            answer = await caller.call(200050, waiting_fields(served, bornTime=born_ms))
            assert answer.code == code
            assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.ext.keys()

    in_virtual_time(tmp_path, main)


def test_each_group_has_each_message_however_many_wait(tmp_path: Path) -> None:
    """A thousand pops of five groups, of any queue or of one."""
    groups, each = 5, 200

    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        for number in range(1, 4):
            await caller.sent(b"first", queue_id=number)
        await served.dispatched()
        async with served.caller() as consumer:
            for number in range(groups):
                await popped(caller, consumerGroup=f"g{number}")
                for place in range(each):
                    changed: dict[str, FieldValue] = {"queueId": place % 5 - 1, "consumerGroup": f"g{number}"}
                    consumer.tell(200050, waiting_fields(served, **changed))
            await holding(served, groups * each)
            sent = [b"m%d" % number for number in range(60)]
            for number, body in enumerate(sent):
                await caller.sent(body, queue_id=number % 4)
            found: list[bytes] = []
            while len(found) < groups * len(sent):
                answer = await consumer.talker.answer()
                assert answer.code == 0
                found += [view.body for view in iter_records(answer.body)]
            assert sorted(found) == sorted(sent * groups)
            await asyncio.sleep(1)
            waiting = len(served.broker.popping.held)
            assert groups * each - groups * len(sent) <= waiting < groups * each
            for _ in range(waiting):
                assert (await consumer.talker.answer()).code == 210

    in_virtual_time(tmp_path, main)


def test_what_a_pop_leaves_is_for_the_next_one(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            for _ in range(3):
                consumer.tell(200050, waiting_fields(served, maxMsgNums=2))
            await holding(served, 3)
            async with served.caller() as producer:
                await asyncio.gather(producer.sent(b"a"), caller.sent(b"b"))
                await producer.sent(b"c")
            found: list[bytes] = []
            while len(found) < 3:
                answer = await consumer.talker.answer()
                found += [view.body for view, _ in messages_of(answer)]
            assert sorted(found) == [b"a", b"b", b"c"]

    in_virtual_time(tmp_path, main)


def test_a_message_of_another_tag_wakes_nobody(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            consumer.tell(200050, waiting_fields(served, exp="B"))
            await holding(served, 1)
            await caller.sent(b"a", i="TAGS\x01A\x02")
            await served.dispatched()
            await asyncio.sleep(1)
            assert len(served.broker.popping.held) == 1
            assert served.broker.offsets.query("g", "T", 0) == 1
            await caller.sent(b"b", i="TAGS\x01B\x02")
            [(view, _)] = messages_of(await consumer.talker.answer())
            assert view.body == b"b"

    in_virtual_time(tmp_path, main)


def test_too_many_do_not_wait(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            for _ in range(3):  # one more than the limit says, as in RocketMQ
                consumer.tell(200050, waiting_fields(served))
                consumer.tell(200054, notification_fields(served))
            await until(lambda: len(served.broker.popping.held_notifications) == 3)
            assert (await caller.call(200050, waiting_fields(served))).code == 209
            assert said(await caller.call(200054, notification_fields(served))) == ("false", "true")
            polling: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": -1}
            assert (await caller.call(200055, polling)).ext == {"pollingNum": "3"}
            assert (await caller.call(200055, polling | {"queueId": 0})).ext == {"pollingNum": "0"}

    in_virtual_time(tmp_path, main, pop_polling_size=2)


def test_a_retried_message_wakes_a_pop_of_its_topic(tmp_path: Path) -> None:
    """A popped message that is not acknowledged comes again when its time is over."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"again")
        await popped(caller, invisibleTime=5000)
        before = seconds()
        answer = await caller.call(200050, waiting_fields(served, pollTime=60_000))
        [(view, handle)] = messages_of(answer)
        assert (view.body, handle.origin) == (b"again", 1)
        assert seconds() - before < 15

    in_virtual_time(tmp_path, main)


def test_what_a_closed_connection_waits_for_takes_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as gone:
            gone.tell(200050, waiting_fields(served))
            await holding(served, 1)
        await holding(served, 0)
        await caller.sent(b"second")
        await served.dispatched()
        [(view, _)] = await popped(caller)
        assert view.body == b"second"

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("how", ["ack", "time", "sooner"])
def test_a_pop_in_order_waits_until_its_queue_is_free(tmp_path: Path, how: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for body in (b"a", b"b"):
            await caller.sent(body)
        [(_, handle)] = await popped(caller, order=True, queueId=0, maxMsgNums=1)
        async with served.caller() as consumer:
            fields = waiting_fields(served, order=True, queueId=0, maxMsgNums=1, pollTime=90_000)
            consumer.tell(200050, fields)
            await holding(served, 1)
            before = seconds()
            await asyncio.sleep(1)
            if how == "ack":
                assert (await caller.call(200051, ack_fields(handle))).code == 0
            elif how == "sooner":
                changed = ack_fields(handle, invisibleTime=2000)
                assert (await caller.call(200053, changed)).code == 0
            [(view, _)] = messages_of(await consumer.talker.answer())
            assert view.body == (b"b" if how == "ack" else b"a")
            waited = {"ack": 1, "time": 60, "sooner": 3}[how]
            assert waited - 0.001 < seconds() - before < waited + 0.1

    in_virtual_time(tmp_path, main)


# --- notifications ---


def test_a_notification_tells_of_a_message_as_soon_as_there_is_one(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            consumer.tell(200054, notification_fields(served))
            await until(lambda: len(served.broker.popping.held_notifications) == 1)
            await caller.sent(b"second")
            assert said(await consumer.talker.answer()) == ("true", "false")
        assert said(await caller.call(200054, notification_fields(served))) == ("true", "false")
        await popped(caller)
        before = seconds()
        assert said(await caller.call(200054, notification_fields(served))) == ("false", "false")
        assert 9.95 <= seconds() - before < 9.98

    in_virtual_time(tmp_path, main)


def test_a_notification_by_tags_looks_at_the_next_messages(tmp_path: Path) -> None:
    async def asked(served: Serving, caller: Caller, **changed: FieldValue) -> str:
        fields = notification_fields(served, pollTime=0, expType="TAG", exp="B") | changed
        return said(await caller.call(200054, fields))[0]

    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(40):
            await caller.sent(b"a", i="TAGS\x01A\x02")
        await caller.sent(b"b", i="TAGS\x01B\x02")
        assert await asked(served, caller) == "false"  # 32 of them are looked at
        assert await asked(served, caller, exp="A") == "true"
        assert await asked(served, caller, expType="") == "true"
        assert await asked(served, caller, expType="SQL92", exp="x > 1") == "true"
        assert (await caller.call(200054, notification_fields(served, expType="SQL92", exp="x >"))).code == 23
        for _ in range(23):
            await caller.sent(b"a", i="TAGS\x01A\x02")
        assert await asked(served, caller) == "true"  # so many that nobody looks

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("v2", [False, True])
def test_a_notification_tells_of_retried_messages(tmp_path: Path, v2: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"again")
        await popped(caller, invisibleTime=5000)
        fields = notification_fields(served, queueId=0, pollTime=60_000)
        assert said(await caller.call(200054, fields))[0] == "true"
        assert served.broker.topics.get(pop_retry_topic("T", "g", v2=v2)) is not None
        [(view, _)] = await popped(caller, queueId=0)
        assert view.body == b"again"
        fields = notification_fields(served, queueId=0, pollTime=0)
        assert said(await caller.call(200054, fields))[0] == "false"

    in_virtual_time(tmp_path, main, enable_retry_topic_v2=v2)


def test_a_notification_of_a_blocked_queue_is_none(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for body in (b"a", b"b"):
            await caller.sent(body)
        [(_, handle)] = await popped(caller, order=True, maxMsgNums=1, attemptId="x")
        fields = notification_fields(served, pollTime=0, order=True)
        assert said(await caller.call(200054, fields))[0] == "false"
        assert said(await caller.call(200054, fields | {"attemptId": "x"}))[0] == "true"
        async with served.caller() as consumer:
            consumer.tell(200054, notification_fields(served, order=True))
            await until(lambda: len(served.broker.popping.held_notifications) == 1)
            assert (await caller.call(200051, ack_fields(handle))).code == 0
            assert said(await consumer.talker.answer())[0] == "true"

    in_virtual_time(tmp_path, main)


REFUSED: list[tuple[dict[str, FieldValue], int]] = [
    ({"topic": "nowhere"}, 17),
    ({"queueId": 8}, 29),
    ({"consumerGroup": "closed"}, 16),
    ({"consumerGroup": "a b"}, 26),
]


@pytest.mark.parametrize(("changed", "code"), REFUSED)
@pytest.mark.parametrize("request_code", [200050, 200052, 200054, 200055])
def test_what_is_refused(tmp_path: Path, request_code: int, changed: dict[str, FieldValue], code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"a")
        closed = b'{"groupName":"closed","consumeEnable":false}'
        assert (await caller.call(200, {}, closed)).code == 0
        answer = await caller.call(request_code, pop_fields(**changed))
        assert answer.code == code, answer

    in_virtual_time(tmp_path, main)


def test_a_broker_that_may_not_be_read_tells_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        changed = b"brokerPermission=2\n"
        assert (await caller.call(25, {}, changed)).code == 0
        for code in (200050, 200052, 200054, 200055):
            assert (await caller.call(code, pop_fields())).code == 16

    in_virtual_time(tmp_path, main)


def test_a_deleted_group_or_topic_ends_waits(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            consumer.tell(200050, waiting_fields(served))
            await holding(served, 1)
            assert (await caller.call(215, {"topic": "T"})).code == 0
            assert (await consumer.talker.answer()).code == 17
            await made(served, caller)
            consumer.tell(200050, waiting_fields(served))
            await holding(served, 1)
            answer = await caller.call(207, {"groupName": "g", "cleanOffset": True})
            assert answer.code == 0
            assert (await consumer.talker.answer()).code == 26
            assert served.broker.groups.get("g") is None

    in_virtual_time(tmp_path, main)


def test_a_stop_answers_who_waits(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await made(served, caller)
        async with served.caller() as consumer:
            consumer.tell(200050, waiting_fields(served))
            await holding(served, 1)
            await served.broker.popping.held.stop()
            assert (await consumer.talker.answer()).code == 210
            assert (await pop(caller, pollTime=POLL_MS)).code == 210

    in_virtual_time(tmp_path, main)
