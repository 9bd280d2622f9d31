"""Loads: produce, consume, round trip, pop and transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import addresses_in, masters_of
from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.loads.pacing import LoadPlan, LoadResult, run
from firearrow.client.message import Message
from firearrow.client.pop.simpleconsumer import SimpleConsumer
from firearrow.client.producer.producer import Producer
from firearrow.client.producer.transactions import Decision
from firearrow.client.push.pushconsumer import PushConsumer
from firearrow.client.session.session import Session
from firearrow.errors import ConfigError, FirearrowError, TopicNotFound
from firearrow.message.names import retry_topic
from firearrow.wire.bodies import TopicConfig

GROUP: Final = "firearrow-bench"
QUEUES: Final = 8
BYTES_MAX: Final = 4 * 1024 * 1024
BATCH_MAX: Final = 1024
ROUTE_SECONDS: Final = 10.0
TRIP_SECONDS: Final = 10.0  # for the return of one message
NUMBER_DIGITS: Final = 12
POP_MESSAGES: Final = 32
POP_WAIT_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 3.0  # without a message, until a topic counts as read


async def ensure_topic(admin: Admin, topic: str, queues: int = QUEUES) -> None:
    """Create a topic, on each master of all clusters, unless it exists."""
    try:
        await admin.topics.route(topic)
    except TopicNotFound:
        pass
    else:
        return
    info = await admin.cluster()
    for cluster in info.cluster_addr_table:
        for address in masters_of(info, cluster):
            await admin.topics.create(address, TopicConfig(topic, queues, queues))
    async with asyncio.timeout(ROUTE_SECONDS):
        while True:
            try:
                await admin.topics.route(topic)
            except TopicNotFound:
                await asyncio.sleep(0.01)
            else:
                return


@asynccontextmanager
async def own_group(admin: Admin, topic: str, group: str | None) -> AsyncIterator[str]:
    """The given group, or a group for this run alone, which is deleted afterwards."""
    if group is not None:
        yield group
        return
    name = f"{GROUP}-{secrets.token_hex(4)}"
    try:
        yield name
    finally:
        for address in addresses_in(await admin.topics.route(topic)):
            await _forget(admin, address, name)


async def _forget(admin: Admin, address: str, group: str) -> None:
    await admin.groups.delete(address, group, clean_offset=True)
    await admin.topics.delete_from_broker(address, retry_topic(group))
    for server in admin.name_servers.addresses:
        try:
            await admin.topics.delete_from_name_server(server, retry_topic(group))
        except FirearrowError:  # it never had the topic, or has forgotten it already
            continue


def body_of(size: int) -> bytes:
    """Body of a size. Raises ConfigError for a size that no broker takes."""
    if not 0 < size <= BYTES_MAX:
        raise ConfigError(f"bodies of {size} bytes: allowed is 1 to {BYTES_MAX}")
    return b"firearrow bench " * (size // 16) + b"." * (size % 16)


async def produce(session: Session, topic: str, plan: LoadPlan, size: int, batch: int = 1) -> LoadResult:
    """Send messages, or batches of them; measures the time until the broker's answer."""
    if not 1 <= batch <= BATCH_MAX:
        raise ConfigError(f"batches of {batch}: allowed is 1 to {BATCH_MAX}")
    body = body_of(size)
    bodies = [body] * batch
    async with Producer(session, group=GROUP, compression=None) as producer:
        await producer.queues(topic)  # the first send must not include its route

        async def one(_: int) -> int:
            if batch == 1:
                await producer.send(topic, body)
            else:
                await producer.send_batch(topic, bodies)
            return batch

        measured = await run(plan, one)
    measured.bytes = measured.messages * size
    return measured


async def transaction(session: Session, topic: str, plan: LoadPlan, size: int) -> LoadResult:
    """Send half messages and commit them; measures the time until the commit is sent."""
    body = body_of(size)

    async def commit(_: Message) -> Decision:
        return Decision.COMMIT

    async with Producer(session, group=GROUP, compression=None, check=commit) as producer:
        await producer.queues(topic)

        async def one(_: int) -> int:
            async with producer.transaction(topic, body):
                pass
            return 1

        measured = await run(plan, one)
    measured.bytes = measured.messages * size
    return measured


async def consume(session: Session, topic: str, group: str, plan: LoadPlan) -> LoadResult:
    """Consume from the first message on, by a push consumer; measures the age of messages.

    Ends by the plan, or after a while without a message.
    """
    measured = LoadResult()
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    last = begin = loop.time()

    async def take(message: Message) -> None:
        nonlocal last
        if done.is_set():
            return
        last = loop.time()
        measured.messages += 1
        measured.bytes += len(message.body)
        age_ms = session.clock.now_ms() - message.view.born_timestamp_ms
        measured.took.add(1000 * age_ms)
        if plan.count is not None and measured.messages >= plan.count:
            done.set()

    consumer = PushConsumer(session, group=group, start=StartFrom.FIRST)
    consumer.subscribe(topic, take, concurrency=plan.in_flight)
    async with consumer:
        until = begin + plan.seconds
        while not done.is_set() and loop.time() < min(until, last + IDLE_SECONDS):
            try:
                async with asyncio.timeout_at(min(until, last + IDLE_SECONDS)):
                    await done.wait()
            except TimeoutError:
                continue
        done.set()
    measured.seconds = last - begin if measured.messages else loop.time() - begin
    return measured


async def pop(session: Session, topic: str, group: str, plan: LoadPlan) -> LoadResult:
    """Pop and acknowledge; measures from a pop until all its messages are acknowledged. Ends by the plan, or after a
    while without a message; the plan's count is of pops."""
    loop = asyncio.get_running_loop()
    size = 0
    begin = last = loop.time()

    def is_read() -> bool:
        return loop.time() - last > IDLE_SECONDS

    async with SimpleConsumer(session, group=group, topics=[topic]) as consumer:

        async def one(_: int) -> int:
            nonlocal size, last
            found = await consumer.receive(POP_MESSAGES, wait=POP_WAIT_SECONDS)
            if found:
                await consumer.ack_all(found)
                size += sum(len(message.body) for message in found)
                last = loop.time()
            return len(found)

        measured = await run(plan, one, is_read)
    measured.bytes = size
    if measured.messages and is_read():
        measured.seconds = last - begin
    return measured


async def round_trip(session: Session, topic: str, group: str, plan: LoadPlan, size: int) -> LoadResult:
    """Send each message and wait until a push consumer has it; measures the whole round trip."""
    mark = secrets.token_hex(4).encode()
    filler = body_of(max(size, len(mark) + NUMBER_DIGITS))
    waiting: dict[bytes, asyncio.Future[None]] = {}

    async def take(message: Message) -> None:
        future = waiting.pop(message.body[: len(mark) + NUMBER_DIGITS], None)
        if future is not None and not future.done():
            future.set_result(None)

    consumer = PushConsumer(session, group=group, start=datetime.now(UTC) - timedelta(seconds=1))
    consumer.subscribe(topic, take, concurrency=plan.in_flight)
    async with Producer(session, group=GROUP, compression=None) as producer, consumer:

        async def one(number: int) -> int:
            key = mark + b"%0*d" % (NUMBER_DIGITS, number)
            here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting[key] = here
            try:
                await producer.send(topic, key + filler[len(key) :])
                async with asyncio.timeout(TRIP_SECONDS):
                    await here
            finally:
                waiting.pop(key, None)
            return 1

        await one(0)  # after its return, the consumer has its queues
        measured = await run(plan, lambda number: one(number + 1))
    measured.bytes = measured.messages * len(filler)
    return measured
