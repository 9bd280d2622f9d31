"""Helpers for tests of consumers: create topics, send to queues, count deliveries."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.message import Message
from firearrow.client.push.pushconsumer import PushConsumer
from firearrow.client.session.session import Session
from firearrow.message import properties as keys_of
from tests.client.cluster import Cluster

GROUP = "g"
STEP_SECONDS_MAX = 5.0  # of virtual time, between looks at what is waited for


async def make_topic(cluster: Cluster, session: Session, topic: str = "T", queues: int = 4, **changed: Any) -> None:
    """Make a topic with queues on each broker, which the name server knows when this returns."""
    fields: dict[str, Any] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        "order": False,
    }  # fmt: skip
    for served in cluster.brokers.values():
        await session.client.call(f"127.0.0.1:{served.port}", 17, fields | changed)
    await asyncio.sleep(1)
    await session.refresh(topic)


class Sender:
    """Sends numbered messages, each with its number as its body."""

    def __init__(self, session: Session, topic: str = "T") -> None:
        self.session = session
        self.topic = topic
        self.sent: list[int] = []

    async def send(
        self,
        count: int = 1,
        *,
        queue: int | None = None,
        queues: int = 4,
        broker: str = "a",
        properties: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Send the next messages, to one queue or one after another to each."""
        numbers = []
        for _ in range(count):
            number = len(self.sent)
            at = number % queues if queue is None else queue
            unique = {keys_of.UNIQUE_KEY: f"{self.topic}-{number:06}"}
            fields: dict[str, Any] = {
                "a": "producers", "b": self.topic, "c": "TBW102", "d": 4, "e": at, "f": 0,
                "g": self.session.clock.now_ms(), "h": 0,
                "i": keys_of.format(unique | dict(properties or {})),
                "j": 0, "k": False, "m": False,
            }  # fmt: skip
            await self.session.call(broker, 310, fields, b"%d" % number)
            self.sent.append(number)
            numbers.append(number)
        return numbers


class Taken:
    """What handlers got, in the order of their calls; fails each number so many times."""

    def __init__(self, failures: int = 0, pause: float = 0.0) -> None:
        self.messages: list[Message] = []
        self.failures = failures
        self.pause = pause
        self.under_way = 0
        self.under_way_max = 0

    async def __call__(self, message: Message) -> None:
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            if self.pause:
                await asyncio.sleep(self.pause)
            self.messages.append(message)
            if message.reconsume_times < self.failures:
                raise ValueError(f"no. {message.text()} is not wanted")
        finally:
            self.under_way -= 1

    @property
    def numbers(self) -> list[int]:
        """The numbers, in the order in which they came."""
        return [int(message.body) for message in self.messages]

    @property
    def by_queue(self) -> dict[tuple[str, int], list[int]]:
        """The same of each queue."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in self.messages:
            found[message.queue.broker, message.queue.queue_id].append(int(message.body))
        return dict(found)

    async def has(self, count: int) -> None:
        """Wait until so many have come."""
        await until_in_time(lambda: len(self.messages) >= count, f"{count} messages")


async def until_in_time(holds: Any, what: str, seconds: float = 600) -> None:
    """Wait, in virtual time, until something holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    step = 0.001
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"waiting for {what}"
        await asyncio.sleep(step)
        step = min(step * 1.1, STEP_SECONDS_MAX)


def push(cluster: Cluster, taken: Any, topic: str = "T", **options: Any) -> PushConsumer:
    """A push consumer that begins at the first message."""
    wanted = {name: options.pop(name) for name in ("tags", "sql", "concurrency", "batch", "manual") if name in options}
    settings: dict[str, Any] = {"group": GROUP, "start": StartFrom.FIRST, "clock": cluster.clock, "ip": "127.0.0.1"}
    consumer = PushConsumer(cluster.name_server, **(settings | options))
    consumer.subscribe(topic, taken, **wanted)
    return consumer


def committed(cluster: Cluster, topic: str = "T", group: str = GROUP) -> dict[tuple[str, int], int]:
    """How far a group is, as the brokers have it."""
    return {
        (name, queue_id): offset
        for name, served in cluster.brokers.items()
        for queue_id, offset in served.broker.offsets.queues(group, topic).items()
    }
