"""Commands of `firearrow store`, with their exit codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final

from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import CANNOT, carried_out
from firearrow.cli.interrupt import ending_at_once
from firearrow.cli.store.cat import cat
from firearrow.cli.store.looks import diff, stat, why_not_deleted
from firearrow.cli.store.repairs import rebuild, repair, salvage, verify

app: Final = CommandGroup()


def _ending(command: Callable[..., int]) -> Callable[..., int]:
    """Let every failure end with 2, and Ctrl-C end the command at once."""

    @wraps(command)
    def run(*words: object, **options: object) -> int:
        def asked() -> int:
            with ending_at_once():
                return command(*words, **options)

        return carried_out(asked, CANNOT, as_json=bool(options.get("json")))

    return run


for _function in (stat, cat, verify, repair, rebuild, salvage, diff, why_not_deleted):
    app.command(_function.__name__.replace("_", "-"))(_ending(_function))
