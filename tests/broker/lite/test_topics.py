"""The parts that serve lite topics, as a whole: clients that are gone, topics that are deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firearrow.broker.lite import topics
from firearrow.broker.lite.topics import LiteSharding, bucket
from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.errors import DiskFull
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.command import FieldValue
from tests.broker.fakes import HandClock
from tests.broker.lite.test_processor import POP, ack, pop, pop_fields, popped, send, subscribe, with_lite_topics
from tests.broker.serving import Caller, Serving, until
from tests.store import stores


def test_a_client_that_is_gone_leaves_what_it_had_in_hand_to_others(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await send(caller, "a", b"1")
        async with served.caller() as other:
            await subscribe(other, "a", client="gone")
            assert await popped(other, clientId="gone", invisibleTime=500_000) == ["1"]
        subscriptions = served.broker.lite.topics.subscriptions
        for _ in range(6):
            async with served.caller() as other:
                await subscribe(other, "a")
            await asyncio.sleep(100)
        assert [one.client_id for one in subscriptions.of_group("G")] == ["c1"]
        async with served.caller() as other:
            await subscribe(other, "a")
            assert await popped(other) == ["1"]

    with_lite_topics(tmp_path, main)


def test_who_waits_is_told_that_the_parent_is_gone(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        waits = caller.tell(POP, pop_fields(pollTime=20_000))
        await until(lambda: len(served.broker.lite.held) == 1)
        async with served.caller() as other:
            assert (await other.call(215, {"topic": "P"})).code == 0
        answer = await caller.talker.answer()
        assert (answer.opaque, answer.code) == (waits, 17)

    with_lite_topics(tmp_path, main)


def test_a_deleted_group_leaves_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        await pop(caller)
        waits = caller.tell(POP, pop_fields(pollTime=20_000))
        await until(lambda: len(served.broker.lite.held) == 1)
        async with served.caller() as other:
            assert (await other.call(207, {"groupName": "G"})).code == 0
        answer = await caller.talker.answer()
        assert (answer.opaque, answer.code) == (waits, 26)
        parts = served.broker.lite.topics
        assert (len(parts.orders), parts.subscriptions.count) == (0, 0)
        assert served.broker.groups.get("G") is None

    with_lite_topics(tmp_path, main)


def test_a_deleted_parent_leaves_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a", "b")
        await send(caller, "a", b"1")
        await pop(caller)
        parts = served.broker.lite.topics
        assert (len(parts.orders), parts.subscriptions.count) == (1, 2)
        assert (await caller.call(215, {"topic": "P"})).code == 0
        assert len(parts.orders) == 0
        assert served.broker.offsets.query("G", "%LMQ%$P$a", 0) == -1
        assert [queue for one in parts.subscriptions.of_group("G") for queue in one.queues] == ["%LMQ%$P$b"]

    with_lite_topics(tmp_path, main)


# --- Lite topics are on the brokers that the original's clients choose ---


COUNTS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("a", (0, 0, 0, 0, 0)),
        ("b", (0, 0, 0, 5, 5)),
        ("lite-1", (0, 1, 2, 6, 6)),
        ("user_42", (0, 0, 0, 0, 10)),
        ("标签", (0, 1, 2, 4, 4)),
    ],
)
def test_the_original_chooses_so(name: str, buckets: tuple[int, ...]) -> None:
    assert tuple(bucket(name, count) for count in COUNTS) == buckets


@pytest.mark.parametrize("count", range(1, 20))
def test_one_more_takes_from_the_others(count: int) -> None:
    names = [f"lite-{number}" for number in range(500)]
    for name in names:
        assert bucket(name, count + 1) in (bucket(name, count), count)


@pytest.mark.parametrize(
    ("queues", "here"),
    [
        (None, True),
        ((), True),
        ((MessageQueue("P", "a", 0), MessageQueue("P", "me", 0)), True),
        ((MessageQueue("P", "me", 0), MessageQueue("P", "z", 0)), False),
    ],
)
def test_whose_it_is(queues: Queues | None, here: bool) -> None:
    routes = TopicRoutes((), lambda _: queues, lambda: 30.0, HandClock())
    assert LiteSharding(routes, "me").is_here("P", "lite-1") is here


# --- Lite topics go when their time is over, or with their parent ---


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
    monkeypatch.setattr(topics, "STEP_QUEUES", 7)
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
