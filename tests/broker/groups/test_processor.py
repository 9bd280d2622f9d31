"""Group administration; codes, texts and bodies compared with a real broker's."""

import pytest

from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import ITEMS_MAX, SubscriptionGroupConfig
from firearrow.wire.command import FieldValue, Response
from tests.broker.fakes import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_a_group_is_created_and_changed(broker: FakeBroker) -> None:
    assert broker.call(200, body={"groupName": "G2"}) == Response()
    broker.ask(200, body={"groupName": "G2", "attributes": {"+priority.factor": "50"}})
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}
    broker.ask(200, body={"groupName": "G2", "retryMaxTimes": 3, "groupRetryPolicy": policy, "later": 7})
    assert broker.groups.get("G2") == SubscriptionGroupConfig(
        "G2", retry_max_times=3, group_retry_policy=policy, attributes={"priority.factor": "50"}
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
    assert list(broker.ask(201, page | {"dataVersion": text})["subscriptionGroupTable"]) == (names[2:4])


def test_deleting_a_group(broker: FakeBroker) -> None:
    broker.groups.find("g")
    broker.offsets.commit("g", "T", 0, 5)
    assert broker.call(207, {"groupName": "g"}).code == 0
    assert broker.groups.get("g") is None
    assert broker.offsets.query("g", "T", 0) == 5
    assert broker.call(207, {"groupName": "g", "cleanOffset": True}).code == 0
    assert broker.offsets.query("g", "T", 0) == -1
    assert broker.call(207).code == 1


def test_many_groups_are_deleted_at_once_or_none(broker: FakeBroker) -> None:
    for group in ("g", "h", "i"):
        broker.groups.find(group)
        broker.offsets.commit(group, "T", 0, 5)
    for refused in (" ", "CID_RMQ_SYS_TRANS"):
        assert broker.call(5003, body={"groupNameList": ["g", refused]}).code == 29
    assert broker.groups.get("g") is not None
    assert broker.call(5003, body={"groupNameList": ["g"], "cleanOffset": False}).code == 0
    assert broker.call(5003, body={"groupNameList": ["h", "nope"], "cleanOffset": True}).code == 0
    assert [broker.groups.get(group) is None for group in "ghi"] == [True, True, False]
    assert [broker.offsets.query(group, "T", 0) for group in "ghi"] == [5, -1, 5]


@pytest.mark.parametrize(
    ("code", "name"), [(225, "groupConfigList"), (18, "topicConfigList"), (5002, "topicList"), (5003, "groupNameList")]
)
def test_what_is_made_at_a_time_is_limited(broker: FakeBroker, code: int, name: str) -> None:
    item = {} if name.endswith("ConfigList") else "x"
    answer = broker.call(code, {}, {name: [item] * (ITEMS_MAX + 1)})
    assert f"length <= {ITEMS_MAX}" in (answer.remark or "")


READ: dict[str, FieldValue] = {"group": "g", "topic": "T"}


def test_a_group_is_forbidden_to_read_and_allowed_again(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("T", 1, 1))
    broker.groups.find("g")
    assert broker.ask(353, READ) == READ | {"readable": True}
    version = broker.groups.data_version
    assert broker.ask(353, READ | {"readable": True}) == READ | {"readable": True}
    assert broker.groups.data_version == version
    assert broker.ask(353, READ | {"readable": False}) == READ | {"readable": False}
    assert broker.groups.forbidden == {"g": {"T": 4}}
    assert broker.ask(353, READ) == READ | {"readable": False}
    assert broker.ask(353, READ | {"readable": True}) == READ | {"readable": True}
    assert broker.groups.forbidden == {}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"group": "nope"}, 26, "No group in this broker. group: nope"),
        ({"topic": "nope"}, 17, "No topic in this broker. topic: nope"),
    ],
)
def test_who_is_not_known_is_forbidden_nothing(
    broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str
) -> None:
    broker.topics.put(TopicConfig("T", 1, 1))
    broker.groups.find("g")
    assert broker.call(353, READ | fields | {"readable": False}) == Response(code, remark)
    assert broker.groups.forbidden == {}
    assert broker.ask(353, READ | fields)["readable"] is True
    assert broker.call(353, {"topic": "T"}).code == 1
