"""Which pops are refused, before it is looked for messages."""

from __future__ import annotations

from pathlib import Path

from firearrow.broker.pop.sharing import MESSAGES_MAX
from tests.broker.popping import pop, pop_fields, popped
from tests.broker.serving import Caller, Serving, in_virtual_time

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
