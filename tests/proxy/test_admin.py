"""Rights of the Admin service: a user needs those that RocketMQ's command line needs for the same."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from firearrow.client import Credentials
from firearrow.client.admin import Admin
from firearrow.proxy import messages as m
from firearrow.proxy.descriptors import pool
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.admin_bodies import AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from tests.proxy.rpcs import Rpcs

ROOT = Credentials("root", "secret of root")
PROTECTED: Final[dict[str, str | int | bool]] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": "secret of root"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "root", "secretKey": "secret of root"}),
}
TOPIC, GROUP = m.Resource(name="orders"), m.Resource(name="g")
BOTH: Final[dict[str, Any]] = {"topic": TOPIC, "group": GROUP}
REQUESTS: Final = {
    "DescribeTopicStatus": m.DescribeTopicStatusRequest(topic=TOPIC),
    "ListSubscription": m.ListSubscriptionRequest(group=GROUP),
    "DescribeSubscription": m.DescribeSubscriptionRequest(**BOTH),
    "DeleteSubscription": m.DeleteSubscriptionRequest(**BOTH),
    "DescribeGroupAccumulation": m.DescribeGroupAccumulationRequest(group=GROUP),
    "ListConsumerConnection": m.ListConsumerConnectionRequest(group=GROUP),
    "ResetGroupOffset": m.ResetGroupOffsetRequest(**BOTH, reset_timestamp=m.Timestamp(seconds=1)),
    "QueryMessage": m.ListMessageRequest(topic=TOPIC, message_key="k"),
    "PrintThreadStackTrace": m.PrintThreadStackTraceRequest(group=GROUP, client_id="c"),
    "VerifyMessage": m.VerifyMessageRequest(**BOTH, client_id="c", message_id="x"),
    "AdminSendMessage": m.AdminSendMessageRequest(topic=TOPIC, body=b"x"),
    "GetConsumerRunningInfo": m.GetConsumerRunningInfoRequest(group=GROUP, client_id="c"),
    "GetTopicRoute": m.GetTopicRouteRequest(topic=TOPIC),
    "QueryTimeSpan": m.QueryTimeSpanRequest(group=GROUP, topics=[TOPIC]),
    "GetProxyRuntimeStats": m.GetProxyRuntimeStatsRequest(),
    "ChangeLogLevel": m.ChangeLogLevelRequest(level=9),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(config=PROTECTED, grpc=True) as found:
        asyncio.run(prepared(found.name_server, found.brokers[0].address))
        yield found


async def prepared(name_server: str, address: str) -> None:
    async with Admin.of([name_server], ROOT) as admin:
        await admin.topics.create(address, TopicConfig("orders", 1, 1))
        await admin.groups.create(address, SubscriptionGroupConfig("g"))
        await admin.auth.create_user(address, AuthUserInfo("shop", "secret of shop"))


def user(cluster: BlockingCluster, name: str) -> Rpcs:
    """A tool that signs as a user."""
    signature = hmac.new(f"secret of {name}".encode(), b"20261129T000000Z", "sha1").hexdigest()
    credential = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    found = Rpcs(cluster.brokers[0].grpc, metadata={"x-mq-date-time": "20261129T000000Z", "authorization": credential})
    del found.metadata["x-mq-client-id"]
    return found


def outcome(answer: Any) -> tuple[int, str]:
    if isinstance(answer, m.ChangeLogLevelResponse):
        code, _, text = answer.remark.partition(": ")
        return int(code) if code.isdecimal() else m.Code.OK, text
    return answer.status.code, answer.status.message


def test_every_method_is_served() -> None:
    service = pool().FindServiceByName("apache.rocketmq.v2.Admin")
    assert {method.name for method in service.methods} == REQUESTS.keys()


@pytest.mark.parametrize("method", REQUESTS)
def test_a_user_without_rights_is_refused(cluster: BlockingCluster, method: str) -> None:
    with user(cluster, "shop") as tool:
        code, text = outcome(tool.admin(method, REQUESTS[method]))
    assert code == m.Code.UNAUTHORIZED, text
    assert "has no permission" in text


@pytest.mark.parametrize("method", REQUESTS)
def test_a_super_user_is_not_refused(cluster: BlockingCluster, method: str) -> None:
    with user(cluster, "root") as tool:
        code, text = outcome(tool.admin(method, REQUESTS[method]))
    assert code in (m.Code.OK, m.Code.NOT_FOUND, m.Code.MESSAGE_NOT_FOUND), text


@pytest.mark.parametrize("method", REQUESTS)
def test_a_sender_that_proves_no_user_is_refused(cluster: BlockingCluster, method: str) -> None:
    with Rpcs(cluster.brokers[0].grpc) as nobody:
        assert outcome(nobody.admin(method, REQUESTS[method])) == (m.Code.UNAUTHORIZED, "username cannot be null.")


def test_bytes_that_are_no_request_are_refused(cluster: BlockingCluster) -> None:
    with user(cluster, "root") as tool, grpc.insecure_channel(cluster.brokers[0].grpc) as channel:
        for method in ("DescribeTopicStatus", "ChangeLogLevel"):
            call = channel.unary_unary(f"/apache.rocketmq.v2.Admin/{method}")
            data = call(b"\x0a\xff", timeout=20, metadata=list(tool.metadata.items()))
            answer = getattr(m, f"{method}Response").FromString(data)
            assert outcome(answer)[0] == m.Code.BAD_REQUEST
