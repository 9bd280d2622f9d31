"""Messages that a proxy has renewed before it died: their clients go on at another proxy, with their handles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import pytest

from firearrow.net.server import Answer, Handler, Peer
from firearrow.proxy import messages as m
from firearrow.proxy.clusterproxy import ClusterProxy
from firearrow.proxy.config import load
from firearrow.proxy.local import LocalProxy
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode
from firearrow.wire.frame import AnyCommand
from tests.proxy.direct import Direct, World, run
from tests.proxy.rpcs import Rpcs, receive_request, settings_of_consumer

OK: Final = m.Status(code=m.Code.OK, message="OK")
PUSH: Final = m.ClientType.PUSH_CONSUMER
IN_BUFFER: Final = {"enablePopBufferMerge": True}
IN_DATABASE: Final = {"popConsumerKVServiceInit": True, "popConsumerKVServiceEnable": True}
ONCE_S: Final = 70  # until a message was renewed once, and the handle of its client is over
every_book: Final = pytest.mark.parametrize(
    "books", [{}, IN_BUFFER, IN_DATABASE], ids=["revive log", "buffer", "database"]
)

Proxy = ClusterProxy | LocalProxy


async def proxy_of(world: World) -> ClusterProxy:
    """Start a proxy in front of the broker."""
    keys = {"namesrvAddr": world.cluster.name_server, "grpcServerPort": 0, "bindAddress": "127.0.0.1"}
    proxy = ClusterProxy(load(fastjson.dumps(keys))[0], "127.0.0.1", world.time.clock)
    await proxy.start()
    return proxy


async def consumer(world: World, proxy: Proxy, topic: str = "T", kind: m.ClientType = PUSH) -> Direct:
    """Make a consumer at a proxy that sends heartbeats for as long as the test runs."""
    client = Direct(proxy, world.time.clock.now_ms)
    await client.settled(settings_of_consumer("g", topic, kind=kind))
    beat = m.HeartbeatRequest(group=m.Resource(name="g"), client_type=kind)

    async def live() -> None:
        while True:
            await client.Heartbeat(beat)
            await asyncio.sleep(10)

    world.tasks.append(asyncio.create_task(live()))
    return client


async def die(proxy: ClusterProxy) -> None:
    """End a proxy as a kill does: its connections are lost before it can give anything back."""
    await proxy._brokers.stop()


def wanted(topic: str = "T", **options: Any) -> m.ReceiveMessageRequest:
    return receive_request("g", topic, auto_renew=True, **options)


async def left_by_dead(world: World, seconds: float = ONCE_S, topic: str = "T") -> m.Message:
    """Receive a message at a proxy that dies after some time."""
    proxy = await proxy_of(world)
    client = await consumer(world, proxy, topic)
    [message] = await client.received(wanted(topic))
    await asyncio.sleep(seconds)
    await die(proxy)
    return message


async def comes_within(client: Direct, seconds: float, topic: str = "T") -> m.Message | None:
    """Wait for a message, perhaps 20 s longer."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        for message in await client.received(wanted(topic, wait_s=20)):
            return message
    return None


async def acknowledged(client: Direct, message: m.Message, topic: str = "T") -> m.Code:
    """Acknowledge a message by its handle; return the code of the result."""
    answer = await client.AckMessage(Rpcs.ack_request("g", topic, message))
    return m.Code(answer.entries[0].status.code)


def change(message: m.Message, seconds: int, handle: str = "") -> m.ChangeInvisibleDurationRequest:
    return m.ChangeInvisibleDurationRequest(
        group=m.Resource(name="g"),
        topic=m.Resource(name="T"),
        receipt_handle=handle or message.system_properties.receipt_handle,
        invisible_duration=m.Duration(seconds=seconds),
        message_id=message.system_properties.message_id,
    )


@every_book
@pytest.mark.parametrize("held_s", [57, 70, 1500], ids=["before its handle is over", "renewed once", "renewed often"])
@pytest.mark.parametrize("is_local", [False, True], ids=["other proxy", "broker's proxy"])
def test_a_message_that_is_acknowledged_does_not_come_again(
    books: dict[str, Any], held_s: float, is_local: bool
) -> None:
    async def main(world: World) -> None:
        other = world.cluster.brokers[0].proxy if is_local else await proxy_of(world)
        await world.send(b"x")
        message = await left_by_dead(world, held_s)
        client = await consumer(world, other)
        assert await acknowledged(client, message) == m.Code.OK
        assert await comes_within(client, 3 * held_s + 600) is None
        assert await acknowledged(client, message) == m.Code.INVALID_RECEIPT_HANDLE

    run(main, **books)


