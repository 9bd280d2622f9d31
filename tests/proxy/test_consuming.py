"""Receives, acknowledgements, changes of invisible times, and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from firearrow.message.names import java_hash
from firearrow.proxy import messages as m
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.bodies import TopicConfig
from tests.loglines import told
from tests.proxy.conftest import Administrator, Connect
from tests.proxy.direct import World, answered, run
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

KEYS = {"enablePropertyFilter": True}
CODE = m.Code
OK = m.Status(code=m.Code.OK, message="OK")
NOTHING = m.Status(code=m.Code.MESSAGE_NOT_FOUND, message="no new message")
NO_MATCH = m.Status(code=m.Code.MESSAGE_NOT_FOUND, message="no match message")
EXPIRED = m.Status(code=m.Code.INVALID_RECEIPT_HANDLE, message="receipt handle is expired")


def ack(message: m.Message, handle: str = "", group: str = "g", topic: str = "T") -> m.AckMessageRequest:
    request = Rpcs.ack_request(group, topic, message)
    if handle:
        request.entries[0].receipt_handle = handle
    return request


def change(
    message: m.Message, seconds: float, handle: str = "", *, suspend: bool = False
) -> m.ChangeInvisibleDurationRequest:
    return m.ChangeInvisibleDurationRequest(
        group=m.Resource(name="g"),
        topic=m.Resource(name="T"),
        receipt_handle=handle or handle_of(message),
        invisible_duration=m.Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9)),
        message_id=message.system_properties.message_id,
        suspend=suspend,
    )


def forward(
    message: m.Message, handle: str = "", group: str = "g", topic: str = "T"
) -> m.ForwardMessageToDeadLetterQueueRequest:
    return m.ForwardMessageToDeadLetterQueueRequest(
        group=m.Resource(name=group),
        topic=m.Resource(name=topic),
        receipt_handle=handle or handle_of(message),
        message_id=message.system_properties.message_id,
    )


def handle_of(message: m.Message) -> str:
    handle: str = message.system_properties.receipt_handle
    return handle


def attempt_of(message: m.Message) -> int:
    attempt: int = message.system_properties.delivery_attempt
    return attempt


# --- filters ---


def filtered(request: m.ReceiveMessageRequest, expression: str, kind: str = "TAG") -> m.ReceiveMessageRequest:
    request.filter_expression.expression = expression
    request.filter_expression.type = m.FilterType[kind]
    return request


def test_messages_of_other_tags_are_acknowledged_silently() -> None:
    """Also those whose tag has the same hash: the broker can't tell them apart."""
    assert java_hash("Aa") == java_hash("BB")

    async def main(world: World) -> None:
        consumer = await world.consumer()
        for tag in ("Aa", "BB", "c", ""):
            await world.send(tag.encode() or b"none", tag=tag)
        request = receive_request("g", "T", invisible_s=10)
        [message] = await consumer.received(filtered(request, "Aa || d"))
        assert (message.body, message.system_properties.tag) == (b"Aa", "Aa")
        assert (await consumer.AckMessage(ack(message))).status == OK
        await asyncio.sleep(60)
        assert not await consumer.received(receive_request("g", "T", wait_s=5))

    run(main)


def test_a_receive_of_other_tags_only_is_empty() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x", tag="BB")
        assert await answered(consumer, filtered(receive_request("g", "T"), "Aa")) == NO_MATCH

    run(main)


@pytest.mark.parametrize("expression", ["", "*"])
def test_expressions_of_all_messages(expression: str) -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x", tag="a")
        await world.send(b"y")
        request = filtered(receive_request("g", "T"), expression)
        assert len(await consumer.received(request)) == 2

    run(main)


def test_a_filter_by_sql() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"low", properties={"price": "5"})
        await world.send(b"high", properties={"price": "50"})
        request = filtered(receive_request("g", "T"), "price > 10", "SQL")
        assert [message.body for message in await consumer.received(request)] == [b"high"]

    run(main, enablePropertyFilter=True)


