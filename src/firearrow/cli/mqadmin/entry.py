"""Run one command of `mqadmin`, and give its exit code.

The exit codes are RocketMQ's: 1 for a command line that can't be read, 0 for a command that failed. The error is on
standard error. A command that Firearrow does not have ends with 1.

With access control, a run signs as the user in RocketMQ's ``conf/tools.yml`` below the directory in ``ROCKETMQ_HOME``.
Only these two lines of the file are read:

    accessKey: rocketmq2
    secretKey: 12345678
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from firearrow.cli.mqadmin.commandline import WrongCommandLine, overview, usage, values_in
from firearrow.cli.mqadmin.table import Row, row_of

if TYPE_CHECKING:
    from firearrow.wire.signature import Credentials

HOME: Final = "ROCKETMQ_HOME"
USER_FILE: Final = "conf/tools.yml"
ENVIRONMENT: Final = "NAMESRV_ADDR"
REFUSED: Final = 1


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
    import asyncio  # slow to import, and help does not need it

    from firearrow.cli.failures import carried_out

    def command() -> int:
        asyncio.run(_carry_out(row, values))
        return 0

    return carried_out(command, 0)


async def _carry_out(row: Row, values: Mapping[str, str | bool]) -> None:
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


def credentials() -> Credentials | None:
    """Read the user from the file; None if there is no file, or one of the two lines is missing."""
    from pathlib import Path  # slow to import, and help does not need it

    from firearrow.wire.signature import Credentials

    home = os.environ.get(HOME)
    path = Path(home) / USER_FILE if home else None
    if path is None or not path.is_file():
        return None
    pairs = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
    found = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
    access, secret = found.get("accessKey"), found.get("secretKey")
    return Credentials(access, secret) if access and secret else None
