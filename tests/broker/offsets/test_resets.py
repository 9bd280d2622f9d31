"""A reset in the old way: the broker changes nothing, the consumers are told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.broker.offsets.resets import VERSION_MIN
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import FieldValue, Response, request
from tests.broker.fakes import CONFIG, NOW_MS, FakeBroker, FakeChannel
from tests.broker.serving import NOTIFY, Caller, Serving, in_virtual_time

RESET: dict[str, FieldValue] = {"group": "g", "topic": "T", "timestamp": NOW_MS + 7, "isForce": True}
TOLD = {"topic": "T", "group": "g", "timestamp": str(NOW_MS + 7), "isForce": "false", "queueId": "-1"}


@pytest.fixture
def broker() -> FakeBroker:
    """T has two queues to write to; g has consumed 5 and 9 of its messages."""
    broker = FakeBroker(replace(CONFIG, use_server_side_reset_offset=False))
    broker.topics.put(TopicConfig("T", 4, 2))
    broker.groups.find("g")
    for queue_id, queue_offset in enumerate((5, 9)):
        broker.store.queues["T", queue_id] = (0, 12, True)
        broker.offsets.commit("g", "T", queue_id, queue_offset)
    return broker


def join(broker: FakeBroker, channel: FakeChannel, version: int = 513) -> FakeChannel:
    """Have a consumer of g connected."""
    body = {"clientID": channel.address, "consumerDataSet": [{"groupName": "g"}]}
    command = request(34, body=json.dumps(body).encode())
    command.version = version
    steps: Any = broker._handlers[34](channel, command)
    for _ in steps:
        pass
    return channel


def starts(table: dict[Any, int]) -> dict[int, int]:
    return {key["queueId"]: at for key, at in table.items()}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {0: 7, 1: 7}),
        ({"isForce": False}, {0: 5, 1: 7}),
        ({"timestamp": -1}, {0: 12, 1: 12}),
        ({"queueId": 0, "offset": 3}, {0: 7, 1: 7}),
    ],
)
def test_consumers_are_told(broker: FakeBroker, fields: dict[str, FieldValue], expected: dict[int, int]) -> None:
    channels = [join(broker, FakeChannel(f"10.0.0.{number}:1")) for number in (1, 2)]
    for channel in channels:
        channel.take()
        channel.bodies.clear()
    before = broker.offsets.content()
    answer = broker.ask(222, RESET | fields)
    assert starts(answer["offsetTable"]) == expected
    told = TOLD | {"timestamp": str((RESET | fields)["timestamp"])}
    for channel in channels:
        assert channel.take() == [(220, told)]
        [body] = channel.bodies
        assert fastjson.loads(body) == answer
    assert broker.offsets.content() == before
    assert broker.offsets.resets == {}


@pytest.mark.parametrize(("force", "told"), [(True, {0: 7, 1: 7, 2: 7}), (False, {0: 5, 1: 7})])
def test_a_queue_that_the_group_has_not_begun(broker: FakeBroker, force: bool, told: dict[int, int]) -> None:
    broker.topics.put(TopicConfig("T", 4, 3))
    broker.store.queues["T", 2] = (0, 12, True)
    join(broker, FakeChannel())
    assert starts(broker.ask(222, RESET | {"isForce": force})["offsetTable"]) == told


@pytest.mark.parametrize("language", ["CPP", 1])
def test_consumers_in_cpp_are_told_by_a_list(broker: FakeBroker, language: str | int) -> None:
    channel = join(broker, FakeChannel())
    assert broker.call(222, RESET, language=language).code == 0
    assert json.loads(channel.bodies[-1]) == {
        "offsetTable": [
            {"topic": "T", "brokerName": "broker-a", "queueId": queue_id, "offset": 7} for queue_id in (0, 1)
        ]
    }


def test_somebody_has_to_be_there(broker: FakeBroker) -> None:
    remark = f"Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: {NOW_MS + 7}"
    assert broker.call(222, RESET) == Response(206, remark)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "none"}, 17, "no topic in this broker. topic=none"),
        ({"group": "none"}, 1, "the consumer group <none> not exist: it has no offset in topic T"),
    ],
)
def test_what_is_not_there_is_told_nobody(
    broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    channel = join(broker, FakeChannel())
    channel.take()
    answer = broker.call(222, RESET | fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert channel.take() == []


def test_all_are_told_or_none(broker: FakeBroker) -> None:
    new = join(broker, FakeChannel("10.0.0.1:1"))
    old = join(broker, FakeChannel("10.0.0.2:1"), VERSION_MIN - 1)
    for channel in (new, old):
        channel.take()
    answer = broker.call(222, RESET)
    assert answer.code == 1
    assert "client=10.0.0.2:1 version=27" in (answer.remark or "")
    assert new.take() == old.take() == []


def test_the_way_can_be_changed_while_the_broker_runs(broker: FakeBroker) -> None:
    broker.ask(25, body=b"useServerSideResetOffset=true")
    assert starts(broker.ask(222, RESET)["offsetTable"]) == {0: 7, 1: 7, 2: 0, 3: 0}
    assert broker.offsets.query("g", "T", 0) == 7


def test_a_consumer_is_told_by_a_broker(tmp_path: Path) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        for _ in range(3):
            await admin.sent()
        asked = RESET | {"timestamp": -1}
        queue: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": 0}
        async with served.caller() as consumer:
            beat = {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}
            assert (await consumer.call(34, {}, json.dumps(beat).encode())).code == 0
            assert (await consumer.call(15, queue | {"commitOffset": 1})).code == 0
            answer = await admin.call(222, asked)
            assert starts(fastjson.loads(answer.body)["offsetTable"]) == {0: 3, 1: 0, 2: 0, 3: 0}
            told = await consumer.talker.answer()
            while told.code == NOTIFY:
                told = await consumer.talker.answer()
            assert (told.code, told.is_oneway, told.body) == (220, True, answer.body)
            assert (await admin.call(14, queue)).ext == {"offset": "1"}
        await asyncio.sleep(1)
        assert (await admin.call(222, asked)).code == 206

    in_virtual_time(tmp_path, main, use_server_side_reset_offset=False)
