"""What a stranger can have a broker keep: no long names, and of all else a limited amount."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.groups import locks
from firearrow.broker.lite import subscriptions
from firearrow.net.budget import KEPT_BYTES_MAX
from firearrow.net.server import Peer
from firearrow.wire.codes import ResponseCode as Code
from firearrow.wire.command import FieldValue
from tests.broker.lite.test_processor import change, prepare
from tests.broker.serving import Caller, Serving, calling, until

HEARTBEAT, UNREGISTER, LOCK, POP, SUBSCRIBE = 34, 35, 41, 200050, 200071
LONG = "x" * 390_000
LITE = {"enable_lmq": True, "enable_multi_dispatch": True}


def beat(*producers: str, client: str = "c", **consumer: Any) -> bytes:
    consumers = [{"groupName": "g", "consumeType": "CONSUME_PASSIVELY"} | consumer]
    found = [{"groupName": name} for name in producers]
    whole = {"clientID": client, "producerDataSet": found}
    return json.dumps(whole | ({"consumerDataSet": consumers} if consumer else {})).encode()


def lock(*topics: str, group: str = "g", client: str = "c", broker: str = "b") -> bytes:
    queues = [{"topic": name, "brokerName": broker, "queueId": 0} for name in topics]
    return json.dumps({"consumerGroup": group, "clientId": client, "mqSet": queues}).encode()


def subscribed(**fields: Any) -> dict[str, Any]:
    return {"subscriptionDataSet": [{"topic": "T", "subString": "*", **fields}]}


def peer_of(served: Serving) -> Peer:
    (peer,) = served.broker._server.peers
    return peer


LONG_NAMES = [
    (HEARTBEAT, beat(LONG), Code.INVALID_PARAMETER, "name of a group is 390000 characters"),
    (HEARTBEAT, beat("p", client=LONG), Code.INVALID_PARAMETER, "client id is 390000 characters"),
    (HEARTBEAT, beat(groupName=LONG), Code.INVALID_PARAMETER, "name of a group is 390000"),
    (HEARTBEAT, beat(consumeType=LONG), Code.INVALID_PARAMETER, "protocol field of a group is 390000"),
    (HEARTBEAT, beat(messageModel=LONG), Code.INVALID_PARAMETER, "protocol field of a group is 390000"),
    (HEARTBEAT, beat(consumeFromWhere=LONG), Code.INVALID_PARAMETER, "protocol field of a group"),
    (HEARTBEAT, beat(**subscribed(topic=LONG)), Code.INVALID_PARAMETER, "longer than 255"),
    (HEARTBEAT, beat(**subscribed(expressionType=LONG)), Code.INVALID_PARAMETER, "longer than"),
    (LOCK, lock(LONG), Code.INVALID_PARAMETER, "more than 255 characters"),
    (LOCK, lock("T", broker=LONG), Code.INVALID_PARAMETER, "more than 255 characters"),
    (LOCK, lock("T", group=LONG), Code.INVALID_PARAMETER, "more than 255 characters"),
    (LOCK, lock("T", client=LONG), Code.INVALID_PARAMETER, "client id more than 1024"),
    (SUBSCRIBE, change("COMPLETE_ADD", "a", topic=LONG), Code.ILLEGAL_OPERATION, "limit is 127"),
    (SUBSCRIBE, change("COMPLETE_ADD", "a", client=LONG), Code.ILLEGAL_OPERATION, "more than 1024"),
    (SUBSCRIBE, change("COMPLETE_ADD", "a", group=LONG), Code.ILLEGAL_OPERATION, "more than 1024"),
]  # fmt: skip


def test_long_names_are_kept_by_nobody(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await prepare(caller)
        for code, body, expected, reason in LONG_NAMES:
            answer = await caller.call(code, {}, body)
            assert (answer.code, reason in str(answer.remark)) == (expected, True), answer
        assert peer_of(served).kept_bytes == 0
        assert served.broker.clients.producer_groups() == []
        assert served.broker.clients.consumer_groups() == []

    calling(tmp_path, main, store=LITE)


def test_an_attempt_at_a_pop_has_a_short_name(tmp_path: Path) -> None:
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 1000,
        "pollTime": 0, "bornTime": 0, "initMode": 0, "order": True,
    }  # fmt: skip

    async def main(_: Serving, caller: Caller) -> None:
        await caller.sent()
        answer = await caller.call(POP, fields | {"attemptId": "x" * 256})
        assert (answer.code, "255" in str(answer.remark)) == (Code.SYSTEM_ERROR, True)
        assert (await caller.call(POP, fields | {"attemptId": "x" * 255})).code == 0

    calling(tmp_path, main)


def test_what_is_kept_of_heartbeats_is_counted(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        peer = peer_of(served)
        wanted = subscribed(subString=" || ".join(map(str, range(1000))))
        for body in (beat("p", "q", **wanted), beat("p", "q", **wanted)):
            assert (await caller.call(HEARTBEAT, {}, body)).code == 0
        both = peer.kept_bytes
        assert 5000 < both < 50_000
        again = json.loads(beat(**wanted)) | {"heartbeatFingerprint": 7, "withoutSub": True}
        again["consumerDataSet"][0]["subscriptionDataSet"] = []
        assert (await caller.call(HEARTBEAT, {}, json.dumps(again).encode())).code == 0
        assert peer.kept_bytes == both  # the subscriptions stay
        for group in ("producerGroup", "consumerGroup"):
            name = "p" if group == "producerGroup" else "g"
            await caller.call(UNREGISTER, {"clientID": "c", group: name})
        assert 0 < peer.kept_bytes < 1000
        async with served.caller() as other:
            await other.call(HEARTBEAT, {}, beat("p"))
            (known,) = [it for it in served.broker._server.peers if it is not peer]
        await until(lambda: len(served.broker._server.peers) == 1)
        assert known.kept_bytes == 0

    calling(tmp_path, main)


def groups() -> Iterator[str]:
    """Names of which a heartbeat can have as many as it likes."""
    number = 0
    while True:
        yield f"{number:0240}"
        number += 1


def test_heartbeats_without_end_are_refused_in_the_end(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        names = groups()
        peer = peer_of(served)
        code, remark = 0, ""
        for _ in range(10):
            some = [next(names) for _ in range(5000)]
            answer = await caller.call(HEARTBEAT, {}, beat(*some))
            code, remark = answer.code, str(answer.remark)
            if code:
                break
        assert (code, f"the limit is {KEPT_BYTES_MAX}" in remark) == (Code.SYSTEM_BUSY, True)
        assert peer.kept_bytes <= KEPT_BYTES_MAX
        async with served.caller() as other:
            assert (await other.call(HEARTBEAT, {}, beat("p"))).code == 0

    calling(tmp_path, main)


def test_who_has_much_kept_is_closed_when_memory_is_short(tmp_path: Path) -> None:
    """By the budget of all, which asks for it as for unfinished requests and unread answers."""

    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.call(HEARTBEAT, {}, beat("p"))).code == 0
        budget = served.broker._server.budget
        peer = peer_of(served)
        peer.keep(KEPT_BYTES_MAX - peer.kept_bytes)
        room = budget.room_bytes
        budget.look()
        assert room - budget.room_bytes < KEPT_BYTES_MAX
        budget._full_bytes = budget._tight_bytes = KEPT_BYTES_MAX // 2
        budget.look()
        await until(lambda: not served.broker._server.peers)
        assert served.broker.clients.producer_groups() == []

    calling(tmp_path, main)


def test_locks_have_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 5)

    async def main(_: Serving, caller: Caller) -> None:
        assert (await caller.call(LOCK, {}, lock("a", "b", "c"))).code == 0
        refused = await caller.call(LOCK, {}, lock("a", "b", "c", group="h"))
        assert (refused.code, refused.remark) == (Code.SYSTEM_BUSY, "3 queues are locked, the limit is 5")
        assert (await caller.call(LOCK, {}, lock("a", "b", "c"))).code == 0  # renewed
        assert (await caller.call(42, {}, lock("a"))).code == 0
        assert (await caller.call(LOCK, {}, lock("a", "b", "c", group="h"))).code == 0

    calling(tmp_path, main)


def test_clients_of_lite_topics_have_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "CLIENTS_MAX", 2)

    async def main(_: Serving, caller: Caller) -> None:
        await prepare(caller)
        codes = [
            (await caller.call(SUBSCRIBE, {}, change("PARTIAL_ADD", "a", client=name))).code
            for name in ("c1", "c2", "c3", "c2")
        ]
        assert codes == [0, 0, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, 0]
        assert (await caller.call(SUBSCRIBE, {}, change("COMPLETE_REMOVE", client="c1"))).code == 0
        assert (await caller.call(SUBSCRIBE, {}, change("PARTIAL_ADD", "a", client="c3"))).code == 0

    calling(tmp_path, main, store=LITE)
