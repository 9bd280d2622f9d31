"""Administration of a cluster: the brokers that get a request, and the errors for empty answers."""

from __future__ import annotations

import pytest

from firearrow.client.admin.cluster import (
    Reset,
    addresses_of_cluster,
    brokers_of,
    cluster_with,
    masters_of,
    needs_route_of_another,
)
from firearrow.errors import ConfigError, ConsumeFailed, NotFound, TopicNotFound
from firearrow.message.names import retry_topic
from firearrow.wire.bodies import BrokerData, ClusterInfo
from firearrow.wire.client_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
    ResetOffsets,
    TopicOffset,
    TopicStats,
)
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.headers import UpdateConsumerOffset
from tests.client.admin.servers import administering, route_to, run

INFO = ClusterInfo(
    {
        "a": BrokerData("C", "a", {0: "a:1", 1: "a:2"}),
        "b": BrokerData("C", "b", {1: "b:2"}),
        "c": BrokerData("D", "c", {0: "c:1"}),
    },
    {"C": ["a", "b"], "D": ["c"]},
)
QUEUE = MessageQueue("T", "a", 0)
NOTHING = ConsumeStats({})


def test_a_clusters_brokers() -> None:
    assert masters_of(INFO, "C") == ["a:1"]
    assert addresses_of_cluster(INFO, "C") == ["a:1", "a:2", "b:2"]
    assert cluster_with("c", INFO) == "D"
    assert cluster_with("x", INFO) is None
    with pytest.raises(ConfigError, match="there is no cluster 'E'; the name servers know: C, D"):
        brokers_of(INFO, "E")


def test_light_topics_have_no_route_of_their_own() -> None:
    assert needs_route_of_another("%LMQ%x")
    assert needs_route_of_another("rmq_sys_wheel_timer")
    assert not needs_route_of_another("T")


def test_progress_is_that_of_all_brokers_of_the_retry_topic() -> None:
    async def scene() -> None:
        stats = ConsumeStats({QUEUE: OffsetWrapper(9, 4)}, 1.5)
        async with administering({105: Response(), 208: stats}) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            assert await admin.progress("g") == stats
            asked = [request.ext.get("topic") for request in answers.asked]
            assert asked == [retry_topic("g"), None, "T"]

    run(scene)


@pytest.mark.parametrize(
    ("consumers", "code"),
    [
        (ConsumerConnection(), ResponseCode.CONSUMER_NOT_ONLINE),
        (
            ConsumerConnection([ClientConnection("id", "1:2")], message_model="BROADCASTING"),
            ResponseCode.BROADCAST_CONSUMPTION,
        ),
    ],
)
def test_a_group_without_progress_is_offline_or_broadcasts(consumers: ConsumerConnection, code: int) -> None:
    async def scene() -> None:
        replies = {105: Response(), 208: NOTHING, 203: consumers}
        async with administering(replies) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            with pytest.raises((NotFound, ConsumeFailed), match="group 'g'") as refusal:
                await admin.progress("g")
            assert refusal.value.code == code

    run(scene)


def test_a_group_that_only_has_consumers_has_no_progress() -> None:
    async def scene() -> None:
        consumers = ConsumerConnection([ClientConnection("id", "1:2")], message_model="CLUSTERING")
        replies = {105: Response(), 208: NOTHING, 203: consumers}
        async with administering(replies) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            assert await admin.progress("g") == NOTHING

    run(scene)


def test_a_topic_without_route_is_named() -> None:
    async def scene() -> None:
        refusal = Response(ResponseCode.TOPIC_NOT_EXIST, "nothing here")
        async with administering({105: refusal}) as (admin, _):
            with pytest.raises(TopicNotFound, match="topic 'T' has no route"):
                await admin.topic_stats("T")

    run(scene)


@pytest.mark.parametrize(("force", "after"), [(True, 7), (False, 4)])
def test_an_offline_reset_commits_offsets(force: bool, after: int) -> None:
    async def scene() -> None:
        replies = {
            105: Response(),
            208: ConsumeStats({QUEUE: OffsetWrapper(9, 4)}),
            Code.SEARCH_OFFSET_BY_TIMESTAMP: Response(fields={"offset": 7}),
            Code.UPDATE_CONSUMER_OFFSET: Response(),
        }
        async with administering(replies) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            [reset] = await admin.reset_offline("g", "T", 1000, force=force)
            assert reset == Reset("a", 0, 9, 4, 7, after)
            committed = [one for one in answers.asked if one.code == Code.UPDATE_CONSUMER_OFFSET]
            offsets = [fields_of(one, UpdateConsumerOffset).commit_offset for one in committed]
            assert offsets == [7] * force

    run(scene)


def test_a_group_that_never_consumed_is_reset_from_the_first_message() -> None:
    async def scene() -> None:
        replies = {
            105: Response(),
            202: TopicStats({QUEUE: TopicOffset(2, 9)}),
            208: NOTHING,
            Code.GET_MAX_OFFSET: Response(fields={"offset": 9}),
            Code.UPDATE_CONSUMER_OFFSET: Response(),
        }
        async with administering(replies) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            [reset] = await admin.reset_offline("g", "T", -1)
            assert reset == Reset("a", 0, 9, 2, 9, 9)

    run(scene)


def test_a_reset_gives_the_offsets_of_all_brokers() -> None:
    async def scene() -> None:
        places = {QUEUE: 3}
        async with administering({105: Response(), 222: ResetOffsets(places)}) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            assert await admin.reset("g", "T", 1000) == places
            assert answers.asked[-1].ext["isForce"] == "true"

    run(scene)


def test_an_order_of_one_broker_leaves_the_others() -> None:
    async def scene() -> None:
        replies = {100: Response(), 101: Response(fields={"value": "a:4;b:4"})}
        async with administering(replies) as (admin, answers):
            await admin.put_order("T", "a:8", whole=False)
            assert answers.asked[-1].ext["value"] == "a:8;b:4"
            answers.replies[101] = Response(ResponseCode.QUERY_NOT_FOUND, "none")
            await admin.put_order("T", "a:8", whole=False)
            assert answers.asked[-1].ext["value"] == "a:8"

    run(scene)
