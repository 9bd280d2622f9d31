"""A client of lite topics, with messages in them: `mqadmin` has no command for either."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from firearrow.message import properties
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import Handle
from tests.interop.waiting import wait_until
from tests.net.rawclient import RawClient

LITES: Final = ("a", "a", "a", "b")  # each gets a message
ARRIVAL_S: Final = 30


@contextmanager
def subscribed(broker: str, parent: str, group: str, client_id: str) -> Iterator[None]:
    """Send messages to two lite topics and subscribe a client to them; the client leaves at the end."""
    client = RawClient(timeout_seconds=ARRIVAL_S)
    try:
        for number, lite in enumerate(LITES):
            named = properties.format({"UNIQ_KEY": f"{number:032X}", "__LITE_TOPIC": lite})
            fields: dict[str, FieldValue] = {
                "a": "producers", "b": parent, "c": "TBW102", "d": 4, "e": 0, "f": 0,
                "g": 1_790_000_000_000, "h": 0, "i": named, "j": 0, "k": False, "m": False,
            }  # fmt: skip
            assert client.begin(broker, Code.SEND_MESSAGE_V2, fields, b"x").answer().code == 0
        wait_until(lambda: _ends(client, broker, parent) == [3, 1], ARRIVAL_S, "lite topics")
        _subscribe(client, broker, parent, group, client_id)
        popped = wait_until(lambda: _popped(client, broker, parent, group, client_id), ARRIVAL_S, "a message")
        _acknowledge(client, broker, parent, group, popped)
        yield
    finally:
        client.close()


def _ends(client: RawClient, broker: str, parent: str) -> list[int]:
    answers = [
        client.begin(broker, Code.GET_LITE_TOPIC_INFO, {"parentTopic": parent, "liteTopic": lite}).answer()
        for lite in sorted({*LITES})
    ]
    return [json.loads(answer.body)["topicOffset"]["maxOffset"] for answer in answers]


def _subscribe(client: RawClient, broker: str, parent: str, group: str, client_id: str) -> None:
    told = {
        "action": "PARTIAL_ADD", "clientId": client_id, "group": group, "topic": parent,
        "liteTopicSet": sorted({*LITES}), "version": 1,
    }  # fmt: skip
    body = json.dumps({"subscriptionSet": [told]}).encode()
    answer = client.begin(broker, Code.LITE_SUBSCRIPTION_CTL, {}, body).answer()
    assert answer.code == 0, answer.remark


def _popped(client: RawClient, broker: str, parent: str, group: str, client_id: str) -> list[AnyCommand]:
    """Return all messages; the original broker notices them some time after a subscription."""
    client.begin(broker, Code.TRIGGER_LITE_DISPATCH, {"group": group}).answer()
    fields: dict[str, FieldValue] = {
        "clientId": client_id, "consumerGroup": group, "topic": parent, "maxMsgNum": 32,
        "invisibleTime": 300_000, "pollTime": 0, "bornTime": int(time.time() * 1000),
    }  # fmt: skip
    answer = client.begin(broker, Code.POP_LITE_MESSAGE, fields).answer()
    return [answer] if answer.code == 0 else []


def _acknowledge(client: RawClient, broker: str, parent: str, group: str, popped: list[AnyCommand]) -> None:
    """Acknowledge the first message of the first lite topic."""
    [answer] = popped
    told = answer.ext
    handle = Handle(0, int(told["popTime"]), int(told["invisibleTime"]), 999, 0, "broker-a", 0, 0)
    fields: dict[str, FieldValue] = {
        "consumerGroup": group, "topic": parent, "queueId": 0, "offset": 0,
        "liteTopic": LITES[0], "extraInfo": str(handle),
    }  # fmt: skip
    acknowledged = client.begin(broker, Code.ACK_MESSAGE, fields).answer()
    assert acknowledged.code == 0, acknowledged.remark
