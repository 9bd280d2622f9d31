"""Failures of standard output: a full disk, or a reader that has gone."""

from __future__ import annotations

import os
import select
import sys
from contextlib import AbstractContextManager, suppress
from typing import Final

from firearrow.errors import naming

STANDARD_OUTPUT: Final = 1
OUTPUT: Final = "standard output"


def naming_output() -> AbstractContextManager[None]:
    """Name standard output in its errors."""
    return naming(OUTPUT)


def forget_output() -> None:
    """Discard the unwritten output, which can't be written."""
    with suppress(OSError, ValueError):  # the output of a test is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_is_closed() -> bool:
    """Tell whether standard output is a pipe or socket without a reader."""
    poll = select.poll()
    poll.register(STANDARD_OUTPUT, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
