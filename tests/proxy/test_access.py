"""Access control: users prove themselves, and need permissions."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from firearrow.wire.signature import Credentials
from tests.loglines import told
from tests.proxy.conftest import SHORT_WAITS, Administrator, Connect
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer, settings_of_producer

ROOT = Credentials("root", "root's secret")
DATE = "20261129T010203Z"
KEYS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}),
}
OK = m.Status(code=m.Code.OK, message="OK")


def secret_of(user: str) -> str:
    return ROOT.secret_key if user == ROOT.access_key else f"secret of {user}"


def authorization(user: str, secret: str, date: str = DATE) -> str:
    signature = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()
    return f"MQv2-HMAC-SHA1 Credential={user}/region, SignedHeaders=x-mq-date-time, Signature={signature}"


def signed(user: str, secret: str = "") -> dict[str, str]:
    """Header fields of a user."""
    return {"x-mq-date-time": DATE, "authorization": authorization(user, secret or secret_of(user))}


@pytest.fixture(scope="module")
def administrator(cluster: BlockingCluster) -> Iterator[Administrator]:
    found = Administrator(cluster.name_server, ROOT)
    address = cluster.brokers[0].address

    def allow(user: str, *entries: tuple[str, list[str]]) -> None:
        found(lambda admin: admin.auth.create_user(address, AuthUserInfo(user, secret_of(user), "Normal")))
        policy = AuthPolicy("Custom", [AuthEntry(name, actions, [], "Allow") for name, actions in entries])
        if entries:
            found(lambda admin: admin.auth.create_acl(address, AuthAcl(f"User:{user}", [policy])))

    def create(topic: str, **attributes: str) -> None:
        changes = {f"+{name.replace('_', '.')}": value for name, value in attributes.items()}
        config = TopicConfig(topic, 1, 1, attributes=changes)
        found(lambda admin: admin.topics.create(address, config))

    create("T")
    create("secret")
    create("TX", message_type="TRANSACTION")
    found(lambda admin: admin.groups.create(address, SubscriptionGroupConfig("g")))
    allow("producer", ("Topic:T", ["Pub"]), ("Topic:TX", ["Pub"]))
    allow("consumer", ("Topic:T", ["Sub"]), ("Group:g", ["Sub"]))
    allow("stranger")
    yield found
    found.close()


@pytest.fixture
def as_user(administrator: Administrator, connect: Connect) -> Callable[..., Rpcs]:
    """Open a client of a user."""

    def opened(user: str, **options: Any) -> Rpcs:
        return connect(options.pop("client_id", ""), metadata=signed(user) | options)

    return opened


AsUser = Callable[..., Rpcs]
T, G = m.Resource(name="T"), m.Resource(name="g")
HANDLE = "0 1795211880000 99999999999 1 0 broker-a 0 0 0"
REQUESTS: dict[str, Any] = {
    "QueryRoute": m.QueryRouteRequest(topic=T),
    "QueryAssignment": m.QueryAssignmentRequest(topic=T, group=G),
    "SendMessage": send_request("T", b"x"),
    "AckMessage": m.AckMessageRequest(topic=T, group=G, entries=[m.AckMessageEntry(receipt_handle=HANDLE)]),
    "ChangeInvisibleDuration": m.ChangeInvisibleDurationRequest(topic=T, group=G, receipt_handle=HANDLE),
    "ForwardMessageToDeadLetterQueue": m.ForwardMessageToDeadLetterQueueRequest(
        topic=T, group=G, receipt_handle=HANDLE
    ),
    "EndTransaction": m.EndTransactionRequest(
        topic=T, transaction_id="djEgMCAwIGJyb2tlci1h", resolution=m.TransactionResolution.COMMIT
    ),
    "Heartbeat": m.HeartbeatRequest(group=G, client_type=m.ClientType.PUSH_CONSUMER),
    "NotifyClientTermination": m.NotifyClientTerminationRequest(group=G),
    "UpdateOffset": m.UpdateOffsetRequest(group=G, message_queue=m.MessageQueue(topic=T)),
    "GetOffset": m.GetOffsetRequest(group=G, message_queue=m.MessageQueue(topic=T)),
    "QueryOffset": m.QueryOffsetRequest(message_queue=m.MessageQueue(topic=T)),
    "SyncLiteSubscription": m.SyncLiteSubscriptionRequest(
        topic=T, group=G, action=m.LiteSubscriptionAction.COMPLETE_REMOVE
    ),
}
for _name in ("UpdateOffset", "GetOffset", "QueryOffset"):
    REQUESTS[_name].message_queue.broker.name = "broker-a"
STREAMED = {
    "ReceiveMessage": receive_request("g", "T"),
    "PullMessage": m.PullMessageRequest(group=G, message_queue=REQUESTS["GetOffset"].message_queue),
}


def status_of(rpcs: Rpcs, name: str) -> m.Status:
    """Return the status of a call that is refused."""
    if name in STREAMED:
        found = next(rpcs.streamed(name, STREAMED[name])).status
    else:
        answer = getattr(rpcs, name)(REQUESTS[name])
        found = answer.entries[0].status if name == "AckMessage" and answer.entries else answer.status
    status: m.Status = found
    return status


ALL = [*REQUESTS, *STREAMED]


# --- signatures ---


@pytest.mark.parametrize("name", ALL)
def test_calls_without_a_signature_are_refused(connect: Connect, name: str) -> None:
    expected = m.Status(code=m.Code.UNAUTHORIZED, message="username cannot be null.")
    assert status_of(connect(), name) == expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"authorization": "Basic abc"}, "username cannot be null."),
        ({"authorization": "MQv2-HMAC-SHA1 "}, "username cannot be null."),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=, Signature=x"}, "username cannot be null."),
        (signed("nobody"), "User:nobody is not found."),
        (signed("root", "guessed"), "check signature failed."),
        (signed("root") | {"x-mq-date-time": "another"}, "check signature failed."),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=root"}, "check signature failed."),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=root, Signature=\xe9"}, "check signature failed."),
    ],
)
def test_signatures_that_prove_nothing(
    administrator: Administrator, connect: Connect, caplog: pytest.LogCaptureFixture, fields: dict[str, str], text: str
) -> None:
    with caplog.at_level("INFO", "firearrow.auth.audit"):
        client = connect(metadata={name: value for name, value in fields.items() if value.isascii()})
        answer = client.SendMessage(send_request("T", b"x"))
    assert answer.status.code == m.Code.UNAUTHORIZED
    if all(map(str.isascii, fields.values())):
        assert answer.status.message == text
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_upper_case_signatures_are_good(administrator: Administrator, connect: Connect) -> None:
    fields = signed("producer")
    head, mark, signature = fields["authorization"].partition("Signature=")
    client = connect(metadata=fields | {"authorization": head + mark + signature.upper()})
    assert client.SendMessage(send_request("T", b"x")).status == OK


def test_a_user_that_is_disabled(cluster: BlockingCluster, administrator: Administrator, as_user: AsUser) -> None:
    address = cluster.brokers[0].address
    administrator(lambda admin: admin.auth.create_user(address, AuthUserInfo("late", secret_of("late"), "Super")))
    client = as_user("late")
    assert client.SendMessage(send_request("T", b"x")).status == OK
    administrator(lambda admin: admin.auth.update_user(address, AuthUserInfo("late", user_status="disable")))
    assert client.SendMessage(send_request("T", b"x")).status.code == m.Code.UNAUTHORIZED


def test_a_stream_without_a_signature_gets_a_status(connect: Connect) -> None:
    stream = connect().telemetry()
    stream.send(m.TelemetryCommand(settings=settings_of_producer("T")))
    expected = m.Status(code=m.Code.UNAUTHORIZED, message="username cannot be null.")
    assert stream.next() == m.TelemetryCommand(status=expected)
    with pytest.raises(StopIteration):
        stream.next()


def test_refused_signatures_are_in_the_audit_log(
    administrator: Administrator, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect(metadata=signed("spy", "guessed")).SendMessage(send_request("T", b"x"))
    [line] = [line for line in told(caplog) if line.get("user") == "spy"]
    assert line == {
        "event": "request is refused",
        "user": "spy",
        "ip": "127.0.0.1",
        "request": "SendMessage",
        "code": 0,
        "reason": "User:spy is not found.",
        "unlogged": 0,
    }


# --- permissions ---

WITHOUT_RIGHTS = [name for name in ALL if name not in ("Heartbeat", "NotifyClientTermination")]


@pytest.mark.parametrize("name", WITHOUT_RIGHTS)
def test_a_stranger_may_do_nothing(
    cluster: BlockingCluster, as_user: AsUser, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    before = len(cluster.messages("T"))
    status = status_of(as_user("stranger"), name)
    assert status.code == m.Code.UNAUTHORIZED, status
    assert "User:stranger has no permission to access" in status.message
    assert len(cluster.messages("T")) == before
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_refusals_for_permissions_are_in_the_audit_log(as_user: AsUser, caplog: pytest.LogCaptureFixture) -> None:
    as_user("stranger").SendMessage(send_request("secret", b"x"))
    [line] = [line for line in told(caplog) if "Topic:secret" in str(line.get("reason"))]
    assert (line["event"], line["user"], line["ip"]) == ("request is refused", "stranger", "127.0.0.1")
    assert (line["request"], line["code"]) == ("SEND_MESSAGE_V2", 310)


def test_settings_need_permissions(as_user: AsUser) -> None:
    """A client without them gets a command that has only a status, and then its stream fails."""
    refused = [
        ("stranger", settings_of_producer("T")),
        ("stranger", settings_of_consumer("g", "T")),
        ("producer", settings_of_producer("T", "secret")),
        ("consumer", settings_of_consumer("g", "T", "secret")),
        ("consumer", settings_of_consumer("other", "T")),
        ("producer", settings_of_consumer("g", "T")),
    ]
    for user, settings in refused:
        stream = as_user(user).telemetry()
        stream.send(m.TelemetryCommand(settings=settings))
        command = stream.next()
        assert command.status.code == m.Code.UNAUTHORIZED, (user, settings)
        assert not command.HasField("settings")
        assert f"User:{user} has no permission to access" in command.status.message
        with pytest.raises(grpc.RpcError) as failed:
            stream.next()
        assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert failed.value.details() == command.status.message


def test_a_refused_client_creates_no_group(
    cluster: BlockingCluster, administrator: Administrator, as_user: AsUser
) -> None:
    stranger = as_user("stranger")
    stream = stranger.telemetry()
    stream.send(m.TelemetryCommand(settings=settings_of_consumer("made-by-stranger", "T")))
    stream.next()
    list(stranger.streamed("ReceiveMessage", receive_request("made-by-stranger", "T")))
    stranger.QueryAssignment(m.QueryAssignmentRequest(topic=T, group=m.Resource(name="made-by-stranger")))
    sync = m.SyncLiteSubscriptionRequest(topic=T, group=m.Resource(name="made-by-stranger"))
    stranger.SyncLiteSubscription(sync)
    found = administrator(lambda admin: admin.groups.configs(cluster.brokers[0].address))
    assert "made-by-stranger" not in found.subscription_group_table


def test_users_do_what_they_may(as_user: AsUser) -> None:
    producer, consumer = as_user("producer"), as_user("consumer")
    producer.begin(settings_of_producer("T"))
    assert producer.Heartbeat(m.HeartbeatRequest(client_type=m.ClientType.PRODUCER)).status == OK
    for client in (producer, consumer):
        assert client.QueryRoute(m.QueryRouteRequest(topic=T)).status == OK
    push = m.ClientType.PUSH_CONSUMER
    consumer.begin(settings_of_consumer("g", "T", kind=push))
    assert consumer.Heartbeat(m.HeartbeatRequest(group=G, client_type=push)).status == OK
    assert consumer.QueryAssignment(m.QueryAssignmentRequest(topic=T, group=G)).status == OK
    assert producer.SendMessage(send_request("T", b"a", b"b")).status == OK
    messages: list[m.Message] = []
    while len(messages) < 2:
        messages += consumer.received(receive_request("g", "T", auto_renew=True, count=1))
    first, second = messages[:2]
    assert consumer.AckMessage(Rpcs.ack_request("g", "T", first)).status == OK
    request = m.ForwardMessageToDeadLetterQueueRequest(
        topic=T, group=G, receipt_handle=second.system_properties.receipt_handle
    )
    assert consumer.ForwardMessageToDeadLetterQueue(request).status.code == m.Code.OK
    termination = m.NotifyClientTerminationRequest(group=G)
    assert consumer.NotifyClientTermination(termination).status == OK


def test_a_transaction_belongs_to_its_topic(as_user: AsUser) -> None:
    producer = as_user("producer")
    [entry] = producer.SendMessage(send_request("TX", b"x", kind=m.MessageType.TRANSACTION)).entries
    request = m.EndTransactionRequest(
        topic=m.Resource(name="TX"),
        transaction_id=entry.transaction_id,
        message_id=entry.message_id,
        resolution=m.TransactionResolution.COMMIT,
    )
    assert as_user("consumer").EndTransaction(request).status.code == m.Code.UNAUTHORIZED
    assert producer.EndTransaction(request).status == OK


def test_a_handle_does_not_lead_to_messages_of_others(
    cluster: BlockingCluster, as_user: AsUser, administrator: Administrator
) -> None:
    """The offset in a handle is the client's claim; the message that it names is what counts."""
    assert as_user("root").SendMessage(send_request("secret", b"secret")).status == OK
    [secret] = cluster.messages("secret")
    handle = " ".join([*HANDLE.split(" ")[:8], str(secret.physical_offset)])
    request = m.ForwardMessageToDeadLetterQueueRequest(topic=T, group=G, receipt_handle=handle)
    answer = as_user("consumer").ForwardMessageToDeadLetterQueue(request)
    assert answer.status.code == m.Code.UNAUTHORIZED, answer
    assert b"secret" not in [view.body for view in cluster.messages("%DLQ%g")]


