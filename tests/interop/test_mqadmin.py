"""The official ``mqadmin`` shows and changes what it should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.interop.javaclient import JavaClient, Outgoing

QUEUE_DATA = {"brokerName": "broker-a", "perm": 6, "topicSysFlag": 0}


def rows(printed: str, first: str) -> list[list[str]]:
    """Return the words of those lines of a table that begin with ``first``."""
    lines = (line.split() for line in printed.splitlines())
    return [words for words in lines if words[:1] == [first]]


def fields(printed: str, separator: str) -> dict[str, str]:
    """Return the lines of the form ``NAME SEPARATOR VALUE`` as a dictionary."""
    pairs = (line.split(separator, 1) for line in printed.splitlines() if separator in line)
    return {name.strip(): value.strip() for name, value in pairs}


def route(printed: str) -> dict[str, object]:
    """Read a printed route, which is JSON but for the keys that are bare numbers."""
    value: dict[str, object] = json.loads(re.sub(r"(\d+):\"", r'"\1":"', printed))
    return value


@pytest.fixture
def dealt(java: JavaClient, topic: str) -> str:
    """A topic of four queues with 5, 4, 0 and 0 messages."""
    java.producer().send(topic, [Outgoing(body=b"%d" % i, queue=i % 2) for i in range(9)])
    return topic


def test_update_topic_creates_and_changes(java: JavaClient, name: str) -> None:
    words = ("-b", java.server.broker, "-t", name)
    printed = java.mqadmin("updateTopic", *words, "-r", "4", "-w", "4")
    assert f"create topic to {java.server.broker} success." in printed
    assert f"topicName={name}, readQueueNums=4, writeQueueNums=4, perm=RW-" in printed
    by_cluster = java.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", "6", "-w", "3")
    assert f"create topic to {java.server.broker} success." in by_cluster
    queues = route(java.mqadmin("topicRoute", "-t", name))["queueDatas"]
    assert queues == [QUEUE_DATA | {"readQueueNums": 6, "writeQueueNums": 3}]


def test_update_topic_refuses_a_system_topic(java: JavaClient) -> None:
    printed = java.mqadmin("updateTopic", "-b", java.server.broker, "-t", "SCHEDULE_TOPIC_XXXX")
    assert "success" not in printed


def test_topic_route(java: JavaClient, topic: str) -> None:
    shown = route(java.mqadmin("topicRoute", "-t", topic))
    assert shown["queueDatas"] == [QUEUE_DATA | {"readQueueNums": 4, "writeQueueNums": 4}]
    assert shown["brokerDatas"] == [
        {
            "brokerAddrs": {"0": java.server.broker},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
            "enableActingMaster": False,
        }
    ]


def test_cluster_list(java: JavaClient) -> None:
    (row,) = rows(java.mqadmin("clusterList"), "DefaultCluster")
    assert row[1:5] == ["broker-a", "0", java.server.broker, "V5_5_0"]
    assert row[-1] == "true"  # activated


def test_topic_list(java: JavaClient, topic: str, group: str) -> None:
    assert topic in java.mqadmin("topicList").split()
    consumer = java.push_consumer(group, topic)
    java.producer().send(topic, [Outgoing(body=b"0")])
    consumer.wait_for(1)
    consumer.stop()
    lines = rows(java.mqadmin("topicList", "-c"), "DefaultCluster")
    assert ["DefaultCluster", topic, group] in lines
    assert ["DefaultCluster", "TBW102"] in lines


def test_topic_status(java: JavaClient, dealt: str) -> None:
    shown = rows(java.mqadmin("topicStatus", "-t", dealt), "broker-a")
    assert [row[1:4] for row in shown] == [list(row) for row in ("005", "104", "200", "300")]
    assert [len(row) for row in shown] == [6, 6, 4, 4]  # with date and time, or not


def test_consumer_progress(java: JavaClient, dealt: str, group: str) -> None:
    consumer = java.pull_consumer(group)
    consumer.pull(dealt, 0, 0)  # which creates the group
    consumer.commit(dealt, 0, 5)
    consumer.commit(dealt, 1, 1)
    printed = java.mqadmin("consumerProgress", "-g", group)
    shown = {row[2]: row[3:6] for row in rows(printed, dealt)}
    assert shown == {"0": ["5", "5", "0"], "1": ["4", "1", "3"], "2": ["0", "0", "0"], "3": ["0", "0", "0"]}
    assert "Consume Diff Total: 3" in printed


def test_consumer_progress_of_all_groups(java: JavaClient, dealt: str, group: str) -> None:
    java.push_consumer(group, dealt).wait_for(9)
    (row,) = rows(java.mqadmin("consumerProgress"), group)
    assert row[1:5] == ["1", "V5_5_0", "PUSH", "CLUSTERING"]


def test_reset_offset_by_time(java: JavaClient, dealt: str, group: str) -> None:
    consumer = java.pull_consumer(group)
    consumer.pull(dealt, 0, 0)  # which creates the group
    consumer.commit(dealt, 0, 5)
    asked = ("-g", group, "-t", dealt)

    def reset(command: str, *words: str) -> dict[str, str]:
        printed = java.mqadmin(command, *asked, *words)
        return {row[1]: row[2] for row in rows(printed, "broker-a")}

    assert reset("resetOffsetByTime", "-s", "1000") == dict.fromkeys("0123", "0")
    assert reset("skipAccumulatedMessage") == {"0": "5", "1": "4", "2": "0", "3": "0"}
    place = ("-s", "0", "-b", java.server.broker, "-q", "1", "-o", "2")
    assert "reset consumer offset to 2" in java.mqadmin("resetOffsetByTime", *asked, *place)
    progress = rows(java.mqadmin("consumerProgress", "-g", group), dealt)
    assert {row[2]: row[4] for row in progress} == {"0": "5", "1": "2", "2": "0", "3": "0"}


def test_query_msg_by_id_and_by_unique_key(java: JavaClient, topic: str) -> None:
    body = "内容".encode()
    sent = Outgoing(body=body, tags="TagA", keys="k1 k2", properties={"a": "b"}, queue=3)
    (report,) = java.producer().send(topic, [sent])
    printed = java.mqadmin("queryMsgById", "-t", topic, "-i", report.offset_msg_id)
    shown = fields(printed, ":")
    expected = {
        "OffsetID": report.offset_msg_id,
        "Topic": topic,
        "Tags": "[TagA]",
        "Keys": "[k1 k2]",
        "Queue ID": "3",
        "Queue Offset": "0",
        "Reconsume Times": "0",
        "System Flag": "0",
        "Store Host": java.server.broker,
    }
    assert expected.items() <= shown.items()
    assert f"UNIQ_KEY={report.msg_id}" in shown["Properties"]
    assert "a=b" in shown["Properties"]
    assert Path(shown["Message Body Path"]).read_bytes() == body


def test_query_msg_by_offset(java: JavaClient, dealt: str) -> None:
    words = ("-t", dealt, "-b", "broker-a", "-i", "1", "-o", "2")
    shown = fields(java.mqadmin("queryMsgByOffset", *words), ":")
    assert (shown["Topic"], shown["Queue ID"], shown["Queue Offset"]) == (dealt, "1", "2")
    assert Path(shown["Message Body Path"]).read_bytes() == b"5"


def test_broker_status(java: JavaClient, dealt: str) -> None:
    shown = fields(java.mqadmin("brokerStatus", "-b", java.server.broker), ":")
    assert shown["brokerVersionDesc"] == "V5_5_0"
    assert shown["commitLogMinOffset"] == "0"
    last = java.pull_consumer().read(dealt)[4]
    assert int(shown["commitLogMaxOffset"]) >= last.physical_offset + last.store_size
    assert int(shown["putMessageTimesTotal"]) >= 9


def test_get_and_update_broker_config(java: JavaClient) -> None:
    def config() -> dict[str, str]:
        return fields(java.mqadmin("getBrokerConfig", "-b", java.server.broker), "=")

    shown = config()
    assert shown["brokerName"] == "broker-a"
    assert shown["brokerClusterName"] == "DefaultCluster"
    assert shown["maxMessageSize"] == str(4 << 20)
    assert shown["mappedFileSizeCommitLog"] == str(8 << 20)
    assert shown["storePathRootDir"] == str(java.server.store)
    assert shown["listenPort"] == str(java.server.broker_port)
    change = ("-b", java.server.broker, "-k", "fileReservedTime", "-v", "48")
    assert "update broker config success" in java.mqadmin("updateBrokerConfig", *change)
    assert config()["fileReservedTime"] == "48"


def test_update_sub_group(java: JavaClient, group: str) -> None:
    printed = java.mqadmin("updateSubGroup", "-b", java.server.broker, "-g", group, "-r", "3")
    assert f"create subscription group to {java.server.broker} success." in printed
    assert f"groupName={group}" in printed
    assert "retryMaxTimes=3" in printed


def test_delete_topic(java: JavaClient, dealt: str) -> None:
    printed = java.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", dealt)
    assert f"delete topic [{dealt}] from cluster [DefaultCluster] success." in printed
    assert f"delete topic [{dealt}] from NameServer success." in printed
    assert dealt not in java.topics()
    java.create_topic(dealt, queues=2)
    assert java.pull_consumer().read(dealt) == []


@pytest.mark.parametrize("command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"])
def test_cleaning(java: JavaClient, dealt: str, command: str) -> None:
    before = java.pull_consumer().read(dealt)
    assert "success" in java.mqadmin(command, "-b", java.server.broker)
    assert java.pull_consumer().read(dealt) == before


def test_a_consumer_is_asked_what_it_does_and_to_consume(java: JavaClient, topic: str, group: str) -> None:
    (report,) = java.producer().send(topic, [Outgoing(body=b"once more", queue=1)])
    consumer = java.push_consumer(group, topic)
    consumer.wait_for(1)
    [client_id] = re.findall(r"\S+@\S+", java.mqadmin("consumerConnection", "-g", group))
    printed = java.mqadmin("consumerStatus", "-g", group, "-i", client_id, "-s")
    assert fields(printed, ":")["consumerGroup"] == group
    assert len(rows(printed, topic)) >= 4  # its subscription, queues and rates
    assert "ConsumeMessageThread" in printed  # -s: what its threads do
    for message_id in (report.offset_msg_id, report.msg_id):
        asked = ("-t", topic, "-i", message_id, "-g", group, "-d", client_id)
        assert "consumeResult=CR_SUCCESS" in java.mqadmin("queryMsgById", *asked)
    assert [message.body for message in consumer.wait_for(3)] == [b"once more"] * 3
