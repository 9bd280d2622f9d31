"""A full-screen display that refreshes until the user types `q`, and then restores the terminal.

After a change of the window's size, a new frame follows at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

# The alternate screen of a terminal keeps the former contents.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END: Final = "\x1b[J"
_QUIT: Final = b"qQ\x03\x04"  # Ctrl-C and Ctrl-D, too: the terminal passes them on as keys

Draw = Callable[[int, int], str]
"""Gives a frame of the given lines and columns."""


async def live(refresh: Callable[[], Awaitable[Draw]], seconds: float) -> None:
    """Show the result of ``refresh`` again and again, until the user types `q`.

    A key other than `q` refreshes at once. Raises the exceptions of ``refresh``.
    """
    wake = asyncio.Event()
    keys = _TypedKeys(wake)
    loop = asyncio.get_running_loop()
    with _whole_window():
        loop.add_reader(sys.stdin.fileno(), keys.read)
        loop.add_signal_handler(signal.SIGWINCH, wake.set)
        try:
            await _show(refresh, seconds, keys, wake)
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(sys.stdin.fileno())


async def _show(refresh: Callable[[], Awaitable[Draw]], seconds: float, keys: _TypedKeys, wake: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while not keys.wants_end:
        draw = await refresh()
        until = loop.time() + seconds
        while not keys.wants_end:
            _draw(draw)
            wake.clear()
            try:
                async with asyncio.timeout_at(until):
                    await wake.wait()
            except TimeoutError:
                break
            if keys.pressed:
                keys.pressed = False
                break


class _TypedKeys:
    """Keys that the user types."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self.wants_end = False
        self.pressed = False

    def read(self) -> None:
        typed = os.read(sys.stdin.fileno(), 64)
        self.pressed = True
        self.wants_end |= not typed or any(key in _QUIT for key in typed)
        self._wake.set()


def _draw(draw: Draw) -> None:
    columns, lines = os.get_terminal_size(sys.stdout.fileno())  # and not of COLUMNS
    text = draw(lines, columns).replace("\n", f"{_TO_END_OF_LINE}\r\n")
    sys.stdout.write(f"{_HOME}{text}{_TO_END_OF_LINE}{_TO_END}")
    sys.stdout.flush()


@contextmanager
def _whole_window() -> Iterator[None]:
    """Read keys without waiting for a line, and use the whole window."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
