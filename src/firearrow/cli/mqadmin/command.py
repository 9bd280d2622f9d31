"""`firearrow mqadmin` in the list of commands and its help.

`firearrow.cli.main` gives the words of an `mqadmin` command line to `entry` directly.
"""

from __future__ import annotations

from typing import Annotated

from firearrow.cli.mqadmin.entry import run
from firearrow.cli.parameters import valued


def mqadmin(
    *words: Annotated[str, valued("COMMAND", "the command and its options; all are on a separate page, mqadmin.md")],
) -> int:
    """Run a command of RocketMQ's own mqadmin."""
    return run(words)
