"""Produce some of every kind of traffic that a broker counts, for scrapes of Firearrow and of the original."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from firearrow.client import Decision, Message, Producer, PushConsumer, Session, SimpleConsumer
from firearrow.client.admin import Admin
from firearrow.client.consumer.subscription import StartFrom
from firearrow.net.client import Client
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

TOPICS = ("plain", "fifo", "delayed", "timed", "decided", "popped", "failing")
GROUPS = ("pushers", "poppers", "losers")
WAIT_SECONDS = 30


class Traffic:
    """Messages that the consumers of the traffic got."""

    def __init__(self) -> None:
        self.got: dict[str, list[bytes]] = {}
        self._came = asyncio.Condition()

    async def take(self, message: Message) -> None:
        """Consume a message."""
        async with self._came:
            self.got.setdefault(message.topic, []).append(message.body)
            self._came.notify_all()

    async def fail(self, message: Message) -> None:
        """Fail, so that the message becomes a dead letter."""
        await self.take(message)
        raise ValueError("as it is meant to")

    async def has(self, topic: str, count: int) -> None:
        """Wait for the consumption of ``count`` messages of a topic."""
        async with asyncio.timeout(WAIT_SECONDS), self._came:
            await self._came.wait_for(lambda: len(self.got.get(topic, ())) >= count)


@asynccontextmanager
async def running(name_server: str, broker: str) -> AsyncIterator[Traffic]:
    """Create topics and groups, send and consume; the clients are connected within the block."""
    async with asyncio.timeout(2 * WAIT_SECONDS):
        await _declare(name_server, broker)
    traffic = Traffic()
    async with (
        Session(name_server, ip="127.0.0.1") as session,
        Producer(session, group="senders", check=_decide_later) as producer,
        _pushing(session, traffic),
        SimpleConsumer(session, group="poppers", topics=["popped"]) as popper,
    ):
        await _send(producer)
        await _pop(producer, popper)
        for topic, count in (("plain", 6), ("delayed", 1), ("timed", 1), ("decided", 1)):
            await traffic.has(topic, count)
        await traffic.has("failing", 1)
        yield traffic


async def _decide_later(message: Message) -> Decision:
    return Decision.UNKNOWN


@asynccontextmanager
async def _pushing(session: Session, traffic: Traffic) -> AsyncIterator[None]:
    pusher = PushConsumer(session, group="pushers", start=StartFrom.FIRST)
    for topic in ("plain", "fifo", "delayed", "timed", "decided"):
        pusher.subscribe(topic, traffic.take)
    loser = PushConsumer(session, group="losers", start=StartFrom.FIRST, max_reconsume_times=0)
    loser.subscribe("failing", traffic.fail)
    async with pusher, loser:
        yield


async def _declare(name_server: str, broker: str) -> None:
    client = Client()
    admin = Admin(client, [name_server])
    try:
        for topic in TOPICS:
            kind = {"decided": "TRANSACTION", "fifo": "FIFO"}.get(topic)
            attributes = {"+message.type": kind} if kind else {}
            await admin.topics.create(broker, TopicConfig(topic, 1, 1, attributes=attributes))
        for group in GROUPS:
            await admin.groups.create(broker, SubscriptionGroupConfig(group_name=group))
    finally:
        await client.close()


async def _send(producer: Producer) -> None:
    for size in (10, 2000, 20_000):
        await producer.send("plain", bytes(size), key="k")
    await producer.send_batch("plain", [b"1", b"2", b"3"])
    await producer.send("fifo", b"in order", sharding_key="s")
    await producer.send("delayed", b"in a second", delay_level=1)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    await producer.send("timed", b"at a time", deliver_at=soon)
    async with producer.transaction("decided", b"committed"):
        pass
    async with producer.transaction("decided", b"rolled back") as given_up:
        given_up.roll_back()
    async with producer.transaction("decided", b"open") as open_one:
        open_one.leave_open()
    await producer.send("failing", b"for the dead letters")


async def _pop(producer: Producer, popper: SimpleConsumer) -> None:
    """Acknowledge one of two messages; the other is popped a second time."""
    for number in range(2):
        await producer.send("popped", b"%d" % number)
    seen = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while seen < 3:
            for message in await popper.receive(8, timedelta(seconds=10), wait=1):
                seen += 1
                if seen == 1:
                    await popper.ack(message)
                elif seen == 2:
                    await popper.change_invisible(message, timedelta(seconds=1))
