"""Calls that need no signature or no permission, by the white lists of a broker with its proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.admin_bodies import AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from tests.proxy.conftest import Administrator
from tests.proxy.rpcs import Rpcs, send_request
from tests.proxy.test_access import HANDLE, KEYS, ROOT, secret_of, signed

SEND = "apache.rocketmq.v2.SendMessageRequest"
ROUTE = "apache.rocketmq.v2.QueryRouteRequest"
SETTINGS = "apache.rocketmq.v2.TelemetryCommand"
T, G = m.Resource(name="T"), m.Resource(name="g")
OK, REFUSED = m.Code.OK, m.Code.UNAUTHORIZED


@contextmanager
def served(unsigned: str, allowed: str, *, asks_rights: bool = True) -> Iterator[BlockingCluster]:
    """Run a broker with white lists, a topic T, and a user ``nobody`` without permissions."""
    lists = {"authenticationWhitelist": unsigned, "authorizationWhitelist": allowed}
    keys: dict[str, Any] = KEYS | lists | {"authorizationEnabled": asks_rights}
    with EmbeddedCluster(grpc=True, config=keys) as cluster:
        administrator = Administrator(cluster.name_server, ROOT)
        address = cluster.brokers[0].address
        administrator(lambda admin: admin.topics.create(address, TopicConfig("T", 1, 1)))
        administrator(lambda admin: admin.auth.create_user(address, AuthUserInfo("nobody", secret_of("nobody"))))
        yield cluster
        administrator.close()


def codes(client: Rpcs) -> tuple[int, int, int]:
    """Codes of a route, a send and an acknowledgement."""
    return (
        client.QueryRoute(m.QueryRouteRequest(topic=T)).status.code,
        client.SendMessage(send_request("T", b"x")).status.code,
        acknowledged(client).status.code,
    )


def acknowledged(client: Rpcs) -> m.AckMessageResponse:
    entries = [m.AckMessageEntry(receipt_handle=HANDLE)]
    answer: m.AckMessageResponse = client.AckMessage(m.AckMessageRequest(topic=T, group=G, entries=entries))
    return answer


def clients(cluster: BlockingCluster) -> tuple[Rpcs, Rpcs]:
    """A client of the user without permissions, and one without a user."""
    address = cluster.brokers[0].grpc
    return Rpcs(address, metadata=signed("nobody")), Rpcs(address)


def test_a_call_of_the_list_needs_no_permission() -> None:
    """Codes of remoting may stand beside names."""
    with served("", f"{SEND}, 310,{ROUTE}") as cluster:
        user, stranger = clients(cluster)
        with user, stranger:
            assert codes(user) == (OK, OK, REFUSED)
            assert codes(stranger) == (REFUSED, REFUSED, REFUSED)


def test_a_call_of_both_lists_needs_nothing() -> None:
    """One that is exempt from signatures alone has no user whose permissions would count."""
    with served(f"{SEND},{ROUTE}", f"105 ,{SEND}") as cluster:
        user, stranger = clients(cluster)
        with user, stranger:
            assert codes(user) == (REFUSED, OK, REFUSED)
            assert codes(stranger) == (REFUSED, OK, REFUSED)
            assert [view.body for view in cluster.messages("T")] == [b"x", b"x"]


def test_where_no_permissions_are_needed_the_list_of_signatures_is_enough() -> None:
    with served(f"{SEND},{ROUTE}", "", asks_rights=False) as cluster:
        user, stranger = clients(cluster)
        with user, stranger:
            assert codes(user) == (OK, OK, OK)
            assert codes(stranger) == (OK, OK, REFUSED)


def test_an_exempt_call_gives_no_other_call_of_its_connection_a_permission() -> None:
    with served(SEND, SEND) as cluster, Rpcs(cluster.brokers[0].grpc, metadata=signed("nobody")) as client:
        for _ in range(10):
            entries = [m.AckMessageEntry(receipt_handle=HANDLE) for _ in range(500)]
            slow = client.future("AckMessage", m.AckMessageRequest(topic=T, group=G, entries=entries))
            sends = [client.future("SendMessage", send_request("T", b"x")) for _ in range(20)]
            assert {send.result().status.code for send in sends} == {OK}
            assert {entry.status.code for entry in slow.result().entries} == {REFUSED}


def test_exempt_settings_register_a_client() -> None:
    """Its other calls need what they need."""
    with served("", SETTINGS) as cluster, Rpcs(cluster.brokers[0].grpc, metadata=signed("nobody")) as client:
        stream = client.telemetry()
        settings = m.Settings(client_type=m.ClientType.PRODUCER, publishing=m.Publishing(topics=[T]))
        stream.send(m.TelemetryCommand(settings=settings))
        assert stream.next().status.code == OK
        assert client.Heartbeat(m.HeartbeatRequest(client_type=m.ClientType.PRODUCER)).status.code == OK
        assert codes(client) == (REFUSED, REFUSED, REFUSED)
        stream.close()