# --- clients of other users ---


def test_the_id_of_anothers_client_gives_nothing(as_user: AsUser) -> None:
    push = m.ClientType.PUSH_CONSUMER
    owner = as_user("consumer", client_id="shared-id")
    stream, _ = owner.begin(settings_of_consumer("g", "T", kind=push))
    thief = as_user("producer", client_id="shared-id")
    beat = m.HeartbeatRequest(group=G, client_type=push)
    termination = m.NotifyClientTerminationRequest(group=G)
    for answer in (thief.Heartbeat(beat), thief.NotifyClientTermination(termination)):
        assert answer.status.code == m.Code.UNRECOGNIZED_CLIENT_TYPE
    thief.begin(settings_of_producer("T"))
    assert owner.Heartbeat(beat).status == OK
    thief.NotifyClientTermination(m.NotifyClientTerminationRequest())
    assert owner.Heartbeat(beat).status == OK
    stream.send(m.TelemetryCommand(settings=settings_of_consumer("g", "T", kind=push)))
    assert stream.next().status == OK


def test_fields_that_only_a_proxy_may_set_change_nothing(
    cluster: BlockingCluster, administrator: Administrator, as_user: AsUser
) -> None:
    """A permission for one address does not become one for another."""
    address = cluster.brokers[0].address
    administrator(lambda admin: admin.auth.create_user(address, AuthUserInfo("roamer", secret_of("roamer"), "Normal")))
    entry = AuthEntry("Topic:T", ["Pub"], ["6.6.6.6"], "Allow")
    acl = AuthAcl("User:roamer", [AuthPolicy("Custom", [entry])])
    administrator(lambda admin: admin.auth.create_acl(address, acl))
    forged = {"rpc-remote-address": "6.6.6.6:1", "x-mq-authorization-ak": "root", "proxy_protocol_addr": "6.6.6.6"}
    client = as_user("roamer", **forged)
    assert client.SendMessage(send_request("T", b"x")).status.code == m.Code.UNAUTHORIZED
    assert client.QueryRoute(m.QueryRouteRequest(topic=T)).status.code == m.Code.UNAUTHORIZED


