"""The proxy in the process of a broker, through gRPC's own client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        yield found


@pytest.fixture
def rpcs(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc) as found:
        yield found


def test_a_message_is_received_and_acknowledged(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("plain")
    sent = rpcs.SendMessage(send_request("plain", b"hello", tag="a", keys=("k",), properties={"x": "y"}))
    assert sent.status.code == m.Code.OK
    [entry] = sent.entries
    rpcs.begin(settings_of_consumer("g-plain", "plain"))
    [message] = rpcs.received(receive_request("g-plain", "plain"))
    system = message.system_properties
    assert (message.body, system.tag, list(system.keys)) == (b"hello", "a", ["k"])
    assert dict(message.user_properties) == {"x": "y"}
    assert (system.message_id, system.delivery_attempt) == (entry.message_id, 1)
    answer = rpcs.AckMessage(rpcs.ack_request("g-plain", "plain", message))
    assert [one.status.code for one in answer.entries] == [m.Code.OK]


def test_a_push_consumer_is_known_by_its_receives(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    """After a restart of its proxy it receives before it sends its settings again."""
    cluster.create_topic("presumed")
    rpcs.SendMessage(send_request("presumed", b"hello"))
    alive = m.HeartbeatRequest(group=m.Resource(name="g-presumed"), client_type=m.ClientType.PUSH_CONSUMER)
    assert rpcs.Heartbeat(alive).status.code == m.Code.UNRECOGNIZED_CLIENT_TYPE
    request = receive_request("g-presumed", "presumed")
    request.auto_renew = True
    [message] = rpcs.received(request)
    assert message.body == b"hello"
    assert rpcs.Heartbeat(alive).status.code == m.Code.OK
    answer = rpcs.AckMessage(rpcs.ack_request("g-presumed", "presumed", message))
    assert [one.status.code for one in answer.entries] == [m.Code.OK]
