"""A shop in a minute: orders are sent, a consumer fails, and Spark tells what is wrong.

`make demo` runs it. It starts a name server and a broker in a process of their own, on free ports
and with a store in a temporary directory (``--store DIR`` keeps it), and ends by itself. Each step
prints the command that does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from firearrow.cli.main import build_parser
from firearrow.cli.pipeline import report_of, session
from firearrow.cli.screen import as_text
from firearrow.client.pulls import Asking
from firearrow.client.queues import Queue
from firearrow.client.routes import create_topic
from firearrow.clock import SystemClock
from firearrow.message.model import MessageView
from firearrow.message.names import dlq_topic, retry_topic
from firearrow.message.properties import format as properties_text
from firearrow.message.record import iter_records
from firearrow.net.blocking import BlockingClient
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS: Final = 600
QUEUES: Final = 4
TRIES: Final = 3
PULL: Final = 32
NOT_FOUND: Final = 19
READY: Final = re.compile(r"ready namesrv=(\S+) broker=(\S+)")
CLOCK: Final = SystemClock()


class Shop:
    """A client of the broker: just enough of one to send, to consume and to fail."""

    def __init__(self, broker: str) -> None:
        self._client = BlockingClient()
        self._broker = broker

    def call(self, code: int, fields: dict[str, FieldValue], body: bytes = b"") -> bytes:
        """Call the broker."""
        return bytes(self._client.call(self._broker, code, fields, body).body)

    def create(self, topic: str, queues: int) -> None:
        """Make a topic."""
        create_topic(self._client, self._broker, topic, queues)

    def join(self, group: str, topic: str) -> None:
        """Make a consumer group known, as consumers do when they start."""
        subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
        }  # fmt: skip
        body = {"clientID": f"demo@{group}", "consumerDataSet": [consumer], "producerDataSet": []}
        self.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    def send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        born_ms: int | None = None,
        retries: int = 0,
    ) -> None:
        """Send one message and wait until it is stored."""
        self.call(
            RequestCode.SEND_MESSAGE_V2,
            {"a": "shop", "b": topic, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0,
             "g": born_ms or CLOCK.now_ms(), "h": 0, "i": properties_text(properties),
             "j": retries, "k": False, "m": False},
            body,
        )  # fmt: skip

    def pull(self, group: str, topic: str, queue_id: int) -> Iterator[MessageView]:
        """Give the messages of a queue, from the beginning to the end."""
        asking, queue = Asking(group), Queue(topic, "broker-a", queue_id)
        at = 0
        while True:
            fields = asking.fields(queue, at, PULL)
            answer = self._client.begin(self._broker, RequestCode.PULL_MESSAGE, fields).answer()
            if answer.code == NOT_FOUND:
                return
            found = list(iter_records(answer.body))
            yield from found
            at += len(found)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Say how far a group is."""
        self.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset},
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def send_orders(shop: Shop) -> None:
    """Send orders of fifty customers; each hundredth is sent twice, as if no answer had come."""
    shop.create("Orders", QUEUES)
    for number in range(ORDERS):
        order = {"order": number, "customer": f"c{number % 50}", "cents": 199 * (number % 7 + 1)}
        if number % 60 == 59:
            del order["cents"]  # the price is missing: this is what shipping fails at
        properties = {
            "KEYS": f"order-{number}", "TAGS": ("new", "paid")[number % 2],
            "UNIQ_KEY": f"{number:032X}",
        }  # fmt: skip
        for _ in range(2 if number % 100 == 0 else 1):
            shop.send("Orders", number % QUEUES, json.dumps(order).encode(), properties)


def bill(shop: Shop) -> None:
    """Consume half of each queue, and stop: a backlog."""
    shop.join("billing", "Orders")
    for queue_id in range(QUEUES):
        count = sum(1 for _ in shop.pull("billing", "Orders", queue_id))
        shop.commit("billing", "Orders", queue_id, count // 2)


def ship(shop: Shop) -> None:
    """Consume everything, and fail at orders without a price until they are dead letters."""
    shop.join("shipping", "Orders")
    shop.create(dlq_topic("shipping"), 1)
    for queue_id in range(QUEUES):
        count = 0
        for message in shop.pull("shipping", "Orders", queue_id):
            count += 1
            if "cents" not in json.loads(message.body):
                _give_up(shop, message)
        shop.commit("shipping", "Orders", queue_id, count)


def _give_up(shop: Shop, message: MessageView) -> None:
    """Send a message back until it has been tried often enough."""
    carried = message.properties | {
        "RETRY_TOPIC": message.topic,
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
    }
    for retry in range(1, TRIES + 1):
        topic = retry_topic("shipping") if retry < TRIES else dlq_topic("shipping")
        shop.send(topic, 0, message.body, carried, born_ms=message.born_timestamp_ms, retries=retry)


@contextmanager
def serving(store: Path) -> Iterator[tuple[str, str]]:
    """Have a name server and a broker; gives their addresses."""
    command = [sys.executable, "-m", "firearrow", "serve", "--store", str(store),
               "--namesrv-port", "0", "--broker-port", "0", "--log-level", "error"]  # fmt: skip
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


def job(spark: SparkSession, *arguments: str) -> None:
    """Run a job of the pipeline in a session that is there, and show it."""
    print(f"\n$ firearrow pipeline {shlex.join(arguments)}\n")
    options = build_parser().parse_args(["pipeline", *arguments, "--top", "5"])
    print(as_text(report_of(options, spark), 120))


def sql(spark: SparkSession, store: Path) -> None:
    """Ask the store's messages by SQL."""
    query = (
        "SELECT tags, count(*) AS orders, "
        "sum(cast(get_json_object(cast(body AS string), '$.cents') AS int)) AS cents "
        "FROM messages WHERE topic = 'Orders' GROUP BY tags ORDER BY tags"
    )
    print(f"\n>>> spark.sql({query!r}).show()\n")
    spark.read.format("rocketmq").load(str(store)).createOrReplaceTempView("messages")
    spark.sql(query).show()


def run(store: Path, work: Path) -> None:
    """Do all steps."""
    first = ["pipeline", "backlog", "--path", str(store), "--master", "local[2]"]
    with serving(store) as (name_server, broker):
        print(f"A broker serves at {broker}, its store is {store}.")
        shop = Shop(broker)
        send_orders(shop)
        print(f"{ORDERS} orders were sent.")
        bill(shop)
        print("Group billing has consumed half of them and stopped.")
        ship(shop)
        print(f"Group shipping fails at orders without a price: {ORDERS // 60} dead letters.")
        shop.close()
        with session(build_parser().parse_args(first)) as spark:
            place = ("--path", str(store))
            job(spark, "backlog", *place)
            job(spark, "deadletters", *place)
            audit = str(work / "audit")
            job(spark, "deadletters", *place, "--where", "keys = 'order-59'", "--resend",
                "--to-name-server", name_server, "--audit", audit)  # fmt: skip
            job(spark, "duplicates", *place)
            job(spark, "archive", *place, "--to", str(work / "lake"))
            sql(spark, store)
    print("The broker has ended. All of this works without one, but for sending.")


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
