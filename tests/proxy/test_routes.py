"""Routes of topics, and the assignments of consumers."""

from __future__ import annotations

import grpc
import pytest

from firearrow.proxy import messages as m
from firearrow.proxy.routes import scheme_of
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.bodies import TopicConfig
from tests.proxy.conftest import Administrator, Connect
from tests.proxy.rpcs import Rpcs

KEYS = {"enableMixedMessageType": True}
R, W, RW, NONE = m.Permission.READ, m.Permission.WRITE, m.Permission.READ_WRITE, m.Permission.NONE


def route_request(topic: str, *addresses: tuple[str, int]) -> m.QueryRouteRequest:
    return m.QueryRouteRequest(topic=m.Resource(name=topic), endpoints=endpoints(*addresses))


def endpoints(*addresses: tuple[str, int]) -> m.Endpoints:
    return m.Endpoints(
        scheme=m.AddressScheme.IPv4, addresses=[m.Address(host=host, port=port) for host, port in addresses]
    )


def assignment_request(topic: str, group: str) -> m.QueryAssignmentRequest:
    return m.QueryAssignmentRequest(
        topic=m.Resource(name=topic), group=m.Resource(name=group), endpoints=endpoints(("1.2.3.4", 80))
    )


# --- QueryRoute ---


@pytest.mark.parametrize(
    ("reads", "writes", "perm", "expected"),
    [
        (2, 2, 6, [RW, RW]),
        (3, 1, 6, [R, R, RW]),
        (1, 3, 6, [W, W, RW]),
        (2, 3, 4, [R, R]),
        (2, 3, 2, [W, W, W]),
        (2, 3, 0, [NONE, NONE, NONE]),
    ],
)
def test_queues_by_their_permissions(
    cluster: BlockingCluster,
    administrator: Administrator,
    rpcs: Rpcs,
    reads: int,
    writes: int,
    perm: int,
    expected: list[m.Permission],
) -> None:
    """Queues to read come first, then those to write, at last those for both."""
    topic = f"route-{reads}-{writes}-{perm}"
    config = TopicConfig(topic, reads, writes, perm)
    administrator(lambda admin: admin.topics.create(cluster.brokers[0].address, config))
    answer = rpcs.QueryRoute(route_request(topic))
    assert answer.status == m.Status(code=m.Code.OK, message="OK")
    assert [queue.permission for queue in answer.message_queues] == expected
    assert [queue.id for queue in answer.message_queues] == list(range(len(expected)))
    assert {queue.topic.name for queue in answer.message_queues} == {topic}


def test_a_route_leads_to_the_proxy_of_the_broker(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("route-endpoints", queues=1)
    topic = m.Resource(name="route-endpoints", resource_namespace="ns")
    [queue] = rpcs.QueryRoute(m.QueryRouteRequest(topic=topic, endpoints=endpoints(("1.2.3.4", 80)))).message_queues
    assert queue.topic == topic  # as the client wrote it
    assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
    host, _, port = cluster.brokers[0].grpc.partition(":")
    assert queue.broker.endpoints == endpoints((host, int(port)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("", [m.MessageType.NORMAL]),
        *((name, [m.MessageType[name]]) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")),
        ("MIXED", [m.MessageType.NORMAL, m.MessageType.FIFO, m.MessageType.DELAY, m.MessageType.TRANSACTION]),
        ("UNSPECIFIED", [m.MessageType.MESSAGE_TYPE_UNSPECIFIED]),
    ],
)
def test_a_route_names_the_types_of_messages(
    cluster: BlockingCluster, rpcs: Rpcs, kind: str, expected: list[m.MessageType]
) -> None:
    topic = f"route-type-{kind}"
    cluster.create_topic(topic, queues=1, **({"message_type": kind} if kind else {}))
    [queue] = rpcs.QueryRoute(route_request(topic)).message_queues
    assert list(queue.accept_message_types) == expected


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        ("", m.Code.ILLEGAL_TOPIC, "The specified topic is blank"),
        ("a b", m.Code.ILLEGAL_TOPIC, "The specified topic[a b] contains illegal characters, allowing only"),
        ("t" * 128, m.Code.ILLEGAL_TOPIC, "The specified topic is longer than topic max length 127."),
        ("TBW102", m.Code.ILLEGAL_TOPIC, "cannot access system topic"),
        ("rmq_sys_TRACE", m.Code.ILLEGAL_TOPIC, "cannot access system topic"),
        ("nothing", m.Code.TOPIC_NOT_FOUND, "No topic route info in name server for the topic: nothing"),
    ],
)
def test_topics_without_a_route(rpcs: Rpcs, topic: str, code: m.Code, text: str) -> None:
    answer = rpcs.QueryRoute(route_request(topic))
    assert answer.status.code == code
    assert answer.status.message.startswith(text)
    assert not answer.message_queues


