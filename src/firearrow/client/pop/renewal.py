"""Renew the invisible time of popped messages while their owner lives and works on them.

A popped message is redelivered after its invisible time, whether its consumer is dead or slow. A `LeaseHolder` renews
that time at intervals. So the time may be short, which hands the task of a dead worker to another soon, and the work
may be long. It pops from all brokers of a consumer at once, so no message waits for its broker's turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from firearrow.client.message import Message
from firearrow.client.pop.popcalls import GONE
from firearrow.client.pop.simpleconsumer import WAIT_SECONDS, SimpleConsumer
from firearrow.client.queues import Queue
from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.logs import Log
from firearrow.net.tasks import RunningTask, Tasks

log: Final = Log(__name__)

INVISIBLE_MIN: Final = timedelta(seconds=1)
ROUNDS: Final = 3  # in an invisible time, so two renewals may fail
CALLS_MAX: Final = 32  # in flight at once
ACK_TRIES: Final = 3
AGAIN_SECONDS: Final = 1.0  # between a failure and the next request
SOON: Final = timedelta(milliseconds=100)


class LeasedMessage:
    """Received message that is neither acknowledged nor given back."""

    __slots__ = ("_changing", "_holder", "consumer", "message")

    def __init__(self, holder: LeaseHolder, consumer: SimpleConsumer, message: Message) -> None:
        self._holder = holder
        self._changing = asyncio.Lock()  # a change returns a new handle, and only that one is valid
        self.consumer: SimpleConsumer = consumer
        self.message: Message = message

    async def ack(self) -> bool:
        """Acknowledge the message. Returns False if its invisible time was over: it may be redelivered. Raises OSError
        or BrokerError after the last attempt; the message is then redelivered."""
        self.let_go()
        async with self._changing:
            for _ in range(ACK_TRIES - 1):
                try:
                    return await self.consumer.ack(self.message)
                except OSError:
                    await asyncio.sleep(AGAIN_SECONDS)
            return await self.consumer.ack(self.message)

    async def give_back(self) -> None:
        """Redeliver the message soon. Raises OSError or BrokerError; the message is then redelivered later."""
        self.let_go()
        async with self._changing:
            await self.consumer.change_invisible(self.message, SOON)

    def let_go(self) -> None:
        """Stop the renewal: unless the message is acknowledged, it is redelivered after its invisible time."""
        self._holder.held.discard(self)

    async def hold_on(self) -> None:
        """Renew the invisible time, unless the message is acknowledged or given back meanwhile."""
        async with self._changing:
            if self in self._holder.held:
                await self.consumer.change_invisible(self.message, self._holder.invisible)


class LeaseHolder:
    """Receiver for one event loop, from consumers that the caller starts and stops.

    ``invisible`` is the time until another process gets the messages of a dead one.
    """

    def __init__(self, invisible: timedelta) -> None:
        if invisible < INVISIBLE_MIN:
            raise ConfigError(f"an invisible time of {invisible} is too short: the minimum is {INVISIBLE_MIN}")
        self.invisible = invisible
        self.held: set[LeasedMessage] = set()
        self._ready: deque[LeasedMessage] = deque()
        self._pops: dict[tuple[str, Queue], RunningTask] = {}
        self._asked = asyncio.Event()
        self._tasks = Tasks()
        self._tasks.every(self.invisible.total_seconds() / ROUNDS, self._hold_on, "held messages")

    async def ask(self, consumer: SimpleConsumer, count: int) -> None:
        """Begin to receive from a consumer, up to ``count`` messages from each broker, unless a request is in flight.
        Raises OSError or FirearrowError if the brokers are not known."""
        for place in await consumer.places():
            key = consumer.group, place
            if key not in self._pops:
                self._pops[key] = self._tasks.start(self._pop(consumer, place, count), f"receive {place.topic}")

    async def answered(self) -> None:
        """Wait until a broker has answered, possibly without messages; then ask again."""
        await self._asked.wait()

    def wake(self) -> None:
        """Wake the caller of `answered`: there is room for more messages."""
        self._asked.set()

    def take(self) -> list[LeasedMessage]:
        """Messages received since the last call."""
        self._asked.clear()
        taken = list(self._ready)
        self._ready.clear()
        return taken

    async def look(self, consumer: SimpleConsumer) -> LeasedMessage | None:
        """One message of a consumer that exists now; None without one. Raises OSError or BrokerError."""
        for held in self._ready:
            if held.consumer is consumer:
                self._ready.remove(held)
                return held
        for place in await consumer.places():
            for message in await consumer.receive(1, self.invisible, wait=0, place=place):
                held = LeasedMessage(self, consumer, message)
                self.held.add(held)
                return held
        return None

    async def rest(self) -> None:
        """Stop receiving until the next `ask`; messages that were not taken are redelivered soon."""
        for pop in tuple(self._pops.values()):
            await pop.stop()
        self._pops.clear()  # a task that was stopped before it began has not removed itself
        await give_back(self.take())

    async def close(self) -> None:
        """End; messages still held are redelivered after their invisible time."""
        await self.rest()
        await self._tasks.close()
        self.held.clear()

    async def _pop(self, consumer: SimpleConsumer, place: Queue, count: int) -> None:
        try:
            messages = await consumer.receive(count, self.invisible, wait=WAIT_SECONDS, place=place)
            some = [LeasedMessage(self, consumer, message) for message in messages]
            self.held.update(some)
            self._ready.extend(some)
        except (OSError, FirearrowError) as error:
            log.warning(
                "messages are not received", extra={"group": consumer.group, "topic": place.topic, "error": error}
            )
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._pops.pop((consumer.group, place), None)
            self._asked.set()

    async def _hold_on(self) -> None:
        for some in _portions(tuple(self.held)):
            await asyncio.gather(*map(self._hold_one, some))

    async def _hold_one(self, held: LeasedMessage) -> None:
        try:
            await held.hold_on()
        except (OSError, BrokerError) as error:
            if isinstance(error, BrokerError) and error.code in GONE:
                held.let_go()
            log.warning("a message may be delivered twice", extra=_about(held, error))


async def give_back(some: Sequence[LeasedMessage]) -> None:
    """Redeliver messages soon; after a failure, when their invisible time is over."""
    for few in _portions(some):
        results = await asyncio.gather(*(it.give_back() for it in few), return_exceptions=True)
        for held, result in zip(few, results, strict=True):
            if isinstance(result, OSError | FirearrowError):
                log.info("a message is redelivered later", extra=_about(held, result))
            elif isinstance(result, BaseException):
                raise result


def _portions(some: Sequence[LeasedMessage]) -> Iterator[Sequence[LeasedMessage]]:
    return (some[at : at + CALLS_MAX] for at in range(0, len(some), CALLS_MAX))


def _about(held: LeasedMessage, error: BaseException) -> dict[str, object]:
    return {"message_id": held.message.message_id, "topic": held.message.topic, "error": error}
