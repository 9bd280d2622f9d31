"""Demonstrate a shop in a minute: delayed messages, dead letters, transactions, their analysis by Spark, and a
typed table.

`make demo` runs it. It starts a name server and a broker in a process of their own, on free ports and with a
store in a temporary directory (``--store DIR`` keeps it), and ends automatically. It prints the traffic between
producers, broker and consumers live. Each analysis prints the equivalent command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

import firearrow.lake
from firearrow.cli.output.screen import as_text
from firearrow.cli.pipeline.jobs import order_of, report_of, session
from firearrow.client.admin.cluster import Admin
from firearrow.clock import SystemClock
from firearrow.message.model import MessageView
from firearrow.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from firearrow.net.client import Client
from firearrow.spark.jobs.workers import local_workers
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.frame import AnyCommand
from tools.shop import COMMIT, QUEUES, ROLLBACK, Shop
from tools.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS: Final = 600
RETRIES: Final = 2
LEVEL: Final = 1  # of delay: one second
READY: Final = re.compile(r"ready namesrv=(\S+) broker=(\S+)")
SETTINGS: Final = (
    "brokerName=broker-a", "recallMessageEnable=true", "timerPrecisionMs=100",
    "transactionTimeOut=1000", "transactionCheckInterval=1000",  # RocketMQ's: 6 s and 30 s
)  # fmt: skip


# --- messages that come later ---


async def send_for_later(shop: Shop, stage: Stage) -> None:
    """Send delayed messages, and recall one of them."""
    stage.scene(
        "Later",
        "Three parcels are sent at once: one with delay level 1, which is a second, two with a "
        "time of their own. One of these is taken back. Until its time a message waits in a topic "
        "of the broker's.",
    )
    consumer = asyncio.create_task(_receive(shop, stage, "Parcels", 2))
    for name, delay, words in (
        ("parcel-1", {"DELAY": str(LEVEL)}, "level 1"),
        ("parcel-2", {"TIMER_DELAY_MS": "2500"}, "in 2.5 s"),
        ("parcel-3", {"TIMER_DELAY_MS": "1800"}, "in 1.8 s"),
    ):
        at = stage.now()
        sent = await shop.send("Parcels", name.encode(), {"KEYS": name} | delay)
        stage.sends(at, f"{name}, {words}", (await shop.stored(sent)).topic)
    at = stage.now()
    await shop.recall("Parcels", sent)
    stage.sends(at, "recalls parcel-3", TIMER_TOPIC)
    await consumer
    delivered = await shop.count("Parcels")
    stage.sums_up(f"{delivered} of 3 parcels were delivered, parcel-3 was not.")


async def _receive(shop: Shop, stage: Stage, topic: str, count: int) -> None:
    """Consume ``count`` messages, and show each."""
    async for message in shop.messages("readers", topic):
        stage.delivers(topic, message.body.decode())
        count -= 1
        if not count:
            return


# --- messages that fail ---


async def send_orders(shop: Shop) -> None:
    """Send orders of fifty customers; every hundredth is sent twice, as after a lost response."""
    for number in range(ORDERS):
        order = {"order": number, "customer": f"c{number % 50}", "cents": 199 * (number % 7 + 1)}
        if number % 60 == 59:
            del order["cents"]  # the price is missing: this is what shipping fails at
        properties = {
            "KEYS": f"order-{number}", "TAGS": ("new", "paid")[number % 2],
            "UNIQ_KEY": f"{number:032X}",
        }  # fmt: skip
        for _ in range(2 if number % 100 == 0 else 1):
            await shop.send("Orders", json.dumps(order).encode(), properties, number % QUEUES)


async def bill(shop: Shop) -> None:
    """Consume half of each queue, and stop: this leaves a backlog."""
    await shop.join("billing", ["Orders"])
    for queue_id in range(QUEUES):
        messages = shop.messages("billing", "Orders", queue_id, wait=False)
        count = len([message async for message in messages])
        await shop.commit("billing", "Orders", queue_id, count // 2)


async def ship(shop: Shop, stage: Stage) -> None:
    """Consume everything, and fail at orders without a price until they are dead letters."""
    stage.scene(
        "Again, and given up",
        f"{ORDERS} orders are sent. Group billing consumes half of them and stops. Group shipping "
        f"fails at the {ORDERS // 60} that have no price. Each comes again after a second, "
        f"{RETRIES} times, and is then a dead letter. Shown is what becomes of the first.",
    )
    await send_orders(shop)
    stage.sends(0.0, f"{ORDERS} orders", "Orders")
    await bill(shop)
    stage.delivers("Orders", f"{ORDERS // 2} by billing")
    await shop.configure_group("shipping", RETRIES)
    await shop.join("shipping", ["Orders"])
    for queue_id in range(QUEUES):
        count = 0
        async for message in shop.messages("shipping", "Orders", queue_id, wait=False):
            count += 1
            if "cents" not in json.loads(message.body):
                await _fail(shop, stage, message)
        await shop.commit("shipping", "Orders", queue_id, count)
    retries = retry_topic("shipping")
    left = RETRIES * ORDERS // 60
    async for message in shop.messages("shipping", retries):
        await _fail(shop, stage, message)
        left -= 1
        if not left:
            break
    await shop.commit("shipping", retries, 0, RETRIES * ORDERS // 60)
    dead = await shop.count(dlq_topic("shipping"))
    stage.sums_up(f"{dlq_topic('shipping')} has {dead} messages. Nothing was lost.")


async def _fail(shop: Shop, stage: Stage, message: MessageView) -> None:
    """Receive a message and send it back."""
    await shop.send_back("shipping", message, LEVEL)
    order = f"order-{json.loads(message.body)['order']}"
    if order != "order-59":
        return
    tried = message.reconsume_times
    stage.delivers(message.topic, order if tried == 0 else f"{order}, retry {tried}")
    to = SCHEDULE_TOPIC if tried < RETRIES else dlq_topic("shipping")
    stage.fails(to, "no price: fails")


# --- transactions ---


async def decide(shop: Shop, stage: Stage, checks: asyncio.Queue[AnyCommand]) -> None:
    """Send halves: the first is committed, the second rolled back, and for the third the broker must ask."""
    stage.scene(
        "Only if it is true",
        "Of a transaction the broker keeps a half that nobody sees, until its producer commits it "
        "or rolls it back. If the producer says nothing, as if it had crashed, it is asked.",
    )
    consumer = asyncio.create_task(_receive(shop, stage, "Payments", 2))
    halves = {}
    for name in ("paid-1", "paid-2", "paid-3"):
        at = stage.now()
        sent = await shop.begin("Payments", name.encode())
        halves[name] = sent.ext
        stage.sends(at, f"{name}, half", (await shop.stored(sent)).topic)
    stage.sends(stage.now(), "commits paid-1", "Payments")
    await shop.end(halves["paid-1"], COMMIT)
    stage.sends(stage.now(), "rolls back paid-2", "dropped")
    await shop.end(halves["paid-2"], ROLLBACK)
    check = await checks.get()
    stage.asks("paid-3?", "undecided for a second")
    stage.sends(stage.now(), "commits paid-3", "Payments")
    await shop.end(check.ext, COMMIT)
    await consumer
    delivered = await shop.count("Payments")
    stage.sums_up(f"{delivered} of 3 payments were delivered, paid-2 was not.")


# --- the whole ---


@asynccontextmanager
async def connected(broker: str, checks: asyncio.Queue[AnyCommand]) -> AsyncIterator[Shop]:
    """Connect a client that puts the broker's transaction checks into ``checks``."""
    shop = Shop(broker, checks.put_nowait)
    try:
        await shop.join()
        yield shop
    finally:
        await shop.close()


