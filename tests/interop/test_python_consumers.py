"""The Python client's consumers, on the original broker and on Firearrow: the same checks.

And groups of both: a Python and a Java consumer share the queues, fail over to each other and agree
on offsets.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from firearrow.cli.cluster.progress import of_group, with_wanted
from firearrow.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Queue,
    RetryLater,
    Session,
    SimpleConsumer,
    StartFrom,
)
from firearrow.client.admin import Admin
from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.pull import pullconsumer
from firearrow.client.push import pushconsumer
from firearrow.client.routing.queues import subscribe_queues
from firearrow.errors import TopicNotFound
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, Kind, Server, serve

LATE_SECONDS = 60
BOTH: list[Kind] = ["real", "firearrow"]
SETTINGS = {**SMALL_FILES, "enableCalcFilterBitMap": "true", "traceTopicEnable": "true"}


@pytest.fixture(scope="module", params=BOTH)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp(f"consumers-{request.param}")
    with serve(request.param, root / "store", root / "logs", settings=SETTINGS) as server:
        yield server


@pytest.fixture(autouse=True)
def offsets_are_committed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would let tests wait for the first commit, which comes after ten seconds."""
    for module in (pullconsumer, pushconsumer):
        for name in ("PERSIST_FIRST_SECONDS", "PERSIST_SECONDS"):
            monkeypatch.setattr(module, name, 0.5)


@pytest.fixture
def java(driver: Driver, served: Server) -> Iterator[JavaClient]:
    client = JavaClient(driver, served)
    yield client
    client.close()


class Shop:
    """A session with what tests need of it, and what their handlers got."""

    def __init__(self, session: Session, topic: str) -> None:
        self.session = session
        self.topic = topic
        self.group = f"{topic}_group"
        self.got: list[Message] = []
        self.sent = 0

    async def send(self, count: int, **options: Any) -> None:
        """Send the next numbers, one after another."""
        async with Producer(self.session, group="senders") as producer:
            for _ in range(count):
                await producer.send(self.topic, b"%d" % self.sent, **options)
                self.sent += 1

    async def send_to_queues(self, count: int, queues: int = 4) -> None:
        """The same, number n to queue n of so many."""
        async with Producer(self.session, group="senders") as producer:
            for _ in range(count):
                at = self.sent % queues
                place = Queue(self.topic, "broker-a", at)
                await producer.send(self.topic, b"%d" % self.sent, queue=place)
                self.sent += 1

    def push(self, handler: Any = None, **options: Any) -> PushConsumer:
        """A consumer of the topic, with a session of its own, as another client has it."""
        wanted = {
            name: options.pop(name) for name in ("tags", "sql", "concurrency", "batch", "manual") if name in options
        }
        addresses = ";".join(self.session.name_servers.addresses)
        settings: dict[str, Any] = {"group": self.group, "start": StartFrom.FIRST}
        consumer = PushConsumer(addresses, **(settings | {"ip": "127.0.0.1"} | options))
        consumer.subscribe(self.topic, handler or self.take, **wanted)
        return consumer

    async def take(self, message: Message) -> None:
        """Consume a message."""
        self.got.append(message)

    @property
    def numbers(self) -> list[int]:
        """What came, in its order."""
        return [int(message.body) for message in self.got]

    async def has(self, count: int) -> None:
        """Wait until so many have come."""
        await until(lambda: len(self.got) >= count)

    async def committed(self) -> int:
        """How far the group is in all queues of the topic."""
        calls = GroupCalls(self.session, self.group)
        queues = subscribe_queues(self.topic, await self.session.route(self.topic))
        return sum([max(0, await calls.committed(queue)) for queue in queues])

    async def has_settled(self) -> None:
        """Wait until the group has committed all that was sent: nobody waits for that otherwise."""
        async with asyncio.timeout(LATE_SECONDS):
            while True:
                if await self.committed() == self.sent:
                    return
                await asyncio.sleep(0.2)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LATE_SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


