"""The screen that is drawn again and again, on a terminal of the test's own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from firearrow.cli.output import livescreen
from firearrow.cli.output.livescreen import Draw, live

NEVER = 3600.0


class Terminal:
    """The other side of a terminal: what is shown, and what is typed."""

    def __init__(self, main: int, other: int) -> None:
        self._main = main
        self.other = other
        self.shown = ""
        self.resize(5, 20)

    def resize(self, lines: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self.other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._main, keys.encode())

    async def shows(self, text: str) -> None:
        """Wait until a text has been shown."""
        loop = asyncio.get_running_loop()
        while text not in self.shown:
            ready = loop.create_future()
            loop.add_reader(self._main, ready.set_result, None)
            try:
                async with asyncio.timeout(10):
                    await ready
            finally:
                loop.remove_reader(self._main)
            self.shown += os.read(self._main, 65536).decode()


@contextmanager
def opened() -> Iterator[Terminal]:
    """Have a terminal as standard input and output."""
    main, other = pty.openpty()
    try:
        with (
            open(other, closefd=False) as keys,
            open(other, "w", closefd=False) as window,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("sys.stdin", keys)
            patch.setattr("sys.stdout", window)
            yield Terminal(main, other)
    finally:
        os.close(main)
        os.close(other)


class Counting:
    """Frames with a number and the size of the window."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> Draw:
        self.count += 1
        number = self.count
        return lambda lines, columns: f"frame {number}\nof {lines} x {columns}"


def test_it_draws_until_q_is_typed() -> None:
    async def scenario(terminal: Terminal) -> None:
        screen = asyncio.create_task(live(Counting(), NEVER))
        await terminal.shows("frame 1\x1b[K\r\nof 5 x 20")
        terminal.resize(9, 40)
        os.kill(os.getpid(), signal.SIGWINCH)
        await terminal.shows("frame 1\x1b[K\r\nof 9 x 40")  # the same, at once
        terminal.type(" ")
        await terminal.shows("frame 2")
        terminal.type("q")
        await screen
        await terminal.shows(livescreen._LEAVE)
        assert terminal.shown.startswith(livescreen._ENTER)

    with opened() as terminal:
        before = termios.tcgetattr(terminal.other)
        asyncio.run(scenario(terminal))
        assert termios.tcgetattr(terminal.other) == before


def test_it_looks_again_after_a_time() -> None:
    async def scenario(terminal: Terminal) -> None:
        screen = asyncio.create_task(live(Counting(), 0.01))
        await terminal.shows("frame 3")
        terminal.type("\x03")
        await screen

    with opened() as terminal:
        asyncio.run(scenario(terminal))


def test_a_failure_leaves_the_terminal_as_it_was() -> None:
    async def fail() -> Draw:
        raise ConnectionError("nobody answers")

    with opened() as terminal:
        before = termios.tcgetattr(terminal.other)
        with pytest.raises(ConnectionError):
            asyncio.run(live(fail, NEVER))
        assert termios.tcgetattr(terminal.other) == before
