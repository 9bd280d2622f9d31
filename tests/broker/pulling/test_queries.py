"""Look-ups: by key, by id, by time, at the ends of a queue."""

import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.ids import decode_offset_id
from firearrow.message.record import iter_records
from firearrow.wire import fastjson
from firearrow.wire.command import FieldValue
from tests.broker.fakes import NOW_MS, HandClock
from tests.broker.serving import Caller, Serving, calling


def key_fields(key: str, **changed: FieldValue) -> dict[str, FieldValue]:
    fields: dict[str, FieldValue] = {
        "topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 62,
    }  # fmt: skip
    return fields | changed


async def find(caller: Caller, key: str, **changed: FieldValue) -> list[bytes]:
    """Return the bodies in the answer to a query by key."""
    answer = await caller.call(12, key_fields(key, **changed))
    if answer.code == 22:
        assert answer.body == b""
        assert (answer.remark or "").startswith("can not find message, maybe time range not correct: ")
        return []
    assert answer.code == 0
    return [view.body for view in iter_records(answer.body)]


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_messages_are_found_by_their_keys(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            unique = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all k{number}\x02TAGS\x01A\x02"
            await caller.sent(b"%d" % number, i=unique)
        await served.dispatched()
        unique_only: dict[str, FieldValue] = {"_UNIQUE_KEY_QUERY": True}
        assert await find(caller, "k1") == [b"1"]
        assert await find(caller, "all") == [b"2", b"1", b"0"]
        assert await find(caller, "all", maxNum=2) == [b"2", b"1"]
        assert await find(caller, "U2") == [b"2"]
        assert await find(caller, "U2", **unique_only) == [b"2"]
        assert await find(caller, "k1", **unique_only) == []
        assert await find(caller, "A", indexType="T") == [b"2", b"1", b"0"]
        assert await find(caller, "k1", topic="none") == []
        assert await find(caller, "k1", endTimestamp=1) == []
        assert await find(caller, "k1", maxNum=0) == []

    calling(tmp_path, main, binary=binary)


def test_a_damaged_record_is_no_answer(tmp_path: Path) -> None:
    """A client could not read it, nor the records behind it."""

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await caller.sent(b"%d" % number, i=f"UNIQ_KEY\x01U{number}\x02KEYS\x01all\x02")
        await served.dispatched()
        log = served.broker.store.log.segments.files[0].map
        size = int.from_bytes(log[:4], "big")
        log[size + 39] ^= 0x10  # the kind of an address
        assert await find(caller, "all") == [b"2", b"0"]
        asked: list[tuple[int, dict[str, FieldValue], int]] = [(12, key_fields("U1"), 22), (33, {"offset": size}, 1)]
        for code, fields, wrong in asked:
            answer = await caller.call(code, fields)
            assert (answer.code, answer.body) == (wrong, b"")
            assert "damaged" in (answer.remark or "")

    calling(tmp_path, main)


def test_no_query_answers_more_than_64(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(70):
            await caller.sent(b"%d" % number, i=f"UNIQ_KEY\x01U{number}\x02KEYS\x01all\x02")
        await served.dispatched()
        found = await find(caller, "all", maxNum=1000)
        assert found == [b"%d" % number for number in range(69, 5, -1)]

    calling(tmp_path, main)


def test_a_query_says_how_far_the_index_is(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.call(12, key_fields("x"))
        assert answer.ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        await caller.sent()
        place = decode_offset_id((await caller.sent())["msgId"]).physical_offset
        await served.dispatched()
        answer = await caller.call(12, key_fields("U1"))
        assert answer.code == 0
        assert answer.ext["indexLastUpdatePhyoffset"] == str(place)
        assert answer.ext["indexLastUpdateTimestamp"] == str(NOW_MS)

    calling(tmp_path, main, clock=HandClock())


def test_a_message_is_viewed_by_its_place(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        places = []
        for number in range(2):
            fields = await caller.sent(b"%d" % number)
            places.append(decode_offset_id(fields["msgId"]).physical_offset)
        for number, place in enumerate(places):
            answer = await caller.call(33, {"offset": place})
            [view] = iter_records(answer.body)
            assert (answer.code, view.body, view.physical_offset) == (0, b"%d" % number, place)
        for place in (places[1] - 1, places[1] + 1, -1, 1 << 40, 1 << 62):
            answer = await caller.call(33, {"offset": place})
            assert (answer.code, answer.body) == (1, b"")
            assert str(place) in str(answer.remark)

    calling(tmp_path, main)


def test_offsets_by_time_and_at_the_ends(tmp_path: Path) -> None:
    clock = HandClock()

    async def main(served: Serving, caller: Caller) -> None:
        queue: dict[str, FieldValue] = {"topic": "T", "queueId": 0}

        async def answered(code: int, **more: FieldValue) -> dict[str, str]:
            answer = await caller.call(code, queue | more)
            assert answer.code == 0
            fields: dict[str, str] = answer.ext
            return fields

        await caller.sent(queue_id=1)
        assert await answered(30) == await answered(31) == {"offset": "0"}
        assert await answered(32) == {"timestamp": "-1"}
        assert await answered(29, timestamp=NOW_MS) == {"offset": "0"}
        for _ in range(5):
            await caller.sent()
            clock.seconds += 1
        await served.dispatched()
        assert await answered(30) == {"offset": "5"}
        assert await answered(31) == {"offset": "0"}
        assert await answered(32) == {"timestamp": str(NOW_MS)}
        cases = [(-1, 0, 0), (0, 0, 0), (1, 1, 0), (1000, 1, 1), (3999, 4, 3), (4000, 4, 4), (9999, 5, 4)]
        for after_ms, lower, upper in cases:
            time: dict[str, FieldValue] = {"timestamp": NOW_MS + after_ms}
            assert await answered(29, **time) == {"offset": str(lower)}
            assert await answered(29, **time, boundaryType="LOWER") == {"offset": str(lower)}
            assert await answered(29, **time, boundaryType="upper") == {"offset": str(upper)}

    calling(tmp_path, main, clock=clock)


def test_a_queue_of_batches_without_messages_begins_nowhere(tmp_path: Path) -> None:
    """RocketMQ's own tests hold it to that."""
    topic: dict[str, FieldValue] = {"topic": "B", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}

    async def ends(caller: Caller, queue_id: int) -> list[str]:
        queue: dict[str, FieldValue] = {"topic": "B", "queueId": queue_id}
        return [(await caller.call(code, queue)).ext["offset"] for code in (30, 31)]

    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.call(17, topic | {"attributes": "+queue.type=BatchCQ"})).code == 0
        assert await ends(caller, 0) == ["0", "-1"]
        stats = fastjson.loads((await caller.call(202, {"topic": "B"})).body)
        assert {found["minOffset"] for found in stats["offsetTable"].values()} == {0}
        await caller.sent(topic="B")
        assert await ends(caller, 0) == ["1", "0"]
        served.broker.store.queue("B", 1)  # as a refused send leaves it
        assert await ends(caller, 1) == ["0", "-1"]

    calling(tmp_path, main)


@pytest.mark.parametrize("code", [12, 29, 30, 31, 32, 33])
def test_a_look_up_without_fields_is_refused(tmp_path: Path, code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.call(code, {})
        assert answer.code == 1
        assert "bad header" in str(answer.remark)

    calling(tmp_path, main)


def test_a_key_that_no_message_can_have_is_not_looked_up(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.call(12, key_fields("k" * 32_768))
        assert answer.code == 22
        assert answer.remark == "no message has a key of 32768 characters, the limit is 32767"

    calling(tmp_path, main)


# --- 321 ---


def test_entries_of_a_queue(tmp_path: Path) -> None:
    asked: dict[str, FieldValue] = {"topic": "T", "queueId": 0, "index": 1, "count": 2}

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(4):
            await caller.sent(b"%d" % number)
        views = await caller.stored()

        async def entries(**changed: FieldValue) -> Any:
            answer = await caller.call(321, asked | changed)
            assert (answer.code, answer.remark) == (0, None)
            return fastjson.loads(answer.body)

        expected = [
            {"eval": False, "physicOffset": view.physical_offset, "physicSize": view.store_size, "tagsCode": 65}
            for view in views
        ]
        ends = {"maxQueueIndex": 4, "minQueueIndex": 0}
        assert await entries() == ends | {"queueData": expected[1:3]}
        assert await entries(index=0, count=20_000) == ends | {"queueData": expected}
        assert await entries(count=0) == ends | {"queueData": []}
        offline = (await entries(consumerGroup="g"))["filterData"]
        assert offline == "g@T is not online!"
        beat: dict[str, Any] = {
            "groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "A"}]
        }  # fmt: skip
        body = json.dumps({"clientID": "c", "consumerDataSet": [beat]}).encode()
        assert (await caller.call(34, {}, body)).code == 0
        online = await entries(consumerGroup="g")
        assert online["subscriptionData"]["subString"] == "A"
        assert online["filterData"] == "null"
        beat["subscriptionDataSet"] = [{"topic": "T", "subString": "a > 5", "expressionType": "SQL92", "subVersion": 7}]
        body = json.dumps({"clientID": "c", "consumerDataSet": [beat]}).encode()
        assert (await caller.call(34, {}, body)).code == 0
        told = (await entries(consumerGroup="g"))["filterData"]
        assert told.startswith('{\n\t"bloomFilterData":{\n\t\t"bitNum":112,\n\t\t"bitPos":[')
        kept = json.loads(told)
        assert (kept["expression"], kept["clientVersion"], kept["dead"]) == ("a > 5", 7, False)

    calling(tmp_path, main, enable_property_filter=True)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "none"}, 1, "0@none is not exist!"),
        ({"queueId": 99}, 1, "99@T is not exist!"),
        ({"queueId": -1}, 1, "-1@T is not exist!"),
        ({"count": 20_001}, 29, "the request asks for 20001 entries, the limit is 20000"),
        ({"index": 1}, 0, "Index 1 of 0@T is not exist!"),
        ({"index": -1}, 0, "Index -1 of 0@T is not exist!"),
        ({"queueId": 3}, 0, "Index 0 of 3@T is not exist!"),
    ],
)
def test_entries_that_are_not_there(tmp_path: Path, fields: dict[str, FieldValue], code: int, remark: str) -> None:
    asked: dict[str, FieldValue] = {"topic": "T", "queueId": 0, "index": 0, "count": 1}

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        before = list(served.broker.store.queues.ranges())
        answer = await caller.call(321, asked | fields)
        assert (answer.code, answer.remark, answer.body) == (code, remark, b"")
        assert list(served.broker.store.queues.ranges()) == before

    calling(tmp_path, main, background=False)