def run(served: Server, topic: str, main: Callable[[Shop], Awaitable[None]]) -> None:
    """Run a test, after which no task and no connection may be left."""

    async def limited() -> None:
        async with asyncio.timeout(3 * LATE_SECONDS):
            async with Session(served.namesrv, ip="127.0.0.1") as session:
                await main(Shop(session, topic))
            assert session.connected_addresses == ()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(limited())


def test_every_message_comes_once(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(200)
        async with shop.push(concurrency=64):
            await shop.has(200)
            await shop.send(100)
            await shop.has(300)
        assert sorted(shop.numbers) == list(range(300))
        await shop.has_settled()

    run(served, topic, main)


def test_tags_and_sql_choose(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        for tag in ("paid", "sent", "refunded"):
            await shop.send(4, tag=tag, properties={"price": str(len(tag))})
        async with shop.push(tags="paid || refunded"):
            await shop.has(8)
        assert sorted(shop.numbers) == [0, 1, 2, 3, 8, 9, 10, 11]
        shop.got.clear()
        async with shop.push(sql="price > 6", group=f"{shop.group}_sql"):
            await shop.has(4)
        assert sorted(shop.numbers) == [8, 9, 10, 11]

    run(served, topic, main)


def test_what_fails_comes_again_and_is_given_up(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(3)

        async def handler(message: Message) -> None:
            shop.got.append(message)
            if message.body == b"1":
                raise RetryLater("not now", level=1)

        async with shop.push(handler, max_reconsume_times=2):
            await shop.has(5)
            dead = shop.session.group(shop.group)
            async with PullConsumer(shop.session, group="undertakers", start=StartFrom.FIRST) as reader:
                await until_route(shop, f"%DLQ%{dead}")
                reader.assign(await reader.queues(f"%DLQ%{dead}"))
                [message] = await reader.poll(LATE_SECONDS)
        assert sorted(shop.numbers) == [0, 1, 1, 1, 2]
        again = [message for message in shop.got if message.body == b"1"]
        assert [message.reconsume_times for message in again] == [0, 1, 2]
        assert {message.topic for message in again} == {topic}
        assert message.body == b"1"

    run(served, topic, main)


async def until_route(shop: Shop, topic: str) -> None:
    async with asyncio.timeout(LATE_SECONDS):
        while True:
            try:
                await shop.session.refresh(topic)
            except TopicNotFound:
                await asyncio.sleep(0.2)
            else:
                return


def test_order_is_kept_while_consumers_come_and_go(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        consumers = [shop.push(ordered=True) for _ in range(4)]
        for consumer in consumers:
            await consumer.start()
            await shop.send_to_queues(40)
        for consumer in consumers[:-1]:
            await consumer.close()
            await shop.send_to_queues(40)
        await until(lambda: len(set(shop.numbers)) == shop.sent)
        await consumers[-1].close()
        by_queue = defaultdict(list)
        for message in shop.got:
            by_queue[message.queue].append(int(message.body))
        for numbers in by_queue.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts)
        await shop.has_settled()

    run(served, topic, main)


def test_a_simple_consumer(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(20)
        async with SimpleConsumer(shop.session, group=shop.group, topics=[topic]) as consumer:
            got: dict[int, Message] = {}
            while len(got) < 20:
                for message in await consumer.receive(invisible=timedelta(seconds=12), wait=5):
                    got[int(message.body)] = message
            assert await consumer.ack(got[0])
            await consumer.ack_all([got[number] for number in range(1, 18)])
            await consumer.change_invisible(got[18], timedelta(seconds=10))
            again: list[Message] = []
            while len(again) < 2:
                again += await consumer.receive(wait=5)
            assert sorted(int(message.body) for message in again) == [18, 19]
            assert {message.reconsume_times for message in again} == {1}
            assert {message.topic for message in again} == {topic}
            await consumer.ack_all(again)

    run(served, topic, main)


def test_a_push_consumer_that_pops(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(50)

        async def handler(message: Message) -> None:
            shop.got.append(message)
            if message.body == b"7" and not message.reconsume_times:
                raise ValueError("7")

        async with shop.push(handler, mode="pop"), shop.push(handler, mode="pop"):
            await shop.has(51)
        assert sorted(shop.numbers) == sorted([*range(50), 7])

    run(served, topic, main)


def test_a_pull_consumer(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send_to_queues(40)
        async with PullConsumer(shop.session, group=shop.group, start=StartFrom.FIRST) as consumer:
            await consumer.subscribe(topic)
            got: list[Message] = []
            while len(got) < 40:
                got += await consumer.poll()
            assert sorted(int(message.body) for message in got) == list(range(40))
            await consumer.commit()
            queue = got[0].queue
            await consumer.seek(queue, 5)
            [first, *_] = await consumer.poll()
            assert (first.queue, first.queue_offset) == (queue, 5)
        await shop.has_settled()

    run(served, topic, main)


def test_tools_see_a_consumer_that_polls(served: Server, java: JavaClient, topic: str) -> None:
    """Upstream's tool reads what it says of itself; what its expression selects is counted."""

    async def main(shop: Shop) -> None:
        for price in ("6", "7", "8"):
            await shop.send(8, properties={"price": price})
        async with PullConsumer(shop.session, group=shop.group, auto_commit=False) as consumer:
            await consumer.subscribe(topic, sql="price > 6")
            await until(lambda: bool(consumer.assigned))
            await consumer.commit(dict.fromkeys(consumer.assigned, 0))
            words = ("-g", shop.group, "-i", shop.session.client_id, "-s")
            told = await asyncio.to_thread(java.mqadmin, "consumerStatus", *words)
            assert re.search(r"PROP_CONSUME_TYPE *: CONSUME_ACTIVELY", told), told
            assert "price > 6" in told
            assert "PullConsumer" in told, "stacks"
            async with Admin.of([served.namesrv]) as admin:
                found = await with_wanted(admin, await of_group(admin, shop.group, topic))
            assert sum(one.at.lag for one in found) == 24
            assert sum(one.wanted or 0 for one in found) == 16

    run(served, topic, main)


def test_all_clients_get_all(served: Server, java: JavaClient, topic: str, tmp_path: Path) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(20)
        options: dict[str, Any] = {"broadcasting": True, "offsets_directory": tmp_path}
        async with shop.push(instance="one", **options), shop.push(instance="other", **options):
            await shop.has(40)
        assert sorted(shop.numbers) == sorted([*range(20)] * 2)
        await shop.send(4)
        shop.got.clear()
        async with shop.push(instance="one", **options):
            await shop.has(4)
        assert sorted(shop.numbers) == [20, 21, 22, 23]

    run(served, topic, main)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_python_and_a_java_consumer_share_a_group(
    served: Server, java: JavaClient, topic: str, ordered: bool
) -> None:
    async def main(shop: Shop) -> None:
        ours = shop.push(ordered=ordered)
        await ours.start()
        await until(lambda: len(ours.queues.get(topic, [])) == 4)
        await shop.send_to_queues(40)
        await shop.has_settled()
        theirs = await asyncio.to_thread(java.push_consumer, shop.group, topic, orderly=ordered)

        def share() -> list[int]:
            return theirs.queues(topic)

        async def shared(count: int) -> None:
            async with asyncio.timeout(LATE_SECONDS):
                while True:
                    has = await asyncio.to_thread(share)
                    own = [queue_id for _, queue_id in ours.queues.get(topic, [])]
                    if len(has) == count and (not own or sorted(has + own) == list(range(4))):
                        return
                    await asyncio.sleep(0.1)

        await shared(2)
        await shop.send_to_queues(40)
        await until(lambda: len(set(shop.numbers)) >= 60)
        received = await asyncio.to_thread(theirs.wait_for, 20)
        assert len({message.body for message in received}) >= 20
        # They take over what we had, from where we were; and we from them.
        await shop.has_settled()
        await ours.close()
        await shared(4)
        await shop.send_to_queues(40)
        await shop.has_settled()
        back = shop.push(ordered=ordered)
        await back.start()
        await until(lambda: len(back.queues.get(topic, [])) == 2)
        received = await asyncio.to_thread(theirs.stop)
        await until(lambda: len(back.queues.get(topic, [])) == 4)
        await shop.send_to_queues(40)
        theirs_numbers = [int(message.body) for message in received]
        await until(lambda: {*shop.numbers, *theirs_numbers} == set(range(shop.sent)))
        await back.close()
        assert len(shop.numbers) + len(theirs_numbers) == shop.sent, "offsets are not agreed on"
        await shop.has_settled()

    run(served, topic, main)


@asynccontextmanager
async def reading(shop: Shop, topic: str) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(shop.session, group="readers", start=StartFrom.FIRST) as reader:
        reader.assign(await reader.queues(topic))
        yield reader


def test_what_was_consumed_is_in_the_trace(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(1, key="k")
        async with shop.push(trace=True):
            await shop.has(1)
        [message] = shop.got
        async with reading(shop, "RMQ_SYS_TRACE_TOPIC") as reader:
            texts: list[str] = []
            async with asyncio.timeout(LATE_SECONDS):
                while not any("SubAfter" in text and message.message_id in text for text in texts):
                    texts += [one.text() for one in await reader.poll()]
        [text] = [text for text in texts if message.message_id in text and "SubAfter" in text]
        before, after = text.rstrip("\x02").split("\x02")
        assert before.split("\x01")[5:8] == [message.message_id, "0", "k"]
        assert after.split("\x01")[4:7] == ["true", "k", "0"]

    run(served, topic, main)


def test_a_java_replier_answers_python(served: Server, java: JavaClient, topic: str) -> None:
    java.replier(f"{topic}_group", topic)

    async def main(shop: Shop) -> None:
        async with Producer(shop.session, group=f"{topic}_askers") as producer:
            asking = (producer.request(topic, f"{n}?", key="k", timeout_seconds=LATE_SECONDS) for n in range(5))
            replies = await asyncio.gather(*asking)
            assert [it.text() for it in replies] == [f"re: {n}?" for n in range(5)]

    run(served, topic, main)


def test_python_answers_a_java_request(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        async with Producer(shop.session, group=f"{topic}_repliers") as repliers:

            async def answer(asked: Message) -> None:
                shop.got.append(asked)
                await repliers.reply(asked, b"py: " + asked.body)

            async with shop.push(answer):
                asker = java.producer(f"{topic}_askers")
                for body in (b"1", b"\xff" * 10_000):
                    reply = await asyncio.to_thread(asker.request, topic, Outgoing(body=body), LATE_SECONDS)
                    assert reply == b"py: " + body
        assert [it.properties["TTL"] for it in shop.got] == [str(LATE_SECONDS * 1000)] * 2

    run(served, topic, main)


def test_mqadmin_shows_how_fast_a_consumer_is_and_where(served: Server, java: JavaClient, topic: str) -> None:
    async def main(shop: Shop) -> None:
        await shop.send(20)
        async with shop.push() as consumer:
            await shop.has(20)
            whom = "-g", shop.group, "-i", consumer.session.client_id
            shown = await asyncio.to_thread(java.mqadmin, "consumerStatus", *whom, "-s")
        rates = shown.partition("#Consumer RT&TPS#")[2].partition("#User Consume Info#")[0]
        [row] = [line.split() for line in rates.splitlines() if line.split()[:1] == [topic]]
        pull_ms, pull_tps, consume_ms, ok_tps, failed_tps, failed = map(float, row[1:])
        assert pull_ms > 0
        assert consume_ms >= 0
        assert pull_tps == ok_tps > 0
        assert (failed_tps, failed) == (0, 0)
        assert "pulls of " + topic in shown.partition("#Consumer jstack#")[2]

    run(served, topic, main)
