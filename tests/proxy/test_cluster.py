"""A proxy in cluster mode, in front of two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from firearrow.client.admin.calls import Calls
from firearrow.client.admin.groups import Groups
from firearrow.errors import NotFound
from firearrow.message.ids import encode_offset_id
from firearrow.proxy import messages as m
from firearrow.proxy.cluster import ClusterBrokers
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerConnection, ConsumerRunningInfo
from firearrow.wire.codes import RequestCode
from tests.proxy.clusterproxy import asked, proxy_of
from tests.proxy.proxyclient import SECONDS_MAX, ProxyClient
from tests.proxy.rpcs import receive_request

TOPIC, GROUP = "T", "G"
BROKERS = {"broker-a", "broker-b"}
QUICK = {"grpcClientConsumerMinLongPollingTimeoutMillis": 1, "topicRouteServiceCacheRefreshSeconds": 1}


class Stage(NamedTuple):
    cluster: BlockingCluster
    proxy: str


@pytest.fixture
def stage() -> Iterator[Stage]:
    with EmbeddedCluster(brokers=2, transactionCheckInterval=100, transactionTimeOut=100) as cluster:
        cluster.create_topic(TOPIC, queues=2)
        with proxy_of(cluster.name_server, **QUICK) as proxy:
            yield Stage(cluster, proxy)


def route_of(client: ProxyClient, topic: str) -> m.QueryRouteResponse:
    host, _, port = "proxy.example:18081".rpartition(":")
    endpoints = m.Endpoints(scheme=m.AddressScheme.DOMAIN_NAME, addresses=[m.Address(host=host, port=int(port))])
    answer: m.QueryRouteResponse = client.QueryRoute(
        m.QueryRouteRequest(topic=m.Resource(name=topic), endpoints=endpoints)
    )
    return answer


def test_a_route_names_each_broker_at_the_endpoints_that_the_client_uses(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        answer = route_of(client, TOPIC)
        assert answer.status.code == m.Code.OK
        assert {(it.broker.name, it.broker.id, it.id) for it in answer.message_queues} == {
            (name, 0, number) for name in BROKERS for number in range(2)
        }
        for queue in answer.message_queues:
            (address,) = queue.broker.endpoints.addresses
            assert (address.host, address.port) == ("proxy.example", 18081)


def test_a_topic_is_seen_soon_after_its_creation(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        assert route_of(client, "New").status.code == m.Code.TOPIC_NOT_FOUND
        stage.cluster.create_topic("New")
        while (answer := route_of(client, "New")).status.code == m.Code.TOPIC_NOT_FOUND:
            pass
        assert len(answer.message_queues) == 8


def begin(client: ProxyClient, topic: str = TOPIC, group: str = GROUP) -> None:
    """Make a client producer and consumer, whose group begins with the next message."""
    client.produce(topic)
    client.consume(group, topic)
    for broker in BROKERS:
        assert client.receive(group, topic, broker, wait_s=0) == []


def handle_of(message: m.Message) -> str:
    return message.system_properties.receipt_handle


def test_messages_go_to_all_brokers_and_come_back(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        begin(client)
        for number in range(8):
            answer = client.send(TOPIC, b"%d" % number)
            assert [entry.status.code for entry in answer.entries] == [m.Code.OK]
        bodies = []
        for broker in BROKERS:
            messages = client.receive_all(GROUP, TOPIC, broker, 4)
            bodies += [message.body for message in messages]
            assert all(f" {broker} " in handle_of(message) for message in messages)
            acked = client.ack(GROUP, TOPIC, *map(handle_of, messages))
            assert [entry.status.code for entry in acked.entries] == [m.Code.OK] * 4
            assert client.receive(GROUP, TOPIC, broker, wait_s=0) == []
        assert sorted(bodies) == [b"%d" % number for number in range(8)]


def test_a_changed_message_comes_again_and_a_forwarded_one_is_a_dead_letter(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        begin(client)
        client.send(TOPIC, b"body")
        (message,) = received_once(client)
        changed = client.ChangeInvisibleDuration(
            m.ChangeInvisibleDurationRequest(
                group=m.Resource(name=GROUP),
                topic=m.Resource(name=TOPIC),
                receipt_handle=handle_of(message),
                invisible_duration=m.Duration(nanos=1_000_000),
                message_id="first",
            )
        )
        assert changed.status.code == m.Code.OK
        (again,) = received_once(client)
        assert (again.body, again.system_properties.delivery_attempt) == (b"body", 2)
        forwarded = client.ForwardMessageToDeadLetterQueue(
            m.ForwardMessageToDeadLetterQueueRequest(
                group=m.Resource(name=GROUP),
                topic=m.Resource(name=TOPIC),
                receipt_handle=handle_of(again),
                message_id="first",
                delivery_attempt=2,
                max_delivery_attempts=2,
            )
        )
        assert forwarded.status.code == m.Code.OK
        assert [it.body for it in stage.cluster.messages(f"%DLQ%{GROUP}")] == [b"body"]


def received_once(client: ProxyClient) -> list[m.Message]:
    """Receive from both brokers in turn until one has a message."""
    while True:
        for broker in BROKERS:
            if messages := client.receive(GROUP, TOPIC, broker, wait_s=0):
                return messages


def test_a_handle_of_an_unknown_broker_is_refused(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        begin(client)
        client.send(TOPIC, b"body")
        (message,) = received_once(client)
        fields = handle_of(message).split(" ")
        fields[5] = "broker-z"
        acked = client.ack(GROUP, TOPIC, " ".join(fields))
        (entry,) = acked.entries
        assert entry.status.code == m.Code.INVALID_RECEIPT_HANDLE
        assert entry.status.message == "broker broker-z is not known to any name server"


def test_a_transaction_is_checked_and_committed(stage: Stage) -> None:
    stage.cluster.create_topic("Tx", message_type="TRANSACTION")
    with ProxyClient(stage.proxy, "p") as producer, ProxyClient(stage.proxy, "c") as consumer:
        stream = producer.produce("Tx")
        begin(consumer, "Tx")
        recovery = m.Duration(seconds=1)
        sent = producer.send(
            "Tx", b"body", kind=m.MessageType.TRANSACTION, orphaned_transaction_recovery_duration=recovery
        )
        (entry,) = sent.entries
        assert entry.status.code == m.Code.OK
        check = stream.next().recover_orphaned_transaction_command
        assert check.message.body == b"body"
        assert check.transaction_id
        ended = producer.EndTransaction(
            m.EndTransactionRequest(
                topic=m.Resource(name="Tx"),
                message_id="tx",
                transaction_id=check.transaction_id,
                resolution=m.TransactionResolution.COMMIT,
                source=m.TransactionSource.SOURCE_SERVER_CHECK,
            )
        )
        assert ended.status.code == m.Code.OK
        while True:
            for broker in BROKERS:
                for message in consumer.receive(GROUP, "Tx", broker, wait_s=0):
                    assert message.body == b"body"
                    return


def consumers_of(cluster: BlockingCluster, number: int) -> ConsumerConnection:
    """Return the consumers that a broker knows; NotFound without any."""
    address, calls = cluster.brokers[number].address, [cluster.name_server]
    return asked(lambda it: Groups(Calls(it, calls)).consumers(address, GROUP))


def members(cluster: BlockingCluster, number: int) -> list[str]:
    try:
        return sorted(it.client_id for it in consumers_of(cluster, number).connection_set)
    except NotFound:
        return []


def running_info(cluster: BlockingCluster, client_id: str, *, stacks: bool) -> ConsumerRunningInfo:
    address, calls = cluster.brokers[0].address, [cluster.name_server]
    return asked(lambda it: Groups(Calls(it, calls)).running_info(address, GROUP, client_id, stacks=stacks))


def test_brokers_know_a_client_of_the_proxy(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c1") as client, ProxyClient(stage.proxy, "c2") as other:
        client.consume(GROUP, TOPIC, kind=m.ClientType.PUSH_CONSUMER, expression="a || b")
        other.consume(GROUP, TOPIC, kind=m.ClientType.PUSH_CONSUMER, expression="a || b")
        for number in range(2):
            found = consumers_of(stage.cluster, number)
            assert sorted(it.client_id for it in found.connection_set) == ["c1", "c2"]
            assert len({it.client_addr for it in found.connection_set}) == 2
            assert found.subscription_table[TOPIC].sub_string == "a || b"
        client.NotifyClientTermination(m.NotifyClientTerminationRequest(group=m.Resource(name=GROUP)))
        while members(stage.cluster, 0) != ["c2"]:
            pass


def test_a_producer_leaves_the_brokers_of_a_topic_that_it_does_not_name_any_more(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "p") as client:
        client.produce(TOPIC)
        addresses = [broker.address for broker in stage.cluster.brokers]

        def producers(address: str) -> list[str]:
            calls = [stage.cluster.name_server]
            table = asked(lambda it: Groups(Calls(it, calls)).all_producers(address))
            return [one.client_id for group in table.data.values() for one in group]

        assert [producers(address) for address in addresses] == [["p"], ["p"]]
        client.produce("Unknown")
        while any(map(producers, addresses)):
            pass


def test_an_administrator_asks_a_consumer_for_its_state_and_for_its_threads(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c1") as client, ThreadPoolExecutor(1) as pool:
        stream = client.consume(GROUP, TOPIC, kind=m.ClientType.PUSH_CONSUMER)
        info = running_info(stage.cluster, "c1", stacks=False)
        assert [it.topic for it in info.subscription_set] == [TOPIC]
        asking = pool.submit(running_info, stage.cluster, "c1", stacks=True)
        nonce = stream.next().print_thread_stack_trace_command.nonce
        trace = m.ThreadStackTrace(nonce=nonce, thread_stack_trace="main at work")
        stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), thread_stack_trace=trace))
        assert asking.result(SECONDS_MAX).jstack == "main at work"


def test_a_message_is_verified_by_the_consumer_that_an_administrator_names(stage: Stage) -> None:
    broker = stage.cluster.brokers[0]
    with ProxyClient(stage.proxy, "c1") as client, ThreadPoolExecutor(1) as pool:
        stream = client.consume(GROUP, TOPIC, kind=m.ClientType.PUSH_CONSUMER)
        while not (stored := broker.messages(TOPIC)):
            client.send(TOPIC, b"body")
        offset_id = encode_offset_id(stored[0].store_host, stored[0].physical_offset)
        fields = {"consumerGroup": GROUP, "clientId": "c1", "msgId": offset_id, "topic": TOPIC}
        asking = pool.submit(asked, lambda it: it.call(broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields))
        command = stream.next().verify_message_command
        assert command.message.body == b"body"
        result = m.VerifyMessageResult(nonce=command.nonce)
        stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), verify_message_result=result))
        assert fastjson.loads(asking.result(SECONDS_MAX).body)["consumeResult"] == "CR_SUCCESS"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a proxy register its clients again after 0.1 s, not after 25."""
    monkeypatch.setattr(ClusterBrokers, "register_seconds", 0.1)