def test_users_may_share_a_connection(as_user: AsUser) -> None:
    client = as_user("producer")
    theirs = as_user("consumer").metadata
    assert client.SendMessage(send_request("T", b"x")).status == OK
    ours, client.metadata = client.metadata, theirs
    assert client.SendMessage(send_request("T", b"x")).status.code == m.Code.UNAUTHORIZED
    client.metadata = ours
    assert client.SendMessage(send_request("T", b"x")).status == OK


def test_a_long_call_stays_its_users(as_user: AsUser) -> None:
    """Calls of another user come by the same connection while it is served."""
    client = as_user("producer")
    theirs = as_user("consumer").metadata
    entries = [m.AckMessageEntry(receipt_handle=HANDLE) for _ in range(500)]
    for _ in range(5):
        slow = client.future("AckMessage", m.AckMessageRequest(topic=T, group=G, entries=entries))
        ours, client.metadata = client.metadata, theirs
        others = [client.future("AckMessage", REQUESTS["AckMessage"]) for _ in range(20)]
        client.metadata = ours
        assert m.Code.UNAUTHORIZED not in {other.result().entries[0].status.code for other in others}
        assert {entry.status.code for entry in slow.result().entries} == {m.Code.UNAUTHORIZED}


def test_signatures_without_permissions() -> None:
    """Any user may do everything."""
    keys: dict[str, Any] = SHORT_WAITS | KEYS | {"authorizationEnabled": False, "autoCreateTopicEnable": True}
    with EmbeddedCluster(grpc=True, config=keys) as cluster:
        administrator = Administrator(cluster.name_server, ROOT)
        address = cluster.brokers[0].address
        administrator(lambda admin: admin.topics.create(address, TopicConfig("T", 1, 1)))
        with Rpcs(cluster.brokers[0].grpc, metadata=signed("root")) as rpcs, Rpcs(cluster.brokers[0].grpc) as other:
            assert rpcs.SendMessage(send_request("T", b"x")).status == OK
            rpcs.begin(settings_of_consumer("g", "T"))
            assert len(rpcs.received(receive_request("g", "T"))) == 1
            assert other.SendMessage(send_request("T", b"x")).status.code == m.Code.UNAUTHORIZED
        administrator.close()
