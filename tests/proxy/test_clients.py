"""Clients: their settings, their life, and the requests of brokers to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from firearrow.client.admin import Admin
from firearrow.errors import BrokerError, FirearrowError
from firearrow.net.replies import Reply
from firearrow.proxy import messages as m
from firearrow.proxy.local import LocalBrokers
from firearrow.proxy.statuses import ProxyError
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.testing.virtual import VirtualTime
from firearrow.wire.client_bodies import ConsumerRunningInfo, DirectResult
from tests.loglines import told
from tests.proxy.conftest import Administrator, Connect
from tests.proxy.direct import Direct
from tests.proxy.rpcs import Rpcs, Telemetry, send_request, settings_of_consumer, settings_of_producer

NO_SETTINGS = m.Status(code=m.Code.UNRECOGNIZED_CLIENT_TYPE, message="cannot find client settings for this client")


def heartbeat(group: str = "", kind: m.ClientType = m.ClientType.PRODUCER) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(group=m.Resource(name=group), client_type=kind)


def termination(group: str = "") -> m.NotifyClientTerminationRequest:
    return m.NotifyClientTerminationRequest(group=m.Resource(name=group))


# --- settings ---


def test_settings_of_a_producer(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("settings-p")
    given = settings_of_producer("settings-p")
    given.publishing.topics[0].resource_namespace = "ns"
    given.backoff_policy.max_attempts = 9
    given.user_agent.hostname = "here"
    given.access_point.addresses.add(host="1.2.3.4", port=80)
    _, found = rpcs.begin(given)
    given.backoff_policy.max_attempts = 3
    given.backoff_policy.exponential_backoff.initial.nanos = 10_000_000
    given.backoff_policy.exponential_backoff.max.seconds = 1
    given.backoff_policy.exponential_backoff.multiplier = 2
    given.publishing.validate_message_type = True
    given.publishing.max_body_size = 4 * 1024 * 1024
    given.metric.on = False
    assert found == given


def test_settings_of_a_consumer(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("settings-c")
    given = settings_of_consumer("g-settings", "settings-c", kind=m.ClientType.PUSH_CONSUMER)
    given.subscription.receive_batch_size = 7
    given.subscription.fifo = True
    given.subscription.long_polling_timeout.seconds = 99
    _, found = rpcs.begin(given)
    given.subscription.receive_batch_size = 32
    given.subscription.fifo = False
    given.subscription.long_polling_timeout.seconds = 20
    given.subscription.lite_subscription_quota = 2000
    given.subscription.max_lite_topic_size = 64
    given.metric.on = False
    policy = given.backoff_policy
    policy.max_attempts = 17
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200):
        policy.customized_backoff.next.add(seconds=seconds)
    assert found == given


def test_settings_of_a_consumer_in_order(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_group("g-settings-fifo", consume_message_orderly=True, retry_max_times=2)
    _, found = rpcs.begin(settings_of_consumer("g-settings-fifo", "settings-c"))
    assert found.subscription.fifo
    assert found.backoff_policy.max_attempts == 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"type": "EXPONENTIAL"}, (5000, 7_200_000, 2)),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1500, "max": 9000, "multiplier": 3}},
            (1500, 9000, 3),
        ),
    ],
)
def test_settings_with_an_exponential_policy(
    cluster: BlockingCluster, rpcs: Rpcs, policy: dict[str, Any], expected: tuple[int, int, float]
) -> None:
    cluster.create_group("g-exponential", group_retry_policy=policy)
    _, found = rpcs.begin(settings_of_consumer("g-exponential", "settings-c"))
    backoff = found.backoff_policy.exponential_backoff
    assert (ms(backoff.initial), ms(backoff.max), backoff.multiplier) == expected
    assert found.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


def test_settings_with_a_policy_of_its_own(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_group(
        "g-customized", group_retry_policy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [10, 2500]}}
    )
    _, found = rpcs.begin(settings_of_consumer("g-customized", "settings-c"))
    assert list(map(ms, found.backoff_policy.customized_backoff.next)) == [10, 2500]


def ms(duration: m.Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def test_settings_may_name_no_topic(rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_producer())
    assert rpcs.Heartbeat(heartbeat()).status.code == m.Code.OK


def test_settings_may_name_many_topics(cluster: BlockingCluster, connect: Connect) -> None:
    topics = [f"many-{number}" for number in range(1000)]
    for settings in (settings_of_producer(*topics), settings_of_consumer("g-many", *topics)):
        client = connect()
        client.begin(settings)
        kind = m.ClientType(settings.client_type)
        assert client.Heartbeat(heartbeat("g-many", kind)).status.code == m.Code.OK


def test_settings_are_answered_each_time(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    """The answer has the present configuration of the group."""
    stream, first = rpcs.begin(settings_of_consumer("g-again", "settings-c"))
    assert first.backoff_policy.max_attempts == 17
    cluster.create_group("g-again", retry_max_times=1)
    changed = settings_of_consumer("g-again", "settings-c", "settings-p")
    stream.send(m.TelemetryCommand(settings=changed))
    assert stream.next().settings.backoff_policy.max_attempts == 2
    found = administrator(lambda admin: admin.groups.consumers(cluster.brokers[0].address, "g-again"))
    assert sorted(found.subscription_table) == ["settings-c", "settings-p"]


# --- refused settings ---


def failure_of(stream: Telemetry) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as failed:
        stream.next()
    return failed.value.code(), failed.value.details()


def consumer_with(expression: str, kind: m.FilterType = m.FilterType.TAG) -> m.Settings:
    settings = settings_of_consumer("g-refused", "settings-c")
    settings.subscription.subscriptions[0].expression.expression = expression
    settings.subscription.subscriptions[0].expression.type = kind
    return settings


REFUSED_SETTINGS = [
    (m.Settings(), "there is no publishing or subscription data in settings"),
    (settings_of_producer("ok", "a b"), "The specified topic[a b] contains illegal characters, allowing only"),
    (settings_of_producer("TBW102"), "cannot access system topic"),
    (settings_of_consumer("a b", "settings-c"), "the specified group[a b] contains illegal characters"),
    (settings_of_consumer("", "settings-c"), "the specified group is blank"),
    (settings_of_consumer("CID_RMQ_SYS_x", "settings-c"), "cannot use system consumer group"),
    (consumer_with("||"), "expression format is not correct"),
    (consumer_with("", m.FilterType.SQL), "expression format is not correct"),
    (
        settings_of_consumer("g-regular", "settings-c", kind=m.ClientType.LITE_PUSH_CONSUMER),
        "regular group cannot use LITE mode: g-regular",
    ),
    (
        settings_of_consumer("g-producer", "settings-c", kind=m.ClientType.PRODUCER),
        "Client type is not consumer, type: PRODUCER",
    ),
]


@pytest.mark.parametrize(("settings", "text"), REFUSED_SETTINGS)
def test_refused_settings_end_the_stream(
    rpcs: Rpcs, caplog: pytest.LogCaptureFixture, settings: m.Settings, text: str
) -> None:
    stream = rpcs.telemetry()
    stream.send(m.TelemetryCommand(settings=settings))
    code, details = failure_of(stream)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.removeprefix("process client telemetryCommand failed. ").startswith(text)
    assert rpcs.Heartbeat(heartbeat()).status == NO_SETTINGS
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_settings_of_an_unknown_type_are_refused(rpcs: Rpcs) -> None:
    settings = settings_of_consumer("g-unknown", "settings-c")
    raw = settings.SerializeToString()[2:]  # without the type
    stream = rpcs.telemetry()
    stream.send(m.TelemetryCommand(settings=m.Settings.FromString(b"\x08\x63" + raw)))
    assert failure_of(stream) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "process client telemetryCommand failed. Client type is not consumer, type: 99",
    )


def test_a_group_that_does_not_exist_is_refused() -> None:
    with (
        EmbeddedCluster(grpc=True, autoCreateSubscriptionGroup=False) as cluster,
        Rpcs(cluster.brokers[0].grpc) as rpcs,
    ):
        stream = rpcs.telemetry()
        stream.send(m.TelemetryCommand(settings=settings_of_consumer("missing", "T")))
        assert failure_of(stream)[1].endswith("group not found: missing")


def test_an_error_before_the_settings_is_a_command(connect: Connect) -> None:
    """Node's client needs a command that has only a status; then the stream ends."""
    stream = connect(metadata={"x-mq-client-id": ""}).telemetry()
    stream.send(m.TelemetryCommand(settings=settings_of_producer("settings-p")))
    command = stream.next()
    assert command == m.TelemetryCommand(
        status=m.Status(code=m.Code.CLIENT_ID_REQUIRED, message="client id cannot be empty")
    )
    with pytest.raises(StopIteration):
        stream.next()