async def play(broker: str, stage: Stage) -> None:
    """Play the scenes that need a broker and no Spark."""
    checks: asyncio.Queue[AnyCommand] = asyncio.Queue()
    async with connected(broker, checks) as shop:
        scenes: list[Coroutine[Any, Any, None]] = [
            send_for_later(shop, stage), ship(shop, stage), decide(shop, stage, checks)
        ]  # fmt: skip
        for scene in scenes:
            await scene


@contextmanager
def serving(store: Path) -> Iterator[tuple[str, str]]:
    """Run a name server and a broker; yield their addresses."""
    command = [sys.executable, "-m", "firearrow", "serve", "--store", str(store),
               "--namesrv-port", "0", "--broker-port", "0", "--log-level", "error",
               *(word for setting in SETTINGS for word in ("--set", setting))]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        try:
            ready = READY.search(it.stdout.readline())
            if ready is None:
                raise SystemExit(f"the broker does not start: {it.communicate()[1]}")
            yield ready[1], ready[2]
        finally:
            it.terminate()
            it.communicate(timeout=30)


def create_topics(broker: str, topics: Mapping[str, int]) -> None:
    """Create topics, each with its number of queues."""
    asyncio.run(_create_topics(broker, topics))


async def _create_topics(broker: str, topics: Mapping[str, int]) -> None:
    client = Client()
    for topic, queues in topics.items():
        await Admin(client, []).topics.create(broker, TopicConfig(topic, queues, queues))
    await client.close()