@pytest.mark.usefixtures("soon")  # before the stage is built
def test_a_broker_stops_and_comes_back_behind_the_proxy(stage: Stage) -> None:
    with ProxyClient(stage.proxy, "c") as client:
        begin(client)
        stage.cluster.stop_broker(0)
        codes = [client.send(TOPIC, b"while away").status.code for _ in range(8)]
        assert m.Code.OK in codes
        while client.send(TOPIC, b"while away").status.code != m.Code.OK:
            pass
        answers = [client.send(TOPIC, b"while away").status for _ in range(8)]
        assert {it.code for it in answers} == {m.Code.OK}
        stage.cluster.restart_broker(0)
        messages = client.receive_all(GROUP, TOPIC, "broker-b", 8)
        assert {entry.status.code for entry in client.ack(GROUP, TOPIC, *map(handle_of, messages)).entries} == {
            m.Code.OK
        }
        while members(stage.cluster, 0) != ["c"]:
            assert client.heartbeat(m.ClientType.SIMPLE_CONSUMER, GROUP).code == m.Code.OK


def test_a_client_without_heartbeats_is_forgotten_and_its_messages_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.proxy.cluster.SWEEP_SECONDS", 0.01)
    keys = {"channelExpiredTimeout": 200, "invisibleTimeMillisWhenClear": 1, **QUICK}
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        with proxy_of(cluster.name_server, **keys) as proxy, ProxyClient(proxy, "c") as client:
            client.consume(GROUP, TOPIC, kind=m.ClientType.PUSH_CONSUMER)
            assert members(cluster, 0) == ["c"]
            client.send(TOPIC, b"body")
            (message,) = client.received(receive_request(GROUP, TOPIC, auto_renew=True))
            while members(cluster, 0):
                pass
            status = client.heartbeat(m.ClientType.PUSH_CONSUMER, GROUP)
            assert status.code == m.Code.UNRECOGNIZED_CLIENT_TYPE
            with ProxyClient(proxy, "other") as other:
                other.consume(GROUP, TOPIC)
                (again,) = other.receive_all(GROUP, TOPIC, "", 1)
                assert (again.body, again.system_properties.delivery_attempt) == (b"body", 2)
                assert handle_of(again) != handle_of(message)


