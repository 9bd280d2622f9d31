"""The services beside RocketMQ's own, at the port of an embedded broker."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from firearrow.proxy import grpcmessages
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
SERVING, NOT_SERVING = 1, 2


@pytest.fixture
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        yield found


@pytest.fixture
def channel(cluster: BlockingCluster) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(cluster.brokers[0].grpc) as found:
        yield found


def test_a_broker_that_stops_says_that_it_does_not_serve(cluster: BlockingCluster, channel: grpc.Channel) -> None:
    response = grpcmessages.HealthCheckResponse
    service = grpcmessages.HealthCheckRequest(service="apache.rocketmq.v2.MessagingService").SerializeToString()
    assert response.FromString(channel.unary_unary(CHECK)(service, timeout=20)).status == SERVING
    watch = channel.unary_stream(WATCH, None, response.FromString)(service, timeout=60)
    assert next(watch).status == SERVING
    cluster.stop_broker()
    assert next(watch).status == NOT_SERVING
    with pytest.raises(StopIteration):
        next(watch)


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    request = grpcmessages.ServerReflectionRequest(list_services="*").SerializeToString()
    [answer] = channel.stream_stream(REFLECTION, None, grpcmessages.ServerReflectionResponse.FromString)(
        iter([request]), timeout=20
    )
    names = {it.name for it in answer.list_services_response.service}
    assert {"apache.rocketmq.v2.MessagingService", "grpc.health.v1.Health"} <= names
