"""Serve the application of a console until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

GRACE_SECONDS = 1
"""Wait for streams at the end: they have none of their own."""


class ConsoleServer(uvicorn.Server):
    """Server that ends in order at a signal, and leaves the exit code to the command."""

    def __init__(self, application: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                lifespan="on",
            )
        )

    def end(self) -> None:
        """End soon."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at SIGINT and SIGTERM; uvicorn would raise them again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)
        yield
