"""Pictures of commands that look after a cluster, for the documentation: `make terminalpictures`.

A cluster on free ports has the traffic of a made-up shop (`tools.shoptraffic`), and one more group that has left. After
some minutes each command runs in a shell on a pseudo-terminal. Its output goes to `docs/pictures` as an SVG, unchanged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tools.recording import PROMPT, Recorder, Shell, environment_of
from tools.shoptraffic import Shop, open_shop
from tools.terminalsvg import Pane, as_svg

PICTURES: Final = Path(__file__).parent.parent / "docs" / "pictures"
COMMANDS: Final = ("firearrow lag", "firearrow doctor", "firearrow top")
LIVE: Final = "firearrow top"
LIVE_LINES: Final = 30
COLUMNS: Final = 96
COLUMNS_MIN: Final = 48
LINES_MAX: Final = 80
FRAMES: Final = 22  # of the live command, so that its trends are full
STAY_SECONDS: Final = 10.0
"""Time of the group that leaves, so that it has an offset."""
_HOME: Final = "\x1b[H"


class Screen(Pane):
    """A terminal that also shows whole screens; its picture has all lines, or the last whole screen."""

    def __init__(self) -> None:
        super().__init__("a shell", COLUMNS, LIVE_LINES)
        self.printed = ""

    def feed(self, text: str, now: float) -> None:
        """Take output."""
        self.printed += text

    @property
    def frames(self) -> int:
        """Number of whole screens that were shown."""
        return self.printed.count(_HOME)

    def picture(self) -> Pane:
        """Return what it shows, as wide and as high as that is."""
        shown, *frames = self.printed.removesuffix("$ ").split(_HOME)
        if frames:
            command, _, _ = shown.partition("\x1b[?")
            frame, _, _ = frames[-1].partition("\x1b[J")
            shown = command + frame.replace("\x1b[K", "")
        pane = Pane(self.title, COLUMNS, LINES_MAX)
        pane.feed(shown, 0.0)
        while not pane.content[-1].text:
            pane.content.pop()
        pane.columns = max(COLUMNS_MIN, *(len(line.text) for line in pane.content))
        pane.lines = len(pane.content)
        return pane


def picture_of(command: str) -> Path:
    """Return the file of a command's picture."""
    return PICTURES / f"terminal-{command.split()[-1]}.svg"


def look(command: str, name_server: str) -> Pane:
    """Run a command in a shell, a live one until it has shown some screens."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="firearrow-") as directory:
        shell = Shell(screen, directory, {**environment_of(directory), "NAMESRV_ADDR": name_server})
        try:
            recorder = Recorder([shell])
            start = recorder.type(shell, command)
            if command == LIVE:
                recorder.skip_until(lambda: screen.frames >= FRAMES)
                os.write(shell.terminal, b"q")
            recorder.wait(shell, PROMPT, start)
        finally:
            shell.end()
    return screen.picture()


async def look_at_shop(seconds: float) -> dict[str, Pane]:
    """Return what each command shows after some time of traffic."""
    async with open_shop() as name_server, AsyncExitStack() as stack:
        leaving = asyncio.create_task(Shop(name_server).consume("search", "orders", 1))
        stack.push_async_callback(asyncio.wait, [leaving])
        stack.callback(leaving.cancel)
        await asyncio.sleep(STAY_SECONDS)
        leaving.cancel()
        await asyncio.sleep(seconds)
        return {command: await asyncio.to_thread(look, command, name_server) for command in COMMANDS}


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="duration of the traffic before (default: 150)")
    logging.disable()  # letters fail on purpose
    for command, pane in asyncio.run(look_at_shop(parser.parse_args().seconds)).items():
        picture_of(command).write_text(as_svg([pane]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
