"""Traffic of a made-up shop for pictures: orders, payments, late groups, dead letters, delays and a transaction that
nobody decides.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from random import Random
from typing import Final

from firearrow.client import Message, Producer, PushConsumer
from firearrow.client.producer.transactions import Decision
from firearrow.client.session.session import SessionOptions
from firearrow.testing import EmbeddedCluster

KEYS: Final = {"enablePropertyFilter": True, "recallMessageEnable": True, "traceTopicEnable": True}
TOPICS: Final = ("orders", "payments", "letters", "reminders")
GROUPS: Final = ("billing", "stock", "audit", "mailer", "ledger")
ERRORS: Final = ("no such address", "the mailbox is full")


class Shop:
    """Producers and consumers of the shop, as tasks that run until cancelled."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._chance = Random(1)

    def _session(self, instance: str) -> SessionOptions:
        """Give what would else have this machine's address."""
        return SessionOptions(ip="127.0.0.1", instance=instance)

    async def sell(self) -> None:
        """Send orders, more and fewer in turns, and what follows from them."""
        async with Producer(self._name_server, group="shop", trace=True, **self._session("shop-1")) as producer:
            number = 0
            while True:
                number += 1
                await self._order(producer, number)
                if number % 3 == 0:
                    await producer.send("payments", f'{{"order": {number}}}', key=f"pay-{number}", tag="card")
                if number % 40 == 0:
                    tag = self._chance.choice(("sent", "late"))
                    await producer.send("letters", f"Order {number} is {tag}.", key=f"letter-{number}", tag=tag)
                if number % 5 == 0:
                    late = timedelta(
                        minutes=self._chance.choice((2, 8, 15, 30, 45)), seconds=self._chance.random() * 60
                    )
                    await producer.send("reminders", f"Review order {number}", delay=late, key=f"r-{number}")
                await asyncio.sleep(1 / (22 + 10 * math.sin(number / 200)))

    async def _order(self, producer: Producer, number: int) -> None:
        order = {
            "order": number,
            "customer": self._chance.choice(("Ada", "Ben", "Cleo", "Dan", "Eve")),
            "cents": self._chance.randrange(500, 90_000),
            "items": [{"sku": "A-7", "count": self._chance.randrange(1, 5)}],
        }
        region = self._chance.choice(("eu", "us"))
        tag = self._chance.choice(("paid", "paid", "open", "void"))
        await producer.send("orders", json.dumps(order), tag=tag, key=f"order-{number}", properties={"region": region})

    async def hesitate(self) -> None:
        """Begin a transaction that stays open."""

        async def check(_: Message) -> Decision:
            return Decision.UNKNOWN

        async with Producer(self._name_server, group="till", check=check, **self._session("till-1")) as producer:
            with suppress(RuntimeError):
                async with producer.transaction("payments", '{"order": 17}', key="pay-17"):
                    raise RuntimeError
            await asyncio.Event().wait()

    async def consume(
        self, group: str, topic: str, number: int, seconds: float = 0.0, refuse: Callable[[], None] = lambda: None
    ) -> None:
        """Consume a topic as a member of a group, which takes its time for each message, or refuses it."""
        session = self._session(f"{group}-{number}")
        consumer = PushConsumer(self._name_server, group=group, trace=True, max_reconsume_times=0, **session)

        async def handle(_: Message) -> None:
            await asyncio.sleep(seconds)
            refuse()

        consumer.on(topic)(handle)
        await consumer.run()

    def no_letter(self) -> None:
        """Refuse most letters."""
        if self._chance.random() < 0.7:
            raise ValueError(self._chance.choice(ERRORS))

    def everybody(self) -> Sequence[asyncio.Task[None]]:
        """Start all."""
        return [
            asyncio.create_task(one)
            for one in (
                self.sell(),
                self.hesitate(),
                self.consume("billing", "orders", 1),
                self.consume("billing", "orders", 2),
                self.consume("stock", "orders", 1, 0.02),
                self.consume("audit", "orders", 1, 2.0),
                self.consume("mailer", "letters", 1, refuse=self.no_letter),
                self.consume("ledger", "payments", 1),
            )
        ]


@asynccontextmanager
async def open_shop() -> AsyncIterator[str]:
    """Run a cluster with the shop on free ports; yield the address of its name server."""
    async with EmbeddedCluster(config=KEYS, verify=False) as cluster, AsyncExitStack() as stack:
        for topic in TOPICS:
            await cluster.create_topic(topic, queues=4)
        for group in GROUPS:
            await cluster.create_group(group, retry_max_times=0)
        tasks = Shop(cluster.name_server).everybody()
        stack.push_async_callback(asyncio.wait, tasks)
        for task in tasks:
            stack.callback(task.cancel)
        yield cluster.name_server
