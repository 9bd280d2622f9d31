"""Newest handles of messages whose invisible time was changed (19003)."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop import successors
from firearrow.broker.pop.successors import EARLIER_MAX, Place, Successors
from firearrow.wire.command import Command
from firearrow.wire.pop import Handle
from tests.broker.kvpops import KV
from tests.broker.pop.test_revive import lives, passed, sent_and_popped
from tests.broker.popping import ack, ack_fields, popped
from tests.broker.serving import Caller, Serving

PLACE: Place = ("T", "g", 0, 5)
NO_MESSAGE = 208
FORMS = pytest.mark.parametrize("books", [{}, KV], ids=["revive log", "database"])


def at(pop_ms: int, invisible_ms: int = 60_000) -> Handle:
    return Handle(5, pop_ms, invisible_ms, 0, 0, "b", 0, 5)


def chain(known: Successors, *pop_ms: int) -> None:
    """Replace each handle by the next in the moment of its pop."""
    for old_ms, new_ms in itertools.pairwise(pop_ms):
        known.note(PLACE, at(old_ms), at(new_ms), new_ms)


def test_each_handle_of_a_chain_leads_to_the_newest() -> None:
    known = Successors()
    chain(known, 0, 50_000, 100_000, 150_000)
    for pop_ms in (0, 50_000, 100_000, 150_000):
        assert known.find(PLACE, at(pop_ms), 209_999) == at(150_000)
        assert known.find(PLACE, at(pop_ms), 210_000) is None, "it may be popped again"
    assert known.find(PLACE, at(75_000), 160_000) is None, "another pop of the message"
    assert known.find(("T", "other", 0, 5), at(0), 160_000) is None


def test_a_gap_ends_a_chain() -> None:
    known = Successors()
    chain(known, 0, 50_000)
    known.note(PLACE, at(50_000), at(110_000), 110_000)
    assert known.find(PLACE, at(0), 110_000) is None
    assert known.find(PLACE, at(50_000), 110_000) is None


def test_a_change_by_another_handle_begins_a_chain() -> None:
    known = Successors()
    chain(known, 0, 50_000)
    known.note(PLACE, at(40_000), at(60_000), 60_000)
    assert known.find(PLACE, at(0), 60_000) is None
    assert known.find(PLACE, at(40_000), 60_000) == at(60_000)


def test_the_first_handle_of_a_long_chain_leads_to_the_newest() -> None:
    known, count = Successors(), 10 * EARLIER_MAX
    chain(known, *range(count))
    assert known.find(PLACE, at(0), count) == at(count - 1)
    assert known.find(PLACE, at(count - 2), count) == at(count - 1)
    assert sum(known.find(PLACE, at(number), count) is not None for number in range(count)) == EARLIER_MAX + 1


def test_handles_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for a number of messages, and the oldest make room."""
    monkeypatch.setattr(successors, "MESSAGES_MAX", 10)
    known = Successors()
    for number in range(30):
        known.note(("T", "g", 0, number), at(0), at(1), 1)
    assert [number for number in range(30) if known.find(("T", "g", 0, number), at(0), 1)] == list(range(20, 30))
    for number in range(3):
        known.note(("T", "g", 1, number), at(70_000), at(70_001), 70_001)
    assert len(known) == 3


# --- 19003 ---


def changed(handle: Handle, answer: Command[Any]) -> Handle:
    """The handle that an answer has the times of."""
    times = {name: int(answer.ext[name]) for name in ("popTime", "invisibleTime")}
    return handle._replace(
        start_offset=handle.queue_offset, pop_ms=times["popTime"], invisible_ms=times["invisibleTime"]
    )


async def newest(caller: Caller, handle: Handle, **others: Any) -> Handle | int:
    """Ask for the newest handle; return it, or the code of the refusal."""
    answer = await caller.call(19003, ack_fields(handle, **others))
    if answer.code:
        return answer.code
    assert int(answer.ext["reviveQid"]) == handle.revive_queue_id
    return changed(handle, answer)


async def renewed(caller: Caller, handle: Handle, invisible_ms: int = 60_000) -> Handle:
    """Change the invisible time of a message; return its new handle."""
    answer = await caller.call(200053, ack_fields(handle, invisibleTime=invisible_ms))
    assert answer.code == 0
    return changed(handle, answer)


@FORMS
def test_a_renewed_message_has_its_newest_handle_until_it_is_acknowledged(
    tmp_path: Path, books: dict[str, Any]
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [_, (_, first)] = await sent_and_popped(served, caller, 2)
        assert await newest(caller, first) == NO_MESSAGE
        last = first
        for _ in range(3):
            await asyncio.sleep(50)
            last = await renewed(caller, last)
            assert await newest(caller, first) == last
        assert (await ack(caller, first)).code == 0
        assert await newest(caller, first) == last, "the old handle alone acknowledges nothing"
        assert await newest(caller, first, offset=0) == NO_MESSAGE
        assert (await ack(caller, last)).code == 0
        assert await newest(caller, first) == NO_MESSAGE
        for handle in (first, last):  # by a proxy that does not know of the acknowledgement
            assert (await caller.call(200053, ack_fields(handle, invisibleTime=1000))).code == NO_MESSAGE

    lives(tmp_path, main, **books)


@FORMS
def test_a_message_that_is_redelivered_has_none(tmp_path: Path, books: dict[str, Any]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, first)] = await sent_and_popped(served, caller, 1)
        await asyncio.sleep(50)
        last = await renewed(caller, first)
        await passed(served, last.visible_ms)
        [(_, again)] = await popped(caller)
        assert again.origin != first.origin
        assert await newest(caller, first) == await newest(caller, last) == NO_MESSAGE
        assert await newest(caller, again) == NO_MESSAGE

    lives(tmp_path, main, **books)


def test_what_is_no_handle_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, first)] = await sent_and_popped(served, caller, 1)
        assert await newest(caller, first, extraInfo="none") == 1
        assert await newest(caller, first, queueId=100) == 13
        assert await newest(caller, first, topic="none") == 17

    lives(tmp_path, main)
