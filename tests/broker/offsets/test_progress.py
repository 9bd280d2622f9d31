"""Progress of groups, time spans, and copies of offsets from one group to another."""

import pytest

from firearrow.broker.offsets.progress import NOT_COMPARABLE
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import ITEMS_MAX, MessageQueue
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.jsondialect import ObjectKey
from tests.broker.fakes import NOW_MS, FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def key(queue: MessageQueue) -> ObjectKey:
    return ObjectKey(brokerName=queue.broker_name, queueId=queue.queue_id, topic=queue.topic)


def subscribe(broker: FakeBroker, group: str, topic: str) -> None:
    """Connect a member of a group that subscribes to a topic."""
    data = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    broker.ask(34, body={"clientID": "c", "consumerDataSet": [data]})


# --- 19002 ---


def test_a_deleted_subscription_has_no_offsets(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    for topic in ("T1", "T2", "%RETRY%G1_T1"):
        broker.offsets.commit("G1", topic, 0, 5)
    broker.offsets.commit("G2", "T1", 0, 5)
    assert broker.call(19002, {"group": "G1", "topic": "T1"}).code == 0
    assert broker.offsets.topics_of("G1") == {"T2"}
    assert broker.offsets.topics_of("G2") == {"T1"}
    assert broker.call(19002, {"group": "G1", "topic": "T1"}).code == 0, "it is gone already"


def test_a_subscription_of_a_member_is_not_deleted(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    broker.offsets.commit("G1", "T1", 0, 5)
    subscribe(broker, "G1", "T1")
    answer = broker.call(19002, {"group": "G1", "topic": "T1"})
    assert answer.remark == "group G1 has a member that subscribes to topic T1"
    assert broker.offsets.topics_of("G1") == {"T1"}


# --- 208 ---


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


def test_popped_messages_are_in_flight_if_the_request_asks_for_them(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    broker.store.queues["T1", 0] = (0, 9, True)
    broker.offsets.commit("G1", "T1", 0, 6)
    broker.in_flight.popped("T1", "G1", 0, 2)
    for with_pops, consumed in (("true", 4), ("false", 6)):
        found = broker.ask(208, {"consumerGroup": "G1", "withPops": with_pops})
        [position] = found["offsetTable"].values()
        assert (position["consumerOffset"], position["pullOffset"], position["brokerOffset"]) == (consumed, 6, 9)


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
    subscribe(broker, "G1", "T2")
    asked: dict[str, FieldValue] = {"consumerGroup": "G1"}
    left, kept = (key(MessageQueue(topic, "broker-a", 0)) for topic in ("T1", "T2"))
    assert list(broker.ask(208, asked)["offsetTable"]) == [kept]
    assert list(broker.ask(208, asked | {"topic": "T1"})["offsetTable"]) == []
    assert list(broker.ask(208, asked | {"topicList": "T1;T2"})["offsetTable"]) == [left, kept]


@pytest.mark.parametrize("retry", ["%RETRY%G1_T1", "%RETRY%G1+T1"])
def test_what_an_online_group_pops_again_is_told(broker: FakeBroker, retry: str) -> None:
    for topic in ("T1", retry, "%RETRY%G1_T2"):
        broker.topics.put(TopicConfig(topic, 1, 1))
        broker.offsets.commit("G1", topic, 0, 1)
    subscribe(broker, "G1", "T1")
    told = broker.ask(208, {"consumerGroup": "G1"})["offsetTable"]
    wanted = [key(MessageQueue(topic, "broker-a", 0)) for topic in (retry, "T1")]
    assert list(told) == wanted


def test_a_topic_that_is_named_often_is_looked_at_once(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert answer.remark == f"the request lists {ITEMS_MAX + 1} topics, the limit is {ITEMS_MAX}"


# --- 317 ---


def test_progress_of_all_groups(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 2))
    broker.topics.put(TopicConfig("T2", 1, 1, order=True))
    broker.store.queues |= {("T1", 0): (0, 9, True), ("T2", 0): (0, 4, True)}
    for group in ("G1", "G2"):
        broker.groups.find(group)
        broker.offsets.commit(group, "T1", 0, 5)
        broker.offsets.commit(group, "T2", 0, 1)
        broker.offsets.commit(group, "gone", 0, 1)
    broker.offsets.commit_pull("G1", "T1", 0, 8)
    subscribe(broker, "G2", "T1")
    answer = broker.ask(317, {"isOrder": False})
    assert answer["brokerAddr"] == "127.0.0.1:10911"
    assert answer["totalDiff"] == 4 + 3 + 4
    assert answer["totalInflightDiff"] == 3
    [of_g1] = [row["G1"] for row in answer["consumeStatsList"] if "G1" in row]
    [of_g2] = [row["G2"] for row in answer["consumeStatsList"] if "G2" in row]
    assert of_g1[0]["offsetTable"] == {
        key(MessageQueue("T1", "broker-a", 0)): {
            "brokerOffset": 9, "consumerOffset": 5, "lastTimestamp": NOW_MS + 4, "pullOffset": 8
        },
        key(MessageQueue("T1", "broker-a", 1)): {
            "brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0
        },
    }  # fmt: skip
    assert (len(of_g1), len(of_g2)) == (2, 1)
    assert [len(row) for row in answer["consumeStatsList"]] == [1] * len(broker.groups.table)
    ordered = broker.ask(317, {"isOrder": True})
    assert [row["G1"] for row in ordered["consumeStatsList"] if "G1" in row] == [[of_g1[1]]]
    assert ordered["totalDiff"] == 3


def test_the_order_is_asked_for(broker: FakeBroker) -> None:
    answer = broker.call(317)
    assert answer.code == 1
    assert "isOrder" in (answer.remark or "")


# --- 303 ---

SPAN: dict[str, FieldValue] = {"group": "G1", "topic": "T1"}


def test_times_of_a_topic(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 9, 3))
    broker.store.queues |= {("T1", 0): (2, 9, True), ("T1", 1): (0, 9, True)}
    broker.offsets.commit("G1", "T1", 0, 5)
    broker.clock.seconds += 60
    spans = broker.ask(303, SPAN)["consumeTimeSpanSet"]
    assert [span.pop("messageQueue")["queueId"] for span in spans] == [0, 1, 2]
    assert spans == [
        {
            "minTimeStamp": NOW_MS + first, "maxTimeStamp": NOW_MS + last,
            "consumeTimeStamp": NOW_MS + consumed, "delayTime": 60_000 - nxt,
        }
        for first, last, consumed, nxt in ((2, 8, 4, 5), (0, 8, 0, 0))
    ] + [
        {"minTimeStamp": -1, "maxTimeStamp": -1, "consumeTimeStamp": -1, "delayTime": 0}
    ]  # fmt: skip


def test_the_delay_of_a_group_whose_next_message_is_gone(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    broker.store.queues["T1", 0] = (7, 9, True)
    broker.offsets.commit("G1", "T1", 0, 3)
    broker.clock.seconds += 1
    [span] = broker.ask(303, SPAN)["consumeTimeSpanSet"]
    assert span["delayTime"] == 1000 - 7
    broker.offsets.commit("G1", "T1", 0, 9)
    assert broker.ask(303, SPAN)["consumeTimeSpanSet"][0]["delayTime"] == 0


def test_times_of_no_topic(broker: FakeBroker) -> None:
    assert broker.call(303, SPAN) == Response(17, "topic[T1] not exist")
    assert broker.call(303, {"topic": "T1"}).code == 1


# --- 308 ---


def test_the_least_offset_of_all_groups(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 4, 4))
    for group, offsets in {"G1": (5, 9, 1), "G2": (7, 3, 8), "G3": (2, 2, 2)}.items():
        for queue_id, queue_offset in enumerate(offsets):
            broker.offsets.commit(group, "T1", queue_id, queue_offset)
    broker.store.queues["T1", 2] = (2, 20, True)
    before = broker.offsets.content()
    asked: dict[str, FieldValue] = {"topic": "T1", "compareGroup": "none"}

    def correction(**fields: FieldValue) -> dict[int, int]:
        found: dict[int, int] = broker.ask(308, asked | fields)["correctionOffsets"]
        return found

    assert correction() == {0: 2, 1: 2, 2: 2}
    assert correction(filterGroups="G3,none") == {0: 5, 1: 3, 2: 8}
    behind = correction(filterGroups="G1,G3", compareGroup="G1")
    assert behind == {0: NOT_COMPARABLE, 1: 3, 2: NOT_COMPARABLE}
    assert correction(topic="none") == {}
    assert correction(filterGroups="G1,G2,G3", compareGroup="G1") == {}
    assert broker.offsets.content() == before
    assert broker.call(308, {"topic": "T1"}).code == 1


# --- 314 ---

CLONE: dict[str, FieldValue] = {"srcGroup": "G1", "destGroup": "G2", "topic": "T1"}


@pytest.fixture
def cloning(broker: FakeBroker) -> FakeBroker:
    """G1 has offsets in T1 and T2, G2 in T1."""
    for topic in ("T1", "T2"):
        broker.topics.put(TopicConfig(topic, 4, 4))
        broker.offsets.commit("G1", topic, 0, 5)
        broker.offsets.commit("G1", topic, 1, 6)
    broker.offsets.commit("G2", "T1", 3, 9)
    return broker


def test_a_group_gets_the_offsets_of_another(cloning: FakeBroker) -> None:
    offsets = cloning.offsets
    cloning.groups.find("G2")
    cloning.ask(222, {"group": "G2", "topic": "T1", "timestamp": 0})
    version = offsets.data_version
    assert cloning.call(314, CLONE) == Response()
    assert offsets.committed["T1@G2"] == {0: 5, 1: 6}
    assert offsets.resets == {}
    assert offsets.data_version.counter == version.counter + 1
    offsets.commit("G1", "T1", 0, 7)
    assert offsets.committed["T1@G2"] == {0: 5, 1: 6}


@pytest.mark.parametrize("topic", [{}, {"topic": ""}, {"topic": " "}])
def test_without_a_topic_all_are_cloned(cloning: FakeBroker, topic: dict[str, FieldValue]) -> None:
    groups: dict[str, FieldValue] = {"srcGroup": "G1", "destGroup": "G3"}
    assert cloning.call(314, groups | topic) == Response()
    assert cloning.offsets.topics_of("G3") == {"T1", "T2"}


def test_a_topic_that_the_group_has_left_is_not_cloned(cloning: FakeBroker) -> None:
    subscribe(cloning, "G1", "T2")
    answer = cloning.call(314, CLONE)
    assert answer == Response(remark="group G1 has no offsets to clone in topic T1")
    assert cloning.offsets.committed["T1@G2"] == {3: 9}
    assert cloning.call(314, CLONE | {"offline": True}) == Response()
    assert cloning.offsets.committed["T1@G2"] == {0: 5, 1: 6}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "none"}, 0, "group G1 has no offsets to clone in topic none"),
        ({"srcGroup": "none"}, 0, "group none has no offsets to clone in topic T1"),
        ({"srcGroup": "none", "topic": ""}, 0, "group none has no offsets to clone in topic any"),
        ({"destGroup": "a b"}, 29, None),
        ({"destGroup": ""}, 29, None),
    ],
)
def test_what_can_not_be_cloned_changes_nothing(
    cloning: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str | None
) -> None:
    before = cloning.offsets.content()
    answer = cloning.call(314, CLONE | fields)
    assert answer.code == code
    assert answer.remark == remark or (remark is None and answer.remark)
    assert cloning.offsets.content() == before


# --- 343 ---


def test_the_topics_of_a_group(cloning: FakeBroker) -> None:
    assert cloning.ask(343, {"group": "G1"}) == {"brokerAddr": "127.0.0.1:10911", "topicList": ["T1", "T2"]}
    assert cloning.ask(343, {"group": "none"})["topicList"] == []
    assert cloning.call(343).code == 1
