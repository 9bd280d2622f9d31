"""A service that is one task. (It is not with the others, which need no event loop of asyncio.)"""

from __future__ import annotations

import asyncio

from firearrow.net.tasks import say_if_failed
from firearrow.services import Service


class Running(Service):
    """Does one thing after another, in a task, from its start to its stop; ``loop`` is whose task
    that is, if not of the running one."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name)
        self._task_loop = loop
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin."""
        loop = self._task_loop or asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=self.name)
        self._task.add_done_callback(say_if_failed)

    async def stop(self) -> None:
        """End, also what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def trouble(self) -> str | None:
        """What has ended it before its stop: then it is a fault of ours."""
        task = self._task
        if task is None or not task.done() or task.cancelled():
            return None
        return f"it has ended: {task.exception()!r}"

    async def _run(self) -> None:
        """Do it, without an end."""
        raise NotImplementedError
