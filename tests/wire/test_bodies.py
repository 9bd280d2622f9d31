"""Bodies about topics and routes, as the Java encoder of 5.5.0 writes them."""

import pytest

from firearrow.wire import bodies, fastjson
from firearrow.wire.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVTable,
    MemberGroup,
    MemberGroupBody,
    QueueData,
    Route,
    TopicList,
)


def test_data_versions_go_up() -> None:
    version = DataVersion(1, 5, 7)
    assert version.next_version(9) == DataVersion(1, 9, 8)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            Route([QueueData("b", 4, 5, 6)], [BrokerData("c", "b", {0: "1.1.1.1:1", 10: "1.1.1.2:1"})]),
            (
                '{"brokerDatas":[{"brokerAddrs":{0:"1.1.1.1:1",10:"1.1.1.2:1"},"brokerName":"b",'
                '"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{'
                '"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":5}]}'
            ),
        ),
        (
            ClusterInfo({"b": BrokerData("c", "b", {}, zone_name="z")}, {"c": ["b"]}),
            (
                '{"brokerAddrTable":{"b":{"brokerAddrs":{},"brokerName":"b","cluster":"c",'
                '"enableActingMaster":false,"zoneName":"z"}},"clusterAddrTable":{"c":["b"]}}'
            ),
        ),
        (TopicList(["T"]), '{"topicList":["T"]}'),
        (TopicList([], "1.1.1.1:1"), '{"brokerAddr":"1.1.1.1:1","topicList":[]}'),
        (KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
        (
            MemberGroupBody(MemberGroup("c", "b", {1: "1.1.1.1:1"})),
            '{"brokerMemberGroup":{"brokerAddrs":{1:"1.1.1.1:1"},"brokerName":"b","cluster":"c"}}',
        ),
    ],
)
def test_shapes(body: bodies.Body, text: str) -> None:
    assert fastjson.dumps(body).decode() == text
    assert fastjson.decode(text, type(body)) == body
    assert fastjson.decode(fastjson.dumps_standard(body), type(body)) == body
