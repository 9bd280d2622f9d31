"""Choose the queue for a message: in turn, by a key, or away from slow or unreachable brokers.

The choice itself is values in, values out: times are arguments, in ms.

With ``avoids_slow``, sends avoid a slow broker for a time that grows with its latency:

===============  ====  ====  ====  =====  =====  =====  ======
latency from ms    50   100   550   1800   3000   5000   15000
avoided for ms      0     0  2000   5000   6000  10000   30000
===============  ====  ====  ====  =====  =====  =====  ======

A failure counts as a latency of 10 s. If all brokers are avoided, any will do, with two exceptions: brokers that
refused, and with a `Detector` also brokers that gave no answer.

Source: RocketMQ's ``TopicPublishInfo``, ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``,
``SelectMessageQueueByHash``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.client.queues import Queue
from firearrow.client.session.session import Session
from firearrow.errors import BrokerError
from firearrow.message.names import java_hash
from firearrow.net.tasks import RunningTask
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

LATENCIES_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15_000)
AVOIDED_MS: Final = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
FAILED_LATENCY_MS: Final = 10_000
_TURN_MASK: Final = 0x7FFF_FFFF


def avoided_ms(latency_ms: int) -> int:
    """Time that sends avoid a broker with such a latency."""
    for least, avoided in zip(reversed(LATENCIES_MS), reversed(AVOIDED_MS), strict=True):
        if latency_ms >= least:
            return avoided
    return 0


class FaultTable:
    """Brokers to avoid, each until a time."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}
        self._unreachable: set[str] = set()

    def note(self, broker: str, latency_ms: int, now_ms: int, *, failed: bool = False, gone: bool = False) -> None:
        """Note the latency of a broker. ``failed``: it took no message. ``gone``: sends must avoid it even without an
        alternative."""
        avoided = avoided_ms(FAILED_LATENCY_MS if failed else latency_ms)
        if avoided:
            self._until_ms[broker] = now_ms + avoided
        else:
            self._until_ms.pop(broker, None)
        if gone:
            self._unreachable.add(broker)
        else:
            self._unreachable.discard(broker)

    @property
    def unreachable(self) -> frozenset[str]:
        """Brokers that sends avoid even without an alternative."""
        return frozenset(self._unreachable)

    def answers(self, broker: str) -> None:
        """Note that a broker has answered a detection."""
        self._unreachable.discard(broker)

    def forget(self, broker: str) -> None:
        """Forget a broker that no route names any more."""
        self._unreachable.discard(broker)
        self._until_ms.pop(broker, None)

    def is_available(self, broker: str, now_ms: int) -> bool:
        """Tell whether sends may go to a broker."""
        return now_ms >= self._until_ms.get(broker, now_ms)

    def is_reachable(self, broker: str) -> bool:
        """Tell whether sends may go to a broker without an alternative."""
        return broker not in self._unreachable


class Turns:
    """Round robin over the queues of one topic."""

    __slots__ = ("_turn",)

    def __init__(self, start: int) -> None:
        self._turn = start

    def next(self, queues: Sequence[Queue], may: Callable[[Queue], bool]) -> Queue | None:
        """Next acceptable queue; None without one."""
        for _ in range(len(queues)):
            self._turn = (self._turn + 1) & _TURN_MASK
            queue = queues[self._turn % len(queues)]
            if may(queue):
                return queue
        return None

    def any(self, queues: Sequence[Queue]) -> Queue:
        """Next queue."""
        self._turn = (self._turn + 1) & _TURN_MASK
        return queues[self._turn % len(queues)]


def choose(
    queues: Sequence[Queue],
    turns: Turns,
    *,
    avoided: str | None = None,
    faults: FaultTable | None = None,
    now_ms: int = 0,
) -> Queue:
    """Queue for the next message, on another broker than ``avoided`` if possible. With a fault table, also on a broker
    that it does not avoid, if possible."""
    if faults is None:
        if avoided is None:
            return turns.any(queues)
        return turns.next(queues, lambda queue: queue.broker != avoided) or turns.any(queues)
    table = faults
    return (
        turns.next(queues, lambda queue: queue.broker != avoided and table.is_available(queue.broker, now_ms))
        or turns.next(queues, lambda queue: queue.broker != avoided and table.is_reachable(queue.broker))
        or choose(queues, turns, avoided=avoided)
    )


def by_hash(queues: Sequence[Queue], key: str) -> Queue:
    """Queue of a sharding key, as in RocketMQ's ``SelectMessageQueueByHash``."""
    return queues[abs(java_hash(key)) % len(queues)]


# Detect brokers that answer again after a failure.
#
# While all brokers answer, the client sends no detection requests.
#
# Source: RocketMQ's ``LatencyFaultToleranceImpl#detectByOneRound``.


EVERY_SECONDS: Final = 3.0
ANSWER_SECONDS_MAX: Final = 0.2  # Java: detectTimeout


class Detector:
    """Asks the unreachable brokers of a fault table; ``queue_of`` gives some queue of a broker."""

    def __init__(self, session: Session, faults: FaultTable, queue_of: Callable[[str], Queue | None]) -> None:
        self._session = session
        self._faults = faults
        self._queue_of = queue_of
        self._running: RunningTask | None = None

    def soon(self) -> None:
        """Begin to ask, since a broker gave no answer."""
        if (self._running is None or self._running.done()) and self._session.is_running:
            self._running = self._session.tasks.start(self._run(), "brokers that do not answer")

    def close(self) -> None:
        """Stop asking."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while self._faults.unreachable:
            await asyncio.sleep(EVERY_SECONDS)
            await asyncio.gather(*map(self._ask, self._faults.unreachable))

    async def _ask(self, broker: str) -> None:
        queue = self._queue_of(broker)
        if queue is None:
            self._faults.forget(broker)
            return
        fields: dict[str, FieldValue] = {"topic": queue.topic, "queueId": queue.queue_id}
        try:
            await self._session.call(broker, RequestCode.GET_MAX_OFFSET, fields, timeout_seconds=ANSWER_SECONDS_MAX)
        except BrokerError:
            pass  # a refusal is an answer, too
        except OSError:
            return
        self._faults.answers(broker)
