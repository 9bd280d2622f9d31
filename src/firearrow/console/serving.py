"""Serve the application of a console until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

GRACE_SECONDS = 5
"""Longest wait for answers at the end."""


class ConsoleServer(uvicorn.Server):
    """Server that ends in order at a signal, and leaves the exit code to the command.

    ``before_end`` ends what would go on for ever.
    """

    def __init__(self, application: Starlette, before_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                lifespan="on",
            )
        )
        self._before_end = before_end

    def end(self) -> None:
        """End soon."""
        self._before_end()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at SIGINT and SIGTERM; uvicorn would raise them again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)
        yield
