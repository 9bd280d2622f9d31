"""A service that does something for each of what comes, one after the other."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from firearrow.net.tasks import Tasks
from firearrow.services import Service

T = TypeVar("T")


class SerialWorker(Service, Generic[T]):
    """Does it in a task, which is there only while something waits: no more than ``waiting_max``,
    what comes then is left out."""

    def __init__(self, name: str, waiting_max: int) -> None:
        super().__init__(name)
        self._waiting_max = waiting_max
        self._waiting: deque[T] = deque()
        self._tasks = Tasks()
        self._is_at_work = False

    async def stop(self) -> None:
        """End, also what is under way."""
        await self._tasks.close()

    def _add(self, item: T) -> None:
        """Have it done soon."""
        if len(self._waiting) >= self._waiting_max:
            return
        self._waiting.append(item)
        if not self._is_at_work:
            self._is_at_work = True
            self._tasks.begin(self._work(), self.name)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._do(self._waiting.popleft())
        finally:
            self._is_at_work = False

    async def _do(self, item: T) -> None:
        """Do it for one; nothing is to be raised that can be expected."""
        raise NotImplementedError
