"""Clients behind a load balancer: born hosts and rules for addresses, with balancers that are trusted and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from tests.loglines import told
from tests.proxy.conftest import Administrator
from tests.proxy.rawgrpc import WIDE, Raw, whole
from tests.proxy.rpcs import send_request
from tests.proxy.test_access import KEYS, ROOT, secret_of, signed

FAR = "203.0.113.7"
HEADER = f"PROXY TCP4 {FAR} 192.0.2.1 40001 8081\r\n".encode()


@pytest.fixture(params=["127.0.0.0/8", "10.0.0.0/8"], ids=["trusted", "other"])
def cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """A broker whose user may send from a far address only."""
    keys: dict[str, Any] = {**KEYS, "proxyProtocolTrustedNetworks": request.param}
    with EmbeddedCluster(grpc=True, config=keys) as found:
        administrator, address = Administrator(found.name_server, ROOT), found.brokers[0].address
        administrator(lambda admin: admin.topics.create(address, TopicConfig("T", 1, 1)))
        administrator(lambda admin: admin.auth.create_user(address, AuthUserInfo("far", secret_of("far"), "Normal")))
        policy = AuthPolicy("Custom", [AuthEntry("Topic:T", ["Pub"], [FAR], "Allow")])
        administrator(lambda admin: admin.auth.create_acl(address, AuthAcl("User:far", [policy])))
        administrator.close()
        yield found


def sent(cluster: BlockingCluster, header: bytes) -> m.Status:
    """Send a message on a connection that begins with a header; return the outcome."""
    with Raw(cluster.brokers[0].grpc, header + WIDE) as raw:
        raw.write(whole(1, "SendMessage", "c", send_request("T", b"x"), signed("far")))
        [answer] = raw.messages(m.SendMessageResponse, 1)
        status: m.Status = answer.status
        return status


def test_only_a_trusted_balancer_makes_a_client_far(
    request: pytest.FixtureRequest, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    is_trusted = request.node.callspec.id == "trusted"
    assert sent(cluster, b"").code == m.Code.UNAUTHORIZED
    outcome = sent(cluster, HEADER)
    refusals = [line for line in told(caplog) if line["event"] == "request is refused"]
    assert [line["ip"] for line in refusals] == ["127.0.0.1"]  # the audit log says the same thing once
    if is_trusted:
        assert outcome.code == m.Code.OK
        [message] = cluster.messages("T")
        assert message.born_host.ip == FAR
    else:
        assert outcome.code == m.Code.UNAUTHORIZED
        assert cluster.messages("T") == []
