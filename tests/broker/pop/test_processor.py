"""Which pops are refused, before it is looked for messages."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firearrow.broker.pop.popping import PoppedMessages
from firearrow.broker.pop.processor import MESSAGES_MAX, pop_key, shares
from firearrow.message.names import TIMER_TOPIC
from firearrow.wire.command import Command, FieldValue
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import Handle
from tests.broker.popping import ack_fields, messages_of, pop, pop_fields, popped
from tests.broker.serving import Caller, Serving, bodies, in_virtual_time

DAY_MS = 86_400_000


def test_what_can_not_be_noted_is_not_popped(tmp_path: Path) -> None:
    """Java: it is given, and comes at once or never again."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        for invisible_ms in (-1, 2 * DAY_MS + 1):
            answer = await pop(caller, invisibleTime=invisible_ms)
            assert (answer.code, answer.body) == (29, b"")
            assert f"invisibleTime[{invisible_ms}] is illegal" in (answer.remark or "")
        assert len(await popped(caller, invisibleTime=2 * DAY_MS)) == 1
        await caller.sent()
        assert len(await popped(caller, invisibleTime=0)) == 1

    in_virtual_time(tmp_path, main, store={"timer_max_delay_sec": 2 * DAY_MS // 1000})


def test_a_group_that_may_not_read_a_topic_pops_nothing(tmp_path: Path) -> None:
    """Java: only pulls are refused."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        assert await popped(caller, consumerGroup="other")
        assert (await caller.call(200, {}, b'{"groupName":"g"}')).code == 0
        for readable, code in (("false", 16), ("true", 0)):
            fields = {"group": "g", "topic": "T", "readable": readable}
            assert (await caller.call(353, fields)).code == 0
            for request_code in (200052, 200054, 200050):
                answer = await caller.call(request_code, pop_fields())
                assert answer.code == code, request_code

    in_virtual_time(tmp_path, main)


def test_more_than_a_pop_may_give_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        assert (await pop(caller, maxMsgNums=MESSAGES_MAX + 1)).code == 29
        assert len(await popped(caller, maxMsgNums=MESSAGES_MAX)) == 1

    in_virtual_time(tmp_path, main)


# --- Pops and acknowledgements that come together have the same effect as one after another ---


DUE_SECONDS = 70
CALLERS = 5

Ask = tuple[int, int, dict[str, FieldValue]]
"""Who asks, for which code, with which fields."""


@given(st.lists(st.integers(1, 40), max_size=4), st.integers(1, MESSAGES_MAX), st.booleans())
def test_each_message_is_given_once_and_in_order(sizes: list[int], count: int, whole: bool) -> None:
    taken, given_before = [], 0
    for queue_id, size in enumerate(sizes):
        offsets = range(given_before, given_before + size)
        records = [bytes((0, 0, 0, 6, queue_id, offset)) for offset in offsets]
        parts = [b"".join(records)] if whole else records
        taken.append(PoppedMessages(0, queue_id, 7, offsets, parts))
        given_before += size
    found = shares(taken, count)
    for number, share in enumerate(found):
        got = sum(len(part.offsets) for part in share)
        assert got == count or (number == len(found) - 1 and 0 < got < count)
        assert all(part.start_offset == 7 for part in share)
    places = [
        (part.queue_id, offset, record)
        for share in found
        for part in share
        for offset, record in zip(part.offsets, part.records, strict=True)
    ]
    assert [offset for _, offset, _ in places] == list(range(given_before))
    assert all(record[4:] == bytes((queue_id, offset)) for queue_id, offset, record in places)


def test_what_is_in_order_or_large_shares_with_none() -> None:
    header = PopMessage("g", "T", 0, 1, 60_000, 0, 0, 0)
    assert pop_key(header) == pop_key(PopMessage("g", "T", 0, 1, 60_000, 5, 5, 0))
    for changed in (
        PopMessage("g", "T", 0, 1, 60_000, 0, 0, 0, order=True),
        PopMessage("g", "T", 0, MESSAGES_MAX // 2 + 1, 60_000, 0, 0, 0),
        PopMessage("g", "T", 0, 0, 60_000, 0, 0, 0),
    ):
        assert pop_key(changed) is None
    for other in (
        PopMessage("h", "T", 0, 1, 60_000, 0, 0, 0),
        PopMessage("g", "T", 0, 2, 60_000, 0, 0, 0),
        PopMessage("g", "T", 0, 1, 60_001, 0, 0, 0),
        PopMessage("g", "T", 0, 1, 60_000, 0, 0, 0, exp="A"),
    ):
        assert pop_key(other) != pop_key(header)


async def asked(callers: Sequence[Caller], asks: Sequence[Ask], *, together: bool) -> list[Command[Any]]:
    """The answers to requests, which all come in one turn or each after the one before."""
    if not together:
        return [await callers[who].call(code, fields) for who, code, fields in asks]
    opaques = [callers[who].tell(code, fields) for who, code, fields in asks]
    answers = [await callers[who].talker.answer() for who, _, _ in asks]
    assert [answer.opaque for answer in answers] == opaques
    return answers


def result(sent: list[str], pops: list[Ask], acks: list[tuple[int, int, str]], *, together: bool) -> list[object]:
    """What is told of pops and of acknowledgements, and what comes again."""
    told: list[object] = []

    async def main(served: Serving, caller: Caller) -> None:
        async with AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(served.caller()) for _ in range(CALLERS)]
            for number, tag in enumerate(sent):
                await caller.sent(str(number).encode(), i=f"TAGS\x01{tag}\x02")
            await served.dispatched()
            taken: list[Handle] = []
            answers = await asked(callers, pops, together=together)
            for (_, _, fields), answer in zip(pops, answers, strict=True):
                found = messages_of(answer) if answer.code == 0 else []
                told.append((answer.code, answer.remark, [view.body for view, _ in found]))
                if fields["exp"] == "*":  # else what is not wanted counts as left
                    told.append(answer.ext["restNum"])
                taken += [handle for _, handle in found]
            asks: list[Ask] = [
                (who, 200051, ack_fields(taken[at % len(taken)]) | FAULTS[fault]) for who, at, fault in acks if taken
            ]
            answers = await asked(callers, asks, together=together)
            told.extend((answer.code, (answer.remark or "")[:20]) for answer in answers)
            told.append(served.broker.popping.books.offset("g", "T", 0))
            await asyncio.sleep(DUE_SECONDS)
            order = any(fields["order"] for _, _, fields in pops)
            while again := await popped(caller, order=order, queueId=0 if order else -1):
                told.append(sorted(view.body for view, _ in again))

    with tempfile.TemporaryDirectory() as root:
        in_virtual_time(Path(root), main)
    return told


FAULTS: dict[str, dict[str, FieldValue]] = {
    "": {},
    "a place that is not there": {"offset": 1_000_000},
    "no handle": {"extraInfo": "none"},
    "no such topic": {"topic": "unknown"},
    "no such queue": {"queueId": 99},
    "the queue's end": {"offset": 12},
}

_who = st.integers(0, CALLERS - 1)
_faults = st.sampled_from([*[""] * 12, *FAULTS])
_not_shrunk = settings(  # that takes minutes
    max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate]
)


@_not_shrunk
@given(
    st.lists(st.sampled_from("AAB"), min_size=1, max_size=12),
    st.lists(_who, max_size=9),
    st.sampled_from([1, 1, 1, 2, 3, 12, 32]),
    st.sampled_from(["*", "A"]),
    st.lists(st.tuples(_who, st.integers(0, 40), _faults), max_size=16),
    st.booleans(),
)
def test_together_is_as_one_after_another(
    sent: list[str], who: list[int], count: int, tag: str, acks: list[tuple[int, int, str]], order: bool
) -> None:
    """Of several connections, in the order in which they are read."""
    fields = pop_fields(maxMsgNums=count, exp=tag, queueId=0, order=order)
    pops: list[Ask] = [(one, 200050, fields) for one in sorted(who)]
    one_by_one = result(sent, pops, acks, together=False)
    assert result(sent, pops, acks, together=True) == one_by_one


@_not_shrunk
@given(
    st.lists(st.sampled_from("AB"), min_size=1, max_size=12),
    st.lists(st.tuples(_who, st.sampled_from([1, 1, 2, 3, 32]), st.sampled_from("*A")), max_size=9),
)
def test_of_pops_that_differ_each_is_given_what_it_asks_for(sent: list[str], asks: list[tuple[int, int, str]]) -> None:
    """In any order; together as much as by themselves, if all want all."""
    bodies_of_tag = {
        "*": {str(number).encode() for number in range(len(sent))},
        "A": {str(number).encode() for number, tag in enumerate(sent) if tag == "A"},
    }

    async def main(served: Serving, caller: Caller) -> None:
        async with AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(served.caller()) for _ in range(CALLERS)]
            for number, tag in enumerate(sent):
                await caller.sent(str(number).encode(), queue_id=number % 4, i=f"TAGS\x01{tag}\x02")
            await served.dispatched()
            pops: list[Ask] = [(who, 200050, pop_fields(maxMsgNums=count, exp=tag)) for who, count, tag in asks]
            given: list[bytes] = []
            for (_, count, tag), answer in zip(asks, await asked(callers, pops, together=True), strict=True):
                found = [view.body for view, _ in messages_of(answer)] if not answer.code else []
                assert len(found) <= count
                assert bodies_of_tag[tag].issuperset(found)
                given += found
            assert len(given) == len(set(given))
            if all(tag == "*" for _, _, tag in asks):
                assert len(given) == min(len(sent), sum(count for _, count, _ in asks))

    with tempfile.TemporaryDirectory() as root:
        in_virtual_time(Path(root), main)


def test_pops_and_acknowledgements_of_one_turn_are_a_record_each(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(served.caller()) for _ in range(CALLERS)]
            for number in range(CALLERS + 1):
                await caller.sent(str(number).encode())
            await served.dispatched()
            fields = pop_fields(maxMsgNums=1)
            pops = [(who, 200050, fields) for who in range(CALLERS)]
            answers = await asked(callers, pops, together=True)
            assert len(bodies(served, TIMER_TOPIC)) == 1
            handles = [messages_of(answer)[0][1] for answer in answers]
            assert [handle.queue_offset for handle in handles] == list(range(CALLERS))
            acks: list[Ask] = [(who, 200051, ack_fields(handle)) for who, handle in enumerate(handles)]
            assert {answer.code for answer in await asked(callers, acks, together=True)} == {0}
            assert len(bodies(served, TIMER_TOPIC)) == 2
            await asyncio.sleep(DUE_SECONDS)
            assert [view.body for view, _ in await popped(caller)] == [str(CALLERS).encode()]

    in_virtual_time(tmp_path, main)
