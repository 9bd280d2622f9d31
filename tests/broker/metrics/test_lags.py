"""Lags of groups in a scrape: of a group that pulls, and of one that pops."""

from __future__ import annotations

import json
from pathlib import Path

from firearrow.clock import SystemClock
from firearrow.wire.bodies import TopicConfig
from tests import scrapes
from tests.broker.popping import ack, messages_of, pop
from tests.broker.serving import Caller, Serving, calling, until
from tests.scrapes import get
from tests.store.stores import append

NAMES = ("consumer_lag_messages", "consumer_inflight_messages", "consumer_ready_messages")
TIMES = ("consumer_lag_latency_milliseconds", "consumer_queueing_latency_milliseconds")


clock = SystemClock()


async def join(caller: Caller, group: str, consume_type: str, *topics: str) -> None:
    """Become a member of a group."""
    wanted = [{"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for topic in topics]
    consumer = {
        "groupName": group, "consumeType": consume_type, "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": wanted,
    }  # fmt: skip
    beat = {"clientID": group, "consumerDataSet": [consumer], "producerDataSet": []}
    assert (await caller.call(34, {}, json.dumps(beat).encode())).code == 0


async def lag(served: Serving, group: str, topic: str = "T", *, is_retry: bool = False) -> list[float]:
    """Messages of a group that are not consumed, in flight and ready; then which of the two ages are known."""
    await served.dispatched()
    now_ms = clock.now_ms()
    await until(lambda: clock.now_ms() > now_ms)
    families = scrapes.parse((await get(served.broker.operations.port))[1])

    def value(name: str) -> float:
        family = families[f"rocketmq_{name}"]
        return family.value(consumer_group=group, topic=topic, is_retry=str(is_retry).lower())

    return [*map(value, NAMES), *(value(name) > 0 for name in TIMES)]


def test_lags(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        offsets = served.broker.offsets
        for queue_id, count in ((0, 5), (1, 3)):
            for _ in range(count):
                await caller.sent(queue_id=queue_id)
        await join(caller, "g", "CONSUME_PASSIVELY", "T", "%RETRY%g", "no such topic")
        assert await lag(served, "g") == [0, 0, 0, False, False]  # no offset yet
        offsets.commit("g", "T", 0, 2)
        offsets.commit_pull("g", "T", 0, 4)
        assert await lag(served, "g") == [3, 2, 1, True, True]
        offsets.commit("g", "T", 1, 0)
        offsets.commit("g", "T", 0, 4)
        assert await lag(served, "g") == [4, 0, 4, True, True]
        offsets.commit("g", "T", 0, 9)  # beyond the end
        offsets.commit_pull("g", "T", 1, 3)
        assert await lag(served, "g") == [3, 3, 0, True, False]

        await join(caller, "p", "CONSUME_POP", "T")
        assert await lag(served, "p") == [0, 0, 0, False, False]
        answer = await pop(caller, consumerGroup="p", queueId=0, maxMsgNums=3)
        assert await lag(served, "p") == [5, 3, 2, True, True]
        await ack(caller, messages_of(answer, group="p")[0][1], consumerGroup="p")
        assert await lag(served, "p") == [4, 2, 2, True, True]
        total = 0
        for retry, count, committed in (("%RETRY%p+T", 2, 0), ("%RETRY%p_T", 4, 1)):
            served.broker.topics.put(TopicConfig(retry, 1, 1))
            for _ in range(count):
                append(served.broker.store, b"x", retry, now_ms=clock.now_ms())
            offsets.commit("p", retry, 0, committed)
            total += count - committed
            assert await lag(served, "p", is_retry=True) == [total, 0, total, True, True]
        assert await lag(served, "p") == [4, 2, 2, True, True]

    calling(tmp_path, main, metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
