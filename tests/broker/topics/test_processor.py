"""Topic administration; codes, texts and bodies compared with a real broker's."""

from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.broker.topics.table import QUEUE_NUMS_MAX
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import FieldValue, Response
from tests.broker.fakes import CONFIG, NOW_MS, FakeBroker, count_puts


def wanted(topic: str = "T1", **more: FieldValue) -> dict[str, FieldValue]:
    fields: dict[str, FieldValue] = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    return fields | more


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_a_topic_is_created_and_changed(broker: FakeBroker) -> None:
    assert broker.call(17, wanted()) == Response()
    assert broker.topics.get("T1") == TopicConfig("T1", 4, 4, 6)
    assert broker.call(17, wanted()).code == 0
    assert broker.topics.data_version.counter == 1
    assert broker.call(17, wanted(writeQueueNums=8, order=True)).code == 0
    assert broker.topics.get("T1") == TopicConfig("T1", 4, 8, 6, order=True)


def test_a_client_may_leave_out_what_has_a_default(broker: FakeBroker) -> None:
    fields: dict[str, FieldValue] = {"topic": "T1", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert broker.call(17, fields).code == 0
    assert broker.topics.get("T1") == TopicConfig("T1", 1, 1, 6)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "rmq_sys_x"}, 29, "conflict with system topic"),
        ({"topic": "C"}, 29, "conflict with system topic"),
        ({"topic": "a b"}, 29, "illegal characters"),
        ({"topic": "a" * 128}, 29, "the limit is 127"),
        ({"topic": ""}, 29, "blank"),
        ({"attributes": "+foo=1"}, 1, "unsupported key: foo"),
        ({"attributes": "+message.type"}, 1, "format is wrong"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ({"topicFilterType": "XX"}, 29, "topicFilterType = [XX] value invalid"),
        ({"readQueueNums": -1}, 29, "numbers of queues"),
        ({"readQueueNums": 0}, 29, "numbers of queues"),
        ({"writeQueueNums": 0}, 29, "numbers of queues"),
        ({"writeQueueNums": QUEUE_NUMS_MAX + 1}, 29, "numbers of queues"),
        ({"perm": 99}, 29, "perm 99"),
        ({"readQueueNums": "many"}, 1, "readQueueNums"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    answer = broker.call(17, wanted() | fields)
    assert answer.code == code
    assert answer.remark is not None
    assert remark in answer.remark
    assert broker.topics.data_version.counter == 0


def test_queues_of_batches_do_not_follow_others(broker: FakeBroker) -> None:
    broker.store.queues["T1", 0] = (0, 5, False)
    batches = wanted(attributes="+queue.type=BatchCQ")
    both = b'{"topicConfigList":[{"topicName":"T0"},{"topicName":"T1","attributes":{"+queue.type":"BatchCQ"}}]}'
    for code, fields, body in ((17, batches, b""), (18, {}, both)):
        answer = broker.call(code, fields, body)
        assert answer.code == 29
        assert "delete topic T1 first" in str(answer.remark)
        assert not {"T0", "T1"} & broker.topics.table.keys()
    assert broker.call(17, wanted()).code == 0  # as before
    assert "unchangeable" in str(broker.call(17, batches).remark)
    assert broker.call(17, batches | {"topic": "T2"}).code == 0
    assert broker.topics.wants_batches("T2")


def test_a_topic_may_have_as_many_queues_as_can_be_mapped(broker: FakeBroker) -> None:
    most = QUEUE_NUMS_MAX
    assert broker.call(17, wanted(readQueueNums=most, writeQueueNums=most)) == Response()
    assert most < 65_530  # vm.max_map_count


def test_messages_of_all_types_can_be_allowed_in_a_topic() -> None:
    broker = FakeBroker(replace(CONFIG, enable_mixed_message_type=True))
    assert broker.call(17, wanted("T", attributes="+message.type=MIXED")).code == 0
    assert broker.topics.table["T"].attributes == {"message.type": "MIXED"}


def test_system_topics_can_be_left_unguarded() -> None:
    broker = FakeBroker(replace(CONFIG, validate_system_topic_when_update_topic=False))
    assert broker.call(17, wanted("TBW102")).code == 0


def test_a_retry_topic_may_have_a_long_name(broker: FakeBroker) -> None:
    assert broker.call(17, wanted("%RETRY%" + "a" * 125)).code == 0


def test_a_list_of_topics(broker: FakeBroker) -> None:
    def config(topic: str, **more: Any) -> dict[str, Any]:
        return {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} | more

    attributes = {"+message.type": "FIFO"}
    body = {"topicConfigList": [config("L1"), config("L2", attributes=attributes)]}
    broker.ask(18, body=body)
    assert broker.topics.get("L2") == TopicConfig("L2", 4, 4, 6, attributes={"message.type": "FIFO"})
    broker.ask(18, body={"topicConfigList": [config("L1"), {"topicName": "L3"}]})
    assert broker.topics.get("L3") == TopicConfig("L3", 16, 16, 6)
    refused = broker.call(18, body={"topicConfigList": [config("L4"), config("a b")]})
    assert refused.code == 29
    assert broker.topics.get("L4") is None
    assert broker.call(18, body={"topicConfigList": [{"perm": 6}]}).code == 29
    assert broker.call(18).code == 1


def test_a_config_is_printed_as_java_does(broker: FakeBroker) -> None:
    broker.call(17, wanted("T2"))
    assert broker.call(351, {"topic": "T2", "lo": True}).body == (
        b'{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T2","topicSysFlag":0,"writeQueueNums":4}'
    )
    unknown = broker.call(351, {"topic": "nope"})
    assert unknown == Response(17, "No topic in this broker. topic: nope")


def test_deleting_takes_everything_of_a_topic(broker: FakeBroker) -> None:
    broker.call(17, wanted())
    broker.topics.create("%RETRY%g_T1", 1)
    broker.topics.create("%RETRY%g+T1", 1)
    broker.topics.create_retry("g", 1)
    for topic in ("T1", "%RETRY%g_T1"):
        broker.offsets.commit("g", topic, 0, 5)
    count_puts(broker.stats, "T1", 1, 1)
    assert broker.call(215, {"topic": "T1"}) == Response()
    assert broker.topics.get("T1") is None
    assert broker.topics.get("%RETRY%g_T1") is None
    assert broker.topics.get("%RETRY%g+T1") is None
    assert broker.topics.get("%RETRY%g") is not None
    assert broker.offsets.topics_of("g") == set()
    assert sorted(broker.store.deleted) == ["%RETRY%g+T1", "%RETRY%g_T1", "T1"]
    assert broker.stats.view("TOPIC_PUT_NUMS", "T1") is None


def test_many_topics_are_deleted_at_once_or_none(broker: FakeBroker) -> None:
    for topic in ("T1", "T2", "T3"):
        broker.call(17, wanted(topic))
    for refused in ("TBW102", " ", "../T", "T/0"):
        assert broker.call(5002, body={"topicList": ["T1", refused]}).code == 29
    assert broker.store.deleted == []
    assert broker.call(5002, body=b'{"topicList":["T1","T3","nope"]}') == Response()
    assert broker.store.deleted == ["T1", "T3", "nope"]
    assert [broker.topics.get(name) is None for name in ("T1", "T2", "T3")] == [True, False, True]


def test_retry_topics_of_pops_may_outlive_their_topic() -> None:
    broker = FakeBroker(replace(CONFIG, clear_retry_topic_when_delete_topic=False))
    broker.call(17, wanted())
    broker.topics.create("%RETRY%g+T1", 1)
    broker.offsets.commit("g", "T1", 0, 5)
    assert broker.call(215, {"topic": "T1"}) == Response()
    assert broker.store.deleted == ["T1"]
    assert broker.topics.get("%RETRY%g+T1") is not None


def test_what_is_not_there_can_be_deleted_and_system_topics_cannot(broker: FakeBroker) -> None:
    assert broker.call(215, {"topic": "nope"}).code == 0
    assert broker.store.deleted == ["nope"]
    assert broker.call(215, {"topic": "TBW102"}).code == 29
    assert broker.call(215, {"topic": " "}) == Response(29, "The specified topic is blank.")
    assert broker.topics.get("TBW102") is not None


@pytest.mark.parametrize(
    "topic", ["..", ".", "/", "/abs/path", "../T", "T/0", "a\0b", "a" * 128, "T\n", "a+b", "%RETRY%../+T"]
)
def test_a_name_that_no_topic_can_have_deletes_nothing(broker: FakeBroker, topic: str) -> None:
    assert broker.call(215, {"topic": topic}).code == 29
    assert broker.store.deleted == []


def test_a_retry_topic_of_pop_consumers_can_be_deleted(broker: FakeBroker) -> None:
    assert broker.call(215, {"topic": "%RETRY%g+T1"}) == Response()
    assert broker.store.deleted == ["%RETRY%g+T1"]


def test_all_topics_or_pages_of_them(broker: FakeBroker) -> None:
    everything = broker.call(21)
    total = len(broker.topics.table)
    assert everything.fields == {"totalTopicNum": total}
    body = broker.ask(21)
    assert list(body["topicConfigTable"]) == list(broker.topics.table)
    assert body.keys() == {
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    }
    version = f'{{"counter":0,"stateVersion":0,"timestamp":{NOW_MS}}}'
    seen: list[str] = []
    while len(seen) < total:
        page: dict[str, FieldValue] = {"topicSeq": len(seen), "maxTopicNum": 3}
        seen += broker.ask(21, page | {"dataVersion": version})["topicConfigTable"]
    assert seen == list(broker.topics.table)


@pytest.mark.parametrize("version", ["", "{}", '{"counter":9}', "{{"])
def test_pages_begin_again_when_the_version_differs(broker: FakeBroker, version: str) -> None:
    page: dict[str, FieldValue] = {"topicSeq": 20, "maxTopicNum": 3, "dataVersion": version}
    assert list(broker.ask(21, page)["topicConfigTable"]) == list(broker.topics.table)[:3]


def test_status_tells_the_ends_of_all_queues(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 2))
    broker.store.queues["T1", 1] = (3, 9, True)
    assert broker.call(202, {"topic": "T1"}).body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T1"}:'
        b'{"lastUpdateTimestamp":1795210273749,"maxOffset":9,"minOffset":3}},"topicPutTps":0.0}'
    )
    assert broker.call(202, {"topic": "nope"}) == Response(17, "topic[nope] not exist")


