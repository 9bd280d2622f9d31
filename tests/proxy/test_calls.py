"""Requests that are wrong: each gets the code that says so, and none is a bug of the server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from firearrow.proxy import messages as m
from firearrow.testing.cluster import BlockingCluster
from tests.loglines import told
from tests.proxy.direct import World, run
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer, settings_of_producer

CODE = m.Code
T, G = m.Resource(name="T"), m.Resource(name="g")
HANDLE = "0 1795211880000 99999999999 1 0 broker-a 0 0 0"
QUEUE = m.MessageQueue(topic=T, broker=m.Broker(name="broker-a"))
REQUESTS: dict[str, Any] = {
    "QueryRoute": m.QueryRouteRequest(topic=T),
    "QueryAssignment": m.QueryAssignmentRequest(topic=T, group=G),
    "SendMessage": send_request("T", b"x", tag="a", keys=["k"], properties={"a": "b"}),
    "ReceiveMessage": receive_request("g", "T"),
    "AckMessage": m.AckMessageRequest(topic=T, group=G, entries=[m.AckMessageEntry(receipt_handle=HANDLE)]),
    "ChangeInvisibleDuration": m.ChangeInvisibleDurationRequest(
        topic=T, group=G, receipt_handle=HANDLE, invisible_duration=m.Duration(seconds=10)
    ),
    "ForwardMessageToDeadLetterQueue": m.ForwardMessageToDeadLetterQueueRequest(
        topic=T, group=G, receipt_handle=HANDLE, message_id="id"
    ),
    "EndTransaction": m.EndTransactionRequest(
        topic=T, transaction_id="djEgMCAwIGJyb2tlci1h", resolution=m.TransactionResolution.COMMIT
    ),
    "RecallMessage": m.RecallMessageRequest(topic=T, recall_handle="djEgVCBicm9rZXItYSAxIGlk"),
    "Heartbeat": m.HeartbeatRequest(group=G, client_type=m.ClientType.PUSH_CONSUMER),
    "NotifyClientTermination": m.NotifyClientTerminationRequest(group=G),
    "SyncLiteSubscription": m.SyncLiteSubscriptionRequest(
        topic=T, group=G, lite_topic_set=["a"], offset_option=m.OffsetOption(offset=1)
    ),
    "PullMessage": m.PullMessageRequest(group=G, message_queue=QUEUE, offset=0),
    "UpdateOffset": m.UpdateOffsetRequest(group=G, message_queue=QUEUE, offset=1),
    "GetOffset": m.GetOffsetRequest(group=G, message_queue=QUEUE),
    "QueryOffset": m.QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=m.QueryOffsetPolicy.END),
}
STREAMED = ("ReceiveMessage", "PullMessage")


def code_of(name: str, answers: list[bytes]) -> int:
    """Return the code of an answer."""
    status: m.Status = getattr(m, f"{name}Response").FromString(answers[0]).status
    return status.code


def bugs(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [line for line in told(caplog) if line["event"] == "call failed"]


@pytest.fixture
def no_bugs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test if a call has failed by an error of the server."""
    yield
    assert not bugs(caplog)


@pytest.mark.usefixtures("no_bugs")
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc", b"\x08", bytes(100)])
def test_bytes_that_are_no_message(cluster: BlockingCluster, rpcs: Rpcs, name: str, data: bytes) -> None:
    answers = rpcs.raw(name, data)
    assert code_of(name, answers) == CODE.BAD_REQUEST
    status = getattr(m, f"{name}Response").FromString(answers[0]).status
    assert status.message.startswith(f"the request is no {name}Request: ")


