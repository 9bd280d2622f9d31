"""Consumers of lite topics, by raw frames: subscriptions, pops, acknowledgements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.record import iter_records
from firearrow.wire.command import Command, FieldValue
from firearrow.wire.pop import ORDER_REVIVE_QUEUE, Handle
from tests.broker.serving import Caller, Serving, in_virtual_time, pull_fields, seconds, until

POP, SUBSCRIBE, UNSUBSCRIBED, ACK, CHANGE = 200070, 200071, 200073, 200051, 200053
NOTIFICATION = 200054
CREATE_TOPIC, CREATE_GROUP = 17, 200
STORE = {"enable_lmq": True, "enable_multi_dispatch": True}


async def prepare(caller: Caller, **attributes: str) -> None:
    """Make parent P and group G, which is bound to it."""
    topic: dict[str, FieldValue] = {
        "topic": "P", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": False, "attributes": "+message.type=LITE",
    }  # fmt: skip
    assert (await caller.call(CREATE_TOPIC, topic)).code == 0
    signed = {f"+{key}": value for key, value in {"lite.bind.topic": "P", **attributes}.items()}
    group = {"groupName": "G", "attributes": signed}
    answer = await caller.call(CREATE_GROUP, {}, json.dumps(group).encode())
    assert (answer.code, answer.remark) == (0, None)


async def send(caller: Caller, lite_topic: str, body: bytes) -> Command[Any]:
    """Send a message to a lite topic of P; consumers see it when this returns."""
    text = f"UNIQ_KEY\x01U1\x02__LITE_TOPIC\x01{lite_topic}\x02"
    answer = await caller.send(body, topic="P", i=text)
    await caller.stored("P")
    return answer


def change(action: str, *lite_topics: str, client: str = "c1", **more: object) -> bytes:
    entry = {
        "action": action, "clientId": client, "group": "G", "topic": "P",
        "liteTopicSet": list(lite_topics), "version": 1,
    }  # fmt: skip
    return json.dumps({"subscriptionSet": [entry | more]}).encode()


async def subscribe(caller: Caller, *lite_topics: str, **more: Any) -> None:
    answer = await caller.call(SUBSCRIBE, {}, change("PARTIAL_ADD", *lite_topics, **more))
    assert (answer.code, answer.remark) == (0, None)


def pop_fields(**changed: FieldValue) -> dict[str, FieldValue]:
    fields: dict[str, FieldValue] = {
        "clientId": "c1", "consumerGroup": "G", "topic": "P", "maxMsgNum": 32,
        "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0,
    }  # fmt: skip
    return fields | changed


async def pop(caller: Caller, **changed: FieldValue) -> Command[Any]:
    return await caller.call(POP, pop_fields(**changed))


def bodies(answer: Command[Any]) -> list[str]:
    assert answer.code in (0, 210), answer.remark
    return [view.body.decode() for view in iter_records(answer.body)]


async def popped(caller: Caller, **changed: FieldValue) -> list[str]:
    return bodies(await pop(caller, **changed))


def handle(answer: Command[Any], offset: int) -> str:
    pop_ms, invisible_ms = int(answer.ext["popTime"]), int(answer.ext["invisibleTime"])
    return str(Handle(0, pop_ms, invisible_ms, ORDER_REVIVE_QUEUE, 0, "broker-a", 0, offset))


async def ack(
    caller: Caller, answer: Command[Any], in_lite_topic: str, queue_offset: int, /, **changed: FieldValue
) -> Command[Any]:
    fields: dict[str, FieldValue] = {
        "consumerGroup": "G", "topic": "P", "queueId": 0, "offset": queue_offset,
        "liteTopic": in_lite_topic, "extraInfo": handle(answer, queue_offset),
    }  # fmt: skip
    return await caller.call(ACK, fields | changed)


def with_lite_topics(
    root: Path, main: Callable[[Serving, Caller], Coroutine[Any, Any, None]], **attributes: str
) -> None:
    async def prepared(served: Serving, caller: Caller) -> None:
        await prepare(caller, **attributes)
        await main(served, caller)

    in_virtual_time(root, prepared, store=STORE)


def test_messages_of_what_a_client_subscribes_to(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await send(caller, "a", b"a%d" % number)
            await send(caller, "b", b"b%d" % number)
            await send(caller, "other", b"o%d" % number)
        await subscribe(caller, "a", "b")
        answer = await pop(caller)
        assert sorted(bodies(answer)) == ["a0", "a1", "a2", "b0", "b1", "b2"]
        assert answer.ext["reviveQid"] == "999"
        assert answer.ext["orderCountInfo"] == "0;0;0;0;0;0"
        assert (await pop(caller)).code == 210

    with_lite_topics(tmp_path, main)


def test_the_parent_has_all_messages(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert (await send(caller, "a", b"1")).code == 0
        assert [view.body for view in await caller.stored("P")] == [b"1"]

    with_lite_topics(tmp_path, main)


@pytest.mark.parametrize("name", ["a$b", "a/b", "x" * 65, "ä"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await send(caller, name, b"1")
        assert answer.code == 13
        assert "lite topic" in (answer.remark or "")
        assert (await send(caller, "a", b"2")).code == 0

    with_lite_topics(tmp_path, main)


def test_a_lite_topic_is_blocked_until_its_batch_is_acknowledged(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        for number in range(4):
            await send(caller, "a", b"%d" % number)
        first = await pop(caller, maxMsgNum=2)
        assert bodies(first) == ["0", "1"]
        assert await popped(caller) == []
        assert (await ack(caller, first, "a", 1)).code == 0
        assert await popped(caller) == []
        assert (await ack(caller, first, "a", 0)).code == 0
        assert await popped(caller) == ["2", "3"]

    with_lite_topics(tmp_path, main)


def test_what_is_not_acknowledged_comes_again_in_its_order_and_is_counted(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        for number in range(3):
            await send(caller, "a", b"%d" % number)
        first = await pop(caller, maxMsgNum=2, invisibleTime=5000)
        assert (await ack(caller, first, "a", 0)).code == 0
        waits = caller.tell(POP, pop_fields(pollTime=20_000))
        second = await caller.talker.answer()
        assert second.opaque == waits
        assert int(second.ext["popTime"]) >= int(first.ext["popTime"]) + 5000
        assert bodies(second) == ["1", "2"]
        assert second.ext["orderCountInfo"] == "0 qo0%1 1;0"

    with_lite_topics(tmp_path, main)


def test_a_pop_that_waits_is_answered_by_a_send(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        async with served.caller() as other:
            waits = caller.tell(POP, pop_fields(pollTime=15_000))
            await until(lambda: len(served.broker.lite.held) == 1)
            await send(other, "unrelated", b"no")
            await send(other, "a", b"yes")
            answer = await caller.talker.answer()
            assert answer.opaque == waits
            assert bodies(answer) == ["yes"]

    with_lite_topics(tmp_path, main)


def test_a_pop_that_waits_for_nothing_is_answered_in_time(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        begun = seconds()
        answer = await pop(caller, pollTime=15_000)
        assert answer.code == 210
        assert 14.9 <= seconds() - begun <= 15

    with_lite_topics(tmp_path, main)


def test_another_group_takes_nothing_from_an_exclusive_one(tmp_path: Path) -> None:
    """Clients repeat all that they subscribe to, and find out so that they have lost something."""

    async def main(_: Serving, caller: Caller) -> None:
        other = {"groupName": "H", "attributes": {"+lite.bind.topic": "P"}}
        assert (await caller.call(CREATE_GROUP, {}, json.dumps(other).encode())).code == 0
        await subscribe(caller, "a", client="c2", group="H")
        everything = change("COMPLETE_ADD", "a")
        assert (await caller.call(SUBSCRIBE, {}, everything)).code == 0
        await send(caller, "a", b"1")
        assert await popped(caller) == ["1"]
        assert await popped(caller, clientId="c2", consumerGroup="H") == ["1"]

    with_lite_topics(tmp_path, main, **{"lite.sub.model": "Exclusive"})


def test_an_exclusive_group_has_one_client_for_each(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        await subscribe(caller, "a")
        async with served.caller() as other:
            await subscribe(other, "a", client="c2")
            told = await caller.talker.answer()
            assert (told.code, told.is_oneway) == (UNSUBSCRIBED, True)
            assert told.ext == {"clientId": "c1", "consumerGroup": "G", "liteTopic": "a"}
            assert await popped(caller) == []
            assert await popped(other, clientId="c2") == ["1"]

    with_lite_topics(tmp_path, main, **{"lite.sub.model": "Exclusive"})


def test_who_adds_again_what_it_has_keeps_it(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        await subscribe(caller, "a")
        await subscribe(caller, "a")
        told = await caller.call(200077, {"parentTopic": "P", "group": "G", "clientId": "c1", "maxCount": 9})
        assert json.loads(told.body)["liteTopicCount"] == 1
        assert await popped(caller) == ["1"]

    with_lite_topics(tmp_path, main, **{"lite.sub.model": "Exclusive"})


def test_clients_of_a_group_share_what_both_subscribe_to(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        async with served.caller() as other:
            await subscribe(other, "a", client="c2")
            await send(caller, "a", b"1")
            assert await popped(other, clientId="c2") == ["1"]
            assert await popped(caller) == []

    with_lite_topics(tmp_path, main)


def test_a_wildcard_takes_all(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"before")
        answer = await caller.call(SUBSCRIBE, {}, change("PARTIAL_ADD", "a"))
        assert answer.code == 604
        assert (await caller.call(SUBSCRIBE, {}, change("COMPLETE_ADD"))).code == 0
        await send(caller, "b", b"after")
        assert sorted(await popped(caller)) == ["after", "before"]

    with_lite_topics(tmp_path, main, **{"lite.sub.wildcard": "true"})


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"type": "POLICY", "value": 1}, ["0", "1", "2"]),
        ({"type": "POLICY", "value": 2}, []),
        ({"type": "POLICY", "value": 0}, ["1", "2"]),
        ({"type": "OFFSET", "value": 2}, ["2"]),
        ({"type": "TAIL_N", "value": 1}, ["0", "1", "2"]),
        ({"type": "TIMESTAMP", "value": 1}, ["1", "2"]),
    ],
)
def test_where_a_client_begins(tmp_path: Path, option: dict[str, object], expected: list[str]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await send(caller, "a", b"%d" % number)
        await subscribe(caller, "a")
        first = await pop(caller, maxMsgNum=1)
        await ack(caller, first, "a", 0)
        await caller.call(SUBSCRIBE, {}, change("PARTIAL_REMOVE", "a"))
        await subscribe(caller, "a", offsetOption=option)
        assert await popped(caller) == expected

    with_lite_topics(tmp_path, main)


def test_a_full_list_replaces_what_a_client_had(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for name in "abc":
            await send(caller, name, name.encode())
        await subscribe(caller, "a", "b")
        await caller.call(SUBSCRIBE, {}, change("COMPLETE_ADD", "b", "c"))
        assert sorted(await popped(caller)) == ["b", "c"]
        await caller.call(SUBSCRIBE, {}, change("COMPLETE_REMOVE"))
        await send(caller, "c", b"c2")
        assert await popped(caller) == []

    with_lite_topics(tmp_path, main)


def test_a_client_that_says_nothing_is_forgotten(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await asyncio.sleep(400)
        async with served.caller() as other:
            await send(other, "a", b"1")
            assert await popped(other) == []
            await subscribe(other, "a")
            assert await popped(other) == ["1"]

    with_lite_topics(tmp_path, main)


def test_the_time_of_a_message_and_of_a_batch_is_changed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"0")
        first = await pop(caller, invisibleTime=60_000)
        fields: dict[str, FieldValue] = {
            "consumerGroup": "G", "topic": "P", "queueId": 0, "offset": 0, "liteTopic": "a",
            "extraInfo": handle(first, 0), "invisibleTime": 2000, "suspend": True,
        }  # fmt: skip
        changed = await caller.call(CHANGE, fields)
        assert changed.code == 0
        assert changed.ext["popTime"] == first.ext["popTime"]
        second = await pop(caller, pollTime=10_000)
        assert bodies(second) == ["0"]
        assert second.ext["orderCountInfo"] == "0"
        wait_ms = int(second.ext["popTime"]) - int(first.ext["popTime"])
        assert 2000 <= wait_ms < 3000

    with_lite_topics(tmp_path, main)


def test_an_attempt_that_is_repeated_gets_the_same(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"0")
        assert await popped(caller, attemptId="x") == ["0"]
        assert await popped(caller, attemptId="y") == []
        await send(caller, "a", b"1")

    with_lite_topics(tmp_path, main)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "unknown"}, 17),
        ({"topic": "T"}, 29),
        ({"consumerGroup": "other"}, 29),
        ({"maxMsgNum": 33}, 29),
        ({"maxMsgNum": 0}, 29),
        ({"maxMsgNum": "x"}, 1),
    ],
)
def test_pops_that_are_refused(tmp_path: Path, changed: dict[str, FieldValue], code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        assert (await pop(caller, **changed)).code == code

    with_lite_topics(tmp_path, main)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"offset": 9}, 208),
        ({"queueId": 9}, 13),
        ({"queueId": 1}, 29),
        ({"extraInfo": "0 1 2 3 0 b 0 0"}, 29),
        ({"extraInfo": "x"}, 1),
        ({"topic": "unknown"}, 17),
        ({"consumerGroup": "other"}, 29),
        ({"liteTopic": "unknown"}, 0),
    ],
)
def test_acknowledgements_that_are_refused(tmp_path: Path, changed: dict[str, FieldValue], code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"0")
        first = await pop(caller)
        assert (await ack(caller, first, "a", 0, **changed)).code == code
        assert (await ack(caller, first, "a", 0)).code == 0

    with_lite_topics(tmp_path, main)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 604),
        (b"{}", 604),
        (b'{"subscriptionSet":[]}', 604),
        (b'{"subscriptionSet":[{"action":"NONE","clientId":"c","group":"G","topic":"P"}]}', 1),
        (b'{"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":" ","group":"G"}]}', 0),
        (b"[", 1),
    ],
)
def test_changes_that_are_refused(tmp_path: Path, body: bytes, code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.call(SUBSCRIBE, {}, body)).code == code

    with_lite_topics(tmp_path, main)


def test_an_exclusive_group_does_not_keep_others_out(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        given = {"+lite.bind.topic": "P", "+lite.sub.model": "Exclusive"}
        other = {"groupName": "G2", "attributes": given}
        assert (await caller.call(CREATE_GROUP, {}, json.dumps(other).encode())).code == 0
        await subscribe(caller, "a", group="G2")
        await caller.call(SUBSCRIBE, {}, change("COMPLETE_ADD", "a"))
        await send(caller, "a", b"1")
        assert await popped(caller) == ["1"]
        assert await popped(caller, consumerGroup="G2") == ["1"]

    with_lite_topics(tmp_path, main, **{"lite.sub.model": "Exclusive"})


def test_a_lite_topic_is_pulled_by_its_name(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await send(caller, "a", b"%d" % number)
            await send(caller, "b", b"other")
        for code in (11, 361):
            pulled = await caller.call(code, pull_fields(1, topic="P", liteTopic="a"))
            assert bodies(pulled) == ["1", "2"]
            assert (pulled.ext["nextBeginOffset"], pulled.ext["maxOffset"]) == ("3", "3")
        fields: dict[str, FieldValue] = {"topic": "P", "queueId": 0, "timestamp": 0}
        assert (await caller.call(29, {**fields, "liteTopic": "a"})).ext["offset"] == "0"
        later: dict[str, FieldValue] = {**fields, "timestamp": 1 << 50}
        assert (await caller.call(29, {**later, "liteTopic": "a"})).ext["offset"] == "3"
        assert (await caller.call(29, {**later, "liteTopic": "none"})).ext["offset"] == "0"

    with_lite_topics(tmp_path, main)


def test_what_is_pulled_of_a_lite_topic_is_not_committed_for_its_parent(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        await send(caller, "a", b"2")
        await caller.call(11, pull_fields(1, topic="P", liteTopic="a", commitOffset=1, sysFlag=5))
        place: dict[str, FieldValue] = {"consumerGroup": "g", "queueId": 0}
        assert (await caller.call(14, {**place, "topic": "%LMQ%$P$a"})).ext["offset"] == "1"
        assert served.broker.offsets.query("g", "P", 0) == -1
        committed: dict[str, FieldValue] = {**place, "topic": "%LMQ%$P$a", "commitOffset": 2}
        assert (await caller.call(15, committed)).code == 0
        assert (await caller.call(14, {**place, "topic": "%LMQ%$P$a"})).ext["offset"] == "2"

    with_lite_topics(tmp_path, main)


def test_a_pull_of_a_lite_topic_waits_for_its_messages(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        fields = pull_fields(1, topic="P", liteTopic="a", sysFlag=6, suspendTimeoutMillis=15_000)
        async with served.caller() as other:
            waits = caller.tell(11, fields)
            await served.holding(1)
            await send(other, "b", b"no")
            await send(other, "a", b"yes")
            answer = await caller.talker.answer()
            assert answer.opaque == waits
            assert bodies(answer) == ["yes"]

    with_lite_topics(tmp_path, main)


def test_quotas(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await prepare(caller)
        for lite in "ab":
            assert (await send(caller, lite, b"1")).code == 0
        assert (await send(caller, "c", b"1")).code == 2017
        assert (await send(caller, "a", b"2")).code == 0
        await subscribe(caller, "a", "b")
        answer = await caller.call(SUBSCRIBE, {}, change("PARTIAL_ADD", "c", client="c2"))
        assert answer.code == 2018
        assert sorted(await popped(caller)) == ["1", "1", "2"]
        await caller.call(SUBSCRIBE, {}, change("PARTIAL_REMOVE", "b"))
        await subscribe(caller, "c", client="c2")

    store = {**STORE, "enable_lmq_quota": True, "max_lmq_consume_queue_num": 2}
    in_virtual_time(tmp_path, main, store=store, max_lite_subscription_count=2)


def test_without_lmqs_a_lite_message_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await prepare(caller)
        answer = await send(caller, "a", b"1")
        assert (answer.code, "enableLmq" in (answer.remark or "")) == (13, True)
        assert await caller.stored("P") == []

    in_virtual_time(tmp_path, main)


# --- notifications ---


def notification_fields(**changed: FieldValue) -> dict[str, FieldValue]:
    fields: dict[str, FieldValue] = {
        "consumerGroup": "G", "topic": "P", "queueId": -1, "pollTime": 0, "bornTime": 0,
        "isLiteConsumer": True, "clientId": "c1",
    }  # fmt: skip
    return fields | changed


async def is_there(caller: Caller, **changed: FieldValue) -> str:
    answer = await caller.call(NOTIFICATION, notification_fields(**changed))
    assert answer.code == 0, answer.remark
    return str(answer.ext["hasMsg"])


@pytest.mark.parametrize("kind", [{}, {"lite.sub.wildcard": "true"}])
def test_a_notification_is_about_what_the_client_can_pop(tmp_path: Path, kind: dict[str, str]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "other", b"0")
        assert await is_there(caller) == "false"  # though the parent has messages
        if kind:
            await caller.call(SUBSCRIBE, {}, change("COMPLETE_ADD"))
            assert await popped(caller) == ["0"]
        else:
            await subscribe(caller, "a")
        assert await is_there(caller) == "false"
        await send(caller, "a", b"1")
        assert await is_there(caller) == "true"
        assert await is_there(caller) == "true"
        answer = await pop(caller)
        assert bodies(answer) == ["1"]
        await send(caller, "a", b"2")
        assert await is_there(caller) == "false"  # the first one blocks it
        assert (await ack(caller, answer, "a", 0)).code == 0
        assert await is_there(caller) == "true"
        assert await popped(caller) == ["2"]

    with_lite_topics(tmp_path, main, **kind)


@pytest.mark.parametrize("kind", [{}, {"lite.sub.wildcard": "true"}])
def test_a_notification_waits_as_a_pop_does(tmp_path: Path, kind: dict[str, str]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        action = "COMPLETE_ADD" if kind else "PARTIAL_ADD"
        async with served.caller() as first, served.caller() as second, served.caller() as third:
            waits = {"pollTime": 10_000, "bornTime": served.broker._clock.now_ms()}
            first.tell(NOTIFICATION, notification_fields(**waits))
            second.tell(NOTIFICATION, notification_fields(clientId="c2", **waits))
            third.tell(POP, pop_fields(**waits))
            await until(lambda: len(served.broker.lite.held) == 3)
            await caller.call(SUBSCRIBE, {}, change(action, "a"))
            if not kind:
                await send(caller, "b", b"nobody subscribes to it")
            await asyncio.sleep(3)
            before = seconds()
            await send(caller, "a", b"1")
            assert (await first.talker.answer()).ext["hasMsg"] == "true"
            assert bodies(await third.talker.answer()) == ["1"]
            assert seconds() - before < 0.01
            late = await second.talker.answer()  # it subscribes to nothing
            assert (late.ext["hasMsg"], late.ext["pollingFull"]) == ("false", "false")
            assert 6.9 < seconds() - before < 7

    with_lite_topics(tmp_path, main, **kind)


def test_notifications_that_are_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"T has messages")
        for changed, why in (
            ({"clientId": ""}, "clientId"),
            ({"topic": "T"}, "message type not match"),
            ({"consumerGroup": "another"}, "bind topic not match"),
        ):
            answer = await caller.call(NOTIFICATION, notification_fields(**changed))
            assert answer.code != 0
            assert why in (answer.remark or "")
        async with served.caller() as waiting:
            await subscribe(caller, "a")
            waits = {"pollTime": 10_000, "bornTime": served.broker._clock.now_ms()}
            waiting.tell(NOTIFICATION, notification_fields(**waits))
            await until(lambda: len(served.broker.lite.held) == 1)
            await caller.call(207, {"groupName": "G"})
            assert (await waiting.talker.answer()).code == 26

    with_lite_topics(tmp_path, main)
