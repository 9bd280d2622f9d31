"""Hostile clients of the proxy: a healthy one beside them gets its answers, and nothing is held afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from firearrow.proxy import clients
from firearrow.proxy import messages as m
from firearrow.proxy.calls import REQUEST_BYTES_MAX
from firearrow.proxy.clients import CLIENT_BYTES, SETTINGS_PARTS
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import PREFACE, RESETS_MAX
from tests.proxy.rawgrpc import Raw, head, whole
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer, settings_of_producer
from tests.wire import http2frames as h2

SECONDS_MAX = 10
ROUNDS_MIN = 5  # of the healthy client, beside the others
CLIENTS_MAX = 500
SHORT = {
    "channelExpiredTimeout": 1000,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 50,
    "minInvisibleTimeMillsForRecv": 1,
    "grpcClientIdleTimeMills": 1000,
}
SETTINGS = settings_of_consumer("hostile", "hostile")


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True, config=SHORT) as found:
        for topic in ("healthy", "hostile", "big"):
            found.create_topic(topic, queues=1)
        yield found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)


def held(cluster: BlockingCluster) -> int:
    """Count the requests that wait at the broker."""
    server = cluster.brokers[0].server
    return len(server.popping.held) + len(server.pulling.held) + len(server.lite.held)


def healthy(cluster: BlockingCluster, ends: threading.Event, failures: list[str]) -> None:
    """Send, receive and acknowledge until the others have done their worst."""
    with Rpcs(cluster.brokers[0].grpc, "healthy") as rpcs:
        rpcs.begin(settings_of_consumer("healthy", "healthy"))
        list(rpcs.streamed("ReceiveMessage", receive_request("healthy", "healthy", wait_s=0)))  # the group begins here
        beat = m.HeartbeatRequest(group=m.Resource(name="healthy"), client_type=m.ClientType.SIMPLE_CONSUMER)
        rounds = 0
        while not ends.is_set() or rounds < ROUNDS_MIN:
            body = b"%d" % rounds
            try:
                if rpcs.Heartbeat(beat).status.code != m.Code.OK:  # the machine is slow
                    rpcs.begin(settings_of_consumer("healthy", "healthy"))
                assert rpcs.SendMessage(send_request("healthy", body)).status.code == m.Code.OK
                [message] = rpcs.received(receive_request("healthy", "healthy", count=1))
                assert message.body == body
                acked = rpcs.AckMessage(rpcs.ack_request("healthy", "healthy", message))
                assert acked.status.code == m.Code.OK
            except (AssertionError, ValueError, grpc.RpcError) as error:
                failures.append(repr(error))
                return
            rounds += 1


@contextmanager
def beside(cluster: BlockingCluster) -> Iterator[str]:
    """Run a healthy client beside the block; afterwards the proxy holds nothing of anybody."""
    ends, failures = threading.Event(), list[str]()
    working = threading.Thread(target=healthy, args=(cluster, ends, failures))
    working.start()
    try:
        yield cluster.brokers[0].grpc
    finally:
        ends.set()
        working.join(SECONDS_MAX)
    assert failures == []
    assert not working.is_alive()
    server, service = cluster.brokers[0].server.server, cluster.brokers[0].proxy.service
    until(lambda: held(cluster) == 0)
    until(lambda: not server.grpc_peers)
    until(lambda: not list(service.clients.all()))
    until(lambda: not any(peer.is_loopback for peer in server.peers))
    assert service.clients._size == 0
    assert len(service.consuming.waits) == 0
    assert len(service.consuming.renewal) == 0


# --- hostile ones ---


def settings_frame(number: int, client_id: str, settings: m.Settings = SETTINGS) -> bytes:
    command = m.TelemetryCommand(settings=settings).SerializeToString()
    return head(number, "Telemetry", client_id) + h2.data(number, framed(command))


def test_many_clients_on_one_connection(cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is served up to the limit; then there is room again when streams have ended."""
    size = CLIENT_BYTES + SETTINGS_PARTS * 100
    monkeypatch.setattr(clients, "CLIENTS_BYTES_MAX", CLIENTS_MAX * size)
    table = cluster.brokers[0].proxy.service.clients
    with beside(cluster) as address:
        with Raw(address) as raw:
            raw.write(b"".join(settings_frame(2 * it + 1, f"c{it}") for it in range(CLIENTS_MAX // 2)))
            found = raw.messages(m.TelemetryCommand, CLIENTS_MAX // 2)
            assert {it.status.code for it in found} == {m.Code.OK}
            raw.write(b"".join(settings_frame(2 * it + 1, f"c{it}") for it in range(CLIENTS_MAX // 2, 2 * CLIENTS_MAX)))
            until(lambda: table._size > (CLIENTS_MAX - 2) * size)
            with Rpcs(address) as late:
                stream = late.telemetry()
                stream.send(m.TelemetryCommand(settings=SETTINGS))
                refusal = stream.next().status
                assert refusal.code == m.Code.TOO_MANY_REQUESTS
                assert refusal.message.startswith("too many clients")
            assert table._size <= CLIENTS_MAX * size
        with Rpcs(address) as again:
            until(lambda: bool(table._streamless))
            again.begin(SETTINGS)


def test_a_thousand_streams_of_telemetry(cluster: BlockingCluster) -> None:
    with beside(cluster) as address, Raw(address) as raw:
        raw.write(b"".join(settings_frame(2 * it + 1, "same") for it in range(1000)))
        found = raw.messages(m.TelemetryCommand, 1000)
        assert {it.status.code for it in found} == {m.Code.OK}
        assert [it.client_id for it in cluster.brokers[0].proxy.service.clients.all()].count("same") == 1


def test_receives_that_are_cancelled_at_once(cluster: BlockingCluster) -> None:
    """No wait is left at the broker, and no message becomes invisible for them."""
    request = receive_request("hostile", "hostile", wait_s=15, invisible_s=60)
    count, rounds = RESETS_MAX - 10, 3
    with beside(cluster) as address:
        for each in range(rounds):
            with Raw(address) as raw:
                numbers = range(1, 2 * count, 2)
                raw.write(b"".join(whole(it, "ReceiveMessage", f"r{each}", request) + h2.reset(it) for it in numbers))
                late = whole(2 * count + 1, "Heartbeat", f"r{each}", m.HeartbeatRequest())
                raw.write(late)
                [answer] = raw.messages(m.HeartbeatResponse, 1)
                assert answer.status.code == m.Code.UNRECOGNIZED_CLIENT_TYPE
                until(lambda: not cluster.brokers[0].server.popping.held.count("hostile", "hostile", -1))
        with Rpcs(address) as rpcs:
            rpcs.begin(SETTINGS)
            rpcs.SendMessage(send_request("hostile", b"visible"))
            [message] = rpcs.received(receive_request("hostile", "hostile"))
            assert message.system_properties.delivery_attempt == 1
            rpcs.AckMessage(rpcs.ack_request("hostile", "hostile", message))


def filled(cluster: BlockingCluster, rpcs: Rpcs, slow: Raw) -> None:
    """Let a client that opens no windows receive more than they have room for."""
    rpcs.begin(settings_of_consumer("big", "big"))
    for _ in range(6):
        assert rpcs.SendMessage(send_request("big", bytes(1 << 20))).status.code == m.Code.OK
    request = receive_request("big", "big", wait_s=15, invisible_s=60)
    slow.write(b"".join(whole(it, "ReceiveMessage", "slow", request) for it in range(1001, 1013, 2)))
    until(lambda: [peer.reads for peer in list(cluster.brokers[0].server.server.grpc_peers)].count(False) == 1)


def gets_the_next_messages(cluster: BlockingCluster, rpcs: Rpcs, group: str, held_before: int) -> None:
    """Check that a client gets messages that are sent from now on, and no other gets any."""
    held_pops = cluster.brokers[0].server.popping.held
    for number in range(5):
        call = rpcs.streamed("ReceiveMessage", receive_request(group, group, wait_s=15, count=1))
        until(lambda: held_pops.count(group, group, -1) == held_before + 1)
        rpcs.SendMessage(send_request(group, b"%d" % number))
        _, answer, _ = list(call)
        assert answer.message.body == b"%d" % number
        rpcs.AckMessage(rpcs.ack_request(group, group, answer.message))


def test_a_slow_reader_keeps_no_messages_from_others(cluster: BlockingCluster) -> None:
    """Its later receives are not taken."""
    cluster.create_topic("slow", queues=1)
    with beside(cluster) as address, Rpcs(address) as other, Raw(address, PREFACE + h2.settings()) as slow:
        other.begin(settings_of_consumer("slow", "slow"))
        filled(cluster, other, slow)
        waiting = receive_request("slow", "slow", wait_s=15, invisible_s=60)
        slow.write(b"".join(whole(it, "ReceiveMessage", "slow", waiting) for it in range(1013, 1213, 2)))
        gets_the_next_messages(cluster, other, "slow", 0)


def test_waits_of_a_client_that_stops_reading_come_last(cluster: BlockingCluster) -> None:
    """Its receives wait at the broker already."""
    cluster.create_topic("stops", queues=1)
    with beside(cluster) as address, Rpcs(address) as other, Raw(address, PREFACE + h2.settings()) as slow:
        other.begin(settings_of_consumer("stops", "stops"))
        waiting = receive_request("stops", "stops", wait_s=15, invisible_s=60)
        slow.write(b"".join(whole(it, "ReceiveMessage", "slow", waiting) for it in range(1, 21, 2)))
        until(lambda: cluster.brokers[0].server.popping.held.count("stops", "stops", -1) == 10)
        filled(cluster, other, slow)
        gets_the_next_messages(cluster, other, "stops", 10)


def test_giant_settings_names_and_ids(cluster: BlockingCluster) -> None:
    with beside(cluster) as address, Rpcs(address) as rpcs:
        giants = [settings_of_producer(*(f"topic-{it}" for it in range(100_000))), settings_of_producer("t" * 500_000)]
        named = settings_of_consumer("g" * 500_000, "t")
        filtered = settings_of_consumer("hostile", "hostile")
        filtered.subscription.subscriptions[0].expression.expression = "x" * (2 << 20)
        for settings in (*giants, named, filtered):
            stream = rpcs.telemetry()
            stream.send(m.TelemetryCommand(settings=settings))
            with pytest.raises(grpc.RpcError) as refused:
                stream.next()
            error: Any = refused.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert len(error.details()) < 2000
        assert not any(it.client_id == rpcs.client_id for it in cluster.brokers[0].proxy.service.clients.all())
        for size in (500_000, 10 * REQUEST_BYTES_MAX):
            answer = rpcs.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name="x" * size)))
            assert answer.status.code in (m.Code.ILLEGAL_TOPIC, m.Code.BAD_REQUEST)
            assert len(answer.status.message) < 2000
        sent = rpcs.SendMessage(send_request("hostile", b"x", properties={"k": "v" * 5_000_000}))
        assert sent.status.code == m.Code.MESSAGE_PROPERTIES_TOO_LARGE
        assert len(sent.status.message) < 2000
        rpcs.metadata["x-mq-client-id"] = "c" * 2000
        assert rpcs.QueryRoute(m.QueryRouteRequest()).status.code == m.Code.CLIENT_ID_REQUIRED
        rpcs.metadata["x-mq-client-id"] = "c" * 100_000
        with pytest.raises(grpc.RpcError):
            rpcs.QueryRoute(m.QueryRouteRequest())
