"""What consumers may say of messages that they popped, and what of it is noted."""

from __future__ import annotations

import base64
from pathlib import Path

from firearrow.broker.pop.acks import BITS_CHARS_MAX, OFFSETS_MAX
from firearrow.message.names import TIMER_TOPIC
from firearrow.wire import fastjson
from firearrow.wire.command import Command
from firearrow.wire.pop import Handle
from tests.broker.popping import ack, ack_fields, popped
from tests.broker.serving import Caller, Serving, bodies, in_virtual_time


async def made(served: Serving, caller: Caller, count: int = 1) -> Handle:
    """Send messages and pop them; gives the handle of the first."""
    for _ in range(count):
        await caller.sent()
    await served.dispatched()
    [(_, handle), *_] = await popped(caller)
    return handle


def notes(served: Serving) -> int:
    """How many records of pops were written."""
    return len(bodies(served, TIMER_TOPIC))


def bits_of(count: int) -> str:
    """As many ones."""
    return base64.b64encode(((1 << count) - 1).to_bytes((count + 7) // 8, "little")).decode()


async def ack_batch(caller: Caller, handle: Handle, bits: str, group: str = "g") -> Command[None]:
    """Acknowledge messages of queue 0 by their bits."""
    item = {
        "c": group, "t": "T", "r": "0", "so": handle.start_offset, "q": 0,
        "rq": handle.revive_queue_id, "pt": handle.pop_ms, "it": handle.invisible_ms, "b": bits,
    }  # fmt: skip
    body = fastjson.dumps({"brokerName": "broker-a", "acks": [item]})
    return await caller.call(200151, {}, body)


def test_nothing_is_noted_for_a_group_that_is_not_there(tmp_path: Path) -> None:
    """Java: it is, for any name."""

    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.call(200, {}, b'{"groupName":"g"}')).code == 0
        handle = await made(served, caller)
        before = notes(served)
        assert (await ack(caller, handle, consumerGroup="unknown")).code == 0
        fields = ack_fields(handle, consumerGroup="unknown", invisibleTime=1000)
        assert (await caller.call(200053, fields)).code == 0
        assert (await ack_batch(caller, handle, bits_of(1), "unknown")).code == 0
        assert notes(served) == before
        assert (await ack(caller, handle)).code == 0
        assert notes(served) == before + 1

    in_virtual_time(tmp_path, main, auto_create_subscription_group=False)


def test_one_acknowledgement_names_no_more_messages_than_a_pop_gives(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        handle = await made(served, caller, 3)
        before = notes(served)
        for bits, words in (
            (bits_of(OFFSETS_MAX + 1), f"{OFFSETS_MAX + 1} messages"),
            ("A" * (BITS_CHARS_MAX + 4), f"bits of {BITS_CHARS_MAX + 4} characters"),
            ("no base64!", "not base64"),
        ):
            answer = await ack_batch(caller, handle, bits)
            assert answer.code == 13
            assert words in (answer.remark or "")
        assert notes(served) == before
        assert (await ack_batch(caller, handle, bits_of(OFFSETS_MAX))).code == 0
        assert notes(served) == before + 1

    in_virtual_time(tmp_path, main)


def test_an_acknowledgement_of_nothing_changes_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        handle = await made(served, caller, 3)
        before = notes(served)
        assert (await ack_batch(caller, handle, "")).code == 0
        assert notes(served) == before

    in_virtual_time(tmp_path, main)


def test_a_revive_queue_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Java: it is noted there, and the message comes again nevertheless."""

    async def main(served: Serving, caller: Caller) -> None:
        handle = await made(served, caller)
        before = notes(served)
        answer = await ack(caller, handle._replace(revive_queue_id=77))
        assert answer.code == 1
        assert "reviveQid[77] is illegal" in (answer.remark or "")
        assert notes(served) == before

    in_virtual_time(tmp_path, main)
