"""Photograph the console for its documentation: `python -m tools.consolepictures`.

A cluster on free ports has the traffic of a made-up shop for some minutes: orders, payments, late groups, dead letters,
delays and a transaction that nobody decides. Chromium of the interop tests opens pages of a console in front of it, and
each picture goes to ``docs/pictures``. Its colours are made 256, so that it stays small.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from urllib.parse import quote

from playwright.async_api import Page, async_playwright

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client import Message, Producer, PushConsumer
from firearrow.client.producer.transactions import Decision
from firearrow.client.session.session import SessionOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.testing import EmbeddedCluster
from tests.console.conftest import served
from tests.interop.toolchain import browser
from tools.palettepng import with_palette

PICTURES: Final = Path(__file__).parent.parent / "docs" / "pictures"
OPTIONS: Final = ("--no-sandbox", "--no-zygote", "--headless=shell", "--disable-gpu")
WIDTH: Final = 1280
HEIGHT: Final = 900
BYTES_MAX: Final = 120_000
KEYS: Final = {"enablePropertyFilter": True, "recallMessageEnable": True, "traceTopicEnable": True}
TOPICS: Final = ("orders", "payments", "letters", "reminders")
GROUPS: Final = ("billing", "stock", "audit", "mailer", "ledger")
ERRORS: Final = ("no such address", "the mailbox is full")
QUERY: Final = """\
SELECT body->>'$.customer' AS customer, count(*) AS orders, sum((body->>'$.cents')::int) / 100 AS total
FROM orders GROUP BY customer ORDER BY total DESC"""


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
async def shop_with_console(state: Path) -> AsyncIterator[str]:
    """Run cluster, shop and console; yield the console's address."""
    async with EmbeddedCluster(config=KEYS, verify=False) as cluster:
        for topic in TOPICS:
            await cluster.create_topic(topic, queues=4)
        for group in GROUPS:
            await cluster.create_group(group, retry_max_times=0)
        clock = SystemClock()
        clusters = Clusters(ClusterOptions(name_server=cluster.name_server), clock, state=state)
        async with AsyncExitStack() as stack:
            tasks = Shop(cluster.name_server).everybody()
            stack.push_async_callback(asyncio.wait, tasks)
            for task in tasks:
                stack.callback(task.cancel)
            yield await stack.enter_async_context(served(Console(clusters, ChangeLog(state, clock), "key", clock)))


class Picture(NamedTuple):
    """A picture by the name of its file: a page of the cluster, and the links and buttons to press on it."""

    name: str
    path: str
    links: Sequence[str] = ()
    button: str = ""
    height: int = HEIGHT


SEEK: Final = "/do/offset-reset?group=audit&topic=orders&to=latest"
ALL: Final = (
    Picture("overview", "/"),
    Picture("topics", "/topics", height=640),
    Picture("messages", "/topics/orders/messages?tags=paid&having=region%3Deu", height=760),
    Picture("message", "/groups/mailer/dead-letters", ("a[href*='/queues/']", "a:text('Its origin')")),
    Picture("group", "/groups/audit"),
    Picture("dead-letters", "/groups/mailer/dead-letters", height=760),
    Picture("pending", "/pending?every=60"),
    Picture("preview", SEEK, button="Show what would change", height=640),
    Picture("sql", f"/sql?query={quote(QUERY)}", height=760),
    Picture("configuration", "/brokers/broker-a/config?q=flush"),
)


async def photograph(page: Page, address: str, picture: Picture) -> bytes:
    """Open a page, go where the picture is, and give its bytes."""
    await page.set_viewport_size({"width": WIDTH, "height": picture.height})
    await page.goto(f"{address}/cluster{picture.path}")
    for link in picture.links:
        await page.locator(f"main {link}").first.click()
    if picture.button:
        await page.get_by_role("button", name=picture.button).click()
    await page.wait_for_load_state("load")
    await page.mouse.click(WIDTH - 20, picture.height - 20)  # no field has the focus
    await page.wait_for_timeout(1000)  # charts are drawn after the page
    return await page.screenshot()


async def photograph_all(seconds: float, names: Sequence[str]) -> dict[str, bytes]:
    """Give the pictures by their names, after some time of traffic."""
    files = browser()
    libraries = f"{files / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with tempfile.TemporaryDirectory() as state:
        async with shop_with_console(Path(state)) as address, async_playwright() as playwright:
            await asyncio.sleep(seconds)
            chromium = await playwright.chromium.launch(
                executable_path=files / "chromium", args=list(OPTIONS), env={**os.environ, "LD_LIBRARY_PATH": libraries}
            )
            page = await chromium.new_page(locale="en-GB", color_scheme="light")
            chosen = [it for it in ALL if not names or it.name in names]
            taken = {picture.name: await photograph(page, address, picture) for picture in chosen}
            await chromium.close()
            return taken


def main() -> int:
    """Photograph the console."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="pictures to take (default: all)")
    parser.add_argument("--seconds", type=float, default=240, help="duration of the traffic before (default: 240)")
    parser.add_argument("--directory", type=Path, default=PICTURES, help="directory of the pictures")
    given = parser.parse_args()
    logging.disable()  # letters fail on purpose
    given.directory.mkdir(exist_ok=True)
    for name, png in asyncio.run(photograph_all(given.seconds, given.names)).items():
        content = with_palette(png)
        assert len(content) <= BYTES_MAX, f"{name} has {len(content):,} bytes"
        (given.directory / f"{name}.png").write_bytes(content)
        print(f"{name} {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
