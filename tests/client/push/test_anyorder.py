"""Workers: their number, their waiting and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from firearrow.client.consumer.handlers import Failure, HandlerRegistration
from firearrow.client.consumer.subscription import subscription_to
from firearrow.client.message import Message
from firearrow.client.push.anyorder import Workers
from firearrow.client.queues import Queue
from firearrow.message.record import encode_record
from firearrow.net.tasks import Tasks
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock

QUEUE = Queue("T", "a", 0)
HOST = bytes(8)


def messages(count: int) -> list[Message]:
    record = encode_record("T", b"x", b"", 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0)
    return [Message(record, QUEUE, n, 0, "T", b"%d" % n) for n in range(count)]


class Noting:
    """A source that notes what becomes of its messages."""

    keeps_order = False

    def __init__(self) -> None:
        self.ended: list[int] = []

    def may_begin(self, message: Message) -> bool:
        return message.queue_offset != 13

    def done(self, messages: Sequence[Message]) -> None:
        self.ended += [message.queue_offset for message in messages]

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        self.ended += [-message.queue_offset for message in messages]


class Handling:
    """A handler that waits from a message on."""

    def __init__(self, waits_from: int = 0) -> None:
        self.waits_from = waits_from
        self.under_way = 0
        self.under_way_max = 0

    async def __call__(self, given: Message | list[Message]) -> None:
        message = given[0] if isinstance(given, list) else given
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        if message.queue_offset >= self.waits_from:
            await asyncio.sleep(1)
        self.under_way -= 1
        if message.queue_offset % 10 == 7:
            raise ValueError("7")


def working(handling: Handling, count: int, concurrency: int, seconds: float, batch: int = 0) -> tuple[Noting, int]:
    """Have messages consumed for some time; gives what became of them and how many workers ran."""
    source = Noting()

    async def main(_: VirtualClock) -> int:
        tasks = Tasks()
        registration = HandlerRegistration(subscription_to("T", 0), handling, concurrency, batch)
        workers = Workers(registration, tasks)
        workers.submit(source, messages(count))
        await asyncio.sleep(seconds)
        started = len(tasks)
        await workers.drain(10)
        await workers.close()
        workers.submit(source, messages(1))
        assert len(tasks) == 0
        await tasks.close()
        return started

    return source, loop.run(main)


def test_one_worker_does_it_all_while_nothing_waits() -> None:
    source, started = working(Handling(waits_from=1000), 500, 64, 0.001)
    assert [abs(at) for at in source.ended] == [at for at in range(500) if at != 13]
    assert [at for at in source.ended if at < 0] == list(range(-7, -500, -10))
    assert started == 1


def test_as_many_as_are_allowed_wait_at_once_from_whichever_message_on() -> None:
    handling = Handling(waits_from=300)
    source, started = working(handling, 400, 20, 20)
    assert handling.under_way_max == 20
    assert sorted(map(abs, source.ended)) == [at for at in range(400) if at != 13]
    assert started == 20


@pytest.mark.parametrize(("waits_from", "concurrency"), [(1000, 1), (1000, 8), (300, 20), (0, 3)])
def test_single_messages_end_as_batches_of_one_do(waits_from: int, concurrency: int) -> None:
    """A worker has one path for handlers of single messages and one general path."""
    single, _ = working(Handling(waits_from), 400, concurrency, 40)
    general, _ = working(Handling(waits_from), 400, concurrency, 40, batch=1)
    assert single.ended == general.ended
    assert len(single.ended) >= 100


def test_in_the_end_nothing_is_begun() -> None:
    handling = Handling()
    source, _ = working(handling, 100, 5, 0.5)
    assert sorted(source.ended) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batch", [0, 1])
def test_who_waits_for_the_handlers_of_a_source_waits_for_no_others(batch: int) -> None:
    ends = {at: asyncio.Event() for at in range(3)}

    async def handler(given: Message | list[Message]) -> None:
        message = given[0] if isinstance(given, list) else given
        await ends[message.queue_offset].wait()

    async def main(_: VirtualClock) -> None:
        tasks = Tasks()
        workers = Workers(HandlerRegistration(subscription_to("T", 0), handler, 2, batch), tasks)
        one, other = Noting(), Noting()
        workers.submit(one, messages(1))
        workers.submit(other, messages(3)[1:])
        await asyncio.sleep(1)
        assert [source for source, _, _ in workers.running] == [one, other]
        waiting = asyncio.ensure_future(workers.idle(one))
        await asyncio.sleep(1)
        assert not waiting.done()
        ends[0].set()
        await waiting
        assert one.ended == [0]
        await asyncio.sleep(1)
        assert [source for source, _, _ in workers.running] == [other, other]
        ends[1].set()
        ends[2].set()
        await workers.idle()
        assert (other.ended, workers.running) == ([1, 2], [])
        await workers.close()
        await tasks.close()

    loop.run(main)
