"""Runs one command of `mqadmin`, and gives its exit code.

As upstream's: a command line that can't be read ends with 1, all else with 0, a command that failed
too, for which standard error has a sentence. A command that Firearrow does not have ends with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, cast

from firearrow.cli.mqadmin.commandline import WrongCommandLine, overview, usage, values_in
from firearrow.cli.mqadmin.table import Row, row_of

ENVIRONMENT: Final = "NAMESRV_ADDR"
REFUSED: Final = 1

Values = Mapping[str, str | bool]


def run(words: Sequence[str]) -> int:
    """Run a command line, which begins with the name of a command."""
    if not words:
        sys.stdout.write(overview())
        return 0
    asks_for_help = words[0] == "help" and len(words) == 2
    name = words[1] if asks_for_help else words[0]
    row = row_of(name)
    if row is None:
        sys.stdout.write(f"The sub command {name} not exist.\n")
        return 0
    if asks_for_help:
        sys.stdout.write(usage(row))
        return 0
    return _run(row, words[1:])


def _run(row: Row, words: Sequence[str]) -> int:
    if not row.is_supported:
        print(f"mqadmin: {row.name} is not supported: {row.summary}", file=sys.stderr)
        return REFUSED
    try:
        values = values_in(row, words)
    except WrongCommandLine as error:
        print(error, file=sys.stderr)
        sys.stdout.write(usage(row))
        return REFUSED
    if "h" in values:
        sys.stdout.write(usage(row))
        return 0
    import asyncio  # who only asks for help need not wait for it

    from firearrow.cli.failures import carried_out

    def command() -> int:
        asyncio.run(_carry_out(row, values))
        return 0

    return carried_out(command, 0)


async def _carry_out(row: Row, values: Values) -> None:
    from firearrow.cli.mqadmin.access import credentials
    from firearrow.cli.mqadmin.invocation import Invocation
    from firearrow.client.admin import Admin
    from firearrow.clock import SystemClock
    from firearrow.net.address import addresses_of

    given = values.get("n") or os.environ.get(ENVIRONMENT)
    name_servers = addresses_of(str(given)) if given else []
    async with Admin.of(name_servers, credentials()) as admin:
        await _function(row)(Invocation(row, values, admin, SystemClock()))


def _function(row: Row) -> Callable[..., Awaitable[None]]:
    module, _, name = row.place.partition(":")
    found = getattr(import_module(f"firearrow.cli.mqadmin.{module}"), name)
    return cast(Callable[..., Awaitable[None]], found)
