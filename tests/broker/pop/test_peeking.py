"""Peeks: what a group would get next, and that it is not taken."""

from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop import peeking
from firearrow.message.names import pop_retry_topic
from firearrow.message.record import iter_records
from firearrow.wire.command import Command, FieldValue
from tests.broker.popping import popped
from tests.broker.serving import Caller, Serving, in_virtual_time


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
