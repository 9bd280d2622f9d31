"""What administrators are told of lite topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.wire.command import FieldValue
from tests.broker.lite.test_processor import ack, change, pop, popped, send, subscribe
from tests.broker.lite.test_processor import with_lite_topics as with_lite_topics_of
from tests.broker.serving import Caller, Serving

BROKER, PARENT, TOPIC, CLIENT, GROUP, DISPATCH = range(200074, 200080)


async def asked(caller: Caller, code: int, **fields: FieldValue) -> dict[str, Any]:
    answer = await caller.call(code, fields)
    assert (answer.code, answer.remark) == (0, None)
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_what_the_broker_has(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a", "b")
        for name in "abc":
            await send(caller, name, b"1")
        found = await asked(caller, BROKER)
        assert found.pop("cqTableSize") > 3
        assert found == {
            "currentLmqNum": 3,
            "eventMapSize": 1,
            "groupMeta": {"P": ["G"]},
            "liteSubscriptionCount": 2,
            "maxLmqNum": 20000,
            "offsetTableSize": 0,
            "orderInfoCount": 0,
            "storeType": "default",
            "topicMeta": {"P": -1},
        }
        assert await asked(caller, PARENT, topic="P") == {
            "groups": ["G"],
            "liteTopicCount": 3,
            "lmqNum": 3,
            "topic": "P",
            "ttl": -1,
        }

    with_lite_topics_of(tmp_path, main)


def test_a_lite_topic_and_a_client(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        found = await asked(caller, TOPIC, parentTopic="P", liteTopic="a")
        assert found["topicOffset"].pop("lastUpdateTimestamp") > 0
        assert found == {
            "liteTopic": "a",
            "parentTopic": "P",
            "shardingToBroker": True,
            "subscriber": [{"clientId": "c1", "group": "G"}],
            "topicOffset": {"maxOffset": 1, "minOffset": 0},
        }
        found = await asked(caller, CLIENT, parentTopic="P", group="G", clientId="c1")
        assert found == {
            "clientId": "c1",
            "group": "G",
            "lastAccessTime": -1,
            "lastConsumeTime": 0,
            "liteTopicCount": 1,
            "liteTopicSet": ["%LMQ%$P$a"],
            "parentTopic": "P",
        }
        found = await asked(caller, CLIENT, parentTopic="P", group="G", clientId="unknown")
        assert found["liteTopicCount"] == -1

    with_lite_topics_of(tmp_path, main)


def test_a_wildcard_subscribes_to_each(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.call(200071, {}, change("COMPLETE_ADD"))
        await send(caller, "a", b"1")
        found = await asked(caller, TOPIC, parentTopic="P", liteTopic="a")
        assert found["subscriber"] == [{"clientId": "*", "group": "G"}]
        await caller.call(200071, {}, change("COMPLETE_REMOVE"))
        found = await asked(caller, TOPIC, parentTopic="P", liteTopic="a")
        assert found["subscriber"] == []

    with_lite_topics_of(tmp_path, main, **{"lite.sub.wildcard": "true"})


def test_how_far_a_group_is(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a", "b")
        for name, count in (("a", 3), ("b", 2)):
            for _ in range(count):
                await send(caller, name, b"1")
        first = await pop(caller, maxMsgNum=1)
        await ack(caller, first, "a", 0)
        found = await asked(caller, GROUP, group="G", topK=5)
        assert found["lagCountTopK"][0].pop("earliestUnconsumedTimestamp") > 0
        assert found == {
            "earliestUnconsumedTimestamp": -1,
            "group": "G",
            "lagCountTopK": [{"lagCount": 2, "liteTopic": "a"}],
            "lagTimestampTopK": [],
            "parentTopic": "P",
            "totalLagCount": 2,
        }
        found = await asked(caller, GROUP, group="G", liteTopic="a")
        assert found["earliestUnconsumedTimestamp"] > 0
        assert found["liteTopicOffsetWrapper"].pop("lastTimestamp") > 0
        place = {"brokerOffset": 3, "consumerOffset": 1, "pullOffset": 0}
        assert (found["liteTopicOffsetWrapper"], found["totalLagCount"]) == (place, 2)
        assert (await asked(caller, GROUP, group="G", liteTopic="c"))["totalLagCount"] == -1

    with_lite_topics_of(tmp_path, main)


def test_a_client_sees_all_again(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await subscribe(caller, "a")
        await send(caller, "a", b"1")
        for client in served.broker.lite.topics.subscriptions.of_group("G"):
            client.ready.clear()
        assert await popped(caller) == []
        assert (await caller.call(DISPATCH, {"group": "G", "clientId": "other"})).code == 0
        assert await popped(caller) == []
        assert (await caller.call(DISPATCH, {"group": "G"})).code == 0
        assert await popped(caller) == ["1"]

    with_lite_topics_of(tmp_path, main)


@pytest.mark.parametrize(
    ("code", "fields", "refusal"),
    [
        (PARENT, {"topic": "unknown"}, 17),
        (PARENT, {"topic": "T"}, 29),
        (TOPIC, {"parentTopic": "unknown", "liteTopic": "a"}, 17),
        (TOPIC, {"parentTopic": "T", "liteTopic": "a"}, 29),
        (CLIENT, {"parentTopic": "P", "group": "other", "clientId": "c"}, 29),
        (CLIENT, {"parentTopic": "unknown", "group": "G", "clientId": "c"}, 17),
        (GROUP, {"group": "other", "topK": 1}, 29),
        (GROUP, {"group": "a b", "topK": 1}, 26),
        (GROUP, {"group": "G", "topK": 0}, 1),
        (DISPATCH, {"group": "other"}, 29),
    ],
)
def test_what_is_refused(tmp_path: Path, code: int, fields: dict[str, FieldValue], refusal: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        answer = await caller.call(code, fields)
        assert answer.code == refusal
        assert answer.remark

    with_lite_topics_of(tmp_path, main)
