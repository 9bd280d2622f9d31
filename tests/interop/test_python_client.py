"""The Python client's producer, against the original broker and against Firearrow: the same checks.

What was sent is read back by pulls, with content, order and counts.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from firearrow.cli.main import main
from firearrow.client import Credentials, Decision, Message, NewMessage, Producer, Queue, SendStatus, Session
from firearrow.client.producer.choosing import by_hash
from firearrow.client.routing.queues import subscribe_queues
from firearrow.errors import BrokerError, NoReply, TopicNotFound
from firearrow.message.names import TRACE_TOPIC
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from tests.broker.serving import pull_fields
from tests.interop.servers import Kind, Server, serve

LATE_SECONDS = 40
SETTINGS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "5000",  # the original writes decisions down after up to 3 s
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
}
BOTH: list[Kind] = ["real", "firearrow"]


@pytest.fixture(scope="module", params=BOTH)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp(f"python-{request.param}")
    with serve(request.param, root / "store", root / "logs", settings=SETTINGS) as server:
        yield server


class Shop:
    """A session with what tests need of it."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def producer(self, group: str, **options: Any) -> Producer:
        """A producer in the session."""
        return Producer(self.session, group=group, **options)

    async def stored(self, topic: str) -> list[Message]:
        """All that a topic holds, queue by queue."""
        name = self.session.topic(topic)
        try:
            route = await self.session.refresh(name)
        except TopicNotFound:
            return []
        found: list[Message] = []
        for queue in subscribe_queues(name, route):
            found += await self._queue(queue)
        return found

    async def _queue(self, queue: Queue) -> list[Message]:
        found: list[Message] = []
        while True:
            fields: dict[str, FieldValue] = pull_fields(
                len(found), topic=queue.topic, queueId=queue.queue_id, consumerGroup="readers"
            )
            address = self.session.address_of(queue.broker)
            answer = await self.session.client.answer(address, 11, fields)
            if answer.code != 0:
                return found
            views = iter_records(answer.body)
            found += [Message.received(it, queue.broker, self.session.namespace) for it in views]

    async def holding(self, topic: str, count: int) -> list[Message]:
        """The same, once there are so many."""
        async with asyncio.timeout(LATE_SECONDS):
            while True:
                found = await self.stored(topic)
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.1)


@asynccontextmanager
async def shopping(served: Server, **options: Any) -> AsyncIterator[Shop]:
    async with Session(served.namesrv, ip="127.0.0.1", **options) as session:
        yield Shop(session)


def run(served: Server, main: Callable[[Shop], Awaitable[None]], **options: Any) -> None:
    """Run a test, after which no task and no connection may be left."""

    async def limited() -> None:
        async with asyncio.timeout(2 * LATE_SECONDS):
            async with shopping(served, **options) as shop:
                await main(shop)
            assert shop.session.connected_addresses == ()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(limited())


