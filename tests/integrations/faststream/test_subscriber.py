"""Subscribers: what they get, and what happens to messages whose handler fails."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, ContextRepo
from faststream.exceptions import IncorrectState, NackMessage, SetupError, StopConsume

from firearrow.client import Delivery
from firearrow.errors import ClientError, ConfigError
from firearrow.integrations.faststream import RocketMQMessage
from firearrow.integrations.faststream.annotations import RocketMQBroker as BrokerOfContext
from firearrow.integrations.faststream.annotations import RocketMQMessage as MessageOfContext
from firearrow.testing import VirtualTime
from tests.integrations.faststream.applications import broker_of, run

LONG = 3600.0  # longer than any retry of these tests


async def nothing_more(got: asyncio.Queue[Any]) -> None:
    await asyncio.sleep(LONG)
    assert got.empty()


def test_a_failed_message_is_redelivered_later_each_time(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    @broker.subscriber("orders")
    async def bill(order: int, message: MessageOfContext) -> None:
        times = message.raw_message.reconsume_times
        await got.put((times, rocketmq_clock.now_ms / 1000))
        if times < 2:
            raise ConnectionError("the bank does not answer")

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(17, "orders")
            tries = [await got.get() for _ in range(3)]
            await nothing_more(got)
            assert [times for times, _ in tries] == [0, 1, 2]
            moments = [moment for _, moment in tries]
            assert 10 <= moments[1] - moments[0] < 20
            assert 30 <= moments[2] - moments[1] < 40

    run(rocketmq_clock, scenario())


@pytest.mark.parametrize(
    ("policy", "dead"), [(AckPolicy.REJECT_ON_ERROR, 1), (AckPolicy.ACK, 0), (AckPolicy.ACK_FIRST, 0)]
)
def test_other_policies_do_not_redeliver(rocketmq_clock: VirtualTime, policy: AckPolicy, dead: int) -> None:
    broker = broker_of(rocketmq_clock, ack_policy=policy)
    got: asyncio.Queue[int] = asyncio.Queue()

    @broker.subscriber("orders", group="billing")
    async def bill(order: int) -> None:
        await got.put(order)
        raise ValueError("bad data")

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(17, "orders")
            assert await got.get() == 17
            await nothing_more(got)
        bodies = [message.body for message in rocketmq_clock.cluster.messages("%DLQ%billing")]
        assert bodies == [b"17"] * dead

    run(rocketmq_clock, scenario())


def test_a_handler_acknowledges_itself(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)
    async def bill(order: str, message: MessageOfContext) -> None:
        times = message.raw_message.reconsume_times
        await got.put((order, times))
        if order == "bad":
            await message.reject()
        elif order == "late" and not times:
            await message.nack(level=1)
        else:
            await message.ack()
        await message.nack()  # too late: the first call counts

    async def scenario() -> None:
        async with broker:
            await broker.start()
            for order in ("good", "bad", "late"):
                await broker.publish(order, "orders")
            assert sorted([await got.get() for _ in range(4)]) == [("bad", 0), ("good", 0), ("late", 0), ("late", 1)]
            await nothing_more(got)
        [dead] = rocketmq_clock.cluster.messages("%DLQ%shop-orders")
        assert dead.body == b"bad"

    run(rocketmq_clock, scenario())


def test_an_exception_says_when_to_redeliver(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[float] = asyncio.Queue()

    @broker.subscriber("orders")
    async def bill(message: MessageOfContext) -> None:
        await got.put(rocketmq_clock.now_ms / 1000)
        if not message.raw_message.reconsume_times:
            raise NackMessage(level=4)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(17, "orders")
            first, second = await got.get(), await got.get()
            assert 30 <= second - first < 40

    run(rocketmq_clock, scenario())


def test_an_unacknowledged_message_comes_again_after_a_restart(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock, ack_policy=AckPolicy.MANUAL)
    got: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber("orders")
    async def bill(order: str) -> None:
        await got.put(order)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("first", "orders")
            assert await got.get() == "first"
        async with broker:
            await broker.start()
            assert await got.get() == "first"

    run(rocketmq_clock, scenario())


@pytest.mark.rocketmq(enablePropertyFilter=True)
def test_tags_and_expressions_select(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @broker.subscriber("orders", group="cash", tags="paid || refunded")
    async def by_tag(order: int) -> None:
        await got.put(("tag", order))

    @broker.subscriber("orders", group="large", sql="amount > 100")
    async def by_amount(order: int) -> None:
        await got.put(("sql", order))

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish(1, "orders", tag="paid", headers={"amount": 50})
            await broker.publish(2, "orders", tag="open", headers={"amount": 500})
            await broker.publish(3, "orders", tag="refunded", headers={"amount": 101})
            assert sorted([await got.get() for _ in range(4)]) == [("sql", 2), ("sql", 3), ("tag", 1), ("tag", 3)]
            await nothing_more(got)

    run(rocketmq_clock, scenario())


def test_batches(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[list[int]] = asyncio.Queue()

    @broker.subscriber("orders", batch=True)
    async def bill(orders: list[int], message: MessageOfContext) -> None:
        assert [headers["shop"] for headers in message.batch_headers] == ["1"] * len(orders)
        await got.put(orders)
        if not message.raw_message[0].reconsume_times:
            raise ConnectionError("the bank does not answer")

    async def scenario() -> None:
        async with broker:
            await broker.start()
            receipts = await broker.publish_batch(1, 2, 3, topic="orders", headers={"shop": "1"}, tag="paid", key="k")
            assert len({receipt.queue for receipt in receipts}) == 1
            assert await got.get() == [1, 2, 3]
            again: list[int] = []
            while len(again) < 3:
                again += await got.get()
            assert sorted(again) == [1, 2, 3]
        first = rocketmq_clock.cluster.messages("orders")[0]
        assert (first.tags, first.keys) == ("paid", ["k"])

    run(rocketmq_clock, scenario())


def test_messages_of_one_key_keep_their_order(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[int] = asyncio.Queue()

    @broker.subscriber("orders", ordered=True)
    async def bill(order: int, message: MessageOfContext) -> None:
        await got.put(order)
        if order == 2 and not message.raw_message.reconsume_times:
            raise ConnectionError("the bank does not answer")
        if order == 3:
            await message.reject()  # no dead letter, which would block the queue or leave the order

    async def scenario() -> None:
        async with broker:
            await broker.start()
            for order in range(5):
                await broker.publish(order, "orders", sharding_key="customer-1")
            assert [await got.get() for _ in range(6)] == [0, 1, 2, 2, 3, 4]
            await nothing_more(got)

    run(rocketmq_clock, scenario())


def test_one_group_has_several_topics(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber("orders", group="billing")
    @broker.subscriber("returns", group="billing")
    async def bill(order: str) -> None:
        await got.put(order)

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("bought", "orders")
            await broker.publish("returned", "returns")
            assert {await got.get(), await got.get()} == {"bought", "returned"}

    run(rocketmq_clock, scenario())


def test_members_of_a_group_agree(rocketmq_clock: VirtualTime) -> None:
    async def refused(second: dict[str, Any], error: type[Exception]) -> None:
        broker = broker_of(rocketmq_clock)
        broker.subscriber("orders", group="billing")
        broker.subscriber(group="billing", **second)
        async with broker:
            with pytest.raises(error, match="billing"):
                await broker.start()

    async def scenario() -> None:
        await refused({"topic": "returns", "ordered": True}, SetupError)
        await refused({"topic": "orders", "tags": "paid"}, ConfigError)

    run(rocketmq_clock, scenario())


def test_two_processes_share_the_messages_of_a_group(rocketmq_clock: VirtualTime) -> None:
    shares: list[list[int]] = [[], []]
    brokers = [broker_of(rocketmq_clock, context=ContextRepo({"mine": share})) for share in shares]
    got: asyncio.Queue[int] = asyncio.Queue()

    for broker in brokers:

        @broker.subscriber("orders")
        async def bill(order: int, mine: Annotated[list[int], Context()]) -> None:
            mine.append(order)
            await got.put(order)

    async def scenario() -> None:
        async with brokers[0], brokers[1]:
            await brokers[0].start()
            await brokers[1].start()
            await asyncio.sleep(60)  # until each has its queues
            for order in range(40):
                await brokers[0].publish(order, "orders")
            assert sorted([await got.get() for _ in range(40)]) == list(range(40))
            await nothing_more(got)
        assert all(shares)

    run(rocketmq_clock, scenario())


def test_a_subscriber_of_a_running_broker(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[str] = asyncio.Queue()

    async def bill(order: str) -> None:
        await got.put(order)

    async def scenario() -> None:
        subscriber = broker.subscriber("orders", persistent=False)
        subscriber(bill)
        with pytest.raises(IncorrectState, match="connect"):
            await subscriber.start()
        async with broker:
            await broker.start()
            async with subscriber:
                await broker.publish("first", "orders")
                assert await got.get() == "first"
            await broker.publish("second", "orders")
            await nothing_more(got)
            async with subscriber:
                assert await got.get() == "second"
                late = broker.subscriber("returns", group=subscriber.group)
                with pytest.raises(ClientError, match="before the start"):
                    await late.start()

    run(rocketmq_clock, scenario())


def test_messages_one_by_one(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    subscriber = broker.subscriber("orders")

    async def scenario() -> None:
        async with broker:
            await broker.start()
            assert await subscriber.get_one(timeout=1) is None
            await broker.publish({"id": 1}, "orders")
            one = await subscriber.get_one(timeout=60)
            assert one is not None
            assert (await one.decode(), one.committed) == ({"id": 1}, "ACKED")
            for number in (2, 3):
                await broker.publish(number, "orders", sharding_key="same")
            found = []
            async for message in subscriber:
                found.append(await message.decode())
                if len(found) == 2:
                    break
            assert found == [2, 3]
        async with broker:  # all were acknowledged
            await broker.start()
            assert await subscriber.get_one(timeout=LONG) is None

    run(rocketmq_clock, scenario())


def test_a_restarted_subscriber_gets_a_message_once(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    subscriber = broker.subscriber("orders")

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("first", "orders")
            await asyncio.sleep(60)  # it has arrived, but nobody takes it
        async with broker:
            await broker.start()
            found = [await subscriber.get_one(timeout=60) for _ in range(2)]
            assert [one is not None and await one.decode() for one in found] == ["first", False]

    run(rocketmq_clock, scenario())


def test_one_message_may_wait_for_its_acknowledgement(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    subscriber = broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)

    async def next_message() -> RocketMQMessage:
        message = await subscriber.get_one(timeout=60)
        assert message is not None
        return message

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("bill", "orders")
            first = await next_message()
            assert first.committed is None
            await first.nack()
            again = await next_message()
            assert isinstance(again.raw_message, Delivery)
            assert again.raw_message.reconsume_times == 1
            await again.ack()
            assert await subscriber.get_one(timeout=LONG) is None

    run(rocketmq_clock, scenario())


def test_a_handler_stops_its_subscriber(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock)
    got: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber("orders")
    async def bill(order: str, context: BrokerOfContext) -> None:
        assert context is broker
        await got.put(order)
        raise StopConsume

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("first", "orders")
            assert await got.get() == "first"
            await broker.publish("second", "orders")
            await nothing_more(got)

    run(rocketmq_clock, scenario())


def test_a_running_handler_may_finish(rocketmq_clock: VirtualTime) -> None:
    broker = broker_of(rocketmq_clock, graceful_timeout=60)
    begun, done = asyncio.Event(), asyncio.Event()

    @broker.subscriber("orders")
    async def bill(order: str) -> None:
        begun.set()
        await asyncio.sleep(30)
        done.set()

    async def scenario() -> None:
        async with broker:
            await broker.start()
            await broker.publish("first", "orders")
            await begun.wait()
        assert done.is_set()
        begun.clear()
        async with broker:
            await broker.start()
            await asyncio.sleep(LONG)
            assert not begun.is_set()

    run(rocketmq_clock, scenario())


def test_each_process_gets_all_messages_of_a_broadcast(rocketmq_clock: VirtualTime) -> None:
    brokers = [broker_of(rocketmq_clock, instance=name) for name in ("one", "two")]
    got: asyncio.Queue[str] = asyncio.Queue()

    for broker in brokers:

        @broker.subscriber("prices", broadcasting=True)
        async def note(price: str) -> None:
            await got.put(price)

    async def scenario() -> None:
        async with brokers[0], brokers[1]:
            await brokers[0].start()
            await brokers[1].start()
            await brokers[0].publish("4.20", "prices")
            assert [await got.get(), await got.get()] == ["4.20", "4.20"]
            await nothing_more(got)

    run(rocketmq_clock, scenario())