@pytest.mark.parametrize(
    ("expression", "kind", "code", "text"),
    [
        ("||", "TAG", CODE.ILLEGAL_FILTER_EXPRESSION, "subString split error"),
        ("", "SQL", CODE.ILLEGAL_FILTER_EXPRESSION, "Expression can't be null! SQL92"),
        ("price >", "SQL", CODE.INTERNAL_SERVER_ERROR, "parse the consumer's subscription failed"),
        ("x" * 70_000, "TAG", CODE.ILLEGAL_FILTER_EXPRESSION, "the filter expression is longer than 65536 characters"),
    ],
)
def test_expressions_that_are_refused(
    cluster: BlockingCluster, rpcs: Rpcs, expression: str, kind: str, code: m.Code, text: str
) -> None:
    cluster.create_topic("filtered")
    answers = list(rpcs.streamed("ReceiveMessage", filtered(receive_request("g", "filtered"), expression, kind)))
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]
    assert answers[0].status.code == code
    assert answers[0].status.message.startswith(text)


# --- checks of a receive ---


def changed(apply: Callable[[m.ReceiveMessageRequest], None]) -> m.ReceiveMessageRequest:
    request = receive_request("g", "T")
    apply(request)
    return request


def _without_names(request: m.ReceiveMessageRequest) -> None:
    request.group.name = request.message_queue.topic.name = "a b"


def _without_group(request: m.ReceiveMessageRequest) -> None:
    request.group.name = ""
    request.invisible_duration.seconds = 1


def _too_short(request: m.ReceiveMessageRequest) -> None:
    request.invisible_duration.seconds = 9
    request.filter_expression.expression = "||"


def _too_long(request: m.ReceiveMessageRequest) -> None:
    request.invisible_duration.seconds = 12 * 3600 + 1


def _impossible(request: m.ReceiveMessageRequest) -> None:
    request.invisible_duration.seconds = 1 << 60


def _renewing(request: m.ReceiveMessageRequest) -> None:
    request.auto_renew = True
    request.group.name = "a b"


def _unknown_topic(request: m.ReceiveMessageRequest) -> None:
    request.message_queue.topic.name = "nothing"


def _long_attempt(request: m.ReceiveMessageRequest) -> None:
    request.attempt_id = "x" * 256


