"""Properties by which clients describe themselves, at an embedded broker."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, settings_of_consumer

LIMITS = {f"k{number:02}": "x" * 100 for number in range(32)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        found.create_topic("orders")
        yield found


@pytest.fixture
def rpcs(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc) as found:
        yield found


def settings_with(properties: dict[str, str]) -> m.Settings:
    settings = settings_of_consumer("g", "orders", kind=m.ClientType.PUSH_CONSUMER)
    settings.client_properties.update(properties)
    return settings


def shown(rpcs: Rpcs) -> dict[str, str]:
    request = m.GetConsumerRunningInfoRequest(group=m.Resource(name="g"), client_id=rpcs.client_id)
    answer = rpcs.admin("GetConsumerRunningInfo", request)
    assert answer.status.code == m.Code.OK
    return dict(answer.consumer_running_info.properties)


def test_properties_are_shown_while_the_stream_is_open(rpcs: Rpcs) -> None:
    own = {"team": "billing", "rocketmq.sdk": "x", "PROP_CLIENT_VERSION": "forged"}
    stream, merged = rpcs.begin(settings_with(own))
    assert merged.client_properties["team"] == "billing"
    found = shown(rpcs)
    assert (found["team"], found["rocketmq.sdk"], found["PROP_CLIENT_VERSION"]) == ("billing", "x", "5.1.2")
    stream.end()
    with pytest.raises(StopIteration):
        stream.next()
    assert "team" not in shown(rpcs)


@pytest.mark.parametrize(
    "properties",
    [LIMITS, {"a" * 64: "", "B.9_-": "x" * 256, "snow": "\N{SNOWMAN}" * 256}, {}],
    ids=["32", "the longest", "none"],
)
def test_properties_within_the_limits(rpcs: Rpcs, properties: dict[str, str]) -> None:
    _, merged = rpcs.begin(settings_with(properties))
    assert dict(merged.client_properties) == properties


@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        (LIMITS | {"more": ""}, "there are 33, the limit is 32"),
        ({"a" * 65: ""}, f"key '{'a' * 64}'... is longer than 64 characters"),
        ({"": "x"}, "key '' is not a letter and letters, digits, '_', '.' or '-'"),
        ({"9a": "x"}, "key '9a' is not a letter and letters, digits, '_', '.' or '-'"),
        ({"a b": "x"}, "key 'a b' is not a letter and letters, digits, '_', '.' or '-'"),
        ({"a\n": "x"}, "key 'a\\n' is not a letter and letters, digits, '_', '.' or '-'"),
        ({"a": "x" * 257}, "the value of 'a' is longer than 256 characters"),
        (dict.fromkeys(LIMITS, "x" * 130), "they have 4512 bytes, the limit is 4096"),
    ],
)
def test_other_properties_are_refused(rpcs: Rpcs, properties: dict[str, str], fault: str) -> None:
    stream = rpcs.telemetry()
    stream.send(m.TelemetryCommand(settings=settings_with(properties)))
    answer = stream.next()
    assert (answer.status.code, answer.status.message) == (
        m.Code.INVALID_CLIENT_PROPERTIES,
        f"client properties: {fault}",
    )
    assert not answer.HasField("settings")
    with pytest.raises(grpc.RpcError) as failed:
        stream.next()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
