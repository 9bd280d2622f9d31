"""Session: fresh routes, heartbeats, requests of brokers, and a clean end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.queues import Queue
from firearrow.client.routing.queues import publish_queues, subscribe_queues
from firearrow.client.session.session import Session
from firearrow.errors import ClientError, ConfigError, TopicNotFound
from firearrow.net.client import ServerRequest
from firearrow.wire import fastjson
from firearrow.wire.bodies import Route
from firearrow.wire.client_bodies import CLUSTERING, ConsumerData, Heartbeat, SubscriptionData
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.command import request as command
from firearrow.wire.frame import AnyCommand
from tests.broker.serving import seconds, until
from tests.client.cluster import Cluster, clustered


class Member:
    """A consumer, as a session sees one."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.topics = ["T"]

    def consumer_data(self) -> ConsumerData:
        every = [SubscriptionData(topic, "*") for topic in self.topics]
        return ConsumerData(self.group, "CONSUME_PASSIVELY", CLUSTERING, "CONSUME_FROM_FIRST_OFFSET", every)


async def create_topic(session: Session, cluster: Cluster, topic: str = "T") -> Route:
    """Make a topic with two queues on each broker, which the name server knows at once."""
    for served in cluster.brokers.values():
        fields: dict[str, Any] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        await session.client.call(f"127.0.0.1:{served.port}", 17, fields)
    await asyncio.sleep(1)
    return await session.refresh(topic)


async def members(session: Session, cluster: Cluster, broker: str, group: str) -> list[str]:
    address = f"127.0.0.1:{cluster.brokers[broker].port}"
    answer = await session.client.answer(address, 38, {"consumerGroup": group})
    found: list[str] = json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