@pytest.mark.parametrize(
    ("apply", "code", "text"),
    [
        (_without_names, CODE.ILLEGAL_TOPIC, "The specified topic[a b] contains illegal characters"),
        (_without_group, CODE.ILLEGAL_CONSUMER_GROUP, "the specified group is blank"),
        (_too_short, CODE.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 10000"),
        (_too_long, CODE.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large. max is 43200000"),
        (_impossible, CODE.BAD_REQUEST, "a duration is out of range"),
        (_renewing, CODE.ILLEGAL_CONSUMER_GROUP, "the specified group[a b] contains illegal characters"),
        (_unknown_topic, CODE.TOPIC_NOT_FOUND, "No topic route info in name server for the topic: nothing"),
        (_long_attempt, CODE.BAD_REQUEST, "the attempt id is longer than 255 characters"),
    ],
)
def test_receives_that_are_refused(
    caplog: pytest.LogCaptureFixture, apply: Callable[[m.ReceiveMessageRequest], None], code: m.Code, text: str
) -> None:
    async def main(world: World) -> None:
        found = await answered(world.client(), changed(apply))
        assert found.code == code, found
        assert found.message.startswith(text)

    run(main)
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_a_topic_that_can_not_be_read(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    config = TopicConfig("unreadable", 1, 1, 2)
    administrator(lambda admin: admin.topics.create(cluster.brokers[0].address, config))
    status = next(rpcs.streamed("ReceiveMessage", receive_request("g", "unreadable"))).status
    assert status == m.Status(code=CODE.FORBIDDEN, message="no readable queue")


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("5.0.3", CODE.ILLEGAL_POLLING_TIME),
        ("5.1.2", CODE.ILLEGAL_POLLING_TIME),
        ("5.0.2", CODE.BAD_REQUEST),
        ("", CODE.BAD_REQUEST),
    ],
)
def test_a_client_must_wait_for_long_enough(version: str, code: m.Code) -> None:
    async def main(world: World) -> None:
        client = await world.consumer(x_mq_client_version=version)
        assert await answered(client, receive_request("g", "T"), 4999) == m.Status(
            code=code, message="The deadline time remaining is not enough for polling, please check network condition"
        )
        began_ms = world.time.now_ms
        assert await answered(client, receive_request("g", "T", wait_s=10), 5500) == NOTHING
        assert world.time.now_ms - began_ms <= 5500

    run(main)


@pytest.mark.parametrize(
    ("wait_s", "timeout_ms", "expected_ms"),
    [(7, 30_000, 7000), (1, 30_000, 5000), (99, 60_000, 20_000), (None, 11_500, 10_000), (None, None, 20_000)],
)
def test_time_to_wait_for_messages(wait_s: int | None, timeout_ms: float | None, expected_ms: int) -> None:
    """The client's wish, or its deadline without half of its request timeout, between 5 s and 20 s."""

    async def main(world: World) -> None:
        client = await world.consumer()
        request = receive_request("g", "T", wait_s=wait_s or 0)
        if wait_s is None:
            request.ClearField("long_polling_timeout")
        began_ms = world.time.now_ms
        assert await answered(client, request, timeout_ms) == NOTHING
        assert world.time.now_ms - began_ms == pytest.approx(expected_ms, abs=100)

    run(main)


def test_a_client_without_settings_receives() -> None:
    async def main(world: World) -> None:
        client = world.client()
        assert await answered(client, receive_request("g", "T", wait_s=5)) == NOTHING
        await world.send(b"x")
        [message] = await client.received(receive_request("g", "T"))
        assert (await client.AckMessage(ack(message))).status == OK

    run(main)


def test_a_batch_has_a_limit() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(*(b"%d" % number for number in range(40)))
        assert len(await consumer.received(receive_request("g", "T", count=1000))) == 32
        assert len(await consumer.received(receive_request("g", "T", count=3))) == 3

    run(main)


# --- delivery ---


def test_a_message_comes_again_until_its_attempts_are_used_up() -> None:
    async def main(world: World) -> None:
        await world.cluster.create_group("g", retry_max_times=2)
        consumer = await world.consumer()
        await world.send(b"x", b"y")
        [_, kept] = await consumer.received(receive_request("g", "T", invisible_s=10))
        assert (await consumer.AckMessage(ack(kept))).status == OK
        for attempt in (2, 3):
            [message] = await consumer.received(receive_request("g", "T", invisible_s=10, wait_s=20))
            assert (message.body, attempt_of(message), message.topic.name) == (b"x", attempt, "T")
        assert await answered(consumer, receive_request("g", "T", wait_s=20)) == NO_MATCH
        assert world.bodies("%DLQ%g") == [b"x"]
        await asyncio.sleep(60)
        assert await answered(consumer, receive_request("g", "T", wait_s=20)) == NOTHING

    run(main)


def test_a_change_of_the_group_counts_at_once() -> None:
    """A client learns of it with its next settings only."""

    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        assert len(await consumer.received(receive_request("g", "T", invisible_s=10))) == 1
        await world.cluster.create_group("g", retry_max_times=0)
        assert await answered(consumer, receive_request("g", "T", wait_s=20)) == NO_MATCH
        assert world.bodies("%DLQ%g") == [b"x"]

    run(main)


def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    """Its message comes soon, and the attempt does not count."""

    async def main(world: World) -> None:
        consumer = await world.consumer()
        call = consumer.begin("ReceiveMessage")
        call.take(receive_request("g", "T", invisible_s=3600, wait_s=20).SerializeToString())
        await asyncio.sleep(1)
        call.cancel()
        await world.send(b"x")
        began_ms = world.time.now_ms
        [message] = await consumer.received(receive_request("g", "T", wait_s=20))
        assert (message.body, attempt_of(message)) == (b"x", 1)
        assert world.time.now_ms - began_ms <= 4000

    run(main)


def test_a_call_of_grpc_that_is_cancelled_loses_nothing(
    cluster: BlockingCluster, administrator: Administrator, connect: Connect
) -> None:
    cluster.create_topic("cancelled", queues=1)
    leaving, other = connect(), connect()
    call = leaving.streamed("ReceiveMessage", receive_request("g", "cancelled", invisible_s=3600, wait_s=20))
    address = cluster.brokers[0].address
    while not administrator(lambda admin: admin.groups.pops_waiting(address, "g", "cancelled")):
        assert call.is_active()
    call.cancel()
    assert leaving.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name="cancelled"))).status == OK
    assert other.SendMessage(send_request("cancelled", b"x")).status == OK
    [message] = other.received(receive_request("g", "cancelled", wait_s=20))
    assert (message.body, attempt_of(message)) == (b"x", 1)