@every_book
def test_a_proxy_that_lives_does_not_bring_it_back(books: dict[str, Any]) -> None:
    """The client has moved to another proxy. The first one renews its message, and then gives it back."""

    async def main(world: World) -> None:
        first, second = await proxy_of(world), await proxy_of(world)
        client = Direct(first, world.time.clock.now_ms)
        await client.settled(settings_of_consumer("g", "T", kind=PUSH))
        await world.send(b"x")
        [message] = await client.received(wanted())
        await asyncio.sleep(ONCE_S)
        client = await consumer(world, second)
        assert await acknowledged(client, message) == m.Code.OK
        assert await comes_within(client, 1800) is None

    run(main, **books)


def test_many_messages_are_acknowledged_in_one_call() -> None:
    async def main(world: World) -> None:
        first, second = await proxy_of(world), await proxy_of(world)
        client = await consumer(world, first)
        for _ in range(5):
            await world.send(*(b"%d" % number for number in range(20)))
        held: list[m.Message] = []
        while len(held) < 100:
            held += await client.received(wanted())
        await asyncio.sleep(300)
        await die(first)
        client = await consumer(world, second)
        answer = await client.AckMessage(Rpcs.ack_request("g", "T", *held))
        assert (answer.status, len(answer.entries)) == (OK, 100)
        assert await comes_within(client, 1800) is None

    run(main, enableBatchAck=True)


@every_book
def test_an_old_handle_does_not_count_for_a_later_delivery(books: dict[str, Any]) -> None:
    """The message has come again to somebody else, who still works on it."""

    async def main(world: World) -> None:
        proxy = await proxy_of(world)
        await world.send(b"x")
        old = await left_by_dead(world)
        client = await consumer(world, proxy)
        message = await comes_within(client, 200)
        assert message is not None
        assert message.system_properties.delivery_attempt == 2
        assert await acknowledged(client, old) == m.Code.INVALID_RECEIPT_HANDLE
        answer = await client.ChangeInvisibleDuration(change(old, 10))
        assert answer.status.code == m.Code.INVALID_RECEIPT_HANDLE
        await asyncio.sleep(600)
        assert await acknowledged(client, old) == m.Code.INVALID_RECEIPT_HANDLE
        assert (await client.ChangeInvisibleDuration(change(message, 10))).status == OK
        again = await comes_within(client, 60)
        assert again is not None
        assert again.system_properties.delivery_attempt == 3

    run(main, **books)


@every_book
def test_its_invisible_time_can_be_changed(books: dict[str, Any]) -> None:
    """The message comes again at the new time, once. Until then each of its handles counts."""

    async def main(world: World) -> None:
        proxy, third = await proxy_of(world), await proxy_of(world)
        await world.send(b"x")
        message = await left_by_dead(world)
        client = await consumer(world, proxy)
        answer = await client.ChangeInvisibleDuration(change(message, 90))
        assert answer.status == OK
        assert await comes_within(client, 65) is None
        at_third = await consumer(world, third)
        answer = await at_third.ChangeInvisibleDuration(change(message, 40, answer.receipt_handle))
        assert answer.status == OK
        assert await comes_within(client, 15) is None
        again = await comes_within(client, 40)
        assert again is not None
        assert again.system_properties.delivery_attempt == 2
        assert await acknowledged(client, again) == m.Code.OK
        assert await comes_within(client, 600) is None

    run(main, **books)


