"""Scenarios that every official client of RocketMQ 5 goes through, each with its program.

A module of tests has a subclass of `AllScenarios` or `Scenarios` for its language, and a fixture ``program``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from firearrow.client import Message, blocking
from firearrow.client.admin import Admin
from firearrow.message.compress import Compression
from firearrow.message.model import MessageView
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from firearrow.wire.signature import Credentials
from tests.interop.driver import Driver, JavaError
from tests.interop.grpcclient import ARRIVAL_SECONDS, Got, GrpcClients, Outgoing
from tests.interop.grpcservers import APP, FOREIGN_TOPIC, OWN_GROUP, OWN_TOPIC, READ_TOPIC, SETTINGS
from tests.interop.servers import Server, free_port, serve
from tests.interop.waiting import wait_until

LATE_MS_MAX: Final = 6000  # of a busy machine
UNAUTHORIZED: Final = 40100
INVALID_RECEIPT_HANDLE: Final = 40013
NOT_FOUND: Final = 40402
PROPERTY: Final = "地区"


def create(server: Server, topics: Sequence[TopicConfig], groups: Sequence[SubscriptionGroupConfig] = ()) -> None:
    """Create topics and groups."""

    async def creating() -> None:
        async with Admin.of([server.namesrv]) as admin:
            await admin.topics.create_all(server.broker, topics)
            if groups:
                await admin.groups.create_all(server.broker, groups)

    asyncio.run(creating())


def topic_of(name: str, kind: str = "NORMAL", queues: int = 4) -> TopicConfig:
    """Topic of a message type."""
    return TopicConfig(name, queues, queues, attributes={"+message.type": kind})


def stored(server: Server, topic: str, message_id: str) -> list[MessageView]:
    """Messages of a topic with an id."""

    async def found() -> list[MessageView]:
        async with Admin.of([server.namesrv]) as admin:
            return await admin.messages.find(server.broker, topic, message_id, by="U")

    return asyncio.run(found())


def content(message: Got | Outgoing) -> tuple[object, ...]:
    """Everything that the sender has put into a message."""
    return message.body, message.tag, sorted(message.keys), message.properties, message.group


def now_ms() -> int:
    """Time of the test."""
    return time.time_ns() // 1_000_000


def in_seconds(seconds: int) -> int:
    """Return a whole second that is at least so far away: some clients know no milliseconds."""
    return (now_ms() // 1000 + 1 + seconds) * 1000


def _received(consumer: blocking.SimpleConsumer, count: int, invisible: timedelta) -> list[Message]:
    """Messages that a remoting client receives, as soon as there are ``count``."""
    got: list[Message] = []

    def enough() -> bool:
        got.extend(consumer.receive(count - len(got), invisible))
        return len(got) == count

    wait_until(enough, ARRIVAL_SECONDS, f"{count} messages")
    return got


class OfOneClient:
    """The base of scenarios; ``name`` is that of the test with its language."""

    retry_policy: ClassVar[dict[str, Any]] = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000]}}
    """Times between deliveries, in the form that the client honours."""

    @pytest.fixture
    def clients(self, program: Driver, grpc_server: Server) -> Iterator[GrpcClients]:
        """The client on the server under test."""
        clients = GrpcClients(program, grpc_server.grpc)
        yield clients
        clients.close()

    @pytest.fixture
    def topic(self, name: str) -> str:
        """Name of the topic of a test."""
        return f"{type(self).__name__}_{name}"

    @pytest.fixture
    def group(self, topic: str) -> str:
        """Name of the group of a test."""
        return f"{topic}_group"

    def group_of(self, name: str, *, attempts: int = 17, ordered: bool = False) -> SubscriptionGroupConfig:
        """Group whose messages are delivered again after a second."""
        return SubscriptionGroupConfig(
            name, consume_message_orderly=ordered, retry_max_times=attempts - 1, group_retry_policy=self.retry_policy
        )


class Scenarios(OfOneClient):
    """The scenarios."""

    recalls: ClassVar[bool] = True
    """The client has a call to recall a message."""
    changes_invisible_times: ClassVar[bool] = True
    """The client has a call to change the invisible time of a message."""
    waits_in_order: ClassVar[bool] = True
    """The client consumes no other message of a message group until a failed one is consumed."""
    reports_route_codes: ClassVar[bool] = True
    """The client's error has the proxy's code if a route is refused."""
    code_of_refused_settings: ClassVar[int | None] = UNAUTHORIZED
    """Code in the client's error if its settings are refused; None if it waits for ever then."""

    def test_messages_arrive_whole(self, clients: GrpcClients, grpc_server: Server, topic: str, group: str) -> None:
        create(grpc_server, [topic_of(topic)])
        messages = [
            Outgoing(
                topic=topic,
                body=f"内容 {i} ".encode() * (1 + i) + bytes(range(256)),
                tag="TagA" if i % 3 else "TagB",
                keys=[f"order-{i}", "batch"],
                properties={PROPERTY: f"杭州{i}", "n": str(i)},
            )
            for i in range(12)
        ]
        messages.append(Outgoing(topic=topic, body=bytes(range(256)) * 8192))  # no tag, no key, two MiB
        all_of_it = clients.push(group, topic)
        one_tag = clients.simple(f"{group}_tag", {topic: "TagB"})
        sent = clients.producer(topic).send(messages)
        got = all_of_it.wait_for(13)
        assert {it.id: content(it) for it in got} == {
            receipt.id: content(it) for receipt, it in zip(sent, messages, strict=True)
        }
        assert {(it.topic, it.attempt, it.corrupted) for it in got} == {(topic, 1, False)}
        chosen = one_tag.wait_for(4)
        assert sorted(it.properties["n"] for it in chosen) == ["0", "3", "6", "9"]
        for it in chosen:
            one_tag.ack(it)
        assert one_tag.receive() == []

    def test_message_groups_keep_their_order(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic, "FIFO")], [self.group_of(group, ordered=True)])
        consumer = clients.push(group, topic)
        fails = {"failures": "1"} if self.waits_in_order else {}
        clients.producer(topic).send(
            [
                Outgoing(topic=topic, body=b"%d" % i, group=one, properties=fails if i == 2 else {})
                for i in range(6)
                for one in ("red", "green", "blue")
            ]
        )
        bodies = [b"0", b"1", b"2", *([b"2"] if fails else []), b"3", b"4", b"5"]
        by_group = defaultdict(list)
        for it in consumer.wait_for(3 * len(bodies)):
            by_group[it.group].append(it.body)
        assert by_group.keys() == {"red", "green", "blue"}
        assert [*by_group.values()] == 3 * [bodies]

    def test_delayed_messages_arrive_in_time_or_are_recalled(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic, "DELAY")])
        consumer, producer = clients.push(group, topic), clients.producer(topic)
        times = {body: in_seconds(seconds) for body, seconds in ((b"late", 3), (b"recalled", 2), (b"early", 1))}
        sent = producer.send([Outgoing(topic=topic, body=body, deliver_ms=at) for body, at in times.items()])
        if self.recalls:
            assert producer.recall(topic, sent[1].recall) == sent[1].id
            del times[b"recalled"]
        got = consumer.wait_for(len(times))
        assert [it.body for it in got] == sorted(times, key=times.__getitem__)
        for it in got:
            assert 0 <= it.received_ms - times[it.body] < LATE_MS_MAX

    def test_transactions_are_decided(self, clients: GrpcClients, grpc_server: Server, topic: str, group: str) -> None:
        create(grpc_server, [topic_of(topic, "TRANSACTION")])
        consumer, producer = clients.push(group, topic), clients.producer(topic)

        def half(body: bytes, check: str) -> Outgoing:
            return Outgoing(topic=topic, body=body, properties={"check": check}, tag="T", keys=["k"])

        producer.transact(half(b"committed", "ROLLBACK"), "COMMIT")
        producer.transact(half(b"rolled back", "COMMIT"), "ROLLBACK")
        undecided = [producer.transact(half(check.encode(), check)).id for check in ("ROLLBACK", "COMMIT")]
        wait_until(lambda: set(producer.checked()) >= set(undecided), ARRIVAL_SECONDS, "checks")
        got = consumer.wait_for(2)
        assert sorted(it.body for it in got) == [b"COMMIT", b"committed"]
        assert {(it.topic, it.tag, *it.keys) for it in got} == {(topic, "T", "k")}
        assert set(producer.checked()) == set(undecided)

    def test_failed_messages_are_redelivered_or_dead_letters(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic)], [self.group_of(group, attempts=3)])
        consumer = clients.push(group, topic)
        messages = [
            Outgoing(topic=topic, body=body, properties={"failures": failures}, tag="T")
            for body, failures in ((b"twice", "2"), (b"always", "9"))
        ]
        sent = clients.producer(topic).send(messages)
        dead = f"%DLQ%{group}"
        wait_until(lambda: stored(grpc_server, dead, sent[1].id), ARRIVAL_SECONDS, "dead letter")
        attempts = defaultdict(list)
        for it in consumer.received():
            attempts[it.body].append(it.attempt)
        assert attempts == {b"twice": [1, 2, 3], b"always": [1, 2, 3]}
        [letter] = stored(grpc_server, dead, sent[1].id)
        assert (letter.body, letter.properties["TAGS"]) == (b"always", "T")
        assert stored(grpc_server, dead, sent[0].id) == []

    def test_invisible_times_end_or_change(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic)], [self.group_of(group)])
        consumer = clients.simple(group, topic)
        clients.producer(topic).send([Outgoing(topic=topic, body=body) for body in (b"changed", b"taken")])
        invisible_ms = 30_000 if self.changes_invisible_times else 2000
        by_body = {it.body: it for it in consumer.wait_for(2, invisible_ms)}
        if self.changes_invisible_times:
            consumer.change(by_body[b"changed"], 2000)
        consumer.ack(by_body[b"taken"])
        [again] = consumer.wait_for(1, invisible_ms=1000)
        assert (again.body, again.attempt) == (b"changed", 2)
        assert again.received_ms - by_body[b"changed"].received_ms >= 1900
        time.sleep(max(0, again.received_ms + 1100 - now_ms()) / 1000)  # until its invisible time is over
        too_late = partial(consumer.change, invisible_ms=10_000) if self.changes_invisible_times else consumer.ack
        with pytest.raises(JavaError) as caught:
            too_late(again)
        assert caught.value.code == INVALID_RECEIPT_HANDLE
        [last] = consumer.wait_for(1)
        assert (last.body, last.attempt) == (b"changed", 3)
        consumer.ack(last)

    def test_users_do_what_they_may(self, program: Driver, guarded_grpc_server: Server, topic: str) -> None:
        app = GrpcClients(program, guarded_grpc_server.grpc, user=APP)
        body = topic.encode()
        consumer = app.push(f"{OWN_GROUP}{type(self).__name__}", OWN_TOPIC)
        app.producer(OWN_TOPIC).send([Outgoing(topic=OWN_TOPIC, body=body)])
        wait_until(lambda: body in [it.body for it in consumer.received()], ARRIVAL_SECONDS, "message")
        app.close()

        def refusal(user: Credentials, of: str) -> JavaError:
            clients = GrpcClients(program, guarded_grpc_server.grpc, user=user)
            with pytest.raises(JavaError) as caught:
                clients.producer(of).send([Outgoing(topic=of, body=b"refused")])
            clients.close()
            return caught.value

        for user, of in (
            (APP, FOREIGN_TOPIC),
            (Credentials(APP.access_key, "wrong"), OWN_TOPIC),
            (Credentials("nobody", "guessed"), OWN_TOPIC),
        ):
            assert refusal(user, of).code == (UNAUTHORIZED if self.reports_route_codes else 0)
        if self.code_of_refused_settings is not None:  # its route is known to the user, who may consume
            assert refusal(APP, READ_TOPIC).code == self.code_of_refused_settings

    def test_a_topic_that_does_not_exist(self, clients: GrpcClients, topic: str) -> None:
        with pytest.raises(JavaError) as caught:
            clients.producer(topic).send([Outgoing(topic=topic, body=b"x")])
        assert caught.value.code == (NOT_FOUND if self.reports_route_codes else 0)

    # --- beside clients that speak remoting ---

    def test_a_remoting_client_in_the_same_group(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic, queues=1)])
        ours = clients.simple(group, topic)
        with (
            blocking.SimpleConsumer(grpc_server.namesrv, group=group, topics=[topic]) as theirs,
            blocking.Producer(grpc_server.namesrv, group=f"{group}_sending") as remoting,
        ):
            clients.producer(topic).send(
                [Outgoing(topic=topic, body=b"%d" % i, tag="T", keys=["a", "b"]) for i in range(5)]
            )
            for i in range(5, 10):
                remoting.send(topic, b"%d" % i, tag="T", key="a", properties={PROPERTY: "杭州"})
            first = _received(theirs, 4, timedelta(seconds=1))
            for message in first[1:]:
                theirs.ack(message)
            others = ours.wait_for(6)
            for it in others:
                ours.ack(it)
            [again] = ours.wait_for(1)
            assert (again.body, again.attempt) == (first[0].body, 2)
            ours.ack(again)
        assert {(message.tag, frozenset(message.keys)) for message in first} == {("T", frozenset(("a", "b")))}
        assert Counter([*(message.body for message in first), *(it.body for it in others)]) == Counter(
            b"%d" % i for i in range(10)
        )
        assert {(it.tag, it.properties.get(PROPERTY)) for it in others if it.body >= b"5"} == {("T", "杭州")}

    def test_bodies_that_a_remoting_producer_has_compressed(
        self, clients: GrpcClients, grpc_server: Server, topic: str, group: str
    ) -> None:
        create(grpc_server, [topic_of(topic)])
        consumer = clients.push(group, topic)
        body = "压缩 ".encode() * 4000
        for kind in Compression:
            with blocking.Producer(grpc_server.namesrv, group=f"{group}_sending", compression=kind) as remoting:
                remoting.send(topic, body, tag=kind.name)
        got = {it.tag: (it.body, it.corrupted) for it in consumer.wait_for(3)}
        assert got == dict.fromkeys(("LZ4", "ZSTD", "ZLIB"), (body, False))

    def test_the_client_goes_on_after_a_restart(self, program: Driver, tmp_path: Path, topic: str, group: str) -> None:
        where = tmp_path / "store", tmp_path / "logs"
        grpc = free_port(0)
        settings = {**SETTINGS, "grpcServerPort": str(grpc)}
        with serve("firearrow", *where, settings=settings) as server:
            create(server, [topic_of(topic)])
            clients = GrpcClients(program, server.grpc)
            consumer, producer = clients.push(group, topic), clients.producer(topic)
            producer.send([Outgoing(topic=topic, body=b"before")])
            consumer.wait_for(1)
        with serve("firearrow", *where, broker_port=server.broker_port, settings=settings):

            def again() -> bool:
                try:
                    producer.send([Outgoing(topic=topic, body=b"after")])
                except JavaError:
                    return False
                return True

            wait_until(again, 2 * ARRIVAL_SECONDS, "send")
            got = consumer.wait_for(2, 2 * ARRIVAL_SECONDS)
            assert {it.body for it in got} == {b"before", b"after"}
            clients.close()


class AllScenarios(Scenarios):
    """All scenarios, also that which not every client bears: its server has a certificate made by a test."""

    def test_the_client_encrypts(self, program: Driver, grpc_server: Server, topic: str, group: str) -> None:
        create(grpc_server, [topic_of(topic)])
        clients = GrpcClients(program, grpc_server.grpc, tls=True)
        consumer = clients.push(group, topic)
        [sent] = clients.producer(topic).send([Outgoing(topic=topic, body=b"secret")])
        assert [(it.id, it.body) for it in consumer.wait_for(1)] == [(sent.id, b"secret")]
        clients.close()


class TrustingScenarios:
    """Scenarios of a client that encrypts by default, and trusts any certificate."""

    def test_the_client_encrypts_at_a_server_without_a_certificate(
        self, program: Driver, guarded_grpc_server: Server
    ) -> None:
        clients = GrpcClients(program, guarded_grpc_server.grpc, user=APP, tls=True)
        [sent] = clients.producer(OWN_TOPIC).send([Outgoing(topic=OWN_TOPIC, body=b"secret")])
        assert sent.id
        clients.close()
