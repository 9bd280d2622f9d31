"""Standard output that can't be written: a full disk behind it, for example."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, suppress


def naming_output() -> AbstractContextManager[None]:
    """Have an error of standard output say that it is one."""
    from firearrow.files import naming

    return naming("standard output")


def forget_output() -> None:
    """Have what is not written yet go nowhere: it can't be written."""
    with suppress(OSError, ValueError):  # a test's output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
