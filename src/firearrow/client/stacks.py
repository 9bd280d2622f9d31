"""Where all threads and tasks of a process are, as text: what RocketMQ's tools call a jstack.

Source: upstream ``UtilAll#jstack``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any


def stacks_text() -> str:
    """The stacks of all threads and of all tasks of the running loop, the innermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        _stack_text(names.get(ident) or f"thread {ident}", f"TID: {ident}", _frames_of(frame))
        for ident, frame in sys._current_frames().items()
    ]
    parts += [
        _stack_text(task.get_name(), "TASK", reversed(_frames_of_task(task)))
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    ]
    return "\n".join(parts)


def _frames_of(frame: FrameType) -> list[FrameType]:
    return [one for one, _ in traceback.walk_stack(frame)]


def _frames_of_task(task: asyncio.Task[Any]) -> list[FrameType]:
    """A coroutine and those that it waits for, of which ``Task.get_stack`` gives only the first."""
    found: list[FrameType] = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append(frame)
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _stack_text(name: str, what: str, frames: Iterable[FrameType]) -> str:
    lines = [
        f"{name:<40}{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})\n" for frame in frames
    ]
    return f"{name:<40}{what}\n{''.join(lines)}"
