"""Scenarios of lite topics, for the official clients of RocketMQ 5 that know them.

Those are the clients for Java (5.2.0), Python (5.1.2) and Node.js (1.0.8), but not for Go (5.1.3) and Rust (5.0.0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pytest
from msgspec.structs import replace

from firearrow.client.admin import Admin
from tests.interop.driver import Driver, JavaError
from tests.interop.grpcclient import ARRIVAL_SECONDS, Got, GrpcClients, Outgoing
from tests.interop.grpcscenarios import OfOneClient, create, stored, topic_of
from tests.interop.grpcservers import SETTINGS
from tests.interop.servers import Server, serve
from tests.interop.waiting import wait_until

ILLEGAL_LITE_TOPIC: Final = 40020
LITE_TOPIC_QUOTA_EXCEEDED: Final = 42901
LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Final = 42902
QUOTA: Final = 2
LIMITED: Final[Mapping[str, str]] = {
    **SETTINGS,
    "enableLmqQuota": "true",
    "maxLmqConsumeQueueNum": str(QUOTA),
    "maxLiteSubscriptionCount": str(QUOTA),
}
"""Keys of a broker that has few lite topics, and few subscriptions to them."""


def lite(topic: str, name: str, *bodies: bytes, failures: int = 0) -> list[Outgoing]:
    """Messages for a lite topic; their consumer refuses each so many times."""
    properties = {"failures": str(failures)} if failures else {}
    return [Outgoing(topic=topic, lite=name, body=body, properties=properties, tag="T") for body in bodies]


def by_lite_topic(messages: Sequence[Got]) -> dict[str, list[bytes]]:
    """Bodies of messages, by their lite topics; clients have several threads that consume them."""
    found: dict[str, list[bytes]] = {}
    for it in sorted(messages, key=lambda it: it.body):
        found.setdefault(it.lite, []).append(it.body)
    return found


def count_of_lites(server: Server) -> int:
    """Count of a broker's lite topics."""

    async def found() -> int:
        async with Admin.of([server.namesrv]) as admin:
            return (await admin.lite.broker(server.broker)).current_lmq_num

    return asyncio.run(found())


def consumed(server: Server, group: str, name: str) -> int:
    """Count of a lite topic's messages that a group has consumed."""

    async def found() -> int:
        async with Admin.of([server.namesrv]) as admin:
            place = (await admin.lite.group(server.broker, group, name)).lite_topic_offset_wrapper
            return 0 if place is None else place.consumer_offset

    return asyncio.run(found())