def test_a_route_creates_nothing(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    rpcs.QueryRoute(route_request("not-created"))
    rpcs.QueryAssignment(assignment_request("not-created", "some-group"))
    topics = administrator(lambda admin: admin.topics.configs(cluster.brokers[0].address)).topic_config_table
    assert "not-created" not in topics


def test_a_client_must_have_an_id(connect: Connect) -> None:
    for client_id in ("", " ", "x" * 256):
        answer = connect(metadata={"x-mq-client-id": client_id}).QueryRoute(route_request("nothing"))
        assert answer.status.code == m.Code.CLIENT_ID_REQUIRED, client_id
    assert answer.status.message == "client id is longer than 255 characters"


def test_an_unknown_method_is_a_status_of_grpc(rpcs: Rpcs) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        rpcs.call("Unknown", b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- QueryAssignment ---


def test_a_consumer_gets_each_broker(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("assigned", queues=3)
    answer = rpcs.QueryAssignment(assignment_request("assigned", "g-assigned"))
    assert answer.status == m.Status(code=m.Code.OK, message="OK")
    [assignment] = answer.assignments
    queue = assignment.message_queue
    assert (queue.topic.name, queue.id, queue.permission, queue.broker.name) == ("assigned", -1, RW, "broker-a")
    host, _, port = cluster.brokers[0].grpc.partition(":")
    assert queue.broker.endpoints == endpoints((host, int(port)))


def test_a_consumer_in_order_gets_each_queue(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("assigned-fifo", queues=3)
    cluster.create_group("g-fifo", consume_message_orderly=True)
    answer = rpcs.QueryAssignment(assignment_request("assigned-fifo", "g-fifo"))
    assert [it.message_queue.id for it in answer.assignments] == [0, 1, 2]


def test_a_consumer_of_lite_topics_gets_each_broker(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("assigned-lite", queues=1, message_type="LITE")
    cluster.create_group("g-lite", consume_message_orderly=True, attributes={"+lite.bind.topic": "assigned-lite"})
    answer = rpcs.QueryAssignment(assignment_request("assigned-lite", "g-lite"))
    assert [it.message_queue.id for it in answer.assignments] == [-1]


@pytest.mark.parametrize(("reads", "perm", "expected"), [(2, 2, None), (2, 0, None), (2, 4, R), (2, 6, RW)])
def test_assignments_by_permissions(
    cluster: BlockingCluster,
    administrator: Administrator,
    rpcs: Rpcs,
    reads: int,
    perm: int,
    expected: m.Permission | None,
) -> None:
    topic = f"assigned-{reads}-{perm}"
    config = TopicConfig(topic, reads, 2, perm)
    administrator(lambda admin: admin.topics.create(cluster.brokers[0].address, config))
    answer = rpcs.QueryAssignment(assignment_request(topic, "g-assigned"))
    if expected is None:
        assert answer.status == m.Status(code=m.Code.FORBIDDEN, message="no readable queue")
        assert not answer.assignments
    else:
        [assignment] = answer.assignments
        assert assignment.message_queue.permission == expected


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("a b", "a b", m.Code.ILLEGAL_TOPIC),
        ("assigned", "a b", m.Code.ILLEGAL_CONSUMER_GROUP),
        ("assigned", "", m.Code.ILLEGAL_CONSUMER_GROUP),
        ("assigned", "CID_RMQ_SYS_x", m.Code.ILLEGAL_CONSUMER_GROUP),
        ("nothing", "g", m.Code.TOPIC_NOT_FOUND),
    ],
)
def test_assignments_are_refused(rpcs: Rpcs, topic: str, group: str, code: m.Code) -> None:
    assert rpcs.QueryAssignment(assignment_request(topic, group)).status.code == code


def test_kinds_of_addresses() -> None:
    kinds = m.AddressScheme
    assert [scheme_of(host) for host in ("10.0.0.1", "::1", "broker.example")] == [
        kinds.IPv4,
        kinds.IPv6,
        kinds.DOMAIN_NAME,
    ]


def test_a_client_behind_a_mapped_port_stays_there() -> None:
    with EmbeddedCluster(grpc=True, useEndpointPortFromRequest=True) as cluster, Rpcs(cluster.brokers[0].grpc) as rpcs:
        cluster.create_topic("mapped", queues=1)
        [queue] = rpcs.QueryRoute(route_request("mapped", ("docker.example", 9000))).message_queues
        assert queue.broker.endpoints == endpoints(("docker.example", 9000))
