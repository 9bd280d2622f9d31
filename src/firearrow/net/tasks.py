"""Tasks of a client or of a part of a server; each ends with its owner.

The failure of a task is logged, because no caller awaits it. Periodic work goes on after a failure that may pass.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from firearrow.errors import ClientError, FirearrowError
from firearrow.logs import Log
from firearrow.services import Service

log: Final = Log(__name__)


class RunningTask:
    """Task that was started by its owner."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def done(self) -> bool:
        """Tell whether it has ended."""
        return self._task.done()

    async def ended(self, seconds: float) -> bool:
        """Wait for its end; False if it runs for longer than that time."""
        await asyncio.wait([self._task], timeout=seconds)
        return self._task.done()

    def cancel(self) -> None:
        """Request its end."""
        self._task.cancel()

    async def stop(self) -> None:
        """Cancel it, and wait for its end. A task that stops itself ends at its next wait."""
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

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> RunningTask:
        """Run a coroutine until it ends or the owner does; ``name`` is for the log.

        Raises ClientError once the owner has ended.
        """
        if self._is_closed:
            work.close()
            raise ClientError(f"{name}: the session was closed")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return RunningTask(task)

    def begin(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run a coroutine, as `start`; but nothing once the owner has ended."""
        if self._is_closed:
            work.close()
        else:
            self.start(work, name)

    def every(
        self, seconds: float, call: Callable[[], Awaitable[object]], name: str, *, first_seconds: float | None = None
    ) -> RunningTask:
        """Call a function periodically, with a pause of ``seconds`` after each call."""
        first = seconds if first_seconds is None else first_seconds
        return self.start(_again_and_again(first, seconds, call, name), name)

    async def close(self) -> None:
        """Cancel all tasks except the calling one, and wait until they have ended."""
        self._is_closed = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def settled(self) -> bool:
        """Wait for the tasks that run now; False if there is none."""
        if not self._tasks:
            return False
        await asyncio.wait(tuple(self._tasks))
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        say_if_failed(task)


def is_cancelled() -> bool:
    """Tell whether the running task itself is cancelled, after a CancelledError.

    The awaited call may have been cancelled instead: then that call has failed, and the task goes on.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def say_if_failed(task: asyncio.Task[Any]) -> None:
    """Log the failure of a task that has ended."""
    if task.cancelled():
        if not task.cancelling():
            fields = {"task": task.get_name(), "error": "the call that it awaited was cancelled"}
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
            log.warning("work is retried later", extra={"task": name, "error": error})
        await asyncio.sleep(seconds)


# --- Service that handles items one after the other ---


T = TypeVar("T")


class SerialWorker(Service, Generic[T]):
    """Service that handles items one after the other.

    A task exists only while items wait. Items beyond ``waiting_max`` are dropped.
    """

    def __init__(self, name: str, waiting_max: int) -> None:
        super().__init__(name)
        self._waiting_max = waiting_max
        self._waiting: deque[T] = deque()
        self._tasks = Tasks()
        self._is_at_work = False

    async def stop(self) -> None:
        """Cancel the item in progress, and drop the others."""
        await self._tasks.close()

    def _add(self, item: T) -> None:
        """Queue an item."""
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
        """Handle one item; a subclass handles expected errors itself."""
        raise NotImplementedError


# --- Service that is one task ---


class TaskService(Service):
    """Service that runs one task from its start to its stop, in ``loop`` or the running event loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name)
        self._task_loop = loop
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task."""
        loop = self._task_loop or asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=self.name)
        self._task.add_done_callback(say_if_failed)

    async def stop(self) -> None:
        """Cancel the task, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def trouble(self) -> str | None:
        """Error that has ended the task before its stop, always a defect."""
        task = self._task
        if task is None or not task.done() or task.cancelled():
            return None
        return f"it has ended: {task.exception()!r}"

    async def _run(self) -> None:
        """Work until the task is cancelled."""
        raise NotImplementedError
