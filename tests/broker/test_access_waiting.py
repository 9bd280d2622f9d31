"""Requests that wait while their sender's rights change."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.record import iter_records
from firearrow.net.server import Peer, Steps
from firearrow.wire.command import Command, FieldValue, Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import Credentials
from tests.broker.everycode import as_json
from tests.broker.popping import messages_of, pop_fields
from tests.broker.serving import SUBSCRIPTION, SUSPEND, Serving, pull_fields, until
from tests.broker.signing import Signer, protected, signing

REFUSED = 16
LONG_MS = 600_000  # no wait of these tests ends by its time
STORE = {"enable_lmq": True, "enable_multi_dispatch": True}
Change = Callable[[Signer], Awaitable[object]]


def _waits(served: Serving) -> int:
    broker = served.broker
    pops = broker.popping.held, broker.popping.held_notifications, broker.lite.held
    return len(broker.pulling.held) + sum(map(len, pops))


async def _held(served: Serving, count: int) -> None:
    await until(lambda: _waits(served) == count)


def _times(served: Serving) -> dict[str, FieldValue]:
    return {"pollTime": LONG_MS, "bornTime": served.broker._clock.now_ms()}


def _request(served: Serving, code: int) -> dict[str, FieldValue]:
    """The fields of a request that waits for the second message of T, or for one of P."""
    if code in (11, 361):
        sys_flag = SUBSCRIPTION | SUSPEND
        return pull_fields(1, sysFlag=sys_flag, suspendTimeoutMillis=LONG_MS)
    if code == 200070:
        fields: dict[str, FieldValue] = {
            "clientId": "c1", "consumerGroup": "G", "topic": "P", "maxMsgNum": 32,
            "invisibleTime": 60_000,
        }  # fmt: skip
        return fields | _times(served)
    return pop_fields() | _times(served)


WAITING = (11, 361, 200050, 200054, 200070)


async def _deny(root: Signer) -> None:
    await root.allow("u", ("Topic:T", ["Sub"]), ("Topic:P", ["Sub"]), decision="Deny")


async def _call(root: Signer, *args: Any) -> None:
    answer = await root.call(*args)
    assert (answer.code, answer.remark) == (0, None)


CHANGES: dict[str, Change] = {
    "user deleted": lambda root: _call(root, 3003, {"username": "u"}),
    "user disabled": lambda root: _call(root, 3002, {"username": "u"}, as_json({"userStatus": "disable"})),
    "password changed": lambda root: _call(root, 3002, {"username": "u"}, as_json({"password": "new"})),
    "policies deleted": lambda root: _call(root, 3008, {"subject": "User:u"}),
    "denied": _deny,
}


async def _prepare(root: Signer) -> Credentials:
    """Make T with a message that group g has popped, and P of lite topics; and a user for both."""
    await root.sent(b"first")
    await root.call(200050, pop_fields())
    made: dict[str, FieldValue] = {
        "topic": "P", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": False, "attributes": "+message.type=LITE",
    }  # fmt: skip
    await _call(root, 17, made)
    group = {"groupName": "G", "attributes": {"+lite.bind.topic": "P"}}
    await _call(root, 200, {}, json.dumps(group).encode())
    user = await root.user("u")
    await _allow(root, "u")
    return user


async def _allow(root: Signer, name: str) -> None:
    subscribed = [(f"Topic:{topic}", ["Sub"]) for topic in "TP"]
    await root.allow(name, *subscribed, *((f"Group:{group}", ["Sub"]) for group in "gG"))


async def _send_all(root: Signer) -> None:
    await root.sent(b"secret")
    await root.sent(b"secret", topic="P", i="UNIQ_KEY\x01U2\x02__LITE_TOPIC\x01a\x02")
    await root.stored()
    await root.stored("P")


@pytest.mark.parametrize("code", WAITING)
@pytest.mark.parametrize("name", CHANGES)
def test_what_waits_is_refused_when_a_right_is_taken(tmp_path: Path, code: int, name: str) -> None:
    """At once, as a fresh one would be, and nothing is delivered that comes then."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _prepare(root)) as waiting:
            await waiting.call(200071, {}, _lite("a"))
            waiting.tell(code, _request(served, code))
            await _held(served, 1)
            await CHANGES[name](root)
            await _send_all(root)
            refusal = await waiting.talker.answer()
            assert (refusal.code, refusal.body) == (REFUSED, b"")
            assert _waits(served) == 0
            fresh = await waiting.call(code, _request(served, code))
            assert (fresh.code, fresh.remark) == (refusal.code, refusal.remark)

    protected(tmp_path, main, store=STORE)


def _lite(*lite_topics: str) -> bytes:
    entry = {
        "action": "PARTIAL_ADD", "clientId": "c1", "group": "G", "topic": "P",
        "liteTopicSet": list(lite_topics), "version": 1,
    }  # fmt: skip
    return json.dumps({"subscriptionSet": [entry]}).encode()


