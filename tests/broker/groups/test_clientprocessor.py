"""Heartbeats, members and locks as clients see them; answers compared with a real broker's."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.broker.groups.clientprocessor import HEARTBEAT_GROUPS_MAX, HEARTBEAT_SUBSCRIPTIONS_MAX
from firearrow.broker.groups.clients import EXPRESSION_LENGTH_MAX
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import BODY_BYTES_MAX, ITEMS_MAX, SubscriptionGroupConfig
from firearrow.wire.command import Response
from tests.broker.fakes import CONFIG, NOW_MS, FakeBroker, FakeChannel

NOTIFIED = [(40, {"consumerGroup": "HG"})]
ANSWERED = {"IS_SUPPORT_HEART_BEAT_V2": True}


def subscription(topic: str = "T1", version: int = 1) -> dict[str, Any]:
    return {
        "topic": topic,
        "subString": "*",
        "subVersion": version,
        "tagsSet": [],
        "codeSet": [],
        "expressionType": "TAG",
        "classFilterMode": False,
    }


def heartbeat(client: str = "c1", group: str = "HG", **more: Any) -> dict[str, Any]:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription()],
        "unitMode": False,
    }
    top = {"heartbeatFingerprint", "withoutSub", "producerDataSet"}
    consumer |= {name: value for name, value in more.items() if name not in top}
    beat = {"clientID": client, "consumerDataSet": [consumer], "producerDataSet": []}
    return beat | {name: value for name, value in more.items() if name in top}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_a_heartbeat_makes_the_group_and_its_retry_topic(broker: FakeBroker) -> None:
    answer = broker.call(34, body=heartbeat(producerDataSet=[{"groupName": "PG"}]))
    assert answer.code == 0
    assert answer.fields == ANSWERED | {"IS_SUB_CHANGE": True}
    assert broker.channel.take() == NOTIFIED
    assert broker.groups.get("HG") == SubscriptionGroupConfig("HG")
    assert broker.topics.get("%RETRY%HG") == TopicConfig("%RETRY%HG", 1, 1, 6)
    assert broker.ask(204, {"producerGroup": "PG"}) == {
        "connectionSet": [{"clientAddr": "10.0.0.1:4711", "clientId": "c1", "language": "JAVA", "version": 513}]
    }


def test_retry_topics_are_as_their_group_and_topics_ask(broker: FakeBroker) -> None:
    broker.topics.put(TopicConfig("OT", 4, 4, 6, order=True))
    broker.groups.put(SubscriptionGroupConfig("OG", retry_queue_nums=3))
    body = heartbeat(group="OG", unitMode=True, subscriptionDataSet=[subscription("OT")])
    broker.ask(34, body=body)
    assert broker.topics.get("%RETRY%OG") == TopicConfig("%RETRY%OG", 3, 3, 6, topic_sys_flag=2, order=True)


def test_the_group_decides_on_notifications(broker: FakeBroker) -> None:
    broker.groups.put(SubscriptionGroupConfig("NN", notify_consumer_ids_changed_enable=False))
    two = FakeChannel()
    broker.ask(34, body=heartbeat(group="NN"))
    broker.ask(34, body=heartbeat("c2", group="NN"), channel=two)
    broker.ask(35, {"clientID": "c1", "consumerGroup": "NN"})
    assert broker.channel.take() == two.take() == []


def test_a_group_with_an_impossible_name_is_passed_over(broker: FakeBroker) -> None:
    assert broker.call(34, body=heartbeat(group="a b")).code == 0
    assert broker.call(203, {"consumerGroup": "a b"}).code == 206


def test_all_that_one_heartbeat_makes_is_told_and_kept(tmp_path: Path) -> None:
    told: list[list[TopicConfig]] = []
    broker = FakeBroker(root=tmp_path)
    broker.topics.changed.listen(lambda change: told.append(list(change.configs)))
    body = heartbeat(group="g0")
    body["consumerDataSet"] += [{"groupName": f"g{i}"} for i in range(1, 50)]
    broker.ask(34, body=body)
    retries = [f"%RETRY%g{i}" for i in range(50)]
    assert [config.topic_name for once in told for config in once] == retries
    later = FakeBroker(root=tmp_path)
    later.topics.load()
    later.groups.load()
    assert later.topics.table == broker.topics.table
    assert later.groups.table == broker.groups.table
    broker.ask(34, body=body)
    assert len(told) == 50


@pytest.mark.parametrize("role", ["consumerDataSet", "producerDataSet"])
def test_a_heartbeat_of_too_many_groups_is_refused(broker: FakeBroker, role: str) -> None:
    body = heartbeat()
    body[role] = [{"groupName": f"g{i}"} for i in range(HEARTBEAT_GROUPS_MAX + 1)]
    refused = broker.call(34, body=body)
    assert refused.code == 29
    assert refused.remark is not None
    assert f"the limit is {HEARTBEAT_GROUPS_MAX}" in refused.remark
    assert broker.groups.get("g0") is None
    assert broker.clients.producers("g0") == []


@pytest.mark.parametrize(
    "large",
    [
        {"subString": "A" * (EXPRESSION_LENGTH_MAX + 1)},
        {"codeSet": [7] * (EXPRESSION_LENGTH_MAX + 1)},
        {"tagsSet": ["A"] * (EXPRESSION_LENGTH_MAX + 1)},
    ],
)
def test_a_subscription_of_excessive_size_is_refused(broker: FakeBroker, large: dict[str, Any]) -> None:
    body = heartbeat(subscriptionDataSet=[subscription("T0"), subscription() | large])
    refused = broker.call(34, body=body)
    assert refused.code == 29
    assert refused.remark is not None
    assert refused.remark.startswith("the subscription to topic T1 has 65537 ")
    assert broker.clients.consumer_group("HG") is None
    longest = subscription() | {"subString": "A" * EXPRESSION_LENGTH_MAX}
    assert broker.call(34, body=heartbeat(subscriptionDataSet=[longest])).code == 0


def test_pull_consumers_can_be_rejected() -> None:
    broker = FakeBroker(replace(CONFIG, reject_pull_consumer_enable=True))
    broker.ask(34, body=heartbeat(group="active", consumeType="CONSUME_ACTIVELY"))
    broker.ask(34, body=heartbeat(group="passive"))
    assert broker.clients.consumer_group("active") is None
    assert broker.clients.consumer_group("passive") is not None


@pytest.mark.parametrize("body", [b"", b"{{"])
def test_a_heartbeat_that_is_none_is_refused(broker: FakeBroker, body: bytes) -> None:
    assert broker.call(34, body=body).code == 1


def test_version_2_asks_for_subscriptions_when_they_may_have_changed(broker: FakeBroker) -> None:
    def must_send_all(fingerprint: int, without: bool, group: str = "V2") -> object:
        body = heartbeat(group=group, heartbeatFingerprint=fingerprint, withoutSub=without)
        if without:
            body["consumerDataSet"][0]["subscriptionDataSet"] = []
        answer = broker.call(34, body=body)
        return answer.fields["IS_SUB_CHANGE"]

    assert must_send_all(77, without=False) is False
    assert must_send_all(77, without=True) is False
    assert must_send_all(78, without=True) is True
    assert must_send_all(78, without=True) is False
    assert broker.clients.subscription("V2", "T1") is not None
    assert must_send_all(77, without=True, group="unknown") is True


def test_members_are_listed(broker: FakeBroker) -> None:
    assert broker.call(38, {"consumerGroup": "HG"}) == Response(1, "no consumer for this group, HG")
    two = FakeChannel("10.0.0.2:4712")
    broker.ask(34, body=heartbeat())
    broker.ask(34, body=heartbeat("c2"), channel=two)
    assert broker.ask(38, {"consumerGroup": "HG"}) == {"consumerIdList": ["c1", "c2"]}
    broker.channel.take()
    broker.ask(35, {"clientID": "c2", "consumerGroup": "HG"}, channel=two)
    assert broker.channel.take() == NOTIFIED
    assert broker.ask(38, {"consumerGroup": "HG"}) == {"consumerIdList": ["c1"]}


def test_connections_of_a_group_are_printed_as_java_does(broker: FakeBroker) -> None:
    offline = broker.call(203, {"consumerGroup": "HG"})
    assert offline == Response(206, "the consumer group[HG] not online")
    broker.ask(34, body=heartbeat())
    assert broker.call(203, {"consumerGroup": "HG"}).body == (
        b'{"connectionSet":[{"clientAddr":"10.0.0.1:4711","clientId":"c1","language":"JAVA",'
        b'"version":513}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":'
        b'{"T1":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
        b'"subVersion":1,"tagsSet":[],"topic":"T1"}}}'
    )


def test_who_joined_and_left_is_told_to_who_asks_for_it(broker: FakeBroker) -> None:
    asked: dict[str, str | int | bool] = {"consumerGroup": "HG", "withChanges": True}
    assert broker.call(203, asked).code == 206
    broker.ask(34, body=heartbeat())
    broker.ask(34, body=heartbeat())  # it is there already
    now_ms = broker.clock.now_ms()
    joined = {"at": now_ms, "clientId": "c1", "joined": True}
    found = broker.ask(203, asked)
    assert (len(found["connectionSet"]), found["memberChanges"]) == (1, [joined])
    broker.ask(35, {"clientID": "c1", "consumerGroup": "HG"})
    left = {**joined, "joined": False}
    assert broker.ask(203, asked) == {"connectionSet": [], "memberChanges": [joined, left], "subscriptionTable": {}}
    assert broker.call(203, {"consumerGroup": "HG"}).code == 206


def test_a_consumer_that_tells_little_is_told_of_little(broker: FakeBroker) -> None:
    broker.ask(34, body={"clientID": "x1", "consumerDataSet": [{"groupName": "NUL"}]})
    assert broker.ask(203, {"consumerGroup": "NUL"}).keys() == {"connectionSet", "subscriptionTable"}


def test_unregister_takes_both_kinds_of_groups(broker: FakeBroker) -> None:
    broker.ask(34, body=heartbeat(producerDataSet=[{"groupName": "PG"}]))
    broker.ask(35, {"clientID": "c1", "consumerGroup": "HG", "producerGroup": "PG"})
    assert broker.call(204, {"producerGroup": "PG"}) == Response(1, "the producer group[PG] not exist")
    assert broker.call(203, {"consumerGroup": "HG"}).code == 206
    assert broker.call(35, {"clientID": "c9", "consumerGroup": "X", "producerGroup": "Y"}).code == 0


def test_queues_are_locked_by_one_client(broker: FakeBroker) -> None:
    def asking(client: str, *queues: int) -> dict[str, Any]:
        wanted = [{"topic": "T1", "brokerName": "broker-a", "queueId": queue} for queue in queues]
        return {"clientId": client, "consumerGroup": "HG", "mqSet": wanted}

    def lock(client: str, *queues: int) -> list[int]:
        answer = broker.ask(41, body=asking(client, *queues))
        return [queue["queueId"] for queue in answer["lockOKMQSet"]]

    assert lock("c1", 0, 1) == [0, 1]
    assert lock("c2", 1, 2) == [2]
    assert broker.call(42, body=asking("c2", 0, 1)) == Response()
    assert lock("c2", 0, 1) == []
    broker.ask(42, body=asking("c1", 0))
    assert lock("c2", 0, 1) == [0]
    assert broker.call(41).code == 1


def test_only_tags_can_be_filtered_by(broker: FakeBroker) -> None:
    def check(expression_type: str) -> Response:
        data = subscription() | {"expressionType": expression_type}
        return broker.call(46, body={"clientId": "c", "group": "g", "subscriptionData": data})

    assert check("TAG") == Response()
    refused = check("SQL92")
    assert refused.code == 1
    assert refused.remark is not None
    assert "does not support consumer to filter message by SQL92" in refused.remark
    assert broker.call(46) == Response()
    assert broker.call(46, body={"clientId": "c"}) == Response()


def test_a_heartbeat_of_ten_thousand_subscriptions_is_taken(broker: FakeBroker) -> None:
    beat = heartbeat()
    beat["consumerDataSet"][0]["subscriptionDataSet"] = [
        subscription(f"a-topic-with-a-longer-name-{n}") | {"tagsSet": None} for n in range(10_000)
    ]
    assert broker.call(34, {}, beat).code == 0
    group = broker.clients.consumer_group("HG")
    assert group is not None
    assert len(group.subscriptions) == 10_000


@pytest.mark.parametrize(
    ("groups", "remark"),
    [
        ([[{}] * (ITEMS_MAX + 1)], f"Expected `array` of length <= {ITEMS_MAX}"),
        (
            [[{}] * ITEMS_MAX] * 2 + [[{}] * (HEARTBEAT_SUBSCRIPTIONS_MAX - 2 * ITEMS_MAX + 1)],
            f"the heartbeat has {HEARTBEAT_SUBSCRIPTIONS_MAX + 1} subscriptions, the limit is",
        ),
        (
            [[{"topic": f"T{n}", "subString": "a||" * 20_000} for n in range(9)]],
            f"540000 characters of expressions without hash codes, the limit is {8 * 65_536}",
        ),
    ],
)
def test_a_heartbeat_that_takes_long_is_refused(broker: FakeBroker, groups: list[list[Any]], remark: str) -> None:
    consumers = [{"groupName": f"G{n}", "subscriptionDataSet": wanted} for n, wanted in enumerate(groups)]
    answer = broker.call(34, {}, {"clientID": "c", "consumerDataSet": consumers})
    assert answer.code in (1, 29)
    assert remark in (answer.remark or "")
    assert broker.clients.consumer_group("G0") is None


@pytest.mark.parametrize("code", [34, 41, 42, 46])
def test_a_body_beyond_the_limit_is_not_read(broker: FakeBroker, code: int) -> None:
    answer = broker.call(code, {}, b"{}".ljust(BODY_BYTES_MAX + 1))
    assert answer.remark == (f"request {code} has a body of {BODY_BYTES_MAX + 1} bytes, the limit is {BODY_BYTES_MAX}")
    assert broker.call(code, {}, b"{}".ljust(BODY_BYTES_MAX)).code == 0


@pytest.mark.parametrize("code", [41, 42])
def test_no_client_locks_more_queues_than_there_are(broker: FakeBroker, code: int) -> None:
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": [{}] * (ITEMS_MAX + 1)}
    answer = broker.call(code, {}, body)
    assert f"length <= {ITEMS_MAX}" in (answer.remark or "")


# --- 328, 345 ---


def test_all_producers(broker: FakeBroker) -> None:
    both = {"clientID": "c1", "producerDataSet": [{"groupName": "P1"}, {"groupName": "P2"}]}
    broker.ask(34, body=both)
    broker.clock.seconds += 20
    other = FakeChannel("10.0.0.2:1")
    broker.ask(34, body={"clientID": "c2", "producerDataSet": [{"groupName": "P2"}]}, channel=other)

    def row(client_id: str, address: str, at_ms: int) -> dict[str, Any]:
        return {
            "clientId": client_id, "remoteIP": address, "language": "JAVA", "version": 513,
            "lastUpdateTimestamp": at_ms,
        }  # fmt: skip

    first, second = row("c1", "/10.0.0.1:4711", NOW_MS), row("c2", "/10.0.0.2:1", NOW_MS + 20_000)
    broker.clock.seconds += 5
    assert broker.ask(328) == {"data": {"P1": [first], "P2": [first, second]}}


def test_no_producers(broker: FakeBroker) -> None:
    assert broker.ask(328) == {"data": {}}


def test_what_a_group_subscribes_to(broker: FakeBroker) -> None:
    broker.ask(34, body=heartbeat())
    asked = {"group": "HG", "topic": "T1"}
    assert broker.ask(345, asked) == asked | {"subscriptionData": subscription()}  # type: ignore[arg-type]
    for nothing in ({"group": "HG", "topic": "T9"}, {"group": "none", "topic": "T1"}):
        assert broker.ask(345, nothing) == nothing  # type: ignore[arg-type]
    assert broker.call(345, {"group": "HG"}).code == 1
