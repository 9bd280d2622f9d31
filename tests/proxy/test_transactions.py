"""Transactions: decisions, and the broker's checks of producers that do not decide."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode

import pytest

from firearrow.proxy import messages as m
from firearrow.proxy.transactionids import TransactionId
from firearrow.testing.cluster import BlockingCluster
from firearrow.testing.virtual import VirtualTime
from tests.loglines import told
from tests.proxy.conftest import Connect
from tests.proxy.direct import Direct, DirectCall
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer, settings_of_producer

OK = m.Status(code=m.Code.OK, message="OK")
COMMIT, ROLLBACK = m.TransactionResolution.COMMIT, m.TransactionResolution.ROLLBACK
UNKNOWN = m.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
CHECKED = m.TransactionSource.SOURCE_SERVER_CHECK


def half(topic: str, body: bytes = b"half", recovery_s: int = 0) -> m.SendMessageRequest:
    request = send_request(topic, body, kind=m.MessageType.TRANSACTION)
    if recovery_s:
        request.messages[0].system_properties.orphaned_transaction_recovery_duration.seconds = recovery_s
    return request


def end(
    topic: str,
    entry: m.SendResultEntry,
    resolution: m.TransactionResolution,
    source: m.TransactionSource = m.TransactionSource.SOURCE_CLIENT,
) -> m.EndTransactionRequest:
    return m.EndTransactionRequest(
        topic=m.Resource(name=topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=source,
    )


def sent(rpcs: Rpcs, topic: str) -> m.SendResultEntry:
    answer: m.SendMessageResponse = rpcs.SendMessage(half(topic))
    assert answer.status == OK
    [entry] = answer.entries
    return entry


def test_a_message_is_visible_after_its_commit(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("committed", message_type="TRANSACTION")
    rpcs.begin(settings_of_consumer("g", "committed"))
    entry = sent(rpcs, "committed")
    assert entry.transaction_id != entry.message_id
    assert not rpcs.received(receive_request("g", "committed", wait_s=0))
    assert rpcs.EndTransaction(end("committed", entry, COMMIT)).status == OK
    [message] = rpcs.received(receive_request("g", "committed"))
    system = message.system_properties
    assert (message.body, system.message_id) == (b"half", entry.message_id)
    assert system.message_type == m.MessageType.TRANSACTION
    for resolution in (COMMIT, ROLLBACK):  # the first decision counts
        assert rpcs.EndTransaction(end("committed", entry, resolution)).status == OK
    assert len(cluster.messages("committed")) == 1


def test_a_message_that_is_rolled_back_never_comes(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("rolled-back", message_type="TRANSACTION")
    entry = sent(rpcs, "rolled-back")
    assert rpcs.EndTransaction(end("rolled-back", entry, ROLLBACK)).status == OK
    assert rpcs.EndTransaction(end("rolled-back", entry, COMMIT)).status == OK
    assert not cluster.messages("rolled-back")


def test_an_unknown_decision_leaves_the_transaction_open(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("open", message_type="TRANSACTION")
    entry = sent(rpcs, "open")
    assert rpcs.EndTransaction(end("open", entry, UNKNOWN)).status == OK
    assert not cluster.messages("open")
    assert rpcs.EndTransaction(end("open", entry, COMMIT)).status == OK
    assert len(cluster.messages("open")) == 1


def test_several_halves_have_their_transactions(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("halves", message_type="TRANSACTION")
    request = half("halves", b"a")
    request.messages.extend(half("halves", b"b").messages)
    first, second = rpcs.SendMessage(request).entries
    assert rpcs.EndTransaction(end("halves", second, COMMIT)).status == OK
    assert rpcs.EndTransaction(end("halves", first, ROLLBACK)).status == OK
    assert [view.body for view in cluster.messages("halves")] == [b"b"]


def test_a_decision_by_another_client_after_a_restart(cluster: BlockingCluster, connect: Connect) -> None:
    """The id has the place of the message, so no proxy must remember it."""
    cluster.create_topic("restarted", message_type="TRANSACTION")
    entry = sent(connect(), "restarted")
    cluster.restart_broker()
    assert connect().EndTransaction(end("restarted", entry, COMMIT)).status == OK
    assert [view.body for view in cluster.messages("restarted")] == [b"half"]


def altered(entry: m.SendResultEntry, transaction_id: str) -> m.SendResultEntry:
    return m.SendResultEntry(message_id=entry.message_id, transaction_id=transaction_id)


def test_ids_that_are_none(cluster: BlockingCluster, rpcs: Rpcs, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create_topic("no-id", message_type="TRANSACTION")
    entry = sent(rpcs, "no-id")
    for text in ("", " "):
        answer = rpcs.EndTransaction(end("no-id", altered(entry, text), COMMIT))
        assert answer.status == m.Status(code=m.Code.INVALID_TRANSACTION_ID, message="transaction id cannot be empty")
    words = (b"v1", b"v1 1 2", b"v1 -1 2 broker-a", b"v2 1 2 broker-a", b"v1 1 9999999999999999999 b", b"\xff\xfe")
    texts = ("é", "x" * 5000, entry.message_id, *(urlsafe_b64encode(it).decode() for it in words))
    for text in texts:
        answer = rpcs.EndTransaction(end("no-id", altered(entry, text), COMMIT))
        assert answer.status.code == m.Code.INVALID_TRANSACTION_ID, text
    answer = rpcs.EndTransaction(end("a b", entry, COMMIT))
    assert answer.status.code == m.Code.ILLEGAL_TOPIC
    assert not cluster.messages("no-id")
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_forged_ids_change_nothing(cluster: BlockingCluster, rpcs: Rpcs, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create_topic("forged", message_type="TRANSACTION")
    cluster.create_topic("forger", message_type="TRANSACTION")
    cluster.create_topic("plain")
    rpcs.SendMessage(send_request("plain", b"plain"))
    plain = cluster.messages("plain")[0]
    entry = sent(rpcs, "forged")
    broker, queue_offset, log_offset = TransactionId.parse(entry.transaction_id)
    forged = [
        TransactionId(broker, queue_offset + 1, log_offset),
        TransactionId(broker, queue_offset, log_offset + 1),
        TransactionId(broker, queue_offset, 1 << 62),
        TransactionId(broker, plain.queue_offset, plain.physical_offset),
    ]
    for place in forged:
        answer = rpcs.EndTransaction(end("forged", altered(entry, str(place)), COMMIT))
        assert answer.status.code == m.Code.INTERNAL_SERVER_ERROR, place
    stranger = str(TransactionId("broker-z", queue_offset, log_offset))
    assert rpcs.EndTransaction(end("forged", altered(entry, stranger), COMMIT)).status.code == m.Code.BAD_REQUEST
    answer = rpcs.EndTransaction(end("forger", entry, COMMIT))
    assert answer.status.code == m.Code.INTERNAL_SERVER_ERROR
    assert "producer group wrong" in answer.status.message
    assert not cluster.messages("forged")
    assert not cluster.messages("forger")
    assert rpcs.EndTransaction(end("forged", entry, COMMIT)).status == OK
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


# --- checks ---


async def recovered(call: DirectCall) -> m.RecoverOrphanedTransactionCommand:
    data = await call.answers.get()
    assert isinstance(data, bytes), data
    command = m.TelemetryCommand.FromString(data)
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command", command
    return command.recover_orphaned_transaction_command


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_a_producer_is_asked_about_an_open_transaction(resolution: m.TransactionResolution) -> None:
    async def main() -> None:
        await time.cluster.create_topic("T", message_type="TRANSACTION")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        stream = await client.settled(settings_of_producer("T"))
        began_ms = time.now_ms
        [entry] = (await client.SendMessage(half("T"))).entries
        command = await recovered(stream)
        assert 6000 <= time.now_ms - began_ms <= 40_000
        assert (command.message.body, command.message.topic.name) == (b"half", "T")
        assert command.message.system_properties.message_id == entry.message_id
        found = altered(entry, command.transaction_id)
        assert (await client.EndTransaction(end("T", found, resolution, CHECKED))).status == OK
        await asyncio.sleep(120)
        assert stream.answers.empty()  # it is not asked again
        committed = [view.body for view in time.cluster.messages("T")]
        assert committed == ([b"half"] if resolution == COMMIT else [])

    with VirtualTime(grpc=True) as time:
        time.run(main())


def test_a_producer_that_does_not_know_is_asked_again() -> None:
    async def main() -> None:
        await time.cluster.create_topic("T", message_type="TRANSACTION")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        stream = await client.settled(settings_of_producer("T"))
        [entry] = (await client.SendMessage(half("T"))).entries
        beat = m.HeartbeatRequest(client_type=m.ClientType.PRODUCER)
        for _ in range(3):
            command = await recovered(stream)
            found = altered(entry, command.transaction_id)
            assert (await client.EndTransaction(end("T", found, UNKNOWN, CHECKED))).status == OK
            await client.Heartbeat(beat)
        assert not time.cluster.messages("T")
        assert (await client.EndTransaction(end("T", entry, COMMIT))).status == OK
        assert len(time.cluster.messages("T")) == 1

    with VirtualTime(grpc=True) as time:
        time.run(main())


def test_the_first_check_comes_when_the_message_says() -> None:
    async def main() -> None:
        await time.cluster.create_topic("T", message_type="TRANSACTION")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        stream = await client.settled(settings_of_producer("T"))
        began_ms = time.now_ms
        request = half("T", recovery_s=80)
        request.messages[0].system_properties.born_timestamp.FromMilliseconds(began_ms)
        assert (await client.SendMessage(request)).status == OK
        await recovered(stream)
        assert 80_000 <= time.now_ms - began_ms <= 115_000

    with VirtualTime(grpc=True) as time:
        time.run(main())


def test_another_producer_of_the_topic_is_asked_in_place_of_a_lost_one() -> None:
    async def main() -> None:
        await time.cluster.create_topic("T", message_type="TRANSACTION")
        proxy = time.cluster.brokers[0].proxy
        sender, other = (Direct(proxy, time.clock.now_ms) for _ in range(2))
        await sender.settled(settings_of_producer("T"))
        stream = await other.settled(settings_of_producer("T"))
        [entry] = (await sender.SendMessage(half("T"))).entries
        await sender.NotifyClientTermination(m.NotifyClientTerminationRequest())
        command = await recovered(stream)
        assert command.message.system_properties.message_id == entry.message_id

    with VirtualTime(grpc=True) as time:
        time.run(main())
