"""Lite topics: subscriptions, receives and acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from firearrow.client.admin import Admin
from firearrow.proxy import messages as m
from tests.loglines import told
from tests.proxy.direct import Direct, DirectCall, World, answered
from tests.proxy.direct import run as in_virtual_time
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

OK = m.Status(code=m.Code.OK, message="OK")
NOTHING = m.Status(code=m.Code.MESSAGE_NOT_FOUND, message="no new message")
LITE, LITE_SIMPLE = m.ClientType.LITE_PUSH_CONSUMER, m.ClientType.LITE_SIMPLE_CONSUMER
ADD, REMOVE = m.LiteSubscriptionAction.PARTIAL_ADD, m.LiteSubscriptionAction.PARTIAL_REMOVE
ADD_ALL, REMOVE_ALL = m.LiteSubscriptionAction.COMPLETE_ADD, m.LiteSubscriptionAction.COMPLETE_REMOVE
BEAT = m.HeartbeatRequest(group=m.Resource(name="g"), client_type=LITE)


def run(main: Callable[[World], Awaitable[None]], **keys: Any) -> None:
    """Run a test in virtual time, with lite topics."""
    in_virtual_time(main, **{"enableLmq": True, "enableMultiDispatch": True, **keys})


def sync(
    action: m.LiteSubscriptionAction, *lite_topics: str, topic: str = "L", group: str = "g", **option: Any
) -> m.SyncLiteSubscriptionRequest:
    request = m.SyncLiteSubscriptionRequest(
        action=action, topic=m.Resource(name=topic), group=m.Resource(name=group), lite_topic_set=lite_topics
    )
    if option:
        request.offset_option.CopyFrom(m.OffsetOption(**option))
    return request


def received_of(group: str = "g", **options: Any) -> m.ReceiveMessageRequest:
    return receive_request(group, "L", auto_renew=True, **options)


async def parent(world: World, **attributes: str) -> None:
    """Make the topic of lite topics, and the group of its consumers."""
    await world.cluster.create_topic("L", queues=1, message_type="LITE")
    found = {f"+{name.replace('_', '.')}": value for name, value in attributes.items()}
    await world.cluster.create_group("g", attributes={"+lite.bind.topic": "L", **found})


async def send(world: World, lite_topic: str, *bodies: bytes) -> None:
    for body in bodies:
        request = send_request("L", body, kind=m.MessageType.LITE, lite_topic=lite_topic)
        assert (await world.client().SendMessage(request)).status == OK
    await asyncio.sleep(0.1)


async def consumer(world: World, *lite_topics: str, kind: m.ClientType = LITE) -> tuple[Direct, DirectCall]:
    """Make a consumer of lite topics, and its stream."""
    client = world.client()
    stream = await client.settled(settings_of_consumer("g", "L", kind=kind))
    if lite_topics:
        assert (await client.SyncLiteSubscription(sync(ADD, *lite_topics))).status == OK
    return client, stream


def ack(*messages: m.Message) -> m.AckMessageRequest:
    request = Rpcs.ack_request("g", "L", *messages)
    for entry, message in zip(request.entries, messages, strict=True):
        entry.lite_topic = message.system_properties.lite_topic
    return request


async def subscriptions_of(world: World, client: Direct) -> set[str]:
    """Lite topics of a client at the broker."""
    admin = Admin(world.cluster._client, [world.cluster.name_server])
    found = await admin.lite.client(world.cluster.brokers[0].address, "L", "g", client.client_id)
    return {name.removeprefix("%LMQ%$L$") for name in found.lite_topic_set or ()}


def texts(messages: list[m.Message]) -> list[tuple[str, bytes]]:
    return sorted((message.system_properties.lite_topic, message.body) for message in messages)


# --- messages ---


def test_a_consumer_receives_its_lite_topics() -> None:
    async def main(world: World) -> None:
        await parent(world)
        await send(world, "a", b"a0")
        client, _ = await consumer(world, "a", "b")
        for lite_topic in ("a", "b", "c"):
            await send(world, lite_topic, lite_topic.encode() + b"1", lite_topic.encode() + b"2")
        found = await client.received(received_of())
        assert texts(found) == [("a", b"a0"), ("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("b", b"b2")]
        system = found[0].system_properties
        assert (system.message_type, system.delivery_attempt) == (m.MessageType.LITE, 1)
        assert found[0].topic.name == "L"
        answer = await client.AckMessage(ack(*found))
        assert answer.status == OK, answer
        assert await answered(client, received_of(wait_s=5)) == NOTHING
        await send(world, "b", b"b3")
        assert texts(await client.received(received_of())) == [("b", b"b3")]

    run(main)


def test_a_simple_consumer_receives_its_lite_topics() -> None:
    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world, "a", kind=LITE_SIMPLE)
        await send(world, "a", b"a0")
        await send(world, "b", b"b0")
        found = await client.received(receive_request("g", "L"))
        assert texts(found) == [("a", b"a0")]
        assert (await client.AckMessage(ack(*found))).status == OK
        assert await answered(client, receive_request("g", "L", wait_s=5)) == NOTHING

    run(main)


def test_messages_of_two_lite_topics_are_renewed_and_acknowledged_apart() -> None:
    """They have the same offset, each in its lite topic."""

    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world, "a", "b")
        await send(world, "a", b"a0")
        await send(world, "b", b"b0")
        first, second = sorted(
            await client.received(received_of()), key=lambda message: str(message.system_properties.lite_topic)
        )
        for _ in range(13):
            await asyncio.sleep(30)
            await client.Heartbeat(BEAT)
            await client.SyncLiteSubscription(sync(ADD_ALL, "a", "b"))
        assert await answered(client, received_of(wait_s=5)) == NOTHING
        assert len(world.cluster.brokers[0].proxy.service.consuming.renewal) == 2
        assert (await client.AckMessage(ack(first))).status == OK
        assert len(world.cluster.brokers[0].proxy.service.consuming.renewal) == 1
        await send(world, "a", b"a1")
        await send(world, "b", b"b1")
        assert texts(await client.received(received_of())) == [("a", b"a1")]  # b is blocked, in order
        assert (await client.AckMessage(ack(second))).status == OK
        assert texts(await client.received(received_of())) == [("b", b"b1")]

    run(main)


@pytest.mark.parametrize("named", ["a", ""])
def test_a_message_of_a_lite_topic_comes_again_and_again(named: str) -> None:
    """A client need not name the lite topic, which the handle has, too: the Java client 5.2.0 does not."""

    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world, "a")
        await send(world, "a", b"a0")
        for attempt in (1, 2, 3):
            [message] = await client.received(received_of(wait_s=20))
            assert (message.body, message.system_properties.delivery_attempt) == (b"a0", attempt)
            change = m.ChangeInvisibleDurationRequest(
                group=m.Resource(name="g"),
                topic=m.Resource(name="L"),
                receipt_handle=message.system_properties.receipt_handle,
                message_id=message.system_properties.message_id,
                lite_topic=named,
            )
            change.invisible_duration.seconds = 5
            assert (await client.ChangeInvisibleDuration(change)).status == OK

    run(main)


def test_a_dead_letter_leaves_its_lite_topic() -> None:
    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world, "a")
        await send(world, "a", b"a0")
        [message] = await client.received(received_of())
        request = m.ForwardMessageToDeadLetterQueueRequest(
            group=m.Resource(name="g"),
            topic=m.Resource(name="L"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert (await client.ForwardMessageToDeadLetterQueue(request)).status == OK
        assert await answered(client, received_of(wait_s=5)) == NOTHING
        [letter] = world.cluster.messages("%DLQ%g")
        assert letter.body == b"a0"
        await send(world, "a", b"a1")
        assert texts(await client.received(received_of())) == [("a", b"a1")]

    run(main)


def test_messages_of_a_client_that_ends_come_to_another() -> None:
    async def main(world: World) -> None:
        await parent(world)
        first, _ = await consumer(world, "a")
        second, _ = await consumer(world, "a")
        await send(world, "a", b"a0")
        [message] = await first.received(received_of())
        request = m.NotifyClientTerminationRequest(group=m.Resource(name="g"))
        assert (await first.NotifyClientTermination(request)).status == OK
        began_ms = world.time.now_ms
        [again] = await second.received(received_of(wait_s=20))
        assert again.body == message.body
        assert world.time.now_ms - began_ms <= 3000
        assert await subscriptions_of(world, first) == set()

    run(main)


def test_a_client_may_hold_a_limited_count_of_messages() -> None:
    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world, "a", "b")
        await send(world, "a", b"1", b"2", b"3", b"4")
        assert len(await client.received(received_of(count=4))) == 4
        await send(world, "b", b"5")
        assert await answered(client, received_of()) == m.Status(
            code=m.Code.FORBIDDEN,
            message=f"The client [{client.client_id}] has too many unacked messages. Unacked count: 4",
        )

    run(main, maxLiteRenewNumPerChannel=3)


@pytest.mark.parametrize("has_settings", [True, False])
def test_a_client_without_a_stream_subscribes_again(has_settings: bool) -> None:
    """After a restart of a proxy, the Python client is silent about its settings for five minutes."""

    async def main(world: World) -> None:
        await parent(world)
        await send(world, "a", b"a0")
        client = world.client()
        if has_settings:
            client, stream = await consumer(world, "a")
            stream.cancel()
            assert await subscriptions_of(world, client) == set()
        assert await answered(client, received_of(wait_s=5)) == NOTHING
        assert (await client.SyncLiteSubscription(sync(ADD_ALL, "a"))).status == OK
        found = await client.received(received_of())
        assert texts(found) == [("a", b"a0")]
        assert (await client.AckMessage(ack(*found))).status == OK

    run(main)


# --- subscriptions ---


def test_subscriptions_are_added_and_removed() -> None:
    async def main(world: World) -> None:
        await parent(world)
        for lite_topic in "abcd":
            await send(world, lite_topic, b"x")
        client, _ = await consumer(world, "a", "b")
        steps = [
            (sync(ADD, "c"), {"a", "b", "c"}),
            (sync(REMOVE, "a"), {"b", "c"}),
            (sync(ADD_ALL, "d", "b"), {"b", "d"}),
            (sync(REMOVE_ALL), set()),
        ]
        for request, expected in steps:
            assert (await client.SyncLiteSubscription(request)).status == OK
            assert await subscriptions_of(world, client) == expected

    run(main)


def test_a_subscription_begins_where_it_says() -> None:
    async def main(world: World) -> None:
        await parent(world)
        await send(world, "a", b"0", b"1", b"2")
        client, _ = await consumer(world)
        policy = m.OffsetOption.Policy
        for option, expected in (
            ({"offset": 1}, [b"1", b"2"]),
            ({"policy": policy.MIN}, [b"0", b"1", b"2"]),
            ({"tail_n": 2}, [b"1", b"2"]),
        ):
            assert (await client.SyncLiteSubscription(sync(ADD, "a", **option))).status == OK
            found = await client.received(received_of())
            assert [message.body for message in found] == expected, option
            assert (await client.AckMessage(ack(*found))).status == OK
            assert (await client.SyncLiteSubscription(sync(REMOVE, "a"))).status == OK
        assert (await client.SyncLiteSubscription(sync(ADD, "a", policy=policy.MAX))).status == OK
        assert await answered(client, received_of(wait_s=5)) == NOTHING

    run(main)


def test_a_broken_stream_ends_the_subscriptions() -> None:
    async def main(world: World) -> None:
        await parent(world)
        await send(world, "a", b"x")
        client, stream = await consumer(world, "a")
        assert await subscriptions_of(world, client) == {"a"}
        stream.cancel()
        assert await subscriptions_of(world, client) == set()

    run(main)


def test_a_client_learns_that_another_took_its_lite_topic() -> None:
    """The request of the broker comes by the stream of the client."""

    async def main(world: World) -> None:
        await parent(world, lite_sub_model="Exclusive")
        await send(world, "a", b"x")
        first, stream = await consumer(world, "a")
        await consumer(world, "a")
        data = await stream.answers.get()
        assert isinstance(data, bytes)
        command = m.TelemetryCommand.FromString(data)
        assert command.notify_unsubscribe_lite_command.lite_topic == "a"
        assert await subscriptions_of(world, first) == set()

    run(main)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (sync(ADD, "a", topic="a b", group="a b"), m.Code.ILLEGAL_TOPIC, "The specified topic[a b]"),
        (sync(ADD, "a", group="a b"), m.Code.ILLEGAL_CONSUMER_GROUP, "the specified group[a b]"),
        (sync(ADD, "a b"), m.Code.ILLEGAL_LITE_TOPIC, "lite topic can only contain alphanumeric characters"),
        (sync(ADD, ""), m.Code.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace"),
        (sync(ADD, "t" * 65), m.Code.ILLEGAL_LITE_TOPIC, "lite topic exceed the max size 64"),
        (sync(ADD, "a", topic="T"), m.Code.ILLEGAL_TOPIC, "lite group g is expected to bind topic L, but actual is T"),
        (sync(ADD, "a", group="regular"), m.Code.ILLEGAL_TOPIC, "lite group regular is expected to bind topic "),
        (
            sync(ADD, *(str(it) for it in range(303))),
            m.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            "lite subscription quota",
        ),
        (m.SyncLiteSubscriptionRequest(), m.Code.ILLEGAL_TOPIC, "The specified topic is blank"),
    ],
)
def test_subscriptions_that_are_refused(request_: m.SyncLiteSubscriptionRequest, code: m.Code, text: str) -> None:
    async def main(world: World) -> None:
        await parent(world, lite_sub_client_quota="2")
        client, _ = await consumer(world)
        answer = await client.SyncLiteSubscription(request_)
        assert answer.status.code == code, answer
        assert answer.status.message.startswith(text)
        assert await subscriptions_of(world, client) == set()

    run(main)


def test_unknown_numbers_are_bad_requests(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world)
        request = sync(ADD, "a")
        request.offset_option.SetInParent()
        unknown = sync(ADD, "a")
        unknown.action = 77
        strange = sync(ADD, "a", policy=m.OffsetOption.Policy.MIN)
        strange.offset_option.policy = 77
        for refused in (request, unknown, strange):
            assert (await client.SyncLiteSubscription(refused)).status.code == m.Code.BAD_REQUEST, refused

    run(main)
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_subscriptions_of_all_clients_have_a_rate() -> None:
    async def main(world: World) -> None:
        await parent(world)
        client, _ = await consumer(world)
        await asyncio.sleep(1)
        codes = [(await client.SyncLiteSubscription(sync(ADD, "a", "b", "c"))).status.code for _ in range(4)]
        assert codes == [m.Code.OK] * 3 + [m.Code.TOO_MANY_REQUESTS]
        await asyncio.sleep(1)
        assert (await client.SyncLiteSubscription(sync(ADD, "a"))).status == OK

    run(main, maxSyncLiteSubscriptionRate=3)


# --- kinds of groups ---


async def refusal(client: Direct, settings: m.Settings) -> str:
    stream = client.begin("Telemetry", None)
    stream.take(m.TelemetryCommand(settings=settings).SerializeToString())
    found = await stream.answers.get()
    assert isinstance(found, tuple), found
    return found[1].removeprefix("process client telemetryCommand failed. ")


def test_clients_and_groups_must_be_of_one_kind() -> None:
    async def main(world: World) -> None:
        await parent(world)
        client = world.client()
        regular = settings_of_consumer("g", "L")
        assert await refusal(client, regular) == "lite group must use LITE mode: g"
        lite = settings_of_consumer("regular", "L", kind=LITE)
        assert await refusal(client, lite) == "regular group cannot use LITE mode: regular"
        other = settings_of_consumer("g", "T", kind=LITE)
        assert await refusal(client, other) == "lite group g is expected to bind topic L, but actual is T"

    run(main)


def test_settings_of_a_lite_consumer() -> None:
    async def main(world: World) -> None:
        await parent(world, lite_sub_client_quota="7")
        stream = world.client().begin("Telemetry", None)
        settings = settings_of_consumer("g", "L", kind=LITE)
        stream.take(m.TelemetryCommand(settings=settings).SerializeToString())
        data = await stream.answers.get()
        assert isinstance(data, bytes)
        found = m.TelemetryCommand.FromString(data).settings.subscription
        assert (found.lite_subscription_quota, found.max_lite_topic_size) == (7, 64)

    run(main)
