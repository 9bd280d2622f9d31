"""Publishers: what a message carries, requests, and what routers, middlewares, parsers and decoders change."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import IncorrectState
from faststream.message import StreamMessage
from faststream.response import PublishCommand
from pydantic import BaseModel

from firearrow.client import Message, Producer, Session
from firearrow.errors import MessageError
from firearrow.integrations.faststream import RocketMQResponse, RocketMQRoute, RocketMQRoutePublisher, RocketMQRouter
from firearrow.integrations.faststream.annotations import RocketMQMessage as MessageOfContext
from firearrow.testing import VirtualTime
from tests.integrations.faststream.applications import broker_of, run


class Order(BaseModel):
    id: int


def test_bodies_arrive_as_they_were_published(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[Any] = asyncio.Queue()

    @broker.subscriber("orders")
    async def note(body: Any) -> None:
        await got.put(body)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            for body in ("text", b"\xff", {"id": 1}, [1, "a"], 17, 1.5, True, "", b""):
                await broker.publish(body, "orders")
                assert await got.get() == body
            await broker.publish(Order(id=17), "orders")
            assert await got.get() == {"id": 17}
            await broker.publish(None, "orders")
            assert await got.get() == b""

    run(rocketmq_clock, scenario())


def test_a_handler_gets_a_model(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[Order] = asyncio.Queue()

    @broker.subscriber("orders")
    async def note(order: Order) -> None:
        await got.put(order)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(Order(id=17), "orders")
            assert await got.get() == Order(id=17)

    run(rocketmq_clock, scenario())


def test_headers_are_properties(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[StreamMessage[Message]] = asyncio.Queue()

    @broker.subscriber("orders")
    async def note(message: MessageOfContext) -> None:
        await got.put(message)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            receipt = await broker.publish(
                {"id": 1}, "orders", headers={"shop": 7}, correlation_id="c-1", tag="paid", key=["k1", "k2"]
            )
            message = await got.get()
            assert message.headers == {"shop": "7", "correlation_id": "c-1", "content-type": "application/json"}
            assert (message.correlation_id, message.content_type) == ("c-1", "application/json")
            assert message.message_id == receipt.message_id
            raw = message.raw_message
            assert (raw.tag, raw.keys, raw.body) == ("paid", ["k1", "k2"], b'{"id":1}')
            with pytest.raises(MessageError, match="TAGS"):
                await broker.publish(1, "orders", headers={"TAGS": "paid"})

    run(rocketmq_clock, scenario())


def test_a_message_may_be_delayed(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    @broker.subscriber("reminders")
    async def note(text: str) -> None:
        await got.put((text, rocketmq_clock.now_ms / 1000 - began))

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("later", "reminders", deliver_at=rocketmq_clock.now + timedelta(hours=2))
            await broker.publish("soon", "reminders", delay=timedelta(minutes=1))
            for name, due in (("soon", 60), ("later", 7200)):
                text, moment = await got.get()
                assert text == name
                assert due <= moment < due + 10

    began = rocketmq_clock.now_ms / 1000
    run(rocketmq_clock, scenario())


def test_a_response_is_published_with_its_options(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[StreamMessage[Message]] = asyncio.Queue()

    @broker.subscriber("orders")
    @broker.publisher("bills", headers={"from": "billing"}, tag="open", key="all")
    async def bill(order: int) -> RocketMQResponse:
        return RocketMQResponse(order + 1, headers={"made": "now"}, tag="paid")

    @broker.subscriber("bills")
    async def note(message: MessageOfContext) -> None:
        await got.put(message)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(1, "orders", correlation_id="c-1")
            message = await got.get()
            assert (await message.decode(), message.correlation_id) == (2, "c-1")
            assert message.headers.items() >= {"from": "billing", "made": "now"}.items()
            assert (message.raw_message.tag, message.raw_message.keys) == ("paid", ["all"])

    run(rocketmq_clock, scenario())


def test_a_publisher_of_batches(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[list[int]] = asyncio.Queue()
    numbers = broker.publisher("numbers", batch=True)

    @broker.subscriber("orders")
    @numbers
    async def split(order: int) -> list[int]:
        return list(range(order))

    @broker.subscriber("numbers", batch=32)
    async def note(found: list[int]) -> None:
        await got.put(found)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(3, "orders")
            assert await got.get() == [0, 1, 2]
            await numbers.publish([7, 8])
            assert await got.get() == [7, 8]

    run(rocketmq_clock, scenario())


def test_requests_are_answered(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    prices = broker.publisher("prices", headers={"shop": "7"})

    @broker.subscriber("prices")
    async def price(order: dict[str, int], message: MessageOfContext) -> RocketMQResponse | None:
        if not order:
            return None
        return RocketMQResponse({"price": order["id"] * 2}, headers={"shop": message.headers.get("shop", "")})

    async def scenario() -> None:
        async with broker:
            await broker.start()
            response = await broker.request({"id": 17}, "prices", correlation_id="c-1")
            assert (await response.decode(), response.correlation_id) == ({"price": 34}, "c-1")
            response = await prices.request({"id": 1})
            assert (await response.decode(), response.headers["shop"]) == ({"price": 2}, "7")
            response = await broker.request({}, "prices", timeout=60)
            assert await response.decode() == b""
            with pytest.raises(TimeoutError):
                await broker.request({"id": 1}, "nobody", timeout=5)

    run(rocketmq_clock, scenario())


def test_a_request_of_another_client_is_answered(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)

    @broker.subscriber("prices")
    async def price(order: dict[str, int]) -> dict[str, int]:
        return {"price": order["id"] * 2}

    async def scenario() -> None:
        async with broker:
            await broker.start()
            async with (
                Session(rocketmq_clock.cluster.name_server, clock=rocketmq_clock.clock) as session,
                Producer(session, group="others") as producer,
            ):
                reply = await producer.request("prices", {"id": 17})
                assert reply.json() == {"price": 34}

    run(rocketmq_clock, scenario())


def test_a_topic_for_responses(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @broker.subscriber("questions")
    async def answer(question: str) -> str:
        return question.upper()

    @broker.subscriber("answers")
    async def note(text: str, message: MessageOfContext) -> None:
        await got.put((text, message.correlation_id))

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("why", "questions", reply_to="answers", correlation_id="c-1")
            assert await got.get() == ("WHY", "c-1")

    run(rocketmq_clock, scenario())


def test_a_router_has_a_prefix_and_middlewares(rocketmq_clock: VirtualTime) -> None:
    got: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    class Marking(BaseMiddleware[PublishCommand, Any]):
        async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
            msg.headers["seen"] = "yes"
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: PublishCommand) -> Any:
            cmd.headers["sent"] = "yes"
            return await call_next(cmd)

    async def bill(order: str, message: MessageOfContext) -> str:
        assert message.headers["seen"] == "yes"
        return f"bill of {order}"

    async def note(text: str, message: MessageOfContext) -> None:
        await got.put((text, message.headers["sent"]))

    route = RocketMQRoute(bill, "orders", publishers=[RocketMQRoutePublisher("bills")])
    router = RocketMQRouter("eu-", [route], middlewares=[Marking])
    router.subscriber("bills")(note)
    broker = broker_of(rocketmq_clock, routers=[router])

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("17", "eu-orders")
            assert await got.get() == ("bill of 17", "yes")
        groups = {subscriber.get_log_context(None)["group"] for subscriber in broker.subscribers}
        assert groups == {"shop-eu-orders", "shop-eu-bills"}

    run(rocketmq_clock, scenario())


def test_parser_and_decoder_may_be_others(rocketmq_clock: VirtualTime) -> None:
    async def parse(raw: Message, original: Any) -> Any:
        message = await original(raw)
        message.headers["queue"] = str(raw.queue.queue_id)
        return message

    async def decode(message: StreamMessage[Message]) -> Any:
        return json.loads(message.body[::-1])

    broker = broker_of(rocketmq_clock, parser=parse)
    got: asyncio.Queue[tuple[dict[str, int], bool]] = asyncio.Queue()

    @broker.subscriber("orders", decoder=decode)
    async def note(body: dict[str, int], message: MessageOfContext) -> None:
        await got.put((body, message.headers["queue"].isdecimal()))

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(b'{"id":17}'[::-1], "orders")
            assert await got.get() == ({"id": 17}, True)

    run(rocketmq_clock, scenario())


def test_a_parser_may_choose_where_the_response_goes(rocketmq_clock: VirtualTime) -> None:
    async def parse(raw: Message) -> StreamMessage[Message]:
        return StreamMessage(raw, raw.body, reply_to="answers", content_type="text/plain")

    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber("questions", parser=parse, ack_policy=AckPolicy.MANUAL)
    async def answer(question: str) -> str:
        return question.upper()

    @broker.subscriber("answers")
    async def note(text: str) -> None:
        await got.put(text)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("why", "questions")
            assert await got.get() == "WHY"

    run(rocketmq_clock, scenario())


def test_a_broker_tells_whether_it_is_connected(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)

    async def scenario() -> None:
        assert not await broker.ping()
        with pytest.raises(IncorrectState, match="connect"):
            await broker.publish(1, "orders")
        async with broker:
            assert await broker.ping(timeout=10)
            await rocketmq_clock.cluster.stop_name_server()
            assert not await broker.ping(timeout=10)
            await rocketmq_clock.cluster.restart_name_server()

    run(rocketmq_clock, scenario())