def test_it_may_become_a_dead_letter() -> None:
    async def main(world: World) -> None:
        proxy = await proxy_of(world)
        await world.send(b"x")
        message = await left_by_dead(world)
        client = await consumer(world, proxy)
        forward = m.ForwardMessageToDeadLetterQueueRequest(
            group=m.Resource(name="g"),
            topic=m.Resource(name="T"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert (await client.ForwardMessageToDeadLetterQueue(forward)).status == OK
        assert world.bodies("%DLQ%g") == [b"x"]
        assert await comes_within(client, 600) is None

    run(main)


def test_a_message_in_order_is_acknowledged_and_the_next_one_comes() -> None:
    async def main(world: World) -> None:
        await world.cluster.create_topic("F", queues=1, message_type="FIFO")
        await world.cluster.create_group("g", consume_message_orderly=True)
        proxy = await proxy_of(world)
        await world.send(b"1", b"2", topic="F", kind=m.MessageType.FIFO, message_group="m")
        first = await proxy_of(world)
        client = await consumer(world, first, "F")
        [message] = await client.received(wanted("F", count=1))
        await asyncio.sleep(200)
        await die(first)
        client = await consumer(world, proxy, "F")
        assert await acknowledged(client, message, "F") == m.Code.OK
        following = await comes_within(client, 20, "F")
        assert following is not None
        assert (following.body, following.system_properties.delivery_attempt) == (b"2", 1)
        assert await acknowledged(client, message, "F") == m.Code.INVALID_RECEIPT_HANDLE

    run(main)


def test_a_message_of_a_lite_topic_is_acknowledged() -> None:
    async def main(world: World) -> None:
        lite = m.ClientType.LITE_PUSH_CONSUMER
        await world.cluster.create_topic("L", queues=1, message_type="LITE")
        await world.cluster.create_group("g", attributes={"+lite.bind.topic": "L"})
        first, second = await proxy_of(world), await proxy_of(world)
        subscribe = m.SyncLiteSubscriptionRequest(
            action=m.LiteSubscriptionAction.PARTIAL_ADD,
            topic=m.Resource(name="L"),
            group=m.Resource(name="g"),
            lite_topic_set=["a"],
        )
        client = await consumer(world, first, "L", lite)
        assert (await client.SyncLiteSubscription(subscribe)).status == OK
        await world.send(b"x", topic="L", kind=m.MessageType.LITE, lite_topic="a")
        [message] = await client.received(wanted("L"))
        await asyncio.sleep(200)
        await die(first)
        client = await consumer(world, second, "L", lite)
        assert (await client.SyncLiteSubscription(subscribe)).status == OK
        request = Rpcs.ack_request("g", "L", message)
        request.entries[0].lite_topic = "a"
        assert (await client.AckMessage(request)).status == OK
        assert await comes_within(client, 600, "L") is None
        assert (await client.AckMessage(request)).status.code == m.Code.INVALID_RECEIPT_HANDLE

    run(main, enableLmq=True, enableMultiDispatch=True)


async def without_help(world: World) -> None:
    """Have the broker know no newest handles, as RocketMQ's."""
    handlers = world.cluster.brokers[0].server.server.handlers
    del cast(dict[int, Handler], handlers)[RequestCode.NEWEST_HANDLE]


async def after_a_kill(world: World) -> None:
    """Have the broker forget them."""
    await world.cluster.kill_broker()
    await world.cluster.restart_broker()


@pytest.mark.parametrize("happens", [without_help, after_a_kill])
def test_a_broker_that_does_not_know_the_newest_handle_delivers_again(
    happens: Callable[[World], Awaitable[None]],
) -> None:
    """The client learns that its acknowledgement does not count."""

    async def main(world: World) -> None:
        proxy = await proxy_of(world)
        await world.send(b"x")
        message = await left_by_dead(world)
        await happens(world)
        client = await consumer(world, proxy)
        assert await acknowledged(client, message) == m.Code.INVALID_RECEIPT_HANDLE
        again = await comes_within(client, 200)
        assert again is not None
        assert await acknowledged(client, again) == m.Code.OK
        assert await comes_within(client, 600) is None

    run(main)


def test_a_handle_that_can_not_be_old_costs_no_request() -> None:
    """Most messages are acknowledged before any proxy has renewed them."""

    async def main(world: World) -> None:
        asked: list[int] = []
        handlers = cast(dict[int, Handler], world.cluster.brokers[0].server.server.handlers)
        handler = handlers[RequestCode.NEWEST_HANDLE]

        def noted(peer: Peer, request: AnyCommand) -> Answer:
            asked.append(1)
            return handler(peer, request)

        handlers[RequestCode.NEWEST_HANDLE] = noted
        proxy = await proxy_of(world)
        client = await consumer(world, proxy)
        for held_s, invisible_s in ((45, 0), (120, 0), (8, 10)):
            await world.send(b"x")
            request = wanted() if not invisible_s else receive_request("g", "T", invisible_s=invisible_s)
            [message] = await client.received(request)
            await asyncio.sleep(held_s)
            assert await acknowledged(client, message) == m.Code.OK
        assert asked == []

    run(main)