def test_lite_topics_are_subscribed_to_at_all_brokers() -> None:
    with EmbeddedCluster(brokers=2, enableLmq=True, enableMultiDispatch=True) as cluster:
        cluster.create_topic("Lite", queues=1, message_type="LITE")
        cluster.create_group(GROUP, attributes={"+lite.bind.topic": "Lite"})
        with proxy_of(cluster.name_server, **QUICK) as proxy, ProxyClient(proxy, "c") as client:
            client.consume(GROUP, "Lite", kind=m.ClientType.LITE_PUSH_CONSUMER)
            synced = client.SyncLiteSubscription(
                m.SyncLiteSubscriptionRequest(
                    action=m.LiteSubscriptionAction.PARTIAL_ADD,
                    topic=m.Resource(name="Lite"),
                    group=m.Resource(name=GROUP),
                    lite_topic_set=["one"],
                )
            )
            assert synced.status.code == m.Code.OK, synced.status
            for number in range(2):
                answer = client.send("Lite", b"%d" % number, kind=m.MessageType.LITE, lite_topic="one")
                assert answer.status.code == m.Code.OK, answer.status
            bodies: list[bytes] = []
            while len(bodies) < 2:
                for broker in BROKERS:
                    for message in client.receive(GROUP, "Lite", broker, wait_s=1):
                        assert message.system_properties.lite_topic == "one"
                        bodies.append(message.body)
                        request = client.ack_request(GROUP, "Lite", message)
                        request.entries[0].lite_topic = "one"
                        assert client.AckMessage(request).status.code == m.Code.OK
            assert bodies == [b"0", b"1"]
