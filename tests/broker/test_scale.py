"""No request keeps others waiting for long, however much a broker has, or is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firearrow.wire.command import FieldValue, Response
from firearrow.wire.frame import AnyCommand
from tests.broker.fakes import FakeChannel
from tests.broker.serving import Serving, pull_fields, send_fields, serving
from tests.stepping import LARGE_BODIES, LONG, Stepping
from tests.worsttexts import feed

COUNT = 2000
ALL = "ALL"  # a group that has consumed every topic, and a topic that every group has consumed


class Listener(FakeChannel):
    """A connection that keeps its answers."""

    received_ms = 0
    owed = 0
    host_bytes = bytes(8)

    def reply(self, request: AnyCommand, response: Response) -> None:
        pass


def topic_body(name: str, **fields: Any) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, **fields}


def subscriptions(count: int) -> list[dict[str, Any]]:
    return [{"topic": f"made-{n}", "subString": "*", "subVersion": 1} for n in range(count)]


def consumer(group: str, subscribed: int = 0) -> dict[str, Any]:
    return {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionDataSet": subscriptions(subscribed), "unitMode": False}  # fmt: skip


def heartbeat(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"clientID": "c", "producerDataSet": [], "consumerDataSet": groups, **fields}


def queues(count: int) -> list[dict[str, Any]]:
    return [{"topic": "wide", "brokerName": "broker-a", "queueId": n} for n in range(count)]


CREATE: dict[str, FieldValue] = {
          "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
          "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip
NAMES = (
    *("topic", "group", "groupName", "consumerGroup", "producerGroup", "a", "b", "i", "key"),
    *("topicList", "attributes", "subscription", "dataVersion", "statsName", "properties"),
)
WIDE: dict[str, FieldValue] = {"topic": "wide", "readQueueNums": 2048, "writeQueueNums": 2048}
LOCK = {"consumerGroup": ALL, "clientId": "c", "mqSet": queues(8000)}

REQUESTS: list[tuple[int, dict[str, FieldValue], Any]] = [
    (17, CREATE | WIDE, b""),
    (18, {}, {"topicConfigList": [topic_body(f"made-{n}") for n in range(COUNT)]}),
    (18, {}, {"topicConfigList": [topic_body(f"m-{n}", perm=4) for n in range(8000)]}),
    (18, {}, {"topicConfigList": [topic_body(f"m-{n}") for n in range(20_001)]}),
    (225, {}, {"groupConfigList": [{"groupName": f"group-{n}"} for n in range(8000)]}),
    (200, {}, {"groupName": "g", "attributes": {f"+a{n}": "x" for n in range(50_000)}}),
    (34, {}, heartbeat(*(consumer(f"group-{n}") for n in range(3000)))),
    (34, {}, heartbeat(*(consumer(f"group-{n}") for n in range(3000)))),
    (34, {}, heartbeat(consumer(ALL, 10_000))),
    (34, {}, heartbeat(consumer(ALL, 20_001))),
    (34, {}, heartbeat(producerDataSet=[{"groupName": f"p-{n}"} for n in range(3000)])),
    (15, {"consumerGroup": ALL, "topic": "made-0", "queueId": 0, "commitOffset": 1}, b""),
    (14, {"consumerGroup": ALL, "topic": "made-0", "queueId": 0}, b""),
    (41, {}, LOCK),
    (42, {}, LOCK),
    (203, {"consumerGroup": ALL}, b""),
    (204, {"producerGroup": "p-0"}, b""),
    (38, {"consumerGroup": ALL}, b""),
    (46, {}, {"subscriptionData": {"topic": "made-0", "tagsSet": ["x"] * 100_000}}),
    (21, {}, b""),
    (201, {}, b""),
    (202, {"topic": "wide"}, b""),
    (208, {"consumerGroup": ALL}, b""),
    (208, {"consumerGroup": ALL, "topic": "wide"}, b""),
    (222, {"topic": "wide", "group": "group-0", "timestamp": -1, "isForce": True}, b""),
    (222, {"topic": "wide", "group": "group-0", "timestamp": 0, "isForce": True}, b""),
    (300, {"topic": "made-0"}, b""),
    (303, {"topic": "wide", "group": ALL}, b""),
    (308, {"topic": "made-0", "compareGroup": ALL, "filterGroups": "g," * 50_000}, b""),
    (314, {"srcGroup": ALL, "destGroup": "clone"}, b""),
    (317, {"isOrder": False}, b""),
    (321, {"topic": "made-0", "queueId": 0, "count": 20_000}, b""),
    (324, send_fields("C_REPLY_TOPIC"), b"x"),
    (325, send_fields("C_REPLY_TOPIC"), b"x"),
    (328, {}, b""),
    (343, {"group": ALL}, b""),
    (345, {"topic": "made-0", "group": ALL}, b""),
    (353, {"topic": "made-0", "group": ALL, "readable": False}, b""),
    (354, {"topic": "made-0"}, b""),
    (2004, {"READ_AHEAD_MODE": 0}, b""),
    (305, {}, b""),
    (351, {"topic": "wide"}, b""),
    (352, {"group": ALL}, b""),
    (215, {"topic": "made-1"}, b""),
    (215, {"topic": "wide"}, b""),
    (207, {"groupName": ALL, "cleanOffset": True}, b""),
    (35, {"clientID": "c", "consumerGroup": ALL}, b""),
    (25, {}, b"\n".join(b"k%d=v" % n for n in range(8000))),
    (26, {}, b""),
    (28, {}, b""),
    (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "made-0"}, b""),
    (306, {}, b""),
    (316, {}, b""),
    (329, {}, b""),
    (10, send_fields("made-2"), b"x"),
    (310, send_fields("new"), b"x"),
    (320, send_fields("made-2"), b"x"),
    (11, pull_fields(topic="made-2", subscription=" || ".join(map(str, range(8000)))), b""),
    (361, pull_fields(topic="made-2"), b""),
    (29, {"topic": "made-2", "queueId": 0, "timestamp": 0}, b""),
    (30, {"topic": "made-2", "queueId": 0}, b""),
    (31, {"topic": "made-2", "queueId": 0}, b""),
    (32, {"topic": "made-2", "queueId": 0}, b""),
    (33, {"offset": 0}, b""),
    (12, {"topic": "made-2", "key": "k", "maxNum": 64, "beginTimestamp": 0,
          "endTimestamp": 1 << 60}, b""),
]  # fmt: skip


def test_no_request_takes_a_long_step(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as served:
            stepping = Stepping(served.broker._handlers, Listener())
            furnish(served, stepping)
            with stepping.watching():
                for code, fields, body in REQUESTS:
                    stepping.ask(code, fields, body)
                for code in served.broker._handlers:
                    for body in LARGE_BODIES:
                        stepping.ask(code, dict.fromkeys(NAMES, LONG), body)
            assert stepping.asked >= served.broker._handlers.keys()

    asyncio.run(main())


def furnish(served: Serving, stepping: Stepping) -> None:
    """Give the broker topics, groups, queues and offsets."""
    stepping.ask(18, {}, {"topicConfigList": [topic_body(f"made-{n}") for n in range(COUNT)]})
    stepping.ask(225, {}, {"groupConfigList": [{"groupName": f"group-{n}"} for n in range(COUNT)]})
    stepping.ask(200, {}, {"groupName": ALL})
    offsets, store = served.broker.offsets, served.broker.store
    for number in range(COUNT):
        offsets.commit(ALL, f"made-{number}", 0, 1)
        offsets.commit(f"group-{number}", "made-0", 0, 1)
        for queue_id in range(4):
            store.queue(f"made-{number}", queue_id)


@pytest.mark.timeout(600)  # thousands of texts take minutes on a slow machine
def test_no_body_takes_a_long_step(tmp_path: Path) -> None:
    """The time that a text takes is limited by what it costs to read, not by its bytes alone."""

    async def main() -> None:
        async with serving(tmp_path) as served:
            handlers = served.broker._handlers
            feed(Stepping(handlers, Listener()), handlers, {})

    asyncio.run(main())
