"""Commands that send messages, and measure the time of a send."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import fixed, shown, text_order
from firearrow.client.admin.messages import Stored
from firearrow.client.producer.drafts import NEW_TOPIC_QUEUES
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import WritableQueue, writable
from firearrow.errors import ConfigError, FirearrowError, TopicNotFound
from firearrow.message import properties as keys_of
from firearrow.message.ids import create_unique_id, month_start_ms, unique_id_prefix
from firearrow.message.model import NewMessage
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.wire.client_bodies import MessageQueue

AMOUNT: Final = 100
SIZE: Final = 128
ROUND_SECONDS: Final = 10
STATUS_GROUP: Final = "PID_SMSC"
FILLING: Final = b"hello jodie"
CHINA: Final = timedelta(hours=8)  # the time zone of the log of `clusterRT`
_HEAD: Final = "{:<32}  {:<4}  {:<20}    {}"


class Sent(NamedTuple):
    """Queue and place of a message that was sent."""

    queue: Queue
    stored: Stored

    def __str__(self) -> str:
        """Write it in RocketMQ's form."""
        queue = MessageQueue(self.queue.topic, self.queue.broker, self.stored.queue_id)
        return (
            f"SendResult [sendStatus={self.stored.status}, msgId={self.stored.message_id}, "
            f"offsetMsgId={self.stored.offset_message_id}, messageQueue={queue.text}, "
            f"queueOffset={self.stored.queue_offset}, recallHandle=null]"
        )


class CommandProducer:
    """Producer for the time of a command: it takes the queues in turn, from a random one on."""

    def __init__(self, run: Invocation, group: str | None = None) -> None:
        self._run = run
        self._group = group or str(run.clock.now_ms())
        self._ids = self._unique_ids()
        self._turn = secrets.randbelow(1 << 16)

    def _unique_ids(self) -> Iterator[str]:
        prefix = unique_id_prefix("127.0.0.1", os.getpid(), secrets.randbits(31))
        counter = 0
        while True:
            now = self._run.clock.now_ms()
            yield create_unique_id(prefix, now - month_start_ms(now), counter)
            counter += 1

    async def targets(self, topic: str) -> list[WritableQueue]:
        """List the writable queues of a topic; for a new topic, its future queues."""
        try:
            found = writable(await self._run.admin.topics.route(topic))
        except TopicNotFound:
            route = await self._run.admin.topics.route(AUTO_CREATE_TOPIC)
            found = writable(route, NEW_TOPIC_QUEUES)
        if not found:
            raise ConfigError(f"topic {topic!r} has no writable queue")
        return found

    async def send(self, message: NewMessage, target: WritableQueue | None = None) -> Sent:
        """Send a message to the target; without a target, to any queue."""
        if target is None:
            targets = await self.targets(message.topic)
            self._turn += 1
            target = targets[self._turn % len(targets)]
        own = {keys_of.UNIQUE_KEY: next(self._ids), "WAIT": "true", **message.properties}
        whole = NewMessage(message.topic, message.body, own, message.flag)
        queue = Queue(message.topic, target.broker_name, target.queue_id)
        stored = await self._run.admin.messages.send(
            target.address, self._group, queue, whole, self._run.clock.now_ms()
        )
        return Sent(queue, stored)


