"""Asks brokers that gave no answer whether they do again, so that they get messages then.

Nothing is asked while all answer.

Source: upstream ``LatencyFaultToleranceImpl#detectByOneRound``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from firearrow.client.choosing import FaultTable
from firearrow.client.queues import Queue
from firearrow.client.session import Session
from firearrow.errors import BrokerError
from firearrow.net.tasks import Running
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

EVERY_SECONDS: Final = 3.0
ANSWER_SECONDS_MAX: Final = 0.2  # Java: detectTimeout


class Detecting:
    """Asks those that ``faults`` has as unreachable; ``queue_of`` gives some queue of a broker."""

    def __init__(self, session: Session, faults: FaultTable, queue_of: Callable[[str], Queue | None]) -> None:
        self._session = session
        self._faults = faults
        self._queue_of = queue_of
        self._running: Running | None = None

    def soon(self) -> None:
        """A broker gave no answer."""
        if (self._running is None or self._running.done()) and self._session.is_running:
            self._running = self._session.tasks.start(self._run(), "brokers that do not answer")

    def close(self) -> None:
        """Ask no more."""
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
            pass  # that is an answer
        except OSError:
            return
        self._faults.answers(broker)
