"""Calls that wait for messages: given up by their clients, or ended by the stop of the proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import grpc
import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

SECONDS_MAX = 20
_topics = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        yield found


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition of the cluster's thread holds."""
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)


def held(cluster: BlockingCluster) -> int:
    """Count the requests that wait at the broker."""
    server = cluster.brokers[0].server
    return len(server.popping.held) + len(server.pulling.held) + len(server.lite.held)


def pull_request(group: str, topic: str) -> m.PullMessageRequest:
    queue = m.MessageQueue(topic=m.Resource(name=topic), broker=m.Broker(name="broker-a"))
    request = m.PullMessageRequest(group=m.Resource(name=group), message_queue=queue, batch_size=1)
    request.long_polling_timeout.seconds = 15
    request.filter_expression.CopyFrom(m.FilterExpression(type=m.FilterType.TAG, expression="*"))
    return request


@pytest.mark.parametrize("name", ["ReceiveMessage", "PullMessage"])
def test_a_call_that_is_given_up_leaves_nothing_at_the_broker(cluster: BlockingCluster, name: str) -> None:
    topic = f"waits-{next(_topics)}"
    cluster.create_topic(topic, queues=1)
    request = receive_request("g", topic, wait_s=15) if name == "ReceiveMessage" else pull_request("g", topic)
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        rpcs.begin(settings_of_consumer("g", topic))
        calls = [rpcs.streamed(name, request) for _ in range(20)]
        until(lambda: held(cluster) == 20)
        for call in calls[:19]:
            call.cancel()
        until(lambda: held(cluster) == 1)
        rpcs.SendMessage(send_request(topic, b"for the one that waits"))
        answers = list(calls[19]) if name == "ReceiveMessage" else [next(calls[19])]
        assert answers[0].status.code == m.Code.OK
        calls[19].cancel()
    until(lambda: held(cluster) == 0)


def test_a_receive_that_is_given_up_makes_no_message_invisible(cluster: BlockingCluster) -> None:
    topic = f"waits-{next(_topics)}"
    cluster.create_topic(topic, queues=1)
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        rpcs.begin(settings_of_consumer("g", topic))
        call = rpcs.streamed("ReceiveMessage", receive_request("g", topic, wait_s=15))
        until(lambda: held(cluster) == 1)
        call.cancel()
        until(lambda: held(cluster) == 0)
        rpcs.SendMessage(send_request(topic, b"x"))
        [message] = rpcs.received(receive_request("g", topic))
        assert message.system_properties.delivery_attempt == 1


def test_a_stop_answers_waits_and_ends_streams() -> None:
    with EmbeddedCluster(grpc=True) as cluster:
        cluster.create_topic("t")
        with Rpcs(cluster.brokers[0].grpc) as rpcs:
            stream, _ = rpcs.begin(settings_of_consumer("g", "t"))
            call = rpcs.streamed("ReceiveMessage", receive_request("g", "t", wait_s=20))
            until(lambda: held(cluster) == 1)
            began = time.monotonic()
            cluster.stop_broker()
            assert time.monotonic() - began < 10
            first, last = list(call)
            assert (first.status.code, first.status.message) == (m.Code.MESSAGE_NOT_FOUND, "no new message")
            assert last.HasField("delivery_timestamp")
            with pytest.raises(grpc.RpcError) as ended:
                stream.next()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