def test_refused_settings_leave_the_former_ones(rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_producer("settings-p"))
    stream = rpcs.telemetry()
    stream.send(m.TelemetryCommand(settings=settings_of_producer("a b")))
    failure_of(stream)
    assert rpcs.Heartbeat(heartbeat()).status.code == m.Code.OK


# --- life ---


def consumers_of(administrator: Administrator, cluster: BlockingCluster, group: str) -> list[str]:
    address = cluster.brokers[0].address
    return administrator(lambda admin: admin.groups.client_ids(address, group))


def producers_of(administrator: Administrator, cluster: BlockingCluster, topic: str) -> list[str]:
    address = cluster.brokers[0].address
    try:
        found = administrator(lambda admin: admin.groups.producers(address, topic))
    except BrokerError as error:
        if "not exist" not in error.remark:
            raise
        return []
    return [connection.client_id for connection in found.connection_set]


def test_the_broker_knows_a_consumer(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    settings = settings_of_consumer("g-known", "settings-c", kind=m.ClientType.PUSH_CONSUMER)
    settings.subscription.subscriptions[0].expression.expression = "a || b"
    rpcs.begin(settings)
    address = cluster.brokers[0].address
    found = administrator(lambda admin: admin.groups.consumers(address, "g-known"))
    [connection] = found.connection_set
    assert connection.client_id == rpcs.client_id
    assert connection.client_addr.startswith("127.0.0.1:")
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    subscription = found.subscription_table["settings-c"]
    assert (subscription.sub_string, subscription.expression_type) == ("a || b", "TAG")
    rpcs.begin(settings_of_consumer("g-known", "settings-c"))
    found = administrator(lambda admin: admin.groups.consumers(address, "g-known"))
    assert found.consume_type == "CONSUME_ACTIVELY"


@pytest.mark.parametrize(
    ("word", "expected"), [("JAVA", "JAVA"), ("GO", "GO"), ("NODE_JS", "NODE_JS"), ("ALGOL", "OTHER"), ("", "OTHER")]
)
def test_the_broker_knows_the_language_of_a_client(
    cluster: BlockingCluster, administrator: Administrator, connect: Connect, word: str, expected: str
) -> None:
    client = connect(metadata={"x-mq-language": word})
    client.begin(settings_of_consumer(f"g-language-{word}", "settings-c"))
    address = cluster.brokers[0].address
    found = administrator(lambda admin: admin.groups.consumers(address, f"g-language-{word}"))
    assert [connection.language for connection in found.connection_set] == [expected]


def test_a_heartbeat_leaves_the_subscriptions(
    cluster: BlockingCluster, administrator: Administrator, connect: Connect
) -> None:
    """Of two clients of a group, the newer settings count."""
    old, new = connect(), connect()
    group = "g-subscriptions"
    for number, client in enumerate((old, new)):
        settings = settings_of_consumer(group, "settings-c")
        settings.subscription.subscriptions[0].expression.expression = f"tag-{number}"
        client.begin(settings)
    beat = heartbeat(group, m.ClientType.SIMPLE_CONSUMER)
    assert old.Heartbeat(beat).status.code == m.Code.OK
    found = administrator(lambda admin: admin.groups.consumers(cluster.brokers[0].address, group))
    assert found.subscription_table["settings-c"].sub_string == "tag-1"
    assert len(found.connection_set) == 2


def test_a_producer_is_known_by_its_topics(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_producer("known-a", "known-b"))
    for topic in ("known-a", "known-b"):
        assert producers_of(administrator, cluster, topic) == [rpcs.client_id]
    assert rpcs.NotifyClientTermination(termination()).status == m.Status(code=m.Code.OK, message="OK")
    for topic in ("known-a", "known-b"):
        assert producers_of(administrator, cluster, topic) == []
    assert rpcs.NotifyClientTermination(termination()).status == NO_SETTINGS


def test_a_terminated_consumer_is_forgotten(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_consumer("g-terminated", "settings-c"))
    assert consumers_of(administrator, cluster, "g-terminated") == [rpcs.client_id]
    refused = rpcs.NotifyClientTermination(termination())
    assert refused.status.code == m.Code.ILLEGAL_CONSUMER_GROUP
    assert rpcs.NotifyClientTermination(termination("g-terminated")).status.code == m.Code.OK
    with pytest.raises(BrokerError):
        consumers_of(administrator, cluster, "g-terminated")
    assert rpcs.Heartbeat(heartbeat("g-terminated", m.ClientType.SIMPLE_CONSUMER)).status == NO_SETTINGS


def test_heartbeats(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    consumer = m.ClientType.PUSH_CONSUMER
    assert rpcs.Heartbeat(heartbeat("g-heartbeats", consumer)).status == NO_SETTINGS
    rpcs.begin(settings_of_consumer("g-heartbeats", "settings-c", kind=consumer))
    assert rpcs.Heartbeat(heartbeat("g-heartbeats", consumer)).status == m.Status(code=m.Code.OK, message="OK")
    assert rpcs.Heartbeat(heartbeat("", consumer)).status.code == m.Code.ILLEGAL_CONSUMER_GROUP


def test_a_heartbeat_that_was_sound_is_checked_again_after_new_settings(rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_producer("settings-p"))
    for _ in range(3):
        assert rpcs.Heartbeat(heartbeat()).status.code == m.Code.OK
    rpcs.begin(settings_of_consumer("g-heartbeats", "settings-c"))
    for _ in range(3):
        assert rpcs.Heartbeat(heartbeat()).status.code == m.Code.ILLEGAL_CONSUMER_GROUP
    for group in 2 * ["g-heartbeats", "g" * 120]:
        assert rpcs.Heartbeat(heartbeat(group)).status.code == m.Code.OK


def test_heartbeats_go_by_the_settings(rpcs: Rpcs) -> None:
    """A client that names another type, or none, is the one that it was."""
    rpcs.begin(settings_of_producer("settings-p"))
    for kind in (m.ClientType.CLIENT_TYPE_UNSPECIFIED, m.ClientType.PUSH_CONSUMER):
        assert rpcs.Heartbeat(heartbeat("", kind)).status.code == m.Code.OK


def test_the_end_of_the_stream_does_not_end_a_client(
    cluster: BlockingCluster, administrator: Administrator, connect: Connect
) -> None:
    client = connect()
    stream, _ = client.begin(settings_of_consumer("g-streamless", "settings-c"))
    stream.end()
    with pytest.raises(StopIteration):
        stream.next()
    assert consumers_of(administrator, cluster, "g-streamless") == [client.client_id]
    other = connect(client.client_id)  # on another connection
    beat = heartbeat("g-streamless", m.ClientType.SIMPLE_CONSUMER)
    assert other.Heartbeat(beat).status.code == m.Code.OK


def test_settings_by_another_connection_move_the_client(
    cluster: BlockingCluster, administrator: Administrator, connect: Connect
) -> None:
    address = cluster.brokers[0].address
    client = connect()
    client.begin(settings_of_consumer("g-moved", "settings-c"))
    [before] = administrator(lambda admin: admin.groups.consumers(address, "g-moved")).connection_set
    connect(client.client_id).begin(settings_of_consumer("g-moved", "settings-c"))
    [after] = administrator(lambda admin: admin.groups.consumers(address, "g-moved")).connection_set
    assert (before.client_id, after.client_id) == (client.client_id, client.client_id)
    assert before.client_addr != after.client_addr


def test_a_heartbeat_registers_a_client_again_once_in_a_minute_or_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[int] = []
    register = LocalBrokers.beat

    async def beat(self: LocalBrokers, *arguments: Any) -> None:
        registered.append((time.now_ms - began_ms) // 1000)
        if registered[-1] == 60:
            raise ProxyError(m.Code.UNAUTHORIZED)
        await register(self, *arguments)

    async def main() -> None:
        await time.cluster.create_topic("T")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        await client.settled(settings_of_consumer("g", "T"))
        beat = heartbeat("g", m.ClientType.SIMPLE_CONSUMER)
        codes = []
        for _ in range(13):
            await asyncio.sleep(10)
            codes.append((await client.Heartbeat(beat)).status.code)
        assert registered == [0, 60, 70, 130]
        assert codes == [m.Code.OK] * 5 + [m.Code.UNAUTHORIZED] + [m.Code.OK] * 7

    monkeypatch.setattr(LocalBrokers, "beat", beat)
    with VirtualTime(grpc=True) as time:
        began_ms = time.now_ms
        time.run(main())


def test_a_silent_client_is_forgotten() -> None:
    """Two minutes after its last heartbeat; a stream does not count."""

    async def main() -> None:
        await time.cluster.create_topic("T")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        clients = time.cluster.brokers[0].proxy.service.clients
        await client.settled(settings_of_consumer("g", "T"))
        beat = heartbeat("g", m.ClientType.SIMPLE_CONSUMER)
        for _ in range(3):
            await asyncio.sleep(100)
            assert (await client.Heartbeat(beat)).status.code == m.Code.OK
        await asyncio.sleep(115)
        assert list(clients.all())
        await asyncio.sleep(20)
        assert not list(clients.all())
        assert (await client.Heartbeat(beat)).status == NO_SETTINGS
        assert (await client.SendMessage(send_request("T", b"x"))).status.code == m.Code.OK

    with VirtualTime(grpc=True) as time:
        time.run(main())


def test_a_client_is_heard_when_its_settings_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy broker may take long to register it."""
    beat = LocalBrokers.beat

    async def late(brokers: LocalBrokers, *given: Any) -> None:
        reply: Reply[None] = Reply()
        asyncio.get_running_loop().call_later(100, reply.set_result, None)
        await reply
        await beat(brokers, *given)

    async def main() -> None:
        await time.cluster.create_topic("T")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        monkeypatch.setattr(LocalBrokers, "beat", late)
        await client.settled(settings_of_consumer("g", "T"))
        monkeypatch.setattr(LocalBrokers, "beat", beat)
        await asyncio.sleep(100)
        alive = await client.Heartbeat(heartbeat("g", m.ClientType.SIMPLE_CONSUMER))
        assert alive.status.code == m.Code.OK

    with VirtualTime(grpc=True) as time:
        time.run(main())


# --- requests of administrators ---


class Asked:
    """An administrator's request in a thread."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, args=(ask,))
        self._thread.start()

    def _run(self, ask: Callable[[], object]) -> None:
        try:
            self.outcome = ask()
        except FirearrowError as error:
            self.outcome = error

    def wait(self) -> object:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.outcome


def test_the_state_of_a_consumer(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_consumer("g-state", "settings-c", kind=m.ClientType.PUSH_CONSUMER))
    address = cluster.brokers[0].address
    info = administrator(lambda admin: admin.groups.running_info(address, "g-state", rpcs.client_id))
    assert info.is_push
    assert not info.is_ordered
    assert info.jstack is None
    assert info.properties["PROP_CLIENT_VERSION"] == "5.1.2"
    assert [data.topic for data in info.subscription_set] == ["settings-c"]


def test_the_stack_trace_of_a_consumer(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    stream, _ = rpcs.begin(settings_of_consumer("g-trace", "settings-c"))
    address = cluster.brokers[0].address

    def ask() -> ConsumerRunningInfo:
        return administrator(lambda admin: admin.groups.running_info(address, "g-trace", rpcs.client_id, stacks=True))

    asked = Asked(ask)
    nonce = stream.next().print_thread_stack_trace_command.nonce
    trace = m.ThreadStackTrace(nonce=nonce, thread_stack_trace="main()")
    stream.send(m.TelemetryCommand(thread_stack_trace=m.ThreadStackTrace(nonce="another")))
    stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), thread_stack_trace=trace))
    info = asked.wait()
    assert isinstance(info, ConsumerRunningInfo), info
    assert info.jstack == "main()"
    asked = Asked(ask)
    nonce = stream.next().print_thread_stack_trace_command.nonce
    status = m.Status(code=m.Code.NOT_IMPLEMENTED, message="I can't")
    stream.send(m.TelemetryCommand(status=status, thread_stack_trace=m.ThreadStackTrace(nonce=nonce)))
    error = asked.wait()
    assert isinstance(error, BrokerError)
    assert "I can't" in error.remark


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (m.Code.OK, "CR_SUCCESS"),
        (m.Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (m.Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (m.Code.INTERNAL_ERROR, "CR_THROW_EXCEPTION"),
    ],
)
def test_a_message_is_consumed_on_request(
    cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs, code: m.Code, expected: str
) -> None:
    cluster.create_topic("verified")
    rpcs.SendMessage(send_request("verified", b"verify me", tag="a"))
    stream, _ = rpcs.begin(settings_of_consumer("g-verified", "verified", kind=m.ClientType.PUSH_CONSUMER))
    view = cluster.messages("verified")[-1]

    def ask() -> DirectResult:
        return administrator(lambda admin: admin.consume_directly("g-verified", rpcs.client_id, "verified", view))

    asked = Asked(ask)
    command = stream.next().verify_message_command
    assert (command.message.body, command.message.topic.name) == (b"verify me", "verified")
    assert command.message.system_properties.tag == "a"
    result = m.VerifyMessageResult(nonce=command.nonce)
    stream.send(m.TelemetryCommand(status=m.Status(code=code), verify_message_result=result))
    found = asked.wait()
    assert isinstance(found, DirectResult), found
    assert (found.consume_result, found.remark) == (expected, "from gRPC client")


def test_a_client_without_a_stream_is_not_waited_for(
    cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs
) -> None:
    stream, _ = rpcs.begin(settings_of_consumer("g-mute", "settings-c"))
    address = cluster.brokers[0].address

    def ask() -> ConsumerRunningInfo:
        return administrator(lambda admin: admin.groups.running_info(address, "g-mute", rpcs.client_id, stacks=True))

    asked = Asked(ask)
    assert stream.next().print_thread_stack_trace_command.nonce
    stream.end()
    error = asked.wait()
    assert isinstance(error, BrokerError)
    assert "has ended its telemetry stream" in error.remark
    with pytest.raises(BrokerError, match="has no telemetry stream"):
        ask()


def test_a_client_that_does_not_answer_is_given_up() -> None:
    async def main() -> None:
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        await client.settled(settings_of_consumer("g", "T"))
        admin = Admin(time.cluster._client, [time.cluster.name_server])
        address = time.cluster.brokers[0].address
        began = time.now_ms
        with pytest.raises(BrokerError, match="call remote timeout"):
            await admin.groups.running_info(address, "g", client.client_id, stacks=True)
        assert time.now_ms - began == pytest.approx(3000, abs=100)

    with VirtualTime(grpc=True, grpcProxyRelayRequestTimeoutInSeconds=3) as time:
        time.run(main())
