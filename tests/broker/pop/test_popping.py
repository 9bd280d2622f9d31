"""Which messages a pop is given, and where its group then is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.errors import CorruptStore, DiskFull
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from tests.broker.popping import INVISIBLE_MS, ack, pop, popped
from tests.broker.serving import Caller, Serving, calling, in_virtual_time

AGAIN_SECONDS = INVISIBLE_MS / 1000 + 5


async def sent(served: Serving, caller: Caller, *bodies: str, queue_id: int = 0) -> None:
    """Send one message for each body, tagged with its first letter."""
    for body in bodies:
        text = f"TAGS\x01{body[0]}\x02UNIQ_KEY\x01U\x02n\x01{len(body)}\x02"
        await caller.sent(body.encode(), queue_id=queue_id, i=text)
    await served.dispatched()


async def bodies_of(caller: Caller, **changed: FieldValue) -> list[str]:
    """Pop, and give what was found."""
    return [view.body.decode() for view, _ in await popped(caller, **changed)]


def offsets(served: Serving, topic: str = "T", group: str = "g") -> dict[int, int]:
    """Where a group is."""
    return dict(served.broker.offsets.queues(group, topic))


def test_each_message_is_given_once_and_the_group_moves_on(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A0", "A1", "A2")
        await sent(served, caller, "B0", queue_id=3)
        assert await bodies_of(caller, maxMsgNums=2, queueId=0) == ["A0", "A1"]
        assert offsets(served) == {0: 2}
        answer = await pop(caller, maxMsgNums=1)
        assert answer.code == 0
        assert answer.ext["restNum"] == "1"
        assert len(await bodies_of(caller)) == 1
        assert offsets(served) == {0: 3, 1: 0, 2: 0, 3: 1}
        answer = await pop(caller)
        assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
        assert (answer.ext["restNum"], answer.ext["msgOffsetInfo"]) == ("0", "")
        assert sorted(await bodies_of(caller, consumerGroup="h")) == ["A0", "A1", "A2", "B0"]

    in_virtual_time(tmp_path, main)


def test_pops_begin_at_queues_in_turn(tmp_path: Path) -> None:
    """So that none is passed over while others have messages."""

    async def main(served: Serving, caller: Caller) -> None:
        for queue_id in range(4):
            await sent(served, caller, *["A"] * 40, queue_id=queue_id)
        first = set()
        for number in range(40):
            [(view, _)] = await popped(caller, maxMsgNums=1, consumerGroup=f"g{number}")
            first.add(view.queue_id)
        assert first == {0, 1, 2, 3}

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("number", [0, -1])
def test_who_asks_for_no_message_gets_none(tmp_path: Path, number: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        answer = await pop(caller, maxMsgNums=number)
        assert (answer.code, answer.ext["restNum"]) == (210, "2")

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    ("expression", "kind", "found", "left"),
    [
        ("*", "TAG", ["A", "BB", "A", "CCC"], []),
        ("", "TAG", ["A", "BB", "A", "CCC"], []),
        ("B", "TAG", ["BB"], []),
        ("A || C", None, ["A", "A", "CCC"], []),
        ("D", "TAG", [], []),
        ("n > 1", "SQL92", ["BB", "CCC"], []),
        ("n > 3", "SQL92", [], []),
    ],
)
def test_it_is_given_what_it_asks_for(
    tmp_path: Path, expression: str, kind: str | None, found: list[str], left: list[str]
) -> None:
    """And its group goes on behind what it does not want."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "BB", "A", "CCC")
        changed: dict[str, Any] = {"exp": expression}
        if kind is not None:
            changed["expType"] = kind
        taken = await popped(caller, **changed)
        assert [view.body.decode() for view, _ in taken] == found
        assert offsets(served)[0] == 4
        assert await bodies_of(caller) == left
        for _, handle in taken[1:]:
            await ack(caller, handle)
        await asyncio.sleep(AGAIN_SECONDS)
        assert await bodies_of(caller) == found[:1]

    in_virtual_time(tmp_path, main)


def test_what_a_pop_has_passed_is_not_left(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B", "B", "A")
        answer = await pop(caller, exp="A", maxMsgNums=1)
        assert (answer.code, answer.ext["restNum"]) == (0, "1")

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    ("init_mode", "by_memory", "start"), [(0, True, 0), (1, True, 0), (1, False, 2), (7, False, 2)]
)
def test_a_group_begins_where_it_says(tmp_path: Path, init_mode: int, by_memory: bool, start: int) -> None:
    """At the first message, or at the last, unless the first is recent."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B", "C")
        assert await bodies_of(caller, initMode=init_mode) == ["A", "B", "C"][start:]
        assert offsets(served) == {0: 3, 1: 0, 2: 0, 3: 0}

    in_virtual_time(tmp_path, main, init_pop_offset_by_check_msg_in_mem=by_memory)


@pytest.mark.parametrize("wrong", [9, 1 << 40])
def test_an_offset_that_can_not_be_is_put_right(tmp_path: Path, wrong: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        served.broker.offsets.commit("g", "T", 0, wrong)
        assert await bodies_of(caller) == []
        assert offsets(served)[0] == 2
        await sent(served, caller, "C")
        assert await bodies_of(caller) == ["C"]

    in_virtual_time(tmp_path, main)


def test_a_reset_counts_for_the_next_pop(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B", "C")
        await bodies_of(caller)
        served.broker.offsets.reset("g", "T", 0, 1)
        served.broker.offsets.commit("g", "T", 0, 3)  # of before
        assert await bodies_of(caller) == ["B", "C"]
        assert await bodies_of(caller) == []
        assert not served.broker.offsets.is_reset("g", "T", 0)

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("actual", [False, True])
def test_what_failed_comes_as_of_its_topic(tmp_path: Path, v2: bool, actual: bool) -> None:
    """With a handle that says where it is, which is where it is acknowledged."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        await bodies_of(caller)
        await asyncio.sleep(AGAIN_SECONDS)
        answer = await pop(caller)
        assert answer.code == 0
        views = list(iter_records(answer.body))
        retry = "%RETRY%g+T" if v2 else "%RETRY%g_T"
        assert {view.topic for view in views} == {retry if actual else "T"}
        assert {"POP_CK" in view.properties for view in views} == {not actual}
        assert [view.body for view in views] == [b"A", b"B"]
        assert [view.reconsume_times for view in views] == [1, 1]
        assert answer.ext["startOffsetInfo"] == f"{2 if v2 else 1} 0 0"
        assert offsets(served, retry) == {0: 2}

    in_virtual_time(tmp_path, main, enable_retry_topic_v2=v2, pop_response_return_actual_retry_topic=actual)


