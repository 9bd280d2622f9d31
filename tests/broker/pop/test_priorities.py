"""Messages with a priority: those of a higher one are popped first, also when they come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from tests.broker.pop.test_revive import RETRY, lives, passed
from tests.broker.popping import ack, popped
from tests.broker.serving import Caller, Serving, stored

PRIORITIES = 4


async def make(caller: Caller, served: Serving, **attributes: str) -> None:
    """Make topic T for priorities, and group g."""
    served.broker.topics.put(
        TopicConfig(
            topic_name="T",
            read_queue_nums=PRIORITIES,
            write_queue_nums=PRIORITIES,
            attributes={"+message.type": "PRIORITY"},
        )
    )
    signed = {f"+{name.replace('_', '.')}": value for name, value in attributes.items()}
    body = fastjson.dumps({"groupName": "g", "attributes": signed})
    assert (await caller.call(200, {}, body)).code == 0


async def send(served: Serving, caller: Caller, priorities: str) -> None:
    """Send messages; each says its priority."""
    for number in priorities:
        text = f"UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x01{number}\x02"
        await caller.sent(number.encode(), i=text)
    await served.dispatched()


async def taken(caller: Caller, count: int = 32) -> str:
    """Pop messages and give their priorities."""
    return "".join(view.body.decode() for view, _ in await popped(caller, maxMsgNums=count))


@pytest.mark.parametrize(("ascending", "expected"), [(True, "333210"), (False, "012333")])
def test_the_highest_priority_comes_first(tmp_path: Path, ascending: bool, expected: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await send(served, caller, "031332")
        found = "".join([await taken(caller, 1) for _ in range(4)]) + await taken(caller)
        assert found == expected
        assert await taken(caller) == ""

    lives(tmp_path, main, priority_order_asc=ascending)


def test_no_lower_one_comes_before_those_of_the_next_file(tmp_path: Path) -> None:
    """A queue is read to the end of one of its files at a time."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await send(served, caller, "0" + "3" * 45)
        found = [await taken(caller) for _ in range(4)]
        assert found == ["3" * 20, "3" * 20, "3" * 5 + "0", ""]

    lives(tmp_path, main)


def test_what_was_just_sent_comes_before_lower_ones(tmp_path: Path) -> None:
    """Though its queue does not have it yet: the broker gathers messages for a moment."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await send(served, caller, "111")
        assert await taken(caller, 1) == "1"
        for number in "23":
            text = f"UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x01{number}\x02"
            await caller.sent(number.encode(), i=text)
        assert served.broker.store.behind_bytes
        assert await taken(caller) == "3211"

    lives(tmp_path, main)


def test_a_group_may_pop_otherwise_now_and_then(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served, priority_factor="50")
        count = 120
        await send(served, caller, "0123" * count)
        firsts = [await taken(caller, 1) for _ in range(count)]
        # Half of all, and a quarter of the others: 75, with a deviation of 5.
        assert 45 <= firsts.count("3") <= 105
        assert set(firsts) == set("0123")

    lives(tmp_path, main)


def test_without_a_factor_a_pop_of_the_topic_is_as_any(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served, priority_factor="0")
        await send(served, caller, "0123" * 40)
        firsts = [await taken(caller, 1) for _ in range(40)]
        assert 1 <= firsts.count("3") <= 25

    lives(tmp_path, main)


def test_pops_in_order_and_of_one_queue_know_no_priority(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await send(served, caller, "0123" * 20)
        firsts = {(await popped(caller, maxMsgNums=1, order=True, attemptId="a"))[0][0].body for _ in range(40)}
        assert len(firsts) > 1
        [(view, _)] = await popped(caller, maxMsgNums=1, queueId=1)
        assert view.queue_id == 1

    lives(tmp_path, main)


async def fail(served: Serving, caller: Caller, priorities: str) -> None:
    """Send messages and pop them one by one; none is acknowledged."""
    for number in priorities:
        await send(served, caller, number)
        [(view, handle)] = await popped(caller, maxMsgNums=1)
        assert view.body == number.encode()
    await passed(served, handle.visible_ms)


def test_a_failed_message_does_not_wait_for_lower_ones_that_failed_before(tmp_path: Path) -> None:
    """Java: they come again in the order in which they failed (apache/rocketmq#10350)."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await fail(served, caller, "00013")
        assert [len(stored(served, RETRY, queue_id)) for queue_id in range(4)] == [3, 1, 0, 1]
        [(view, handle)] = await popped(caller, maxMsgNums=1)
        assert (view.body, view.topic, handle.origin) == (b"3", "T", 1)
        assert (await ack(caller, handle)).code == 0
        assert await taken(caller) == "1000"

    lives(tmp_path, main)


@pytest.mark.parametrize(("percent", "expected"), [(0, "23"), (100, "32")])
def test_when_failed_messages_come_is_configured(tmp_path: Path, percent: int, expected: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await fail(served, caller, "3")
        await send(served, caller, "2")
        assert await taken(caller) == expected

    lives(tmp_path, main, pop_from_retry_probability_for_priority=percent)


def test_a_retry_topic_of_before_gets_a_queue_for_each_priority(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        served.broker.topics.create(RETRY, 1)
        await fail(served, caller, "03")
        assert await taken(caller) == "30"
        config = served.broker.topics.get(RETRY)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (PRIORITIES, PRIORITIES)

    lives(tmp_path, main)


def test_a_topic_that_shrinks_keeps_its_retry_queues(tmp_path: Path) -> None:
    """Java: the retry topic is made smaller, and what is in its last queues is popped no more."""

    async def main(served: Serving, caller: Caller) -> None:
        await make(caller, served)
        await fail(served, caller, "3")
        served.broker.topics.put(TopicConfig("T", 1, 1))
        await fail(served, caller, "0")
        assert await taken(caller) == "30"

    lives(tmp_path, main)
