"""Lite topics go when their time is over, or with their parent."""

import asyncio
from pathlib import Path

import pytest

from firearrow.broker.lite import expiry
from firearrow.errors import DiskFull
from firearrow.wire.command import FieldValue
from tests.broker.lite.test_processor import ack, pop, popped, send, subscribe, with_lite_topics
from tests.broker.serving import Caller, Serving
from tests.store import stores

MINUTE = 60


@pytest.fixture(params=stores.KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with each kind of queues."""
    monkeypatch.setitem(stores.defaults, "store_type", request.param)


async def live_for(caller: Caller, minutes: int) -> None:
    fields: dict[str, FieldValue] = {
        "topic": "P", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": False,
        "attributes": f"+message.type=LITE,+lite.topic.expiration={minutes}",
    }  # fmt: skip
    answer = await caller.call(17, fields)
    assert (answer.code, answer.remark) == (0, None)


def lite_topics(served: Serving) -> list[str]:
    return sorted(filter(None, served.broker.store.topics_from("%LMQ%$P$")))


def test_what_nobody_sends_to_is_deleted_in_its_time(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await live_for(caller, 20)
        await subscribe(caller, "old", "new")
        await send(caller, "old", b"1")
        await asyncio.sleep(15 * MINUTE)
        async with served.caller() as other:
            await send(other, "new", b"2")
        assert lite_topics(served) == ["%LMQ%$P$new", "%LMQ%$P$old"]
        await asyncio.sleep(8 * MINUTE)
        assert lite_topics(served) == ["%LMQ%$P$new"]
        async with served.caller() as other:
            await subscribe(other, "old", "new")
            assert await popped(other) == ["2"]

    with_lite_topics(tmp_path, main)


def test_without_a_time_all_stay(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        await asyncio.sleep(40 * MINUTE)
        assert lite_topics(served) == ["%LMQ%$P$a"]

    with_lite_topics(tmp_path, main)


def test_they_go_with_their_parent(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        assert await popped(caller) == ["1"]
        assert (await caller.call(215, {"topic": "P"})).code == 0
        assert lite_topics(served) == []

    with_lite_topics(tmp_path, main)


def test_many_go_at_once_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "STEP_QUEUES", 7)
    lites = [f"l{number:02}" for number in range(30)]

    async def main(served: Serving, caller: Caller) -> None:
        await live_for(caller, 20)
        await subscribe(caller, *lites)
        for lite in lites:
            await send(caller, lite, b"1")
        first = await pop(caller)
        await ack(caller, first, "l00", 0)
        offsets, parts = served.broker.offsets, served.broker.lite.topics
        assert len(offsets.committed) == len(lites)
        assert len(parts.orders) == len(lites) - 1
        written: list[int] = []
        delete = served.broker.store.queues.delete_queues

        def noted(keys: set[tuple[str, int]]) -> None:
            written.append(len(keys))
            delete(keys)

        monkeypatch.setattr(served.broker.store.queues, "delete_queues", noted)
        await asyncio.sleep(25 * MINUTE)
        assert lite_topics(served) == []
        assert (sum(written), max(written)) == (30, 7)
        assert len(written) <= 6
        assert (offsets.committed, len(parts.orders), parts.subscriptions.count) == ({}, 0, 0)
        async with served.caller() as other:
            await subscribe(other, "l03")
            await send(other, "l03", b"anew")
            assert await popped(other) == ["anew"]

    with_lite_topics(tmp_path, main)


def test_a_full_disk_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await live_for(caller, 20)
        await send(caller, "a", b"1")

        def refuse(_: object) -> None:
            raise DiskFull("nothing can be deleted")

        with monkeypatch.context() as patch:
            patch.setattr(served.broker.store, "delete_lmqs", refuse)
            await asyncio.sleep(25 * MINUTE)
            assert lite_topics(served) == ["%LMQ%$P$a"]
        await asyncio.sleep(5 * MINUTE)
        assert lite_topics(served) == []

    with_lite_topics(tmp_path, main)
