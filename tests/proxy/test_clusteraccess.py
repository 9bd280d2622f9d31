"""Users and rights in cluster mode: brokers have them, and the proxy decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from firearrow.client.admin.auth import Auth
from firearrow.client.admin.calls import Calls
from firearrow.net.client import Client
from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from tests.proxy.clusterproxy import asked, proxy_of
from tests.proxy.proxyclient import ProxyClient, signed

PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
USERS = {
    "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
}
KEYS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "userCacheRefreshSeconds": 1,
    "aclCacheRefreshSeconds": 1,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 1,
}
GROUP, MINE, OTHERS = "G", "Mine", "Others"
HANDLE = "0 1795211880000 99999999999 1 0 broker-a 0 0 0"


class Stage(NamedTuple):
    cluster: BlockingCluster
    proxy: str

    def allow(self, user: str, *entries: tuple[str, list[str]]) -> None:
        """Set the permissions of a user at the only broker."""
        address = self.cluster.brokers[0].address
        rows = [AuthEntry(resource, actions, None, "Allow") for resource, actions in entries]

        async def ask(client: Client) -> None:
            await Auth(Calls(client, [])).update_acl(address, AuthAcl(f"User:{user}", [AuthPolicy("Custom", rows)]))

        asked(ask)

    def create_user(self, user: str, secret: str, *, is_super: bool = False) -> None:
        address = self.cluster.brokers[0].address
        kind = "Super" if is_super else "Normal"

        async def ask(client: Client) -> None:
            await Auth(Calls(client, [])).create_user(address, AuthUserInfo(user, secret, kind, "enable"))

        asked(ask)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with EmbeddedCluster(config=USERS) as cluster:
        for topic in (MINE, OTHERS):
            cluster.create_topic(topic, queues=1)
        with proxy_of(cluster.name_server, **KEYS) as proxy:
            found = Stage(cluster, proxy)
            found.create_user("alice", "wonderland")
            yield found


def status_of_send(client: ProxyClient, topic: str) -> tuple[int, str]:
    status = client.send(topic, b"body").status
    return status.code, status.message


def test_a_call_must_be_signed_by_a_user_of_the_brokers(stage: Stage) -> None:
    stage.create_user("root", "all may be done", is_super=True)
    wrong: list[tuple[dict[str, str], str]] = [
        ({}, "username cannot be null."),
        (signed("bob", "wonderland"), "User:bob is not found."),
        (signed("root", "nothing may be"), "check signature failed."),
    ]
    for metadata, text in wrong:
        with ProxyClient(stage.proxy, "c", metadata) as client:
            assert status_of_send(client, MINE) == (m.Code.UNAUTHORIZED, text)
    with ProxyClient(stage.proxy, "c", signed("root", "all may be done")) as client:
        assert status_of_send(client, MINE)[0] == m.Code.OK


def test_rights_are_those_of_the_brokers_and_change_with_them(stage: Stage) -> None:
    stage.allow("alice", (f"Topic:{MINE}", ["Pub"]))
    with ProxyClient(stage.proxy, "c", signed("alice", "wonderland")) as client:
        assert status_of_send(client, MINE)[0] == m.Code.OK
        code, text = status_of_send(client, OTHERS)
        assert code == m.Code.UNAUTHORIZED
        assert text.startswith(f"User:alice has no permission to access Topic:{OTHERS} from 127.0.0.1")
        stage.allow("alice", (f"Topic:{OTHERS}", ["Pub"]))
        while status_of_send(client, OTHERS)[0] != m.Code.OK:
            pass


def test_a_consumer_needs_its_group_and_topic(stage: Stage) -> None:
    stage.allow("alice", (f"Topic:{MINE}", ["Sub", "Pub"]))
    with ProxyClient(stage.proxy, "c", signed("alice", "wonderland")) as client:
        stream = client.telemetry()
        settings = m.Settings(client_type=m.ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.name = GROUP
        stream.send(m.TelemetryCommand(settings=settings))
        refusal = stream.next().status
        assert refusal.code == m.Code.UNAUTHORIZED
        assert f"no permission to access Group:{GROUP}" in refusal.message
        stage.allow("alice", (f"Group:{GROUP}", ["Sub"]))
        while client.heartbeat(m.ClientType.SIMPLE_CONSUMER, GROUP).code != m.Code.OK:
            stream = client.telemetry()
            stream.send(m.TelemetryCommand(settings=settings))
            stream.next()  # the rights arrive after a while
        assert client.receive(GROUP, MINE, wait_s=0) == []
        assert client.send(MINE, b"body").status.code == m.Code.OK
        (message,) = client.receive_all(GROUP, MINE, "", 1)
        acked = client.ack(GROUP, MINE, message.system_properties.receipt_handle)
        assert acked.status.code == m.Code.OK


def test_the_place_of_another_topics_message_is_no_way_around_the_rights(stage: Stage) -> None:
    """A handle names its message by an offset of the log that a client could change."""
    stage.create_user("root", "all may be done", is_super=True)
    stage.allow("alice", (f"Topic:{MINE}", ["Sub", "Pub"]), (f"Group:{GROUP}", ["Sub"]))
    with (
        ProxyClient(stage.proxy, "r", signed("root", "all may be done")) as root,
        ProxyClient(stage.proxy, "c", signed("alice", "wonderland")) as client,
    ):
        client.consume(GROUP, MINE)
        assert client.receive(GROUP, MINE, wait_s=0) == []
        root.send(OTHERS, b"secret")
        client.send(MINE, b"own")
        (secret,) = stage.cluster.messages(OTHERS)
        (message,) = client.receive_all(GROUP, MINE, "", 1)
        handle = message.system_properties.receipt_handle
        forged = f"{handle.rpartition(' ')[0]} {secret.physical_offset}"
        request = m.ForwardMessageToDeadLetterQueueRequest(
            group=m.Resource(name=GROUP), topic=m.Resource(name=MINE), receipt_handle=forged, message_id="id"
        )
        answer = client.ForwardMessageToDeadLetterQueue(request)
        assert answer.status.code == m.Code.UNAUTHORIZED
        assert f"Topic:{OTHERS}" in answer.status.message
        request.receipt_handle = handle
        assert client.ForwardMessageToDeadLetterQueue(request).status.code == m.Code.OK
        assert [it.body for it in stage.cluster.messages(f"%DLQ%{GROUP}")] == [b"own"]


def test_requests_of_the_white_list_need_no_signature(stage: Stage) -> None:
    exempt = {"authorizationEnabled": False, "authenticationWhitelist": "apache.rocketmq.v2.QueryRouteRequest"}
    with proxy_of(stage.cluster.name_server, **KEYS | exempt) as proxy, ProxyClient(proxy, "c") as client:
        route = client.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name=MINE)))
        assert route.status.code == m.Code.OK
        assert status_of_send(client, MINE) == (m.Code.UNAUTHORIZED, "username cannot be null.")


def test_requests_of_the_white_list_need_no_permission(stage: Stage) -> None:
    """They need a signature, unless they are in the other list, too."""
    send, route = "apache.rocketmq.v2.SendMessageRequest", "apache.rocketmq.v2.QueryRouteRequest"
    keys = KEYS | {"authenticationWhitelist": f"{send},apache.rocketmq.v2.AckMessageRequest"}
    keys |= {"authorizationWhitelist": f"{send}, {route}"}
    stage.create_user("nobody", "nothing")
    with (
        proxy_of(stage.cluster.name_server, **keys) as proxy,
        ProxyClient(proxy, "c", signed("nobody", "nothing")) as user,
        ProxyClient(proxy, "d") as stranger,
    ):
        assert (route_code(user), status_of_send(user, OTHERS)[0]) == (m.Code.OK, m.Code.OK)
        assert (route_code(stranger), status_of_send(stranger, OTHERS)[0]) == (m.Code.UNAUTHORIZED, m.Code.OK)
        assert user.ack(GROUP, MINE, HANDLE).status.code == m.Code.UNAUTHORIZED
        assert stranger.ack(GROUP, MINE, HANDLE).status.code == m.Code.UNAUTHORIZED


def test_a_call_fails_while_no_broker_can_be_asked_for_its_user(stage: Stage) -> None:
    stage.create_user("root", "all may be done", is_super=True)
    with ProxyClient(stage.proxy, "c", signed("root", "all may be done")) as client:
        assert route_code(client) == m.Code.OK
        stage.cluster.stop_broker()
        with ProxyClient(stage.proxy, "d", signed("alice", "wonderland")) as other:
            status = other.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name=MINE))).status
            assert status.code == m.Code.INTERNAL_SERVER_ERROR
            assert status.message.startswith("user alice is not known: ")
            stream = other.telemetry()
            stream.send(m.TelemetryCommand(settings=m.Settings()))
            assert stream.next().status.code == m.Code.INTERNAL_SERVER_ERROR


def route_code(client: ProxyClient) -> int:
    answer: m.QueryRouteResponse = client.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name=MINE)))
    return answer.status.code
