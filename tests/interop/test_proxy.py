"""A proxy in cluster mode in front of RocketMQ's own broker, and of Firearrow's: the same checks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firearrow.client.admin.auth import Auth
from firearrow.client.admin.calls import Calls
from firearrow.client.admin.groups import Groups
from firearrow.client.admin.topics import Topics
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.proxy import messages as m
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import ConsumerConnection, ConsumerRunningInfo
from tests.interop.servers import AUTHORIZED, ROOT, Kind, Server, serve
from tests.interop.waiting import wait_until
from tests.proxy.clusterproxy import asked, proxy_of
from tests.proxy.proxyclient import SECONDS_MAX, ProxyClient, signed

SETTINGS = {"transactionCheckInterval": "1000", "transactionTimeOut": "3000", "recallMessageEnable": "true"}
QUICK = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100}
BOTH: list[Kind] = ["real", "firearrow"]


@pytest.fixture(scope="module", params=BOTH)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp(f"proxy-{request.param}")
    with serve(request.param, root / "store", root / "logs", settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(served: Server) -> Iterator[str]:
    with proxy_of(served.namesrv, **QUICK) as address:
        yield address


def create(served: Server, topic: str, kind: str = "NORMAL") -> None:
    async def ask(client: Client) -> None:
        config = TopicConfig(topic, 2, 2, attributes={"+message.type": kind})
        await Topics(Calls(client, [served.namesrv])).create(served.broker, config)

    asked(ask)


def has_route(client: ProxyClient, topic: str) -> bool:
    answer = client.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name=topic)))
    assert answer.status.code in (m.Code.OK, m.Code.TOPIC_NOT_FOUND)
    return bool(answer.status.code == m.Code.OK)


def test_messages_pass_are_changed_and_acknowledged(served: Server, proxy: str) -> None:
    create(served, "Passing")
    with ProxyClient(proxy, "passing") as client:
        wait_until(lambda: has_route(client, "Passing"), SECONDS_MAX, "route")
        client.produce("Passing")
        client.consume("GPassing", "Passing")
        assert client.receive("GPassing", "Passing", wait_s=0) == []
        for number in range(4):
            answer = client.send("Passing", b"%d" % number, tag="a", keys=["k"])
            assert answer.status.code == m.Code.OK, answer.status
        messages = client.receive_all("GPassing", "Passing", "broker-a", 4)
        assert sorted(message.body for message in messages) == [b"0", b"1", b"2", b"3"]
        first, *others = messages
        assert (first.system_properties.tag, list(first.system_properties.keys)) == ("a", ["k"])
        handles = [message.system_properties.receipt_handle for message in messages]
        changed = client.ChangeInvisibleDuration(
            m.ChangeInvisibleDurationRequest(
                group=m.Resource(name="GPassing"),
                topic=m.Resource(name="Passing"),
                receipt_handle=handles[0],
                invisible_duration=m.Duration(seconds=1),
                message_id=first.system_properties.message_id,
            )
        )
        assert changed.status.code == m.Code.OK, changed.status
        acked = client.ack("GPassing", "Passing", *handles[1:])
        assert [entry.status.code for entry in acked.entries] == [m.Code.OK] * len(others)
        (again,) = client.receive_all("GPassing", "Passing", "broker-a", 1)
        assert (again.body, again.system_properties.delivery_attempt) == (first.body, 2)
        acked = client.ack("GPassing", "Passing", again.system_properties.receipt_handle)
        assert acked.status.code == m.Code.OK, acked.status


def test_a_transaction_is_checked_and_committed(served: Server, proxy: str) -> None:
    create(served, "Tx", "TRANSACTION")
    with ProxyClient(proxy, "tx") as client, ProxyClient(proxy, "reader") as reader:
        wait_until(lambda: has_route(client, "Tx"), SECONDS_MAX, "route")
        stream = client.produce("Tx")
        reader.consume("GTx", "Tx")
        assert reader.receive("GTx", "Tx", wait_s=0) == []
        sent = client.send("Tx", b"body", kind=m.MessageType.TRANSACTION)
        assert sent.status.code == m.Code.OK, sent.status
        check = stream.next().recover_orphaned_transaction_command
        assert check.message.body == b"body"
        ended = client.EndTransaction(
            m.EndTransactionRequest(
                topic=m.Resource(name="Tx"),
                message_id="tx",
                transaction_id=check.transaction_id,
                resolution=m.TransactionResolution.COMMIT,
                source=m.TransactionSource.SOURCE_SERVER_CHECK,
            )
        )
        assert ended.status.code == m.Code.OK, ended.status
        (message,) = reader.receive_all("GTx", "Tx", "broker-a", 1)
        assert message.body == b"body"


def test_the_broker_knows_the_consumer_and_passes_questions_on(served: Server, proxy: str) -> None:
    create(served, "Known")
    with ProxyClient(proxy, "known") as client, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: has_route(client, "Known"), SECONDS_MAX, "route")
        stream = client.consume("GKnown", "Known", kind=m.ClientType.PUSH_CONSUMER)

        async def connections(it: Client) -> ConsumerConnection:
            return await Groups(Calls(it, [served.namesrv])).consumers(served.broker, "GKnown")

        async def info(it: Client) -> ConsumerRunningInfo:
            groups = Groups(Calls(it, [served.namesrv]))
            return await groups.running_info(served.broker, "GKnown", "known", stacks=True)

        assert [it.client_id for it in asked(connections).connection_set] == ["known"]
        asking = pool.submit(asked, info)
        nonce = stream.next().print_thread_stack_trace_command.nonce
        trace = m.ThreadStackTrace(nonce=nonce, thread_stack_trace="main at work")
        stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), thread_stack_trace=trace))
        found = asking.result(SECONDS_MAX)
        assert found.jstack == "main at work"
        assert [it.topic for it in found.subscription_set] == ["Known"]


@pytest.mark.parametrize("kind", BOTH)
def test_a_proxy_with_access_control_proves_users_of_the_broker(kind: Kind, tmp_path: Path) -> None:
    """The broker demands signatures, too: of the proxy's own user."""
    access = Access(ROOT)
    with serve(kind, tmp_path / "store", tmp_path / "logs", settings=AUTHORIZED) as served:

        async def prepare(client: Client) -> None:
            calls = Calls(client, [served.namesrv])
            await Topics(calls).create(served.broker, TopicConfig("Guarded", 1, 1))
            await Auth(calls).create_user(served.broker, AuthUserInfo("alice", "wonderland", "Normal", "enable"))
            entry = AuthEntry("Topic:Guarded", ["Pub"], None, "Allow")
            await Auth(calls).create_acl(served.broker, AuthAcl("User:alice", [AuthPolicy("Custom", [entry])]))

        asked(prepare, access)
        own = {key: AUTHORIZED[key] for key in ("authorizationEnabled", "authenticationEnabled")}
        own["innerClientAuthenticationCredentials"] = AUTHORIZED["innerClientAuthenticationCredentials"]
        with (
            proxy_of(served.namesrv, **QUICK, **own) as proxy,
            ProxyClient(proxy, "guarded", signed("alice", "wonderland")) as client,
            ProxyClient(proxy, "other", signed("alice", "looking glass")) as other,
        ):
            wait_until(lambda: has_route(client, "Guarded"), SECONDS_MAX, "route")
            assert client.send("Guarded", b"body").status.code == m.Code.OK
            refused = client.QueryAssignment(
                m.QueryAssignmentRequest(topic=m.Resource(name="Guarded"), group=m.Resource(name="G"))
            )
            assert refused.status.code == m.Code.UNAUTHORIZED, refused.status
            assert other.send("Guarded", b"body").status.message == "check signature failed."