@pytest.mark.usefixtures("no_bugs")
def test_bytes_that_are_no_command_end_a_stream(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    [answer] = rpcs.raw("Telemetry", b"\xff")
    command = m.TelemetryCommand.FromString(answer)
    assert command.status.code == CODE.BAD_REQUEST
    assert not command.HasField("settings")


@pytest.mark.usefixtures("no_bugs")
@pytest.mark.parametrize("name", REQUESTS)
def test_empty_requests(cluster: BlockingCluster, rpcs: Rpcs, name: str) -> None:
    code = code_of(name, rpcs.raw(name, b""))
    assert CODE.BAD_REQUEST <= code < CODE.INTERNAL_ERROR


@pytest.mark.usefixtures("no_bugs")
def test_empty_commands(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    """A command of an unknown kind, or an answer to a question that nobody has asked, has no effect."""
    stream, _ = rpcs.begin(settings_of_producer())
    stream.send(m.TelemetryCommand())
    stream.send(m.TelemetryCommand(verify_message_result=m.VerifyMessageResult(nonce="x")))
    stream.send(m.TelemetryCommand(thread_stack_trace=m.ThreadStackTrace(nonce="x")))
    stream.send(m.TelemetryCommand(settings=settings_of_producer()))
    assert stream.next().status.code == CODE.OK


@pytest.mark.usefixtures("no_bugs")
def test_unknown_numbers_of_a_message(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    """A type that is not known counts as that which the other fields make it, as in RocketMQ."""
    cluster.create_topic("unknown-numbers", queues=1)
    request = send_request("unknown-numbers", b"x")
    system = request.messages[0].system_properties
    system.message_type = 99
    system.body_encoding = 77
    system.body_digest.type = 55
    assert rpcs.SendMessage(request).status.code == CODE.OK
    rpcs.begin(settings_of_consumer("g", "unknown-numbers"))
    receive = receive_request("g", "unknown-numbers")
    receive.filter_expression.type = 33
    [message] = rpcs.received(receive)
    assert message.system_properties.message_type == m.MessageType.NORMAL
    assert message.system_properties.body_encoding == m.Encoding.IDENTITY


@pytest.mark.usefixtures("no_bugs")
def test_unknown_numbers_of_a_decision(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("undecided", queues=1, message_type="TRANSACTION")
    [entry] = rpcs.SendMessage(send_request("undecided", b"x", kind=m.MessageType.TRANSACTION)).entries
    request = m.EndTransactionRequest(topic=m.Resource(name="undecided"), transaction_id=entry.transaction_id)
    request.resolution = request.source = 99
    assert rpcs.EndTransaction(request).status.code == CODE.OK
    assert not cluster.messages("undecided")
    request.resolution = m.TransactionResolution.COMMIT
    assert rpcs.EndTransaction(request).status.code == CODE.OK
    assert len(cluster.messages("undecided")) == 1


@pytest.mark.usefixtures("no_bugs")
def test_batches_of_any_size(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("batches", queues=1)
    assert rpcs.SendMessage(send_request("batches", *[b"x"] * 2000)).status.code == CODE.OK
    for count in (-1, 0, -(1 << 31)):
        answers = rpcs.raw("ReceiveMessage", receive_request("g-batches", "batches", count=count).SerializeToString())
        assert code_of("ReceiveMessage", answers) == CODE.BAD_REQUEST, count
    found = rpcs.received(receive_request("g-batches", "batches", count=(1 << 31) - 1))
    assert 1 <= len(found) <= 32
    request = Rpcs.ack_request("g-batches", "batches", *found * 100)
    answer = rpcs.AckMessage(request)
    assert len(answer.entries) == len(request.entries)


@pytest.mark.usefixtures("no_bugs")
def test_a_body_may_have_four_mebibytes(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("large", queues=1)
    size = 4 * 1024 * 1024
    assert rpcs.SendMessage(send_request("large", bytes(size + 1))).status.code == CODE.MESSAGE_BODY_TOO_LARGE
    assert rpcs.SendMessage(send_request("large", bytes(size))).status.code == CODE.OK
    rpcs.begin(settings_of_consumer("g-large", "large"))
    [message] = rpcs.received(receive_request("g-large", "large"))
    assert message.body == bytes(size)


TEXTS = (
    *("", " ", "a", "T", "g", "broker-a", "a b", "a|b", "a||b", "||", "\0", "\x01\x02", "é", "\U0001f600"),
    *("x" * 300, "%RETRY%g", "%DLQ%g", "TBW102", "SCHEDULE_TOPIC_XXXX", "%LMQ%$L$a", "ns%T", "n > 1", "n >", "-1"),
    *(HANDLE, HANDLE + " x", HANDLE.replace("broker-a", "T"), "djEgMCAwIGJyb2tlci1h", "djEgVCBicm9rZXItYSAxIGlk"),
)
NUMBERS = (0, 1, 2, 10, 99, 1000, 4_000_000_000, 1 << 62, (1 << 63) - 1, -1, -(1 << 63))


def wild(message: Any, chance: random.Random, share: float, depth: int = 0) -> Any:
    """Set a share of the fields of a message to values that a client may send, but should not; return it."""
    for field in message.DESCRIPTOR.fields:
        many, part = field.is_repeated, field.message_type
        if part is None:
            if chance.random() < share:
                values = [value_of(field, chance) for _ in range(chance.randint(1, 3))]
                if many:
                    getattr(message, field.name).extend(values)
                else:
                    setattr(message, field.name, values[0])
        elif part.GetOptions().map_entry:
            if chance.random() < share:
                getattr(message, field.name)[chance.choice(TEXTS)] = chance.choice(TEXTS)
        elif many:
            parts = getattr(message, field.name)
            if chance.random() < share:
                parts.add()
            for one in parts:
                wild(one, chance, share, depth + 1)
        elif message.HasField(field.name) or (depth < 6 and chance.random() < share):
            getattr(message, field.name).SetInParent()
            wild(getattr(message, field.name), chance, share, depth + 1)
    return message


def value_of(field: Any, chance: random.Random) -> Any:
    """Return a value for a field."""
    if field.type == field.TYPE_STRING:
        return chance.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return chance.choice((b"", b"x", bytes(1000), b"\x1f\x8b\xff"))
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return chance.choice((0.0, -1.5, 1e300, float("nan")))
    bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_ENUM, field.TYPE_UINT32) else 64
    number = chance.choice(NUMBERS)
    return max(min(number, (1 << bits - 1) - 1), 0 if field.type == field.TYPE_UINT32 else -(1 << bits - 1))


@pytest.mark.parametrize("name", REQUESTS)
def test_wild_requests(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each is answered, by whatever code; none is a bug of the server."""
    chance = random.Random(name)
    kind = getattr(m, f"{name}Request")

    async def main(world: World) -> None:
        client = await world.consumer()
        for number in range(100):
            request = kind()
            if number % 10:
                request.CopyFrom(REQUESTS[name])
            wild(request, chance, 0.05 if number % 10 else 0.6)
            call = client.begin(name)
            call.take(request.SerializeToString())
            answers = await call.all()
            assert answers, request
            assert code_of(name, answers) >= CODE.OK, request
            assert not bugs(caplog), (request, bugs(caplog))

    run(main, grpcClientConsumerMinLongPollingTimeoutMillis=1, minInvisibleTimeMillsForRecv=0)


def test_wild_commands(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(5)

    async def main(world: World) -> None:
        for _ in range(300):
            client = world.client()
            stream = client.begin("Telemetry", None)
            for _ in range(3):
                command = wild(m.TelemetryCommand(), chance, 0.6)
                if not stream.is_over:
                    stream.take(command.SerializeToString())
                assert not bugs(caplog), (command, bugs(caplog))

    run(main)


def altered(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of them changed, removed or repeated."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(4)
        if kind == 0 and found:
            found[at % len(found)] = chance.randrange(256)
        elif kind == 1:
            del found[at : at + chance.randint(1, 3)]
        elif kind == 2:
            found[at:at] = chance.randbytes(chance.randint(1, 3))
        else:
            found[at:at] = found[at : at + 8]
    return bytes(found)


@pytest.mark.parametrize("name", REQUESTS)
def test_altered_requests(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each is answered, by whatever code; none is a bug of the server."""
    chance = random.Random(name)
    kind = getattr(m, f"{name}Request")
    original = REQUESTS[name].SerializeToString()

    async def main(world: World) -> None:
        client = await world.consumer()
        for _ in range(150):
            data = altered(original, chance)
            call = client.begin(name)
            call.take(data)
            answers = await call.all()
            assert answers, data
            code = code_of(name, answers)
            assert code >= CODE.OK, (data, code)
            if bugs(caplog):
                raise AssertionError(f"{data!r} is {readable(kind, data)}: {bugs(caplog)}")

    run(main, grpcClientConsumerMinLongPollingTimeoutMillis=1)


def readable(kind: Any, data: bytes) -> str:
    try:
        return str(kind.FromString(data))
    except DecodeError as error:
        return str(error)


def test_altered_settings(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(5)
    originals = [
        m.TelemetryCommand(settings=settings).SerializeToString()
        for settings in (settings_of_producer("T"), settings_of_consumer("g", "T"))
    ]

    async def main(world: World) -> None:
        for number in range(300):
            data = altered(originals[number % 2], chance)
            call = world.client().begin("Telemetry", None)
            call.take(data)
            assert call.ended is None or not call.is_over or not call.answers.empty()
            if bugs(caplog):
                raise AssertionError(f"{data!r} is {readable(m.TelemetryCommand, data)}: {bugs(caplog)}")

    run(main)
