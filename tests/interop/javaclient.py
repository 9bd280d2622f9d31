"""The official Java client, as a test calls it.

A `JavaClient` is bound to one server. What it opens (producers, consumers) it closes at its end, in
the reverse order; a test closes earlier where closing is part of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firearrow.wire.signature import Credentials
from tests.interop.driver import Driver
from tests.interop.servers import BROKER_NAME, Server
from tests.interop.waiting import wait_until

T = TypeVar("T")

MIB = 1 << 20
BODY_BYTES_MAX = 4 * MIB  # the client's and the broker's default maxMessageSize
NO_COMPRESSION = 1 << 30
ARRIVAL_TIMEOUT_S = 60  # a client that misses its wake-up word looks again after 20 s, and a JVM may be slow
REQUEST_S = 30  # for a request, and the reply that another client gives
FOREVER_MS = 1 << 53


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send: keys separated by blanks; without a queue, the client chooses."""

    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: dict[str, str] = {}
    flag: int = 0
    queue: int | None = None
    delay: int = 0  # ms
    level: int = 0  # a delay level


class SendReport(msgspec.Struct, frozen=True, rename="camel"):
    """Where a message went. For a batch, both ids are lists joined by commas."""

    status: str
    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None


class HalfReport(msgspec.Struct, frozen=True, rename="camel"):
    """Where the half of a transaction went; the queue is the one that its message is for."""

    status: str
    msg_id: str
    transaction_id: str
    queue_id: int
    queue_offset: int


class Received(msgspec.Struct, frozen=True, rename="camel"):
    """A message as the client decoded it, with the properties that were stored.

    It knows no offset id of a message that it took out of an inner batch.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int
    msg_id: str
    offset_msg_id: str | None
    body: bytes
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The tag, which travels as a property."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> str | None:
        """The keys, which travel as one property."""
        return self.properties.get("KEYS")


class PullReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one pull of the classic consumer gave."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


class PopReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one pop gave: each message has its handle as the property ``POP_CK``."""

    status: str
    pop_ms: int
    invisible_ms: int
    left: int
    messages: list[Received]


class QueueProgress(msgspec.Struct, frozen=True, rename="camel"):
    """Where the broker and a group stand in a queue."""

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int


class _Handle:
    """Something open in the Java process."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._number = number
        self._open = True

    def _call(self, op: str, result: type[T], /, **arguments: object) -> T:
        return self._driver.call(op, result, handle=self._number, **arguments)

    def close(self) -> None:
        """Shut the client down and wait for it."""
        self._open = False
        self._call("close", bool)

    def release(self) -> None:
        """Shut the client down in the background, unless it is closed."""
        if self._open:
            self._open = False
            self._call("release", bool)


class Producer(_Handle):
    """A ``DefaultMQProducer``."""

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[SendReport]:
        """Send one after the other, each to its queue."""
        return self._call("producer.sync", list[SendReport], topic=topic, messages=messages)

    def send_async(self, topic: str, messages: Sequence[Outgoing]) -> list[SendReport]:
        """Start all sends, then wait for all."""
        return self._call("producer.async", list[SendReport], topic=topic, messages=messages)

    def send_oneway(self, topic: str, messages: Sequence[Outgoing]) -> None:
        """Send without an answer."""
        self._call("producer.oneway", bool, topic=topic, messages=messages)

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take a message back that waits for its time; gives its id."""
        return self._call("producer.recall", str, topic=topic, recallHandle=recall_handle)

    def send_batch(self, topic: str, messages: Sequence[Outgoing]) -> SendReport:
        """Send all as one batch, to one queue."""
        return self._call("producer.batch", SendReport, topic=topic, messages=messages)

    def request(self, topic: str, message: Outgoing, within_s: float = REQUEST_S) -> bytes:
        """Send a request and return the body of the reply."""
        timeout_ms = int(within_s * 1000)
        return self._call("producer.request", bytes, topic=topic, message=message, timeoutMs=timeout_ms)


class TransactionProducer(_Handle):
    """A ``TransactionMQProducer``; its messages say what becomes of them."""

    def send(self, topic: str, body: bytes, local: str, checks: str = "UNKNOW", **more: Any) -> HalfReport:
        """Send a half and end it with a state; checks give others, joined by blanks, in turn."""
        message = Outgoing(body=body, properties={"local": local, "checks": checks}, **more)
        messages = [message]
        (report,) = self._call("transaction.send", list[HalfReport], topic=topic, messages=messages)
        return report

    def checked(self) -> list[Received]:
        """Return what the producer was asked about, in the order of the checks."""
        return self._call("transaction.checked", list[Received])


