"""Offsets as consumers ask for them; codes and texts compared with a real broker's."""

import asyncio
import json
import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from firearrow.broker.offsets.processor import VERSION_MIN, OffsetProcessor
from firearrow.broker.pulling.longpoll import HeldPull
from firearrow.net.server import Peer
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import Command, FieldValue, Response, request
from firearrow.wire.headers import UpdateConsumerOffset
from tests.broker.fakes import CONFIG, NOW_MS, FakeBroker, FakeChannel
from tests.broker.serving import NOTIFY, Caller, Serving, in_virtual_time

QUEUE: dict[str, FieldValue] = {"consumerGroup": "G1", "topic": "T1", "queueId": 0}


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.topics.put(TopicConfig("T1", 4, 6))
    broker.groups.find("G1")
    return broker


def test_a_committed_offset_is_found(broker: FakeBroker) -> None:
    assert broker.call(15, QUEUE | {"commitOffset": 5}) == Response()
    assert broker.call(14, QUEUE) == Response(fields={"offset": 5})
    assert broker.call(14, QUEUE | {"queueId": 1}).code == 22


def test_a_header_that_is_typed_already_is_taken_as_it_is(broker: FakeBroker) -> None:
    processor = OffsetProcessor(broker.context, broker.held, broker.held_pops, broker.held_notifications)
    command = Command(code=15, ext=UpdateConsumerOffset("G1", "T1", 2, 9))
    assert processor.commit(FakeChannel(), command).code == 0
    assert broker.offsets.query("G1", "T1", 2) == 9


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"consumerGroup": "nope", "commitOffset": 5}, 26, "Group nope not exist!"),
        ({"topic": "nope", "commitOffset": 5}, 17, "Topic nope not exist!"),
        ({}, 29, "Offset is null, topic is T1"),
        ({"queueId": -1, "commitOffset": 5}, 29, "QueueId -1 is not from 0 to 5, topic is T1"),
        ({"queueId": 6, "commitOffset": 5}, 29, "QueueId 6 is not from 0 to 5, topic is T1"),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(
    broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    assert broker.call(15, QUEUE | fields) == Response(code, remark)
    assert broker.offsets.committed == {}


@pytest.mark.parametrize("queue_id", [-1, 6, 2**31 - 1])
def test_asking_for_a_queue_that_cannot_be_leaves_no_trace(broker: FakeBroker, queue_id: int) -> None:
    assert broker.call(14, QUEUE | {"queueId": queue_id}).code == 22
    assert broker.offsets.committed == broker.offsets.pulled == {}


@pytest.mark.parametrize("queue_id", [3, 5])
def test_queues_of_either_kind_have_offsets(broker: FakeBroker, queue_id: int) -> None:
    fields = QUEUE | {"queueId": queue_id}
    assert broker.call(15, fields | {"commitOffset": 7}) == Response()
    assert broker.call(14, fields).fields == {"offset": 7}


def test_a_commit_without_a_queue_is_refused(broker: FakeBroker) -> None:
    fields: dict[str, FieldValue] = {"consumerGroup": "G1", "topic": "T1", "commitOffset": 5}
    assert broker.call(15, fields) == Response(29, "QueueId is null, topic is T1")


def test_a_commit_does_not_create_its_group(broker: FakeBroker) -> None:
    broker.call(15, QUEUE | {"consumerGroup": "nope", "commitOffset": 5})
    assert broker.groups.get("nope") is None


@pytest.mark.parametrize(
    ("queue", "code"),
    [((0, 9, True), 0), ((0, 9, False), 22), ((3, 9, True), 22), ((0, 0, True), 22), ((-1, -1, True), 22)],
)
def test_a_new_group_starts_with_a_young_queue(broker: FakeBroker, queue: tuple[int, int, bool], code: int) -> None:
    broker.store.queues["T1", 0] = queue
    answer = broker.call(14, QUEUE)
    assert answer.code == code
    assert answer.fields == ({"offset": 0} if code == 0 else {})


def test_a_client_may_not_want_to_start_with_it(broker: FakeBroker) -> None:
    broker.store.queues["T1", 0] = (0, 9, True)
    assert broker.call(14, QUEUE | {"setZeroIfNotFound": "false"}).code == 22
    assert broker.call(14, QUEUE | {"setZeroIfNotFound": "true"}).code == 0


def test_an_offset_below_zero_counts_as_none(broker: FakeBroker) -> None:
    assert broker.call(15, QUEUE | {"commitOffset": -5}).code == 0
    assert broker.call(14, QUEUE).code == 22


RESET: dict[str, FieldValue] = {"group": "G1", "topic": "T1", "timestamp": NOW_MS + 7}


def held_in_each_queue(broker: FakeBroker) -> list[int]:
    """Hold a pull in each queue; return a list that gets the queues of the pulls that are answered."""
    ended: list[int] = []
    for queue_id in range(6):
        wait = partial(lambda queue_id, *_: ended.append(queue_id), queue_id)
        pull = HeldPull(cast(Peer, broker.channel), request(11), wait, 0, None, math.inf)
        assert broker.held.hold("T1", queue_id, pull)
    return ended


def test_a_group_is_had_to_go_on_at_a_time(broker: FakeBroker) -> None:
    ended = held_in_each_queue(broker)
    for queue_id in range(4):
        broker.store.queues["T1", queue_id] = (queue_id * 5, 12, True)
    broker.offsets.commit("G1", "T1", 0, 11)
    table = broker.ask(222, RESET | {"offset": -1, "isForce": True})["offsetTable"]
    starts = {0: 7, 1: 7, 2: 10, 3: 12}
    queues = {key["queueId"]: at for key, at in table.items()}
    assert queues == starts
    assert {(key["topic"], key["brokerName"]) for key in table} == {("T1", "broker-a")}
    assert broker.offsets.committed == {"T1@G1": starts}
    assert ended == list(range(4))


def test_a_group_is_had_to_go_on_at_the_end_or_at_an_offset(broker: FakeBroker) -> None:
    broker.store.queues["T1", 1] = (5, 12, True)
    broker.ask(222, RESET | {"timestamp": -1, "queueId": 1})
    assert broker.offsets.committed == {"T1@G1": {1: 12}}
    for offset in (5, 13):
        broker.ask(222, RESET | {"queueId": 1, "offset": offset})
        assert broker.offsets.committed == {"T1@G1": {1: offset}}


def test_a_commit_does_not_undo_a_reset(broker: FakeBroker) -> None:
    broker.ask(222, RESET | {"queueId": 0})
    ignored = broker.call(15, QUEUE | {"commitOffset": 9})
    assert ignored == Response(remark="Offset has been previously reset")
    assert broker.call(15, QUEUE | {"queueId": 1, "commitOffset": 9}) == Response()
    assert broker.call(14, QUEUE) == Response(fields={"offset": 0})
    assert broker.offsets.take_reset("G1", "T1", 0) == 0
    assert broker.offsets.take_reset("G1", "T1", 0) is None
    assert broker.call(15, QUEUE | {"commitOffset": 9}) == Response()
    assert broker.offsets.resets == {}


def test_a_reset_goes_with_its_topic(broker: FakeBroker) -> None:
    broker.ask(222, RESET)
    broker.ask(215, {"topic": "T1"})
    assert broker.offsets.resets == {}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"group": "nope"}, 26, "Group nope not exist!"),
        ({"topic": "nope"}, 17, "Topic nope not exist!"),
        ({"queueId": 6}, 29, "QueueId 6 is not from 0 to 5, topic is T1"),
        ({"queueId": 0, "offset": 4}, 1, "Target offset 4 not in consume queue range [5-12]"),
        ({"queueId": 0, "offset": 14}, 1, "Target offset 14 not in consume queue range [5-12]"),
    ],
)
def test_a_reset_that_makes_no_sense_changes_nothing(
    broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    broker.store.queues["T1", 0] = (5, 12, True)
    ended = held_in_each_queue(broker)
    assert broker.call(222, RESET | fields) == Response(code, remark)
    assert broker.offsets.committed == broker.offsets.resets == {}
    assert ended == []


# --- a reset by notices: the broker changes nothing, the consumers get the new offsets ---

TO_MEMBERS: dict[str, FieldValue] = {"group": "g", "topic": "T", "timestamp": NOW_MS + 7, "isForce": True}
TOLD = {"topic": "T", "group": "g", "timestamp": str(NOW_MS + 7), "isForce": "false", "queueId": "-1"}


@pytest.fixture
def old_way() -> FakeBroker:
    """T has two queues to write to; g has consumed 5 and 9 of its messages."""
    old_way = FakeBroker(replace(CONFIG, use_server_side_reset_offset=False))
    old_way.topics.put(TopicConfig("T", 4, 2))
    old_way.groups.find("g")
    for queue_id, queue_offset in enumerate((5, 9)):
        old_way.store.queues["T", queue_id] = (0, 12, True)
        old_way.offsets.commit("g", "T", queue_id, queue_offset)
    return old_way


def join(old_way: FakeBroker, channel: FakeChannel, version: int = 513) -> FakeChannel:
    """Connect a consumer of g."""
    body = {"clientID": channel.address, "consumerDataSet": [{"groupName": "g"}]}
    command = request(34, body=json.dumps(body).encode())
    command.version = version
    steps: Any = old_way._handlers[34](channel, command)
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
def test_consumers_are_told(old_way: FakeBroker, fields: dict[str, FieldValue], expected: dict[int, int]) -> None:
    channels = [join(old_way, FakeChannel(f"10.0.0.{number}:1")) for number in (1, 2)]
    for channel in channels:
        channel.take()
        channel.bodies.clear()
    before = old_way.offsets.content()
    answer = old_way.ask(222, TO_MEMBERS | fields)
    assert starts(answer["offsetTable"]) == expected
    told = TOLD | {"timestamp": str((TO_MEMBERS | fields)["timestamp"])}
    for channel in channels:
        assert channel.take() == [(220, told)]
        [body] = channel.bodies
        assert fastjson.loads(body) == answer
    assert old_way.offsets.content() == before
    assert old_way.offsets.resets == {}


@pytest.mark.parametrize(("force", "told"), [(True, {0: 7, 1: 7, 2: 7}), (False, {0: 5, 1: 7})])
def test_a_queue_that_the_group_has_not_begun(old_way: FakeBroker, force: bool, told: dict[int, int]) -> None:
    old_way.topics.put(TopicConfig("T", 4, 3))
    old_way.store.queues["T", 2] = (0, 12, True)
    join(old_way, FakeChannel())
    assert starts(old_way.ask(222, TO_MEMBERS | {"isForce": force})["offsetTable"]) == told


@pytest.mark.parametrize("language", ["CPP", 1])
def test_consumers_in_cpp_are_told_by_a_list(old_way: FakeBroker, language: str | int) -> None:
    channel = join(old_way, FakeChannel())
    assert old_way.call(222, TO_MEMBERS, language=language).code == 0
    assert json.loads(channel.bodies[-1]) == {
        "offsetTable": [
            {"topic": "T", "brokerName": "broker-a", "queueId": queue_id, "offset": 7} for queue_id in (0, 1)
        ]
    }


def test_somebody_has_to_be_there(old_way: FakeBroker) -> None:
    remark = f"Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: {NOW_MS + 7}"
    assert old_way.call(222, TO_MEMBERS) == Response(206, remark)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "none"}, 17, "no topic in this broker. topic=none"),
        ({"group": "none"}, 1, "the consumer group <none> not exist: it has no offset in topic T"),
    ],
)
def test_what_is_not_there_is_told_nobody(
    old_way: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    channel = join(old_way, FakeChannel())
    channel.take()
    answer = old_way.call(222, TO_MEMBERS | fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert channel.take() == []


def test_all_are_told_or_none(old_way: FakeBroker) -> None:
    new = join(old_way, FakeChannel("10.0.0.1:1"))
    old = join(old_way, FakeChannel("10.0.0.2:1"), VERSION_MIN - 1)
    for channel in (new, old):
        channel.take()
    answer = old_way.call(222, TO_MEMBERS)
    assert answer.code == 1
    assert "client=10.0.0.2:1 version=27" in (answer.remark or "")
    assert new.take() == old.take() == []


def test_the_way_can_be_changed_while_the_broker_runs(old_way: FakeBroker) -> None:
    old_way.ask(25, body=b"useServerSideResetOffset=true")
    assert starts(old_way.ask(222, TO_MEMBERS)["offsetTable"]) == {0: 7, 1: 7, 2: 0, 3: 0}
    assert old_way.offsets.query("g", "T", 0) == 7


def test_a_consumer_is_told_by_a_broker(tmp_path: Path) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        for _ in range(3):
            await admin.sent()
        asked = TO_MEMBERS | {"timestamp": -1}
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
