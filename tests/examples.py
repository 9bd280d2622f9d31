"""Run code blocks of the documentation as a reader would, and compare their output.

A block may have ``await`` outside of functions, as in ``python -m asyncio``. Its comments show the expected
output: behind a ``print``, or on lines of their own below one. A consumer's ``run`` ends when all of that output
has appeared.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import redirect_stdout, suppress
from typing import Any

from tests.pages import NAME_SERVER, Block

SECONDS_MAX = 30.0
ENDLESS = "consumer.run()"
_SAID = re.compile(r"^ *print\(.*\)(?:  # (.*))?$|^ *# (.*)$")


def expected(block: Block) -> list[str]:
    """Return the lines of output that a block announces."""
    lines: list[str] = []
    is_below = False
    for line in block.code.splitlines():
        match = _SAID.match(line)
        if match and (match[1] or (is_below and match[2])):
            lines.append(match[1] or match[2])
        is_below = bool(match and (is_below or match[2] is None))
    return lines


class Output(io.StringIO):
    """Output of a block; it calls ``when_said`` once the output is complete."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines
        self.when_said: Callable[[], object] = lambda: None

    def write(self, text: str) -> int:
        length = super().write(text)
        if text == "\n" and self.getvalue().splitlines() == self._lines:
            self.when_said()
        return length


def run(blocks: Iterable[Block], name_server: str) -> None:
    """Run blocks in their order on the page, with the name server of a cluster."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        code = block.code.replace(NAME_SERVER, name_server)
        compiled = compile(code, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        lines = expected(block)
        awaits = compiled.co_flags & inspect.CO_COROUTINE
        with redirect_stdout(Output(lines)) as output:
            if awaits and ENDLESS in code:
                asyncio.run(_until_said(eval(compiled, names), output))
            elif awaits:
                asyncio.run(asyncio.wait_for(eval(compiled, names), SECONDS_MAX))
            else:
                if ENDLESS in code:
                    output.when_said = lambda: threading.Thread(target=names["consumer"].stop).start()
                exec(compiled, names)
        assert output.getvalue().splitlines() == lines, block.place


async def _until_said(endless: Coroutine[Any, Any, Any], output: Output) -> None:
    task = asyncio.create_task(endless)
    output.when_said = task.cancel
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS_MAX)
