"""The tasks of a client or of a part of a server, each of which ends with its owner.

A task that fails is logged, as nobody waits for it. Work that is done again and again goes on after
a failure that another time may not meet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from firearrow.errors import ClientError, FirearrowError

log = logging.getLogger(__name__)


class Running:
    """A task that runs."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def done(self) -> bool:
        """Tell whether it has ended."""
        return self._task.done()

    async def ended(self, seconds: float) -> bool:
        """Wait until it has ended by itself; False if it has not in that time."""
        await asyncio.wait([self._task], timeout=seconds)
        return self._task.done()

    def cancel(self) -> None:
        """Have it end soon."""
        self._task.cancel()

    async def stop(self) -> None:
        """Have it end, and wait for that; a task that stops itself ends at its next wait."""
        self._task.cancel()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])


class Tasks:
    """Tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> Running:
        """Run a coroutine until it ends or the owner does; ``name`` is for the log.

        Raises ClientError once the owner has ended.
        """
        if self._is_closed:
            work.close()
            raise ClientError(f"{name}: the session was closed")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return Running(task)

    def begin(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run a coroutine, as `start`; but nothing once the owner has ended."""
        if self._is_closed:
            work.close()
        else:
            self.start(work, name)

    def every(
        self, seconds: float, call: Callable[[], Awaitable[object]], name: str, *, first_seconds: float | None = None
    ) -> Running:
        """Do something again and again, with so many seconds after each time."""
        first = seconds if first_seconds is None else first_seconds
        return self.start(_again_and_again(first, seconds, call, name), name)

    async def close(self) -> None:
        """Cancel all, but for the one that asks for it, and wait until they have ended."""
        self._is_closed = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def settled(self) -> bool:
        """Wait until those have ended that run now; False if none does."""
        if not self._tasks:
            return False
        await asyncio.wait(tuple(self._tasks))
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        say_if_failed(task)


def is_cancelled() -> bool:
    """Tell whether the running task itself is cancelled, where a CancelledError was met.

    What it awaited may have been cancelled instead: then that has failed, and the task goes on.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def say_if_failed(task: asyncio.Task[Any]) -> None:
    """Have the log say why a task has failed, when it has ended."""
    if task.cancelled():
        if not task.cancelling():
            fields = {"task": task.get_name(), "error": "what it awaited was cancelled"}
            log.error("task failed", extra=fields)
    elif (error := task.exception()) is not None:
        log.error("task failed", extra={"task": task.get_name()}, exc_info=error)


async def _again_and_again(first: float, seconds: float, call: Callable[[], Awaitable[object]], name: str) -> None:
    await asyncio.sleep(first)
    while True:
        try:
            await call()
        except (OSError, FirearrowError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            log.warning("work is done again later", extra={"task": name, "error": error})
        await asyncio.sleep(seconds)
