"""How many messages a group has in hand, and that it gets no more than it may."""

from pathlib import Path

from msgspec.structs import replace

from firearrow.broker.events import GroupDeleted
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.state.settings import Settings
from firearrow.store import QueuesDeleted
from tests.broker.fakes import CONFIG, HandClock
from tests.broker.popping import ack, pop, popped
from tests.broker.serving import Caller, Serving, in_virtual_time


def counting(threshold: int) -> InFlight:
    config = replace(CONFIG, enable_pop_message_threshold=True, pop_inflight_message_threshold=threshold)
    settings = Settings(HandClock(), config)
    return InFlight(settings)


def test_nothing_is_counted_while_it_is_off() -> None:
    found = InFlight(Settings(HandClock(), CONFIG))
    found.popped("T", "g", 0, 5)
    found.done("T", "g", 0, 5)
    assert (found.count("T", "g", 0), found.is_full("T", "g", 0)) == (0, False)


def test_counts_are_by_queue_and_never_below_none() -> None:
    found = counting(4)
    found.popped("T", "g", 0, 5)
    found.popped("T", "g", 1, 4)
    found.popped("T", "h", 0, 1)
    assert [found.is_full("T", "g", queue_id) for queue_id in (0, 1, 2)] == [True, False, False]
    found.done("T", "g", 0, 2)
    found.done("T", "g", 1, 9)
    found.done("U", "g", 1, 9)
    assert [found.count("T", "g", queue_id) for queue_id in (0, 1)] == [3, 0]
    found.clear("T", "g", 0)
    assert found.count("T", "g", 0) == 0
    assert found.count("T", "h", 0) == 1


def test_what_is_deleted_is_forgotten() -> None:
    found = counting(0)
    for topic in ("T", "TT"):
        for queue_id in (0, 1):
            found.popped(topic, "g", queue_id, 1)
    found.topic_gone(QueuesDeleted("T", 0))
    assert [found.count("T", "g", 0), found.count("T", "g", 1)] == [0, 1]
    found.topic_gone(QueuesDeleted("T"))
    assert [found.count("T", "g", 1), found.count("TT", "g", 1)] == [0, 1]
    found.group_gone(GroupDeleted("g"))
    assert found.count("TT", "g", 1) == 0


def test_a_group_gets_no_more_of_a_queue_until_it_has_consumed_some(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(12):
            await caller.sent(b"%d" % number, queue_id=number % 2)
        await served.dispatched()
        taken = await popped(caller, queueId=0, maxMsgNums=4)
        answer = await pop(caller, queueId=0)
        assert (answer.code, answer.ext["restNum"]) == (210, "2")
        assert len(await popped(caller, queueId=1)) == 6
        await ack(caller, taken[0][1])
        assert len(await popped(caller, queueId=0)) == 2

    keys = {"enable_pop_message_threshold": True, "pop_inflight_message_threshold": 3}
    in_virtual_time(tmp_path, main, **keys)
