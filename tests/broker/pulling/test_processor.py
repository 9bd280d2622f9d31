"""Pulls: their answers by offset, filters, refusals, and waits."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.names import tag_code
from firearrow.message.record import iter_records
from firearrow.wire.command import Command, FieldValue
from tests.broker.serving import COMMIT, SUBSCRIPTION, SUSPEND, Caller, Serving, calling, in_virtual_time, pull_fields

HOUR_MS = 3_600_000


async def tagged(served: Serving, caller: Caller, *tags: str, queue_id: int = 0) -> None:
    """Send one message for each tag, with the tag as its body."""
    for tag in tags:
        await caller.sent(tag.encode(), queue_id=queue_id, i=f"TAGS\x01{tag}\x02UNIQ_KEY\x01U\x02")
    await served.dispatched()


async def beat(caller: Caller, expression: str = "*", *, version: int = 5, **changed: Any) -> None:
    """Join group g by a heartbeat."""
    tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
    subscription = {
        "topic": "T", "subString": expression, "subVersion": version, "expressionType": "TAG",
        "tagsSet": tags, "codeSet": [tag_code(tag) for tag in tags], "classFilterMode": False,
    }  # fmt: skip
    data = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
        "unitMode": False,
    } | changed  # fmt: skip
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [data]}
    assert (await caller.call(34, {}, json.dumps(body).encode())).code == 0


def bodies_of(answer: Command[Any]) -> list[bytes]:
    return [view.body for view in iter_records(answer.body)]


CASES: list[tuple[dict[str, Any], int, str | None, tuple[int, int, int], list[bytes]]] = [
    ({"queueOffset": 0}, 0, None, (3, 0, 3), [b"A", b"B", b"A"]),
    ({"queueOffset": 1, "maxMsgNums": 1}, 0, None, (2, 0, 3), [b"B"]),
    ({"queueOffset": 3}, 19, "OFFSET_OVERFLOW_ONE", (3, 0, 3), []),
    ({"queueOffset": 4}, 21, "OFFSET_OVERFLOW_BADLY", (3, 0, 3), []),
    ({"queueOffset": 2**62}, 21, "OFFSET_OVERFLOW_BADLY", (3, 0, 3), []),
    ({"queueOffset": -1}, 21, "OFFSET_TOO_SMALL", (0, 0, 3), []),
    ({"queueOffset": 0, "queueId": 1}, 19, "NO_M", (0, 0, 0), []),
    ({"queueOffset": 1, "queueId": 1}, 21, "NO_M", (0, 0, 0), []),
    ({"subscription": "B"}, 0, None, (3, 0, 3), [b"B"]),
    ({"subscription": "A || B"}, 0, None, (3, 0, 3), [b"A", b"B", b"A"]),
    ({"subscription": "A||C"}, 0, None, (3, 0, 3), [b"A", b"A"]),
    ({"subscription": ""}, 0, None, (3, 0, 3), [b"A", b"B", b"A"]),
    ({"subscription": "C"}, 20, "NO_MATCHED_MESSAGE", (3, 0, 3), []),
]


@pytest.mark.parametrize(("changed", "code", "status", "offsets", "found"), CASES)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_each_offset_has_its_answer(
    tmp_path: Path,
    changed: dict[str, Any],
    code: int,
    status: str | None,
    offsets: tuple[int, int, int],
    found: list[bytes],
    binary: bool,
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A", "B", "A")
        for request_code in (11, 361):
            answer = await caller.call(request_code, pull_fields(**changed))
            assert answer.code == code
            assert (answer.remark or "").startswith(status or "")
            following, lowest, highest = offsets
            assert answer.ext == {
                "suggestWhichBrokerId": "0", "nextBeginOffset": str(following),
                "minOffset": str(lowest), "maxOffset": str(highest), "topicSysFlag": "0",
                "groupSysFlag": "0",
            }  # fmt: skip
            assert bodies_of(answer) == found

    calling(tmp_path, main, binary=binary)


def test_a_damaged_record_is_passed_over(tmp_path: Path) -> None:
    """The other messages of the answer arrive, and an answer without others leads on."""

    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A", "B", "A", "B", "A")
        served.broker.store.check_again()  # messages just written are sent without a check
        log = served.broker.store.log.segments.files[0].map
        size = int.from_bytes(log[:4], "big")
        log[2 * size + 87] ^= 4  # the length of a body
        log[4 * size + 39] ^= 0x10  # the kind of an address
        for subscription, bodies in [("*", [b"A", b"B", b"B"]), ("A", [b"A"])]:
            answer = await caller.pull(subscription=subscription)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "5")
            assert bodies_of(answer) == bodies
        answer = await caller.pull(4)
        assert (answer.code, answer.ext["nextBeginOffset"], answer.body) == (20, "5", b"")

    calling(tmp_path, main)


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"topic": "none"}, 17, "topic.none. not exist"),
    ({"queueId": 4}, 29, "queueId.4. is illegal"),
    ({"queueId": -1}, 29, "queueId.-1. is illegal"),
    ({"subscription": "||"}, 23, "names no tag"),
    ({"sysFlag": 0}, 24, "group info not exist"),
    ({"expressionType": "SQL92", "subscription": "a > 1"}, 1, "SQL92"),
    ({"consumerGroup": "a b"}, 26, "does not exist"),
    ({"queueOffset": "x"}, 1, "bad header"),
]


@pytest.mark.parametrize(("changed", "code", "remark"), REFUSED)
def test_what_is_refused(tmp_path: Path, changed: dict[str, Any], code: int, remark: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        answer = await caller.pull(**changed)
        assert answer.code == code
        assert re.search(remark, str(answer.remark))
        assert answer.body == b""

    calling(tmp_path, main)


def test_topics_groups_and_brokers_may_forbid_to_read(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        topic: dict[str, FieldValue] = {
            "topic": "W", "readQueueNums": 1, "writeQueueNums": 1, "perm": 2, "defaultTopic": "",
        }  # fmt: skip
        assert (await caller.call(17, topic)).code == 0
        assert (await caller.pull(topic="W")).code == 16
        group = json.dumps({"groupName": "shut", "consumeEnable": False}).encode()
        assert (await caller.call(200, {}, group)).code == 0
        assert (await caller.pull(topic="W", consumerGroup="shut")).code == 16

    calling(tmp_path, main)


def test_the_subscription_of_the_heartbeats_counts(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A", "B", "A")
        await beat(caller, "A", version=5)
        assert bodies_of(await caller.pull(sysFlag=0, subVersion=5)) == [b"A", b"A"]
        assert bodies_of(await caller.pull(sysFlag=0, subVersion=4, subscription="B")) == [b"A", b"A"]
        answer = await caller.pull(sysFlag=0, subVersion=6)
        assert (answer.code, "not latest" in str(answer.remark)) == (25, True)
        await beat(caller, "A || B", version=6)
        assert len(bodies_of(await caller.pull(sysFlag=0, subVersion=6))) == 3
        await caller.sent(topic="U")
        answer = await caller.pull(sysFlag=0, topic="U")
        assert (answer.code, "subscription not exist" in str(answer.remark)) == (24, True)

    calling(tmp_path, main)


def test_an_offset_may_be_committed_by_the_way(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A", "B")
        query: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": 0}
        await caller.pull(0, commitOffset=1)
        assert (await caller.call(14, query | {"setZeroIfNotFound": False})).code == 22
        await caller.pull(1, commitOffset=1, sysFlag=SUBSCRIPTION | COMMIT)
        assert (await caller.call(14, query)).ext == {"offset": "1"}

    calling(tmp_path, main)


# --- waiting ---

WAITING: dict[str, FieldValue] = {
    "sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": HOUR_MS,
}  # fmt: skip


def test_a_pull_waits_for_the_next_message(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        async with served.caller() as other:
            opaque = other.tell(11, pull_fields(1, **WAITING))
            await served.holding(1)
            await caller.sent(b"elsewhere", queue_id=1)
            await caller.sent(b"wanted")
            answer = await other.talker.answer()
            assert (answer.code, answer.opaque) == (0, opaque)
            assert bodies_of(answer) == [b"wanted"]
            assert answer.ext["nextBeginOffset"] == "2"
        assert served.held == 0

    calling(tmp_path, main)


def test_only_a_message_of_its_tag_ends_the_wait(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        async with served.caller() as b, served.caller() as any_tag, served.caller() as c:
            b.tell(11, pull_fields(1, **WAITING, subscription="B"))
            c.tell(11, pull_fields(1, **WAITING, subscription="C || D"))
            any_tag.tell(11, pull_fields(1, **WAITING))
            await served.holding(3)
            await tagged(served, caller, "A")
            assert bodies_of(await any_tag.talker.answer()) == [b"A"]
            assert served.held == 2
            await tagged(served, caller, "B")
            answer = await b.talker.answer()
            assert bodies_of(answer) == [b"B"]
            assert answer.ext["nextBeginOffset"] == "3"
            assert served.held == 1
            await tagged(served, caller, "D")
            assert bodies_of(await c.talker.answer()) == [b"D"]

    calling(tmp_path, main)


def test_a_pull_of_a_queue_without_any_message_waits_too(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(queue_id=3)
        async with served.caller() as other:
            other.tell(11, pull_fields(0, **WAITING))
            await served.holding(1)
            await caller.sent(b"the first")
            assert bodies_of(await other.talker.answer()) == [b"the first"]

    calling(tmp_path, main)


def test_the_wait_has_an_end(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        opaque = caller.tell(11, pull_fields(1, **WAITING) | {"suspendTimeoutMillis": 30_000})
        await served.holding(1)
        await asyncio.sleep(29)
        assert served.held == 1
        answer = await caller.talker.answer()  # the broker looks without a request
        assert (answer.code, answer.opaque, answer.remark) == (19, opaque, "OFFSET_OVERFLOW_ONE")
        assert answer.ext["nextBeginOffset"] == "1"
        assert served.held == 0

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    "changed",
    [{"sysFlag": SUBSCRIPTION}, {"suspendTimeoutMillis": 0}, {"suspendTimeoutMillis": -5}, {"queueOffset": 7}],
)
def test_pulls_that_do_not_wait(tmp_path: Path, changed: dict[str, FieldValue]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        answer = await caller.call(11, pull_fields(1, **WAITING) | changed)
        assert answer.code == (21 if "queueOffset" in changed else 19)
        assert served.held == 0

    calling(tmp_path, main)


def test_without_long_polling_the_broker_says_how_long(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await tagged(served, caller, "A")
        began = asyncio.get_running_loop().time()
        assert (await caller.pull(1, **WAITING)).code == 19
        assert 2 <= asyncio.get_running_loop().time() - began <= 2.5

    options: dict[str, Any] = {"long_polling_enable": False, "short_polling_time_mills": 2000}
    in_virtual_time(tmp_path, main, **options)


def test_a_connection_that_ends_takes_its_pulls_with_it(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as waiting:
            await tagged(served, caller, "A")
            waiting.tell(11, pull_fields(1, **WAITING, subscription="B"))
            async with served.caller() as other:
                for queue_id in (0, 0, 1):
                    other.tell(11, pull_fields(int(queue_id == 0), **WAITING, queueId=queue_id))
                await served.holding(4)
            await served.holding(1)
            await tagged(served, caller, "B")
            assert bodies_of(await waiting.talker.answer()) == [b"B"]
            assert served.held == 0

    calling(tmp_path, main)


def test_a_pull_that_will_not_wait_sees_all_that_was_answered_before(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"dispatched")
        await served.dispatched()
        await caller.sent(b"not yet")
        assert served.broker.store.behind_bytes
        answer = await caller.pull()
        assert bodies_of(answer) == [b"dispatched", b"not yet"]

    calling(tmp_path, main)


def test_a_reset_is_told_to_a_waiting_consumer_at_once(tmp_path: Path) -> None:
    place: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": 0}

    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(3):
            await caller.sent()
        await served.dispatched()
        async with served.caller() as consumer:
            flags = SUBSCRIPTION | SUSPEND | COMMIT
            waits = pull_fields(3, sysFlag=flags, commitOffset=3, suspendTimeoutMillis=60_000)
            consumer.tell(11, waits)
            await served.holding(1)
            reset: dict[str, FieldValue] = {"group": "g", "topic": "T", "timestamp": 0}
            assert (await caller.call(222, reset | {"queueId": 0, "offset": 1})).code == 0
            told = await consumer.talker.answer()
            assert (told.code, told.remark) == (21, "OFFSET_RESET")
            assert told.ext.items() >= {("nextBeginOffset", "1"), ("minOffset", "0"), ("maxOffset", "3")}
            assert (await caller.call(14, place)).ext == {"offset": "1"}
            answer = await consumer.pull(1, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=1)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "3")

    calling(tmp_path, main)


def test_what_a_pull_would_commit_does_not_undo_a_reset(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(3):
            await caller.sent()
        reset: dict[str, FieldValue] = {"group": "g", "topic": "T", "timestamp": 0}
        assert (await caller.call(222, reset)).code == 26
        await caller.pull(0)
        assert (await caller.call(222, reset)).code == 0
        answer = await caller.pull(2, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "0")
        assert served.broker.offsets.query("g", "T", 0) == 0

    calling(tmp_path, main)