def test_a_route_is_asked_for_once_and_kept_up_to_date(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            heard: list[str] = []
            end = session.on_route(lambda topic, route: heard.append(topic))
            route = await create_topic(session, cluster)
            assert publish_queues("T", route) == [
                Queue("T", broker, number) for broker in ("a", "b") for number in (0, 1)
            ]
            assert subscribe_queues("T", route) == publish_queues("T", route)
            assert await session.route("T") is route
            await asyncio.sleep(100)
            assert heard == ["T"]
            assert await session.route("T") == route
            await cluster.stop_broker("b")
            await asyncio.sleep(40)
            assert heard == ["T", "T"]
            assert {it.broker for it in publish_queues("T", await session.route("T"))} == {"a"}
            end()

    clustered(tmp_path, main, ("a", "b"))


def test_a_topic_that_no_broker_has(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            with pytest.raises(TopicNotFound, match="topic 'none' has no route: no broker has registered it"):
                await session.route("none")

    clustered(tmp_path, main)


def test_brokers_know_who_is_here_until_it_leaves(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, cluster.session() as other:
            await create_topic(session, cluster)
            member = Member("g")
            session.add_consumer(member)
            await session.heartbeat()
            for broker in ("a", "b"):
                assert await members(other, cluster, broker, "g") == [session.client_id]
            await asyncio.sleep(600)
            assert await members(other, cluster, "a", "g") == [session.client_id]
            await session.remove_consumer(Member("g"))  # it is another one's
            assert await members(other, cluster, "a", "g") == [session.client_id]
            await session.remove_consumer(member)
            assert await members(other, cluster, "a", "g") == []

    clustered(tmp_path, main, ("a", "b"))


def test_a_broker_that_comes_back_hears_of_the_session_on_the_new_connection(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session(heartbeat_seconds=20) as session:
            await create_topic(session, cluster)
            session.add_consumer(Member("g"))
            connected: list[str] = []
            session.on_connected(connected.append)
            await session.heartbeat()
            port = await cluster.stop_broker("a")
            await cluster.start_broker("a", port)
            connected.clear()
            await session.call("a", 30, {"topic": "T", "queueId": 0})
            await until(lambda: connected == [f"127.0.0.1:{port}"])
            assert await members(session, cluster, "a", "g") == [session.client_id]

    clustered(tmp_path, main)


def test_heartbeats_of_version_2_say_again_only_what_has_changed(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session(heartbeat_v2=True, heartbeat_seconds=20) as session, cluster.session() as other:
            await create_topic(session, cluster)
            member = Member("g")
            session.add_consumer(member)
            beats: list[Heartbeat] = []
            call = session.client.call

            async def noted(address: str, code: int, *fields: Any, **more: Any) -> AnyCommand:
                if code == RequestCode.HEART_BEAT:
                    beats.append(fastjson.decode(more["body"], Heartbeat))
                return await call(address, code, *fields, **more)

            session.client.call = noted  # type: ignore[method-assign]
            await session.heartbeat()
            await session.heartbeat()
            assert [(it.without_sub, len(it.consumer_data_set)) for it in beats] == [
                (False, 1), (True, 1),
            ]  # fmt: skip
            first, second = beats
            assert second.consumer_data_set[0].subscription_data_set == []
            assert first.heartbeat_fingerprint == second.heartbeat_fingerprint != 0
            assert await members(other, cluster, "a", "g") == [session.client_id]
            subscribed = cluster.brokers["a"].broker.clients.consumer_group("g")
            assert subscribed is not None
            assert set(subscribed.subscriptions) == {"T"}
            member.topics = ["T", "U"]
            await session.heartbeat()
            assert not beats[-1].without_sub
            assert set(subscribed.subscriptions) == {"T", "U"}
            await session.heartbeat()
            assert beats[-1].without_sub
            # A broker that forgot all hears all: the connection is another.
            port = await cluster.stop_broker("a")
            await cluster.start_broker("a", port)
            await session.call("a", 30, {"topic": "T", "queueId": 0})
            await asyncio.sleep(1)
            assert not beats[-1].without_sub
            assert await members(other, cluster, "a", "g") == [session.client_id]

    clustered(tmp_path, main)


def test_what_a_broker_asks_goes_to_the_handler_of_the_group(tmp_path: Path) -> None:
    asked: list[str] = []

    async def later(question: ServerRequest) -> Response:
        await asyncio.sleep(1)
        asked.append(question.command.ext["consumerGroup"])
        return Response(fields={"from": question.address})

    async def main(cluster: Cluster) -> None:
        served = cluster.brokers["a"]
        async with cluster.session() as session:
            await create_topic(session, cluster)
            session.on(307, later, "g")
            session.add_consumer(Member("g"))
            await session.heartbeat()
            group = served.broker.clients.consumer_group("g")
            assert group is not None
            member = group.member(session.client_id)
            assert member is not None
            channel = member.channel
            answer = await channel.call(command(307, {"consumerGroup": "g"}), 10)
            assert answer.ext == {"from": f"127.0.0.1:{served.port}"}
            assert asked == ["g"]
            refused = await channel.call(command(307, {"consumerGroup": "h"}), 10)
            assert (refused.code, refused.remark) == (1, "group 'h' of this client does not answer 307")
            assert seconds() >= 1

    clustered(tmp_path, main)


def test_names_get_the_namespace_and_lose_it_again(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        session = cluster.session(namespace="ns")
        assert session.topic("T") == "ns%T"
        assert session.group("g") == "ns%g"
        assert session.bare("%RETRY%ns%g") == "%RETRY%g"
        for bad in ("", "a b", "DEFAULT_PRODUCER"):
            with pytest.raises(ConfigError, match="group"):
                session.group(bad)

    clustered(tmp_path, main)


def test_a_group_is_in_a_session_once(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            session.add_producer("p")
            session.add_consumer(Member("g"))
            with pytest.raises(ConfigError, match="producer of group 'p' already"):
                session.add_producer("p")
            with pytest.raises(ConfigError, match="consumer of group 'g' already"):
                session.add_consumer(Member("g"))
        with pytest.raises(ClientError, match="the session can't be started: it is closed"):
            await session.start()

    clustered(tmp_path, main)


def test_the_environment_names_the_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1;127.0.0.1:2")
    assert sorted(Session(ip="127.0.0.1").name_servers.addresses) == ["127.0.0.1:1", "127.0.0.1:2"]
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigError, match="no name servers"):
        Session()
