"""Keeps what is popped invisible for as long as its owner lives and works on it.

A popped message comes again when its time is over, be its consumer dead or just slow. A `LeaseHolder`
puts that off, again and again, so the time may be short (a task of a dead worker is soon with
another) and the work long. It asks all brokers of a consumer at once, so that no message waits
for the turn of its broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from firearrow.client.message import Message
from firearrow.client.pop.popcalls import GONE
from firearrow.client.pop.simpleconsumer import WAIT_SECONDS, SimpleConsumer
from firearrow.client.queues import Queue
from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.net.tasks import Running, Tasks

log = logging.getLogger(__name__)

INVISIBLE_MIN: Final = timedelta(seconds=1)
ROUNDS: Final = 3  # in an invisible time, so that two may fail
CALLS_MAX: Final = 32  # under way at once
ACK_TRIES: Final = 3
AGAIN_SECONDS: Final = 1.0  # after a failure, until a broker is asked again
SOON: Final = timedelta(milliseconds=100)


class LeasedMessage:
    """A message that was received, until it is said what becomes of it."""

    __slots__ = ("_changing", "_holder", "consumer", "message")

    def __init__(self, holder: LeaseHolder, consumer: SimpleConsumer, message: Message) -> None:
        self._holder = holder
        self._changing = asyncio.Lock()  # a change makes a new handle, which is the one that counts
        self.consumer = consumer
        self.message = message

    async def ack(self) -> bool:
        """It is done. False if its time was over: it may come again. Raises OSError or
        BrokerError if that can't be said to the broker, and it comes again then."""
        self.let_go()
        async with self._changing:
            for _ in range(ACK_TRIES - 1):
                try:
                    return await self.consumer.ack(self.message)
                except OSError:
                    await asyncio.sleep(AGAIN_SECONDS)
            return await self.consumer.ack(self.message)

    async def give_back(self) -> None:
        """It is to come again soon. Raises OSError or BrokerError, and it comes again later."""
        self.let_go()
        async with self._changing:
            await self.consumer.change_invisible(self.message, SOON)

    def let_go(self) -> None:
        """Nobody works on it any more: unless it is acknowledged, it comes again when its time is
        over."""
        self._holder.held.discard(self)

    async def hold_on(self) -> None:
        """Have its time begin anew, unless it was said meanwhile what becomes of it."""
        async with self._changing:
            if self in self._holder.held:
                await self.consumer.change_invisible(self.message, self._holder.invisible)


class LeaseHolder:
    """Receives for one event loop, from consumers that others have started and will stop.

    ``invisible`` is how long a message stays away from others if this process dies.
    """

    def __init__(self, invisible: timedelta) -> None:
        if invisible < INVISIBLE_MIN:
            raise ConfigError(f"messages can't be invisible for {invisible}: {INVISIBLE_MIN} at least")
        self.invisible = invisible
        self.held: set[LeasedMessage] = set()
        self._ready: deque[LeasedMessage] = deque()
        self._pops: dict[tuple[str, Queue], Running] = {}
        self._asked = asyncio.Event()
        self._tasks = Tasks()
        self._tasks.every(self.invisible.total_seconds() / ROUNDS, self._hold_on, "held messages")

    async def ask(self, consumer: SimpleConsumer, count: int) -> None:
        """Have messages of a consumer be received, at most so many from each broker, unless that
        is under way. Raises OSError or FirearrowError if it is not known from where."""
        for place in await consumer.places():
            key = consumer.group, place
            if key not in self._pops:
                self._pops[key] = self._tasks.start(self._pop(consumer, place, count), f"receive {place.topic}")

    async def answered(self) -> None:
        """Wait until a broker has answered, be it with nothing; then ask again."""
        await self._asked.wait()

    def wake(self) -> None:
        """Have whoever waits for an answer ask again: there is room for more."""
        self._asked.set()

    def take(self) -> list[LeasedMessage]:
        """Give the messages received since the last call."""
        self._asked.clear()
        taken = list(self._ready)
        self._ready.clear()
        return taken

    async def look(self, consumer: SimpleConsumer) -> LeasedMessage | None:
        """A message of a consumer that there is now. Raises OSError or BrokerError."""
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
        """Receive nothing until asked again; what nobody has taken comes again soon."""
        for pop in tuple(self._pops.values()):
            await pop.stop()
        self._pops.clear()  # one that was stopped before it began has not left
        await give_back(self.take())

    async def close(self) -> None:
        """End; what is held comes again when its time is over."""
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
            log.warning("a message may come twice", extra=_about(held, error))


async def give_back(some: Sequence[LeasedMessage]) -> None:
    """Have messages come again soon; those for which that fails come when their time is over."""
    for few in _portions(some):
        results = await asyncio.gather(*(it.give_back() for it in few), return_exceptions=True)
        for held, result in zip(few, results, strict=True):
            if isinstance(result, OSError | FirearrowError):
                log.info("a message comes again later", extra=_about(held, result))
            elif isinstance(result, BaseException):
                raise result


def _portions(some: Sequence[LeasedMessage]) -> Iterator[Sequence[LeasedMessage]]:
    return (some[at : at + CALLS_MAX] for at in range(0, len(some), CALLS_MAX))


def _about(held: LeasedMessage, error: BaseException) -> dict[str, object]:
    return {"message_id": held.message.message_id, "topic": held.message.topic, "error": error}