class PushConsumer(_Handle):
    """A ``DefaultMQPushConsumer`` that keeps everything, and accepts it in the end."""

    def wait_for(self, count: int, within_s: float = ARRIVAL_TIMEOUT_S) -> list[Received]:
        """Return all messages so far, as soon as there are ``count`` or the time is over."""
        timeout_ms = int(within_s * 1000)
        return self._call("push.await", list[Received], count=count, timeoutMs=timeout_ms)

    def received(self) -> list[Received]:
        """Return all messages so far, in the order of the listener's calls."""
        return self.wait_for(0)

    def stop(self) -> list[Received]:
        """Shut the consumer down and return all messages that it got."""
        self._open = False
        return self._call("push.stop", list[Received])

    def queues(self, topic: str) -> list[int]:
        """Return the ids of the queues that rebalancing gave to this consumer."""
        return self._call("push.allocation", list[int], topic=topic)

    def popped_queues(self, topic: str) -> list[int]:
        """Return the ids of the queues that the broker has this consumer pop; -1 stands for all."""
        return self._call("push.popped", list[int], topic=topic)

    def rebalance(self) -> None:
        """Have the consumer ask at once which queues are its own, as it does every 20 s."""
        self._call("push.rebalance", bool)


class PullConsumer(_Handle):
    """A ``DefaultMQPullConsumer``, the classic one."""

    def queues(self, topic: str) -> list[int]:
        """Return the ids of the topic's readable queues."""
        return sorted(self._call("pull.queues", list[int], topic=topic))

    def pull(self, topic: str, queue: int, offset: int, count: int = 32, expression: str = "*") -> PullReport:
        """Pull once, without waiting for messages to come."""
        return self._call(
            "pull.pull",
            PullReport,
            topic=topic,
            broker=BROKER_NAME,
            queue=queue,
            offset=offset,
            count=count,
            expression=expression,
        )

    def read(self, topic: str) -> list[Received]:
        """Return every message of a topic, queue by queue, in the order of the queue."""
        return [message for queue in self.queues(topic) for message in self.read_queue(topic, queue)]

    def read_queue(self, topic: str, queue: int) -> Iterable[Received]:
        """Give every message of a queue from offset 0 on, in its order."""
        offset = 0
        while (report := self.pull(topic, queue, offset)).status == "FOUND":
            yield from report.messages
            offset = report.next_offset
        assert report.status == "NO_NEW_MSG", report

    def commit(self, topic: str, queue: int, offset: int) -> None:
        """Store the group's offset of a queue in the broker."""
        place = {"topic": topic, "broker": BROKER_NAME, "queue": queue}
        self._call("pull.commit", bool, **place, offset=offset)

    def committed(self, topic: str, queue: int) -> int:
        """Return the group's offset in the broker, -1 without one."""
        place = {"topic": topic, "broker": BROKER_NAME, "queue": queue}
        return self._call("pull.committed", int, **place)


class PopCalls(_Handle):
    """The ``MQClientAPIExt`` with which RocketMQ's proxy pops for the clients of a group."""

    def __init__(self, driver: Driver, number: int, topic: str, group: str) -> None:
        super().__init__(driver, number)
        self._names = {"topic": topic, "group": group}

    def pop(
        self,
        queue: int = -1,
        count: int = 32,
        *,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        expression: str = "*",
        attempt: str | None = None,
    ) -> PopReport:
        """Pop once; an ``attempt`` pops in order."""
        return self._call(
            "calls.pop",
            PopReport,
            **self._names,
            queue=queue,
            count=count,
            invisibleMs=invisible_ms,
            pollMs=poll_ms,
            expression=expression,
            attempt=attempt,
            order=attempt is not None,
        )

    def ack(self, receipt: str) -> str:
        """Acknowledge a message by its handle; gives OK or NO_EXIST."""
        return self._call("calls.ack", str, **self._names, receipt=receipt)

    def ack_all(self, receipts: Sequence[str]) -> str:
        """Acknowledge messages with one request; gives OK or NO_EXIST."""
        return self._call("calls.ackBatch", str, **self._names, receipts=receipts)

    def change(self, receipt: str, invisible_ms: int) -> str:
        """Have a message be invisible for so long from now on; gives its new handle, or none."""
        return self._call("calls.change", str, **self._names, receipt=receipt, invisibleMs=invisible_ms)

    def has_messages(self, queue: int = -1, poll_ms: int = 0) -> bool:
        """Ask, or wait, whether there is anything to pop."""
        return self._call("calls.notify", bool, **self._names, queue=queue, pollMs=poll_ms)

    def give_up(self, message: Received) -> int:
        """Put a copy of a popped message to the dead letters; gives the broker's code."""
        return self._call(
            "calls.giveUp",
            int,
            **self._names,
            receipt=message.properties["POP_CK"],
            physicalOffset=message.physical_offset,
            id=message.msg_id,
        )