def job(spark: SparkSession, stage: Stage, *arguments: str) -> None:
    """Run a job of the pipeline in an existing session, and show its report."""
    stage.command(["firearrow", "pipeline", *arguments])
    order = order_of([*arguments, "--top", "5"])
    print(as_text(report_of(order, spark), stage.columns))


def sql(spark: SparkSession, store: Path) -> None:
    """Query the store's messages by SQL."""
    query = """
SELECT tags, count(*) AS orders,
       sum(cast(get_json_object(cast(body AS string), '$.cents') AS int)) AS cents
FROM messages WHERE topic = 'Orders' GROUP BY tags ORDER BY tags
"""
    print(f'>>> spark.sql("""{query}""").show()\n')
    spark.read.format("rocketmq").load(str(store)).createOrReplaceTempView("messages")
    spark.sql(query).show()


def lake(store: Path, work: Path, stage: Stage) -> None:
    """Make a typed table of a topic, and query it by DuckDB, without Spark."""
    given = ["tables", "--path", str(store), "--to", str(work / "tables"), "--topic", "Orders", "--schema"]
    given.append("order long, customer string, cents long")
    stage.command(["firearrow", "pipeline", *given])
    with local_workers(2) as workers:
        print(as_text(report_of(order_of(given), None, workers), stage.columns))
    query = """
SELECT customer, count(*) AS orders, sum(cents) AS cents
FROM orders GROUP BY customer ORDER BY cents DESC, customer LIMIT 3
"""
    print(f'>>> orders = firearrow.lake.table("Orders", "{work / "tables"}")')
    print(f'>>> duckdb.sql("""{query}""").show()\n')
    orders = firearrow.lake.table("Orders", work / "tables")
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        connection.sql(query).show()


def analyse(store: Path, work: Path, name_server: str, stage: Stage) -> None:
    """Analyse the store with Spark."""
    first = ["backlog", "--path", str(store), "--master", "local[2]"]
    stage.say("Now Spark starts, and reads the broker's files.")
    with session(order_of(first)) as spark:
        place = ("--path", str(store))
        job(spark, stage, "backlog", *place)
        job(spark, stage, "deadletters", *place)
        audit = str(work / "audit")
        job(spark, stage, "deadletters", *place, "--where", "keys = 'order-59'", "--resend",
            "--to-name-server", name_server, "--audit", audit)  # fmt: skip
        job(spark, stage, "duplicates", *place)
        job(spark, stage, "archive", *place, "--to", str(work / "lake"))
        sql(spark, store)


def run(store: Path, work: Path) -> None:
    """Run all steps."""
    stage = Stage(sys.stdout, SystemClock())
    with serving(store) as (name_server, broker):
        stage.say(f"A broker serves at {broker}, its store is {store}.")
        create_topics(broker, {"Parcels": 1, "Orders": QUEUES, "Payments": 1})
        asyncio.run(play(broker, stage))
        analyse(store, work, name_server, stage)
        lake(store, work, stage)
    print("The broker has ended. The analysis works without one, but for sending again.")


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, metavar="DIR", help="keep the store in DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firearrow-demo-") as directory:
        work = Path(directory)
        run(options.store or work / "store", work)


if __name__ == "__main__":
    main()