class LiteScenarios(OfOneClient):
    """The scenarios of all these clients."""

    hears_of_losses: ClassVar[bool] = True
    """The client heeds the notice that a lite topic has another client now."""
    code_of_own_quota: ClassVar[int] = LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    """Code in the client's error if it sees by itself that its subscriptions are too many."""

    @pytest.fixture
    def limited_server(self, tmp_path: Path) -> Iterator[Server]:
        """A server with quotas."""
        with serve("firearrow", tmp_path / "store", tmp_path / "logs", settings=LIMITED) as server:
            yield server

    def create_lites(self, server: Server, topic: str, group: str, *, attempts: int = 17, **attributes: str) -> None:
        """Create the parent of lite topics, and a group for it with attributes."""
        named = {f"+{key.replace('_', '.')}": text for key, text in attributes.items()}
        config = self.group_of(group, attempts=attempts)
        create(server, [topic_of(topic, "LITE")], [replace(config, attributes={"+lite.bind.topic": topic, **named})])

    def test_lite_topics_go_to_their_subscribers(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group)
        producer = clients.producer(topic)
        producer.send([*lite(topic, "a", b"a0", b"a1"), *lite(topic, "c", b"c0")])  # before anybody subscribes
        first = clients.lite_push(group, topic)
        first.subscribe("a", "b")
        producer.send([*lite(topic, "b", b"b0"), *lite(topic, "a", b"a2"), *lite(topic, "c", b"c1")])
        got = first.wait_for(4)
        assert by_lite_topic(got) == {"a": [b"a0", b"a1", b"a2"], "b": [b"b0"]}
        assert {(it.topic, it.tag, it.attempt, it.corrupted) for it in got} == {(topic, "T", 1, False)}
        first.unsubscribe("b")
        producer.send(lite(topic, "a", b"a3"))
        first.wait_for(5)  # RocketMQ's broker may have noted "b" for one more pop
        producer.send([*lite(topic, "b", b"b1"), *lite(topic, "a", b"a4")])
        first.wait_for(6)
        second = clients.lite_push(group, topic)
        second.subscribe("b", "c")
        assert by_lite_topic(second.wait_for(3)) == {"b": [b"b1"], "c": [b"c0", b"c1"]}
        producer.send([*lite(topic, "c", b"c2"), *lite(topic, "a", b"a5")])
        second.wait_for(4)
        assert by_lite_topic(first.wait_for(7)) == {"a": [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"], "b": [b"b0"]}
        assert by_lite_topic(second.received()) == {"b": [b"b1"], "c": [b"c0", b"c1", b"c2"]}

    def test_an_exclusive_lite_topic_has_one_client(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group, lite_sub_model="Exclusive")
        producer = clients.producer(topic)
        first, second = clients.lite_push(group, topic), clients.lite_push(group, topic)
        first.subscribe("a", "b")
        producer.send([*lite(topic, "a", b"a0"), *lite(topic, "b", b"b0")])
        first.wait_for(2)
        second.subscribe("a")
        if self.hears_of_losses:
            wait_until(lambda: first.subscribed() == {"b"}, ARRIVAL_SECONDS, "loss")
        producer.send([*lite(topic, "a", b"a1", b"a2"), *lite(topic, "b", b"b1")])
        assert by_lite_topic(second.wait_for(2)) == {"a": [b"a1", b"a2"]}
        assert by_lite_topic(first.wait_for(3)) == {"a": [b"a0"], "b": [b"b0", b"b1"]}

    def test_lite_topics_have_quotas(self, program: Driver, limited_server: Server, topic: str, group: str) -> None:
        """The broker limits lite topics and all subscriptions, a group those of a client."""
        self.create_lites(limited_server, topic, group)
        self.create_lites(limited_server, topic, f"{group}_of_one", lite_sub_client_quota="1")
        clients = GrpcClients(program, limited_server.grpc)
        producer = clients.producer(topic)
        producer.send([*lite(topic, "a", b"a0"), *lite(topic, "b", b"b0")])
        wait_until(lambda: count_of_lites(limited_server) == QUOTA, ARRIVAL_SECONDS, "lite topics")
        with pytest.raises(JavaError) as caught:
            producer.send(lite(topic, "c", b"c0"))
        assert caught.value.code == LITE_TOPIC_QUOTA_EXCEEDED
        producer.send(lite(topic, "a", b"a1"))
        small = clients.lite_push(f"{group}_of_one", topic)
        small.subscribe("a")
        with pytest.raises(JavaError) as caught:
            small.subscribe("b")
        assert caught.value.code == self.code_of_own_quota
        large = clients.lite_push(group, topic)
        with pytest.raises(JavaError) as caught:
            large.subscribe("no name")
        assert caught.value.code == ILLEGAL_LITE_TOPIC
        large.subscribe("a")
        with pytest.raises(JavaError) as caught:
            large.subscribe("b")
        assert caught.value.code == LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        small.unsubscribe("a")
        large.subscribe("b")
        assert by_lite_topic(large.wait_for(3)) == {"a": [b"a0", b"a1"], "b": [b"b0"]}
        clients.close()

    def test_failed_messages_of_lite_topics_come_again_or_are_dead_letters(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group, attempts=3)
        consumer, producer = clients.lite_push(group, topic), clients.producer(topic)
        consumer.subscribe("a", "b", "c")
        twice, always = lite(topic, "a", b"twice", failures=2), lite(topic, "b", b"always", failures=9)
        _, lost, _ = producer.send([*twice, *always, *lite(topic, "c", b"never")])
        dead = f"%DLQ%{group}"
        wait_until(lambda: stored(grpc_server, dead, lost.id), ARRIVAL_SECONDS, "dead letter")
        # RocketMQ's broker has put the dead letter into its lite topic, too.
        lites = ["a"] if grpc_server.kind == "real" else ["a", "b"]
        producer.send([one for name in lites for one in lite(topic, name, b"after")])

        def after() -> list[Got] | None:
            got = consumer.received()
            return got if sum(it.body == b"after" for it in got) == len(lites) else None

        got = wait_until(after, ARRIVAL_SECONDS, "next messages")
        attempts = {(it.lite, it.body): [its.attempt for its in got if its.id == it.id] for it in got}
        if grpc_server.kind == "real":
            del attempts["b", b"always"][3:]
        assert attempts == {
            ("a", b"twice"): [1, 2, 3],
            ("b", b"always"): [1, 2, 3],
            ("c", b"never"): [1],
            **{(name, b"after"): [1] for name in lites},
        }
        [letter] = stored(grpc_server, dead, lost.id)
        assert (letter.body, letter.properties["TAGS"]) == (b"always", "T")


class OffsetScenarios(LiteScenarios):
    """Those of a client that can say where its subscription begins."""

    def test_a_lite_subscription_begins_where_it_says(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group)
        consumer, producer = clients.lite_push(group, topic), clients.producer(topic)
        producer.send(lite(topic, "a", b"0", b"1", b"2", b"3"))
        consumer.subscribe("a")
        consumer.wait_for(4)
        wait_until(lambda: consumed(grpc_server, group, "a") == 4, ARRIVAL_SECONDS, "acknowledgements")
        consumer.unsubscribe("a")
        consumer.subscribe("a", again=2)
        assert sorted(it.body for it in consumer.wait_for(6)[4:]) == [b"2", b"3"]


class WildcardScenarios(LiteScenarios):
    """Those of a client that subscribes to all lite topics at once, not half a minute later, if its group allows it."""

    def test_a_group_with_a_wildcard_has_all_lite_topics(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        self.create_lites(grpc_server, topic, group, lite_sub_wildcard="true")
        consumer, producer = clients.lite_push(group, topic), clients.producer(topic)
        producer.send(lite(topic, "a", b"a0"))
        consumer.subscribe_to_all()
        consumer.wait_for(1)
        producer.send([*lite(topic, "a", b"a1"), *lite(topic, "b", b"b0")])
        assert by_lite_topic(consumer.wait_for(3)) == {"a": [b"a0", b"a1"], "b": [b"b0"]}