async def send(run: Invocation) -> None:
    """Send a message."""
    topic, broker, queue_id = run.text("t"), run.get("b"), run.number("i", -1)
    if run.has("i") and not broker:
        run.fail("Broker name must be set if the queue is chosen!")
        return
    if run.flag("m", False):
        raise ConfigError("option -m is not supported: Firearrow can't trace this message yet")
    body = run.text("p").encode()
    message = NewMessage.of(topic, body, tags=run.get("c"), keys=run.get("k"))
    sending = CommandProducer(run)
    target = None
    if broker and queue_id > -1:
        targets = await sending.targets(topic)
        addresses = {one.broker_name: one.address for one in targets}
        if broker not in addresses:
            raise ConfigError(f"topic {topic!r} is not on broker {broker!r}")
        target = WritableQueue(broker, addresses[broker], queue_id)
    sent = await sending.send(message, target)
    run.line(_HEAD.format("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    stored = sent.stored
    run.line(_HEAD.format(sent.queue.broker, stored.queue_id, stored.status, stored.message_id))


async def send_status(run: Invocation) -> None:
    """Send messages to the topic with a broker's name, and show the time of each send."""
    broker = run.text("b")
    size, count = run.number("s", SIZE), run.number("c", 50)
    sending = CommandProducer(run, STATUS_GROUP)
    await sending.send(_filled(broker, 16))
    for _ in range(count):
        began = run.clock.monotonic()
        sent = await sending.send(_filled(broker, size))
        run.line(f"rt={_ms_since(run, began)}ms, SendResult={sent}")


def _filled(topic: str, size: int) -> NewMessage:
    return NewMessage(topic, FILLING * -(-size // len(FILLING)))


def _ms_since(run: Invocation, began: float) -> int:
    return int((run.clock.monotonic() - began) * 1000)


async def check_times(run: Invocation) -> None:
    """Measure sends to a topic, queue after queue; the average is without the first send."""
    topic, amount, size = run.text("t"), run.number("a", AMOUNT), run.number("s", SIZE)
    sending = CommandProducer(run)
    message = NewMessage(topic, b"a" * size)
    run.line(_HEAD.format("#Broker Name", "#QID", "#Send Result", "#RT"))
    elapsed, target = 0, WritableQueue("", "", 0)
    for number in range(amount):
        began = run.clock.monotonic()
        succeeded = True
        try:
            targets = await sending.targets(topic)
            target = targets[number % len(targets)]
            await sending.send(message, target)
        except (OSError, FirearrowError):  # the line shows it
            succeeded = False
        took = _ms_since(run, began)
        elapsed += took if number else 0
        run.line(_HEAD.format(target.broker_name, target.queue_id, shown(succeeded), took))
    run.line(f"Avg RT: {_average(elapsed, amount)}")


def _average(elapsed_ms: int, amount: int) -> str:
    return fixed(elapsed_ms / (amount - 1), 2) if amount != 1 else "NaN"


async def cluster_times(run: Invocation) -> None:
    """Measure sends to the topic with each broker's name, round after round."""
    as_log = run.flag("p", False)
    if not as_log:
        run.line(f"{'#Cluster Name':<24}  {'#Broker Name':<24}  {'#RT':<4}  {'#successCount':<8}  {'#failCount':<8}")
    sending = CommandProducer(run)
    while True:
        info = await run.admin.cluster()
        only = run.get("c")
        for cluster in [only] if only else text_order(info.cluster_addr_table):
            if cluster not in info.cluster_addr_table:
                run.fail(f"cluster [{cluster}] not exist")
                break
            for broker in text_order(info.cluster_addr_table[cluster]):
                await _measure(run, sending, cluster, broker, as_log=as_log)
        await run.pause(run.number("i", ROUND_SECONDS))


async def _measure(run: Invocation, sending: CommandProducer, cluster: str, broker: str, *, as_log: bool) -> None:
    amount, size = run.number("a", AMOUNT), run.number("s", SIZE)
    elapsed = failed = 0
    for number in range(amount):
        began = run.clock.monotonic()
        try:
            await sending.send(NewMessage(broker, b"a" * size))
        except (OSError, FirearrowError):  # the line shows the count
            failed += 1
        elapsed += _ms_since(run, began) if number else 0
    if not as_log:
        average = _average(elapsed, amount)
        run.line(f"{cluster:<24}  {broker:<24}  {average:<8}  {amount - failed:<16}  {failed:<16}")
        return
    now = datetime.fromtimestamp(run.clock.now_ms() // 1000, UTC) + CHINA
    average = "0" if amount == 1 else _whole(elapsed / (amount - 1))
    room = run.get("m") or "noname"
    run.line(f"{now:%Y-%m-%d %H:%M:%S}|{room}|{cluster}|{broker}|{average}")


def _whole(number: float) -> str:
    return str(Decimal(number).quantize(Decimal(1), ROUND_HALF_UP))