def test_a_queue_that_does_not_exist_yet_is_empty(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T1", 1, 1))
    broker.store.queues["T1", 0] = (-1, -1, False)
    (ends,) = broker.ask(202, {"topic": "T1"})["offsetTable"].values()
    assert ends == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}


def test_consumers_of_a_topic_are_those_online_and_those_with_offsets(broker: FakeBroker) -> None:
    broker.offsets.commit("G1", "T1", 0, 5)
    consumer = {"groupName": "BG", "subscriptionDataSet": [{"topic": "T1", "subString": "*"}]}
    broker.ask(34, body={"clientID": "c", "consumerDataSet": [consumer]})
    assert broker.ask(300, {"topic": "T1"}) == {"groupList": ["BG", "G1"]}
    assert broker.ask(300, {"topic": "nope"}) == {"groupList": []}


def test_system_topics_are_those_of_a_java_broker(broker: FakeBroker) -> None:
    assert broker.ask(305)["topicList"] == [
        *("BenchmarkTest", "C", "CHECKPOINT_TOPIC", "C_REPLY_TOPIC", "OFFSET_MOVED_EVENT"),
        *("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
        *("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        *("SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "TBW102", "TRANS_CHECK_MAX_TIME_TOPIC"),
        *("broker-a", "rmq_sys_REVIVE_LOG_C", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"),
        "rmq_sys_wheel_timer",
    ]
