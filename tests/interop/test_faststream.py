"""A service of FastStream on RocketMQ's broker and on Firearrow's."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from faststream.exceptions import NackMessage, RejectMessage

from firearrow.integrations.faststream import RocketMQBroker, RocketMQResponse
from firearrow.integrations.faststream.annotations import RocketMQMessage
from tests.interop.servers import Server


def test_messages_retries_batches_and_requests(server: Server) -> None:
    broker = RocketMQBroker(server.namesrv, group="faststream", logger=None)
    got: asyncio.Queue[tuple[str, int, float]] = asyncio.Queue()
    batches: asyncio.Queue[list[int]] = asyncio.Queue()

    @broker.subscriber("faststream-orders", tags="paid || late")
    async def bill(order: str, message: RocketMQMessage) -> None:
        times = message.raw_message.reconsume_times
        await got.put((order, times, time.monotonic() - began))
        if order == "again" and not times:
            raise NackMessage(level=1)
        if order == "bad":
            raise RejectMessage

    @broker.subscriber("faststream-numbers", batch=True)
    async def note(numbers: list[int]) -> None:
        await batches.put(numbers)

    @broker.subscriber("faststream-prices")
    async def price(order: int, message: RocketMQMessage) -> RocketMQResponse:
        return RocketMQResponse({"price": order * 2}, headers={"shop": message.headers["shop"]})

    async def main() -> None:
        async with broker, asyncio.timeout(60):
            await broker.start()
            response = await broker.request(17, "faststream-prices", headers={"shop": "7"}, correlation_id="c-1")
            assert (await response.decode(), response.headers["shop"]) == ({"price": 34}, "7")
            assert response.correlation_id == "c-1"
            await broker.publish_batch(1, 2, 3, topic="faststream-numbers")
            numbers: list[int] = []
            while len(numbers) < 3:  # the broker may give a part of a batch at first
                numbers += await batches.get()
            assert numbers == [1, 2, 3]
            await broker.publish("", "faststream-orders", tag="paid")
            await broker.publish("later", "faststream-orders", tag="late", delay=timedelta(seconds=3))
            await broker.publish("free", "faststream-orders", tag="open")
            await broker.publish("bad", "faststream-orders", tag="paid")
            await broker.publish("again", "faststream-orders", tag="paid")
            found = sorted([await got.get() for _ in range(5)])
        assert [(order, times) for order, times, _ in found] == [
            ("", 0), ("again", 0), ("again", 1), ("bad", 0), ("later", 0)
        ]  # fmt: skip
        moments = {(order, times): moment for order, times, moment in found}
        assert moments["again", 1] - moments["again", 0] >= 1
        assert moments["later", 0] >= 3

    began = time.monotonic()
    asyncio.run(main())
