"""Messages of push consumers: they stay invisible while their client lives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firearrow.proxy import messages as m
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.conftest import Connect
from tests.proxy.direct import Direct, World, answered, run
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

KEYS = {"maxTransferBytesOnMessageInMemory": 64 * 1024 * 1024}
OK = m.Status(code=m.Code.OK, message="OK")
NOTHING = m.Status(code=m.Code.MESSAGE_NOT_FOUND, message="no new message")
PUSH = m.ClientType.PUSH_CONSUMER
BEAT = m.HeartbeatRequest(group=m.Resource(name="g"), client_type=PUSH)
TERMINATION = m.NotifyClientTerminationRequest(group=m.Resource(name="g"))


def renewed(group: str = "g", **options: Any) -> m.ReceiveMessageRequest:
    return receive_request(group, "T", auto_renew=True, **options)


async def pushed(world: World) -> Direct:
    """Make a push consumer of T that sends heartbeats for as long as the test runs."""
    client = world.client()
    await client.settled(settings_of_consumer("g", "T", kind=PUSH))

    async def live() -> None:
        while True:
            await client.Heartbeat(BEAT)
            await asyncio.sleep(10)

    world.tasks.append(asyncio.create_task(live()))
    return client


async def one(client: Direct) -> m.Message:
    [message] = await client.received(renewed())
    return message


def acknowledgement(message: m.Message) -> m.AckMessageRequest:
    return Rpcs.ack_request("g", "T", message)


def renewals_of(world: World) -> int:
    return len(world.cluster.brokers[0].proxy.service.consuming.renewal)


def test_a_message_stays_invisible_while_its_client_lives() -> None:
    """The handle that the client got is valid all the time."""

    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        await world.send(b"x")
        message = await one(client)
        for _ in range(60):
            await asyncio.sleep(120)
            assert await answered(other, receive_request("g", "T", wait_s=5)) == NOTHING
        assert renewals_of(world) == 1
        assert (await client.AckMessage(acknowledgement(message))).status == OK
        assert renewals_of(world) == 0
        await asyncio.sleep(3700)
        assert await answered(other, receive_request("g", "T", wait_s=5)) == NOTHING

    run(main)


def test_a_message_is_renewed_for_three_hours_at_most() -> None:
    """Then it comes again, by the retry policy of the group."""

    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        began_ms = world.time.now_ms
        await world.send(b"x")
        await one(client)
        while not (found := await other.received(receive_request("g", "T", wait_s=20))):
            assert world.time.now_ms - began_ms < 5 * 3_600_000
        assert world.time.now_ms - began_ms >= 3 * 3_600_000
        assert found[0].system_properties.delivery_attempt == 2
        assert renewals_of(world) == 0

    run(main)


@pytest.mark.parametrize(
    ("policy", "expected_s"),
    [
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 2000, 40_000, 50_000]}}, 40),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [30_000]}}, 30),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 20_000, "max": 60_000, "multiplier": 2}}, 20),
    ],
)
def test_the_retry_policy_decides_when_a_message_comes_that_is_not_renewed(
    policy: dict[str, Any], expected_s: int
) -> None:
    async def main(world: World) -> None:
        await world.cluster.create_group("g", group_retry_policy=policy)
        client, other = await pushed(world), await world.consumer()
        await world.send(b"x")
        began_ms = world.time.now_ms
        await one(client)
        while not await other.received(receive_request("g", "T", wait_s=5)):
            assert world.time.now_ms - began_ms < 300_000
        # The look for messages to renew comes each 5 s, and finds this one 10 s before its minute is over.
        seconds = (world.time.now_ms - began_ms) / 1000
        assert 50 + expected_s <= seconds <= 57 + expected_s

    run(main, renewMaxTimeMillis=40_000)


def test_messages_of_a_terminated_client_come_soon() -> None:
    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        await world.send(b"x")
        await one(client)
        assert (await client.NotifyClientTermination(TERMINATION)).status == OK
        began_ms = world.time.now_ms
        [message] = await other.received(receive_request("g", "T", wait_s=20))
        assert message.body == b"x"
        assert world.time.now_ms - began_ms <= 3000
        assert renewals_of(world) == 0

    run(main)


def test_messages_of_a_silent_client_come_when_it_is_forgotten() -> None:
    async def main(world: World) -> None:
        client, other = world.client(), await world.consumer()
        await client.settled(settings_of_consumer("g", "T", kind=PUSH))
        await world.send(b"x")
        await one(client)
        began_ms = world.time.now_ms
        other_beat = m.HeartbeatRequest(group=m.Resource(name="g"), client_type=m.ClientType.SIMPLE_CONSUMER)
        while not await other.received(receive_request("g", "T", wait_s=5)):
            await other.Heartbeat(other_beat)
        assert 115_000 <= world.time.now_ms - began_ms <= 145_000

    run(main)


def test_a_client_that_ends_while_it_waits_for_messages_gets_none() -> None:
    """A message that comes then is not kept for it."""

    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        waiting = asyncio.create_task(answered(client, renewed(wait_s=20)))
        await asyncio.sleep(1)
        assert (await client.NotifyClientTermination(TERMINATION)).status == OK
        await world.send(b"x")
        assert await waiting == m.Status(
            code=m.Code.MESSAGE_NOT_FOUND, message=f"The client [{client.client_id}] is disconnected."
        )
        began_ms = world.time.now_ms
        [message] = await other.received(receive_request("g", "T", wait_s=20))
        assert (message.body, message.system_properties.delivery_attempt) == (b"x", 1)
        assert world.time.now_ms - began_ms <= 3000
        assert renewals_of(world) == 0

    run(main)


def test_messages_that_a_client_did_not_take_come_soon(cluster: BlockingCluster, connect: Connect) -> None:
    """One client gives a call up, another loses its connection, while there is no room for all of the answer."""
    cluster.create_topic("untaken", queues=1)
    other = connect()
    ids = set()
    for _ in range(32):
        [entry] = other.SendMessage(send_request("untaken", bytes(600_000))).entries
        ids.add(entry.message_id)
    end = m.QueryOffsetRequest(query_offset_policy=m.QueryOffsetPolicy.END)
    end.message_queue.CopyFrom(m.MessageQueue(topic=m.Resource(name="untaken"), broker=m.Broker(name="broker-a")))
    while other.QueryOffset(end).offset < 32:
        pass
    clients = [connect(), connect()]
    for client in clients:
        group = f"g-{client.client_id}"
        client.begin(settings_of_consumer(group, "untaken", kind=PUSH))
        call = client.streamed("ReceiveMessage", receive_request(group, "untaken", auto_renew=True))
        assert next(call).status.code == m.Code.OK
        first = next(call).message
        # By another connection: the server serves none with so many unread bytes.
        assert other.AckMessage(Rpcs.ack_request(group, "untaken", first)).status == OK
        if client is clients[0]:
            call.cancel()
            assert client.QueryOffset(end).offset == 32  # the server has seen that
        else:
            client.close()
    for client in clients:
        group = f"g-{client.client_id}"
        found: set[str] = set()
        while len(found) < 31:
            messages = other.received(receive_request(group, "untaken", wait_s=20))
            found |= {message.system_properties.message_id for message in messages}
        assert found == ids - {first.system_properties.message_id}


def test_a_change_ends_the_renewal() -> None:
    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        await world.send(b"x")
        message = await one(client)
        change = m.ChangeInvisibleDurationRequest(
            group=m.Resource(name="g"),
            topic=m.Resource(name="T"),
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=m.Duration(seconds=30),
            message_id=message.system_properties.message_id,
        )
        assert (await client.ChangeInvisibleDuration(change)).status == OK
        assert renewals_of(world) == 0
        began_ms = world.time.now_ms
        while not await other.received(receive_request("g", "T", wait_s=10)):
            assert world.time.now_ms - began_ms < 60_000
        assert world.time.now_ms - began_ms >= 30_000

    run(main)


def test_a_renewed_message_may_become_a_dead_letter() -> None:
    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        await world.send(b"x")
        message = await one(client)
        await asyncio.sleep(200)  # its handle was replaced twice
        forward = m.ForwardMessageToDeadLetterQueueRequest(
            group=m.Resource(name="g"),
            topic=m.Resource(name="T"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert (await client.ForwardMessageToDeadLetterQueue(forward)).status.code == m.Code.OK
        assert world.bodies("%DLQ%g") == [b"x"]
        assert renewals_of(world) == 0
        await asyncio.sleep(600)
        assert await answered(other, receive_request("g", "T", wait_s=5)) == NOTHING

    run(main)


def test_messages_come_soon_after_the_broker_has_stopped() -> None:
    """A stopping proxy gives all messages back. After the start the old handle is as good as another one."""

    async def main(world: World) -> None:
        client = await pushed(world)
        await world.send(b"x")
        await one(client)
        await world.cluster.restart_broker()
        began_ms = world.time.now_ms
        [message] = await (await world.consumer()).received(receive_request("g", "T", wait_s=20))
        assert message.body == b"x"
        assert world.time.now_ms - began_ms <= 5000

    run(main)


def test_messages_come_again_after_a_kill_of_the_broker() -> None:
    """Its messages come at the end of their minute."""

    async def main(world: World) -> None:
        client = await pushed(world)
        await world.send(b"x")
        began_ms = world.time.now_ms
        await one(client)
        await world.cluster.kill_broker()
        await world.cluster.restart_broker()
        other = await world.consumer()
        while not await other.received(receive_request("g", "T", wait_s=5)):
            assert world.time.now_ms - began_ms < 100_000

    run(main)


def test_a_queue_in_order_is_blocked_while_its_message_is_renewed() -> None:
    async def main(world: World) -> None:
        await world.cluster.create_topic("F", queues=1, message_type="FIFO")
        await world.cluster.create_group("g", consume_message_orderly=True)
        client = world.client()
        await client.settled(settings_of_consumer("g", "F", kind=PUSH))
        await world.send(b"1", b"2", topic="F", kind=m.MessageType.FIFO, message_group="m")
        request = receive_request("g", "F", count=1, wait_s=5, auto_renew=True)
        [first] = await client.received(request)
        for _ in range(20):
            await asyncio.sleep(30)
            await client.Heartbeat(BEAT)
            assert await answered(client, request) == NOTHING
        answer = await client.AckMessage(Rpcs.ack_request("g", "F", first))
        assert answer.status == OK
        [second] = await client.received(request)
        assert (second.body, second.system_properties.delivery_attempt) == (b"2", 1)

    run(main)


def test_many_messages_are_renewed() -> None:
    async def main(world: World) -> None:
        client, other = await pushed(world), await world.consumer()
        for _ in range(10):
            await world.send(*(b"%d" % number for number in range(20)))
        held: list[m.Message] = []
        while len(held) < 200:
            held.extend(await client.received(renewed()))
        await asyncio.sleep(600)
        assert await answered(other, receive_request("g", "T", wait_s=5)) == NOTHING
        assert renewals_of(world) == 200
        answer = await client.AckMessage(Rpcs.ack_request("g", "T", *held))
        assert (answer.status, len(answer.entries)) == (OK, 200)
        assert renewals_of(world) == 0

    run(main)


def test_without_renewal_the_client_decides_the_invisible_time() -> None:
    async def main(world: World) -> None:
        client = world.client()
        await client.SendMessage(send_request("T", b"x"))
        assert (await answered(client, renewed(invisible_s=5))).code == m.Code.ILLEGAL_INVISIBLE_TIME
        assert len(await client.received(renewed(invisible_s=15))) == 1
        assert renewals_of(world) == 0

    run(main, enableProxyAutoRenew=False)