@pytest.mark.parametrize("code", WAITING)
def test_what_may_still_wait_waits_on(tmp_path: Path, code: int) -> None:
    """And gets what comes, whatever happens to the rights of others and to other ones of its."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _prepare(root)) as waiting:
            await waiting.call(200071, {}, _lite("a"))
            waiting.tell(code, _request(served, code))
            await _held(served, 1)
            await root.user("v")
            await root.allow("u", ("Topic:other", ["Pub"]))
            await root.call(3003, {"username": "v"})
            assert _waits(served) == 1
            await _send_all(root)
            answer = await waiting.talker.answer()
            assert answer.code == 0
            if code == 200054:
                assert answer.ext["hasMsg"] == "true"
            else:
                assert [view.body for view in iter_records(answer.body)] == [b"secret"]

    protected(tmp_path, main, store=STORE)


@pytest.mark.parametrize("code", WAITING)
def test_a_message_in_the_same_turn_as_the_change_is_not_delivered(tmp_path: Path, code: int) -> None:
    """It is decided when it is answered, not only when those that wait are looked through."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _prepare(root)) as waiting:
            await waiting.call(200071, {}, _lite("a"))
            waiting.tell(code, _request(served, code))
            await _held(served, 1)
            told: list[int] = []
            served.broker.users._changed.listen(lambda _: told.append(_waits(served)))  # type: ignore[union-attr]
            root.talker.ask(
                root.signed(3003, {"username": "u"}),
                root.signed(310, _sends("T")),
                root.signed(310, _sends("P", "__LITE_TOPIC\x01a\x02")),
            )
            refusal = await waiting.talker.answer()
            assert (refusal.code, refusal.remark) == (REFUSED, "User:u is not found.")
            assert told[0] == 1
            assert _waits(served) == 0

    protected(tmp_path, main, store=STORE)


def _sends(topic: str, more: str = "") -> dict[str, FieldValue]:
    return {
        "a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": f"UNIQ_KEY\x01U3\x02{more}", "j": 0, "k": False, "m": False,
    }  # fmt: skip


def test_another_of_the_group_gets_what_one_may_not_have_any_more(tmp_path: Path) -> None:
    """Of two pops that wait, the first is woken by a message: it is not lost with the refusal."""

    async def main(served: Serving, root: Signer) -> None:
        user, other = await _prepare(root), await root.user("v")
        await _allow(root, "v")
        async with signing(served, user) as first, signing(served, other) as second:
            first.tell(200050, _request(served, 200050))
            await _held(served, 1)
            second.tell(200050, _request(served, 200050))
            await _held(served, 2)
            root.talker.ask(root.signed(3003, {"username": "u"}), root.signed(310, _sends("T")))
            assert (await first.talker.answer()).code == REFUSED
            [(view, _)] = messages_of(await second.talker.answer())
            assert view.properties["UNIQ_KEY"] == "U3"

    protected(tmp_path, main)


def test_an_answer_in_steps_ends_when_the_right_is_taken(tmp_path: Path) -> None:
    """A list that takes several turns of the loop is not given to who may not have it any more."""

    async def main(served: Serving, root: Signer) -> None:
        user = await root.user("u")
        await root.allow("u", ("Cluster:C", ["Get"]))
        begun: list[AnyCommand] = []

        def listed(_: Peer, request: AnyCommand) -> Steps:
            begun.append(request)
            while len(begun) < 2:
                yield
            return Response(body=b"secret")

        handlers = served.broker._handlers
        admit = handlers[28]

        def handle(peer: Peer, request: AnyCommand) -> Any:
            answer = admit(peer, request)
            assert isinstance(answer, Response)  # it is admitted
            return listed(peer, request)

        handlers[28] = handle
        async with signing(served, user) as lists:
            lists.tell(28, {})
            await until(lambda: bool(begun))
            await root.call(3008, {"subject": "User:u"})
            answer = await lists.talker.answer()
            begun.append(begun[0])
        assert (answer.code, answer.body) == (REFUSED, b"")
        assert "has no permission to access Cluster:C" in (answer.remark or "")

    protected(tmp_path, main)


def test_what_a_consumer_tells_is_not_passed_on_to_who_may_not_have_it(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        user = await root.user("u")
        await root.allow("u", ("Group:g", ["Get"]))
        beat = {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": "g", "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [],
                }
            ],
        }  # fmt: skip
        async with signing(served, None) as consumer, signing(served, user) as asking:
            consumer.credentials = root.credentials
            await consumer.call(34, {}, as_json(beat))
            asking.tell(307, {"consumerGroup": "g", "clientId": "c", "jstackEnable": False})
            asked = await _asked(consumer)
            await root.call(3008, {"subject": "User:u"})
            told: Command[dict[str, str]] = Command(0, {}, flag=1, opaque=asked.opaque)
            told.body = b"secret"
            consumer.talker.ask(told)
            answer = await asking.talker.answer()
            assert (answer.code, answer.body) == (REFUSED, b"")

    protected(tmp_path, main)


async def _asked(consumer: Signer) -> Command[Any]:
    asked = await consumer.talker.answer()
    while asked.code != 307:
        asked = await consumer.talker.answer()
    return asked


def test_a_refusal_of_what_waits_is_in_the_audit_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="firearrow.auth.audit")

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _prepare(root)) as waiting:
            waiting.tell(11, _request(served, 11))
            await _held(served, 1)
            await root.call(3003, {"username": "u"})
            await waiting.talker.answer()

    protected(tmp_path, main, store=STORE)
    lines = [vars(record) for record in caplog.records]
    refused = [line for line in lines if line["msg"] == "request is refused"]
    assert [(it["user"], it["request"], it["reason"]) for it in refused] == [
        ("u", "PULL_MESSAGE", "User:u is not found.")
    ]