@pytest.mark.parametrize("percent", [0, 100])
def test_what_failed_comes_first_or_last(tmp_path: Path, percent: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A")
        await bodies_of(caller)
        await asyncio.sleep(AGAIN_SECONDS)
        await sent(served, caller, "B")
        assert await bodies_of(caller) == (["A", "B"] if percent else ["B", "A"])

    in_virtual_time(tmp_path, main, pop_from_retry_probability=percent)


def test_nothing_is_given_that_can_not_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is."""

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        await sent(served, caller, "C", queue_id=1)
        revive_log = served.broker.popping.books.revive_log
        notes = revive_log.put_checkpoint
        room = 0

        def put(*args: Any) -> None:
            nonlocal room
            room -= 1
            if room < 0:
                raise DiskFull("the disk is full")
            notes(*args)

        monkeypatch.setattr(revive_log, "put_checkpoint", put)
        answer = await pop(caller)
        assert (answer.code, answer.body) == (14, b"")
        assert set(offsets(served).values()) == {0}
        room = 1
        answer = await pop(caller)
        assert answer.code == 0
        given = len(list(iter_records(answer.body)))
        assert int(answer.ext["restNum"]) == 3 - given
        room = 9
        assert given + len(await bodies_of(caller)) == 3

    in_virtual_time(tmp_path, main)


def test_a_queue_that_can_not_be_read_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A")
        await sent(served, caller, "B", queue_id=1)
        find = served.broker.store.find_queue

        def found(topic: str, queue_id: int) -> Any:
            if (topic, queue_id) == ("T", 0):
                raise CorruptStore("queue T-0 is shut")
            return find(topic, queue_id)

        monkeypatch.setattr(served.broker.store, "find_queue", found)
        assert await bodies_of(caller) == ["B"]
        assert (await pop(caller, queueId=0)).code == 14

    in_virtual_time(tmp_path, main)


def test_a_deleted_topic_is_popped_from_its_new_begin(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        assert await bodies_of(caller) == ["A", "B"]
        assert (await caller.call(215, {"topic": "T"})).code == 0
        await sent(served, caller, "C")
        assert await bodies_of(caller) == ["C"]

    in_virtual_time(tmp_path, main)


def test_old_messages_are_fetched_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop that found some gives these at once."""
    monkeypatch.setattr("firearrow.store.reader.is_resident", lambda *_: False)
    monkeypatch.setattr("firearrow.store.reader._OWN_BYTES_MAX", 0)

    async def main(served: Serving, caller: Caller) -> None:
        await sent(served, caller, "A", "B")
        assert await bodies_of(caller) == ["A", "B"]
        assert await bodies_of(caller) == []

    calling(tmp_path, main)


Step = tuple[str, int, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("pop"), st.integers(-1, 3), st.integers(1, 8)),
        st.tuples(st.just("ack"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 9), st.just(0)),
    ),
    max_size=20,
)


@settings(max_examples=10, deadline=None)
@given(steps)
def test_whatever_happens_each_message_comes_until_it_is_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, plan: list[Step]
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        expected: set[bytes] = set()
        held: list[tuple[bytes, Any, int]] = []
        late: set[bytes] = set()  # acknowledged when it was visible: that may count, or not
        count = 0
        for what, which, number in [("send", 0, 1), *plan, ("wait", 20, 0)]:
            if what == "send":
                for _ in range(number):
                    count += 1
                    await caller.sent(b"%d" % count, queue_id=which)
                    expected.add(b"%d" % count)
                await served.dispatched()
            elif what == "pop":
                now_ms = served.broker._clock.now_ms()
                invisible = {body for body, _, until in held if now_ms < until}
                for view, handle in await popped(caller, queueId=which, maxMsgNums=number, invisibleTime=5000):
                    assert view.body in expected
                    assert view.body not in invisible
                    held.append((view.body, handle, handle.visible_ms))
            elif what == "ack" and held:
                body, handle, until = held.pop(which % len(held))
                assert (await ack(caller, handle)).code == 0
                if served.broker._clock.now_ms() < until:
                    expected.discard(body)
                else:
                    late.add(body)
            elif what == "wait":
                await asyncio.sleep(which)
        left = set()
        while taken := await popped(caller):
            left |= {view.body for view, _ in taken}
        assert left >= expected - late

    in_virtual_time(tmp_path_factory.mktemp("popping"), main)
