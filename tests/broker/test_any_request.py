"""Whatever a client sends to these processors, it gets an answer with a code, and what is refused
changes nothing."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import Response
from tests.broker.fakes import FakeBroker
from tests.store.stores import contents

CODES = (14, 15, 17, 18, 21, 25, 26, 28, 34, 35, 36, 38, 41, 42, 46)
CODES_OF_ADMINS = (
    *(200, 201, 202, 203, 204, 207, 208, 215, 222, 225, 300, 303, 305, 308, 314, 315, 317, 321),
    *(328, 343, 345, 351, 352, 353, 354),
)

FIELDS = st.dictionaries(
    st.sampled_from(
        [
            *("topic", "consumerGroup", "group", "groupName", "producerGroup", "clientID"),
            *("queueId", "commitOffset", "offset", "timestamp", "perm", "readQueueNums", "writeQueueNums", "order"),
            *("attributes", "topicFilterType", "topicSeq", "maxTopicNum", "dataVersion"),
            *("delayLevel", "unitMode", "maxReconsumeTimes"),
            *("srcGroup", "destGroup", "offline", "compareGroup", "filterGroups", "readable"),
            *("isOrder", "isForce", "index", "count", "checkStoreTime"),
            *("statsName", "statsKey", "cleanOffset", "topicList", "setZeroIfNotFound"),
        ]
    ),
    st.sampled_from(["", "0", "1", "-1", "7", "true", "T", "g", "{}", "99999999999", "+a=b"]) | st.text(max_size=8),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        *("clientID", "consumerDataSet", "producerDataSet", "groupName", "heartbeatFingerprint"),
        *("subscriptionDataSet", "topic", "subString", "codeSet", "mqSet", "clientId", "brokerName"),
        *("topicConfigList", "topicName", "attributes", "groupConfigList", "subscriptionData"),
    ]
)
BODIES = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)


@settings(max_examples=60)
@pytest.mark.parametrize("code", [*CODES, *CODES_OF_ADMINS])
@given(fields=FIELDS, body=BODIES | st.binary(max_size=20))
def test_every_request_is_answered(code: int, fields: dict[str, Any], body: Any) -> None:
    broker = furnished()
    before = state_of(broker)
    answer = broker.call(code, fields, body)
    assert isinstance(answer, Response)
    if answer.code != 0:
        assert answer.remark
        assert state_of(broker) == before


def furnished(root: Path | None = None) -> FakeBroker:
    """A broker that has a topic T, a group g, and an offset of it."""
    broker = FakeBroker(root=root, config_file=root and root / "broker.conf")
    for topic in ("T", "%RETRY%g_T"):
        broker.topics.put(TopicConfig(topic, 4, 4))
        broker.offsets.commit("g", topic, 0, 5)
    broker.groups.find("g")
    broker.offsets.save()
    return broker


def state_of(broker: FakeBroker) -> Any:
    """All that administrators can change."""
    topics, groups, offsets = broker.topics, broker.groups, broker.offsets
    versions = topics.data_version, groups.data_version, offsets.data_version
    tables = [table.copy() for table in (topics.table, groups.table, groups.forbidden)]
    queues = [deepcopy(table) for table in (offsets.committed, offsets.resets)]
    return versions, tables, queues, broker.store.deleted.copy(), broker.settings.version


TOPIC = {"topicName": "N", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (15, {"consumerGroup": "g", "topic": "T", "queueId": 9, "commitOffset": 1}, b""),
        (17, {"topic": "T", "readQueueNums": 1, "writeQueueNums": 0, "perm": 6}, b""),
        (17, {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
              "attributes": "+no=1"}, b""),
        (18, {}, {"topicConfigList": [TOPIC, {**TOPIC, "topicName": "a b"}]}),
        (18, {}, {"topicConfigList": [TOPIC, {**TOPIC, "attributes": {"+no": "1"}}]}),
        (25, {}, b"fileReservedTime=48\nbrokerPermission=often"),
        (25, {}, b"fileReservedTime=48\nbrokerConfigPath=x"),
        (34, {}, {"clientID": "c", "consumerDataSet": [
            {"groupName": "n1"},
            {"groupName": "n2", "subscriptionDataSet": [{"topic": "T", "subString": "x" * 70_000}]},
        ]}),
        (200, {}, {"groupName": "g", "consumeEnable": False, "attributes": {"+no": "1"}}),
        (215, {"topic": "../T"}, b""),
        (215, {"topic": "T"}, b""),  # the disk is full
        (222, {"group": "g", "topic": "T", "timestamp": 0, "queueId": 0, "offset": 99}, b""),
        (314, {"srcGroup": "g", "destGroup": "a b", "topic": "T"}, b""),
        (353, {"group": "g", "topic": "none", "readable": False}, b""),
        (225, {}, {"groupConfigList": [{"groupName": "n"}, {"groupName": "a b"}]}),
        (225, {}, {"groupConfigList": [
            {"groupName": "n"}, {"groupName": "g", "attributes": {"+no": "1"}}]}),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(tmp_path: Path, code: int, fields: dict[str, Any], body: Any) -> None:
    broker = furnished(tmp_path)
    broker.store.is_full = True
    before = state_of(broker), contents(tmp_path)
    assert broker.call(code, fields, body).code != 0
    broker.offsets.save()
    assert (state_of(broker), contents(tmp_path)) == before
