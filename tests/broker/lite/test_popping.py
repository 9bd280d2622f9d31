"""Pops of lite topics: attempts, limits, and offsets that lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.broker.lite import popping
from firearrow.wire.command import FieldValue
from tests.broker.lite.test_processor import (
    CHANGE,
    POP,
    ack,
    bodies,
    change,
    handle,
    pop,
    pop_fields,
    popped,
    send,
    subscribe,
    with_lite_topics,
)
from tests.broker.serving import Caller, Serving
from tests.store import stores


@pytest.fixture(params=stores.KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with each kind of queues."""
    monkeypatch.setitem(stores.defaults, "store_type", request.param)


def test_an_attempt_gets_nothing_that_its_client_has_given_up(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a", "b")
        for lite in "ab":
            await send(caller, lite, lite.encode())
        assert sorted(await popped(caller, attemptId="x")) == ["a", "b"]
        assert sorted(await popped(caller, attemptId="x")) == ["a", "b"]
        await caller.call(200071, {}, change("PARTIAL_REMOVE", "a"))
        assert await popped(caller, attemptId="x") == ["b"]

    with_lite_topics(tmp_path, main)


def test_a_pop_ends_with_what_was_asked_for(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a", "b", "c")
        for lite in "abc":
            for number in range(2):
                await send(caller, lite, b"%s%d" % (lite.encode(), number))
        assert await popped(caller, maxMsgNum=3) == ["a0", "a1", "b0"]
        assert await popped(caller, maxMsgNum=3) == ["c0", "c1"]

    with_lite_topics(tmp_path, main)


def test_many_that_others_have_taken_hide_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "LOOKS_MAX", 4)
    lites = [f"l{number}" for number in range(12)]

    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, *lites)
        await subscribe(caller, *lites, client="c2")
        for lite in lites:
            await send(caller, lite, b"old")
        first = [await pop(caller) for _ in range(3)]
        assert [len(bodies(one)) for one in first] == [4, 4, 4]
        answer = await caller.call(POP, pop_fields(clientId="c2", pollTime=1000))
        assert answer.code == 210
        [other] = [one for one in served.broker.lite.topics.subscriptions.of_group("G") if one.client_id == "c2"]
        other.ready.update(dict.fromkeys(f"%LMQ%$P${lite}" for lite in lites))
        await ack(caller, first[2], "l11", 0)
        await send(caller, "l11", b"new")
        assert await popped(caller, clientId="c2", pollTime=10_000) == ["new"]

    with_lite_topics(tmp_path, main)


def test_an_offset_behind_the_end_is_moved(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        served.broker.offsets.commit("G", "%LMQ%$P$a", 0, 7)
        assert await popped(caller) == []
        moved = served.broker.offsets.query("G", "%LMQ%$P$a", 0)
        assert moved in (0, 1)
        await send(caller, "a", b"2")
        assert (await popped(caller))[-1] == "2"

    with_lite_topics(tmp_path, main)


def test_a_group_that_has_popped_is_behind(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        assert served.broker.offsets.query("G", "%LMQ%$P$a", 0) == -1
        first = await pop(caller)
        assert served.broker.offsets.query("G", "%LMQ%$P$a", 0) == 0
        await ack(caller, first, "a", 0)
        assert served.broker.offsets.query("G", "%LMQ%$P$a", 0) == 1

    with_lite_topics(tmp_path, main)


# --- What consumers say of messages of lite topics, beside `test_lite` ---


def test_what_is_consumed_is_not_changed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"0")
        first = await pop(caller)
        await ack(caller, first, "a", 0)
        fields: dict[str, FieldValue] = {
            "consumerGroup": "G", "topic": "P", "queueId": 0, "offset": 0, "liteTopic": "a",
            "extraInfo": handle(first, 0), "invisibleTime": 10,
        }  # fmt: skip
        changed = await caller.call(CHANGE, fields)
        assert changed.code == 0
        assert changed.ext == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
        assert await popped(caller, pollTime=2000) == []

    with_lite_topics(tmp_path, main)


def test_a_late_acknowledgement_of_an_earlier_pop_changes_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"0")
        first = await pop(caller, invisibleTime=1000)
        second = await pop(caller, pollTime=5000, invisibleTime=1000)
        assert (await ack(caller, first, "a", 0)).code == 0
        third = await pop(caller, pollTime=5000)
        assert third.ext["orderCountInfo"] == "0 qo0%0 2"
        assert (await ack(caller, second, "a", 0)).code == 0
        assert (await ack(caller, third, "a", 0)).code == 0
        assert await popped(caller, pollTime=70_000) == []

    with_lite_topics(tmp_path, main)