class LiteConsumer(_Handle):
    """A ``DefaultLitePullConsumer`` without automatic commits."""

    def poll(self, within_s: float = 1) -> list[Received]:
        """Return the next messages, none if none come in time."""
        return self._call("lite.poll", list[Received], timeoutMs=int(within_s * 1000))

    def poll_until(self, count: int, within_s: float = ARRIVAL_TIMEOUT_S) -> list[Received]:
        """Poll until ``count`` messages are here and return them."""
        messages: list[Received] = []

        def enough() -> bool:
            messages.extend(self.poll())
            return len(messages) >= count

        wait_until(enough, within_s, f"{count} polled messages")
        return messages

    def commit(self) -> None:
        """Store the offsets of all that was polled in the broker."""
        self._call("lite.commit", bool)


_H = TypeVar("_H", bound=_Handle)


class JavaClient:
    """Everything that the official clients and tools do with one server, signed or not."""

    def __init__(self, driver: Driver, server: Server, credentials: Credentials | None = None) -> None:
        self.server = server
        self._driver = driver
        self._user = (
            {} if credentials is None else {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
        )
        self._handles: list[_Handle] = []

    def call(self, op: str, result: type[T], /, **arguments: object) -> T:
        """Run an operation of the Java process against this server."""
        everywhere = {"namesrv": self.server.namesrv, **self._user}
        return self._driver.call(op, result, **everywhere, **arguments)

    def close(self) -> None:
        """Close what is still open, without waiting for it."""
        while self._handles:
            self._handles.pop().release()

    def producer(
        self,
        group: str = "interop_producer",
        compression: str = "ZLIB",
        compress_over_bytes: int = NO_COMPRESSION,
        message_bytes_max: int = BODY_BYTES_MAX,
        *,
        trace: bool = False,
        poll_ms: int = 30_000,
    ) -> Producer:
        """Open a producer; ``compression`` is ZLIB, LZ4 or ZSTD. It asks for routes so often."""
        number = self.call(
            "producer.open",
            int,
            group=group,
            compression=compression,
            compressOverBytes=compress_over_bytes,
            maxMessageBytes=message_bytes_max,
            trace=trace,
            nameServerPollMs=poll_ms,
        )
        return self._keep(Producer(self._driver, number))

    def transaction_producer(self, group: str = "interop_transactions") -> TransactionProducer:
        """Open a producer of transactions."""
        number = self.call("transaction.open", int, group=group)
        return self._keep(TransactionProducer(self._driver, number))

    def push_consumer(
        self,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        orderly: bool = False,
        broadcast: bool = False,
        failures: int = 0,
        level: int = 0,
        times_max: int = -1,
        trace: bool = False,
        sql: bool = False,
        **others: int,
    ) -> PushConsumer:
        """Open a push consumer, which begins at the first offset if its group has none.

        It fails each message so many times, and asks for this delay level then (0: that which
        follows from the failures); ``times_max`` is its maxReconsumeTimes. Of the others,
        ``routesMs`` is how often it asks for routes, with ``pauseMs`` an orderly one pulls message
        by message and rests that long with each; those for sharing are `shared_consumer`'s.
        """
        number = self.call(
            "push.open",
            int,
            group=group,
            topic=topic,
            expression=expression,
            orderly=orderly,
            broadcast=broadcast,
            failures=failures,
            level=level,
            maxReconsumeTimes=times_max,
            trace=trace,
            sql=sql,
            **others,
        )
        return self._keep(PushConsumer(self._driver, number))

    def shared_consumer(
        self,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        invisible_ms: int = 5000,
        again_s: int = 0,
        holds: bool = False,
        failures: int = 0,
        times_max: int = -1,
    ) -> PushConsumer:
        """Open a push consumer that asks the broker for its queues, and whether to pull or pop.

        What it pops is invisible for ``invisible_ms`` (5000 at least), what it fails for
        ``again_s`` from then on (0: for 10 s, then longer). If it ``holds``, it does not return
        from messages that have the property ``held``.
        """
        return self.push_consumer(
            group, topic, expression, failures=failures, times_max=times_max,
            shared=True, invisibleMs=invisible_ms, againS=again_s, holds=holds,
        )  # fmt: skip

    def pop_calls(self, group: str, topic: str) -> PopCalls:
        """Open a client that pops message by message."""
        server = self.server
        number = self.call("calls.open", int, broker=server.broker, brokerName=BROKER_NAME)
        return self._keep(PopCalls(self._driver, number, topic, group))

    def set_request_mode(self, topic: str, group: str, mode: str, share: int = -1) -> None:
        """Have the consumers of a group ``PULL`` or ``POP`` a topic (SET_MESSAGE_REQUEST_MODE)."""
        names = {"broker": self.server.broker, "topic": topic, "group": group}
        self.call("admin.requestMode", bool, **names, mode=mode, share=share)

    def replier(self, group: str, topic: str, compress_over_bytes: int = NO_COMPRESSION) -> _Handle:
        """Open a push consumer that replies to each request with ``re: `` and its body."""
        number = self.call("replier.open", int, group=group, topic=topic, compressOverBytes=compress_over_bytes)
        return self._keep(_Handle(self._driver, number))

    def pull_consumer(self, group: str = "interop_pull") -> PullConsumer:
        """Open a classic pull consumer."""
        return self._keep(PullConsumer(self._driver, self.call("pull.open", int, group=group)))

    def lite_consumer(self, group: str, topic: str, expression: str = "*") -> LiteConsumer:
        """Open a lite pull consumer, which begins at the first offset if its group has none."""
        number = self.call("lite.open", int, group=group, topic=topic, expression=expression)
        return self._keep(LiteConsumer(self._driver, number))

    def _keep(self, handle: _H) -> _H:
        self._handles.append(handle)
        return handle

    def mqadmin(self, command: str, *words: str) -> str:
        """Run ``mqadmin COMMAND -n NAMESRV WORDS…`` and return what it printed."""
        arguments = [command, "-n", self.server.namesrv, *words]
        return self._driver.call("mqadmin", str, words=arguments, **self._user)

    def mqadmin_all(self, commands: Sequence[Sequence[str]]) -> list[str]:
        """Run commands at once, which name the name server themselves; as `mqadmin` each."""
        return self._driver.call("mqadmin.all", list[str], commands=commands, **self._user)

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic and wait until the name server knows it."""
        broker = self.server.broker
        self.call("admin.createTopic", bool, topic=topic, queues=queues, broker=broker)
        wait_until(lambda: topic in self.topics(), ARRIVAL_TIMEOUT_S, f"route of {topic}")

    def topics(self) -> list[str]:
        """Return the names of all topics that the name server knows."""
        return self.call("admin.topics", list[str])

    def progress(self, group: str) -> list[QueueProgress]:
        """Return where a group stands in each queue of its topics."""
        return self.call("admin.progress", list[QueueProgress], group=group)

    def wait_until_consumed(self, group: str, topic: str, count: int) -> None:
        """Wait until the group has committed ``count`` messages of the topic and none is left."""

        def consumed() -> bool:
            rows = [row for row in self.progress(group) if row.topic == topic]
            committed = sum(row.consumer_offset for row in rows)
            return committed == count == sum(row.broker_offset for row in rows)

        wait_until(consumed, ARRIVAL_TIMEOUT_S, f"{count} messages of {topic} done by {group}")

    def query_key(self, topic: str, key: str, count: int = 64) -> list[Received]:
        """Return the messages of a key, sorted by their place in the log."""
        found = self.call(
            "admin.queryKey", list[Received], topic=topic, key=key, count=count, beginMs=0, endMs=FOREVER_MS
        )
        return sorted(found, key=lambda message: message.physical_offset)

    def query_id(self, topic: str, message_id: str) -> Received:
        """Return the message of a unique id or of an offset id."""
        return self.call("admin.queryId", Received, topic=topic, id=message_id)

    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first offset of a queue."""
        return self._of_queue("admin.minOffset", topic, queue)

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the offset that the next message of a queue will have."""
        return self._of_queue("admin.maxOffset", topic, queue)

    def earliest_ms(self, topic: str, queue: int) -> int:
        """Return the store time of a queue's first message, -1 if it is empty."""
        return self._of_queue("admin.earliestMs", topic, queue)

    def search_offset(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later."""
        return self._of_queue("admin.searchOffset", topic, queue, timestampMs=timestamp_ms)

    def _of_queue(self, op: str, topic: str, queue: int, **more: int) -> int:
        return self.call(op, int, topic=topic, broker=BROKER_NAME, queue=queue, **more)

    def dump(self, path: Path) -> list[dict[str, Any]]:
        """Return every decoded field of every message of every topic, with the body as a hash."""
        self.call("dump", bool, path=str(path))
        with path.open("rb") as lines:
            return [msgspec.json.decode(line) for line in lines]
