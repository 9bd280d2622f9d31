"""What consumers say of messages of lite topics, beside `test_lite`."""

from __future__ import annotations

from pathlib import Path

from firearrow.wire.command import FieldValue
from tests.broker.lite.test_processor import CHANGE, ack, handle, pop, popped, send, subscribe, with_lite_topics
from tests.broker.serving import Caller, Serving


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
