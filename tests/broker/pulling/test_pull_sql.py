"""Pulls by SQL92: the expression that counts, refusals, the length of a look, and waits."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from firearrow.filter.sql import SQL_CHARS_MAX
from firearrow.store import propertylooks
from firearrow.testing.loop import VirtualLoop
from firearrow.wire.command import Command, FieldValue
from tests.broker.pulling.test_processor import bodies_of
from tests.broker.serving import SUBSCRIPTION, SUSPEND, Caller, Serving, in_virtual_time, pull_fields

SQL: dict[str, Any] = {"enable_property_filter": True}
PATIENT: dict[str, Any] = {**SQL, "server_channel_max_idle_time_seconds": 36_000}
HOUR_MS = 3_600_000


async def numbered(served: Serving, caller: Caller, *numbers: int, topic: str = "T") -> None:
    """Send a message for each number, which is its body and its property ``a``."""
    for number in numbers:
        await caller.sent(b"%d" % number, topic=topic, i=f"TAGS\x01A\x02a\x01{number}\x02")
    await served.dispatched()


def brought(expression: str, queue_offset: int = 0, **changed: Any) -> dict[str, FieldValue]:
    """Return the fields of a pull with an expression."""
    fields: dict[str, FieldValue] = {"expressionType": "SQL92", "subscription": expression}
    return pull_fields(queue_offset, **(fields | changed))


async def beat(caller: Caller, expression: str, *, version: int = 5, topic: str = "T", **changed: Any) -> None:
    """Join group g by a heartbeat with a subscription by SQL."""
    subscription = {
        "topic": topic, "subString": expression, "subVersion": version, "expressionType": "SQL92",
        "tagsSet": [], "codeSet": [], "classFilterMode": False,
    } | changed  # fmt: skip
    data = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [data]}
    assert (await caller.call(34, {}, json.dumps(body).encode())).code == 0


async def pulled(caller: Caller, queue_offset: int = 0, **changed: Any) -> Command[Any]:
    """Pull by the subscriptions of the heartbeats."""
    fields: dict[str, FieldValue] = {"sysFlag": 0, "subVersion": 5, "expressionType": "SQL92"}
    return await caller.pull(queue_offset, **(fields | changed))


def test_a_pull_may_bring_its_expression(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1, 7, 3, 9)
        answer = await caller.call(11, brought("a > 5"))
        assert (answer.code, bodies_of(answer)) == (0, [b"7", b"9"])
        assert answer.ext["nextBeginOffset"] == "4"
        answer = await caller.call(11, brought("a > 5", maxMsgNums=1))
        assert (bodies_of(answer), answer.ext["nextBeginOffset"]) == ([b"7"], "2")
        answer = await caller.call(11, brought("a > 10"))
        assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
        assert answer.ext["nextBeginOffset"] == "4"
        answer = await caller.call(11, brought("a > 10", 4))
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")

    in_virtual_time(tmp_path, main, **SQL)


REFUSED: list[tuple[dict[str, FieldValue], int, str]] = [
    ({"subscription": "a >"}, 23, "at character 3"),
    ({"subscription": "a > 0x10"}, 23, "there is more: 'x10'"),
    ({"subscription": ""}, 23, "a value"),
    ({"subscription": "a" * (SQL_CHARS_MAX + 1)}, 23, "the limit is"),
    ({"subscription": "a", "expressionType": "CLASS"}, 23, "'CLASS' is not a type"),
]


@pytest.mark.parametrize(("changed", "code", "remark"), REFUSED)
def test_an_expression_that_can_not_be_read_is_refused(
    tmp_path: Path, changed: dict[str, Any], code: int, remark: str
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1)
        answer = await caller.call(11, brought("a > 5", **changed))
        assert (answer.code, remark in str(answer.remark)) == (code, True)
        data = {"subString": changed["subscription"], "topic": "T"}
        data["expressionType"] = changed.get("expressionType", "SQL92")
        checked = await caller.call(46, {}, json.dumps({"subscriptionData": data}).encode())
        assert (checked.code, checked.remark) == (answer.code, answer.remark)

    in_virtual_time(tmp_path, main, **SQL)


def test_a_broker_that_does_not_filter_says_so(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1)
        await beat(caller, "a > 5")
        answers = [
            await caller.call(11, brought("a > 5")),
            await caller.call(11, brought("a >")),
            await pulled(caller),
            await caller.call(46, {}, b'{"subscriptionData":{"topic":"T","subString":"a","expressionType":"SQL92"}}'),
        ]
        for answer in answers:
            assert answer.code == 1
            assert "does not support consumer to filter message by SQL92" in str(answer.remark)
        assert (await pulled(caller, subVersion=6)).code == 25
        assert (await caller.call(25, {}, b"enablePropertyFilter=true")).code == 0
        assert (await pulled(caller)).code == 20

    in_virtual_time(tmp_path, main)


def test_the_expression_of_the_heartbeats_counts(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1, 7, 3, 9)
        assert (await pulled(caller)).code == 24
        await beat(caller, "a > 5")
        several: list[dict[str, Any]] = [{}, {"expressionType": "TAG"}, {"subscription": "a > 8"}]
        for changed in several:
            assert bodies_of(await pulled(caller, **changed)) == [b"7", b"9"]
        assert (await pulled(caller, subVersion=6)).code == 25
        assert (await pulled(caller, topic="TBW102")).code == 24
        await beat(caller, "a > 8", version=6)
        assert bodies_of(await pulled(caller)) == [b"9"]
        await beat(caller, "*", version=7, expressionType="TAG")
        assert len(bodies_of(await pulled(caller))) == 4

    in_virtual_time(tmp_path, main, **SQL)


def test_a_bad_expression_of_a_heartbeat_is_told_to_the_pulls(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1)
        await beat(caller, "a >")
        assert (await pulled(caller)).code == 27
        await beat(caller, "a > 0", version=6)
        assert (await pulled(caller, subVersion=6)).code == 0
        data = served.broker.filters.find("T", "g")
        assert data is not None
        data.client_version = 5
        assert (await pulled(caller, subVersion=6)).code == 28

    in_virtual_time(tmp_path, main, **SQL)


def test_who_chooses_by_class_gets_everything(tmp_path: Path) -> None:
    """RocketMQ answers in this way, too: it no longer has the servers that ran such classes."""

    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1, 7)
        await beat(caller, "a > 5", classFilterMode=True)
        assert len(bodies_of(await pulled(caller))) == 2
        await beat(caller, "a.Class", expressionType="TAG", classFilterMode=True, version=6)
        assert len(bodies_of(await pulled(caller))) == 2

    in_virtual_time(tmp_path, main, **SQL)


@pytest.mark.parametrize("again", [False, True])
def test_what_is_retried_is_filtered_where_that_is_asked_for(tmp_path: Path, again: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await beat(caller, "a > 5")
        retry = "%RETRY%g"
        for number in (1, 7):
            properties = f"a\x01{number}\x02RETRY_TOPIC\x01T\x02"
            await caller.sent(b"%d" % number, topic=retry, i=properties)
        await caller.sent(b"of another", topic=retry, i="RETRY_TOPIC\x01U\x02")
        await served.dispatched()
        answer = await caller.call(11, brought("a <> 'none'", topic=retry))
        found = [b"7", b"of another"] if again else [b"1", b"7"]
        assert bodies_of(answer) == found

    in_virtual_time(tmp_path, main, **SQL, filter_support_retry=again)


def test_one_pull_looks_at_so_many_messages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, *range(18))

        async def follow(expression: str) -> list[int]:
            offsets = [0]
            while True:
                answer = await caller.call(11, brought(expression, offsets[-1]))
                if answer.code == 19:
                    return offsets
                assert answer.code == 20
                offsets.append(int(answer.ext["nextBeginOffset"]))

        assert await follow("a > 100") == [0, 18]
        monkeypatch.setattr(propertylooks, "LOOKS_MAX", 12)
        assert await follow("a > 100") == [0, 6, 12, 18]
        assert await follow("a = 'x' OR a = 'y'") == [0, 3, 6, 9, 12, 15, 18]
        monkeypatch.setattr(propertylooks, "LOOKS_MAX", 10_000)
        monkeypatch.setattr(propertylooks, "LOOKED_BYTES_MAX", 1000)
        assert len(await follow("a = 'x'")) == 4

    in_virtual_time(tmp_path, main, **SQL)


def test_what_can_not_be_looked_at_is_left_to_the_check(tmp_path: Path) -> None:
    """A damaged record is no reason to stop before it, and none to skip those behind it."""

    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1, 7, 9)
        store = served.broker.store
        store.check_again()
        log = store.log.segments.files[0].map
        size = int.from_bytes(log[:4], "big")
        log[size + 87] ^= 4  # the length of a body
        answer = await caller.call(11, brought("a > 5"))
        assert (answer.code, bodies_of(answer)) == (0, [b"9"])
        answer = await caller.call(11, brought("a > 5 OR a = '1'"))
        assert bodies_of(answer) == [b"1", b"9"]

    in_virtual_time(tmp_path, main, **SQL)


# --- waiting ---

WAITING: dict[str, FieldValue] = {
    "sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": HOUR_MS,
}  # fmt: skip


def test_only_a_message_that_is_wanted_ends_the_wait(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1)
        async with served.caller() as high, served.caller() as low, served.caller() as tag:
            high.tell(11, brought("a > 5", 1, **WAITING))
            low.tell(11, brought("a < 0", 1, **WAITING))
            tag.tell(11, pull_fields(1, **WAITING, subscription="B"))
            await served.holding(3)
            for number in range(5):
                await numbered(served, caller, number)
                await asyncio.sleep(1)
            assert served.held == 3
            began = asyncio.get_running_loop().time()
            await numbered(served, caller, 7)
            answer = await high.talker.answer()
            assert (answer.code, bodies_of(answer)) == (0, [b"7"])
            assert answer.ext["nextBeginOffset"] == "7"
            assert asyncio.get_running_loop().time() - began < 0.1
            await numbered(served, caller, -1)
            assert bodies_of(await low.talker.answer()) == [b"-1"]
            assert served.held == 1

    in_virtual_time(tmp_path, main, **PATIENT)


def test_a_wait_whose_time_is_over_says_what_was_passed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1)
        async with served.caller() as other:
            other.tell(11, brought("a > 5", 1, **WAITING) | {"suspendTimeoutMillis": 15_000})
            await served.holding(1)
            await numbered(served, caller, 2, 3)
            answer = await other.talker.answer()
            assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "3")
            assert asyncio.get_running_loop().time() >= 15

    in_virtual_time(tmp_path, main, **PATIENT)


def test_many_that_wait_by_filters_are_all_looked_at(tmp_path: Path) -> None:
    count = 30

    async def main(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 0)
        async with served.caller() as other:
            for number in range(count):
                other.tell(11, brought(f"a = {number}", 1, **WAITING))
            await served.holding(count)
            await numbered(served, caller, *range(0, count, 2))
            answers = [await other.talker.answer() for _ in range(0, count, 2)]
            got = [bodies_of(answer) for answer in answers]
            assert sorted(got) == sorted([b"%d" % number] for number in range(0, count, 2))
            assert served.held == count // 2
        await served.holding(0)

    in_virtual_time(tmp_path, main, **PATIENT)


def test_a_push_consumer_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def before(served: Serving, caller: Caller) -> None:
        await numbered(served, caller, 1, 7)
        await beat(caller, "a > 5")
        assert bodies_of(await pulled(caller)) == [b"7"]

    async def after(served: Serving, caller: Caller) -> None:
        data = served.broker.filters.find("T", "g")
        assert data is not None
        assert data.is_dead
        assert (await pulled(caller)).code == 24
        await beat(caller, "a > 5")
        assert not data.is_dead
        assert bodies_of(await pulled(caller)) == [b"7"]

    in_virtual_time(tmp_path, before, **SQL)
    in_virtual_time(tmp_path, after, **SQL)


def test_the_file_follows_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerFilter.json"

    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as consumer:
            await numbered(served, caller, 1)
            await beat(consumer, "a > 5")
            await asyncio.sleep(11)
            table = json.loads(path.read_bytes())["filterDataByTopic"]
            data = table["T"]["groupFilterData"]["g"]
            assert (data["expression"], data["dead"]) == ("a > 5", False)
        await asyncio.sleep(11)
        table = json.loads(path.read_bytes())["filterDataByTopic"]
        assert table["T"]["groupFilterData"]["g"]["dead"]
        cast(VirtualLoop, asyncio.get_running_loop()).take(24 * 3600)
        await asyncio.sleep(11)
        assert json.loads(path.read_bytes()) == {"filterDataByTopic": {}}

    in_virtual_time(tmp_path, main, **SQL, server_channel_max_idle_time_seconds=10**6, channel_expired_timeout=10**9)
