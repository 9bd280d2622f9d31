"""Pop the messages of one queue, or of all queues of a broker, and acknowledge them.

While an acknowledgement is in flight, later ones gather and then leave together.

Source: RocketMQ's ``DefaultMQPushConsumerImpl#popMessage``, ``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.client.consumer.handlers import DEAD_LETTER, Failure, Source
from firearrow.client.consumer.member import Member
from firearrow.client.consumer.subscription import StartFrom, wanted_of
from firearrow.client.message import Message
from firearrow.client.pop.popcalls import PopCalls, PopOptions, handle_of
from firearrow.client.pull.pullloop import FAILED_SECONDS, FLOW_CONTROL_SECONDS, FULL_SECONDS, PAUSED_SECONDS
from firearrow.client.queues import Queue
from firearrow.errors import BrokerError, FirearrowError
from firearrow.logs import Log
from firearrow.net.tasks import Tasks
from firearrow.wire.codes import ResponseCode
from firearrow.wire.pop import Handle

log: Final = Log(__name__)

ACKS_MAX: Final = 1024  # of one request

Submit = Callable[[Source, list[Message]], None]


class PopQueue:
    """Pop loop of a queue, and the source of its messages."""

    keeps_order = False

    def __init__(self, member: Member, calls: PopCalls, queue: Queue, tasks: Tasks, submit: Submit) -> None:
        self.queue = queue
        self.is_dropped = False
        self._member = member
        self._calls = calls
        self._tasks = tasks
        self._submit = submit
        self._delays = member.settings.delays or POP_DELAYS_SECONDS
        self._unacked = 0
        self._room: asyncio.Future[None] | None = None
        self._acks: list[Handle] = []
        self._acking: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Pop until the queue is dropped."""
        while not self.is_dropped:
            if self._member.is_paused:
                await asyncio.sleep(PAUSED_SECONDS)
            elif self._unacked > self._member.settings.unacked_max:
                await self._wait_for_room()
            else:
                await self._pop()

    async def _pop(self) -> None:
        member = self._member
        subscription = member.subscriptions.get(self.queue.topic)
        if subscription is None:
            await asyncio.sleep(FAILED_SECONDS)
            return
        settings = member.settings
        popping = PopOptions(
            invisible_ms=int(settings.invisible * 1000), from_first=settings.start_from is StartFrom.FIRST
        )
        time = asyncio.get_running_loop().time
        began = time()
        try:
            popped = await self._calls.pop(self.queue, subscription, popping)
        except (OSError, FirearrowError) as error:
            await self._failed_to_pop(error)
            return
        if popped.is_full:
            await asyncio.sleep(FAILED_SECONDS)
        elif popped.messages and not self.is_dropped:
            if member.rates is not None:
                member.rates.pulled(self.queue.topic, len(popped.messages), began, time())
            wanted = wanted_of(popped.messages, subscription)
            self._take(popped.messages, wanted)

    async def _failed_to_pop(self, error: Exception) -> None:
        busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
        if not busy:
            log.warning(
                "queue can't be popped",
                sentence=f"group {self._member.group!r} can't pop {self.queue.words}: {error}",
                extra={**self.queue.fields, "error": error},
            )
        await asyncio.sleep(FLOW_CONTROL_SECONDS if busy else FAILED_SECONDS)

    def _take(self, messages: list[Message], wanted: list[Message]) -> None:
        times_max = self._member.reconsume_times_max
        wanted = [message for message in wanted if message.reconsume_times <= times_max]
        if len(wanted) != len(messages):
            kept = set(map(id, wanted))
            self._ack([message for message in messages if id(message) not in kept])
        self._unacked += len(wanted)
        self._submit(self, wanted)

    async def _wait_for_room(self) -> None:
        self._room = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._room], timeout=FULL_SECONDS)
        self._room = None

    # --- message source ---

    def may_begin(self, message: Message) -> bool:
        """Tell whether a message still belongs to this consumer: its invisible time may be over."""
        if self.is_dropped:
            return False
        if self._is_in_time(message):
            return True
        self._leave(1)
        log.info("popped message has waited too long", extra={"message_id": message.message_id})
        return False

    def _is_in_time(self, message: Message) -> bool:
        return self._member.calls.session.clock.now_ms() < handle_of(message).visible_ms

    def done(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages, unless their invisible time is over."""
        if self.is_dropped:
            return
        self._leave(len(messages))
        in_time = [message for message in messages if self._is_in_time(message)]
        if len(in_time) < len(messages):
            fields = {**self.queue.fields, "messages": len(messages) - len(in_time)}
            log.warning("popped messages were consumed too late: they will be redelivered", extra=fields)
        self._ack(in_time)

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Redeliver messages."""
        if self.is_dropped:
            return
        self._leave(len(messages))
        for message in messages:
            if self._is_in_time(message):
                await self._postpone(message, failure.level)

    async def _postpone(self, message: Message, level: int) -> None:
        seconds: int | None = delay_seconds(message.reconsume_times, level, self._delays)
        if level == DEAD_LETTER or message.reconsume_times >= self._member.reconsume_times_max:
            age_ms = self._member.calls.session.clock.now_ms() - message.view.born_timestamp_ms
            seconds = exhausted_delay_seconds(age_ms, self._delays)
        if seconds is None:
            log.warning(
                "message is given up",
                sentence=(
                    f"message {message.message_id} of {message.topic!r} is given up after try "
                    f"{message.reconsume_times + 1}"
                ),
                extra={"message_id": message.message_id},
            )
            self._ack([message])
            return
        try:
            await self._calls.change(self.queue.topic, handle_of(message), seconds * 1000)
        except (OSError, FirearrowError) as error:  # its redelivery comes at the end of its invisible time
            fields = {**message.queue.fields, "message_id": message.message_id, "error": error}
            log.warning("invisible time is not changed", extra=fields)

    def _leave(self, count: int) -> None:
        self._unacked -= count
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # --- acknowledgements ---

    def _ack(self, messages: Sequence[Message]) -> None:
        if messages:
            self._acks += map(handle_of, messages)
            if self._acking is None:
                self._acking = asyncio.get_running_loop().create_future()
                self._tasks.start(self._send_acks(self._acking), "acknowledgements")

    async def _send_acks(self, sent: asyncio.Future[None]) -> None:
        try:
            while self._acks:
                some, self._acks = self._acks[:ACKS_MAX], self._acks[ACKS_MAX:]
                try:
                    await self._calls.ack_all(self.queue.topic, some)
                except (OSError, FirearrowError) as error:  # they are redelivered
                    fields = {**self.queue.fields, "messages": len(some), "error": error}
                    log.warning("messages are not acknowledged", extra=fields)
        finally:
            self._acking = None
            sent.set_result(None)

    async def acked(self, seconds: float) -> None:
        """Wait until all acknowledgements are sent, for a time at most."""
        if self._acking is not None:
            await asyncio.wait([self._acking], timeout=seconds)


# Delays of popped messages until their redelivery after a failure.
#
# The client decides, message by message, by a change of the invisible time (200053). It never makes a message a dead
# letter.
#
# Source: RocketMQ's ``ConsumeMessagePopConcurrentlyService``.


POP_DELAYS_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Index: the handler's level, or without one the count of earlier failures; beyond the end, the last counts."""


def delay_seconds(reconsume_times: int, level: int = 0, delays: Sequence[int] = POP_DELAYS_SECONDS) -> int:
    """Delay after a failure; with ``level`` 0, by the count of earlier failures."""
    return delays[min(max(level or reconsume_times, 0), len(delays) - 1)]


def exhausted_delay_seconds(age_ms: int, delays: Sequence[int] = POP_DELAYS_SECONDS) -> int | None:
    """Delay of a message that has used up its retries; None gives it up.

    ``age_ms`` is the message's age. A young message has failed quickly, so it waits once more, for longer than its age.
    """
    if age_ms > delays[-1] * 2 * 1000:
        return None
    older_than = sum(age_ms >= seconds * 1000 for seconds in delays)
    return delays[min(older_than, len(delays) - 1)]
