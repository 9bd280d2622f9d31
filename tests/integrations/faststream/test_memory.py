"""Applications under test without a server, and their AsyncAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream import FastStream, TestApp
from faststream.exceptions import SubscriberNotFound
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from firearrow.errors import MessageError
from firearrow.integrations.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQResponse,
    RocketMQRouter,
    TestRocketMQBroker,
)


class Order(BaseModel):
    id: int


class Bill(BaseModel):
    order: int


def application() -> tuple[RocketMQBroker, Any, Any]:
    broker = RocketMQBroker("10.0.0.1:9876;10.0.0.2:9876", group="billing", description="Our cluster")
    bills = broker.publisher("bills", description="Bills of all orders")

    @broker.subscriber("orders", tags="paid", description="Orders of the shop")
    @bills
    async def bill(order: Order) -> Bill:
        return Bill(order=order.id)

    return broker, bill, bills


def test_handlers_and_publishers_record_their_calls() -> None:
    broker, bill, bills = application()

    async def scenario() -> None:
        async with TestRocketMQBroker(broker) as tested:
            await tested.publish(Order(id=17), "orders", tag="paid")
            bill.mock.assert_called_once_with({"id": 17})
            bills.mock.assert_called_once_with({"order": 17})
            await tested.publish(Order(id=18), "orders")
            bill.mock.assert_called_once()
            response = await tested.request({"id": 19}, "orders", tag="paid")
            assert isinstance(response, RocketMQMessage)
            assert await response.decode() == {"order": 19}
            with pytest.raises(SubscriberNotFound, match="nobody"):
                await tested.request(1, "nobody")

    asyncio.run(scenario())


def test_an_error_reaches_the_test() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("orders")
    async def bill(order: Order) -> None:
        raise ValueError("bad data")

    async def scenario() -> None:
        async with TestRocketMQBroker(broker) as tested, TestApp(FastStream(tested)):
            with pytest.raises(ValueError, match="bad data"):
                await tested.publish({"id": 1}, "orders")
            with pytest.raises(MessageError, match="illegal characters"):
                await tested.publish({"id": 1}, "orders/eu")
            with pytest.raises(MessageError, match="KEYS"):
                await tested.publish({"id": 1}, "orders", headers={"KEYS": "k"})

    asyncio.run(scenario())


def test_selections_groups_and_batches() -> None:
    got: list[tuple[str, Any]] = []
    one, other = RocketMQBroker(), RocketMQBroker()

    @one.subscriber("orders", group="large", sql="amount > 100")
    async def large(order: int) -> None:
        got.append(("large", order))

    @one.subscriber("orders", group="both")
    async def first(order: int) -> None:
        got.append(("both", order))

    @other.subscriber("orders", group="both")
    async def second(order: int) -> None:
        got.append(("both", order))

    @other.subscriber("orders", group="batches", batch=32)
    async def batches(orders: list[int]) -> None:
        got.append(("batches", orders))

    async def scenario() -> None:
        async with TestRocketMQBroker(one, other) as (tested, _):
            await tested.publish(1, "orders", headers={"amount": 500})
            assert sorted(got, key=str) == [("batches", [1]), ("both", 1), ("large", 1)]
            got.clear()
            await tested.publish_batch(2, 3, topic="orders")
            assert sorted(got, key=str) == [("batches", [2, 3]), ("both", 2), ("both", 3)]

    asyncio.run(scenario())


def test_a_response_goes_to_its_topic() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("questions")
    async def answer(question: str) -> RocketMQResponse:
        return RocketMQResponse(question.upper(), sharding_key="same")

    @broker.subscriber("answers")
    async def note(text: str) -> None: ...

    async def scenario() -> None:
        async with TestRocketMQBroker(broker) as tested:
            await tested.publish("why", "questions", reply_to="answers")
            await note.assert_called_once_with("WHY")

    asyncio.run(scenario())


def test_the_document_has_servers_topics_and_models() -> None:
    broker, _, _ = application()
    router = RocketMQRouter("eu-")

    @router.subscriber("returns", title="Returns")
    async def take_back(order: int) -> None: ...

    broker.include_router(router)
    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    hosts = [(server["host"], server["protocol"]) for server in document["servers"].values()]
    assert hosts == [("10.0.0.1:9876", "rocketmq"), ("10.0.0.2:9876", "rocketmq")]
    channels = {name: channel["address"] for name, channel in document["channels"].items()}
    assert channels == {"orders:Bill": "orders", "bills:Publisher": "bills", "Returns": "eu-returns"}
    assert {name: operation["action"] for name, operation in document["operations"].items()} == {
        "orders:BillSubscribe": "receive",
        "Returns": "receive",
        "bills:Publisher": "send",
    }
    assert document["components"]["schemas"].keys() >= {"Order", "Bill"}
    assert document["channels"]["orders:Bill"]["description"] == "Orders of the shop"
