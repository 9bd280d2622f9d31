"""Standard output that can't be written: a full disk behind it, or nobody who reads it."""

from __future__ import annotations

import os
import select
import sys
from contextlib import AbstractContextManager, suppress
from typing import Final

STANDARD_OUTPUT: Final = 1
OUTPUT: Final = "standard output"


def naming_output() -> AbstractContextManager[None]:
    """Have an error of standard output say that it is one."""
    from firearrow.files import naming

    return naming(OUTPUT)


def forget_output() -> None:
    """Discard what is not written yet: it can't be written."""
    with suppress(OSError, ValueError):  # a test's output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_is_closed() -> bool:
    """Tell whether standard output is a pipe, or a socket, whose reader is gone."""
    poll = select.poll()
    poll.register(STANDARD_OUTPUT, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
