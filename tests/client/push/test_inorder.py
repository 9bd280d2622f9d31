"""Consumption in order: one message of a queue after another, despite failures and rebalances."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firearrow.client.consumer.handlers import Delivery, RetryLater
from firearrow.client.message import Message
from firearrow.errors import ClientError
from tests.broker.serving import seconds
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import Sender, Taken, committed, make_topic, push, until_in_time


def test_each_queue_keeps_its_order(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=0.01)
            await sender.send(200)
            async with push(cluster, taken, ordered=True):
                await taken.has(200)
            assert taken.under_way_max == 4
            assert taken.by_queue == {("a", queue): list(range(queue, 200, 4)) for queue in range(4)}
            assert sum(committed(cluster).values()) == 200

    clustered(root, main)


def test_what_fails_holds_up_its_queue(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, times = Sender(session), list[tuple[float, int, int]]()
            await sender.send(8, queues=2)

            async def handler(message: Message) -> None:
                times.append((seconds(), int(message.body), message.reconsume_times))
                if message.body == b"2" and message.reconsume_times < 2:
                    raise RetryLater(seconds=5) if message.reconsume_times else ValueError("2")

            async with push(cluster, handler, ordered=True):
                await until_in_time(lambda: len(times) == 10, "messages")
            assert [number for _, number, _ in times if number % 2] == [1, 3, 5, 7]
            even = [(number, again) for _, number, again in times if not number % 2]
            assert even == [(0, 0), (2, 0), (2, 1), (2, 2), (4, 0), (6, 0)]
            at = [when for when, number, _ in times if number == 2]
            assert 1 <= at[1] - at[0] < 1.1
            assert 5 <= at[2] - at[1] < 5.1

    clustered(root, main)


def test_what_failed_as_often_as_it_may_goes_to_the_dead_letters(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(3, queue=0)

            async def handler(message: Message) -> None:
                await taken(message)
                if message.body == b"1":
                    raise ValueError("1")

            async with push(cluster, handler, ordered=True, max_reconsume_times=2, suspend=0.1):
                await taken.has(5)
                await until_in_time(lambda: cluster.stored("%DLQ%g"), "the dead letter")
            assert taken.numbers == [0, 1, 1, 1, 2]
            [dead] = cluster.stored("%DLQ%g")
            assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"1", "T")

    clustered(root, main)


def test_by_hand_what_is_acknowledged_takes_all_before_it_along(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, got = Sender(session), list[Delivery]()
            await sender.send(6, queue=0)

            async def handler(delivery: Delivery) -> None:
                got.append(delivery)
                if len(got) == 3:
                    delivery.ack()

            async with push(cluster, handler, ordered=True, manual=True):
                await until_in_time(lambda: len(got) == 6, "messages")
            assert [int(one.body) for one in got] == list(range(6))
            assert committed(cluster)["a", 0] == 3

    clustered(root, main)


def test_by_hand_what_was_not_acknowledged_can_be_rolled_back(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, got, times = Sender(session), list[Delivery](), list[float]()
            await sender.send(6, queue=0)

            async def handler(delivery: Delivery) -> None:
                got.append(delivery)
                times.append(seconds())
                if len(got) in (2, 11):
                    delivery.ack()
                if len(got) == 4:
                    await delivery.roll_back(seconds=7)

            async with push(cluster, handler, ordered=True, manual=True):
                await until_in_time(lambda: len(got) == 8, "messages")
                numbers = [int(one.body) for one in got]
                assert numbers == [0, 1, 2, 3, 2, 3, 4, 5]
                assert times[4] - times[3] >= 7
                assert {one.reconsume_times for one in got} == {0}
                await got[7].roll_back()  # its handler has returned long ago
                await until_in_time(lambda: len(got) == 12, "what was rolled back")
                assert [int(one.body) for one in got[8:]] == [2, 3, 4, 5]
            assert committed(cluster)["a", 0] == 5

    clustered(root, main)


@pytest.mark.parametrize("ends", ["raises", "retries"])
def test_by_hand_a_failure_behind_an_acknowledgement_changes_nothing(root: Path, ends: str) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, got = Sender(session), list[Delivery]()
            await sender.send(4, queue=0)

            async def handler(deliveries: list[Delivery]) -> None:
                got.extend(deliveries)
                deliveries[0].ack()
                if ends == "raises":
                    raise ValueError(ends)
                await deliveries[1].retry()

            async with push(cluster, handler, ordered=True, manual=True, batch=2):
                await until_in_time(lambda: len(got) == 4, "messages")
            assert [int(one.body) for one in got] == list(range(4))
            assert committed(cluster)["a", 0] == 4

    clustered(root, main)


def test_who_keeps_no_order_can_roll_nothing_back(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            got: list[Delivery] = []

            async def handler(delivery: Delivery) -> None:
                got.append(delivery)
                with pytest.raises(ClientError, match=r"topic 'T' can't be rolled back"):
                    await delivery.roll_back()
                assert not delivery.is_settled
                delivery.ack()

            await Sender(session).send(1)
            async with push(cluster, handler, manual=True):
                await until_in_time(lambda: len(got) == 1 and got[0].is_settled, "it")

    clustered(root, main)


def test_order_is_kept_while_consumers_come_and_go(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, queues=8)
            sender, taken = Sender(session), Taken(pause=0.02)
            consumers = [push(cluster, taken, ordered=True) for _ in range(10)]

            async def storm() -> None:
                for consumer in consumers:
                    await consumer.start()
                    await asyncio.sleep(3)
                for consumer in consumers[:-1]:
                    await consumer.close()
                    await asyncio.sleep(3)

            storming = asyncio.ensure_future(storm())
            while not storming.done():
                await sender.send(8, queues=8)
                await asyncio.sleep(0.1)
            await storming
            await until_in_time(lambda: len(set(taken.numbers)) == len(sender.sent), "all")
            await consumers[-1].close()
            for queue in taken.by_queue.values():
                firsts = list(dict.fromkeys(queue))
                assert firsts == sorted(firsts)
            assert len(taken.numbers) == len(sender.sent), "a lock was lost"
            assert sum(committed(cluster).values()) == len(sender.sent)

    clustered(root, main)


def test_a_broker_that_restarts_gives_its_locks_again(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(20)
            async with push(cluster, taken, ordered=True):
                await taken.has(20)
                port = await cluster.stop_broker("a")
                await asyncio.sleep(60)
                await cluster.start_broker("a", port)
                await asyncio.sleep(2)
                await sender.send(20)
                await until_in_time(lambda: set(taken.numbers) == set(sender.sent), "all", 120)
            for queue in taken.by_queue.values():
                assert list(dict.fromkeys(queue)) == sorted(set(queue))

    clustered(root, main)