def test_a_lost_connection_loses_nothing() -> None:
    async def main(world: World) -> None:
        lost, consumer = world.client(), await world.consumer()
        call = lost.begin("ReceiveMessage")
        call.take(receive_request("g", "T", invisible_s=3600, wait_s=20).SerializeToString())
        await asyncio.sleep(1)
        call.cancel()
        lost.lose()
        await asyncio.sleep(1)
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T", wait_s=20))
        assert message.body == b"x"

    run(main)


def test_a_broker_that_is_not_of_the_topic_does_not_matter(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("elsewhere")
    rpcs.begin(settings_of_consumer("g-elsewhere", "elsewhere"))
    rpcs.SendMessage(send_request("elsewhere", b"x"))
    request = receive_request("g-elsewhere", "elsewhere")
    request.message_queue.broker.name = "broker-z"
    request.message_queue.id = 77
    assert len(rpcs.received(request)) == 1


# --- in order ---


def test_a_queue_in_order_is_blocked_until_its_message_is_done() -> None:
    async def main(world: World) -> None:
        await world.cluster.create_topic("F", queues=1, message_type="FIFO")
        await world.cluster.create_group("g", consume_message_orderly=True)
        consumer = await world.consumer("F")
        kind = {"kind": m.MessageType.FIFO, "message_group": "m"}
        await world.send(b"1", b"2", b"3", topic="F", **kind)
        [first] = await consumer.received(receive_request("g", "F", count=1, invisible_s=30))
        assert (first.body, first.system_properties.message_group) == (b"1", "m")
        assert await answered(consumer, receive_request("g", "F", count=1, wait_s=5)) == NOTHING
        await asyncio.sleep(30)
        [again] = await consumer.received(receive_request("g", "F", count=1, invisible_s=30))
        assert (again.body, attempt_of(again)) == (b"1", 2)
        assert (await consumer.AckMessage(ack(again, topic="F"))).status == OK
        found = await consumer.received(receive_request("g", "F", count=2, invisible_s=30))
        assert [message.body for message in found] == [b"2", b"3"]
        assert list(map(attempt_of, found)) == [1, 1]

    run(main)


def test_an_attempt_in_order_may_be_repeated() -> None:
    """A client that got no answer asks again by the same attempt id."""

    async def main(world: World) -> None:
        await world.cluster.create_topic("F", queues=1, message_type="FIFO")
        await world.cluster.create_group("g", consume_message_orderly=True)
        consumer = await world.consumer("F")
        await world.send(b"1", b"2", topic="F", kind=m.MessageType.FIFO, message_group="m")
        request = receive_request("g", "F", count=1, invisible_s=30, wait_s=5)
        request.attempt_id = "one"
        [first] = await consumer.received(request)
        [again] = await consumer.received(request)
        assert (first.body, again.body) == (b"1", b"1")
        request.attempt_id = "two"
        assert await answered(consumer, request) == NOTHING

    run(main)


def test_groups_that_may_not_consume() -> None:
    async def main(world: World) -> None:
        await world.cluster.create_group("off", consume_enable=False)
        for group, code in (("none", CODE.CONSUMER_GROUP_NOT_FOUND), ("off", CODE.INTERNAL_SERVER_ERROR)):
            status = await answered(world.client(), receive_request(group, "T"))
            assert status.code == code, status

    run(main, autoCreateSubscriptionGroup=False)


# --- acknowledgements ---


def test_each_entry_has_its_result() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x", b"y")
        first, second = await consumer.received(receive_request("g", "T"))
        request = ack(first)
        request.entries.add(message_id="m", receipt_handle="garbage")
        request.entries.extend(ack(second).entries)
        answer = await consumer.AckMessage(request)
        assert answer.status == m.Status(code=CODE.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")
        assert [entry.status.code for entry in answer.entries] == [CODE.OK, CODE.INVALID_RECEIPT_HANDLE, CODE.OK]
        assert [entry.message_id for entry in answer.entries] == [entry.message_id for entry in request.entries]
        assert [it.receipt_handle for it in answer.entries] == [it.receipt_handle for it in request.entries]
        await asyncio.sleep(60)
        assert await answered(consumer, receive_request("g", "T", wait_s=5)) == NOTHING

    run(main)


GARBAGE = [
    "",
    "garbage",
    " " * 7,
    "0 1 2 3 4 5 6",
    "a b c d e f g h",
    "0 1795211880000 30000 1 9 broker-a 0 0 0",
    f"0 {1 << 70} 30000 1 0 broker-a 0 0 0",
    "x" * 100_000,
]


def test_handles_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T"))
        for handle in GARBAGE:
            request = ack(message)
            request.entries[0].receipt_handle = handle
            answer = await consumer.AckMessage(request)
            assert answer.status.code == CODE.INVALID_RECEIPT_HANDLE, (handle, answer)
            moving = change(message, 10)
            moving.receipt_handle = handle
            found = await consumer.ChangeInvisibleDuration(moving)
            assert found.status.code == CODE.INVALID_RECEIPT_HANDLE, (handle, found)
            burying = forward(message)
            burying.receipt_handle = handle
            buried = await consumer.ForwardMessageToDeadLetterQueue(burying)
            assert buried.status.code == CODE.INVALID_RECEIPT_HANDLE, (handle, buried)
        assert (await consumer.AckMessage(ack(message))).status == OK

    run(main)
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_a_handle_of_another_broker() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T"))
        elsewhere = handle_of(message).replace("broker-a", "broker-z")
        [entry] = (await consumer.AckMessage(ack(message, elsewhere))).entries
        statuses = [
            entry.status,
            (await consumer.ChangeInvisibleDuration(change(message, 10, elsewhere))).status,
            (await consumer.ForwardMessageToDeadLetterQueue(forward(message, elsewhere))).status,
        ]
        assert [status.code for status in statuses] == [CODE.INVALID_RECEIPT_HANDLE] * 3
        assert (await consumer.AckMessage(ack(message))).status == OK

    run(main)


def test_an_expired_handle() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T", invisible_s=10))
        await asyncio.sleep(10)
        answer = await consumer.AckMessage(ack(message))
        assert answer.entries[0].status == EXPIRED
        assert answer.status.code == CODE.INVALID_RECEIPT_HANDLE
        assert (await consumer.ChangeInvisibleDuration(change(message, 10))).status == EXPIRED
        [again] = await consumer.received(receive_request("g", "T", wait_s=20))
        assert (await consumer.AckMessage(ack(message))).entries[0].status == EXPIRED
        assert (await consumer.AckMessage(ack(again))).status == OK

    run(main)


def test_calls_about_messages_are_refused(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    message = m.Message()
    answer = rpcs.AckMessage(m.AckMessageRequest(group=m.Resource(name="g"), topic=m.Resource(name="T")))
    assert answer.status == m.Status(code=CODE.INTERNAL_SERVER_ERROR, message="ack message result is empty")
    for request in (ack(message, topic="a b", group="a b"), ack(message, group="a b")):
        code = CODE.ILLEGAL_TOPIC if request.topic.name == "a b" else CODE.ILLEGAL_CONSUMER_GROUP
        assert rpcs.AckMessage(request).status.code == code
        moving = m.ChangeInvisibleDurationRequest(topic=request.topic, group=request.group)
        moving.invisible_duration.seconds = -1
        assert rpcs.ChangeInvisibleDuration(moving).status.code == code
        burying = m.ForwardMessageToDeadLetterQueueRequest(topic=request.topic, group=request.group)
        assert rpcs.ForwardMessageToDeadLetterQueue(burying).status.code == code
    for seconds in (-1, 12 * 3600 + 1):
        moved = rpcs.ChangeInvisibleDuration(change(message, seconds, "garbage"))
        assert moved.status.code == CODE.ILLEGAL_INVISIBLE_TIME


# --- changes ---


def test_a_change_moves_the_end_of_the_invisible_time() -> None:
    """The old handle is as good as the new one."""

    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x", b"y")
        messages = await consumer.received(receive_request("g", "T", invisible_s=10))
        moved = [await consumer.ChangeInvisibleDuration(change(it, 60)) for it in messages]
        assert [answer.status for answer in moved] == [OK, OK]
        handles = [answer.receipt_handle for answer in moved]
        assert not {*handles} & {*map(handle_of, messages)}
        assert [len(handle.split(" ")) for handle in handles] == [9, 9]
        assert handles[0].split(" ")[8] == handle_of(messages[0]).split(" ")[8]  # Java: 0 in its place
        await asyncio.sleep(50)
        assert await answered(consumer, receive_request("g", "T", wait_s=5)) == NOTHING
        first, second = messages
        assert (await consumer.AckMessage(ack(first))).status == OK
        assert (await consumer.AckMessage(ack(second, handles[1]))).status == OK
        await asyncio.sleep(60)
        assert await answered(consumer, receive_request("g", "T", wait_s=5)) == NOTHING

    run(main)


@pytest.mark.parametrize(("suspend", "attempt"), [(False, 2), (True, 1)])
def test_a_change_to_zero_gives_a_message_back(suspend: bool, attempt: int) -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T", invisible_s=3600))
        began_ms = world.time.now_ms
        assert (await consumer.ChangeInvisibleDuration(change(message, 0, suspend=suspend))).status == OK
        [again] = await consumer.received(receive_request("g", "T", wait_s=20))
        assert (again.body, attempt_of(again)) == (b"x", attempt)
        assert world.time.now_ms - began_ms <= 3000

    run(main)


# --- dead letters ---


def test_a_message_is_forwarded_to_the_dead_letter_queue() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x", b"y")
        first, second = await consumer.received(receive_request("g", "T", invisible_s=10))
        moved = await consumer.ChangeInvisibleDuration(change(second, 30))
        assert (await consumer.ForwardMessageToDeadLetterQueue(forward(first))).status.code == CODE.OK
        found = await consumer.ForwardMessageToDeadLetterQueue(forward(second, moved.receipt_handle))
        assert found.status.code == CODE.OK
        letters = world.cluster.messages("%DLQ%g")
        assert [view.body for view in letters] == [b"x", b"y"]
        assert letters[0].properties["RETRY_TOPIC"] == "T"
        assert letters[0].properties["UNIQ_KEY"] == first.system_properties.message_id
        await asyncio.sleep(60)
        assert await answered(consumer, receive_request("g", "T", wait_s=5)) == NOTHING

    run(main)


def test_a_short_handle_does_not_lead_to_a_message() -> None:
    async def main(world: World) -> None:
        consumer = await world.consumer()
        await world.send(b"x")
        [message] = await consumer.received(receive_request("g", "T"))
        words = handle_of(message).split(" ")
        for last in ([], ["x"], ["-1"], ["99999999999999999999"]):
            request = forward(message, " ".join([*words[:8], *last]))
            answer = await consumer.ForwardMessageToDeadLetterQueue(request)
            assert answer.status == m.Status(code=CODE.INVALID_RECEIPT_HANDLE, message="commit log offset is empty")
        request = forward(message, " ".join([*words[:8], "4611686018427387904"]))
        answer = await consumer.ForwardMessageToDeadLetterQueue(request)
        assert answer.status.code == CODE.INTERNAL_SERVER_ERROR
        assert not world.cluster.messages("%DLQ%g")
        assert (await consumer.AckMessage(ack(message, " ".join(words[:8])))).status == OK

    run(main)
