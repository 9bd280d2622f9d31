"""Group administration; codes, texts and bodies compared with a real broker's."""

import pytest

from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import ITEMS_MAX, MessageQueue, SubscriptionGroupConfig
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.fastjson import ObjectKey
from tests.broker.fakes import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def key(queue: MessageQueue) -> ObjectKey:
    return ObjectKey(brokerName=queue.broker_name, queueId=queue.queue_id, topic=queue.topic)


def test_a_group_is_created_and_changed(broker: FakeBroker) -> None:
    assert broker.call(200, body={"groupName": "G2"}) == Response()
    broker.ask(200, body={"groupName": "G2", "attributes": {"+priority.factor": "50"}})
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}
    broker.ask(
        200,
        body={"groupName": "G2", "retryMaxTimes": 3, "groupRetryPolicy": policy, "later": 7},
    )
    assert broker.groups.get("G2") == SubscriptionGroupConfig(
        "G2",
        retry_max_times=3,
        group_retry_policy=policy,
        attributes={"priority.factor": "50"},
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"groupName": "a b"}, 29),
        ({"groupName": "a" * 121}, 29),
        ({"groupName": ""}, 29),
        ({}, 29),
        (b"{{", 1),
        ({"groupName": "g", "attributes": {"+foo": "1"}}, 1),
        ({"groupName": "g", "retryMaxTimes": "often"}, 1),
    ],
)
def test_a_group_that_cannot_be_is_refused(broker: FakeBroker, body: object, code: int) -> None:
    assert broker.call(200, body=body).code == code
    assert broker.groups.data_version.counter == 0


def test_a_list_of_groups_is_taken_whole_or_not_at_all(broker: FakeBroker) -> None:
    groups = [{"groupName": "G3"}, {"groupName": "G4", "consumeEnable": False}]
    broker.ask(225, body={"groupConfigList": groups})
    assert broker.groups.get("G4") == SubscriptionGroupConfig("G4", consume_enable=False)
    bad = [{"groupName": "G5"}, {"groupName": "a b"}]
    assert broker.call(225, body={"groupConfigList": bad}).code == 29
    assert broker.groups.get("G5") is None


def test_looking_a_group_up_creates_it(broker: FakeBroker) -> None:
    assert broker.ask(352, {"group": "g"})["groupName"] == "g"
    assert broker.groups.get("g") is not None
    assert broker.call(352, {"group": "a b"}).code == 26


def test_all_groups_or_pages_of_them(broker: FakeBroker) -> None:
    broker.groups.forbid_read("g", "T", True)
    body = broker.ask(201)
    names = list(broker.groups.table)
    assert list(body["subscriptionGroupTable"]) == names
    assert body["forbiddenTable"] == {"g": {"T": 4}}
    page: dict[str, FieldValue] = {"groupSeq": 2, "maxGroupNum": 2}
    answer = broker.call(201, page)
    assert answer.fields == {"totalGroupNum": len(names)}
    assert list(broker.ask(201, page)["subscriptionGroupTable"]) == names[:2]
    version = broker.groups.data_version
    text = f'{{"counter":{version.counter},"stateVersion":0,"timestamp":{version.timestamp}}}'
    assert (
        list(broker.ask(201, page | {"dataVersion": text})["subscriptionGroupTable"])
        == (names[2:4])
    )


def test_deleting_a_group(broker: FakeBroker) -> None:
    broker.groups.find("g")
    broker.offsets.commit("g", "T", 0, 5)
    assert broker.call(207, {"groupName": "g"}).code == 0
    assert broker.groups.get("g") is None
    assert broker.offsets.query("g", "T", 0) == 5
    assert broker.call(207, {"groupName": "g", "cleanOffset": True}).code == 0
    assert broker.offsets.query("g", "T", 0) == -1
    assert broker.call(207).code == 1


def test_progress_of_a_group(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 2, 4))
    broker.store.queues["T1", 0] = (0, 9, True)
    broker.offsets.commit("G1", "T1", 0, 5)
    broker.offsets.commit_pull("G1", "T1", 0, 7)
    broker.offsets.commit("G1", "gone", 0, 5)
    broker.stats.got("G1", "T1", 30, 300)
    broker.clock.seconds += 10
    broker.stats.sample()
    assert broker.call(208, {"consumerGroup": "G1"}).body == (
        b'{"consumeTps":3.0,"offsetTable":{'
        b'{"brokerName":"broker-a","queueId":0,"topic":"T1"}:'
        b'{"brokerOffset":9,"consumerOffset":5,"lastTimestamp":1795210273745,"pullOffset":7},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T1"}:'
        b'{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}'
    )


def test_progress_on_chosen_topics(broker: FakeBroker) -> None:
    for topic in ("T1", "T2", "T3"):
        broker.topics.put(TopicConfig(topic, 1, 1))

    def topics(**fields: FieldValue) -> list[str]:
        group: dict[str, FieldValue] = {"consumerGroup": "G1"}
        body = broker.ask(208, group | fields)
        return [queue["topic"] for queue in body["offsetTable"]]

    assert topics() == []
    assert topics(topic="T1") == ["T1"]
    assert topics(topic="nope") == []
    assert topics(topic="T1", topicList="T2;T3;") == ["T2", "T3"]


def test_topics_that_an_online_group_has_left_are_not_told(broker: FakeBroker) -> None:
    for topic in ("T1", "T2"):
        broker.topics.put(TopicConfig(topic, 1, 1))
        broker.offsets.commit("G1", topic, 0, 1)
    consumer = {"groupName": "G1", "subscriptionDataSet": [{"topic": "T2", "subString": "*"}]}
    broker.ask(34, body={"clientID": "c", "consumerDataSet": [consumer]})
    table = broker.ask(208, {"consumerGroup": "G1"})["offsetTable"]
    assert list(table) == [key(MessageQueue("T2", "broker-a", 0))]


def test_a_topic_that_is_named_often_is_looked_at_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    asked: list[str] = []

    def ends(topic: str, queue_id: int) -> int:
        asked.append(topic)
        return 0

    monkeypatch.setattr(broker.store, "max_queue_offset", ends)
    stats = broker.ask(208, {"consumerGroup": "G1", "topicList": "T1;" * 30})
    assert asked == ["T1"]
    assert stats["consumeTps"] == 0


def test_topics_that_are_asked_for_are_limited(broker: FakeBroker) -> None:
    names = ";".join(map(str, range(ITEMS_MAX + 1)))
    answer = broker.call(208, {"consumerGroup": "G1", "topicList": names})
    assert answer.code == 29
    assert answer.remark == f"{ITEMS_MAX + 1} topics are asked for, the limit is {ITEMS_MAX}"


@pytest.mark.parametrize(("code", "name"), [(225, "groupConfigList"), (18, "topicConfigList")])
def test_what_is_made_at_a_time_is_limited(broker: FakeBroker, code: int, name: str) -> None:
    answer = broker.call(code, {}, {name: [{}] * (ITEMS_MAX + 1)})
    assert f"length <= {ITEMS_MAX}" in (answer.remark or "")
