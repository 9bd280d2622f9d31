"""What was popped and not acknowledged comes again: when, where, and after whatever happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from firearrow.message.model import MessageView
from firearrow.message.names import REVIVE_GROUP
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import FieldValue
from firearrow.wire.pop import Handle
from tests.broker.popping import REVIVE_TOPIC, ack, popped
from tests.broker.serving import Caller, Serving, serving, stored

RETRY = "%RETRY%g_T"
LATE_SECONDS = 4.5  # two of being late, a slot of the timer, and what gathers
PATIENT: dict[str, Any] = {
    "server_channel_max_idle_time_seconds": 10**6, "channel_expired_timeout": 10**9
}  # fmt: skip

Main = Callable[[Serving, Caller], Coroutine[Any, Any, None]]


def lives(root: Path, *mains: Main, **options: Any) -> None:
    """Run tests on one store in virtual time, each with a broker of its own."""

    async def run(clock: VirtualClock) -> None:
        for main in mains:
            async with (
                serving(root, clock=clock, background=False, **PATIENT, **options) as served,
                served.caller() as caller,
            ):
                await main(served, caller)

    loop.run(run)


async def sent_and_popped(
    served: Serving, caller: Caller, count: int, **changed: FieldValue
) -> list[tuple[MessageView, Handle]]:
    """Send messages 0 to n-1 to queue 0, and pop them together."""
    for number in range(count):
        await caller.sent(b"%d" % number)
    await served.dispatched()
    taken = await popped(caller, **changed)
    assert [view.body for view, _ in taken] == [b"%d" % number for number in range(count)]
    return taken


async def passed(handle: Handle, served: Serving) -> None:
    """Let time pass until what was popped must have come again."""
    clock = served.broker._clock
    await asyncio.sleep((handle.visible_ms - clock.now_ms()) / 1000 + LATE_SECONDS)


def again(served: Serving, topic: str = RETRY, queue_id: int = 0) -> list[MessageView]:
    """What is in a retry topic."""
    return stored(served, topic, queue_id)


def committed(served: Serving) -> dict[int, int]:
    """Where the group of the broker is in the revive queues."""
    return dict(served.broker.offsets.queues(REVIVE_GROUP, REVIVE_TOPIC))


def test_what_is_not_acknowledged_comes_again_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        for at in (0, 2):
            await ack(caller, taken[at][1])
        view, handle = taken[1]
        await asyncio.sleep(61)
        assert again(served) == []
        await passed(handle, served)
        first, second = again(served)
        assert [first.body, second.body] == [b"1", b"3"]
        assert first.store_timestamp_ms >= handle.visible_ms + 2000
        assert first.reconsume_times == 1
        assert first.properties == view.properties | {
            "1ST_POP_TIME": str(handle.pop_ms), "ORIGIN_GROUP": "g"
        }  # fmt: skip
        assert first.born_host == view.store_host
        assert (first.born_timestamp_ms, first.flag) == (view.born_timestamp_ms, view.flag)
        assert served.broker.topics.table[RETRY].write_queue_nums == 1
        await asyncio.sleep(600)
        assert len(again(served)) == 2
        (queue_id,) = committed(served)
        assert committed(served)[queue_id] == 2  # the checkpoint, and two acknowledgements

    lives(tmp_path, main)