def test_messages_of_all_kinds_of_bodies(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            bodies = ["text", b"bytes", {"n": 1}, "x" * 10_000]
            sends = [producer.send(name, it, key=f"k{n}", tag="t") for n, it in enumerate(bodies)]
            receipts = await asyncio.gather(*sends)
            messages = {it.message_id: it for it in await shop.holding(name, 4)}
            assert len(messages) == 4
            for receipt, expected in zip(receipts, [b"text", b"bytes", b'{"n":1}', b"x" * 10_000], strict=True):
                message = messages[receipt.message_id]
                assert (message.body, message.tag, message.topic) == (expected, "t", name)
                assert message.offset_message_id == receipt.offset_message_id
                assert (message.queue, message.queue_offset) == (receipt.queue, receipt.queue_offset)
                assert receipt.status is SendStatus.SEND_OK

    run(served, main)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compression(served: Server, name: str, kind: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop", compression=kind) as producer:
            await producer.send(name, b"a" * 100_000)
            [message] = await shop.holding(name, 1)
            assert message.body == b"a" * 100_000
            assert len(message.view.body) < 2000

    run(served, main)


def test_thousands_side_by_side_and_all_counted(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            await producer.send(name, b"first")
            await shop.holding(name, 1)
            sends = [producer.send(name, b"%d" % n) for n in range(1, 2000)]
            receipts = await asyncio.gather(*sends)
            messages = await shop.holding(name, 2000)
            assert {it.message_id for it in receipts} < {it.message_id for it in messages}
            expected = Counter([b"first", *(b"%d" % n for n in range(1, 2000))])
            assert Counter(it.body for it in messages) == expected
            assert {it.queue for it in messages} == set(await producer.queues(name))

    run(served, main)


def test_order_by_key(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            await producer.send(name, b"first")
            await shop.holding(name, 1)
            queues = await producer.queues(name)

            async def send(key: str) -> None:
                for number in range(50):
                    receipt = await producer.send(name, f"{key} {number}", sharding_key=key)
                    assert receipt.queue == by_hash(queues, key)

            keys = ["o-1", "o-2", "o-3", "ö-4"]
            await asyncio.gather(*map(send, keys))
            messages = await shop.holding(name, 201)
            for key in keys:
                mine = [it.text() for it in messages if it.sharding_key == key]
                assert mine == [f"{key} {number}" for number in range(50)]

    run(served, main)


def test_batches(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            own = NewMessage.of("", b"own", keys="k")
            receipts = await producer.send_batch(name, ["one", "two", own], tag="t")
            messages = await shop.holding(name, 3)
            assert [it.body for it in messages] == [b"one", b"two", b"own"]
            assert [it.message_id for it in messages] == [it.message_id for it in receipts]
            assert [it.queue_offset for it in messages] == [it.queue_offset for it in receipts]
            assert [it.offset_message_id for it in messages] == [it.offset_message_id for it in receipts]
            assert {it.tag for it in messages} == {"t"}

    run(served, main)


def test_gathered_batches(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop", auto_batch=True) as producer:
            sends = [producer.send(name, b"%d" % n) for n in range(3000)]
            receipts = await asyncio.gather(*sends)
            messages = {it.message_id: it for it in await shop.holding(name, 3000)}
            for number, receipt in enumerate(receipts):
                message = messages[receipt.message_id]
                assert message.body == b"%d" % number
                assert message.queue_offset == receipt.queue_offset

    run(served, main)


def test_one_way(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            ids = {await producer.send_oneway(name, b"%d" % n) for n in range(100)}
            assert {it.message_id for it in await shop.holding(name, 100)} == ids

    run(served, main)


def test_delays_and_times(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            began = datetime.now(UTC)
            await producer.send(name, b"delay", delay=timedelta(seconds=3))
            await producer.send(name, b"at", deliver_at=began + timedelta(seconds=5))
            await producer.send(name, b"level", delay_level=1)
            for message in await shop.holding(name, 3):
                late = (message.stored_at - began).total_seconds()
                due = {b"delay": 3, b"at": 5, b"level": 1}[message.body]
                assert due - 1 <= late <= due + 5

    run(served, main)


def test_recall(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            stays = await producer.send(name, b"stays", delay=timedelta(seconds=4))
            goes = await producer.send(name, b"goes", delay=timedelta(seconds=4))
            assert stays.recall_handle is not None
            assert goes.recall_handle is not None
            assert await producer.recall(name, goes.recall_handle) == goes.message_id
            await shop.holding(name, 1)
            await asyncio.sleep(2)
            assert [it.body for it in await shop.stored(name)] == [b"stays"]
            with pytest.raises(BrokerError) as caught:
                await producer.recall(name, stays.recall_handle)
            assert caught.value.code == 604

    run(served, main)


def test_transactions(served: Server, name: str) -> None:
    asked: Counter[bytes] = Counter()
    asked_for_bad = asyncio.Event()

    async def check(message: Message) -> Decision:
        assert message.topic == name
        asked[message.body] += 1
        if message.body == b"bad":
            asked_for_bad.set()
            return Decision.ROLLBACK
        return Decision.COMMIT

    async def main(shop: Shop) -> None:
        async with shop.producer("tellers", check=check) as producer:
            async with producer.transaction(name, b"good", key="k", tag="t"):
                assert await shop.stored(name) == []
            async with producer.transaction(name, b"rolled back") as transaction:
                transaction.roll_back()
            for body in (b"open", b"bad"):
                async with producer.transaction(name, body) as transaction:
                    transaction.leave_open()
            messages = await shop.holding(name, 2)
            async with asyncio.timeout(LATE_SECONDS):
                await asked_for_bad.wait()
            await asyncio.sleep(2)
            messages = await shop.stored(name)
            assert {it.body for it in messages} == {b"good", b"open"}
            assert set(asked) == {b"open", b"bad"}
            [good] = [it for it in messages if it.body == b"good"]
            assert (good.keys, good.tag) == (["k"], "t")

    run(served, main)


def test_requests_and_replies(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("askers") as askers, shopping(served) as other, other.producer("repliers") as repliers:
            asking = [asyncio.create_task(askers.request(name, f"{n}?", timeout_seconds=20)) for n in range(5)]
            for asked in await other.holding(name, 5):
                await repliers.reply(asked, asked.text() + "!")
            replies = await asyncio.gather(*asking)
            assert [it.text() for it in replies] == [f"{n}?!" for n in range(5)]
            with pytest.raises(NoReply):
                await askers.request(name, b"nobody", timeout_seconds=1)

    run(served, main)


def test_the_trace(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("traced", trace=True) as producer:
            receipt = await producer.send(name, b"1234", key="k", tag="t")
        async with asyncio.timeout(LATE_SECONDS):
            while True:
                traced = await shop.stored(TRACE_TOPIC)
                mine = [it for it in traced if receipt.message_id in it.keys]
                if mine:
                    break
                await asyncio.sleep(0.1)
        row = mine[0].text().split("\x02")[0].split("\x01")
        assert row[0] == "Pub"
        assert row[2:8] == ["DefaultRegion", "traced", name, receipt.message_id, "t", "k"]
        assert row[9] == "4"
        assert row[11:] == ["0", receipt.offset_message_id, "true"]
        assert "k" in mine[0].keys

    run(served, main)


def test_a_namespace(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            receipt = await producer.send(name, b"x")
            assert (receipt.topic, receipt.queue.topic) == (name, f"ns%{name}")
            [message] = await shop.holding(name, 1)
            assert (message.topic, message.queue.topic) == (name, f"ns%{name}")

    run(served, main, namespace="ns")


def test_signed_requests_are_understood(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer("shop") as producer:
            receipt = await producer.send(name, b"x", key="k")
            [message] = await shop.holding(name, 1)
            assert message.message_id == receipt.message_id
            assert "AccessKey" not in message.properties

    run(served, main, credentials=Credentials("user", "sk123456", "token"))


def test_a_broker_knows_its_producers(served: Server, name: str) -> None:
    async def main(shop: Shop) -> None:
        async with shop.producer(name) as producer:
            await producer.send(name, b"x")
            await shop.session.heartbeat()
            connected = await shop.session.call("broker-a", 204, {"producerGroup": name})
            assert shop.session.client_id.encode() in connected.body
        with pytest.raises(BrokerError, match=r"not exist|not online"):
            await shop.session.call("broker-a", 204, {"producerGroup": name})

    run(served, main)


def test_the_commands_that_watch_a_cluster(
    served: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)

    def json_of(line: str, code: int = 0) -> Any:
        assert main([*line.split(), "--json"]) == code, line
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out)

    topic = "--topic watched"
    for load in ("produce", "transaction", "round-trip"):
        [row] = json_of(f"bench {load} {topic} --count 40 --in-flight 4")
        assert (row["messages"], row["failed"]) == (40, 0)
    [row] = json_of(f"bench consume {topic} --count 100 --group watchers")
    assert (row["messages"], row["failed"]) == (100, 0)
    [row] = json_of(f"bench pop {topic} --count 4 --in-flight 1")
    assert row["messages"] > 0
    assert {one["level"] for one in json_of("check --unconsumed : --disk :")} == {"ok"}
    tables = json_of("top --interval 0.1")["tables"]  # and one round trip before those
    assert {"topic": "watched", "arriving": 0.0, "messages": 121} in tables[2]["rows"]
    assert "watchers" in {row["group"] for row in tables[1]["rows"]}
    assert {one["level"] for one in json_of("doctor sends watched")} <= {"ok"}
    assert [one["check"] for one in json_of("doctor watchers", 1)] == ["offline"]
    assert [one["check"] for one in json_of("doctor nobody", 1)] == ["unknown-group"]
